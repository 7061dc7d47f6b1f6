"""The packed store: what is in it, what is refused, and fits that read it."""

import os
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import dask.array as da
import h5py
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night
from numpy.testing import assert_array_equal

import nmfscale
from nmfscale.counts.sizes import parse_bytes
from nmfscale.engine.memory import MemoryLimitError, fits_within, plan_fit, reads_anew
from nmfscale.engine.protocol import Needs
from nmfscale.experimental import SparsityPenalty
from nmfscale.methods.poisson.solvers import poisson_needs
from nmfscale.readers.open import as_counts
from nmfscale.storage import store as stores
from nmfscale.storage.arrays import put, put_json, read_json, save_arrays
from nmfscale.storage.atomic import atomic_hdf5
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_blocks import DamagedStoreError
from nmfscale.storage.store_writer import pack

rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
X[7, 5] = 700  # more than a byte
X[:, 8] = X[11] = 0


@pytest.fixture
def store(tmp_path, small_blocks):
    pack(as_counts(X), tmp_path / "counts.nmf", n_threads=2)
    return tmp_path / "counts.nmf"


def dense(counts):
    """All rows as `chunks` gives them."""
    out = np.zeros(counts.shape, counts.dtype)
    for first, indptr, indices, data in counts.chunks():
        n_rows = len(indptr) - 1
        piece = sp.csr_array((data, indices, indptr), shape=(n_rows, counts.shape[1]))
        assert piece.has_canonical_format
        out[first : first + n_rows] = piece.toarray()
    return out


# What is in it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "matrix",
    [
        X,
        X.astype(np.float32) / 8,
        X.astype(np.uint16) * 90,
        np.where(X > 0, 2**25 + 1, 0),
        X[:1],
        X[:, :1],
        np.zeros((3, 4), int),
    ],
    ids=["integer", "fractions", "large", "very-large", "row", "column", "empty"],
)
def test_a_store_holds_the_counts(tmp_path, small_blocks, matrix):
    counts = as_counts(matrix, integer="allow")
    pack(counts, tmp_path / "counts.nmf")
    stored = StoredCounts(tmp_path / "counts.nmf")
    assert (stored.shape, stored.nnz, stored.dtype) == (counts.shape, counts.nnz, counts.dtype)
    assert_array_equal(dense(stored), matrix)
    for name in ("row_nnz", "column_nnz", "row_totals", "column_totals"):
        assert_array_equal(getattr(stored, name), getattr(counts, name))
    assert stored.report() == counts.report()
    some = np.arange(0, len(matrix), 2)
    for rows in (slice(None), some):
        taken = stored.take_rows(None if rows is not some else rows)
        assert_array_equal(taken.toarray(), matrix[rows])
        assert taken.dtype == stored.dtype
    for above in (0, 255, 65535):
        if counts.is_integer and counts.largest < 2**24:
            found = stored.large_counts(max(above, 255))
            for one, other in zip(found, counts.large_counts(max(above, 255)), strict=True):
                assert_array_equal(one, other)
    stored.verify()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**16))
def test_any_counts(tmp_path_factory, n, m, density, seed):
    random = np.random.default_rng(seed)
    matrix = random.integers(1, 400, (n, m)) * random.binomial(1, density, (n, m))
    path = tmp_path_factory.mktemp("any") / "counts.nmf"
    pack(as_counts(matrix), path)
    assert_array_equal(dense(StoredCounts(path)), matrix)


def test_a_store_is_read_into_memory(store):
    counts = nmfscale.read_counts(store)
    assert isinstance(counts, nmfscale.results.Counts)
    assert counts.has_sorted_indices
    assert_array_equal(dense(counts), X)
    assert fit(counts, solver="scd").loglik_ == fit(X, solver="scd").loglik_
    with pytest.raises(ValueError, match=r"layer='a' does not apply to .*counts\.nmf"):
        nmfscale.read_counts(store, layer="a")


def test_names_come_back(tmp_path):
    counts = nmfscale.results.Counts(
        *(getattr(sp.csr_array(X), part) for part in ("indptr", "indices", "data")),
        X.shape,
        sample_names=[f"cell {i}" for i in range(90)],
        feature_names=[f"gène {j}" for j in range(60)],
        groups=["a", "b"] * 45,
        notes=["something was left out"],
    )
    pack(counts, tmp_path / "counts.nmf", source={"path": "cells.h5ad"})
    stored = StoredCounts(tmp_path / "counts.nmf")
    assert_array_equal(stored.feature_names, counts.feature_names)
    assert_array_equal(stored.sample_names, counts.sample_names)
    assert_array_equal(stored.groups, counts.groups)
    assert stored.notes == counts.notes
    assert stored.source == {"path": "cells.h5ad"}


def test_one_long_name_does_not_make_all_of_them_long(tmp_path):
    names = [f"sample {i}" for i in range(2000)]
    names[7] = "ü" * 5000
    counts = as_counts(rng.poisson(1.0, (2000, 3)))
    parts = counts.indptr, counts.indices, counts.data
    counts = nmfscale.results.Counts(*parts, counts.shape, sample_names=names)
    pack(counts, tmp_path / "counts.nmf")
    assert os.path.getsize(tmp_path / "counts.nmf") < 300_000
    assert list(StoredCounts(tmp_path / "counts.nmf").sample_names) == names
    fitted = nmfscale.PoissonNMF(2, max_iter=1, tol=0).fit(counts)
    fitted.save(tmp_path / "model.h5")
    assert os.path.getsize(tmp_path / "model.h5") < 300_000
    assert list(nmfscale.load(tmp_path / "model.h5").sample_names_) == names


def test_six_bytes_a_nonzero_count(tmp_path):
    counts = as_counts(rng.poisson(1.0, (3000, 400)))
    pack(counts, tmp_path / "counts.nmf")
    assert os.path.getsize(tmp_path / "counts.nmf") < 6.6 * counts.nnz


def test_the_store_does_not_depend_on_threads(tmp_path, small_blocks):
    for n in (1, 3):
        pack(as_counts(X), tmp_path / f"{n}.nmf", n_threads=n)
    with h5py.File(tmp_path / "1.nmf") as one, h5py.File(tmp_path / "3.nmf") as other:
        found = []
        one.visititems(lambda name, item: found.append(name) if hasattr(item, "size") else None)
        for name in found:
            assert_array_equal(one[name][()], other[name][()])


def contents(path):
    """Return all that a store holds, and its size: older versions of h5py add the time of day."""
    with h5py.File(path) as file:
        found = {"/": [size_and_attributes(file)]}
        file.visititems(lambda name, item: found.update({name: size_and_attributes(item)}))
    return path.stat().st_size, found


def size_and_attributes(item):
    attributes = [(name, np.asarray(value).tolist()) for name, value in item.attrs.items()]
    if not isinstance(item, h5py.Dataset):
        return attributes
    return attributes, item.dtype.str, item.shape, item.id.get_offset(), item[()].tobytes()


@pytest.mark.parametrize("factor", [1, 90, 2**20, 0.125])
def test_a_store_is_packed_again(tmp_path, small_blocks, factor):
    matrix = sp.csr_array(X * factor)
    counts = nmfscale.results.Counts(
        matrix.indptr, matrix.indices, matrix.data, matrix.shape,
        sample_names=[f"sample {i}" for i in range(90)], groups=["α", "b"] * 45, notes=["a note"],
        first_fraction="0.125 in row 0" if factor < 1 else None,
    )  # fmt: skip
    one, other = tmp_path / "one.nmf", tmp_path / "other.nmf"
    pack(counts, one)
    pack(StoredCounts(one), other)
    assert contents(other) == contents(one)
    pack(StoredCounts(other), other)
    assert contents(other) == contents(one)


# The format before ----------------------------------------------------------------------------


@pytest.fixture
def old_store(tmp_path, small_blocks):
    """Copy a store of format 1, with small blocks."""
    copy = shutil.copy(Path(__file__).parent / "format_1.nmf", tmp_path / "old.nmf")
    return Path(copy)


def test_a_store_of_format_1_is_read(old_store, tmp_path):
    stored = StoredCounts(old_store)
    stored.verify()
    matrix = dense(stored)
    assert matrix.shape == (50, 12) and matrix[3, 4] == matrix.max() == stored.largest == 700
    assert_array_equal(matrix.sum(axis=0), stored.column_totals)
    assert stored.sample_names[7] == "sämple 7" and stored.feature_names[11] == "gene 11"
    assert (list(stored.groups), stored.notes) == (["a", "b"] * 25, ("a note",))
    pack(stored, tmp_path / "new.nmf", source=stored.source)
    again = StoredCounts(tmp_path / "new.nmf")
    assert_array_equal(dense(again), matrix)
    assert again.report() == stored.report() and list(again.groups) == list(stored.groups)


def as_unsigned(file):
    name = "blocks/000000/rows_offset"
    values, crc32 = file[name][()].view("u8"), file[name].attrs["crc32"]
    del file[name]
    file[name] = values
    file[name].attrs["crc32"] = crc32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.move("values", "valuesé"), "its part 'valuesé' does not belong to its format"),
        (lambda f: f.move("names/group", "names/x"), "'names/x' does not belong"),
        (lambda f: f.__delitem__("values"), "it lacks values"),
        (as_unsigned, "blocks/000000/rows_offset is of type uint64, not int64"),
        (lambda f: f["rows/nnz"].attrs.create("crc32", [1, 2]), "crc32 of /rows/nnz has another"),
        (lambda f: f.attrs.create("nnz", 5), "rows/nnz do not add up to 5 counts"),
        (lambda f: f.attrs.create("shape", (9, 12)), "has shape"),
    ],
)
def test_a_damaged_store_of_format_1_is_refused(old_store, change, message):
    with h5py.File(old_store, "r+") as file:
        change(file)
    with pytest.raises(DamagedStoreError, match=f"old.nmf is damaged.*{message}"):
        StoredCounts(old_store)


# Sources -------------------------------------------------------------------------------------


def from_npz(folder):
    sp.save_npz(folder / "counts.npz", sp.csr_array(X))
    return folder / "counts.npz"


def from_h5ad(folder):
    return str(write_h5ad(folder / "counts.h5ad", sp.csc_matrix(X)))


def backed(folder):
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(sp.csr_matrix(X, dtype=np.float32)).write_h5ad(folder / "counts.h5ad")
    return anndata.read_h5ad(folder / "counts.h5ad", backed="r")


def dask_rows(folder):
    array = da.from_array(X, chunks=(20, -1))
    return array.map_blocks(sp.csr_matrix, dtype=X.dtype)


@pytest.mark.parametrize(
    "source",
    [
        lambda _: X,
        lambda _: sp.csc_array(X),
        lambda _: as_counts(X),
        from_npz,
        from_h5ad,
        backed,
        dask_rows,
    ],
    ids=["array", "csc", "counts", "npz", "h5ad", "backed", "dask"],
)
def test_a_store_is_written_of_anything(tmp_path, small_blocks, source):
    stored = nmfscale.write_store(source(tmp_path), tmp_path / "counts.nmf", memory_limit="1GB")
    assert_array_equal(dense(stored), X)
    stored.verify()


def test_a_part_of_a_file_is_chosen(tmp_path):
    path = write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(X), at="layers/counts")
    assert_array_equal(dense(nmfscale.write_store(path, tmp_path / "a.nmf", layer="counts")), X)
    adata = pytest.importorskip("anndata").AnnData(X * 2, layers={"counts": X})
    assert_array_equal(dense(nmfscale.write_store(adata, tmp_path / "b.nmf", layer="counts")), X)
    with pytest.raises(ValueError, match="layer='counts' does not apply"):
        nmfscale.write_store(X, tmp_path / "c.nmf", layer="counts")


def test_what_is_not_packed(tmp_path, store):
    for source in (store, StoredCounts(store)):
        with pytest.raises(ValueError, match="is already a packed store"):
            nmfscale.write_store(source, tmp_path / "other.nmf")
    with pytest.raises(FileNotFoundError, match="the folder .* does not exist"):
        nmfscale.write_store("not looked at", tmp_path / "no" / "other.nmf")
    path = Path(from_h5ad(tmp_path))
    before = path.read_bytes()
    for overwrite, error in ((False, FileExistsError), (True, ValueError)):
        with pytest.raises(error, match="counts.h5ad"):
            nmfscale.write_store(path, path, overwrite=overwrite)
    assert path.read_bytes() == before and not (tmp_path / "other.nmf").exists()


def test_arguments_are_checked_before_anything_is_read(tmp_path):
    for error, message, wrong in (
        (ValueError, "integer='requir' is not one of", {"integer": "requir"}),
        (ValueError, "memory_limit='x' is not a size", {"memory_limit": "x"}),
        (TypeError, r"write_store\(\) got an .*'layr'; .* layer, raw", {"layr": "counts"}),
    ):
        for source in (X, "not looked at.npz"):
            with pytest.raises(error, match=message):
                nmfscale.write_store(source, tmp_path / "counts.nmf", **wrong)
    with pytest.raises(ValueError, match="integer='requir' is not one of"):
        nmfscale.read_counts("not looked at.npz", integer="requir")
    assert os.listdir(tmp_path) == []


def test_fractions_are_said_when_a_store_is_written(tmp_path):
    sp.save_npz(tmp_path / "counts.npz", sp.csr_array(X / 2))
    with pytest.warns(UserWarning, match="counts.npz.*not.*whole|not whole"):
        nmfscale.write_store(tmp_path / "counts.npz", tmp_path / "counts.nmf")
    with pytest.raises(ValueError, match="whole"):
        nmfscale.write_store(tmp_path / "counts.npz", tmp_path / "other.nmf", integer="require")


def test_progress_counts_every_nonzero(tmp_path, small_blocks):
    seen = []
    pack(as_counts(X), tmp_path / "counts.nmf", progress=seen.append)
    assert len(seen) > 2
    assert sum(seen) == np.count_nonzero(X)


def test_calls_of_the_system_are_small_and_may_move_less(tmp_path, small_blocks, monkeypatch):
    """Linux moves at most 2 GiB in a call, macOS refuses to move more."""
    pack(as_counts(X), tmp_path / "whole.nmf")
    write, read, sizes = os.pwrite, os.preadv, []

    def write_less(file, data, at):
        sizes.append(len(data))
        return write(file, data[: len(data) // 2 + 1], at)

    def read_less(file, buffers, at):
        sizes.extend(map(len, buffers))
        return read(file, [buffers[0][: len(buffers[0]) // 2 + 1]], at)

    monkeypatch.setattr(os, "pwrite", write_less)
    monkeypatch.setattr(os, "preadv", read_less)
    internals.small_calls(monkeypatch, 200)
    pack(as_counts(X), tmp_path / "counts.nmf")
    assert contents(tmp_path / "counts.nmf") == contents(tmp_path / "whole.nmf")
    stored = StoredCounts(tmp_path / "counts.nmf")
    stored.verify()
    assert_array_equal(dense(stored), X)
    assert max(sizes) == 200


def test_hdf5_reads_back_all_that_it_wrote(tmp_path, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: read(file, [buffers[0][:9]], at))
    with atomic_hdf5(tmp_path / "a.h5") as (file, _):
        file["numbers"] = np.arange(1, 1001)
        assert_array_equal(file["numbers"][:], np.arange(1, 1001))


# What is refused ------------------------------------------------------------------------------


def test_nothing_is_left_when_packing_fails(tmp_path, small_blocks):
    pack(as_counts(X), tmp_path / "counts.nmf")
    before = (tmp_path / "counts.nmf").read_bytes()

    def stop(_):
        raise KeyboardInterrupt

    for target in ("counts.nmf", "other.nmf"):
        with pytest.raises(KeyboardInterrupt):
            pack(as_counts(X), tmp_path / target, progress=stop)
    assert os.listdir(tmp_path) == ["counts.nmf"]
    assert (tmp_path / "counts.nmf").read_bytes() == before


KILLED = """
import os, sys, numpy as np
import internals
from nmfscale.readers.open import as_counts
from nmfscale.storage.store_writer import pack
internals.small_blocks(internals.FOR_GOOD, 300)
X = np.random.default_rng(0).poisson(1.0, (90, 60))
left = [int(sys.argv[2])]
def die(_):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
pack(as_counts(X), sys.argv[1], progress=die)
"""


@pytest.mark.parametrize("after", [4, *at_night(1)])
def test_a_killed_pack_leaves_no_store(tmp_path, after):
    words = [sys.executable, "-P", "-c", KILLED, str(tmp_path / "counts.nmf"), str(after)]
    known = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(words, check=False, env=known).returncode == -9
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("this system has no files without a name")
    assert os.listdir(tmp_path) == []


def test_where_files_have_names_a_pack_still_appears_whole(tmp_path, monkeypatch):
    internals.no_files_without_a_name(monkeypatch)
    pack(as_counts(X), tmp_path / "counts.nmf")
    assert os.listdir(tmp_path) == ["counts.nmf"]
    StoredCounts(tmp_path / "counts.nmf").verify()


def test_other_files_are_not_replaced(tmp_path):
    (tmp_path / "mine.nmf").write_text("precious")
    with pytest.raises(FileExistsError, match="mine.nmf exists and is not a packed store"):
        pack(as_counts(X), tmp_path / "mine.nmf")
    assert (tmp_path / "mine.nmf").read_text() == "precious"
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        pack(as_counts(X), tmp_path / "absent" / "counts.nmf")


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_not_replaced(tmp_path, linked):
    """As root, a device would become a file."""
    pipe = target = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        target = tmp_path / "link"
        target.symlink_to(pipe)
    writes = [
        fit(X).save,
        lambda path: pack(as_counts(X), path, overwrite=True),
        lambda path: nmfscale.write_store(X, path, overwrite=True),
        lambda path: save_arrays(path, {"a": X}),
    ]
    for write in writes:
        with pytest.raises(OSError, match="pipe or a socket; pass the name of a file"):
            write(target)
        with pytest.raises(IsADirectoryError, match="is a folder; pass the name of a file"):
            write(tmp_path)
    assert pipe.is_fifo() and target.is_symlink() == linked
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", target.name}


@pytest.mark.parametrize("kept", [0, 10, 0.3, 0.9, 0.999])
def test_a_cut_store_is_refused(store, kept):
    whole = store.read_bytes()
    store.write_bytes(whole[: int(kept if kept >= 1 or not kept else kept * len(whole))])
    with pytest.raises(DamagedStoreError, match="counts.nmf"):
        StoredCounts(store)


def test_an_unfinished_store_is_refused(store):
    with h5py.File(store, "r+") as file:
        del file.attrs["complete"]
    with pytest.raises(DamagedStoreError, match="not finished"):
        StoredCounts(store)


def retold(store, **changes):
    """Change what a store says of itself, with the checksum that goes with it."""
    with h5py.File(store, "r+") as file:
        about = read_json(file, "about") | changes
        del file["about"]
        put_json(file, "about", about)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shape", [90, 61], r"columns/nnz has shape \(60,\), not \(61,\)"),
        ("shape", [9, 60], r"rows/nnz has shape \(90,\), not \(9,\)"),
        ("shape", [90], "damaged"),
        ("nnz", 5, "rows/nnz do not add up to 5 counts"),
        ("slice_dtype", "uint16", "rows_count is of type uint8, not uint16"),
        ("parts", ["values", "names/sample"], "names/sample"),
    ],
)
def test_what_a_store_says_of_itself_must_fit(store, name, value, message):
    retold(store, **{name: value})
    with pytest.raises(DamagedStoreError, match=f"counts.nmf.*{message}"):
        StoredCounts(store)


def test_a_store_of_a_newer_version_is_refused(store):
    with h5py.File(store, "r+") as file:
        file.attrs["format_version"] = 3
    with pytest.raises(DamagedStoreError, match=r"counts.nmf has format 3, .* reads up to 2"):
        StoredCounts(store)


def test_text_of_variable_length_is_not_read(store):
    with h5py.File(store, "r+") as file:
        file.attrs["nmfscale_version"] = "1.0"
    with pytest.raises(DamagedStoreError, match="nmfscale_version is not text of fixed length"):
        StoredCounts(store)
    with h5py.File(store, "r+") as file:
        file.attrs["format"] = file.attrs["format"].decode()
    assert not stores.is_store(store)


def test_external_storage_is_refused(store, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    with h5py.File(store, "r+") as file:
        group = file["blocks/000000"]
        old = group["rows_count"]
        shape, crc = old.shape, old.attrs["checksum"]
        del group["rows_count"]
        new = group.create_dataset(
            "rows_count", shape, "u1", external=[(str(tmp_path / "secret"), 0, shape[0])]
        )
        new.attrs["checksum"] = crc
    with pytest.raises(DamagedStoreError, match="rows_count"):
        StoredCounts(store)


@pytest.mark.parametrize("part", ["rows_index", "rows_count", "columns_index", "columns_count"])
def test_a_flipped_bit_is_found(store, part):
    stored = StoredCounts(store)
    extent = stored.layout().blocks[1].extents[part]
    with open(store, "rb+") as file:
        file.seek(extent.offset + extent.size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    stored = StoredCounts(store)
    with pytest.raises(DamagedStoreError, match=f"blocks/000001/{part} is damaged"):
        stored.verify()
    with pytest.raises(DamagedStoreError, match="is damaged"):
        nmfscale.PoissonNMF(2, max_iter=3).fit(store)


def test_a_store_that_changes_is_noticed(store):
    stored = StoredCounts(store)
    with h5py.File(store, "r+") as file:
        file.attrs["largest"] = 701
    with pytest.raises(DamagedStoreError, match="was changed while it was in use"):
        stored.take_rows()


def test_packing_again_gives_a_new_file(store):
    stored = StoredCounts(store)
    pack(as_counts(X), store)
    with pytest.raises(DamagedStoreError, match="was changed"):
        stored.verify()
    assert_array_equal(dense(StoredCounts(store)), X)


# Fits -----------------------------------------------------------------------------------------


def fit(source, model=nmfscale.PoissonNMF, **options):
    options = {"max_iter": 12, "tol": 0, "random_state": 0} | options
    return model(3, **options).fit(source)


def numbers(model, source):
    """All numbers of a model, but for the seconds and the bytes read."""
    names = set(model.history_.dtype.names) - {"seconds", "bytes_read"}
    arrays = [model.components_, model.loadings_, model.transform(source), model.score(source)]
    arrays += [model.history_[name] for name in sorted(names)]
    return [np.asarray(array).tobytes() for array in arrays]


PLANS = ["kept", "read", "loadings on disk"]


@pytest.mark.parametrize(
    "plan", ["read", *(pytest.param(p, marks=pytest.mark.nightly) for p in PLANS if p != "read")]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        *at_night(
            {"dtype": "float32"},
            {"init": "random", "n_threads": 1},
            {"model": nmfscale.TopicModel, "n_threads": 3},
            {"solver": "joint-em", "penalty": SparsityPenalty(0.5)},
            {"prior_loadings": 1.1},
        ),
    ],
    ids=str,
)
def test_a_fit_from_a_store_has_the_same_bits(store, tmp_path, monkeypatch, plan, options):
    folder = str(tmp_path) if plan == "loadings on disk" else None
    internals.plan(monkeypatch, plan == "kept", folder)
    before = store.read_bytes()
    one, other = fit(X, **options), fit(store, **options)
    assert numbers(one, X) == numbers(other, store)
    assert store.read_bytes() == before
    assert os.listdir(tmp_path) == ["counts.nmf"]


def test_each_order_is_read_once_an_iteration(store, monkeypatch):
    internals.read_anew(monkeypatch)
    counts = StoredCounts(store)
    history = fit(counts, init="random").history_
    assert_array_equal(np.diff(history["bytes_read"][:-1]), counts.layout().nbytes)
    internals.plan(monkeypatch, keep=True)
    counts = StoredCounts(store)
    assert fit(counts).history_["bytes_read"][-1] == counts.layout().nbytes
    assert not fit(X).history_["bytes_read"].any()


def test_two_visits_at_once_do_not_disturb_each_other(store):
    layout = StoredCounts(store).layout()
    alone = [slices.count.copy() for _, slices in layout.visit("rows")]
    both = zip(layout.visit("rows"), layout.visit("columns"), strict=True)
    for expected, ((_, rows), _) in zip(alone, both, strict=True):
        assert_array_equal(rows.count, expected)


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "n_bytes"),
    [
        ("2GB", 2e9),
        ("500 MB", 5e8),
        ("1.5GiB", 1.5 * 2**30),
        ("64k", 64e3),
        (1e9, 1e9),
        (1, 1),
        (np.float32(1e9), 1e9),
        (np.int64(5), 5),
        (1e16, 1e16),
    ],
)
def test_sizes(size, n_bytes):
    assert parse_bytes(size) == n_bytes


@pytest.mark.parametrize("size", ["", "much", "-1GB", "0", 0, "1..2MB", "2PB"])
def test_sizes_that_are_none(size):
    with pytest.raises(ValueError, match="memory_limit"):
        parse_bytes(size)


def test_plans_step_down_as_memory_gets_scarce(store):
    counts = StoredCounts(store)
    needs = poisson_needs(counts, 3, np.float64, "auto", 1)
    least = plan_fit(counts, needs, 1 << 40)
    more = needs._replace(scratch=1000)
    assert plan_fit(counts, more, 1 << 40).peak >= least.peak + 1000
    weighted = poisson_needs(counts, 3, np.float64, "auto", 1, weighted=True)
    assert plan_fit(counts, weighted, 1 << 40).peak >= least.peak + 8 * counts.nnz
    assert least.keep and least.folder is None
    seen = []
    for limit in range(least.peak, least.peak - 60_000, -500):
        try:
            seen.append(plan_fit(counts, needs, limit)[1:])
        except MemoryLimitError as error:
            assert "raise memory_limit" in str(error)
            break
    kinds = [(keep, folder is not None) for keep, folder in seen]
    assert sorted(set(kinds), key=kinds.index)[:2] == [(True, False), (False, False)]
    with pytest.raises(MemoryLimitError, match="packed store, about .*, which a fit reads a block"):
        plan_fit(counts.in_memory(), needs, 1000)
    for dtype in ("float32", "float64"):  # advised where it is not that already
        with pytest.raises(MemoryLimitError) as refused:
            nmfscale.PoissonNMF(3, dtype=dtype, memory_limit=1000).fit(counts)
        assert ("dtype='float32'" in str(refused.value)) == (dtype == "float64")


def test_the_more_memory_there_is_the_more_fits_share_reads(store, monkeypatch):
    internals.limit_is_all_memory(monkeypatch)
    counts, needs = StoredCounts(store), Needs(row=8, shared=1000, sums=10)
    alone = next(n for n in count(1 << 26, 100) if _plan_or_none(counts, needs, n) == (False, None))
    kept = plan_fit(counts, needs, 1 << 40).peak
    found = [fits_within(counts, needs, limit, 4) for limit in range(alone, kept, 500)]
    assert found[0] == 1 and found[-1] == 4 and found == sorted(found)
    of_one = (found.index(3) - found.index(2)) * 500
    assert 8 * counts.shape[0] + 1000 <= of_one + 500 and of_one < 8 * counts.shape[0] + 2500
    assert fits_within(counts, needs, kept, 4) == 1  # they read counts once
    assert fits_within(counts, needs, 1000, 4) == 1
    assert reads_anew(counts) and not reads_anew(counts.in_memory())


def _plan_or_none(counts, needs, limit):
    try:
        return plan_fit(counts, needs, limit)[1:]
    except MemoryLimitError:
        return None


def test_a_fit_that_cannot_fit_is_refused_before_it_begins(store):
    for source in (X, store):
        with pytest.raises(MemoryLimitError, match=r"needs .* of memory \([\d,]+ bytes\)"):
            fit(source, memory_limit="1MB")


def test_the_prediction_is_shown(store, capsys):
    fit(store, verbose=1, memory_limit="100GB")
    assert "predicted peak memory" in capsys.readouterr().err


def test_stores_of_another_kind(tmp_path):
    with pytest.raises(FileNotFoundError):
        StoredCounts(tmp_path / "absent.nmf")
    (tmp_path / "text.nmf").write_text("hello")
    with pytest.raises(DamagedStoreError, match="not a packed store"):
        StoredCounts(tmp_path / "text.nmf")
    assert not stores.is_store(tmp_path / "text.nmf")


# Files that are made to harm -------------------------------------------------------------------


def rewritten(store, name, change):
    """Put other numbers in a place, with the checksum that they need."""
    with h5py.File(store, "r+") as file:
        array = change(file[name][()])
        del file[name]
        put(file, name, array)


def at(place, value):
    def change(array):
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rows_index", at(0, 60)),
        ("rows_index", at(-1, 65535)),
        ("columns_index", at(3, 60_000)),
        ("rows_offset", at(1, -1)),
        ("rows_offset", at(-1, 1 << 40)),
        ("columns_offset", at(2, 1 << 30)),
        ("columns_offset", at(0, 1)),
    ],
)
def test_places_outside_are_refused(store, name, change):
    rewritten(store, f"blocks/000001/{name}", change)
    with pytest.raises(DamagedStoreError, match="not counts of its rows and columns"):
        fit(store)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("blocks/000001/rows_offset", lambda a: a.astype("u8"), "is of type uint64, not int64"),
        ("blocks/000001/rows_offset", lambda a: a[:-1], "has shape"),
        ("blocks/000001/rows_count", lambda a: a[:-1], "has shape"),
        ("values/times", lambda a: a[:-1], "has shape"),
        ("values/times", lambda a: a + 1, "do not add up to"),
        ("large/value", lambda a: a.astype(float), "is of type float64, not int64"),
        ("columns/totals", lambda a: a[np.newaxis], r"has shape \(1, 60\), not \(60,\)"),
        ("names/sample/ends", lambda a: a[:-1], r"has shape \(89,\), not \(90,\)"),
        ("names/sample/ends", lambda a: a[::-1], "does not divide its text"),
        ("names/sample/text", lambda a: a[:-1], "does not divide its text"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, small_blocks, name, change, message):
    """Their checksums are sound: somebody has written them so."""
    counts = as_counts(X)
    parts = counts.indptr, counts.indices, counts.data
    named = nmfscale.results.Counts(
        *parts, X.shape, sample_names=[f"sample {i}" for i in range(90)]
    )
    pack(named, tmp_path / "counts.nmf")
    rewritten(tmp_path / "counts.nmf", name, change)
    part = name.rpartition("/")[0] if "divide its text" in message else name
    with pytest.raises(DamagedStoreError, match=f"counts.nmf is damaged: {part}.* {message}"):
        StoredCounts(tmp_path / "counts.nmf")


def test_counts_that_are_none_are_refused(tmp_path):
    pack(as_counts(X / 7.0, integer="allow"), tmp_path / "counts.nmf")
    for value in (np.nan, np.inf, -1.0):
        rewritten(tmp_path / "counts.nmf", "blocks/000000/rows_count", at(5, value))
        with pytest.raises(DamagedStoreError, match="not counts of its rows and columns"):
            StoredCounts(tmp_path / "counts.nmf").verify()


@pytest.mark.parametrize("name", ["rows/nnz", "columns/totals", "blocks/000000/rows_index"])
def test_links_and_claims_are_refused(store, tmp_path, name):
    with h5py.File(tmp_path / "other.h5", "w") as other, h5py.File(store, "r+") as file:
        other["numbers"] = file[name][()]
        kind, crc = file[name].dtype, file[name].attrs["checksum"]
        del file[name]
        file[name] = h5py.ExternalLink(tmp_path / "other.h5", "numbers")
    with pytest.raises(DamagedStoreError, match="not in the file itself"):
        StoredCounts(store)
    with h5py.File(store, "r+") as file:
        del file[name]
        # 8 TB that are nowhere
        made = file.create_dataset(name, (10**12,), kind, chunks=(1 << 16,))
        made.attrs["checksum"] = crc
    with pytest.raises(DamagedStoreError, match="not contiguous"):
        StoredCounts(store)
