"""Log-likelihood, deviance and relative KKT residuals from the sums that kernels report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...counts.base import CountMatrix
from ...engine.protocol import Executor, Values
from ...kernels.functions import log_gamma, xlogy
from ..declared import DeclaredMethod
from ..factors import (
    Array,
    Constraints,
    aligned_copy,
    per_lane,
    sum_lanes,
    weighted_sum,
)
from .efficiencies import BatchEfficiencies
from .row_update import EM, RowUpdate
from .state import TOTALS, PoissonState, Seen
from .steps import SAMPLES

# Columns of the history of a fit of two factors.
HISTORY = (
    "loglik", "loglik_multinomial", "deviance", "kkt_loadings", "kkt_factors", "change_loadings",
    "change_factors", "zeros_loadings", "zeros_factors", "momentum", "bytes_read",
)  # fmt: skip
SEEN = ("loglik_start", "kkt_start")
# Name of the shape of the prior of efficiencies, in a snapshot and a result.
BATCH_SHAPE = "batch_shape"
# An iteration falls if it loses more than by rounding.
FELL = 1e-6
# Rounding of float32 is then as large as the gain of three late iterations.
_MOST_NOISE = 2.0


class Objective:
    """Constants of the counts, with which diagnostics of an iteration need no pass over them.

    With loss = sum(mu) - sum x log mu, the Poisson log-likelihood is -loss - sum log x! and the
    deviance is 2 (loss + sum x log x - sum x). By Lemma 1 the multinomial log-likelihood is the
    Poisson one minus sum_i log Poisson(t_i; s_i), with t_i the total and s_i = sum_k l_ik u_k the
    size of sample i. If entries have weights, every sum is weighted: `of_entries` has sum w log x!
    and sum w x log x of each sample, and an entry of weight 2 counts like two equal features.
    """

    def __init__(
        self, counts: CountMatrix, layout: Any, totals: Array, weights: Array | None,
        of_entries: tuple[Array, Array] | None = None,
    ):  # fmt: skip
        constants = count_constants(counts, layout, weights, of_entries)
        self._log_factorials, self._x_log_x = constants
        self.total = weighted_sum(totals, weights)
        self._log_total_factorials = weighted_sum(log_gamma(totals + 1), weights)
        self.scale_L = sum_lanes(totals) / counts.shape[0] or 1.0  # the rows of L are not weighted
        self.scale_F = self.total / counts.shape[1] or 1.0

    def at(self, state: PoissonState, seen: Seen, terms: Values) -> dict[str, Any]:
        """Return log-likelihoods and deviance at the point of `state`; `seen` has sum x log mu."""
        K = state.n_components
        expected = terms.get("expected")  # of measured entries, if not all were measured
        if expected is None:
            expected = float((state.total_L[:K] * state.total_F[:K]).sum())
        log_means, marginal = _terms_of_batches(state, expected)
        loss = expected - seen.log_mu - log_means
        size_terms = terms["log_sizes"] - expected - self._log_total_factorials
        loglik = -loss - self._log_factorials
        more = marginal - (log_means - expected)
        return {
            "loglik": loglik + more + terms["log_prior"] + state.F.log_prior(),
            "loglik_multinomial": loglik - size_terms,
            "deviance": 2 * (loss + self._x_log_x - self.total),
            "bytes_read": state.executor.bytes_read,
        }


def _terms_of_batches(state: PoissonState, expected: float) -> tuple[float, float]:
    """Return sum T log e, and what takes the place of -sum mu in the log-likelihood."""
    efficiencies = state.efficiencies
    if isinstance(efficiencies, BatchEfficiencies):
        return efficiencies.terms(state.F)
    return 0.0, -expected


class FactorModel(DeclaredMethod):
    """Base of all methods that fit a Poisson NMF; `dtype` is the final dtype of the fit.

    `start` returns L (n, K) and F (m, K), positive; a resumed fit does not call it.
    """

    record = HISTORY
    residuals = ("kkt_loadings", "kkt_factors")
    numbers: ClassVar[tuple[str, ...]] = ("pending",)
    pending: dict[str, Any]
    state: PoissonState
    # whether a snapshot has the factors of `state`, and not only what a method declares
    keeps_state = True

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], tuple[Array, Array]],
        n_components: int, dtype: Any, constraints: Constraints,
    ):  # fmt: skip
        self.counts, self.executor, self.constraints = counts, executor, constraints
        self.n_components, self.dtype, self._start = n_components, np.dtype(dtype), start
        self.objective: Objective

    def make_state(self, dtype: Any, *, begun: bool = False) -> PoissonState:
        """Return the state at the start, or for a resumed fit, an empty state to restore."""
        shape = self.counts.shape[1], self.n_components
        L, F = (None, np.broadcast_to(0.0, shape)) if begun else self._start()
        state = PoissonState(self.counts, self.executor, L, F, dtype, self.constraints)
        self.objective = Objective(
            self.counts, state.layout, state.totals, state.weights, self.constraints.entry_constants
        )
        return state

    def record_end(self, pending: dict[str, Any], loglik: float) -> dict[str, Any]:
        """Restore exact zeros, and return the record of the final point.

        `known` is the log-likelihood that was reached. In a fit that ended early, a parameter at
        the floor may be the only one that explains a count, or a prior may keep it from zero: it
        then stays.
        """
        self.state.restore_zeros()
        end = self._look_at_both()
        fell = end["loglik"] < loglik - FELL * abs(loglik)
        # if a count is so large that rounding hides the fall, the residual overflows
        if fell or not np.isfinite(end["kkt_factors"]):
            self.state.lift_zeros()
            end = self._look_at_both()
        return pending | end

    def residuals_here(self) -> dict[str, Any]:
        """Return the residuals of the current point; those of a record belong to two points."""
        return self._look_at_both()

    def _look_at_both(self) -> dict[str, Any]:
        """Return the record of the current point without moving."""
        seen, at = self.look(EM, None)
        kkt_loadings = seen.kkt / self.objective.scale_L
        return at | {"kkt_loadings": kkt_loadings, "kkt_factors": self.kkt_factors()}

    def kkt_factors(self) -> float:
        """Return the residual of F at the current point, in one pass over the columns."""
        state = self.state
        _, sums = state.advance(columns=EM)
        moved = state.move_columns(EM, aligned_copy(state.F.values), sums)
        return moved / self.objective.scale_F

    def look(self, how: RowUpdate, target: str | None) -> tuple[Seen, dict[str, Any]]:
        """Update the rows into `target`; return the objective at the point before."""
        seen, terms = self.state.update_rows(how, target, reports=SEEN)
        return seen, self.objective.at(self.state, seen, terms)

    def row_arrays(self) -> dict[str, str]:
        """Return the row arrays of a snapshot other than L."""
        return {}

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of this process other than those of `state`."""
        return {}

    @property
    def shape_of_F(self) -> tuple[int, int]:
        """Shape of F in lane order."""
        return len(self.executor.layout.column_order), self.stride

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of every snapshot."""
        of_batches = {} if self.constraints.batches is None else {BATCH_SHAPE: (1,)}
        if not self.keeps_state:
            return super().shapes() | of_batches
        rows = len(self.executor.layout.row_order), self.stride
        of_state = {"L": rows, "F": self.shape_of_F} | dict.fromkeys(TOTALS, (self.stride,))
        return super().shapes() | of_state | of_batches

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return numbers and arrays from which `restore` rebuilds the state."""
        numbers, arrays = super().snapshot()
        efficiencies = self.state.efficiencies
        if isinstance(efficiencies, BatchEfficiencies):
            arrays = arrays | {BATCH_SHAPE: np.array([efficiencies.shape])}
        return numbers, arrays | (self.state.state() if self.keeps_state else {})

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the state saved by `snapshot`."""
        super().restore(numbers, arrays)
        self.state = self.resumed_state(numbers)
        if isinstance(self.state.efficiencies, BatchEfficiencies):
            self.state.efficiencies.shape = float(arrays[BATCH_SHAPE][0])
        if self.keeps_state:
            self.state.restore(arrays)

    def resumed_state(self, numbers: dict[str, Any]) -> PoissonState:
        """Return a state of the dtype that a snapshot had, without factors."""
        return self.make_state(self.dtype, begun=True)

    def result(self) -> dict[str, Array]:
        """Return L (n, K) and F (m, K) in the order of the counts.

        With batches, also return their efficiencies (B, m), and the shape (1,) of the prior.
        """
        arrays = {"L": self.plain_rows("L"), "F": self.plain_columns(self.state.F.values)}
        efficiencies, constraints = self.state.efficiencies, self.constraints
        if isinstance(efficiencies, BatchEfficiencies):
            e, of_features, of_batches = efficiencies.result(self.state.F, constraints.free)
            arrays["efficiencies"] = np.stack([*map(self.plain_columns, e.T)])
            if not (of_features == 1).all():
                assert constraints.groups is not None
                of_rows = of_batches[efficiencies.batches][constraints.groups]
                arrays["F"] *= self.plain_columns(of_features).astype(arrays["F"].dtype)[:, None]
                arrays["L"] *= of_rows.astype(arrays["L"].dtype)[:, None]
            arrays[BATCH_SHAPE] = np.array([efficiencies.shape])
        return arrays

    def release(self) -> None:
        """Release the arrays that the executor holds."""
        self.executor.drop("L", "totals", "curvature", "weighted", *SAMPLES)


def beyond_float32(counts: CountMatrix, n_threads: int) -> bool:
    """Whether float32 cannot distinguish the log-likelihoods of points near an optimum.

    Rounding errors add up like the square root of sum (x log x)^2. The log-likelihood is
    approximately that of the saturated model, which is small if counts are large.
    """
    count_values = counts.layout(n_threads).count_values()
    if count_values is not None:
        values, times = (array.astype(np.float64) for array in count_values)
        squares = (times * xlogy(values, values) ** 2).sum()
        saturated = (times * _saturated(values)).sum()
    else:
        squares = counts.row_sums(lambda x: xlogy(x, x) ** 2).sum()
        saturated = counts.row_sums(_saturated).sum()
    return bool(np.sqrt(squares) > _MOST_NOISE * saturated)


def _saturated(x: Array) -> Array:
    return log_gamma(x + 1) + x - xlogy(x, x)


def count_constants(
    counts: CountMatrix, layout: Any, weights: Array | None = None,
    of_rows: tuple[Array, Array] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Sum log x! and x log x over the nonzeros, using a table for small integer counts.

    `of_rows` are the sums over each row (n,), if they are not those of the counts.
    """
    count_values = layout.count_values() if weights is None and of_rows is None else None
    if count_values is not None:
        values, times = (array.astype(np.float64) for array in count_values)
        logs = log_gamma(values + 1), xlogy(values, values)
        return float((times * logs[0]).sum()), float((times * logs[1]).sum())
    of_rows = of_rows or (counts.row_log_factorials, counts.row_x_log_x)
    sums = [weighted_sum(per_lane(terms, layout.row_order), weights) for terms in of_rows]
    return sums[0], sums[1]
