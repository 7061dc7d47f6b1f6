"""Simulated counts with known parameters: noisy topic model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.names import shown
from .simulate import (
    Floats,
    Seed,
    check_positive,
    check_sizes,
    dirichlet_rows,
    generator_of,
    simulate_from_factors,
)


class NoisyTruth(NamedTuple):
    """Parameters of simulated counts: x_ij ~ Poisson(sum_k L_ik mu_j u_jk).

    Attributes
    ----------
    L : ndarray of shape (n_samples, n_components)
        Loadings.
    mu : ndarray of shape (n_features,)
        Mean frequencies of the features.
    u : ndarray of shape (n_features, n_components)
        Factors of the pairs of a feature and a topic.
    noisy : ndarray of shape (n_features, n_components), bool
        Which pairs are noisy.
    """

    L: Floats
    mu: Floats
    u: Floats
    noisy: NDArray[np.bool_]


def simulate_noisy_topics(
    n_samples: int,
    n_features: int,
    n_components: int,
    *,
    size: float = 1000.0,
    noisy_share: float = 0.1,
    noisy_variance: float = 2.0,
    variance: float = 0.0,
    loadings_concentration: float = 0.1,
    random_state: Seed = None,
) -> tuple[sp.csr_array, NoisyTruth]:
    """Draw counts from a noisy topic model in which some pairs (feature, topic) are noisy.

    Parameters
    ----------
    n_samples, n_features, n_components
        As in :func:`simulate_topic_counts`.
    size : float, default=1000.0
        Sum of the loadings of a sample, approximately its expected total.
    noisy_share : float, default=0.1
        Probability that a pair is noisy.
    noisy_variance : float, default=2.0
        Variance of u, a Gamma variable with mean 1, for noisy pairs.
    variance : float, default=0.0
        Variance of u for all other pairs; with 0, u is 1.
    loadings_concentration : float, default=0.1
        Parameter of the symmetric Dirichlet distribution of the topic proportions; small values
        make samples close to a single topic.
    random_state
        As in :func:`simulate_topic_counts`.

    Returns
    -------
    counts : csr_array of shape (n_samples, n_features), int32
        The counts.
    truth : NoisyTruth
        ``L`` (n_samples, n_components), rows sum to `size`; ``mu`` (n_features,), which sums to
        one, uniform on the simplex; ``u`` and ``noisy`` (n_features, n_components).

    Raises
    ------
    ValueError
        If a size is not an integer of at least 1, if another number is out of its range, or if a
        count is too large for int32.

    Examples
    --------
    >>> from nmfscale.datasets import simulate_noisy_topics
    >>> counts, truth = simulate_noisy_topics(50, 30, 3, noisy_share=0.5, random_state=0)
    >>> bool((truth.u[~truth.noisy] == 1).all()), bool(abs(truth.mu.sum() - 1) < 1e-9)
    (True, True)
    """
    check_sizes(n_samples=n_samples, n_features=n_features, n_components=n_components)
    check_positive(
        size=size, noisy_variance=noisy_variance, loadings_concentration=loadings_concentration
    )
    if not 0 <= noisy_share <= 1:
        raise ValueError(f"noisy_share={shown(noisy_share)} must be between 0 and 1.")
    if not 0 <= variance < np.inf:
        raise ValueError(f"variance={shown(variance)} must be at least 0 and finite.")
    rng = generator_of(random_state)
    L = size * dirichlet_rows(rng, loadings_concentration, n_samples, n_components)
    mu = dirichlet_rows(rng, 1.0, 1, n_features)[0]
    noisy = rng.random((n_features, n_components)) < noisy_share
    variances = np.where(noisy, noisy_variance, variance)
    positive = np.where(variances > 0, variances, 1.0)
    u = np.where(variances > 0, rng.gamma(1 / positive, positive), 1.0)
    counts = simulate_from_factors(L, mu[:, None] * u, random_state=rng)
    return counts, NoisyTruth(L, mu, u, noisy)
