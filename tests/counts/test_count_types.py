"""One type of counts wherever they are: in memory, streamed from their file, in a packed store."""

import shutil
from pathlib import Path

import h5py
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_mtx
from numpy.testing import assert_array_equal

import nmfscale
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts

rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
X[7, 5] = 100
X[0, 0] = 1


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch):
    internals.small_blocks(monkeypatch, 300)
    internals.small_pieces(monkeypatch, 500)


def twice(dtype):
    """Every entry twice: sums that a narrow type does not hold, in one row only."""
    once = sp.csr_matrix(X)
    data = np.repeat(once.data, 2).astype(dtype)
    if np.dtype(dtype).kind != "b":
        data[data == 100] = min(150, np.iinfo(dtype).max)
    return sp.csr_matrix((data, np.repeat(once.indices, 2), once.indptr * 2), shape=X.shape)


def npz(matrix):
    def write(folder):
        sp.save_npz(folder / "counts.npz", matrix)
        return folder / "counts.npz"

    return write


def h5ad(matrix):
    return lambda folder: write_h5ad(folder / "counts.h5ad", matrix)


def mtx(folder):
    big = sp.coo_array(([2**31 - 1] * 2 + [3], ([0, 0, 80], [1, 1, 2])), shape=(90, 4))
    return write_mtx(folder / "counts.mtx", big)


def dask(form, dtype, declared=None):
    def make(_):
        da = pytest.importorskip("dask.array")
        array = da.from_array(X.astype(dtype), chunks=(20, -1))
        return array.map_blocks(form, dtype=declared or dtype)

    return make


def doubled(chunk):
    entries = sp.coo_matrix(chunk)
    places = tuple(np.concatenate([place, place]) for place in (entries.row, entries.col))
    return sp.coo_matrix((np.concatenate([entries.data, entries.data]), places), chunk.shape)


def narrow_where_it_fits(chunk):
    return sp.csr_matrix(chunk, dtype=np.int64 if chunk.max() == 100 else np.uint8)


SOURCES = {
    "npz uint8 sums": (npz(twice(np.uint8)), np.int64),
    "npz int8 sums": (npz(twice(np.int8)), np.int64),
    "npz bool": (npz(twice(bool)), np.uint8),
    "npz int16": (npz(sp.csr_matrix(X, dtype=np.int16)), np.uint16),
    "npz uint64": (npz(sp.csc_array(X, dtype=np.uint64)), np.int64),
    "npz longdouble": (npz(sp.csr_matrix(X, dtype=np.longdouble)), np.float64),
    "npz float32": (npz(sp.csr_matrix(X / 8, dtype=np.float32)), np.float32),
    "h5ad csr sums": (h5ad(twice(np.uint8)), np.int64),
    "h5ad csc sums": (h5ad(sp.csc_matrix(twice(np.int8).toarray().clip(0))), np.uint8),
    "h5ad big-endian": (h5ad(X.astype(">i4")), np.int32),
    "h5ad float16": (h5ad(X.astype(np.float16)), np.float32),
    "mtx sums": (mtx, np.int64),
    "dask sums": (dask(doubled, np.int8), np.int64),
    "dask float16": (dask(np.asarray, np.float16), np.float32),
    "dask says float32": (dask(lambda chunk: chunk.astype(np.int32), float, np.float32), np.int32),
    "dask says int": (dask(lambda chunk: chunk.astype(np.float32), int, int), np.float32),
    "dask of two types": (dask(narrow_where_it_fits, int), np.int64),
}


def fitted(counts, **options):
    model = nmfscale.PoissonNMF(3, max_iter=8, tol=0, random_state=0, integer="allow", **options)
    return model.fit(counts)


QUICK = ("npz uint8 sums", "h5ad float16", "mtx sums", "dask of two types")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.nightly) for n in SOURCES]
)
def test_one_type_and_the_same_bits_everywhere(tmp_path, name):
    write, expected = SOURCES[name]
    source = write(tmp_path)
    memory = as_counts(source, integer="allow")
    stream = as_counts(source, integer="allow", in_memory=False)
    stored = nmfscale.write_store(source, tmp_path / "counts.nmf", integer="allow")
    assert len(list(stream.chunks())) > 1
    assert [counts.dtype for counts in (memory, stream, stored)] == [expected] * 3
    pieces = [rows.data.dtype for rows in (*stream.chunks(), *stored.chunks())]
    assert set(pieces) == {np.dtype(expected)}
    again = stored.in_memory()
    rows = sp.csr_array((memory.data, memory.indices, memory.indptr)).sorted_indices()
    assert_array_equal(again.data, rows.data)
    assert again.dtype == expected and again.largest == memory.largest == stream.largest

    one = fitted(memory)
    assert one.components_.dtype == np.float64
    for other in (fitted(source, memory_limit="1TB"), fitted(stored), fitted(again)):
        assert other.components_.tobytes() == one.components_.tobytes()
        assert other.loadings_.tobytes() == one.loadings_.tobytes()


@pytest.mark.parametrize(
    ("said", "expected"),
    # some of its counts are above 255
    [("uint8", np.int64), ("int8", np.int64), ("uint64", np.int64), ("bool", np.int64),
     (">i2", np.uint16), ("float16", np.float32), ("float128", np.float64)],
)  # fmt: skip
def test_stores_that_say_the_type_of_the_file_are_still_read(tmp_path, said, expected):
    path = Path(__file__).parents[1] / "storage" / "format_1.nmf"
    copy = shutil.copy(path, tmp_path / "counts.nmf")
    with h5py.File(copy, "r+") as file:
        file.attrs["dtype"] = np.bytes_(said)
    stored = StoredCounts(copy)
    assert stored.dtype == stored.in_memory().dtype == expected
    plain = StoredCounts(path).take_rows().toarray()
    assert plain.max() > 255
    assert_array_equal(stored.in_memory().take_rows().toarray(), plain)
