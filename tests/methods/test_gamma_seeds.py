"""Seeds of a Gamma-Poisson factorization: shapes of the prior of factors, or a Dirichlet prior."""

import numpy as np
import oracle_gamma_poisson as oracle
import pytest
from numpy.testing import assert_allclose
from scipy.special import xlogy
from small_fits import StopError, X, stop_at

import nmfscale
from nmfscale import GammaPoisson

# seeds are any features, which other topics may explain
pytestmark = pytest.mark.filterwarnings("ignore::nmfscale.errors.LeftSeedsWarning")
WORDS = [f"w{j}" for j in range(X.shape[1])]
SEEDS = {"one": ["w3", "w0"], "two": ["w7"]}
HOW = {"feature_names": WORDS}
NAMED = nmfscale.as_counts(X, **HOW)
BATCH = np.arange(len(X)) % 3
DEEP = {"hierarchical": True}
SHORT = {"max_iter": 25, "tol": 0, "random_state": 0, "n_threads": 1}
PSEUDO = np.zeros((X.shape[1], 3))
for k, words in enumerate(SEEDS.values()):
    for j in map(WORDS.index, words):
        PSEUDO[j, k] = 0.2 * X[:, j].sum()


def fit(counts=X, **options):
    batch = options.pop("batch", None)
    model = GammaPoisson(3, **{"seeds": SEEDS, "seed_weight": 0.2, **SHORT, **options})
    return model.fit(counts, batch=batch, **HOW)


def bound_of(model):
    found = oracle.elbo_of(model, X)
    if not model.hierarchical:
        found += xlogy(PSEUDO, np.maximum(model.components_.T, 1e-300)).sum()
    return found


@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
def test_plain_iterations_are_those_of_the_oracle(options, small_blocks):
    rng = np.random.default_rng(1)
    gamma, start = rng.gamma(1.0, size=(len(X), 3)) + 0.1, rng.gamma(1.0, size=(3, 60)) + 0.4
    model = GammaPoisson(
        3, **options, seeds=SEEDS, seed_weight=0.2, extrapolate=False,
        **SHORT | {"max_iter": 4},
    ).fit(X, components=start + PSEUDO.T, loadings=gamma, **HOW)  # fmt: skip
    topics = start.T + PSEUDO
    if model.hierarchical:
        a, c, of_xi, of_eta = oracle.priors_of(model)
        assert_allclose(c, 0.3 + PSEUDO)
        (n, m), sizes = X.shape, start.sum(axis=1) - 0.3 * X.shape[1]
        prior_means = [model.mean_rates_[0] / (n * a), model.mean_rates_[1] / (m * 0.3)]
        totals = np.sqrt(sizes / prior_means[0] * prior_means[1])
        for _ in range(4):
            gamma, topics, totals = oracle.step_deep(X, gamma, topics, totals, a, c, of_xi, of_eta)
        assert_allclose(model.loadings_totals_, totals, rtol=1e-9)
    else:
        topics /= topics.sum(axis=0)
        prior = model.shape_loadings_, model.rate_loadings_
        for _ in range(4):
            gamma, topics = oracle.step_plain(X, gamma, topics, *prior, PSEUDO)
    assert_allclose(model.components_shape_, topics.T, rtol=1e-9, atol=1e-28)
    assert_allclose(model.elbo_, bound_of(model), rtol=1e-11)


@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
@pytest.mark.parametrize("extrapolate", [True, False])
@pytest.mark.parametrize(
    "more", [{}, {"init": "random"}, {"batch": BATCH}], ids=["poisson", "random", "batches"]
)
def test_the_bound_never_falls(options, extrapolate, more, small_blocks):
    model = fit(**options, extrapolate=extrapolate, **more)
    assert (np.diff(model.history_["elbo"]) >= -1e-11 * abs(model.elbo_)).all()
    if "batch" not in more:
        assert_allclose(model.elbo_, bound_of(model), rtol=1e-10)
    elif not model.hierarchical:
        assert_allclose(model.components_.sum(axis=1), 1, rtol=1e-9)


@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
def test_newton_steps_and_momentum_end_where_plain_steps_do(options):
    start = {"seeds": SEEDS, "seed_weight": 0.2, "random_state": 0, "n_threads": 1}
    found, plain = (
        GammaPoisson(3, **options, **start, max_iter=n, tol=tol, extrapolate=extrapolate).fit(
            X, **HOW
        )
        for n, tol, extrapolate in ((1000, 1e-7, True), (1000, 0, False))
    )
    assert found.converged_ and found.elbo_ > plain.elbo_ - 1e-3
    of_found, of_plain = (
        fit.components_ / fit.components_.sum(axis=1, keepdims=True) for fit in (found, plain)
    )
    assert_allclose(of_found, of_plain, atol=1e-3)  # of shares: the scale converges slowly


def test_of_the_hierarchical_posterior_nothing_moves():
    """Transform and score use the same prior as the fit."""
    model = fit(**DEEP, max_iter=400, mean_change_tol=1e-9, max_sample_update_iter=5000)
    assert_allclose(model.transform(NAMED), model.loadings_, rtol=1e-3, atol=1e-4)
    a, c, of_xi, of_eta = oracle.priors_of(model)
    columns = bound_of(model) - model.score(NAMED) * X.sum()
    rates = model.feature_rates_[:, None] + model.loadings_totals_
    goals = of_eta[0] + c.sum(axis=1)
    q_eta = goals, goals / model.feature_rates_
    mean, log_mean = (each[:, None] for each in oracle.moments(*q_eta))
    expected = oracle.minus_divergence(model.components_shape_.T, rates, c, mean, log_mean).sum()
    expected += oracle.minus_divergence(*q_eta, *of_eta).sum()
    assert_allclose(columns, expected, rtol=1e-3)
    assert a.shape == (3,)


@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
def test_the_same_bits_from_a_file_saved_and_resumed(options, tmp_path):
    store = nmfscale.write_store(NAMED, tmp_path / "x.nmf")
    model, folder = fit(**options, max_iter=6), tmp_path / "states"
    again = GammaPoisson(**model.get_params()).set_params(callback=stop_at(3))
    with pytest.raises(StopError):
        again.fit(store, checkpoint=folder, checkpoint_every=0)
    again.set_params(callback=None)
    with pytest.raises(ValueError, match="different"):
        again.set_params(seed_weight=0.5).fit(store, checkpoint=folder, resume=True)
    again.set_params(seed_weight=0.2).fit(store, checkpoint=folder, resume=True)
    np.testing.assert_array_equal(again.components_shape_, model.components_shape_)
    again.save(tmp_path / "model.h5")
    loaded = nmfscale.load(tmp_path / "model.h5")
    assert loaded.topic_names_.tolist() == ["one", "two", "topic 2"] and loaded.seeds == SEEDS
    np.testing.assert_array_equal(loaded.transform(NAMED), model.transform(NAMED))
    moved = loaded.reorder_topics([2, 1, 0])
    assert_allclose(moved.transform(NAMED), model.transform(NAMED)[:, ::-1], rtol=1e-6)
