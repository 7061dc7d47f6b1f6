"""Variances of many responses from few units, moderated by empirical Bayes as in limma.

With d degrees of freedom, variances are ``s^2 ~ sigma^2 chi^2_d / d``, and ``sigma^2`` has a scaled
inverse chi-square prior with scale ``s_0^2`` and ``d_0`` degrees of freedom [1]_. The scale may
follow a trend over the means of the responses, and outliers may keep their own variances [2]_.

References
----------
.. [1] Smyth (2004). Linear models and empirical Bayes methods for assessing differential expression
   in microarray experiments. Statistical Applications in Genetics and Molecular Biology.
.. [2] Phipson, Lee, Majewski, Alexander, Smyth (2016). Robust hyperparameter estimation protects
   against hypervariable genes and improves power to detect differential expression. The Annals of
   Applied Statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ..kernels import dense
from ..kernels.decompositions import solve
from ..kernels.functions import digamma, exp, log, trigamma
from .quantiles import f_tail, trigamma_inverse

Array = NDArray[Any]
# Variances below this share of their median are raised to it: their logarithms would be outliers.
_LEAST_SHARE = 1e-5
# Most knots of the trend, and fewest responses for each; share of the responses, those with the
# largest means, that determines d_0: variances of small counts are not chi-square.
_KNOTS, _PER_KNOT, _LARGE = 5, 30, 0.25
# False discovery rate at which variances are outliers; from here on d_0 is taken as infinite.
_OUTLIER_RATE, _MOST_FREEDOM = 0.05, 1000.0


@dataclass(frozen=True)
class VariancePrior:
    """The prior of variances: `scale`, and its degrees of `freedom`, inf if variances are equal."""

    scale: float
    freedom: float

    @classmethod
    def of(cls, variances: Array, freedom: Array) -> VariancePrior:
        """Estimate the prior from variances (n,) with degrees of freedom (n,), by moments of logs.

        A single variance, or variances that are all 0, are their own prior.
        """
        median = float(np.median(variances))
        if len(variances) < 2 or not median > 0:
            return cls(median, 0.0)
        logs, half = _centred_logs(variances, freedom, median)
        mean = float(logs.mean())
        excess = float(logs.var(ddof=1) - trigamma(half).mean())
        if excess <= 0:
            return cls(float(exp(mean)), math.inf)
        of_prior = trigamma_inverse(excess)
        return cls(float(exp(mean + digamma(of_prior) - log(of_prior))), 2 * of_prior)

    def moderated(self, variances: Array, freedom: Array) -> tuple[Array, Array]:
        """Return posterior variances, and their degrees of freedom: all together at most."""
        freedom = np.broadcast_to(np.asarray(freedom, np.float64), variances.shape)
        if math.isinf(self.freedom):
            values = np.full(variances.shape, self.scale)
        else:
            values = (self.freedom * self.scale + freedom * variances) / (self.freedom + freedom)
        return values, np.minimum(freedom + self.freedom, freedom.sum())


@dataclass(frozen=True)
class VarianceTrend:
    """The prior of n variances with a trend: `scale` (n,), and its degrees of `freedom`."""

    scale: Array
    freedom: float

    @classmethod
    def of(cls, variances: Array, freedom: Array, means: Array) -> VarianceTrend:
        """Estimate the prior from variances (n,) with degrees of freedom (n,).

        `means` (n,) are those of the responses, positive. A single variance, or variances that are
        mostly 0, are their own prior.
        """
        n, median = len(variances), float(np.median(variances))
        if n < 2 or not median > 0:
            return cls(np.full(n, max(median, np.finfo(float).tiny)), 0.0)
        logs, half = _centred_logs(variances, freedom, median)
        basis, weights = _hat_functions(log(means)), 1 / trigamma(half)
        weighted = basis * weights[:, None]
        sums = dense.cross(weighted, logs[:, None])
        trend = dense.product(basis, solve(dense.cross(weighted, basis), sums))[:, 0]
        large = weights * (means >= np.quantile(means, 1 - _LARGE))
        spread = (large * (logs - trend) ** 2).sum() * (n / max(n - basis.shape[1], 1))
        excess = float((spread - (large * trigamma(half)).sum()) / large.sum())
        if excess <= 0:
            return cls(exp(trend), math.inf)
        of_prior = trigamma_inverse(excess)
        return cls(exp(trend + digamma(of_prior) - log(of_prior)), 2 * of_prior)

    def moderated(self, variances: Array, freedom: Array) -> tuple[Array, Array]:
        """Return posterior variances, and their degrees of freedom, from 1 to those of all.

        Variances that are much larger than their prior are not moderated.
        """
        values, total = VariancePrior(1.0, self.freedom).moderated(variances / self.scale, freedom)
        values = values * self.scale
        if self.freedom > 0:
            tails = f_tail(variances / self.scale, freedom, min(self.freedom, _MOST_FREEDOM))
            own = false_discovery_control(np.minimum(tails, 1.0)) <= _OUTLIER_RATE
            values[own], total[own] = variances[own], freedom[own]
        return values, np.maximum(total, 1.0)


def _centred_logs(variances: Array, freedom: Array, median: float) -> tuple[Array, Array]:
    """Return the logarithms of variances, less the bias of the logarithm, and half the freedom."""
    half = np.asarray(freedom, np.float64) / 2
    return log(np.maximum(variances, _LEAST_SHARE * median)) - digamma(half) + log(half), half


def _hat_functions(x: Array) -> Array:
    """Return linear splines (n, p) that add up to 1, with knots at quantiles of x (n,)."""
    n_knots = min(_KNOTS, max(1, len(x) // _PER_KNOT))
    knots = np.unique(np.quantile(x, np.arange(n_knots) / max(n_knots - 1, 1)))
    out = np.ones((len(x), len(knots)))
    for i, knot in enumerate(knots):
        if i > 0:
            out[:, i] = np.minimum(out[:, i], (x - knots[i - 1]) / (knot - knots[i - 1]))
        if i < len(knots) - 1:
            out[:, i] = np.minimum(out[:, i], (knots[i + 1] - x) / (knots[i + 1] - knot))
    return np.maximum(out, 0.0)
