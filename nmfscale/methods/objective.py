"""From the sums that kernels report to log-likelihood, deviance and relative KKT residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from ..counts.base import CountMatrix
from .factors import Report, in_order
from .poisson import Halves

Array = NDArray[Any]
# Rounding of float32 is then as large as what three late iterations gain: see `FLOAT_UNTIL`.
_MOST_NOISE = 2.0


class Objective:
    """Constants of the counts, so that an iteration's diagnostics cost no pass over them.

    With loss = sum(mu) - sum x log mu, the Poisson log-likelihood is -loss - sum log x! and the
    deviance is 2 (loss + sum x log x - sum x). By Lemma 1 the multinomial log-likelihood is the
    Poisson one less sum_i log Poisson(t_i; s_i), with t_i the total and s_i = sum_k l_ik u_k the
    size of sample i.
    """

    def __init__(self, halves: Halves):
        counts, rows = halves.counts, halves.rows.all
        self._log_factorials, self._x_log_x = _constants(halves)
        self._total = rows.weighted(rows.totals)
        self._log_total_factorials = rows.weighted(gammaln(rows.totals + 1))
        self.scale_L = in_order(rows.totals) / counts.shape[0] or 1.0  # no row of L knows weights
        self.scale_F = self._total / counts.shape[1] or 1.0

    def at(self, halves: Halves, report: Report) -> dict[str, float]:
        """Log-likelihoods and deviance where `halves` stands; sum x log mu there is in `report`."""
        K, rows = halves.n_components, halves.rows
        expected = float(halves.total_L[:K] @ halves.total_F[:K])
        loss = expected - report.log_mu
        size_terms = rows.log_sizes(halves.total_F) - expected - self._log_total_factorials
        loglik = -loss - self._log_factorials
        return {
            "loglik": loglik + rows.log_prior() + halves.F.log_prior(),
            "loglik_multinomial": loglik - size_terms,
            "deviance": 2 * (loss + self._x_log_x - self._total),
            "bytes_read": rows.bytes_read,
        }


def beyond_float32(counts: CountMatrix, n_threads: int) -> bool:
    """Whether float32 cannot tell points near an optimum apart by their log-likelihood.

    Its rounding errors add up like the root of sum (x log x)^2; the log-likelihood is about that of
    the saturated model, of which little is left where counts are large.
    """
    found = counts.layout(n_threads).count_values()
    if found is not None:
        values, times = (array.astype(np.float64) for array in found)
        squares, saturated = times @ xlogy(values, values) ** 2, times @ _saturated(values)
    else:
        squares = counts.row_sums(lambda x: xlogy(x, x) ** 2).sum()
        saturated = counts.row_sums(_saturated).sum()
    return bool(np.sqrt(squares) > _MOST_NOISE * saturated)


def _saturated(x: Array) -> Array:
    return gammaln(x + 1) + x - xlogy(x, x)


def _constants(halves: Halves) -> tuple[float, float]:
    """Sum log x! and x log x over the nonzeros; by a table where counts are small and whole."""
    counts, rows = halves.counts, halves.rows.all
    found = halves.layout.count_values() if rows.weights is None else None
    if found is not None:
        values, times = (array.astype(np.float64) for array in found)
        return float(times @ gammaln(values + 1)), float(times @ xlogy(values, values))
    sums = []
    for function in (lambda x: gammaln(x + 1), lambda x: xlogy(x, x)):
        per_row = np.append(counts.row_sums(function), 0.0)[halves.layout.row_order]
        sums.append(rows.weighted(per_row))
    return sums[0], sums[1]
