"""Files that were made to harm: refused with little memory, and nothing outside them is read."""

import json
import os
import pickle
import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad
from small_fits import X, model

import nmfscale
from nmfscale.readers.open import as_counts, read_counts
from nmfscale.storage.arrays import put
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_writer import pack

pytestmark = pytest.mark.usefixtures("small_blocks")

SECRET = b"0123456789abcdef" * 64


def write_checkpoint(folder):
    model(max_iter=6).fit(X, checkpoint=folder, checkpoint_every=0)
    older, newest = sorted(path for path in folder.iterdir() if path.name.startswith("check"))
    older.unlink()
    return newest


def write_model(folder):
    model(max_iter=3).fit(X).save(folder / "model.h5")
    return folder / "model.h5"


def write_store(folder):
    pack(as_counts(X), folder / "counts.nmf")
    return folder / "counts.nmf"


WRITE = {
    "checkpoint": write_checkpoint,
    "model": write_model,
    "store": write_store,
    "h5ad": lambda folder: write_h5ad(folder / "counts.h5ad", sp.csr_array(X)),
}
USE = {
    "checkpoint": lambda path: model(max_iter=6).fit(X, checkpoint=path.parent, resume=True),
    "model": nmfscale.load,
    "store": StoredCounts,
    "h5ad": read_counts,
}
DATASETS = [
    ("checkpoint", "L"),
    ("checkpoint", "numbers"),
    ("model", "components"),
    ("model", "loglik"),
    ("model", "about"),
    ("store", "rows/totals"),
    ("store", "about"),
    ("store", "blocks/000001/rows_index"),
    ("h5ad", "X/data"),
]


def external(file, name, dataset, folder):
    (folder / "secret").write_bytes(SECRET)
    outside = [(str(folder / "secret"), 0, max(dataset.nbytes, 8))]
    return file.create_dataset(name, dataset.shape or (1,), dataset.dtype, external=outside)


def linked(file, name, dataset, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["numbers"] = np.zeros(dataset.shape, dataset.dtype)
    file[name] = h5py.ExternalLink(folder / "other.h5", "numbers")


def virtual(file, name, dataset, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["numbers"] = np.zeros(dataset.shape or (1,), dataset.dtype)
    layout = h5py.VirtualLayout(dataset.shape or (1,), dataset.dtype)
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "numbers", dataset.shape or (1,))
    return file.create_virtual_dataset(name, layout)


def in_a_circle(file, name, dataset, folder):
    file[name] = h5py.SoftLink("/round")
    file["round"] = h5py.SoftLink(f"/{name}")


def unbounded(file, name, dataset, folder):
    return file.create_dataset(name, (10**12,), dataset.dtype, chunks=(1 << 16,))


def bomb(file, name, dataset, folder):
    size = (1 << 28) // dataset.dtype.itemsize
    values = np.zeros(size, dataset.dtype)
    return file.create_dataset(name, data=values, chunks=(size // 16,), compression="gzip")


FORGERIES = [external, linked, virtual, in_a_circle, unbounded, bomb]
CASES = [(*dataset, forge) for dataset in DATASETS for forge in FORGERIES]
CASES.remove(("h5ad", "X/data", bomb))  # a file may hold more values than its indices ask for


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "name", "forge"), CASES)
def test_values_outside_the_file_or_missing(tmp_path, kind, name, forge):
    path = WRITE[kind](tmp_path)
    with h5py.File(path, "r+") as file:
        dataset, checksum = file[name], file[name].attrs.get("checksum")
        del file[name]
        made = forge(file, name, dataset, tmp_path)
        if made is not None and checksum is not None:
            made.attrs["checksum"] = checksum
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=path.name) as caught:
            USE[kind](path)
        assert SECRET[:8].decode() not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "forge"),
    [
        ("L", lambda array: array[:16]),
        ("L", lambda array: array[:, :2]),
        ("best_L", lambda array: np.zeros((2, 3))),
        ("F", lambda array: array.T.copy()),
        ("total_L", lambda array: np.zeros(0)),
        ("numbers", lambda array: np.frombuffer(b"[" * 100_000, np.uint8)),
        ("numbers", lambda array: np.frombuffer(b"{}", np.uint8)),
    ],
)
def test_checkpoints_with_sound_checksums_of_nonsense(tmp_path, name, forge):
    path = write_checkpoint(tmp_path)
    with h5py.File(path, "r+") as file:
        array = forge(file[name][()])
        del file[name]
        put(file, name, array)
    with pytest.raises((ValueError, KeyError)):
        USE["checkpoint"](path)


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "a/../../b", ""])
def test_names_that_lead_outside(tmp_path, name):
    path = write_checkpoint(tmp_path)
    with h5py.File(path, "r+") as file:
        names = json.loads(file.attrs["arrays"])
        file.attrs["arrays"] = np.bytes_(json.dumps([*names, name]))
    with pytest.raises(ValueError, match=path.name):
        USE["checkpoint"](path)


class Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_pickle_is_never_opened(tmp_path):
    made = tmp_path / "made"
    objects = np.array([Harm(made)], dtype=object)
    np.savez(tmp_path / "a.npz", data=objects, format=b"csr", shape=[1, 1], indices=[0], indptr=[0])
    for name in ("a.h5ad", "model.h5", "counts.nmf", "b.npz"):
        (tmp_path / name).write_bytes(pickle.dumps(Harm(made)))
    for path in sorted(tmp_path.iterdir()):
        for use in (read_counts, nmfscale.load, StoredCounts, model(max_iter=2).fit):
            with pytest.raises((ValueError, OSError)):
                use(path)
    assert not made.exists()
    pickle.loads(pickle.dumps(Harm(made)))
    assert made.exists()


def test_a_zip_that_claims_too_much(tmp_path):
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.csr_array(X))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    start = members["data.npy"].index(b"'shape': (")
    end = members["data.npy"].index(b"\n", start)
    claim = b"'shape': (1000000000000,), }".ljust(end - start)
    members["data.npy"] = members["data.npy"][:start] + claim + members["data.npy"][end:]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="a.npz holds no sparse matrix.*claims the shape"):
        read_counts(path)
