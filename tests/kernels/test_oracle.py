"""The oracle itself: against stored results of fastTopics, and against textbook facts."""

import json

import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from oracle import FASTTOPICS_EPS as EPS
from scipy.optimize import minimize

UPDATES = ["em", "em_numiter1", "scd", "scd_numiter1", "ccd"]
TINY_RUNS = [*UPDATES, "em_extrapolate", "scd_extrapolate", "ccd_extrapolate"]


@pytest.fixture(scope="module")
def goldens(reference_dir):
    return json.loads((reference_dir / "fasttopics_small_goldens.json").read_text())["goldens"]


@pytest.fixture
def tiny(goldens):
    return {key: np.array(goldens["tiny"][key]) for key in "XLF"} | {"golden": goldens["tiny"]}


@pytest.fixture
def row():
    """One row problem: counts, design, its column sums, and a start far from the optimum."""
    rng = np.random.default_rng(0)
    A = rng.gamma(0.5, size=(30, 4))
    y = rng.poisson(A @ [0.5, 0.0, 3.0, 8.0]).astype(float)
    return y, A, A.sum(axis=0), np.array([5.0, 5.0, 0.01, 0.01])


# Against fastTopics ----------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("name", TINY_RUNS)
def test_tiny_trajectories(goldens, name, storage):
    tiny_fit = goldens["tiny_fit"]
    golden = tiny_fit["runs"][f"{name}_{storage}"]
    control, progress = golden["control"], golden["progress"]
    fit = oracle.Fit(
        *(np.array(tiny_fit[key]) for key in ("X", "L0", "F0")),
        control["method"],
        control["numiter"],
        extrapolate=control["extrapolate"],
    )
    for n_iter, key in [(1, "iter1"), (5, "iter6"), (19, "iter25")]:
        fit.run(n_iter)
        state = golden["states"][key]
        assert_allclose(fit.loss, state["loss"][0], rtol=1e-10)
        assert_allclose(fit.loss_compare, state["loss_fnly"][0], rtol=1e-10)
        for ours, suffix in [(fit.best, ""), (fit.plain, "n"), (fit.ahead, "y")]:
            assert_allclose(ours.L, state["L" + suffix], rtol=1e-8, atol=1e-9)
            assert_allclose(ours.F, state["F" + suffix], rtol=1e-8, atol=1e-9)
    # Later the loss moves by rounding alone, which then decides what is accepted.
    for ours, theirs, rtol in [
        ("kkt", "res", 1e-8),
        ("beta", "beta", 1e-12),
        ("beta_cap", "betamax", 1e-12),
    ]:
        values = [record[ours] for record in fit.history]
        assert_allclose(values, progress[theirs][:25], rtol=rtol, atol=1e-12, err_msg=ours)
    fit.run(35)
    for ours, theirs in [
        ("loglik", "loglik"),
        ("loglik_multinomial", "loglik.multinom"),
        ("deviance", "dev"),
    ]:
        values = [record[ours] for record in fit.history]
        assert_allclose(values, progress[theirs], rtol=1e-10, err_msg=ours)


def test_likelihoods(tiny):
    X, L, F, golden = tiny.values()
    assert_allclose(oracle.loglik_poisson(X, L, F, EPS), golden["loglik_poisson_nmf"], rtol=1e-14)
    assert_allclose(oracle.deviance_poisson(X, L, F, EPS), golden["deviance_poisson_nmf"], 1e-14)
    sizes = oracle.poisson_logpmf(X.sum(axis=1), L @ F.sum(axis=0))
    assert_allclose(sizes, golden["loglik_size_factors"], rtol=1e-14)
    multinomial = oracle.loglik_poisson(X, L, F, EPS) - sizes
    assert_allclose(multinomial, golden["loglik_multinom_topic_model"], rtol=1e-14)
    # Ours has no guard, which is worth some 1e-8 here.
    assert_allclose(oracle.loglik_multinomial(X, L, F), multinomial, rtol=1e-7)
    assert_allclose(oracle.loss(X, L, F, EPS), np.sum(golden["cost_poisson"]), rtol=1e-13)


def test_kkt(tiny):
    X, L, F, golden = tiny.values()
    of_L, of_F = oracle.kkt_residuals(X, L, F, EPS)
    assert_allclose(of_L, golden["kkt_L"], rtol=1e-14)
    assert_allclose(of_F, golden["kkt_F"], rtol=1e-14)


def test_conversion(tiny):
    X, L, F, golden = tiny.values()
    P, W, s, u = oracle.poisson_to_multinomial(L, F)
    theirs = golden["poisson2multinom"]
    assert_allclose(P, theirs["L"], rtol=1e-14)
    assert_allclose(W, theirs["F"], rtol=1e-14)
    assert_allclose(s, theirs["s"], rtol=1e-14)
    for sizes, key in [
        (s, "multinom2poisson_of_poisson2multinom"),
        (X.sum(axis=1), "multinom2poisson_with_X"),
    ]:
        back = oracle.rescale(*oracle.multinomial_to_poisson(P, W, sizes, u))
        assert_allclose(back[0], golden[key]["L"], rtol=1e-14)
        assert_allclose(back[1], golden[key]["F"], rtol=1e-14)
    L, F = oracle.rescale(L, F)
    assert_allclose(L, golden["rescaled"]["L"], rtol=1e-14)
    assert_allclose(F, golden["rescaled"]["F"], rtol=1e-14)


def test_start_from_clusters(goldens):
    model, start = goldens["fit_multinom_model"], goldens["init_poisson_nmf_from_clustering"]
    X, labels = np.array(model["X"]), np.array(model["cluster"])
    L, F = oracle.from_clusters(X, labels)
    assert_allclose(L, start["L"], rtol=1e-14)
    assert_allclose(F, start["F"], rtol=1e-14)
    assert_allclose(oracle.loss(X, L, F, EPS), start["loss"][0], rtol=1e-13)


def test_multinomial_model_of_clusters(goldens):
    model = goldens["fit_multinom_model"]
    X, labels = np.array(model["X"]), np.array(model["cluster"])
    members = (labels[:, None] == np.unique(labels)).astype(float)
    means = np.maximum(X.T @ members / members.sum(axis=0), oracle.MINVAL)
    P, W, s, _ = oracle.poisson_to_multinomial(np.maximum(members, oracle.MINVAL), means)
    assert_allclose(P, model["L"], rtol=1e-13)
    assert_allclose(W, model["F"], rtol=1e-13)
    assert_allclose(s, model["s"], rtol=1e-13)


@pytest.mark.parametrize(
    ("method", "key"), [("scd", "predict_fixed_F"), ("em", "predict_fixed_F_em")]
)
def test_prediction_with_held_factors(goldens, method, key):
    golden = goldens["predict"]
    X, F = np.array(golden["X_test"]), np.array(golden["F"])
    start = np.full((len(X), F.shape[1]), 1.0 / F.shape[1])
    fit = oracle.Fit(X, start, F, method, 4, columns=[]).run(20)
    assert_allclose(fit.best.L, golden[key], rtol=1e-9, atol=1e-11)
    if method == "scd":
        assert_allclose(fit.best.F, golden["F_after_predict_fixed"], rtol=1e-9, atol=1e-11)
        P = oracle.poisson_to_multinomial(*fit.best)[0]
        assert_allclose(P, golden["predict_topic_fixed_F"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["em", "scd"])
def test_updates_of_some_rows_only(goldens, method):
    tiny_fit = goldens["tiny_fit"]
    golden = tiny_fit[f"partial_{method}"]
    fit = oracle.Fit(
        *(np.array(tiny_fit[key]) for key in ("X", "L0", "F0")),
        method,
        4,
        rows=np.array(golden["update_loadings_1based"]) - 1,
        columns=np.array(golden["update_factors_1based"]) - 1,
    ).run(golden["numiter_outer"])
    assert_allclose(fit.best.L, golden["L"], rtol=1e-12)
    assert_allclose(fit.best.F, golden["F"], rtol=1e-12)
    assert_allclose(fit.loss, golden["loss"][0], rtol=1e-12)


@pytest.mark.parametrize("method", ["em", "scd", "ccd"])
def test_empty_row_and_column(goldens, method):
    tiny_fit = goldens["tiny_fit"]
    golden = goldens["edge_empty_row2_col5"][f"{method}_sparse"]
    X = np.array(tiny_fit["X"])
    X[1], X[:, 4] = 0.0, 0.0
    inner_iter = 1 if method == "ccd" else 4
    fit = oracle.Fit(X, np.array(tiny_fit["L0"]), np.array(tiny_fit["F0"]), method, inner_iter)
    fit.run(2)
    assert_allclose(fit.best.L[1], golden["L_row2"], rtol=1e-9)
    assert_allclose(fit.best.F[4], golden["F_row5"], rtol=1e-9)
    assert_allclose([record["loglik"] for record in fit.history], golden["loglik"], rtol=1e-12)


def test_topic_score(reference_dir):
    with np.load(reference_dir / "fasttopics_topicscore_neurips_k5.npz") as golden:
        centers, V, theirs, F = (golden[k] for k in ("kmeans_centers", "V", "vertices", "F"))
    vertices = oracle.hunt_vertices(centers, 5)
    order = [int(np.argmin(np.abs(vertices - vertex).sum(axis=1))) for vertex in theirs]
    assert_array_equal(vertices[order], theirs)
    assert_allclose(oracle.factors_from_vertices(V, vertices[order]), F, rtol=1e-8, atol=1e-15)


# Against textbook facts ------------------------------------------------------------------------


def test_row_derivatives_are_those_of_the_loss(row):
    y, A, u, b = row
    g, H = oracle.row_derivatives(y, A, u, b)
    for k, step in enumerate(1e-5 * np.diag(b)):
        above, below = b + step, b - step
        size = 2.0 * step[k]
        slope = (oracle.row_loss(y, A, u, above) - oracle.row_loss(y, A, u, below)) / size
        bend = oracle.row_derivatives(y, A, u, above)[0] - oracle.row_derivatives(y, A, u, below)[0]
        assert_allclose(g[k], slope, rtol=1e-5)
        assert_allclose(H[k], bend / size, rtol=1e-5)


def test_sn_descends_where_a_full_newton_step_climbs():
    # One count and one topic: from b = 3 the full step lands on the bound b = 0, where the loss is
    # infinite; the loss is b - log b, its optimum 1.
    y, A, u, b = np.array([1.0]), np.array([[1.0]]), np.array([1.0]), np.array([3.0])
    assert oracle.ccd(y, A, u, b, 1) == 0.0
    steps = [oracle.sn(y, A, u, b, n)[0] for n in range(12)]
    assert np.all(np.diff(steps[:3]) < 0)
    losses = np.array(steps) - np.log(steps)
    assert np.all(np.diff(losses) <= 1e-15)
    assert_allclose(steps[-1], 1.0, rtol=1e-12)


def test_sn_never_raises_the_loss(row):
    rng = np.random.default_rng(1)
    y, A, u, _ = row
    for _ in range(100):
        b = np.exp(rng.normal(scale=4.0, size=A.shape[1]))
        losses = [oracle.row_loss(y, A, u, oracle.sn(y, A, u, b, n)) for n in range(4)]
        assert np.all(np.diff(losses) <= 1e-12 * np.abs(losses[0]))


@pytest.mark.parametrize("solver", [oracle.em, oracle.sn, oracle.scd, oracle.ccd, oracle.newton])
def test_every_solver_ends_at_the_optimum(row, solver):
    y, A, u, start = row
    best = oracle.solve_row(y, A, u)
    g, _ = oracle.row_derivatives(y, A, u, best)
    assert_allclose(g[best > 0], 0.0, atol=1e-11)
    assert np.all(g[best == 0] > 0)
    if solver in (oracle.scd, oracle.ccd, oracle.newton):
        start = oracle.em(y, A, u, start, 5)
    found = solver(y, A, u, start, 5000 if solver is oracle.em else 300)
    assert_allclose(found, best, rtol=1e-8, atol=1e-8)


def test_quadratic_has_its_minimum(row):
    y, A, u, b = row
    g, H = oracle.row_derivatives(y, A, u, b)
    d = oracle.minimise_quadratic(g, H, b)
    found = minimize(
        lambda d: g @ d + d @ H @ d / 2.0,
        np.zeros(4),
        jac=lambda d: g + H @ d,
        bounds=[(-b_k, None) for b_k in b],
        options={"ftol": 1e-15, "gtol": 1e-12},
    )
    assert_allclose(d, found.x, rtol=1e-6, atol=1e-8)
    assert g @ d + d @ H @ d / 2.0 <= found.fun + 1e-12


def test_prior_is_the_gamma_density(row):
    y, A, u, _ = row
    shape, rate = np.array([1.5, 3.0, 2.0, 1.2]), np.array([0.3, 1.0, 2.0, 0.0])
    best = oracle.solve_row(*oracle.with_prior(y, A, u, shape, rate))

    def minus_log_posterior(log_b):
        b = np.exp(log_b)
        return oracle.row_loss(y, A, u, b) - (shape - 1.0) @ log_b + rate @ b

    found = minimize(minus_log_posterior, np.zeros(4), options={"gtol": 1e-9})
    assert_allclose(best, np.exp(found.x), rtol=1e-5)
    augmented = oracle.with_prior(y, A, u, shape, rate)
    # EM with the prior: pseudo-counts shape - 1 above the line, the rate below it.
    b = np.array([1.0, 0.5, 2.0, 4.0])
    counts = b * (A.T @ (y / (A @ b)))
    assert_allclose(oracle.em(*augmented, b, 1), (counts + shape - 1.0) / (u + rate), rtol=1e-13)
    assert_allclose(oracle.newton(*augmented, best, 1), best, rtol=1e-9)


def test_distance_to_a_simplex():
    V = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    for point, distance in [
        ((0.5, 0.5), 0.0),
        ((2.0, 2.0), np.sqrt(2.0)),
        ((1.0, -3.0), 3.0),
        ((-3.0, -4.0), 5.0),
    ]:
        assert_allclose(oracle.simplex_distance(np.array(point), V), distance, atol=1e-12)
