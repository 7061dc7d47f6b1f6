"""Fits to simulated counts come back to the truth they were drawn from."""

import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment

import nmfscale
from nmfscale.datasets.simulate import simulate_poisson_nmf, simulate_topic_counts

SOLVERS = ["auto", "scd", "sn", "newton"]


def matched(found, truth):
    """Return the columns of `found` in the order of those of `truth` that they resemble most."""
    K = truth.shape[1]
    correlation = np.corrcoef(found.T, truth.T)[:K, K:]
    ours, theirs = linear_sum_assignment(-correlation)
    return ours[np.argsort(theirs)]


@pytest.fixture(scope="module")
def topics():
    """Long documents over few words: four well separated topics."""
    return simulate_topic_counts(
        300, 120, 4, size=3000.0, loadings_concentration=0.3, random_state=5
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_topics_are_recovered(topics, solver):
    X, truth = topics
    model = nmfscale.TopicModel(4, solver=solver, max_iter=300, random_state=0).fit(X)
    order = matched(model.components_.T, truth.F)
    frequencies, proportions = model.components_[order].T, model.loadings_[:, order]
    assert_allclose(model.components_.sum(axis=1), 1.0, rtol=1e-9)
    assert_allclose(model.loadings_.sum(axis=1), 1.0, rtol=1e-9)
    assert np.abs(proportions - truth.L).mean() < 0.01
    # Half the sum of the differences: the share of a topic's words that is misplaced.
    assert np.all(np.abs(frequencies - truth.F).sum(axis=0) / 2.0 < 0.01)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_fit_is_at_least_as_likely_as_the_truth(topics, solver):
    X, truth = topics
    model = nmfscale.TopicModel(4, solver=solver, max_iter=300, random_state=0).fit(X)
    dense = X.toarray().astype(float)
    fitted = oracle.loglik_multinomial(dense, model.loadings_, model.components_.T).sum()
    # On average half a unit for each of the parameters that are not pressed to zero.
    gain = fitted - oracle.loglik_multinomial(dense, truth.L, truth.F).sum()
    n_parameters = truth.L.size + truth.F.size
    assert 0.1 * n_parameters < gain < n_parameters


@pytest.mark.filterwarnings("ignore:X has .* of which the fit had none")
def test_held_out_documents_are_placed(topics):
    X, truth = topics
    model = nmfscale.TopicModel(4, max_iter=300, random_state=0).fit(X[:200])
    order = matched(model.components_.T, truth.F)
    assert np.abs(model.transform(X[200:])[:, order] - truth.L[200:]).mean() < 0.015


def test_poisson_factors_are_recovered():
    X, truth = simulate_poisson_nmf(250, 100, 3, size=5000.0, random_state=1)
    model = nmfscale.PoissonNMF(3, max_iter=300, random_state=0).fit(X)
    L, F = oracle.rescale(model.loadings_, model.components_.T)
    order = matched(F, truth.F)
    for found, expected in [(L[:, order], truth.L), (F[:, order], truth.F)]:
        assert np.all(np.abs(found - expected).mean(axis=0) < 0.05 * expected.mean(axis=0))


@pytest.mark.parametrize("solver", ["auto", "newton", "joint-em"])
@pytest.mark.parametrize("seed", range(4))
def test_no_method_gets_lost_from_a_random_start(solver, seed):
    # An easy problem with one good optimum, a start that is far from it.
    X, _ = simulate_topic_counts(100, 80, 3, size=500.0, random_state=seed)

    def fit(solver):
        options = {"init": "random", "max_iter": 500, "random_state": seed}
        return nmfscale.PoissonNMF(3, solver=solver, **options).fit(X)

    model = fit(solver)
    assert model.loglik_ > fit("scd").loglik_ - 5.0
    assert model.converged_
    of_L, of_F = nmfscale.likelihood.kkt_residuals(X, model.loadings_, model.components_.T)
    assert np.abs(of_L).max() < 0.1 * X.sum() / X.shape[0]
    assert np.abs(of_F).max() < 0.1 * X.sum() / X.shape[1]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_random_starts_find_the_topics(topics, seed):
    X, truth = topics
    model = nmfscale.TopicModel(4, init="random", max_iter=500, n_init=3, random_state=seed).fit(X)
    order = matched(model.components_.T, truth.F)
    assert np.abs(model.loadings_[:, order] - truth.L).mean() < 0.01
