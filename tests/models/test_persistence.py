"""Model files: what was saved comes back bit for bit, and nothing else is taken for a model."""

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from nmfscale.models.persistence import is_model_file, load_model, read_header, save_model
from nmfscale.storage.arrays import put, put_json

HISTORY = np.dtype(
    [("iteration", np.int64), ("seconds", np.float64), ("loglik", np.float64), ("reset", np.bool_)]
)


class StandIn(BaseEstimator):
    """The shape of an estimator, without a fit."""

    def __init__(self, n_components=3, *, tol=1e-4, init="auto", dtype=None, random_state=None):
        self.n_components = n_components
        self.tol = tol
        self.init = init
        self.dtype = dtype
        self.random_state = random_state

    def fit(self, X, y=None):
        return self


CLASSES = {"StandIn": StandIn}


def fitted(dtype=np.float64, n=5, m=7, k=3, **parameters):
    rng = np.random.default_rng(0)
    model = StandIn(k, **parameters)
    model.components_ = rng.random((k, m)).astype(dtype)
    model.loadings_ = rng.random((n, k)).astype(dtype)
    model.size_factors_ = rng.random(n)
    model.history_ = np.zeros(4, dtype=HISTORY)
    model.history_["loglik"] = [-np.inf, -3.5, np.nan, -1 / 3]
    model.loglik_ = -1 / 3
    model.converged_ = True
    model.n_iter_ = 4
    model.n_features_in_ = m
    model.feature_names_in_ = np.array([f"gène {j}" for j in range(m)], dtype=object)
    model.sample_names_ = None
    return model


def assert_same(ours, theirs):
    """Same type, dtype and bits."""
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype == object:
            assert ours.tolist() == theirs.tolist()
        else:
            assert ours.tobytes() == theirs.tobytes()
    else:
        assert ours == theirs


def edit(path, change):
    with h5py.File(path, "r+") as file:
        change(file)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.h5"
    save_model(fitted(), path)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f8"])
def test_round_trip_keeps_every_bit(tmp_path, dtype):
    model = fitted(dtype)
    save_model(model, tmp_path / "model.h5")
    back = load_model(str(tmp_path / "model.h5"), classes=CLASSES)
    assert type(back) is StandIn
    assert list(vars(back)) == list(vars(model))
    for name, value in vars(model).items():
        assert_same(getattr(back, name), value)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1 / 3),
        np.int64(7),
        np.bool_(True),
        "naïve\nκείμενο",
        "",
        1e300,
        -0.0,
        True,
        2**62,
        None,
        np.array([], dtype=np.float32),
        np.zeros((0, 3)),
        np.array(2.5),
        np.array([True, False]),
        np.array([b"ab", b"c"]),
        np.array(["a", "βγ"]),
        np.array([], dtype=object),
        np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        np.zeros(3, np.dtype([("a", bool), ("b", float)], align=True)),
        "x" * 200_000,
        np.array(["one\udcff", ""], dtype=object),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_any_plain_attribute_comes_back(tmp_path, value):
    model = fitted()
    model.extra_ = value
    save_model(model, tmp_path / "model.h5")
    assert_same(load_model(tmp_path / "model.h5", classes=CLASSES).extra_, value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        2,
        np.int32(2),
        0.1,
        float("inf"),
        "random",
        ("kl", "frobenius"),
        [1, [2.5, None]],
        {"shape": 1.1, "rates": (1, 2)},
        {"T": np.eye(2), "T/NK": np.eye(1), "T.a": {}, "": np.eye(1), "x\0": np.ones(1), ".": 1},
        np.float32,
        np.dtype("int16"),
        np.arange(5),
        np.array(["B cell", "T cell"]),
        [np.eye(2), None],
        "x" * 200_000,
    ],
    ids=lambda value: repr(value)[:40],
)
def test_parameters_come_back(tmp_path, value):
    save_model(fitted(init=value), tmp_path / "model.h5")
    back = load_model(tmp_path / "model.h5", classes=CLASSES).init
    np.testing.assert_equal(back, np.dtype(value) if value is np.float32 else value)
    assert isinstance(back, tuple) == isinstance(value, tuple)


@pytest.mark.parametrize("value", [np.random.RandomState(0), np.random.default_rng(0), print])
def test_generators_and_functions_are_left_out_with_a_note(tmp_path, value):
    save_model(fitted(random_state=value), tmp_path / "model.h5")
    assert load_model(tmp_path / "model.h5", classes=CLASSES).random_state is None
    assert read_header(tmp_path / "model.h5")["left_out"] == {"random_state": type(value).__name__}


def test_attributes_that_are_no_data_are_left_out_with_a_note(tmp_path):
    model = fitted()
    model.monitor_ = object()
    model.dates_ = np.array(["2020-01-01"], dtype="datetime64[D]")
    model._private = 1
    save_model(model, tmp_path / "model.h5")
    back = load_model(tmp_path / "model.h5", classes=CLASSES)
    assert not {"monitor_", "dates_", "_private"} & set(vars(back))
    assert set(read_header(tmp_path / "model.h5")["left_out"]) == {"monitor_", "dates_"}


def test_names_of_any_type_are_kept(tmp_path):
    model = fitted()
    names = [10, np.int64(11), "a", None, (b"\xff", ("b", 1.5))]
    model.sample_names_ = np.fromiter(names, object, len(names))
    save_model(model, tmp_path / "model.h5")
    back = load_model(tmp_path / "model.h5", classes=CLASSES)
    assert back.sample_names_.tolist() == names


def test_the_file_can_be_read_without_us(saved):
    with h5py.File(saved) as file:
        assert file.attrs["format"] == b"nmfscale-model"
        assert file.attrs["format_version"] == 2
        assert file.attrs["model"] == b"StandIn"
        assert json.loads(bytes(file["about"][()]))["parameters"]["n_components"] == 3
        assert file["components"].shape == (3, 7)
        text, ends = bytes(file["feature_names/text"][()]), file["feature_names/ends"]
        assert text[ends[0] : ends[1]].decode() == "gène 1"
        assert file["history"].dtype.names == HISTORY.names
        assert file["converged"][()]
        assert "sample_names" not in file


def test_header(saved):
    header = read_header(saved)
    assert header["model"] == "StandIn"
    assert header["format_version"] == 2
    assert header["created"].endswith("+00:00")
    assert header["parameters"]["tol"] == 1e-4
    assert header["fitted"]["loadings_"] == "array"
    assert is_model_file(saved)


def test_unfitted_or_unstorable_harms_nothing(saved, tmp_path):
    before = saved.read_bytes()
    with pytest.raises(NotFittedError):
        save_model(StandIn(), saved)
    with pytest.raises(TypeError, match="parameter init is a set.*set_params"):
        save_model(fitted(init={1, 2}), saved)
    assert saved.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.h5"]


def test_failure_while_writing_harms_nothing(saved, tmp_path, monkeypatch):
    before = saved.read_bytes()

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        save_model(fitted(np.float32), saved)
    assert saved.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.h5"]


def test_saving_replaces_and_follows_links(saved, tmp_path):
    link = tmp_path / "link.h5"
    link.symlink_to(saved)
    save_model(fitted(np.float32), link)
    assert link.is_symlink()
    assert load_model(saved, classes=CLASSES).components_.dtype == np.float32


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder .*absent does not exist"):
        save_model(fitted(), tmp_path / "absent" / "model.h5")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        save_model(fitted(), tmp_path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "absent.h5")
    with pytest.raises(IsADirectoryError):
        load_model(tmp_path)
    assert not is_model_file(tmp_path / "absent.h5")


@pytest.mark.parametrize("content", [b"", b"\x89HD", b"PK\x03\x04 not a model", b"\n" * 5000])
def test_other_formats_are_refused(tmp_path, content):
    path = tmp_path / "model.h5"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.h5 is not an HDF5 file"):
        load_model(path)
    assert not is_model_file(path)


def test_foreign_hdf5_is_refused(tmp_path):
    path = tmp_path / "counts.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = np.eye(3)
    with pytest.raises(ValueError, match=r"counts\.h5ad is an HDF5 file but not a model file"):
        load_model(path)
    assert not is_model_file(path)


@pytest.fixture
def old_model(tmp_path):
    """Copy a model file of format 1."""
    return shutil.copy(Path(__file__).parent / "format_1.h5", tmp_path / "old.h5")


def test_a_model_of_format_1_is_read(old_model, tmp_path):
    model = load_model(old_model)
    assert model.components_.shape == (3, 12) and model.n_iter_ == len(model.history_) == 3
    assert model.sample_names_[7] == "sämple 7" and model.sample_names_.dtype == object
    assert model.init.tolist() == [i % 3 for i in range(20)]
    save_model(model, tmp_path / "new.h5")
    again = load_model(tmp_path / "new.h5")
    for name, value in vars(model).items():
        assert_same(getattr(again, name), value)


def with_the_same_bytes(name, change_values):
    def change(file):
        values, crc32 = change_values(file[name][()]), file[name].attrs["crc32"]
        del file[name]
        file[name] = values
        file[name].attrs["crc32"] = crc32

    return change


def of_shape(name, shape):
    return with_the_same_bytes(name, lambda values: values.reshape(shape))


def of_type(name, kind):
    return with_the_same_bytes(name, lambda values: values.view(kind))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (of_shape("history", (1, 1, -1)), r"'history' has shape \(1, 1, .*\) where"),
        (of_shape("loglik", (1, 1)), r"loglik has shape \(1, 1\), not \(\)"),
        (lambda f: f["components"].attrs.create("crc32", [b"a", b"b"]), "crc32 of /components has"),
        (of_type("loadings", "<i8"), "'loadings' is of type int64"),
        (of_type("n_iter", "<f8"), "n_iter is of type float64, not i or u"),
    ],
)
def test_a_damaged_model_of_format_1_is_refused(old_model, change, complaint):
    edit(old_model, change)
    with pytest.raises(ValueError, match=f"old.h5 is damaged.*{complaint}"):
        load_model(old_model)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_truncated_files_are_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"model\.h5 is (damaged|not an HDF5 file)"):
        load_model(saved, classes=CLASSES)


def test_a_flipped_bit_in_any_dataset_is_found(tmp_path):
    path = tmp_path / "model.h5"
    save_model(fitted(init=np.arange(5), tol=np.array(["one", "two"])), path)
    with h5py.File(path) as file:
        found = []
        file.visititems(lambda _, node: found.append(node) if hasattr(node, "dtype") else None)
        places = {node.name[1:]: (node.id.get_offset(), node.nbytes) for node in found}
    assert {"about", "components", "loglik", "feature_names/text", "parameters/tol/ends"} < set(
        places
    )
    whole = path.read_bytes()
    for name, (start, size) in places.items():
        content = bytearray(whole)
        content[start + size // 2] ^= 4
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"model.h5 is damaged: the checksum of {name}"):
            load_model(path, classes=CLASSES)


def test_text_of_variable_length_is_recognized_and_not_read(saved):
    edit(saved, lambda file: file.attrs.create("format", "nmfscale-model"))
    assert not is_model_file(saved)
    with pytest.raises(ValueError, match="damaged.*format is not text of fixed length"):
        load_model(saved, classes=CLASSES)


def replace(name, values):
    def change(file):
        del file[name]
        put(file, name, values)

    return change


def of_variable_length(name):
    def change(file):
        del file[name]
        file[name] = ["a", "b"]

    return change


def say(name, value):
    """Change one thing of what a file says about itself."""

    def change(file):
        about = json.loads(bytes(file["about"][()]))
        del file["about"]
        put_json(file, "about", about | {name: value})

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda f: f.attrs.modify("format_version", 3), "model format 3; .* up to 2.*Upgrade"),
        (lambda f: f.attrs.modify("format_version", 0), "format_version is .*0"),
        (lambda f: f.attrs.create("format_version", "x"), "format_version of / has another type"),
        (lambda f: f.attrs.create("model", np.bytes_("Oracle")), "holds a Oracle"),
        (lambda f: f.attrs.create("model", np.bytes_("np")), "holds a np"),
        (replace("about", np.frombuffer(b"{", np.uint8)), "damaged.*Expecting"),
        (replace("about", np.frombuffer(b"[]", np.uint8)), "about is not a JSON object"),
        (say("fitted", []), "no JSON object 'fitted'"),
        (say("fitted", {"fit": "int"}), "'fit' is not a fitted attribute"),
        (say("fitted", {"__class__": "int"}), "'__class__' is not a fitted attribute"),
        (say("parameters", {"colour": 1}), "does not know: colour"),
        (say("parameters", {"init": {}}), "damaged"),
        (say("parameters", {"init": {"dict": 1}}), "damaged"),
        (say("parameters", {"init": {"dataset": 1}}), "damaged"),
        (say("parameters", {"init": {"dataset": "parameters"}}), "damaged.*no 'parameters'"),
        (lambda f: f.attrs.__delitem__("created"), "damaged.*created"),
        (lambda f: f["loglik"].attrs.__delitem__("checksum"), "damaged.*/loglik has no .*crc32"),
        (lambda f: f.__delitem__("components"), "damaged.*no 'components'"),
        (lambda f: f.__delitem__("loadings"), "damaged.*no 'loadings'"),
        (say("fitted", {}), "dataset 'components' is missing"),
        (replace("components", np.ones((3, 6))), r"'components' has shape \(3, 6\) .*\(3, 7\)"),
        (replace("components", np.ones(7)), r"'components' has shape \(7,\)"),
        (replace("loadings", np.ones((5, 4))), r"'loadings' has shape \(5, 4\) .*\(5, 3\)"),
        (replace("size_factors", np.ones(6)), r"'size_factors' has shape \(6,\) .*\(5,\)"),
        (replace("components", np.full((3, 7), np.nan)), "'components' holds NaN"),
        (replace("feature_names", 3), "damaged"),
        (of_variable_length("feature_names"), "damaged.*feature_names is of variable length"),
    ],
)
def test_inconsistent_files_are_refused(saved, change, complaint):
    edit(saved, change)
    with pytest.raises(ValueError, match=complaint) as caught:
        load_model(saved, classes=CLASSES)
    assert "model.h5" in str(caught.value)
