"""From statistics of permutations to p-values, alone and adjusted for many tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

Array = NDArray[Any]
# Values that differ by less, relative to their size, differ by rounding.
_TIE = 1e-12


def n_as_extreme(null: Array, observed: float, alternative: str) -> int:
    """Count the values that are at least as extreme as the observed one, but for rounding."""
    slack = _TIE * max(1e-300, float(np.max(np.abs(null), initial=abs(observed))))
    if alternative == "two-sided":
        return min(n_as_extreme(null, observed, side) for side in ("less", "greater"))
    if alternative == "less":
        return int(np.count_nonzero(null <= observed + slack))
    return int(np.count_nonzero(null >= observed - slack))


def pvalue(n_extreme: int, n: int, alternative: str, exact: bool) -> float:
    """Return (b + 1) / (s + 1) for b of s random permutations, b / s where these are all."""
    sides = 2 if alternative == "two-sided" else 1
    return min(1.0, sides * (n_extreme / n if exact else (n_extreme + 1) / (n + 1)))


def interval(
    n_extreme: int, n: int, alternative: str, exact: bool, level: float = 0.95
) -> tuple[float, float]:
    """Return where the p-value of all permutations is, as those drawn tell (Clopper-Pearson)."""
    if exact:
        p = pvalue(n_extreme, n, alternative, exact)
        return p, p
    sides = 2 if alternative == "two-sided" else 1
    found = binomtest(n_extreme, n).proportion_ci(level, method="exact")
    return min(1.0, sides * float(found.low)), min(1.0, sides * float(found.high))


def standardized(null: Array, observed: float, alternative: str) -> tuple[Array, float]:
    """Return values in standard deviations from the mean, so that large ones are extreme."""
    mean, sd = float(null.mean()), float(null.std())
    # but for rounding, all are the same
    if sd <= _TIE * max(1e-300, float(np.abs(null).max())):
        return np.zeros_like(null), 0.0
    z, of_observed = (null - mean) / sd, (observed - mean) / sd
    if alternative == "two-sided":
        return np.abs(z), abs(of_observed)
    sign = -1.0 if alternative == "less" else 1.0
    return sign * z, sign * of_observed


def joint_max_t(nulls: list[Array], observed: list[float], exact: bool) -> Array:
    """Adjust p-values of statistics of the same permutations, step down, by their maximum.

    Westfall and Young, Resampling-based multiple testing, algorithm 2.8: the largest statistic is
    compared with the maximum of all, the next with that of all but it, and so on.
    """
    order = np.argsort(observed, kind="stable")  # the smallest first
    out, largest = np.empty(len(order)), np.full(nulls[0].size, -np.inf)
    for k in order.tolist():
        largest = np.maximum(largest, nulls[k])
        out[k] = pvalue(n_as_extreme(largest, observed[k], "greater"), largest.size, "", exact)
    return _rising(out, order[::-1])


def independent_max_t(nulls: list[Array], observed: list[float], exact: list[bool]) -> Array:
    """Adjust p-values of statistics of permutations drawn independently, step down.

    The maximum of independent statistics is below t with the product of their probabilities, which
    gives 1 - prod (1 - P(T_j >= t)) over the tests that are left.
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
    """Let no p-value be below that of a more extreme statistic."""
    out = np.empty_like(pvalues)
    out[order] = np.maximum.accumulate(pvalues[order])
    return out
