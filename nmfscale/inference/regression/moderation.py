"""Moderated variances: each topic's own, drawn towards what all topics let expect.

As in Smyth (2004), but between topics instead of genes: the variance of a topic with f degrees of
freedom is that of its proportions times an unknown factor, and factors are scaled inverse
chi-square with d prior degrees of freedom. A moderated variance has f + d. The expected variance is
shared out in proportion to ``m (1 - m)``, as for proportions with a single concentration.

There are thousands of genes, but few topics: d is estimated as in the estimator of James and Stein,
so that the weight d / (f + d) of what is expected is at most (T - 3) / (T - 1), and 0 with three
topics or fewer. A topic whose variance is an outlier among those of T topics keeps its own, as in
Phipson et al. (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.functions import digamma, exp, log, trigamma
from ..quantiles import f_tail, trigamma_inverse

Array = NDArray[Any]
# Fewer topics do not show how far their variances are from what is expected.
_FEWEST = 4
# Prior degrees of freedom below this are none, and above it infinitely many.
_LEAST, _MOST = 0.01, 1e6
# Outliers keep one of so many parts of the prior: quantiles of few degrees of freedom are needed.
_STEPS = 32


@dataclass(frozen=True)
class Moderation:
    """Prior degrees of freedom, and the shares (T,) of topics in the expected variance."""

    freedom: float
    shares: Array

    @classmethod
    def of(cls, variances: Array, freedom: float, shares: Array) -> Moderation:
        """Estimate them from variances (T,), which have `freedom` degrees of freedom each."""
        ratios, there = _ratios(variances[:, None], shares)
        n = int(there.sum())
        if n < _FEWEST:
            return cls(0.0, shares)
        logs = log(ratios[there])
        spread = float(((logs - logs.mean()) ** 2).sum()) / (n - 3)
        beyond = spread - float(trigamma(freedom / 2))
        return cls(2 * trigamma_inverse(beyond) if beyond > 0 else np.inf, shares)

    def __call__(self, variances: Array, freedom: Array) -> tuple[Array, Array]:
        """Return moderated variances and their degrees of freedom (T, k).

        `variances` are (T, k), with `freedom` (k,) degrees. A variance of 0 is that of a topic
        that happens not to vary: it is drawn as others are, but tells nothing about them.
        """
        ratios, there = _ratios(variances, self.shares)
        n = there.sum(axis=0)
        prior = np.minimum(min(self.freedom, _MOST), freedom * np.maximum(n - 3, 0) / 2)
        moderate = prior >= _LEAST
        prior = np.where(moderate, prior, 1.0)
        logs = np.where(there, log(np.where(there, ratios, 1.0)), 0.0).sum(axis=0)
        typical = exp(logs / np.maximum(n, 1) - _mean_log(freedom) + _mean_log(prior))
        above = f_tail(np.where(there, ratios, typical) / typical, freedom, prior)
        # all of the prior, unless fewer than one of n topics would be as far away on either side
        kept = np.where(there, np.minimum(1.0, 2 * n * np.minimum(above, 1 - above)), 1.0)
        kept = np.ceil(kept * _STEPS) / _STEPS
        prior = np.where(moderate, prior * kept, 0.0)
        expected = self.shares[:, None] * typical
        return (freedom * variances + prior * expected) / (freedom + prior), freedom + prior


def moderated(
    moderation: Moderation | None, variances: Array, freedom: Array
) -> tuple[Array, Array]:
    """Return variances and degrees of freedom (T, k), moderated if they are to be."""
    if moderation is None:
        return variances, np.broadcast_to(freedom, variances.shape)
    return moderation(variances, freedom)


def shares_of(values: Array, weights: Array | None) -> Array:
    """Return the share of each topic (T,) in the variance of Dirichlet proportions."""
    mean = np.average(values, axis=0, weights=weights)
    variances: Array = mean * (1 - mean)
    # with a single topic nothing varies
    return variances / (variances.sum() or 1.0)


def _ratios(variances: Array, shares: Array) -> tuple[Array, Array]:
    """Return variances (T, k) over their shares, and where they are known."""
    there = (variances > 0) & (shares > 0)[:, None]
    return np.where(there, variances, 0.0) / np.where(shares > 0, shares, 1.0)[:, None], there


def _mean_log(freedom: Array) -> Array:
    """Return the mean of the logarithm of a chi-square variable over its degrees of freedom."""
    means: Array = digamma(freedom / 2) - log(freedom / 2)
    return means
