"""The noisy topic model: its bound, that it never falls, its noise, what is held, recovery."""

from itertools import product

import numpy as np
import oracle_noisy as oracle
import pytest
from contract import of_noisy_topics
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.optimize import linear_sum_assignment
from scipy.special import psi, roots_genlaguerre, xlogy
from scipy.stats import gamma, multinomial, nbinom, poisson
from sklearn.metrics import roc_auc_score
from small_fits import X

import nmfscale
from nmfscale.methods.variational.gamma_noise import LEAST_THETA, MOST_THETA, best_theta
from nmfscale.methods.variational.mixture_noise import GRID, MixtureNoise
from nmfscale.methods.variational.noisy_topics import NoisyTopics


def fit(counts=X, n_components=3, given=(), model=nmfscale.NoisyTopicModel, **options):
    options = {"max_iter": 30, "tol": 0, "random_state": 0, "n_threads": 1} | options
    options = {"noise_prior": "none"} | options
    return model(n_components, **options).fit(counts, **dict(given))


def elbo_of(model, counts):
    if model.noise_shares_ is not None:
        return of_noisy_topics(model, counts)
    pairs = (model.theta_.T, model.topic_counts_.T, model.expected_counts_.T)
    return oracle.elbo(counts, model.loadings_, model.mu_, *pairs)


def start_of(seed, counts=X, n_components=3):
    rng = np.random.default_rng(seed)
    L = rng.gamma(1.0, size=(len(counts), n_components)) + 0.1
    return {"loadings": L, "mu": rng.dirichlet(np.ones(counts.shape[1])) + 1e-3}


# The bound ------------------------------------------------------------------------------------


def splits(x, K):
    """All ways to make x of K counts."""
    return [z for z in product(range(x + 1), repeat=K) if sum(z) == x]


def test_bound_by_integration():
    """For any q: E_q of log p - log q, the counts of topics enumerated, u by quadrature."""
    rng = np.random.default_rng(0)
    counts, K = np.array([[2, 1], [0, 3]]), 2
    L, mu = rng.gamma(2.0, size=(2, K)), np.array([0.4, 1.3])
    theta, n, m = (rng.gamma(2.0, size=(2, K)) for _ in range(3))
    pi, expected = rng.dirichlet(np.ones(K), size=(2, 2)), 0.0
    means, logs = np.empty((2, K)), np.empty((2, K))
    for j, k in product(range(2), range(K)):
        prior = gamma(theta[j, k], scale=1 / theta[j, k])
        q = gamma(theta[j, k] + n[j, k], scale=1 / (theta[j, k] + m[j, k]))

        def integrate(function, q=q):
            return quad(lambda u: q.pdf(u) * function(u), 0, np.inf, epsabs=1e-13)[0]

        means[j, k], logs[j, k] = integrate(lambda u: u), integrate(np.log)
        expected += integrate(lambda u, p=prior, q=q: p.logpdf(u) - q.logpdf(u))
    for i, j in product(range(2), range(2)):
        for z in splits(counts[i, j], K):
            rates = L[i] * mu[j]
            share = multinomial(counts[i, j], pi[i, j])
            # poisson.logpmf at rate u * rates, averaged over u
            log_p = poisson.logpmf(z, rates) + np.array(z) * logs[j] + rates * (1 - means[j])
            expected += share.pmf(z) * (log_p.sum() - share.logpmf(z))
    assert_allclose(oracle.elbo(counts, L, mu, theta, n, m, pi), expected, rtol=1e-9)
    best = oracle.elbo(counts, L, mu, theta, n, m)
    evidence = 0.0
    for j in range(2):
        (u, of_u), (v, of_v) = (roots_genlaguerre(60, each - 1) for each in theta[j])
        rates = [[mu[j] * L @ [a / theta[j, 0], b / theta[j, 1]] for b in v] for a in u]
        likelihood = poisson.pmf(counts[:, j], rates).prod(axis=2)
        evidence += np.log(of_u @ likelihood @ of_v / of_u.sum() / of_v.sum())
    assert expected < best < evidence


def test_bound_of_one_topic_is_the_evidence():
    """Counts of a feature are then a negative binomial, spread over the samples."""
    given = {"loadings": X.sum(axis=1, keepdims=True) * 1.5, "mu": start_of(1)["mu"],
             "fixed_samples": np.ones(len(X), bool),
             "fixed_features": np.ones(X.shape[1], bool)}  # fmt: skip
    model = fit(X, 1, given)
    theta, m = model.theta_[0], model.expected_counts_[0]
    assert_allclose(m, given["mu"] * given["loadings"].sum())
    assert ((theta > LEAST_THETA) & (theta < MOST_THETA)).any()
    evidence = nbinom.logpmf(X.sum(axis=0), theta, theta / (theta + m)).sum()
    spread = given["loadings"][:, 0] / given["loadings"].sum()
    evidence += sum(multinomial.logpmf(column, column.sum(), spread) for column in X.T)
    assert_allclose(model.elbo_, evidence, rtol=1e-10)


# Noise ----------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(n=st.floats(0, 500), m=st.floats(1e-3, 500), start=st.sampled_from([1e-4, 0.3, 1e4]))
def test_theta_is_the_best_and_solves_its_equation(n, m, start):
    n, m = np.array([n]), np.array([m])
    (theta,) = best_theta(n, m, np.array([start]), 1)
    tried = np.append(np.geomspace(LEAST_THETA, MOST_THETA, 200), oracle.best_theta(n, m))
    best = oracle.noise_value(tried, n, m).max()
    assert oracle.noise_value(theta, n, m)[0] >= best - 1e-9 * max(1.0, abs(best))
    if LEAST_THETA < theta < MOST_THETA:
        mean, log = oracle.expectations(theta, n, m)
        assert_allclose(1 + np.log(theta) - psi(theta) + log - mean, 0, atol=1e-7 / theta)


def test_theta_at_its_bounds():
    n, m = np.array([0.0, 0.0, 5.0, 30.0, 900.0]), np.array([4.0, 0.0, 5.0, 33.0, 4.0])
    found = best_theta(n, m, np.ones(5), 1)
    assert_allclose(found[:4], [LEAST_THETA, MOST_THETA, MOST_THETA, MOST_THETA])
    assert LEAST_THETA < found[4] < 1


# The mixture prior -----------------------------------------------------------------------------


def test_mixture_is_that_of_the_oracle():
    rng = np.random.default_rng(0)
    n, m = rng.gamma(1.0, 9.0, size=(2, 7, 3))
    n[0] = 0
    prior = rng.dirichlet(np.ones(len(GRID)))
    weights, mean, logs = oracle.mixture(GRID, prior, n, m)
    noise = MixtureNoise(1)
    found = noise.posterior(prior, n, m)
    assert_allclose(found.mean, mean, rtol=1e-9)
    assert_allclose(found.log, logs, rtol=1e-9)
    pairs = noise.of_pairs(prior, n, m)
    assert_allclose(pairs["no_noise"], weights[0], rtol=1e-7, atol=1e-12)
    assert_allclose(1 / pairs["theta"], np.tensordot(1 / GRID, weights, 1), rtol=1e-9)
    assert_allclose(noise.update(prior, n, m)[1], mean, rtol=1e-9)


def test_shares_of_the_mixture_have_the_highest_likelihood():
    rng = np.random.default_rng(1)
    m = np.full((4000, 1), 30.0)
    u = np.where(rng.random(m.shape) < 0.3, rng.gamma(1.0, size=m.shape), 1.0)
    n, noise = rng.poisson(m * u).astype(float), MixtureNoise(1)
    shares = noise.start(*m.shape)
    for _ in range(60):
        shares = noise.update(shares, n, m)[0]
    # at the optimum of mixture proportions the mean ratio of each density is 1, or less for 0
    each = np.array([nbinom.pmf(n, t, t / (t + m)) for t in GRID]).reshape(len(GRID), -1)
    ratios = (each / (shares @ each)).mean(axis=1)
    assert ratios.max() < 1.001
    assert_allclose(ratios[shares > 0.01], 1, atol=1e-3)
    assert abs(shares[:3].sum() - 0.7) < 0.05 and shares[4:7].sum() > 0.2


def test_a_mixture_ranks_pairs_better_than_free_parameters():
    counts, truth = nmfscale.datasets.simulate_noisy_topics(600, 300, 3, random_state=0)
    found = {}
    for prior in ("mixture", "none"):
        model = fit(counts, max_iter=60, noise_prior=prior)
        topics, _ = match_topics(model.loadings_, truth.L)
        found[prior] = roc_auc_score(truth.noisy.ravel(), -model.theta_[topics].T.ravel())
    assert found["mixture"] > found["none"] + 0.01
    assert fit(counts, noise_prior="mixture").local_fdr_.shape == (3, 300)


# Updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True])
def test_plain_iterations_are_those_of_the_oracle(held, small_blocks):
    start, mask = start_of(1), np.arange(len(X)) % 3 == 0
    features = np.arange(X.shape[1]) % 4 == 0
    given = start | ({"fixed_samples": mask, "fixed_features": features} if held else {})
    model = fit(given=given, max_iter=4, extrapolate=False)
    L, mu, totals = start["loadings"], start["mu"], start["loadings"].sum(axis=0)
    n, theta, bounds = np.outer(mu, totals), np.ones((X.shape[1], 3)), []
    for _ in range(4):
        L, mu, theta, n, totals = oracle.step(
            X, L, mu, theta, n, totals, mask & held, features & held
        )
        bounds.append(oracle.elbo(X, L, mu, theta, n, np.outer(mu, totals)))
    scale = 1.0 if held else mu.sum()
    assert_allclose(model.loadings_, L * scale, rtol=1e-6)
    assert_allclose(model.mu_, mu / scale, rtol=1e-6)
    assert_allclose(model.theta_.T, theta, rtol=1e-5)
    assert_allclose(model.topic_counts_.T, n, rtol=1e-6, atol=1e-9)
    assert_allclose(model.history_["elbo"], bounds, rtol=1e-9)
    mean, _ = oracle.expectations(theta, n, np.outer(mu, totals))
    assert_allclose(model.components_.T, mu[:, None] * mean / scale, rtol=1e-6)
    if held:
        assert model.loadings_[mask].tobytes() == start["loadings"][mask].tobytes()
        assert model.mu_[features].tobytes() == start["mu"][features].tobytes()


class Noted(NoisyTopics):
    """Notes what every point was worth."""

    bounds: list

    def look(self):
        seen = super().look()
        self.bounds.append(seen["elbo"])
        return seen


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000), n_components=st.integers(1, 5), extrapolate=st.booleans(),
    init=st.sampled_from(["random", "poisson-nmf"]), held=st.booleans(), start=st.booleans(),
    noise_prior=st.sampled_from(["mixture", "none"]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_never_falls(seed, n_components, extrapolate, init, held, start, noise_prior):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.3, size=(12, 9)) * 3)
    noted = type("Noted", (Noted,), {"bounds": []})
    estimator = type("Estimator", (nmfscale.NoisyTopicModel,), {"method_class": noted})
    given = start_of(seed, counts, n_components) if held or start else {}
    if held:
        given |= {"fixed_samples": np.arange(12) < 5, "fixed_features": np.arange(9) < 2}
    model = fit(
        counts, n_components, given, estimator, extrapolate=extrapolate, init=init,
        random_state=seed, noise_prior=noise_prior,
    )  # fmt: skip
    least = -1e-12 * abs(model.elbo_) - 1e-8
    assert np.all(np.diff(model.history_["elbo"] if extrapolate else noted.bounds) >= least)
    assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-9, atol=1e-7)
    assert model.elbo_ == model.history_["elbo"][-1]
    assert held or np.isclose(model.mu_.sum(), 1) or not counts.any()


def test_momentum_gets_further():
    plain, ahead = fit(extrapolate=False), fit()
    assert ahead.elbo_ > plain.elbo_
    assert ahead.history_["momentum"].max() > 0.5 and not plain.history_["momentum"].any()


class RunsAway(NoisyTopics):
    """With far too much momentum."""

    def momentum_of(self, count):
        return 30.0 if count > 1 else 0.0


class RunawayModel(nmfscale.NoisyTopicModel):
    method_class = RunsAway


@pytest.mark.parametrize("noise_prior", ["mixture", "none"])
def test_goes_back_to_the_best(noise_prior):
    """Momentum that runs away costs iterations, not the bound; theta stays within its bounds."""
    model = fit(model=RunawayModel, max_iter=60, noise_prior=noise_prior)
    assert np.all(np.diff(model.history_["elbo"]) >= 0)
    assert_allclose(model.elbo_, elbo_of(model, X), rtol=1e-10)
    assert model.theta_.min() >= LEAST_THETA and model.theta_.max() <= MOST_THETA
    assert model.history_["momentum"].max() > 1


# What is given --------------------------------------------------------------------------------


def test_what_loadings_gain_in_scale_means_lose():
    start = start_of(2)
    one = fit(given=start)
    other = fit(given={"loadings": start["loadings"] * 8, "mu": start["mu"] / 8})
    assert_allclose(other.history_["elbo"], one.history_["elbo"], rtol=1e-10)
    assert_allclose(other.loadings_, one.loadings_, rtol=1e-6)
    assert_allclose(other.mu_, one.mu_, rtol=1e-8)


def test_empty_rows_and_columns():
    counts = X.copy()
    counts[5], counts[:, 9] = 0, 0
    model = fit(counts)
    assert not model.loadings_[5].any() and model.mu_[9] == 0
    assert_allclose(model.theta_[:, 9], MOST_THETA)
    assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-10)
    assert not fit(np.zeros((20, 8))).loadings_.any()


def test_more_topics_than_rank():
    counts = np.outer(np.arange(1, 13), [1, 2, 3, 4])
    model = fit(counts, 4)
    assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-10)


def test_what_is_held_stays_held_in_a_fit_that_is_resumed(tmp_path, small_blocks):
    given = start_of(3) | {"fixed_samples": np.arange(len(X)) % 2 == 0,
                           "fixed_features": np.arange(X.shape[1]) % 2 == 0}  # fmt: skip
    whole, state = fit(given=given, max_iter=12), {"checkpoint": tmp_path, "checkpoint_every": 0}
    fit(given=given | state, max_iter=5)
    resumed = fit(given=given | state | {"resume": True}, max_iter=12)
    for name in ("loadings_", "mu_", "theta_", "topic_counts_"):
        assert getattr(resumed, name).tobytes() == getattr(whole, name).tobytes()
    other = given | {"loadings": given["loadings"] + 1, "resume": True}
    with pytest.raises(ValueError, match="start"):
        fit(given=other | state, max_iter=12)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"fixed_samples": np.ones(len(X), bool)}, "pass loadings= to fit"),
        ({"fixed_features": np.ones(X.shape[1], bool)}, "pass mu= to fit"),
        ({"loadings": np.ones((3, 3))}, "loadings has shape"),
        ({"loadings": np.zeros((len(X), 3))}, "loadings: all are 0"),
        ({"loadings": -np.ones((len(X), 3))}, "non-negative"),
        ({"mu": np.zeros(X.shape[1])}, r"mu\[0\] is 0"),
        ({"mu": np.full(X.shape[1], np.nan)}, "finite"),
    ],
)
def test_what_cannot_be_given(given, match):
    with pytest.raises(ValueError, match=match):
        fit(given=given)


# New samples ----------------------------------------------------------------------------------


def test_transform_and_score_hold_the_noise():
    """Loadings meet the conditions of an optimum, and score is the bound of the samples."""
    model = fit(max_iter=40)
    L = model.transform(X)
    pairs = model.theta_.T, model.topic_counts_.T, model.expected_counts_.T
    mean, logs = oracle.expectations(*pairs)
    design, sizes = model.mu_[:, None] * np.exp(logs), (model.mu_[:, None] * mean).sum(axis=0)
    rates = L @ design.T
    slope = np.divide(X, rates, where=X > 0, out=np.zeros(X.shape)) @ design - sizes
    assert np.abs(L * slope).max() < 1e-6 * X.sum(axis=1).max()
    assert slope.max() < 1e-2
    bound = xlogy(X, rates / (L @ sizes)[:, None]).sum()
    assert_allclose(model.score(X) * X.sum(), bound, rtol=1e-8)
    # the same bound as the fit's, but for terms of the noise and the sizes of samples
    assert_allclose(L @ sizes, X.sum(axis=1), rtol=1e-6)
    assert oracle.elbo(X, L, model.mu_, *pairs) >= model.elbo_ - 1e-8 * abs(model.elbo_)


# Recovery -------------------------------------------------------------------------------------


def match_topics(found, truth):
    """Return which of the found topics each true one is, by their loadings."""
    K = truth.shape[1]
    near = np.corrcoef(truth.T, found.T)[:K, K:]
    _, best = linear_sum_assignment(-near)
    return best, near[np.arange(K), best]


def test_finds_noisy_pairs():
    counts, truth = nmfscale.datasets.simulate_noisy_topics(600, 300, 3, random_state=0)
    model = fit(counts, max_iter=100)
    topics, near = match_topics(model.loadings_, truth.L)
    assert near.min() > 0.9
    assert roc_auc_score(truth.noisy.ravel(), -model.theta_[topics].T.ravel()) > 0.8


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:NoisyTopicModel has not converged after 500")
def test_finds_noisy_pairs_of_many_cells():
    """Areas under the curve, theta ranked, with loadings and means known, and all estimated."""
    counts, truth = nmfscale.datasets.simulate_noisy_topics(5000, 10000, 5, random_state=0)
    held = {"loadings": truth.L, "mu": truth.mu, "fixed_samples": np.ones(5000, bool),
            "fixed_features": np.ones(10000, bool)}  # fmt: skip
    known = nmfscale.NoisyTopicModel(5, noise_prior="none").fit(counts, **held)
    assert roc_auc_score(truth.noisy.ravel(), -known.theta_.T.ravel()) >= 0.90
    model = nmfscale.NoisyTopicModel(5, noise_prior="none", random_state=0).fit(counts)
    topics, near = match_topics(model.loadings_, truth.L)
    assert near.min() > 0.97
    assert roc_auc_score(truth.noisy.ravel(), -model.theta_[topics].T.ravel()) >= 0.87
