"""Counts that stay in their own file: the same fit as in memory, bit for bit."""

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_docword, write_h5ad, write_mtx, write_tenx
from numpy.testing import assert_array_equal

import nmfscale
from nmfscale.data import layout as layouts
from nmfscale.data.counts import as_counts
from nmfscale.data.packing import pack
from nmfscale.data.store import StoredCounts
from nmfscale.data.streamed import StreamedCounts
from nmfscale.data.streams import open_stream
from nmfscale.models import base
from nmfscale.solve.memory import Plan

rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
X[7, 5] = 700
X[:, 8] = X[11] = 0


def write(kind, folder):
    """Write X in a format and return where."""
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


@pytest.fixture(params=["csr", "csc", "dense", "tenx", "mtx", "docword"])
def source(request, tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "BLOCK_NONZEROS", 300)
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
        counts = StreamedCounts(stream)
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


@pytest.mark.parametrize("keep", [True, False])
def test_a_fit_of_a_file_has_the_same_bits(source, monkeypatch, keep):
    monkeypatch.setattr(base, "plan_fit", lambda *_, **__: Plan(0, keep, None))
    before = source.read_bytes()
    memory = nmfscale.read_counts(source)
    one, other = fit(memory), fit(source, memory_limit="1TB")
    assert numbers(one, memory) == numbers(other, source)
    assert other.history_["bytes_read"][-1] > 0
    assert source.read_bytes() == before


@pytest.mark.parametrize("source", ["csc", "mtx"], indirect=True)
def test_the_papers_methods_need_whole_columns(source, monkeypatch):
    monkeypatch.setattr(base, "plan_fit", lambda *_, **__: Plan(0, False, None))
    with pytest.raises(ValueError, match=r"counts\.\w+.* needs whole columns: use solver='auto'"):
        fit(source, solver="scd", memory_limit="1TB")
    monkeypatch.setattr(base, "plan_fit", lambda *_, **__: Plan(0, True, None))
    one, other = fit(X, solver="scd"), fit(source, solver="scd", memory_limit="1TB")
    assert one.components_.tobytes() == other.components_.tobytes()
    monkeypatch.setattr(base, "plan_fit", lambda *_, **__: Plan(0, False, None))
    monkeypatch.setattr(layouts, "BLOCK_NONZEROS", 1 << 23)
    one, other = fit(X, solver="scd"), fit(source, solver="scd", memory_limit="1TB")
    assert one.components_.tobytes() == other.components_.tobytes()


def test_a_store_packed_from_a_file_is_one_packed_from_memory(source, tmp_path):
    memory = nmfscale.read_counts(source)
    with open_stream(source) as stream:
        counts = StreamedCounts(stream)
        pack(counts, tmp_path / "streamed.nmf", source=counts.source)
    stored = StoredCounts(tmp_path / "streamed.nmf")
    assert stored.source["path"] == str(source)
    assert stored.report() == memory.report()
    assert numbers(fit(memory), memory) == numbers(fit(stored), stored)


def test_backed_anndata(tmp_path, monkeypatch):
    anndata = pytest.importorskip("anndata")
    monkeypatch.setattr(layouts, "BLOCK_NONZEROS", 300)
    monkeypatch.setattr(base, "plan_fit", lambda *_, **__: Plan(0, False, None))
    anndata.AnnData(sp.csr_matrix(X)).write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    assert isinstance(as_counts(backed, in_memory=False), StreamedCounts)
    one, other = fit(X), fit(backed, memory_limit="1TB")
    assert one.components_.tobytes() == other.components_.tobytes()
    backed.var_names = [f"gene {j}" for j in range(X.shape[1])]
    names = fit(backed, memory_limit="1TB").feature_names_in_
    assert names.tolist() == backed.var_names.tolist()
    assert fit(backed.X).components_.tobytes() == one.components_.tobytes()


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


def test_a_file_that_changes_is_noticed(source):
    counts = StreamedCounts(open_stream(source))
    source.write_bytes(source.read_bytes() + b" ")
    with pytest.raises(ValueError, match="was changed since it was opened"):
        fit(counts)


# Dask arrays ----------------------------------------------------------------------------------


def dask_array(kind, chunks):
    form = {"csr": sp.csr_matrix, "csc": sp.csc_array, "dense": np.asarray}[kind]
    return da.from_array(X, chunks=(chunks, -1)).map_blocks(form, dtype=X.dtype)


@pytest.mark.parametrize("memory_limit", [None, "1TB"])
@pytest.mark.parametrize("chunks", [90, (1, 0, 50, 39)])
@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
def test_a_fit_of_a_dask_array_has_the_same_bits(monkeypatch, kind, chunks, memory_limit):
    monkeypatch.setattr(layouts, "BLOCK_NONZEROS", 300)
    monkeypatch.setattr(base, "plan_fit", lambda *_, **__: Plan(0, False, None))
    array = dask_array(kind, chunks)
    one, other = fit(X), fit(array, memory_limit=memory_limit)
    assert numbers(one, X) == numbers(other, array)


def test_any_range_of_a_dask_array():
    from nmfscale.data.distributed import DaskRows

    stream = DaskRows(dask_array("csr", (20, 33, 0, 37)))
    for start, stop in [(0, 90), (19, 21), (20, 53), (52, 90), (53, 54), (89, 90), (5, 5)]:
        rows = stream.rows(start, stop)
        found = sp.csr_array((rows.data, rows.indices, rows.indptr), shape=rows.shape)
        assert_array_equal(found.toarray(), X[start:stop])


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
