"""p-values from statistics of permutations: unadjusted, and adjusted for many tests.

A value of a null distribution is infinite if its table has no statistic: it counts as at least as
extreme as any value, also of other tests, and is left out of means and standard deviations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantiles import beta_quantile

Array = NDArray[Any]
# Relative difference below which two values are equal up to rounding.
_TIE = 1e-12
# Number of p-values that are in memory at a time.
_PVALUES = 1 << 22


def n_as_extreme(null: Array, observed: float, alternative: str) -> int:
    """Count the values that are at least as extreme as the observed one, up to rounding."""
    slack = _TIE * max(1e-300, abs(observed), _largest(null[np.isfinite(null)]))
    if alternative == "two-sided":
        return min(n_as_extreme(null, observed, side) for side in ("less", "greater"))
    if alternative == "less":
        return int(np.count_nonzero(null <= observed + slack))
    return int(np.count_nonzero(null >= observed - slack))


def pvalue(n_extreme: int, n: int, alternative: str, exact: bool) -> float:
    """Return (b + 1) / (s + 1) for b of s random permutations, or b / s for all permutations."""
    sides = 2 if alternative == "two-sided" else 1
    return min(1.0, sides * (n_extreme / n if exact else (n_extreme + 1) / (n + 1)))


def intervals(
    n_extreme: list[int], sizes: list[int], alternative: str, exact: list[bool],
    level: float = 0.95,
) -> list[tuple[float, float]]:  # fmt: skip
    """Return intervals of the p-values of all permutations (Clopper-Pearson).

    The p-value of an exact test is known.
    """
    sides = 2 if alternative == "two-sided" else 1
    tail, b, n = (1 - level) / 2, np.array(n_extreme), np.array(sizes)
    low = np.where(b > 0, beta_quantile(tail, np.maximum(b, 1), n - b + 1), 0.0)
    high = np.where(b < n, beta_quantile(1 - tail, b + 1, np.maximum(n - b, 1)), 1.0)
    sampled = np.minimum(1.0, sides * np.stack([low, high]))
    of_all = [pvalue(*pair, alternative, True) for pair in zip(n_extreme, sizes, strict=True)]
    ends = np.where(exact, of_all, sampled)
    return list(zip(*ends.tolist(), strict=True))


def standardized(null: Array, observed: float, alternative: str) -> tuple[Array, float]:
    """Standardise values so that large ones are extreme."""
    finite = null[np.isfinite(null)]
    sd = float(finite.std()) if finite.size else 0.0
    # all are the same up to rounding
    if sd <= _TIE * max(1e-300, _largest(finite)):
        return np.where(np.isfinite(null), 0.0, np.inf), 0.0
    mean = float(finite.mean())
    z, of_observed = (null - mean) / sd, (observed - mean) / sd
    if alternative == "two-sided":
        return np.abs(z), abs(of_observed)
    sign = -1.0 if alternative == "less" else 1.0
    return sign * z, sign * of_observed


def joint_max_t(nulls: list[Array], observed: list[float], exact: bool) -> Array:
    """Adjust p-values of statistics of the same permutations by the step-down maximum.

    Westfall and Young, Resampling-based multiple testing, algorithm 2.8: the largest statistic is
    compared with the maximum over all tests, the next largest with the maximum over all tests but
    the first, and so on.
    """
    order = np.argsort(observed, kind="stable")  # the smallest first
    out, largest = np.empty(len(order)), np.full(nulls[0].size, -np.inf)
    for k in order.tolist():
        largest = np.maximum(largest, nulls[k])
        out[k] = pvalue(n_as_extreme(largest, observed[k], "greater"), largest.size, "", exact)
    return _rising(out, order[::-1])


def independent_max_t(nulls: list[Array], observed: list[float], exact: list[bool]) -> Array:
    """Adjust p-values of independently permuted statistics by the step-down maximum.

    The maximum of independent statistics is below t with the product of their probabilities, hence
    1 - prod (1 - P(T_j >= t)) over the remaining tests.
    """
    order = np.argsort(observed, kind="stable")[::-1]
    at = np.array(observed)[order]
    ordered = [np.sort(nulls[j]) for j in order.tolist()]
    size = max(1, _PVALUES // len(order))
    out = np.empty(len(order))
    for first in range(0, len(order), size):
        rows = at[first : first + size]
        # P(T_j >= t) of rows t and the remaining tests j
        others = np.empty((len(rows), len(order) - first))
        for j, null in enumerate(ordered[first:], first):
            of_null = _n_at_least(null, rows)
            s = null.size
            others[:, j - first] = of_null / s if exact[order[j]] else (of_null + 1) / (s + 1)
        for i, p in enumerate(np.minimum(others, 1.0)):
            out[order[first + i]] = 1.0 - np.prod(1.0 - p[i:])
    return _rising(out, order)


def _n_at_least(ordered: Array, observed: Array) -> Array:
    """Count the values of a sorted null distribution that are at least `observed` (n,)."""
    largest = _largest(ordered[np.isfinite(ordered)])
    slack = _TIE * np.maximum(1e-300, np.maximum(np.abs(observed), largest))
    n_at_least: Array = ordered.size - np.searchsorted(ordered, observed - slack, "left")
    return n_at_least


def _rising(pvalues: Array, order: Array) -> Array:
    """Make p-values monotone: none is below that of a more extreme statistic."""
    out = np.empty_like(pvalues)
    out[order] = np.maximum.accumulate(pvalues[order])
    return out


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))
