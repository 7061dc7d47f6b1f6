"""Semi-supervised NMF: its updates against plain NumPy, weights, monotonicity, new samples."""

import tracemalloc
from itertools import product

import internals
import numpy as np
import oracle_ssnmf as oracle
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import nnls
from sklearn.decomposition import NMF

from nmfscale import SSNMF, clustering_score

BOTH = ("frobenius", "kl")
LOSSES = list(product(BOTH, BOTH))
every_loss = pytest.mark.parametrize("losses", LOSSES, ids="-".join)


class Problem:
    """Data X (n, m), targets Y (n, T), weights W and L of both, a start; samples are rows."""

    def __init__(self, seed, n=40, m=23, T=3, K=4, scale=1.0):
        rng = np.random.default_rng(seed)
        self.rng, self.K = rng, K
        self.X = rng.poisson(1.0, (n, m)) * rng.uniform(0.5, 2, (n, m)) * scale
        self.Y = rng.poisson(1.0, (n, T)) * rng.uniform(0.5, 2, (n, T))
        self.W = rng.choice([0, 0.1, 1, 5], (n, m))
        self.L = rng.choice([0, 0.1, 1, 5], (n, T))
        self.S, self.A, self.B = (rng.uniform(0.1, 1, (size, K)) for size in (n, m, T))

    @property
    def start(self):
        return {"loadings": self.S, "components": self.A.T, "target_components": self.B}

    def model(self, losses, **options):
        options = {"tol": 0, "max_iter": 7, "n_threads": 1} | options
        return SSNMF(self.K, losses=losses, **options)


def losses_of(fitted):
    return fitted.history_["loss"]


@every_loss
def test_the_updates_are_those_of_the_paper(losses, monkeypatch):
    internals.small_blocks(monkeypatch, 200)
    problem, lam = Problem(0), 1.5
    fitted = problem.model(losses, supervision=lam).fit(
        problem.X, problem.Y, label_weights=problem.L, data_weights=problem.W, **problem.start
    )
    of_oracle = problem.X.T, problem.Y.T, problem.A, problem.B, problem.S.T
    weights = {"W": problem.W.T, "L": problem.L.T}
    A, B, S = of_oracle[2:]
    values = []
    for _ in range(7):
        A, B, S = oracle.update(*of_oracle[:2], A, B, S, losses, lam, **weights)
        values.append(oracle.objective(*of_oracle[:2], A, B, S, losses, lam, **weights))
    assert_allclose(losses_of(fitted), values, rtol=1e-10)
    assert_allclose(fitted.components_.T, A, rtol=1e-8, atol=1e-14)
    assert_allclose(fitted.target_components_, B, rtol=1e-8, atol=1e-14)
    assert_allclose(fitted.loadings_, S.T, rtol=1e-8, atol=1e-14)


@given(
    seed=st.integers(0, 10_000), losses=st.sampled_from(LOSSES),
    lam=st.sampled_from([1e-3, 1.0, 1e4]), scale=st.sampled_from([1e-3, 1.0, 1e3]),
    weighted=st.booleans(), solver=st.sampled_from(["mu", "cd"]),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_the_loss_never_rises(seed, losses, lam, scale, weighted, solver):
    problem = Problem(seed, n=9, m=6, T=2, K=3, scale=scale)
    weights = {"label_weights": problem.L, "data_weights": problem.W} if weighted else {}
    fitted = problem.model(losses, supervision=lam, max_iter=12, solver=solver).fit(
        problem.X, problem.Y, **weights, **problem.start
    )
    found = losses_of(fitted)
    assert np.all(np.diff(found) <= 1e-10 * found[0])


@pytest.mark.parametrize("weighted", [True, *at_night(False)])
@every_loss
def test_coordinate_descent_ends_at_a_stationary_point(losses, weighted):
    problem, lam = Problem(6, n=24, m=15), 1.5
    W, L = (np.maximum(w, 0.1) if weighted else np.ones(w.shape) for w in (problem.W, problem.L))
    weights = {"label_weights": L, "data_weights": W} if weighted else {}
    fitted = problem.model(losses, supervision=lam, solver="cd", max_iter=250).fit(
        problem.X, problem.Y, **weights, **problem.start
    )
    A, B, S = fitted.components_.T, fitted.target_components_, fitted.loadings_.T
    up_x, down_x = oracle.up_down(problem.X.T, np.maximum(A @ S, 1e-30), W.T, losses[0])
    up_y, down_y = oracle.up_down(problem.Y.T, np.maximum(B @ S, 1e-30), L.T, losses[1])
    slope_x, slope_y = down_x - up_x, down_y - up_y
    # the slope of the loss by each parameter is zero, or positive where that is zero
    for values, slope in (
        (A, slope_x @ S.T), (B, slope_y @ S.T), (S, A.T @ slope_x + lam * B.T @ slope_y)
    ):  # fmt: skip
        size = np.abs(slope).max() + 1
        assert np.abs(values * slope).max() < 1e-4 * size and slope.min() > -1e-4 * size
    assert_allclose(
        fitted.loss_, oracle.objective(problem.X.T, problem.Y.T, A, B, S, losses, lam, W.T, L.T)
    )


@pytest.mark.parametrize("losses", [("kl", "frobenius"), ("frobenius", "kl")], ids="-".join)
def test_newton_steps_that_raise_the_loss_are_taken_back(losses):
    problem = Problem(7)

    def spoiled(original, model, rows, *given):
        return 100 * rows

    histories = []
    for solver in ("mu", "cd"):
        with pytest.MonkeyPatch.context() as patch:
            internals.around_newton_steps(patch, spoiled)
            fitted = problem.model(losses, solver=solver).fit(problem.X, problem.Y, **problem.start)
        histories.append(losses_of(fitted))
    assert_allclose(*histories, rtol=1e-12)


@pytest.mark.parametrize("losses", [("kl", "frobenius"), ("frobenius", "kl")], ids="-".join)
def test_steps_that_would_raise_the_loss_are_shortened(losses):
    # one loss wants more of the first sample, the other nothing of it; the second sample decides
    # on A and B
    wanted, unwanted = np.array([[100.5], [1000.5]]), np.array([[0.0], [1000.5]])
    X, Y = (wanted, unwanted) if losses[0] == "kl" else (unwanted, wanted)
    S, one = np.array([[1.0], [1000.0]]), np.ones((1, 1))
    lam = 12.5 if losses[0] == "kl" else 0.08
    plain = oracle.update(X.T, Y.T, one, one, S.T, losses, lam)
    before = oracle.objective(X.T, Y.T, *plain[:2], S.T, losses, lam)
    assert oracle.objective(X.T, Y.T, *plain, losses, lam) > before
    start = {"loadings": S, "components": one, "target_components": one}
    fitted = SSNMF(1, losses=losses, supervision=lam, max_iter=1, tol=0).fit(X, Y, **start)
    assert fitted.loss_ < before


@pytest.mark.parametrize("solver", ["mu", "cd"])
@every_loss
def test_values_of_weight_zero_do_not_matter(losses, solver):
    problem = Problem(1)
    missing = problem.W == 0
    labelled = np.arange(len(problem.X)) % 3 > 0
    fits = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = np.where(missing, rng.uniform(0, 9, missing.shape), problem.X)
        y = np.where(labelled, np.arange(len(X)) % 2, -1)
        fitted = problem.model(losses, random_state=0, solver=solver)
        fitted.fit(X, y, data_weights=sp.csr_array(missing) if seed else 1.0 - missing)
        new = fitted.transform(X, data_weights=missing * 1 == 0)
        fits.append((fitted.components_.tobytes(), fitted.loadings_.tobytes(), new.tobytes()))
    assert fits[0] == fits[1]


@pytest.mark.parametrize("solver", ["mu", "cd"])
@every_loss
def test_a_sample_without_weights_is_explained_by_its_labels(losses, solver):
    problem = Problem(0, scale=1e8)
    problem.W[3], problem.L[3], problem.Y[3] = 0, 1, [1, 0, 0]
    problem.W[:, 7] = 0  # a feature without weights has no part in topics
    weights = {"label_weights": problem.L, "data_weights": problem.W}
    fitted = problem.model(losses, supervision=1.5, solver=solver, max_iter=1)
    fitted.fit(problem.X, problem.Y, **weights, **problem.start)
    B, s = fitted.target_components_, problem.S[3]
    if solver == "cd" and losses == ("frobenius", "frobenius"):
        term = problem.Y[3], problem.L[3], B, "frobenius"
        expected = oracle.descend_row(s, [term], 4)
    else:  # coordinate descent on divergences begins with the updates of the paper
        up, down = oracle.up_down(problem.Y[3], B @ s, problem.L[3], losses[1])
        expected = s * (B.T @ up) / (B.T @ down)
    assert_allclose(B @ fitted.loadings_[3], B @ expected, rtol=1e-6)
    fitted.set_params(max_iter=40).fit(problem.X, problem.Y, **weights, **problem.start)
    assert np.all(np.diff(losses_of(fitted)) <= 1e-10 * losses_of(fitted)[0])
    assert fitted.loadings_.max() < 1e4
    assert_array_equal(fitted.components_[:, 7], 0)
    new = fitted.transform(problem.X * (problem.W > 0), data_weights=problem.W)
    assert_array_equal(new[3], 0)
    assert np.isfinite(new).all()


@pytest.mark.parametrize(
    ("seed", "losses", "supervision"), [(35, "DF", 1e4), (83, "DD", 1.0), (365, "FD", 1e4)]
)
def test_loadings_of_few_entries_stay_bounded(seed, losses, supervision):
    """Drawn so that topics of a sample are at the floor in all of its entries."""
    rng = np.random.default_rng(seed)
    shape = rng.integers(4, 20), rng.integers(3, 12)
    scale = 10.0 ** rng.integers(-4, 9)
    X = rng.poisson(1.0, shape) * scale
    X[0, 0] += scale
    W = rng.choice([0, 0, 0.1, 1, 5], shape)
    W[rng.integers(shape[0])] = 0
    W[:, rng.integers(shape[1])] = 0
    Y = rng.poisson(2.0, (shape[0], 2)) * 10.0 ** rng.integers(-3, 5)
    L = rng.choice([0, 1.0, 2.0], Y.shape)
    fitted = SSNMF(3, losses=losses, solver="cd", supervision=supervision, max_iter=25, tol=0)
    fitted.set_params(random_state=0).fit(X, Y, data_weights=W, label_weights=L)
    assert np.all(np.diff(losses_of(fitted)) <= 1e-8 * losses_of(fitted)[0])
    assert losses_of(fitted).min() > 0


@pytest.mark.parametrize("loss", BOTH)
def test_without_labels_it_is_nmf(loss):
    problem = Problem(2)
    X = problem.X + 0.01 * (problem.X.sum(axis=0) == 0)
    start = {name: problem.start[name] for name in ("loadings", "components")}
    fits = [
        problem.model((loss, other)).fit(X, y, **start, data_weights=weights)
        for other, y, weights in (
            ("kl", None, None),
            ("frobenius", -np.ones(len(X)), None),
            ("kl", None, np.ones(X.shape)),
        )
    ]
    for other in fits[1:]:
        assert other.components_.tobytes() == fits[0].components_.tobytes()
        assert other.loadings_.tobytes() == fits[0].loadings_.tobytes()
    # scikit-learn moves the left factor first, as the paper moves A: it gets the transposed data
    beta = {"frobenius": "frobenius", "kl": "kullback-leibler"}[loss]
    peer = NMF(problem.K, solver="mu", beta_loss=beta, init="custom", tol=0, max_iter=7)
    A = peer.fit_transform(X.T, W=problem.A.copy(), H=problem.S.T.copy())
    assert_allclose(fits[0].components_.T, A, rtol=1e-6, atol=1e-12)
    assert_allclose(fits[0].loadings_, peer.components_.T, rtol=1e-6, atol=1e-12)


def test_a_divergence_does_not_see_the_scale_of_the_start():
    problem = Problem(3)
    fits = [
        problem.model("DD", supervision=2.0).fit(
            problem.X, problem.Y, **problem.start | {"components": problem.A.T * scale}
        )
        for scale in (1, 64)
    ]
    assert_allclose(fits[1].loss_, fits[0].loss_, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_new_samples_solve_least_squares(weighted):
    problem = Problem(4)
    fitted = problem.model("FF").fit(problem.X, problem.Y, **problem.start)
    A, weights = fitted.components_.T, problem.W if weighted else np.ones(problem.X.shape)
    root = np.sqrt(weights)
    expected = [nnls(A * r[:, None], x * r)[0] for x, r in zip(problem.X, root, strict=True)]
    found = fitted.transform(problem.X, data_weights=problem.W if weighted else None)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_new_samples_take_multiplicative_steps(weighted):
    problem = Problem(5)
    fitted = problem.model("DD", transform_iter=9).fit(problem.X, problem.Y, **problem.start)
    A, W = fitted.components_.T, problem.W.T if weighted else np.ones(problem.X.T.shape)
    S = np.ones((problem.K, len(problem.X)))
    for _ in range(9):
        S = np.maximum(S * (A.T @ (W * problem.X.T / (A @ S))) / (A.T @ W), 1e-16)
    found = fitted.transform(problem.X, data_weights=problem.W if weighted else None)
    assert_allclose(found, S.T, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("loss", BOTH)
def test_the_product_of_the_factors_is_never_dense(loss):
    n = 30_000
    rng = np.random.default_rng(0)
    X = sp.csr_array((np.ones(n), (rng.integers(0, n, n), rng.integers(0, n, n))), (n, n))
    tracemalloc.start()
    SSNMF(2, losses=(loss, "kl"), max_iter=1, tol=0, n_threads=1).fit(X, np.arange(n) % 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * n / 10


def test_the_clustering_score_of_topics():
    rng = np.random.default_rng(0)
    S, groups = rng.uniform(size=(30, 4)) * (rng.uniform(size=(30, 1)) > 0.2), np.arange(30) % 3
    for soft in (False, True):
        found = clustering_score(S, groups, soft=soft)
        for topic in range(4):
            part = np.array([
                (s[topic] / s.sum() if soft else s.argmax() == topic) if s.any() else 0 for s in S
            ])  # fmt: skip
            of_groups = [part[groups == group].sum() / 10 for group in range(3)]
            assert_allclose(found.of_topics[topic], max(of_groups))
            assert found.groups[topic] == np.argmax(of_groups)
        assert_allclose(found.mean, found.of_topics.mean())


def test_clustering_scores_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"groups \(2,\)"):
        clustering_score(np.ones((3, 2)), [0, 1])
    with pytest.raises(ValueError, match="negative"):
        clustering_score(-np.ones((2, 2)), [0, 1])
    for missing in (None, np.nan):
        with pytest.raises(ValueError, match="groups has 1 missing labels, the first at sample 1"):
            clustering_score(np.ones((2, 2)), np.array(["a", missing], object))


def test_loadings_of_empty_samples_are_zero():
    X = np.vstack([np.eye(3) * 4, np.zeros(3)])
    for losses in ("FF", "DD"):
        fitted = SSNMF(2, losses=losses, random_state=0).fit(X, [0, 1, 1, -1])
        assert_array_equal(fitted.loadings_[3], 0)
        assert_array_equal(fitted.transform(X)[3], 0)
