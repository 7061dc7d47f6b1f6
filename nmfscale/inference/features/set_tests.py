"""Tests of sets of features: by the number among leading ones, and by ranks of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from ...kernels.functions import exp, log_gamma
from ..quantiles import normal_cdf, normal_tail

Array = NDArray[Any]


def hypergeometric_tail(overlap: Array, drawn: Array, sizes: Array, n: int) -> Array:
    """Return the probability of at least `overlap` (K, S) features of a set among drawn ones.

    `drawn` (K, 1) of n features are drawn without replacement; sets have `sizes` (S,).
    """
    x = overlap.astype(np.float64)
    drawn, sizes = np.broadcast_arrays(np.asarray(drawn, np.float64), sizes[None, :] * 1.0)
    chance = (
        _log_choose(sizes, x) + _log_choose(n - sizes, drawn - x) - _log_choose(float(n), drawn)
    )
    term = exp(chance)
    tail = term
    for _ in range(int(np.max(np.minimum(drawn, sizes) - x, initial=0))):
        # the ratio of the probabilities of x + 1 and x; 0 at the largest possible number
        ratio = (sizes - x) * (drawn - x) / ((x + 1) * (n - sizes - drawn + x + 1))
        term, x = term * np.maximum(ratio, 0), x + 1
        tail = tail + term
    return np.where(overlap == 0, 1.0, np.minimum(tail, 1.0))


def _log_choose(n: Any, k: Any) -> Array:
    value: Array = log_gamma(n + 1.0) - log_gamma(k + 1.0) - log_gamma(np.asarray(n - k) + 1.0)
    return value


def rank_tests(scores: Array, members: Sequence[Array]) -> tuple[Array, Array]:
    """Return the AUC and p-value (K, S) of Mann-Whitney tests that scores (K, m) of sets are high.

    `members` are the features of each set. The AUC is the probability that a feature of the set has
    a higher score than another one, ties counted half. p-values are those of a normal distribution,
    with the variance for ties and a correction for continuity.
    """
    K, m = scores.shape
    ranks = rankdata(scores, axis=1)
    sizes = np.array([len(features) for features in members], np.float64)
    sums = np.array([ranks[:, features].sum(axis=1) for features in members]).T.reshape(K, -1)
    u, pairs = sums - sizes * (sizes + 1) / 2, sizes * (m - sizes)
    ties = np.array([((times := np.unique(row, return_counts=True)[1] * 1.0) ** 3 - times).sum()
                     for row in ranks])  # fmt: skip
    variance = pairs / 12 * ((m + 1) - ties / (m * (m - 1.0)))[:, None]
    z = np.divide(
        u - pairs / 2 - 0.5, np.sqrt(variance), out=np.full(u.shape, -np.inf), where=variance > 0
    )
    far = np.abs(z)
    tails = np.where(z >= 0, normal_tail(far), normal_cdf(far))
    return np.divide(u, pairs, out=np.full(u.shape, 0.5), where=pairs > 0), tails
