"""p-values from statistics of permutations: unadjusted, and adjusted for many tests.

A value of a null distribution is infinite if its table has no statistic: it counts as at least as
extreme as any value, also of other tests, and is left out of means and standard deviations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .quantiles import beta_quantile

Array = NDArray[Any]
# Relative difference below which two values are equal up to rounding.
_TIE = 1e-12


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


def interval(
    n_extreme: int, n: int, alternative: str, exact: bool, level: float = 0.95
) -> tuple[float, float]:
    """Return an interval of the p-value of all permutations (Clopper-Pearson)."""
    if exact:
        p = pvalue(n_extreme, n, alternative, exact)
        return p, p
    sides = 2 if alternative == "two-sided" else 1
    tail, b = (1 - level) / 2, n_extreme
    low = beta_quantile(tail, b, n - b + 1) if b > 0 else 0.0
    high = beta_quantile(1 - tail, b + 1, n - b) if b < n else 1.0
    return min(1.0, sides * low), min(1.0, sides * high)


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
    out = np.empty(len(order))
    for i, k in enumerate(order.tolist()):
        others = [
            pvalue(n_as_extreme(nulls[j], observed[k], "greater"), nulls[j].size, "", exact[j])
            for j in order[i:].tolist()
        ]
        out[k] = 1.0 - np.prod(1.0 - np.array(others))
    return _rising(out, order)


def _rising(pvalues: Array, order: Array) -> Array:
    """Make p-values monotone: none is below that of a more extreme statistic."""
    out = np.empty_like(pvalues)
    out[order] = np.maximum.accumulate(pvalues[order])
    return out


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))
