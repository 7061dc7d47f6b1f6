"""The package against stored results of fastTopics 0.7-24.

fastTopics adds 1e-8 to expected counts inside logarithms and ratios. Where it does so in what is
compared, the same is added here, exactly, to our side (`Guarded`); tolerances stay those of
rounding. Where it does so on the way, a third program stands between, on a tiny example: the
oracle's loop equals fastTopics with the guards (test_oracle.py) and the package without them.
"""

import json

import numpy as np
import oracle
import pytest
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from oracle import FASTTOPICS_EPS as EPS
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array, load_npz
from scipy.special import gammaln

import nmfscale
from nmfscale.methods.projection.transform import project_rows
from nmfscale.methods.starts.initialize import initialize
from nmfscale.methods.starts.topic_score import hunt_vertices

DATA = {"neurips": 10, "pbmc_facs": 6}
ONE_AT_NIGHT = ["neurips", pytest.param("pbmc_facs", marks=pytest.mark.nightly)]
SOLVERS = {"em": 4, "scd": 4, "ccd": 1}


class Guarded:
    """What fastTopics reports of (X, L, F), made from our values and the effect of its guard."""

    def __init__(self, X, L, F):
        self.X, self.L, self.F = csr_array(X, dtype=float), np.asarray(L), np.asarray(F)
        rows = np.repeat(np.arange(self.X.shape[0]), np.diff(self.X.indptr))
        self.rows, self.mu = rows, np.sum(self.L[rows] * self.F[self.X.indices], axis=1)
        self.of_log = np.bincount(
            rows, self.X.data * np.log1p(EPS / self.mu), minlength=self.X.shape[0]
        )

    def loglik(self):
        return nmfscale.likelihood.loglik_poisson(self.X, self.L, self.F) + self.of_log

    def loglik_multinomial(self):
        return nmfscale.likelihood.loglik_multinomial(self.X, self.L, self.F) + self.of_log

    def deviance(self):
        return nmfscale.likelihood.deviance_poisson(self.X, self.L, self.F) - 2.0 * self.of_log

    def kkt(self):
        of_L, of_F = nmfscale.likelihood.kkt_residuals(self.X, self.L, self.F)
        ratio = self.X.copy()
        ratio.data = self.X.data * EPS / (self.mu * (self.mu + EPS))
        return of_L + self.L * (ratio @ self.F), of_F + self.F * (ratio.T @ self.L)

    def largest_kkt(self):
        return max(np.abs(residual).max() for residual in self.kkt())


@pytest.fixture(scope="module")
def goldens(reference_dir):
    return json.loads((reference_dir / "fasttopics_small_goldens.json").read_text())["goldens"]


@pytest.fixture(scope="module")
def trajectories(reference_dir):
    return json.loads((reference_dir / "fasttopics_trajectories.json").read_text())["datasets"]


@pytest.fixture(scope="module")
def load(data_dir, reference_dir):
    """Read counts, and a pair of factors, by name."""

    def load(name, state):
        with np.load(reference_dir / f"{state}_{name}_k{DATA[name]}.npz") as factors:
            return load_npz(data_dir / f"{name}.npz"), factors["L"], factors["F"]

    return load


def fit(X, L, F, solver, n_iter, *, extrapolate=False, inner_iter=None):
    """Run exactly n_iter outer iterations from given factors."""
    model = nmfscale.PoissonNMF(
        L.shape[1],
        solver=solver,
        inner_iter=inner_iter or SOLVERS[solver],
        extrapolate=extrapolate,
        max_iter=n_iter,
        tol=0,
    ).fit(X, loadings=L, components=F.T)
    assert model.n_iter_ == len(model.history_) == n_iter
    return model


def guarded_logliks(X, L, F, solver, n_iter, **options):
    """Log-likelihood, as fastTopics reports it, after each of n_iter iterations."""
    models = [fit(X, L, F, solver, t, **options) for t in range(1, n_iter + 1)]
    history = models[-1].history_["loglik"]
    # The last record of a fit is that of the factors handed out, exact zeros put back.
    assert_allclose(history, [model.history_["loglik"][-1] for model in models], rtol=1e-6)
    ends = [Guarded(X, model.loadings_, model.components_.T) for model in models]
    found = np.array([end.loglik().sum() for end in ends])
    plain = found - [end.of_log.sum() for end in ends]
    assert_allclose(history, plain, rtol=1e-6, err_msg="history_ and factors disagree")
    return found


# Ten iterations --------------------------------------------------------------------------------


# fastTopics guards its ratios with 1e-8 and its steps with h + 1e-8, we do not.  Where steps are
# small that is worth less than 1e-8 of the log-likelihood; extrapolation and the wild first
# iterations from random factors amplify it.  test_oracle.py has the guards and reproduces its
# trajectories to 1e-10; test_trajectory_is_the_exact_one compares us with the oracle without them.
GUARDS_TINY = {("em", True): 1e-7, ("scd", True): 1e-7, ("ccd", True): 2e-3}
GUARDS_RANDOM_START = {"em": 1e-8, "scd": 1e-4, "ccd": 1e-4, "em_extrapolate": 1e-3,
                       "scd_extrapolate": 2e-2, "ccd_extrapolate": 2e-2}  # fmt: skip
GUARDS_EM50 = {
    "neurips": {"scd_extrapolate": 1e-6},
    "pbmc_facs": {"scd": 1e-6, "scd_extrapolate": 1e-6},
}


@pytest.mark.parametrize("extrapolate", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_tiny_trajectory(goldens, solver, extrapolate):
    tiny = goldens["tiny_fit"]
    run = tiny["runs"][f"{solver}_extrapolate_sparse" if extrapolate else f"{solver}_sparse"]
    start = (np.array(tiny[key]) for key in ("X", "L0", "F0"))
    found = guarded_logliks(*start, solver, 10, extrapolate=extrapolate)
    rtol = GUARDS_TINY.get((solver, extrapolate), 1e-8)
    assert_allclose(found, run["progress"]["loglik"][:10], rtol=rtol)


@pytest.mark.parametrize("extrapolate", [False, True])
@pytest.mark.parametrize("solver", [*SOLVERS, "sn"])
def test_trajectory_is_the_exact_one(goldens, solver, extrapolate):
    # The same bookkeeping without the guard: all 30 iterations, past the plain step at 20.
    X, L, F = (np.array(goldens["tiny_fit"][key]) for key in ("X", "L0", "F0"))
    inner_iter = SOLVERS.get(solver, 4)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = oracle.Fit(X, L, F, solver, inner_iter, extrapolate=extrapolate, eps=0.0).run(30)
    found = fit(X, L, F, solver, 30, extrapolate=extrapolate, inner_iter=inner_iter)
    assert_allclose(found.history_["loglik"], [r["loglik"] for r in exact.history], rtol=2e-9)
    for field in ("loglik_multinomial", "deviance"):
        expected = [record[field] for record in exact.history]
        assert_allclose(found.history_[field], expected, rtol=2e-8)


@pytest.mark.nightly
@pytest.mark.parametrize("run", GUARDS_RANDOM_START)
@pytest.mark.parametrize("name", ONE_AT_NIGHT)
def test_end_of_a_trajectory_from_a_random_start(trajectories, load, name, run):
    progress = trajectories[name]["runs"][run]["progress"]
    X, L, F = load(name, "init")
    solver, _, extrapolate = run.partition("_")
    model = fit(X, L, F, solver, 10, extrapolate=bool(extrapolate))
    end = Guarded(X, model.loadings_, model.components_.T)
    rtol = GUARDS_RANDOM_START[run]
    assert_allclose(end.loglik().sum(), progress["loglik"][-1], rtol=rtol)
    assert_allclose(end.loglik_multinomial().sum(), progress["loglik.multinom"][-1], rtol=rtol)
    assert_allclose(end.deviance().sum(), progress["dev"][-1], rtol=rtol)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ONE_AT_NIGHT)
def test_trajectory_with_single_inner_steps(trajectories, load, name):
    progress = trajectories[name]["runs"]["em_numiter1"]["progress"]
    found = guarded_logliks(*load(name, "init"), "em", 10, inner_iter=1)
    assert_allclose(found, progress["loglik"], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["scd_extrapolate", *at_night("em", "scd", "em_extrapolate")])
@pytest.mark.parametrize("name", ONE_AT_NIGHT)
def test_trajectory_from_fifty_em_iterations(reference_dir, load, name, run):
    # Away from the wild first iterations the guard hardly moves the factors.
    golden = json.loads((reference_dir / f"fasttopics_timing_{name}.json").read_text())["runs"]
    X, L, F = load(name, "state_em50")
    solver, _, extrapolate = run.partition("_")
    model = fit(X, L, F, solver, 10, extrapolate=bool(extrapolate))
    end = Guarded(X, model.loadings_, model.components_.T)
    rtol = GUARDS_EM50[name].get(run, 1e-8)
    assert_allclose(end.loglik().sum(), golden[run]["loglik"][9], rtol=rtol)


# Values ----------------------------------------------------------------------------------------


def test_likelihoods(goldens):
    golden = goldens["tiny"]
    ours = Guarded(*(golden[key] for key in "XLF"))
    assert_allclose(ours.loglik(), golden["loglik_poisson_nmf"], rtol=1e-13)
    assert_allclose(ours.loglik_multinomial(), golden["loglik_multinom_topic_model"], rtol=1e-13)
    assert_allclose(ours.deviance(), golden["deviance_poisson_nmf"], rtol=1e-13)


def test_kkt(goldens):
    golden = goldens["tiny"]
    of_L, of_F = Guarded(*(golden[key] for key in "XLF")).kkt()
    assert_allclose(of_L, golden["kkt_L"], rtol=1e-13, atol=1e-14)
    assert_allclose(of_F, golden["kkt_F"], rtol=1e-13, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["scd_extrapolate", *at_night("em", "scd")])
@pytest.mark.parametrize("name", ONE_AT_NIGHT)
def test_values_of_a_real_fit(trajectories, reference_dir, load, name, run):
    progress = trajectories[name]["runs"][run]["progress"]
    X, _, _ = load(name, "init")
    with np.load(reference_dir / f"state10_{name}_k{DATA[name]}_{run}.npz") as state:
        ours = Guarded(X, state["L"], state["F"])
    assert_allclose(ours.loglik().sum(), progress["loglik"][-1], rtol=1e-12)
    assert_allclose(ours.loglik_multinomial().sum(), progress["loglik.multinom"][-1], rtol=1e-12)
    assert_allclose(ours.deviance().sum(), progress["dev"][-1], rtol=1e-12)
    assert_allclose(ours.largest_kkt(), progress["res"][-1], rtol=1e-9)


@pytest.mark.parametrize("name", DATA)
def test_best_likelihood_known(reference_dir, load, name):
    golden = json.loads((reference_dir / f"fasttopics_timing_{name}.json").read_text())
    best = Guarded(*load(name, "best")).loglik().sum()
    assert_allclose(best, golden["reference_optimum"]["loglik"], rtol=1e-12)


def test_likelihood_of_the_start(trajectories, load):
    X, L, F = load("neurips", "init")
    start = trajectories["neurips"]["initial"]
    assert_allclose(Guarded(X, L, F).loglik().sum(), start["loglik"], rtol=1e-12)
    assert_allclose(Guarded(X, L, F).largest_kkt(), start["res_raw"], rtol=1e-9)
    constant = -gammaln(X.data + 1.0).sum()
    assert_allclose(constant, start["loglik_const"], rtol=1e-12)


# Prediction ------------------------------------------------------------------------------------


def test_prediction_for_new_samples(goldens):
    golden = goldens["predict"]
    X, X_new, F, L = (np.array(golden[key]) for key in ("X_train", "X_test", "F", "L_train"))
    model = fit(X, L, F, "scd", 1)
    # The stored F is itself a fit to X; whatever the one iteration did to it is undone.
    model.components_ = np.ascontiguousarray(F.T)
    kept = model.components_.copy()
    found = model.transform(X_new)
    assert_array_equal(model.components_, kept)
    # fastTopics rescales as it goes; its L belongs to a rescaled F.
    scale = np.sum(golden["F_after_predict_fixed"], axis=0) / F.sum(axis=0)
    expected = np.array(golden["predict_fixed_F_numiter500"]) * scale
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    proportions = oracle.poisson_to_multinomial(found, F)[0]
    assert_allclose(proportions, golden["predict_topic_fixed_F"], rtol=1e-6, atol=1e-8)


# Topic-SCORE -----------------------------------------------------------------------------------


def matched_correlations(found, expected):
    """Correlations of the columns of two matrices, matched to make their sum largest."""
    K = expected.shape[1]
    correlation = np.corrcoef(found.T, expected.T)[:K, K:]
    return correlation[linear_sum_assignment(-correlation)]


def test_vertex_hunting(reference_dir):
    with np.load(reference_dir / "fasttopics_topicscore_neurips_k5.npz") as golden:
        vertices = hunt_vertices(golden["kmeans_centers"], 5)
        expected = golden["vertices"]
    order = [int(np.argmin(np.abs(vertices - vertex).sum(axis=1))) for vertex in expected]
    assert sorted(order) == list(range(5))
    assert_allclose(vertices[order], expected, rtol=1e-12)


def test_the_start_by_topic_score_is_as_good_as_theirs(reference_dir, data_dir):
    counts = nmfscale.as_counts(load_npz(data_dir / "neurips.npz"))
    L, F = initialize(
        counts, 5, "topic-score", random_state=0, fit_rows=lambda F, L: project_rows(counts, F)
    )
    story = json.loads((reference_dir / "fasttopics_topicscore_neurips_k5.json").read_text())
    loglik = nmfscale.likelihood.loglik_poisson(load_npz(data_dir / "neurips.npz"), L, F).sum()
    assert_allclose(loglik, story["loglik_topicscore_init"], rtol=0.02)
