"""Objects of other libraries where counts are expected, by stand-ins with the names of theirs."""

import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import nmfscale
from nmfscale.readers.open import as_counts, read_counts

TABLE = np.array([[0, 2, 1], [3, 0, 0]])


class Walked(BaseException):
    """Somebody walks through an object whose items are made when they are asked for."""


def walked(*_):
    """Take the place of a method that nobody may call."""
    raise Walked


class Endless:
    """What NumPy takes for a sequence."""

    __len__ = __getitem__ = __iter__ = walked


def of(package, name, bases=(Endless,), **members):
    """Return an object of a class of another package."""
    return type(name, bases, {"__module__": f"{package}.core", **members})()


def dense(counts):
    return sp.csr_array((counts.data, counts.indices, counts.indptr), counts.shape).toarray()


@pytest.mark.parametrize(
    ("X", "said"),
    [
        (of("mudata", "MuData"), r"X is a MuData.*mdata\['rna'\]"),
        (of("anndata", "AnnCollection"), r"X is an AnnCollection.*to_adata\(\)"),
        (of("anndata", "Layers"), r"Layers.*Pass the AnnData object, with layer="),
        ([of("anndata", "AnnData")] * 2, r"item 0 is an AnnData.*nmfscale\.concat\(X\)"),
        ((of("mudata", "MuData"),), "item 0 is a MuData"),
        (of("dask", "DataFrame", __array__=walked, columns=[]), r"to_dask_array\(lengths=True\)"),
        (of("dask", "Delayed"), r"Delayed.*\.compute\(\)"),
        (of("distributed", "Future"), r"\.result\(\)"),
        (of("polars", "LazyFrame", columns=[]), r"X\.collect\(\)"),
        (of("pyspark", "DataFrame", columns=[]), r"X\.toPandas\(\)"),
        ([[[1, 2, 3]], [[1]]], "a list of lists of lists"),
        (of("mine", "Endless"), "Endless, which is not a supported matrix of counts. Pass a"),
        ([1, of("mine", "Endless")], "item 1 is an Endless, not a row of numbers"),
        (
            [[1, 2], [3, of("mine", "Endless")]],
            "a list of lists, and item 1 is an Endless, not a n",
        ),
        (iter([[1, 2]]), "can be read only once"),
        ((row for row in TABLE), r"generator.*numpy\.array\(list\(X\)\)"),
        (map(list, TABLE), "map.*can be read only once"),
        ({"a": [1, 2]}, r"X is a dict.*pandas\.DataFrame\(X\)"),
        ([{"a": 1}, {"b": 2}], r"item 0 is a dict.*DictVectorizer"),
        ({1, 2}, "X is a set.*no order"),
        ([{1}, {2}], "item 0 is a set"),
        ([Path("a.h5ad"), 3], r"PosixPath.*nmfscale\.concat takes lists of files"),
        ([sp.csr_array(TABLE)] * 2, r"csr_array.*scipy\.sparse\.vstack"),
        ([["a", "b"], ["c"]], "rows of words, such as"),
        ([[1, 2], [3]], "rows of different lengths"),
        (b"counts", "X is a bytes"),
        (object(), "X is an object"),
    ],
)
def test_refused_by_type(X, said):
    for use in (as_counts, read_counts):
        with pytest.raises(ValueError, match=said):
            use(X)
    with pytest.raises((TypeError, ValueError)):
        nmfscale.PoissonNMF(2).fit(X)


def sparse_array(fill_value=0, ndim=2):
    members = {"fill_value": fill_value, "ndim": ndim, "shape": (2, 3)[:ndim]}
    return of("sparse", "COO", (), to_scipy_sparse=lambda self: sp.coo_array(TABLE), **members)


@pytest.mark.parametrize(
    "X",
    [
        TABLE.tolist(),
        tuple(map(tuple, TABLE)),
        deque(TABLE.tolist()),
        list(TABLE),
        memoryview(TABLE),
        sparse_array(),
        of("mine", "Array", (), __array__=lambda self, dtype=None, copy=None: TABLE),
    ],
)
def test_what_means_one_matrix_is_taken(X):
    np.testing.assert_array_equal(dense(as_counts(X)), TABLE)


def test_sparse_arrays_that_are_no_counts():
    with pytest.raises(ValueError, match="COO with fill_value=2: entries that are not stored"):
        as_counts(sparse_array(2))
    with pytest.raises(ValueError, match="Expected 2D array, got 1D"):
        as_counts(sparse_array(ndim=1))


def test_chunks_of_dask_arrays_may_be_sparse_arrays():
    X = pytest.importorskip("dask.array").from_array(TABLE, chunks=(1, 3))

    def chunk(block):
        members = {"fill_value": 0, "ndim": 2, "shape": block.shape}
        made = sp.coo_array(block)
        return of("sparse", "COO", (), to_scipy_sparse=lambda self: made, **members)

    for in_memory in (True, False):
        counts = as_counts(X.map_blocks(chunk, meta=TABLE[:0]), in_memory=in_memory)
        np.testing.assert_array_equal(counts.column_totals, TABLE.sum(axis=0))


ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("argument", "ask"),
    [
        ("loadings", lambda A: nmfscale.permutation_test(A, ["a", "b"])),
        ("groups", lambda A: nmfscale.permutation_test(ONES, A)),
        ("units", lambda A: nmfscale.group_effects(ONES, ["a", "b"], units=A)),
        ("covariates", lambda A: nmfscale.regress_proportions(ONES, A)),
        ("loadings", lambda A: nmfscale.clustering_score(A, ["a", "b"])),
        ("table", nmfscale.balance),
        ("b", lambda A: nmfscale.match_topics(ONES, A)),
        ("F", lambda A: nmfscale.likelihood.poisson_to_multinomial(ONES, A)),
        ("L", lambda A: nmfscale.likelihood.loglik_poisson(TABLE, A, ONES)),
        ("frequencies", lambda A: nmfscale.likelihood.mixture_proportions(TABLE, A)),
        ("loadings", lambda A: nmfscale.PoissonNMF(2).fit(TABLE, loadings=A)),
        ("init", lambda A: nmfscale.TopicModel(2, init=A).fit(TABLE)),
        ("prior_factors: alpha", lambda A: nmfscale.PoissonNMF(2, prior_factors=A).fit(TABLE)),
        ("row_weights", lambda A: nmfscale.PoissonNMF(2).fit(TABLE, row_weights=A)),
        ("y", lambda A: nmfscale.SSNMF(2).fit(TABLE, A)),
    ],
)
def test_annotated_objects_are_no_arguments_but_counts(argument, ask):
    A = of("anndata", "AnnData", obs_names=property(lambda self: [*"ab"]))
    with pytest.raises(ValueError, match=f"^{argument} is an AnnData object: pass an array"):
        ask(A)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (nmfscale.topic_quality, "model is an AnnData object: pass nmfscale.get.model"),
        (nmfscale.differential_features, "model is an AnnData object: pass nmfscale.get.model"),
        (nmfscale.select_k, "estimator is an AnnData object: pass an estimator, such as"),
        (nmfscale.stability, "estimator is an AnnData object: pass an estimator, such as"),
        (nmfscale.bootstrap_fit, "estimator is an AnnData object: pass an estimator, such as"),
    ],
)
def test_annotated_objects_are_no_models(ask, message):
    A = of("anndata", "AnnData", obs_names=property(lambda self: [*"ab"]))
    with pytest.raises(ValueError, match=f"^{message}"):
        ask(A, TABLE)


@pytest.mark.parametrize(
    "draw", [nmfscale.pl.structure_plot, nmfscale.get.top_features, nmfscale.pl.similarity_plot]
)
def test_plots_refuse_annotated_objects(draw):
    with pytest.raises(ValueError, match="must be a dense matrix of numbers .* got AnnData: pass"):
        draw(of("anndata", "AnnData", obs_names=property(lambda self: [*"ab"])))


def test_modalities(monkeypatch):
    """One has one meaning."""
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(sp.csr_matrix(TABLE).astype(np.float32))  # 0.10 takes no csr_array

    class MuData(Endless):
        def __init__(self, mod):
            self.mod = mod

    module = type("mudata", (), {"MuData": MuData})
    monkeypatch.setitem(sys.modules, "mudata", module)
    np.testing.assert_array_equal(dense(as_counts(MuData({"rna": cells}))), TABLE)
    with pytest.raises(TypeError, match=r"modalities: 'rna', 'prot'. Pass one .* mdata\['rna'\]"):
        as_counts(MuData({"rna": cells, "prot": cells}))
