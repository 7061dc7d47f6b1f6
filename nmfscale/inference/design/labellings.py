"""Number of labellings of units in strata and groups, and the p-values that it allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.warn import warn_caller
from ...kernels.functions import log_gamma

Array = NDArray[Any]


def log10_labellings(sizes: Array) -> float:
    """Return log10 of the number of labellings, given units in each stratum and group.

    `sizes` are units of each stratum in each group.
    """
    sizes = np.atleast_2d(sizes).astype(float)
    logs = log_gamma(sizes.sum(axis=1) + 1).sum() - log_gamma(sizes + 1).sum()
    return max(0.0, float(logs) / math.log(10))


def n_labellings(sizes: Array) -> int:
    """Return the number of labellings: the product over strata of n! / (n_1! n_2! ...)."""
    out = 1
    for stratum in np.atleast_2d(sizes).tolist():
        left = sum(stratum)
        for size in stratum:
            out *= math.comb(left, size)
            left -= size
    return out


def n_symmetries(sizes: Array) -> int:
    """Return the number of permutations of groups of equal sizes."""
    _, counts = np.unique(np.atleast_2d(sizes), axis=1, return_counts=True)
    return math.prod(math.factorial(int(n)) for n in counts)


def smallest_pvalue(sizes: Array, *, symmetric: bool = True) -> float:
    """Return the smallest p-value that the test with all labellings can give."""
    same = n_symmetries(sizes) if symmetric else 1
    log10 = log10_labellings(sizes)
    if log10 < 15:
        return same / n_labellings(sizes)
    # more symmetries than a float can hold, with hundreds of groups
    exponent = math.log10(same) - log10
    return float(min(1.0, 10.0 ** max(exponent, -300.0)))


def warn_few_labellings(
    smallest: Sequence[float], alpha: float, names: Sequence[str], what: str
) -> None:
    """Warn of tests that cannot reject, whatever the data."""
    powerless = [(name, p) for p, name in zip(smallest, names, strict=True) if p > alpha]
    if powerless:
        shown = ", ".join(f"{p:.2g} ({name})" for name, p in powerless[:3])
        more = f", and {len(powerless) - 3:,} more" if len(powerless) > 3 else ""
        warn_caller(
            f"{what} are so few that no p-value below {shown}{more} is possible, which is above "
            f"alpha={alpha:g}: nothing can be found there. More {what} are needed, not more "
            "permutations."
        )
