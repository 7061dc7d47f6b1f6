"""Newton steps of topics that are point estimates."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import nmfscale
from nmfscale.methods.variational.point_topics import newton_step, numerators

RNG = np.random.default_rng(0)
N, M, K = 40, 30, 3
THETA = RNG.gamma(0.5, size=(N, K)) + 0.05
X = RNG.poisson(20 * THETA @ RNG.dirichlet(np.full(M, 0.2), size=K))
X[:, 7] = 0


def sums_of(W):
    """Return sums of curvature in the form of the kernels, the numerators, and the mean of logs."""
    mu = THETA @ W.T
    ratio = np.divide(X, mu, out=np.zeros(mu.shape), where=X > 0)
    H = np.einsum("ij,ik,il->jkl", ratio / np.where(X > 0, mu, 1), THETA, THETA)
    packed = np.zeros((32, K * (K + 1) // 2))
    packed[:M] = H[:, *np.tril_indices(K)]
    bound = (X * np.log(np.where(X > 0, mu, 1))).sum()
    return packed.reshape(2, 16, -1).transpose(0, 2, 1).copy(), ratio.T @ THETA, bound


def em_steps(W, n_steps):
    for _ in range(n_steps):
        expected = sums_of(W)[1] * W
        W = expected / expected.sum(axis=0)
    return W


def test_steps_reach_the_optimum_for_fixed_posteriors():
    """From near the optimum, ten of them are more than 2,000 EM steps."""
    start = em_steps(np.full((M, K), 1 / M), 100)
    W, design = start, np.zeros((32, 4))
    for _ in range(10):
        curvature, num, _ = sums_of(W)
        design[:M, :K] = W
        found = numerators(curvature, design).transpose(0, 2, 1).reshape(32, K)[:M]
        assert_allclose(found[X.any(axis=0)], num[X.any(axis=0)], rtol=1e-9)
        W = newton_step(W, curvature, num * W, 1)
    assert_allclose(W.sum(axis=0), 1, rtol=1e-12)
    assert (W[7] == 0).all()
    assert sums_of(W)[2] > sums_of(em_steps(start, 2000))[2] - 1e-9


@pytest.mark.parametrize(
    "model",
    [
        nmfscale.GammaPoisson(3, random_state=0, n_threads=1),
        nmfscale.LDA(
            3, topic_word_prior=0, estimate_prior="none", random_state=0, n_threads=1
        ),
    ],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_a_fit_ends_in_far_fewer_iterations(model):
    plain = type(model)(**model.get_params() | {"extrapolate": False, "tol": 0, "max_iter": 600})
    model.fit(X)
    assert model.converged_ and model.n_iter_ < 150
    assert model.elbo_ > plain.fit(X).elbo_ - 0.5
