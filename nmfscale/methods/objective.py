"""From the sums that kernels report to log-likelihood, deviance and relative KKT residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln, xlogy

from ..counts.base import CountMatrix
from ..engine.protocol import Executor, Model, Values
from .factors import Array, Constraints, aligned_copy, from_lanes, sum_lanes
from .poisson import PoissonState, Seen
from .steps import weighted_sum

# Columns of the history of a fit of two factors.
HISTORY = (
    "loglik", "loglik_multinomial", "deviance", "kkt_loadings", "kkt_factors", "change_loadings",
    "change_factors", "zeros_loadings", "zeros_factors", "momentum", "bytes_read",
)  # fmt: skip
SEEN = ("loglik_start", "kkt_start")
# An iteration falls if it loses more than rounding does.
FELL = 1e-6
# Rounding of float32 is then as large as what three late iterations gain.
_MOST_NOISE = 2.0


class Objective:
    """Constants of the counts, so that an iteration's diagnostics cost no pass over them.

    With loss = sum(mu) - sum x log mu, the Poisson log-likelihood is -loss - sum log x! and the
    deviance is 2 (loss + sum x log x - sum x). By Lemma 1 the multinomial log-likelihood is the
    Poisson one less sum_i log Poisson(t_i; s_i), with t_i the total and s_i = sum_k l_ik u_k the
    size of sample i.
    """

    def __init__(self, counts: CountMatrix, layout: Any, totals: Array, weights: Array | None):
        self._log_factorials, self._x_log_x = _constants(counts, layout, weights)
        self._total = weighted_sum(totals, weights)
        self._log_total_factorials = weighted_sum(gammaln(totals + 1), weights)
        self.scale_L = sum_lanes(totals) / counts.shape[0] or 1.0  # no row of L knows weights
        self.scale_F = self._total / counts.shape[1] or 1.0

    def at(self, state: PoissonState, seen: Seen, terms: Values) -> dict[str, Any]:
        """Return log-likelihoods and deviance where `state` stands; sum x log mu is in `seen`."""
        K = state.n_components
        expected = float(state.total_L[:K] @ state.total_F[:K])
        loss = expected - seen.log_mu
        size_terms = terms["log_sizes"] - expected - self._log_total_factorials
        loglik = -loss - self._log_factorials
        return {
            "loglik": loglik + terms["log_prior"] + state.F.log_prior(),
            "loglik_multinomial": loglik - size_terms,
            "deviance": 2 * (loss + self._x_log_x - self._total),
            "bytes_read": state.blocks.bytes_read,
        }


class FactorModel(Model):
    """What all methods of fitting a Poisson NMF share; `dtype` is that in which the fit ends."""

    record = HISTORY
    residuals = ("kkt_loadings", "kkt_factors")
    state: PoissonState

    def __init__(
        self, counts: CountMatrix, blocks: Executor, L: Array, F: Array, dtype: Any,
        constraints: Constraints,
    ):  # fmt: skip
        self.counts, self.blocks, self.constraints = counts, blocks, constraints
        self.n_components, self.dtype = F.shape[1], np.dtype(dtype)
        self._start: tuple[Array, Array] | None = (L, F)
        self.objective: Objective

    def make_state(self, dtype: Any) -> PoissonState:
        """Return the state at the start."""
        assert self._start is not None
        L, F = self._start
        self._start = None
        state = PoissonState(self.counts, self.blocks, L, F, dtype, self.constraints)
        self.objective = Objective(self.counts, state.layout, state.totals, state.weights)
        return state

    def record_end(self, pending: dict[str, Any], known: float) -> dict[str, Any]:
        """Restore exact zeros and return the record of the point that is handed back.

        `known` is the log-likelihood that was reached. Of a fit that was ended early, what is at
        the floor may be all that explains a count, or what a prior keeps from zero: there it stays.
        """
        state = self.state
        state.restore_zeros()
        seen, at = self.look(None, em_steps=1)
        if at["loglik"] < known - FELL * abs(known):
            state.lift_zeros()
            seen, at = self.look(None, em_steps=1)
        _, sums = state.advance(columns={"em_steps": 1})
        kkt_factors = state.move_columns(aligned_copy(state.F.values), sums, em_steps=1)
        return pending | at | {
            "kkt_loadings": seen.kkt / self.objective.scale_L,
            "kkt_factors": kkt_factors / self.objective.scale_F,
        }  # fmt: skip

    def look(self, target: str | None, **options: Any) -> tuple[Seen, dict[str, Any]]:
        """Update the rows into `target`; return what the point is worth where they began."""
        seen, terms = self.state.update_rows(target, reports=SEEN, **options)
        return seen, self.objective.at(self.state, seen, terms)

    def result(self) -> dict[str, Array]:
        """Return L (n, K) and F (m, K) in the order of the counts."""
        state, K = self.state, self.n_components
        rows, columns = state.layout.row_order, state.layout.column_order
        L = from_lanes(self.blocks.get("L"), rows, state.n_rows, K, self.blocks.folder)
        return {"L": L, "F": from_lanes(state.F.values, columns, state.F.n_rows, K)}


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


def _constants(counts: CountMatrix, layout: Any, weights: Array | None) -> tuple[float, float]:
    """Sum log x! and x log x over the nonzeros; by a table where counts are small and whole."""
    found = layout.count_values() if weights is None else None
    if found is not None:
        values, times = (array.astype(np.float64) for array in found)
        return float(times @ gammaln(values + 1)), float(times @ xlogy(values, values))
    sums = []
    for function in (lambda x: gammaln(x + 1), lambda x: xlogy(x, x)):
        per_row = np.append(counts.row_sums(function), 0.0)[layout.row_order]
        sums.append(weighted_sum(per_row, weights))
    return sums[0], sums[1]
