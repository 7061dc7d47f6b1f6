"""Penalties that make one factor sparse: steps, objective, zeros (Geiger and Park, Appendix F)."""

from itertools import pairwise

import anndata
import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_matrix, save_npz
from scipy.special import xlogy
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from small_fits import StopError, bits, stop_at

import nmfscale
from nmfscale.cli import main
from nmfscale.experimental import SparsityPenalty

K = 3
COUNTS, TRUTH = nmfscale.datasets.simulate_topic_counts(80, 40, 4, size=60.0, random_state=0)
X = COUNTS.toarray().astype(float)
_rng = np.random.default_rng(0)
START = {
    "loadings": _rng.uniform(5, 20, (80, K)),
    "components": _rng.uniform(0.5, 1, (40, K)).T,
}
NORMS = {"l1": 1, "l2": 2}
# Exponents and norms that do more than rescale a factor.
SPARSE = [("l1", 0.5), ("l2", 1.0), ("l2", 0.5)]

on_each = pytest.mark.parametrize("on", ["loadings", "components"])
for_each_penalty = pytest.mark.parametrize(("norm", "q"), SPARSE)


def model_of(weight, norm, q, on="loadings", estimator=nmfscale.PoissonNMF, **options):
    penalty = SparsityPenalty(weight, exponent=q, norm=norm, on=on)
    how = {"max_iter": 100, "random_state": 0, "tol": 0} | options
    return estimator(K, solver="joint-em", penalty=penalty, **how)


def fit(*penalty, **options):
    return model_of(*penalty, **options).fit(COUNTS, **START)


def turned(on, L, F):
    """The counts with the factor that has the penalty in their rows; that factor, the other."""
    return (X, L, F) if on == "loadings" else (X.T, F, L)


def factors_of(on, model):
    return turned(on, model.loadings_, model.components_.T)


@on_each
@for_each_penalty
def test_steps_and_objective_are_those_of_the_oracle(norm, q, on):
    weight, p = 2.0, NORMS[norm]
    Y, A, B = turned(on, START["loadings"], START["components"].T)
    norms = np.linalg.norm(B, p, axis=0)
    A, B = A * norms, B / norms
    model = fit(weight, norm, q, on, max_iter=6)
    for loglik in model.history_["loglik"][:-1]:
        A, B = oracle.step_penalised(Y, A, B, weight, q, p)
        expected = oracle.penalised_loglik(Y, A, B, weight, q, p)
        assert_allclose(loglik, expected, rtol=1e-7)  # zeros are 1e-10
    _, B = oracle.step_penalised(Y, A, B, weight, q, p)
    _, _, found = factors_of(on, model)
    assert_allclose(found, B, rtol=1e-7, atol=1e-9)
    assert_allclose(np.linalg.norm(found, p, axis=0), 1, rtol=1e-7)


@on_each
@for_each_penalty
def test_the_objective_never_falls_and_zeros_grow_with_the_penalty(norm, q, on):
    shares = []
    for weight in (0.1, 1.0, 10.0):
        model = fit(weight, norm, q, on)
        history = model.history_["loglik"]
        assert (np.diff(history) > -1e-9 * np.abs(history[1:])).all()
        Y, A, B = factors_of(on, model)
        expected = oracle.penalised_loglik(Y, A, B, weight, q, NORMS[norm])
        assert_allclose(model.loglik_, expected, rtol=1e-8)
        # Theorem F.1: the same at every scale of the factors
        scales = np.array([0.1, 3.0, 20.0])
        scaled = oracle.penalised_loglik(Y, A * scales, B / scales, weight, q, NORMS[norm])
        assert_allclose(scaled, expected, rtol=1e-9)
        shares.append((A == 0).mean())
    assert all(less + 0.01 < more for less, more in pairwise(shares))
    _, plain, _ = factors_of(on, fit(0.0, "l1", 1.0))
    assert shares[-1] > (plain == 0).mean() + 0.15


@on_each
def test_only_rescales_with_the_defaults(on):
    """Lemma 6.1: no further zeros, and the same shares."""
    plain, penalised = (fit(weight, "l1", 1.0, on) for weight in (0.0, 10.0))
    _, A, B = factors_of(on, plain)
    _, found, other = factors_of(on, penalised)
    norms = B.sum(axis=0)
    assert_allclose(other, B / norms, rtol=1e-8)
    assert_allclose(found, A * norms / 11, rtol=1e-8)
    assert_array_equal(found == 0, A == 0)
    expected = oracle.loglik_poisson(X, penalised.loadings_, penalised.components_.T).sum()
    assert_allclose(penalised.loglik_, expected - 10 * found.sum(), rtol=1e-9)


@for_each_penalty
def test_sparse_components_are_sparse_loadings_of_the_transposed_counts(norm, q):
    one = fit(1.5, norm, q, "components")
    other = model_of(1.5, norm, q).fit(
        X.T, loadings=START["components"].T, components=START["loadings"].T
    )
    for found, expected in (
        (one.components_.T, other.loadings_), (one.loadings_, other.components_.T),
    ):  # fmt: skip
        assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
        assert_array_equal(found == 0, expected == 0)
        assert (found == 0).mean() > 0.1
    assert_allclose(one.history_["loglik"], other.history_["loglik"], rtol=1e-10)


def test_transform_finds_the_penalised_optimum_of_new_rows():
    model = fit(2.0, "l2", 1.0)
    F, u = model.components_.T, model.components_.sum(axis=1) + 2.0
    found = model.transform(COUNTS)
    assert_allclose(found, model.loadings_, rtol=1e-5, atol=1e-6)
    for x, b in zip(X[:10], found, strict=False):
        assert (
            oracle.row_loss(x, F, u, b) < oracle.row_loss(x, F, u, oracle.solve_row(x, F, u)) + 1e-6
        )


@on_each
@pytest.mark.parametrize(("q", "weight"), [(0.5, 2.0), (0.3, 0.5)])
def test_rows_with_a_concave_penalty_reach_the_best_of_their_supports(q, weight, on):
    """In the fit and in transform: a local optimum depends on which parameters are zero."""
    counts, _ = nmfscale.datasets.simulate_topic_counts(60, 30, 4, size=40.0, random_state=1)
    model = model_of(weight, "l1", q, on, max_iter=30).set_params(n_components=4).fit(counts)
    L, F = model.loadings_, model.components_.T
    Y, A, B = (counts.toarray(), L, F) if on == "loadings" else (counts.toarray().T, F, L)
    Y = Y[:25] * B.any(axis=1)
    least = oracle.least_penalised(Y, B, weight, q)
    found = [A[:25], model.transform(counts)[:25]] if on == "loadings" else [A[:25]]
    for b in found:
        loss = b @ B.sum(axis=0) - xlogy(Y, np.maximum(b @ B.T, 1e-30)).sum(axis=1)
        assert_allclose(loss + weight * (b**q).sum(axis=1), least, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("norm", "q"), [("l1", 1.0), ("l2", 0.5)])
def test_sparse_components_leave_loadings_of_new_rows_without_a_penalty(norm, q):
    model = fit(2.0, norm, q, "components")
    plain = nmfscale.likelihood.poisson_regression(model.components_.T, COUNTS.T)
    assert_allclose(model.transform(COUNTS), plain, rtol=1e-5, atol=1e-6)


@on_each
@pytest.mark.parametrize(("norm", "q"), [("l1", 1.0), ("l2", 0.5)])
def test_sizes_and_weights_of_samples(on, norm, q):
    sizes, weights = _rng.uniform(0.5, 2, 80), _rng.uniform(0, 2, 80)
    model = model_of(1.5, norm, q, on, max_iter=20)
    model.fit(COUNTS, size_factors=sizes, row_weights=weights)
    L, F = sizes[:, None] * model.loadings_, model.components_.T
    of_L = (L**q).sum(axis=1) if on == "loadings" else 0
    of_F = (F**q).sum() if on == "components" else 0
    expected = weights @ (oracle.loglik_poisson(X, L, F) - 1.5 * of_L) - 1.5 * of_F
    assert_allclose(model.loglik_, expected, rtol=1e-7)
    norms = (F ** NORMS[norm]).sum(axis=0)
    if on == "components":  # a sample of weight 2 counts like two samples
        norms = weights @ L ** NORMS[norm]
    assert_allclose(norms, 1, rtol=1e-7)
    found = model.transform(COUNTS, size_factors=sizes) * sizes[:, None]
    assert_allclose(found, model.transform(COUNTS, size_factors=np.ones(80)), rtol=1e-6, atol=1e-6)


@on_each
def test_a_topic_model_is_the_same_fit(on):
    one, other = (
        fit(1.0, "l2", 1.0, on, estimator=name)
        for name in (nmfscale.PoissonNMF, nmfscale.TopicModel)
    )
    L, F = other.poisson_factors()
    assert_allclose(L @ F.T, one.loadings_ @ one.components_, rtol=1e-6, atol=1e-6)
    assert_array_equal(other.loadings_ == 0, one.loadings_ == 0)
    assert_array_equal(other.components_ == 0, one.components_ == 0)
    assert_allclose(other.loadings_.sum(axis=1), 1, rtol=1e-12)
    assert_allclose(other.components_.sum(axis=1), 1, rtol=1e-12)
    if on == "loadings":
        assert_allclose(other.transform(COUNTS), other.loadings_, rtol=1e-5, atol=1e-6)


@on_each
def test_a_resumed_fit_and_a_saved_model_have_the_same_numbers(on, tmp_path):
    model = model_of(1.0, "l2", 0.5, on, max_iter=12)
    state = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    model.set_params(callback=stop_at(7))
    with pytest.raises(StopError):
        model.fit(COUNTS, **START, **state)
    other = model_of(1.0, "l2", 0.5, {"loadings": "components", "components": "loadings"}[on])
    with pytest.raises(ValueError, match="different fit"):
        other.fit(COUNTS, **START, **state, resume=True)
    model.set_params(callback=None).fit(COUNTS, **START, **state, resume=True)
    assert bits(model) == bits(fit(1.0, "l2", 0.5, on, max_iter=12))
    model.save(tmp_path / "model.nmf")
    loaded = nmfscale.load(tmp_path / "model.nmf")
    assert repr(loaded.penalty) == repr(model.penalty) != repr(SparsityPenalty(1.0))
    assert_array_equal(loaded.transform(COUNTS), model.transform(COUNTS))


def test_parameters_of_the_penalty_are_those_of_a_nested_estimator():
    model = model_of(1.0, "l2", 0.5, max_iter=5)
    copy = clone(model)
    assert copy.penalty is not model.penalty and repr(copy) == repr(model)
    assert copy.get_params()["penalty__exponent"] == 0.5
    copy.set_params(penalty__weight=3.0)
    assert (model.penalty.weight, copy.penalty.weight) == (1.0, 3.0)
    grid = {"penalty__weight": [0, 2.0], "penalty__norm": ["l1"]}
    search = GridSearchCV(model, grid, cv=2).fit(COUNTS)
    assert search.best_estimator_.penalty.norm == "l1"
    without = nmfscale.PoissonNMF(K, solver="joint-em")
    with pytest.raises(ValueError, match="SparsityPenalty has no parameter 'q'"):
        model.set_params(penalty__q=1)
    with pytest.raises(ValueError, match=r"penalty is None, which .* 'weight': set penalty first"):
        without.set_params(penalty__weight=1.0)
    with pytest.raises(ValueError, match=r"0\.5 of PoissonNMF .*=nmfscale\.experimental\.Spars"):
        without.set_params(penalty=0.5).fit(COUNTS)
    without.set_params(penalty=SparsityPenalty(1.0), penalty__weight=2.0)
    assert repr(without.penalty) == "SparsityPenalty(weight=2.0)"


def test_a_penalty_of_weight_zero_is_none():
    model = model_of(0.0, "l2", 0.5, max_iter=3).set_params(solver="auto").fit(COUNTS)
    with_zero = bits(model)
    assert with_zero == bits(model.set_params(penalty=None).fit(COUNTS))


def test_the_penalty_in_the_shell_and_in_an_anndata_object(tmp_path, capsys):
    file, model = tmp_path / "counts.npz", tmp_path / "model.h5"
    save_npz(file, csr_matrix(COUNTS))
    words = ["fit", file, "-k", K, "--model", "poisson", "--solver", "joint-em", "--max-iter", 3]
    words += ["--seed", 0, "-o", model, "-q"]
    words = [str(word) for word in words]
    options = ["--penalty-weight", "2", "--penalty-exponent", "0.5", "--penalty-on", "components"]
    assert main([*words, *options]) == 0
    loaded = nmfscale.load(model)
    penalty = SparsityPenalty(2.0, exponent=0.5, on="components")
    assert repr(loaded.penalty) == repr(penalty)
    with pytest.raises(SystemExit):
        main([*words, "--force", "--penalty-norm", "l2"])
    assert "--penalty-norm needs --penalty-weight" in capsys.readouterr().err
    adata = anndata.AnnData(csr_matrix(COUNTS))
    how = {"solver": "joint-em", "max_iter": 3, "tol": 0, "random_state": 0, "integer": "allow"}
    nmfscale.tl.topics(adata, K, model="poisson", penalty=penalty, **how)
    read = nmfscale.get.model(adata)
    assert repr(read.penalty) == repr(penalty)
    assert_array_equal(read.components_, loaded.components_)
