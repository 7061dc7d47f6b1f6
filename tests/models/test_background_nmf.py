"""The worked example of CONTRIBUTING; test_contract.py has the tests of every model."""

from pathlib import Path

import background_nmf
import numpy as np
import pytest
from background_nmf import BackgroundNMF

from nmfscale import PoissonNMF, TopicModel

K, MOST_LINES = 4, 250


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(0)
    F, a = rng.dirichlet(np.full(80, 0.15), K), rng.dirichlet(np.full(80, 0.5))
    L = rng.dirichlet(np.full(K, 0.3), 300) * rng.gamma(5, 60, (300, 1))
    r = rng.gamma(3, 30, 300)
    X = rng.poisson(L @ F + np.outer(r, a))
    return X, F, a, r, BackgroundNMF(K, random_state=0, tol=1e-4).fit(X, background=a)


def similarity(model, F):
    """The cosine of each true topic and the topic that is most like it."""
    one, other = (each / np.linalg.norm(each, axis=1)[:, None] for each in (model.components_, F))
    return (one @ other.T).max(axis=0)


def test_it_takes_a_page():
    assert len(Path(background_nmf.__file__).read_text().splitlines()) <= MOST_LINES


def test_topics_are_those_without_the_background(simulated):
    X, F, _, r, model = simulated
    assert model.converged_ and similarity(model, F).min() > 0.998
    without = TopicModel(K, random_state=0, n_init=3).fit(X)
    assert similarity(without, F).max() < 0.995
    scores = [each.score(X, completion=0.5, random_state=0) for each in (model, without)]
    assert scores[0] > scores[1]
    assert np.corrcoef(model.background_counts_, r)[0, 1] > 0.95


def test_the_background_is_a_fixed_topic_of_a_poisson_nmf(simulated):
    X, _, a, _, model = simulated
    L = np.column_stack([model.loadings_, model.background_counts_])
    F = np.column_stack([model.components_.T, a])
    fixed = np.arange(K + 1) == K
    best = PoissonNMF(K + 1, tol=1e-6, max_iter=2000).fit(X, L=L, F=F, fixed_topics=fixed)
    assert model.loglik_ <= best.loglik_ < model.loglik_ + 1
    np.testing.assert_allclose(model.components_, best.components_[:K] / best.components_[:K].sum(
        axis=1, keepdims=True), atol=2e-3)  # fmt: skip
