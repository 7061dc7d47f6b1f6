"""Simulated counts with known parameters: correlated topic model."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from ..counts.names import shown
from ..counts.structure import non_negative
from ..kernels.decompositions import eigh
from ..kernels.functions import exp, log, sine_and_cosine
from .simulate import (
    Floats,
    Seed,
    TopicTruth,
    check_positive,
    check_sizes,
    counts_of_cells,
    generator_of,
    too_large,
)

# Sum of the counts that are drawn at a time.
_CHUNK_TOTAL = 2**20
_LARGEST = np.iinfo(np.int32).max
# An eigenvalue of the covariance may be this far below 0, relative to the largest, by rounding.
_ROUNDING = 1e-10


def simulate_correlated_topics(
    n_samples: int,
    n_features: int,
    covariance: ArrayLike,
    *,
    mean: ArrayLike = 0.0,
    size: float = 1000.0,
    size_spread: float = 0.2,
    frequencies: ArrayLike | None = None,
    random_state: Seed = None,
) -> tuple[sp.csr_array, TopicTruth]:
    """Draw counts from a topic model with correlated topics (logistic normal proportions).

    The proportions of sample i are ``exp(eta_ik) / sum_l exp(eta_il)``, with ``eta_i`` from a
    normal distribution with the given mean and covariance. Section 4 of [1]_ simulates two data
    sets with 100 samples, 400 features, 6 topics, mean 0, variances 11 and covariances -2. In data
    set B, unlike A, the covariance of topics 5 and 6 is 8, which slows EM down.

    Parameters
    ----------
    n_samples, n_features : int
        Shape of the counts.
    covariance : array-like of shape (n_components, n_components)
        Covariance matrix of eta, positive semi-definite. Its shape is the number of topics.
    mean : float or array-like of shape (n_components,), default=0.0
        Mean of eta.
    size : float, default=1000.0
        Median total of a sample.
    size_spread
        As in :func:`simulate_topic_counts`.
    frequencies : array-like of shape (n_features, n_components), optional
        Frequencies of the features in each topic, up to a factor for each topic. By default, they
        are drawn as in the authors' code: feature j has ``u = |N(0, 3^2)| - 5`` and ``s =
        exp(-u / 3)``, and its rate in each topic is ``exp(max(z, -5))``, with z from N(u,
        (s / 10)^2), or with probability 0.2 from N(u, s^2).
    random_state : int, Generator, RandomState or None, default=None
        Source of randomness. The same int gives the same counts on every processor and with every
        version of NumPy: only uniform random numbers are drawn. It also gives the same totals and
        frequencies for every covariance and mean.

    Returns
    -------
    counts : csr_array of shape (n_samples, n_features), int32
        The counts; row i sums to ``sizes[i]``. Features may have no counts.
    truth : TopicTruth
        ``L`` (n_samples, n_components), whose rows sum to 1; ``F`` (n_features, n_components),
        whose columns sum to 1; ``sizes`` (n_samples,).

    Raises
    ------
    ValueError
        If a size is not an integer of at least 1, if `covariance` is not a symmetric positive
        semi-definite matrix, if `mean` or `frequencies` does not have its shape, if a number is not
        finite, or if a total is too large for int32.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    Data sets A and B, with the same totals and frequencies:

    >>> import numpy as np
    >>> from nmfscale.datasets import simulate_correlated_topics
    >>> covariance = 13 * np.eye(6) - 2
    >>> A, truth = simulate_correlated_topics(100, 400, covariance, random_state=1)
    >>> covariance[4, 5] = covariance[5, 4] = 8
    >>> B, other = simulate_correlated_topics(100, 400, covariance, random_state=1)
    >>> for L in (truth.L, other.L):
    ...     both = (L[:, 4] > 0.1) & (L[:, 5] > 0.1)
    ...     print(f"topics 5 and 6 have more than 0.1 of {both.sum()} samples")
    topics 5 and 6 have more than 0.1 of 5 samples
    topics 5 and 6 have more than 0.1 of 22 samples
    """
    check_sizes(n_samples=n_samples, n_features=n_features)
    check_positive(size=size)
    if not 0 <= size_spread < np.inf:
        raise ValueError(f"size_spread={shown(size_spread)} must be at least 0 and finite.")
    root = _root(_finite(covariance, "covariance"))
    K, centre = len(root), _finite(mean, "mean")
    if centre.shape not in ((), (K,)):
        raise ValueError(f"mean has shape {centre.shape}; it needs () or ({K},), as covariance.")
    if frequencies is not None:
        F = non_negative(frequencies, "frequencies", (n_features, K)).astype(np.float64)
        if not F.any(axis=0).all():
            empty = int(np.flatnonzero(~F.any(axis=0))[0])
            raise ValueError(f"Topic {empty} of frequencies is 0 in every feature.")
    rng = generator_of(random_state)
    # A covariance changes neither totals nor frequencies: they are drawn first.
    logs = log(size) + size_spread * log(10.0) * _normal(rng, n_samples)
    totals = np.ceil(exp(logs))
    if totals.max() > _LARGEST:
        raise too_large(f"A sample has {totals.max():.3g} counts")
    rates = _rates(rng, n_features, K)
    if frequencies is None:
        F = rates
    F = F / F.sum(axis=0)
    normal = _normal(rng, n_samples, K)
    eta = centre + sum(normal[:, [k]] * root[k] for k in range(K))
    L = exp(eta - eta.max(axis=1, keepdims=True))
    L /= L.sum(axis=1, keepdims=True)
    truth = TopicTruth(L, F, totals.astype(np.int64))
    return _drawn(rng, truth), truth


def _finite(values: ArrayLike, name: str) -> Floats:
    """Return an array of finite numbers."""
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or Inf; all entries must be finite.")
    return array


def _root(covariance: Floats) -> Floats:
    """Return R with R^T R the covariance."""
    if covariance.ndim != 2 or len(set(covariance.shape)) != 1 or not covariance.size:
        raise ValueError(f"covariance has shape {covariance.shape}; it must be a square matrix.")
    if not np.allclose(covariance, covariance.T, rtol=1e-8, atol=0):
        raise ValueError("covariance is not symmetric.")
    values, vectors = eigh((covariance + covariance.T) / 2)
    if values.min() < -_ROUNDING * np.abs(values).max():
        raise ValueError(
            f"covariance has the eigenvalue {values.min():.3g}; it must be positive semi-definite."
        )
    root: Floats = np.sqrt(np.maximum(values, 0))[:, np.newaxis] * vectors.T
    return root


def _normal(rng: np.random.Generator, *shape: int) -> Floats:
    """Return standard normal numbers, from uniform ones by the method of Box and Muller."""
    n = int(np.prod(shape))
    n_pairs = (n + 1) // 2
    uniform, angle = rng.random((2, n_pairs))
    signs = np.where(rng.random((2, n_pairs)) < 0.5, -1.0, 1.0)
    radius = np.sqrt(-2.0 * log(1.0 - uniform))
    numbers = radius * np.stack(sine_and_cosine(angle * (np.pi / 2))) * signs
    return numbers.ravel()[:n].reshape(shape)


def _rates(rng: np.random.Generator, n_features: int, n_components: int) -> Floats:
    """Return random rates of features in topics, most of which are similar in all topics."""
    u = np.abs(3.0 * _normal(rng, n_features)) - 5.0
    s = exp(-u / 3.0)
    spread = np.where(rng.random((n_features, n_components)) < 0.2, 1.0, 0.1)
    z = u[:, np.newaxis] + spread * s[:, np.newaxis] * _normal(rng, n_features, n_components)
    rates: Floats = exp(np.maximum(z, -5.0))
    return rates


def _drawn(rng: np.random.Generator, truth: TopicTruth) -> sp.csr_array:
    """Draw the topic of every count, then its feature, each from a uniform number."""
    K, m = truth.L.shape[1], len(truth.F)
    of_samples, of_topics = (np.cumsum(array, axis=1) for array in (truth.L, truth.F.T))
    ends = np.cumsum(truth.sizes)
    edges = np.searchsorted(ends, np.arange(_CHUNK_TOTAL, ends[-1], _CHUNK_TOTAL))
    edges = np.unique(np.concatenate(([0], edges, [len(ends)])))
    pieces = []
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        rows = np.repeat(np.arange(stop - start), truth.sizes[start:stop])
        place = rng.random(len(rows)) * of_samples[start:stop, -1][rows]
        topics = np.zeros(len(rows), np.int64)
        for k in range(K - 1):
            topics += place >= of_samples[start:stop, k][rows]
        place = rng.random(len(rows))
        features = np.empty(len(rows), np.int64)
        for k, steps in enumerate(of_topics):
            own = np.flatnonzero(topics == k)
            positions = np.searchsorted(steps, place[own] * steps[-1], side="right")
            features[own] = np.minimum(positions, m - 1)
        pieces.append(np.unique(rows * m + features, return_counts=True))
    return counts_of_cells(pieces, np.diff(edges), m)
