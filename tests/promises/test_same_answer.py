"""The same bits for any number of threads, any schedule and any form of the same counts."""

import hashlib
import os
import subprocess
import sys

import dask.array as da
import internals
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_mtx, write_tenx
from night import at_night
from numpy.testing import assert_array_equal
from small_fits import at_level

import nmfscale
from nmfscale import kernels
from nmfscale.engine.local import LocalExecutor
from nmfscale.methods.factors import Constraints, aligned_copy
from nmfscale.methods.poisson.row_update import SHARED, RowUpdate
from nmfscale.methods.poisson.solvers import SOLVERS
from nmfscale.methods.poisson.state import PoissonState
from nmfscale.readers.open import as_counts

MODELS = [nmfscale.PoissonNMF, nmfscale.TopicModel]


def make_counts(n=90, m=60, K=3, seed=0):
    rng = np.random.default_rng(seed)
    L, F = rng.gamma(0.4, size=(n, K)), rng.gamma(0.4, size=(m, K))
    X = rng.poisson(3 * L @ F.T)
    X[5] = X[:, 7] = 0
    return X


X = make_counts()


def bits(model):
    """All numbers of a fit but the seconds, as one digest."""
    numbers = [model.components_, model.loadings_, np.float64(model.loglik_)]
    numbers += [model.history_[name] for name in model.history_.dtype.names if name != "seconds"]
    numbers.append(getattr(model, "size_factors_", np.zeros(0)))
    digest = hashlib.sha256()
    for array in numbers:
        assert np.isfinite(array).all()
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def fit(counts=X, model=nmfscale.PoissonNMF, **options):
    names = ("loadings", "components", "row_weights", "client")
    fit_options = {name: options.pop(name) for name in names if name in options}
    # From its twelfth iteration on, "auto" keeps curvature.
    n_iter = 15 if options.get("solver", "auto") == "auto" else 6
    options = {"max_iter": n_iter, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return model(3, **options).fit(counts, **fit_options)


# Threads and schedules ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", *at_night("float64")])
@pytest.mark.parametrize("solver", SOLVERS)
def test_any_number_of_threads(solver, dtype):
    found = {bits(fit(solver=solver, dtype=dtype, n_threads=n)) for n in (1, 2, 3, 4)}
    assert len(found) == 1


@pytest.mark.parametrize("solver", SOLVERS)
def test_any_number_of_threads_with_several_blocks(small_blocks, solver):
    assert len(as_counts(X).layout().blocks) >= 3
    found = {bits(fit(solver=solver, n_threads=n)) for n in (1, 2, 3, 4)}
    assert len(found) == 1


@pytest.mark.parametrize("n_components", [1, 7, 13, 20])
def test_any_number_of_threads_and_components(small_blocks, n_components):
    models = [fit().set_params(n_components=n_components, n_threads=n).fit(X) for n in (1, 3)]
    assert len({bits(model) for model in models}) == 1


@pytest.mark.parametrize("init", ["topic-score", "random", "nndsvd"])
@pytest.mark.parametrize("model", MODELS)
def test_any_number_of_threads_from_any_start(model, init):
    found = {bits(fit(model=model, init=init, n_threads=n, n_init=2)) for n in (1, 3)}
    assert len(found) == 1


def test_any_number_of_threads_with_priors_and_weights(small_blocks):
    weights = np.arange(len(X)) % 3
    options = {"prior_factors": 1.1, "prior_loadings": (1.2, 0.5), "row_weights": weights}
    assert len({bits(fit(n_threads=n, **options)) for n in (1, 2, 3)}) == 1


@pytest.mark.parametrize("level", kernels.available_levels())
@pytest.mark.parametrize("solver", ["auto", "scd"])
def test_any_number_of_threads_at_every_level(level, solver):
    with at_level(level):
        found = {bits(fit(solver=solver, n_threads=n)) for n in (1, 2, 3)}
    assert len(found) == 1


def test_repeated_fits_agree():
    assert bits(fit()) == bits(fit())


def test_transform_with_any_number_of_threads(small_blocks):
    model = fit()
    found = {model.set_params(n_threads=n).transform(X).tobytes() for n in (1, 2, 3, 4)}
    assert len(found) == 1


SCRIPT = """
import numpy as np, nmfscale, hashlib
rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
digest = hashlib.sha256()
for solver in ("auto", "scd", "em"):
    model = nmfscale.TopicModel(3, solver=solver, max_iter=12, tol=0, random_state=0, n_threads=3)
    model.fit(X)
    for array in (model.components_, model.transform(X), model.history_["loglik"]):
        digest.update(np.ascontiguousarray(array).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.nightly
def test_whatever_the_environment_says_of_threads():
    found = set()
    for settings in (
        {},
        {"OMP_NUM_THREADS": "1", "OMP_SCHEDULE": "static", "OMP_WAIT_POLICY": "active"},
        {"OMP_NUM_THREADS": "3", "OMP_SCHEDULE": "dynamic,1", "OMP_WAIT_POLICY": "passive"},
        {"OMP_NUM_THREADS": "2", "OMP_SCHEDULE": "guided,7", "OMP_DYNAMIC": "true"},
    ):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT],
            env=kept | settings,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


# Forms of the counts --------------------------------------------------------------------------


def unsorted(counts):
    """CSR with every row's columns in falling order."""
    out = sp.csr_matrix(counts)
    for start, stop in zip(out.indptr[:-1], out.indptr[1:], strict=True):
        out.indices[start:stop] = out.indices[start:stop][::-1].copy()
        out.data[start:stop] = out.data[start:stop][::-1].copy()
    out.has_sorted_indices = False
    return out


def with_index_types(indptr, indices):
    out = sp.csr_matrix(X)
    out.indptr, out.indices = out.indptr.astype(indptr), out.indices.astype(indices)
    return out


def with_duplicates_and_zeros():
    """Every count in two parts, and explicit zeros."""
    rows, columns = np.nonzero(X)
    values = X[rows, columns]
    parts = [
        np.concatenate([values - values // 2, values // 2]),
        np.tile(rows, 2),
        np.tile(columns, 2),
    ]
    return sp.coo_matrix((parts[0], (parts[1], parts[2])), shape=X.shape)


def read_only():
    out = sp.csr_matrix(X)
    for array in (out.data, out.indices, out.indptr):
        array.flags.writeable = False
    return out


FORMS = {
    "csr": lambda: sp.csr_matrix(X),
    "csr array": lambda: sp.csr_array(X),
    "csc": lambda: sp.csc_matrix(X),
    "coo": lambda: sp.coo_array(X),
    "unsorted": lambda: unsorted(X),
    "int64": lambda: with_index_types(np.int64, np.int64),
    "int64 and int32": lambda: with_index_types(np.int64, np.int32),
    "int32 and int64": lambda: with_index_types(np.int32, np.int64),
    "duplicates": with_duplicates_and_zeros,
    "read-only": read_only,
    "fortran": lambda: np.asfortranarray(X),
    "list": X.tolist,
    "uint8": lambda: X.astype(np.uint8),
    "uint16": lambda: sp.csr_array(X.astype(np.uint16)),
    "int32": lambda: X.astype(np.int32),
    "float32": lambda: sp.csr_matrix(X, dtype=np.float32),
    "float64": lambda: X.astype(np.float64),
    "Counts": lambda: as_counts(X),
    "DataFrame": lambda: pd.DataFrame(X, columns=[f"f{j}" for j in range(X.shape[1])]),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form(form):
    counts = FORMS[form]()
    options = {"init": "random", "dtype": "float64"}
    for solver in ("auto", "em"):
        assert bits(fit(counts, solver=solver, **options)) == bits(fit(solver=solver, **options))


@pytest.mark.parametrize("init", ["topic-score", "nndsvd"])
@pytest.mark.parametrize("form", ["unsorted", "csc", "int64", "uint8", "float32"])
def test_any_form_from_any_start(form, init):
    options = {"init": init, "dtype": "float64", "max_iter": 3}
    assert bits(fit(FORMS[form](), **options)) == bits(fit(**options))


@pytest.mark.parametrize("form", ["unsorted", "csc", "int64", "uint8"])
def test_any_form_in_several_blocks(small_blocks, form):
    options = {"init": "random", "dtype": "float64"}
    assert bits(fit(FORMS[form](), **options)) == bits(fit(**options))


def test_anndata():
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(sp.csr_matrix(X, dtype=np.float32))
    assert bits(fit(adata, dtype="float64")) == bits(fit())


def test_order_of_entries_that_are_not_whole():
    fractions = sp.csr_matrix(X / 7.0)
    rng = np.random.default_rng(1)
    start = {"loadings": rng.uniform(size=(90, 3)), "components": rng.uniform(size=(3, 60))}
    one, other = (fit(form, integer="allow", **start) for form in (fractions, unsorted(fractions)))
    assert_array_equal(one.components_, other.components_)
    assert_array_equal(one.loadings_, other.loadings_)


# The two ways to move F -----------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 3, 6, 13])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("extra", ["none", "weights", "priors", "topics"])
def test_one_block_fused_is_one_block_from_sums(extra, dtype, K):
    rng = np.random.default_rng(K)
    shape = {"L": (X.shape[0], K), "F": (X.shape[1], K)}
    prior = np.full(shape["F"], 0.25), np.full(shape["F"], 2.0)
    constraints = {
        "none": Constraints(),
        "weights": Constraints(weights=rng.uniform(size=X.shape[0])),
        "priors": Constraints(prior_factors=prior),
        "topics": Constraints(topics=np.arange(K) == 0),
    }[extra]
    L, F = (rng.uniform(0.1, 1.0, shape[side]) for side in ("L", "F"))
    counts = as_counts(X)
    fused, summed = (
        PoissonState(counts, LocalExecutor(counts.layout(n), n), L, F, dtype, constraints)
        for n in (1, 2)
    )
    moves = [
        RowUpdate(em_steps=1, refresh=True),
        RowUpdate(newton_steps=1, curvature=kernels.STORE),
        *[RowUpdate(newton_steps=1, curvature=kernels.REUSE)] * 2,
        *[RowUpdate(newton_steps=1, curvature=kernels.RESCALE)] * 2,
        RowUpdate(newton_steps=1, curvature=SHARED, refresh=True),
        RowUpdate(newton_steps=1, curvature=SHARED),
    ]
    for how in moves:
        at_once, from_sums = (aligned_copy(state.F.values) for state in (fused, summed))
        kkt = fused.move_columns(how, at_once, None)
        (found,) = summed.executor.run(summed.sum_step(how))
        assert summed.move_columns(how, from_sums, found.sums) == kkt
        assert_array_equal(at_once, from_sums)
        for state, values in ((fused, at_once), (summed, from_sums)):
            state.set_factor(values)
            state.sum_columns()
    assert_array_equal(fused.curvature_F(), summed.curvature_F())


def test_blocks_hardly_change_the_answer(monkeypatch):
    # whole columns take EM steps that summed ones do not: another way to the same optimum
    whole = fit(max_iter=40)
    internals.small_blocks(monkeypatch, 300)
    cut = fit(max_iter=40)
    assert cut.loglik_ == pytest.approx(whole.loglik_, rel=1e-7)


# Places of the counts -------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("n_components", [10, 20])
def test_real_text_in_every_place(tmp_path, monkeypatch, n_components):
    internals.small_blocks(monkeypatch, 100_000)
    counts = nmfscale.datasets.docstrings()
    arrays = counts.data, counts.indices, counts.indptr
    matrix = sp.csr_matrix(arrays, shape=counts.shape)
    write_h5ad(tmp_path / "counts.h5ad", matrix)
    write_tenx(tmp_path / "counts.h5", sp.csr_array(matrix), 2)
    write_mtx(tmp_path / "counts.mtx.gz", matrix.tocoo())
    nmfscale.write_store(counts, tmp_path / "counts.nmf")
    rows = da.from_array(np.arange(counts.shape[0]), chunks=1000)
    array = rows.map_blocks(
        lambda here: matrix[here], chunks=(rows.chunks[0], (counts.shape[1],)), new_axis=1,
        dtype=matrix.dtype,
    )  # fmt: skip
    names = "counts.nmf", "counts.h5ad", "counts.h5", "counts.mtx.gz"
    options = {"random_state": 0, "max_iter": 20, "tol": 0, "dtype": "float32"}
    # every source is read as a whole for one number of components, in pieces for the other
    limits = [None, "100GB"][:: 1 if n_components == 10 else -1] * 3
    found = set()
    for source, memory_limit, n_threads in zip(
        [matrix, array, *(tmp_path / name for name in names)], limits, [1, 2, 4] * 2, strict=True
    ):
        model = nmfscale.TopicModel(
            n_components, n_threads=n_threads, memory_limit=memory_limit, **options
        ).fit(source)
        found.add(model.components_.tobytes() + model.loadings_.tobytes())
    assert len(found) == 1
