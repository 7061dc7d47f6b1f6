"""Gamma-Poisson with efficiencies of features in batches, and features that were not measured."""

import numpy as np
import oracle_gamma_poisson as oracle
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from scipy.special import gammaln

import nmfscale
from nmfscale import GammaPoisson

N, M, K = 60, 20, 3
RNG = np.random.default_rng(0)
BATCH = np.arange(N) // 2 % 3
EFFECTS = np.exp(RNG.normal(0, 0.5, (3, M)))
X = RNG.poisson(EFFECTS[BATCH] * (RNG.gamma(0.4, 20, (N, K)) @ RNG.gamma(0.4, 1, (M, K)).T))
PANEL = np.arange(N) % 2
THERE = RNG.random((2, M)) < 0.8
MEASURED = {"measured": THERE, "panel": PANEL}
DEEP = {"hierarchical": True}
SHORT = {"max_iter": 12, "tol": 0, "random_state": 0}
ENDS_EARLY = pytest.mark.filterwarnings("ignore:GammaPoisson has not converged")


def bound(counts, theta, rates, beta, log_beta, batch, shape, there):
    """Return the terms of counts in the bound, with the posterior of efficiencies at its best."""
    log_theta = oracle.moments(theta * rates, rates)[1]
    words = oracle.of_counts(counts, 0 * theta, log_theta, beta, log_beta)
    mu = theta @ beta.T * there
    for b in np.unique(batch):
        T, expected = (A[batch == b].sum(axis=0) for A in (counts, mu))
        if not np.isfinite(shape):
            words -= expected.sum()
            continue
        terms = gammaln(shape + T) - gammaln(shape) + shape * np.log(shape)
        words += (terms - (shape + T) * np.log(shape + expected)).sum()
    return words


def plain_bound(model, counts, theta, rates, W, batch, there):
    log_W = np.log(np.maximum(W, 1e-300))
    found = bound(counts, theta, rates, W, log_W, batch, shape_of(model), there)
    prior = model.shape_loadings_, model.rate_loadings_
    return found + oracle.minus_divergence(theta * rates, rates, *prior).sum()


def shape_of(model):
    return np.inf if model.batch_shape_ is None else model.batch_shape_


def bound_of(model, counts, batch, there):
    """Return the bound of a fit."""
    theta, rates = model.loadings_, model.loadings_shape_ / model.loadings_
    if not model.hierarchical:
        return plain_bound(model, counts, theta, rates, model.components_.T, batch, there)
    a, c, of_xi, of_eta = oracle.priors_of(model)
    q_beta = model.components_shape_.T, model.feature_rates_[:, None] + model.components_rates_.T
    found = bound(
        counts, theta, rates, *oracle.moments(*q_beta), batch, shape_of(model), there
    )  # fmt: skip
    for q, means, shape, (s, t) in (
        ((theta * rates, rates), model.sample_rates_, a, of_xi),
        (q_beta, model.feature_rates_, np.full(K, c), of_eta),
    ):
        q_rate = np.full(len(means), s + np.sum(shape)), (s + np.sum(shape)) / means
        mean, log_mean = (each[:, None] for each in oracle.moments(*q_rate))
        found += oracle.minus_divergence(*q, shape, mean, log_mean).sum()
        found += oracle.minus_divergence(*q_rate, s, t).sum()
    return found


@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
@pytest.mark.parametrize("extrapolate", [True, False])
@pytest.mark.parametrize("panels", [{}, MEASURED], ids=["whole", "panels"])
def test_bound_of_a_fit_never_falls(options, extrapolate, panels, small_blocks):
    there = THERE[PANEL] if panels else np.ones((N, M))
    counts = np.where(there, X, 0)
    model = GammaPoisson(K, extrapolate=extrapolate, **options, **SHORT).fit(
        counts, batch=BATCH, **panels
    )
    assert_allclose(model.elbo_, bound_of(model, counts, BATCH, there), rtol=1e-4)
    elbo = model.history_["elbo"]
    assert (np.diff(elbo) >= 0).all() and elbo[-1] > elbo[0]
    if not extrapolate:  # no step was undone
        assert (np.diff(elbo) > 0).all()


def test_the_gradient_vanishes_at_the_end():
    """That of the shapes, rates and factors, of which columns sum to one."""
    how = {"random_state": 0, "tol": 1e-8, "gain_tol": 0, "shape_loadings": 0.8}
    model = GammaPoisson(2, **how).fit(X[:14, :6], batch=BATCH[:14])
    gamma, W = model.loadings_shape_, model.components_.T
    there, counts, batch = np.ones((14, 6)), X[:14, :6], BATCH[:14]
    rates = gamma / model.loadings_
    sizes = np.cumsum([gamma.size, rates.size])

    def of_logs(logs):
        shapes, of_q, factors = np.split(np.exp(logs), sizes)
        of_q, factors = of_q.reshape(14, 2), factors.reshape(6, 2)
        theta = shapes.reshape(14, 2) / of_q
        factors = factors / factors.sum(axis=0)
        return plain_bound(model, counts, theta, of_q, factors, batch, there)

    logs = np.log(np.concatenate([gamma.ravel(), rates.ravel(), np.maximum(W, 1e-9).ravel()]))
    assert of_logs(logs) == pytest.approx(model.elbo_, rel=1e-9)
    assert np.abs(approx_fprime(logs, of_logs, 1e-6)).max() < 0.01
    for factor in (0.8, 1.25):  # the shape is at its best, too
        value = model.batch_shape_
        model.batch_shape_ = value * factor
        assert of_logs(logs) < model.elbo_
        model.batch_shape_ = value


@ENDS_EARLY
@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
def test_efficiencies_are_recovered(options):
    rng = np.random.default_rng(1)
    batch, effects = np.arange(150) % 2, np.exp(rng.normal(0, 0.5, (2, 80)))
    mu = rng.gamma(0.3, 30, (150, K)) @ rng.gamma(0.2, 1, (80, K)).T
    how = {"random_state": 0, "max_iter": 60, "gain_tol": 1e-6, "tol": 1e-3}
    model = GammaPoisson(K, **how, **options).fit(rng.poisson(effects[batch] * mu), batch=batch)
    found = np.log(model.batch_efficiencies_[1] / model.batch_efficiencies_[0])
    assert np.corrcoef(found, np.log(effects[1] / effects[0]))[0, 1] > 0.92
    assert 7 < model.batch_shape_ < 20
    plain = GammaPoisson(K, **how, **options).fit(rng.poisson(mu), batch=batch)
    assert plain.batch_shape_ > 100  # no effects


def test_unmeasured_everywhere_is_as_if_the_feature_did_not_exist():
    there = np.arange(M) % 4 > 0
    one = GammaPoisson(K, **SHORT, init="random", shape_loadings=0.5, rate_loadings=0.1)
    start = np.random.default_rng(2).random((K, M)) * np.where(there, 1, 1e-20)
    found = one.fit(np.where(there, X, 0), measured=there, components=start)
    elbo, loadings = found.elbo_, found.loadings_
    few = one.fit(X[:, there], components=start[:, there])
    counts = nmfscale.as_counts(np.where(THERE[PANEL], X, 0))
    told = GammaPoisson(K, **SHORT).fit(counts, **MEASURED)
    counts.measured = THERE, PANEL
    joined = GammaPoisson(K, **SHORT).fit(counts)
    assert joined.components_.tobytes() == told.components_.tobytes()
    assert_allclose(few.elbo_, elbo, rtol=1e-5)
    assert_allclose(few.loadings_, loadings, rtol=1e-3, atol=1e-3)


@ENDS_EARLY
@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
def test_new_samples_of_batches(options):
    how = {"random_state": 0, "max_iter": 80, "tol": 1e-6, "gain_tol": 1e-9}
    how |= {"shape_loadings": 1.0, "mean_change_tol": 1e-8}  # of one optimum for each sample
    model = GammaPoisson(K, **how, **options).fit(X, batch=BATCH)
    assert_allclose(model.transform(X), model.loadings_, rtol=0.03, atol=0.03)
    found = model.transform(X[:9], batch=BATCH[:9])
    assert_allclose(found, model.loadings_[:9], rtol=0.03, atol=0.03)
    known, unknown = model.score(X, batch=BATCH), model.score(X, batch=[None] * N)
    assert known > unknown + 0.02
    assert model.perplexity(X, batch=BATCH) == pytest.approx(np.exp(-known))
    parts = {"completion": 0.5, "random_state": 0}
    assert model.score(X, batch=BATCH, **parts) > model.score(X, batch=[None] * N, **parts)
    if options:
        return
    old = BATCH < 2
    of_two = GammaPoisson(K, **how, **options).fit(X[old], batch=BATCH[old])
    new = of_two.score(X[~old], batch=["new"] * int(sum(~old)))
    assert new > of_two.score(X[~old], batch=[None] * int(sum(~old))) + 0.02


def test_a_resumed_fit_and_a_model_file_have_the_same_bits(tmp_path):
    model = GammaPoisson(K, **DEEP, **SHORT)
    one = model.fit(X, batch=BATCH)
    arrays = [one.components_.tobytes(), one.batch_efficiencies_.tobytes()]
    one.save(tmp_path / "model.h5")
    read = nmfscale.load(tmp_path / "model.h5")
    assert np.array_equal(read.transform(X), one.transform(X))

    def stop(record):
        if record["iteration"] == 8:
            raise InterruptedError

    job = {"batch": BATCH, "checkpoint": tmp_path / "job", "checkpoint_every": 0}
    with pytest.raises(InterruptedError):
        model.set_params(callback=stop).fit(X, **job)
    again = model.set_params(callback=None).fit(X, **job, resume=True)
    assert [again.components_.tobytes(), again.batch_efficiencies_.tobytes()] == arrays
    with pytest.raises(ValueError, match="differ"):
        model.fit(X, **job | {"batch": BATCH // 2}, resume=True)
