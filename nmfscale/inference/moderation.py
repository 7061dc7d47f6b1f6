"""Variances of many responses from few units, moderated by empirical Bayes as in limma.

With d degrees of freedom, variances are ``s^2 ~ sigma^2 chi^2_d / d``, and ``sigma^2`` has a scaled
inverse chi-square prior with scale ``s_0^2`` and ``d_0`` degrees of freedom [1]_.

References
----------
.. [1] Smyth (2004). Linear models and empirical Bayes methods for assessing differential expression
   in microarray experiments. Statistical Applications in Genetics and Molecular Biology.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.functions import digamma, exp, log, trigamma
from .quantiles import trigamma_inverse

Array = NDArray[Any]
# Variances below this share of their median are raised to it: their logarithms would be outliers.
_LEAST_SHARE = 1e-5


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
        half = np.asarray(freedom, np.float64) / 2
        logs = log(np.maximum(variances, _LEAST_SHARE * median)) - digamma(half) + log(half)
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
