"""Counts that stay in their own file: the same fit as in memory, bit for bit."""

import gc
import os
import pickle
import re
import tempfile

import dask.array as da
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_docword, write_h5ad, write_mtx, write_tenx
from night import at_night
from numpy.testing import assert_array_equal
from small_fits import open_files

import nmfscale
from nmfscale.readers.open import as_counts
from nmfscale.readers.streams.dask_array import DaskRows
from nmfscale.readers.streams.file_counts import FileCounts
from nmfscale.readers.streams.stream import CountStream, open_stream
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_writer import pack

rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
X[7, 5] = 700
X[:, 8] = X[11] = 0


def write(kind, folder, X=X):
    """Write counts in a format and return where."""
    path = folder / {"docword": "docword.x.txt", "mtx": "counts.mtx.gz"}.get(kind, "counts.h5ad")
    if kind == "tenx":
        path = folder / "counts.h5"
        write_tenx(path, sp.csr_array(X), 3)
    elif kind == "mtx":
        write_mtx(path, sp.coo_array(X), order=slice(None, None, -1))
    elif kind == "docword":
        write_docword(path, sp.coo_array(X))
    else:
        matrix = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}[kind](X)
        write_h5ad(path, matrix)
    return path


KINDS = ["csr", "csc", "dense", "tenx", "mtx", "docword"]


@pytest.fixture(params=["csr", "csc", "mtx", *at_night("dense", "tenx", "docword")])
def source(request, tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 900)
    return write(request.param, tmp_path)


def fit(counts, model=nmfscale.PoissonNMF, **options):
    options = {"max_iter": 8, "tol": 0, "random_state": 0} | options
    return model(3, **options).fit(counts)


def numbers(model, counts):
    arrays = [model.components_, model.loadings_, model.history_["loglik"]]
    return [array.tobytes() for array in (*arrays, model.transform(counts))]


def test_what_is_known_of_streamed_counts(source):
    memory = nmfscale.read_counts(source)
    with open_stream(source) as stream:
        counts = FileCounts(stream)
        for name in ("row_nnz", "column_nnz", "row_totals", "column_totals"):
            assert_array_equal(getattr(counts, name), getattr(memory, name))
        assert (counts.nnz, counts.largest) == (memory.nnz, memory.largest)
        assert counts.report() == memory.report()
        rows = np.arange(1, memory.shape[0], 3)
        for some in (None, rows):
            assert_array_equal(counts.take_rows(some).toarray(), memory.take_rows(some).toarray())
        for above in (255, 65535):
            for one, other in zip(
                counts.large_counts(above), memory.large_counts(above), strict=True
            ):
                assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_large_counts_are_taken_exactly(tmp_path, kind):
    large = X.copy()
    large[3] = 2**25 + 1  # float32 has no such number
    with open_stream(write(kind, tmp_path, large)) as stream:
        assert (FileCounts(stream).take_rows().toarray()[3] == 2**25 + 1).all()


@pytest.mark.parametrize("keep", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_fit_of_a_file_has_the_same_bits(source, monkeypatch, keep):
    internals.plan(monkeypatch, keep=keep)
    before = source.read_bytes()
    memory = nmfscale.read_counts(source)
    one, other = fit(memory), fit(source, memory_limit="1TB")
    assert numbers(one, memory) == numbers(other, source)
    assert other.history_["bytes_read"][-1] > 0
    assert source.read_bytes() == before


@pytest.mark.parametrize("source", ["csc", "mtx"], indirect=True)
def test_whole_columns_of_a_file(source, monkeypatch):
    expected = fit(X, solver="scd").components_.tobytes()
    for keep in (False, True):
        internals.plan(monkeypatch, keep=keep)
        found = fit(source, solver="scd", memory_limit="1TB")
        assert found.components_.tobytes() == expected
    internals.small_blocks(monkeypatch, 1 << 23)  # one block, which stays in memory
    internals.read_anew(monkeypatch)
    one, other = fit(X, solver="scd"), fit(source, solver="scd", memory_limit="1TB")
    assert one.components_.tobytes() == other.components_.tobytes()


def test_a_store_packed_from_a_file_is_one_packed_from_memory(source, tmp_path):
    memory = nmfscale.read_counts(source)
    with open_stream(source) as stream:
        counts = FileCounts(stream)
        pack(counts, tmp_path / "streamed.nmf", source=counts.source)
    stored = StoredCounts(tmp_path / "streamed.nmf")
    assert stored.source["path"] == str(source)
    assert stored.report() == memory.report()
    assert numbers(fit(memory), memory) == numbers(fit(stored), stored)


def test_backed_anndata(tmp_path, monkeypatch):
    anndata = pytest.importorskip("anndata")
    internals.small_blocks(monkeypatch, 900)
    internals.read_anew(monkeypatch)
    anndata.AnnData(sp.csr_matrix(X)).write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    assert isinstance(as_counts(backed, in_memory=False), FileCounts)
    one, other = fit(X), fit(backed, memory_limit="1TB")
    assert one.components_.tobytes() == other.components_.tobytes()
    backed.var_names = [f"gene {j}" for j in range(X.shape[1])]
    names = fit(backed, memory_limit="1TB").feature_names_in_
    assert names.tolist() == backed.var_names.tolist()
    assert fit(backed.X).components_.tobytes() == one.components_.tobytes()


@pytest.mark.parametrize("backed", [False, True])
def test_the_memory_limit_reaches_the_reader(tmp_path, monkeypatch, backed):
    internals.read_anew(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matrix = sp.csc_matrix(rng.poisson(2.0, (300, 200)))
    source = write_h5ad(tmp_path / "counts.h5ad", matrix)
    if backed:
        anndata = pytest.importorskip("anndata")
        anndata.AnnData(matrix).write_h5ad(source)
        source = anndata.read_h5ad(source, backed="r")
    seen = []
    model = fit(source, memory_limit="4MB", callback=lambda _: seen.extend(open_files()))
    # entries that are more than a share of the limit wait in a file without a name
    assert any(name.startswith(str(tmp_path)) and "deleted" in name for name in seen)
    assert model.components_.tobytes() == fit(matrix).components_.tobytes()
    with pytest.raises(ValueError, match="memory_limit='x' is not a size"):
        as_counts(X, memory_limit="x")


def test_counts_that_are_not_whole_are_said(tmp_path):
    write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(X / 7.0))
    with pytest.warns(UserWarning, match="not whole numbers"):
        fit(tmp_path / "counts.h5ad", memory_limit="1TB")
    with pytest.raises(ValueError, match="not whole numbers"):
        fit(tmp_path / "counts.h5ad", memory_limit="1TB", integer="require")


def test_a_negative_count_is_found_before_the_first_iteration(tmp_path):
    bad = X.copy()
    bad[-1, -1] = -2
    write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(bad))
    with pytest.raises(ValueError, match="row 89.*column 59.*-2"):
        fit(tmp_path / "counts.h5ad", memory_limit="1TB")


@pytest.fixture
def without_gc():
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not say what is open")
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_below(folder):
    return [path for path in open_files() if path.startswith(str(folder))]


def test_no_file_stays_open(source, tmp_path, without_gc):
    """An HDF5 file that is open is locked: others could not write to it."""
    fit(source, memory_limit="2GB")
    assert not open_below(tmp_path)
    nmfscale.write_store(source, tmp_path / "counts.nmf")
    assert not open_below(tmp_path)


def test_a_file_that_is_refused_is_closed(tmp_path, without_gc):
    bad = X.copy()
    bad[-1, -1] = -2
    write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(bad))
    with pytest.raises(ValueError, match="row 89") as caught:
        as_counts(tmp_path / "counts.h5ad", in_memory=False)
    # as long as the error is at hand, so is all that it has been through
    assert caught.tb is not None and not open_below(tmp_path)


def test_a_file_that_changes_is_noticed(source):
    counts = FileCounts(open_stream(source))
    source.write_bytes(source.read_bytes() + b" ")
    with pytest.raises(ValueError, match="was changed since it was opened"):
        fit(counts)


@pytest.mark.parametrize(
    ("source", "packed"), [*((kind, False) for kind in KINDS), ("csr", True)], indirect=["source"]
)
def test_a_file_is_found_when_the_current_folder_is_another(source, monkeypatch, packed):
    internals.retry_for(monkeypatch, 0.1)
    monkeypatch.chdir(source.parent)
    if packed:
        nmfscale.write_store(source.name, "counts.nmf")
        counts = StoredCounts("counts.nmf")
    else:
        stream = open_stream(source.name)
        assert stream.subject.startswith(source.name)
    (source.parent / "other").mkdir()
    monkeypatch.chdir("other")
    if not packed:
        counts = FileCounts(stream)
        reader = getattr(stream._source, "_reader", None)
        if reader is not None:
            reader.close()  # as after a read that failed: the file is opened anew
    assert numbers(fit(counts), counts) == numbers(fit(nmfscale.read_counts(source)), counts)


def with_another_reader(kind, kept, read):
    """Make a kind of reader beside which another thread always reads rows 5:6 right after it."""

    def set_attribute(self, name, value):
        object.__setattr__(self, name, value)
        if name == kept and value is not None and not busy:
            busy.append(name)
            read(self, 5, 6)
            busy.clear()

    busy = []
    return type(kind.__name__, (kind,), {"__setattr__": set_attribute})


def test_rows_are_those_asked_for_whoever_else_reads(tmp_path):
    path = write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(X))
    with open_stream(path) as stream:
        stream.__class__ = with_another_reader(CountStream, "_last", CountStream.read)
        _, _, indices, data = stream.read(20, 21)
        assert_array_equal(indices, np.flatnonzero(X[20]))
        assert_array_equal(data, X[20][indices])
    reader = with_another_reader(DaskRows, "_chunk", DaskRows.rows)(dask_array("csr", 10))
    rows = reader.rows(20, 21).rows
    assert_array_equal(rows.indices, np.flatnonzero(X[20]))


# Dask arrays ----------------------------------------------------------------------------------


def dask_array(kind, chunks):
    form = {"csr": sp.csr_matrix, "csc": sp.csc_array, "dense": np.asarray}[kind]
    return da.from_array(X, chunks=(chunks, -1)).map_blocks(form, dtype=X.dtype)


@pytest.mark.parametrize("memory_limit", [None, "1TB"])
@pytest.mark.parametrize("chunks", [(1, 0, 50, 39), pytest.param(90, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
def test_a_fit_of_a_dask_array_has_the_same_bits(monkeypatch, kind, chunks, memory_limit):
    internals.small_blocks(monkeypatch, 900)
    internals.read_anew(monkeypatch)
    array = dask_array(kind, chunks)
    one, other = fit(X), fit(array, memory_limit=memory_limit)
    assert numbers(one, X) == numbers(other, array)


@pytest.mark.parametrize("kind", ["memory", "store", "kept store", "dask"])
def test_counts_are_pickled_without_what_a_fit_made_of_them(monkeypatch, tmp_path, kind):
    internals.small_blocks(monkeypatch, 900)
    internals.plan(monkeypatch, keep=kind == "kept store")
    counts = dask_array("csr", 45) if kind == "dask" else as_counts(X)
    if "store" in kind:
        counts = nmfscale.write_store(counts, tmp_path / "counts.nmf")
    counts = as_counts(counts, in_memory=False)
    assert counts.column_totals.sum() == counts.row_totals.sum() == X.sum()
    size = len(pickle.dumps(counts))
    model = fit(counts)
    again = pickle.dumps(counts)
    # a few numbers may go along, but no slices, which take some 15 bytes a count here
    assert len(again) < size + 3 * counts.nnz
    again = pickle.loads(again)
    assert numbers(fit(again), again) == numbers(model, counts)


def test_any_range_of_a_dask_array():
    stream = DaskRows(dask_array("csr", (20, 33, 0, 37)))
    for start, stop in [(0, 90), (19, 21), (20, 53), (52, 90), (53, 54), (89, 90), (5, 5)]:
        rows = stream.rows(start, stop).rows
        assert_array_equal(rows.matrix(X.shape[1]).toarray(), X[start:stop])


def test_dask_arrays_that_do_not_serve():
    array = da.from_array(X, chunks=(40, 30))
    with pytest.raises(ValueError, match=r"2 chunks of columns.*rechunk"):
        fit(array)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        fit(array[array.sum(axis=1) > 0])
    bad = X.copy()
    bad[77, 3] = -1
    with pytest.raises(ValueError, match="row 77, column 3 holds -1"):
        fit(da.from_array(bad, chunks=(40, -1)))


@pytest.mark.parametrize("memory_limit", [None, "1TB"])
@pytest.mark.parametrize("kept", [(slice(None), slice(5)), (slice(5), slice(None)), (0,)])
def test_chunks_of_a_dask_array_that_are_not_as_promised(kept, memory_limit):
    array = pytest.importorskip("dask.array").from_array(X, chunks=(40, -1))
    other = array.map_blocks(lambda chunk: chunk[kept], dtype=X.dtype, meta=X[:0])
    shape = X[:40][kept].shape
    message = rf"Chunk 0 .*shape {re.escape(str(shape))}, but .*\(40, 60\): pass chunks="
    with pytest.raises(ValueError, match=message):
        fit(other, memory_limit=memory_limit)


@pytest.mark.parametrize("layer", [None, "counts"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_anndata_of_dask_arrays(tmp_path, form, layer):
    da, anndata = pytest.importorskip("dask.array"), pytest.importorskip("anndata")
    array = da.from_array(X, chunks=(40, -1)).map_blocks(form, dtype=X.dtype)
    adata = anndata.AnnData(array if layer is None else np.log1p(X), layers={"counts": array})
    adata.obs_names = [f"cell {i}" for i in range(90)]
    adata.var_names = [f"gene {j}" for j in range(60)]
    adata.obs["kind"] = ["a", "b"] * 45
    one = as_counts(adata, layer=layer)
    other = as_counts(adata, layer=layer, in_memory=False)
    stored = nmfscale.write_store(adata, tmp_path / "counts.nmf", layer=layer, groups="kind")
    assert isinstance(one, nmfscale.results.Counts) and isinstance(other, FileCounts)
    assert isinstance(nmfscale.read_counts(adata, layer=layer), nmfscale.results.Counts)
    assert stored.groups.tolist() == adata.obs["kind"].tolist()
    memory = as_counts(X)
    for counts in (one, other, stored):
        assert_array_equal(counts.sample_names, adata.obs_names)
        assert_array_equal(counts.feature_names, adata.var_names)
        assert numbers(fit(counts), counts) == numbers(fit(memory), memory)
    rows, columns = [3, 40, 41, 88], slice(5, 20)
    for in_memory in (True, False):
        view = as_counts(adata[rows, columns], layer=layer, in_memory=in_memory)
        assert_array_equal(view.take_rows().toarray(), X[rows, columns])
        assert view.take_rows().dtype == view.dtype == one.dtype
    if layer is None:
        assert fit(adata, memory_limit="1TB").sample_names_[3] == "cell 3"
        wrong = X.copy()
        wrong[50, 4] = -1
        adata.X = da.from_array(wrong, chunks=(40, -1)).map_blocks(form, dtype=X.dtype)
        with pytest.raises(ValueError, match=r"row 50 \('cell 50'\), column 4 \('gene 4'\)"):
            fit(adata)


@pytest.mark.parametrize("kind", ["file", "store"])
def test_a_fit_that_decodes_a_file_in_every_iteration_advises_a_store(
    kind, tmp_path, monkeypatch, small_blocks, capsys
):
    path = tmp_path / ("counts.npz" if kind == "file" else "counts.nmf")
    if kind == "file":
        sp.save_npz(path, sp.csr_array(X))
    else:
        nmfscale.write_store(X, path)
    internals.plan(monkeypatch, keep=False)
    nmfscale.PoissonNMF(2, max_iter=2, tol=0, verbose=1, memory_limit="100GB").fit(path)
    advice = "decoded in every iteration; a packed store is faster (nmfscale store, write_store)"
    assert (advice in capsys.readouterr().err) == (kind == "file")
