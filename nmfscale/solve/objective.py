"""From the sums that kernels report to log-likelihood, deviance and relative KKT residuals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from .factor import Report, in_order
from .updates import Halves

Array = NDArray[Any]


class Objective:
    """Constants of the counts, so that an iteration's diagnostics cost no pass over them.

    With loss = sum(mu) - sum x log mu, the Poisson log-likelihood is -loss - sum log x! and the
    deviance is 2 (loss + sum x log x - sum x). By Lemma 1 the multinomial log-likelihood is the
    Poisson one less sum_i log Poisson(t_i; s_i), with t_i the total and s_i = sum_k l_ik u_k the
    size of sample i.
    """

    def __init__(self, halves: Halves):
        counts = halves.counts
        order = halves.layout.row_order
        self.n_components = halves.n_components
        self._real = order >= 0
        self._weights = np.where(self._real, 1.0, 0.0) if halves.weights is None else halves.weights
        totals = np.zeros(len(order))
        totals[self._real] = counts.row_totals[order[self._real]]
        self._totals = totals
        self._log_factorials, self._x_log_x = _constants(halves)
        self._total = in_order(totals * self._weights)
        self._log_total_factorials = in_order(gammaln(totals + 1) * self._weights)
        self.scale_L = self._total / counts.shape[0] or 1.0
        self.scale_F = self._total / counts.shape[1] or 1.0

    def at(self, halves: Halves, report: Report) -> dict[str, float]:
        """Log-likelihoods and deviance where `halves` stands; sum x log mu there is in `report`."""
        K = self.n_components
        L, total_F = halves.L.values, halves.total_F
        expected = float(halves.total_L[:K] @ total_F[:K])
        loss = expected - report.log_mu
        sizes = np.maximum(L[:, :K] @ total_F[:K].astype(L.dtype), 1e-300).astype(np.float64)
        size_terms = (
            in_order(xlogy(self._totals, sizes) * self._weights)
            - expected
            - self._log_total_factorials
        )
        loglik = -loss - self._log_factorials
        return {
            "loglik": loglik + self.log_prior(halves),
            "loglik_multinomial": loglik - size_terms,
            "deviance": 2 * (loss + self._x_log_x - self._total),
            "bytes_read": halves.layout.bytes_read,
        }

    def log_prior(self, halves: Halves) -> float:
        """Sum of pseudo log b - rate b over both factors, the Gamma priors less their constants."""
        out = 0.0
        for factor in (halves.L, halves.F):
            if factor.pseudo is not None and factor.rate is not None:
                b = factor.values.astype(np.float64)
                terms = xlogy(factor.pseudo, np.maximum(b, 1e-300)) - factor.rate * b
                out += math.fsum(terms[factor.order >= 0].sum(axis=0))
        return out


def _constants(halves: Halves) -> tuple[float, float]:
    """Sum log x! and x log x over the nonzeros; by a table where counts are small and whole."""
    counts, weights = halves.counts, halves.weights
    found = halves.layout.count_values() if weights is None else None
    if found is not None:
        values, times = (array.astype(np.float64) for array in found)
        return float(times @ gammaln(values + 1)), float(times @ xlogy(values, values))
    order = halves.layout.row_order
    sums = []
    for function in (lambda x: gammaln(x + 1), lambda x: xlogy(x, x)):
        per_row = np.append(counts.row_sums(function), 0.0)[order]
        sums.append(in_order(per_row if weights is None else per_row * weights))
    return sums[0], sums[1]
