"""The default method, solver="auto": Newton steps on L and on F, with momentum on both.

With u the column sums of the held factor and mu = L F^T, the loss of a row b with held rows a_j is
``sum_k b_k u_k - sum_j x_j log(a_j . b)``; its gradient is ``g = u - sum_j x_j a_j / mu_j`` and its
curvature ``H = sum_j x_j a_j a_j^T / mu_j^2``.  One iteration:

1. Rows, one read.  Far from the optimum an EM step ``b_k <- b_k (u_k - g_k) / u_k``; then a Newton
   step: the minimum of ``g.d + d.H d / 2`` over b + d >= 0, by coordinate descent.  The
   log-likelihood at the point before the update is a by-product.
2. Judge that point. Momentum is beta = k / (k + delay); k rises while it pays, and restarts when
   the log-likelihood falls. After a fall by more than the last iterations gained, return to the
   best point, take EM steps first, and use more delay.
3. Extrapolate L: ``L <- L2 + beta (L2 - D L1)``, with L1 and L2 the last two plain points and D the
   change of scale between them (see `scales.scale_of_before`).
4. Columns, one read. The same update for F, from gradient and curvature summed over the blocks.

Once a fit is no longer far from its optimum, the full curvature of a row is computed every
`FRESH_EVERY` iterations. In between its correlations are kept and only its diagonal is computed,
which costs little more than a gradient; late in a fit the stored curvature is only rescaled by the
numerators. With many components (see `shares_correlations`) all rows share their correlations,
computed on a sample of rows: ``H = S C S`` with S the square root of the row's own diagonal.  A fit
in float64 begins in float32.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ...counts.base import CountMatrix
from ...engine.protocol import Values
from ..factors import MINVAL, Array, Constraints, Factor, aligned_copy
from .efficiencies import ADAPT_EVERY, SCALE_EVERY, BatchEfficiencies
from .extrapolation import ExtrapolateRows, Momentum
from .objective import HISTORY, FactorModel, beyond_float32
from .row_update import EM
from .scales import (
    scale_batches,
    scale_features,
    scale_of_before,
    scale_of_means,
    scale_of_priors,
)
from .schedule import FRESH_EVERY, MomentumSchedule
from .state import PoissonState
from .steps import Convert, convert

# With more components than `OWN_UNTIL`, or more than `OWN_ALWAYS` and this many numbers of
# curvature of F, rows share the correlations of their curvature, computed on a sample of rows every
# `FRESH_EVERY` iterations: cost and memory are then linear in K. Per-row correlations need 3 to 10
# times fewer iterations to converge to the last nat; with shared ones, saddle points at K = 20 cost
# hundreds of iterations.
OWN_ALWAYS, OWN_UNTIL, OWN_MOST = 16, 32, 25_000_000
# Momentum leaves at least this share of a parameter: if it is the only one that explains a count,
# removing it costs more than the rest of the step gains. A Newton step may still reach zero.
MOMENTUM_LEAVES = 0.2


class Newton(FactorModel):
    """The default method: see the top of this file.

    Row arrays: ``L``, the current point; ``next``, its plain point; ``before``, the previous plain
    point; ``best``, the best point so far, in the initial type of the fit. For F, only its
    difference from its plain point is stored, in 16 bits (bfloat16): it vanishes as the fit
    converges, so that few digits are enough for momentum.
    """

    record = HISTORY
    ends_with_update = True

    def __init__(self, *arguments: Any, max_iter: int, momentum: bool = True, **options: Any):
        super().__init__(*arguments, **options)
        counts, K, constraints = self.counts, self.n_components, self.constraints
        self.begin_dtype = np.dtype(
            first_type(self.dtype, counts, K, constraints, max_iter, self.executor.n_threads)
        )
        self.max_iter, self.momentum = max_iter, momentum
        self.pending = {}
        self._columns = EM
        self._loglik = self._kkt_loadings = np.nan

    def start(self) -> None:
        """Move to the start."""
        self.state = state = self.make_state(self.begin_dtype)
        if isinstance(state.efficiencies, BatchEfficiencies):
            state.efficiencies.estimate(state.F)
        self.executor.copy("L", "before")
        self.executor.copy("L", "best")
        self.best_F = aligned_copy(state.F.values)
        self.lag_F = np.zeros(state.F.values.shape, np.uint16)
        self.schedule = self._schedule()

    def _schedule(self, **state: Any) -> MomentumSchedule:
        """Return the schedule of the momentum, new or restored."""
        own = {"columns_whole": self.executor.one_block}
        own["shared"] = shares_correlations(self.n_components, self.counts.shape[1])
        return MomentumSchedule(**{"momentum": self.momentum} | state | own)

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Update the rows, and on the way compute the objective at the current point."""
        # 1. of the module's docstring: rows; the objective belongs to the point before the update
        rows, self._columns = self.schedule.updates(iteration)
        seen, at = self.look(rows, "next")
        self._loglik = at["loglik"]
        self._kkt_loadings = seen.kkt / self.objective.scale_L
        if not iteration:
            return None
        # kkt_factors is from the update of the columns half an iteration earlier
        return self.pending | at | {"kkt_loadings": self._kkt_loadings}

    def update(self, iteration: int, ending: bool) -> None:
        """Judge the point; extrapolate L and move F, or return to the best point."""
        schedule, state = self.schedule, self.state
        # 2. judge the point
        if schedule.judge(self._loglik) or ending:
            if self._loglik < schedule.best[-1]:
                self._go_back()
            if not ending:
                return
            # The last iteration is an EM iteration: from the best known point it can only rise.
            schedule.warmup, self._columns = 1, EM
            state.update_rows(EM)
        self._advance()
        if ending:
            return
        schedule.count_warmup()
        self._adapt(iteration)
        late = schedule.settled or iteration >= self.max_iter - 3
        if late and state.dtype != self.dtype:
            self._as_type(self.dtype)
        self._rescale(late)

    def _adapt(self, iteration: int) -> None:
        """Adapt scales of batches and features and the prior of efficiencies, with batches."""
        efficiencies = self.state.efficiencies
        if isinstance(efficiencies, BatchEfficiencies):
            if iteration % ADAPT_EVERY == 1:
                scale_batches(self.state, "before")
            if iteration % SCALE_EVERY == 0:
                scale_features(self.state, self.lag_F)
            if iteration % ADAPT_EVERY == 0:
                efficiencies.estimate(self.state.F, 1)

    def residuals_here(self) -> dict[str, Any]:
        """Return the residuals of the current point; a fit can end only at the best point."""
        if self._loglik < self.schedule.best[-1]:
            return dict.fromkeys(self.residuals, np.inf)
        return {"kkt_loadings": self._kkt_loadings, "kkt_factors": self.kkt_factors()}

    def _advance(self) -> None:
        schedule, state = self.schedule, self.state
        scale, best = scale_of_before(state), None
        if schedule.improved:
            self._copy("L", "best")
            best = self.best_F
        momentum = Momentum(schedule.beta, scale, MOMENTUM_LEAVES)
        # 3. extrapolate L, and add up what the columns need
        (of_rows,), sums = state.advance(
            ExtrapolateRows(self.n_components, momentum), columns=self._columns
        )
        rows = state.note_rows(of_rows)
        self.executor.copy("next", "before")
        # 4. columns
        kkt, columns = state.extrapolate_columns(
            self._columns, sums, self.lag_F, best, momentum._replace(scale=1 / scale)
        )
        self.pending = {
            "blind": not schedule.zeros_moved, "kkt_factors": kkt / self.objective.scale_F,
            "momentum": schedule.beta, **rows, **columns,
        }  # fmt: skip

    def _copy(self, source: str, target: str) -> None:
        """Make two names refer to one point, each in its own dtype."""
        if self.begin_dtype == self.state.dtype:
            self.executor.copy(source, target)
            return
        dtype = self.begin_dtype if target == "best" else self.state.dtype
        self.executor.apply(Convert(source, target, self.n_components, dtype=str(dtype)))

    def _go_back(self) -> None:
        """Return to the best point."""
        self.schedule.go_back()
        self._copy("best", "L")
        self.executor.copy("L", "before")
        np.copyto(self.state.F.values, self.best_F)
        self.lag_F[:] = 0
        self.state.sum_columns()

    def _as_type(self, dtype: Any) -> None:
        self.executor.drop("next")  # frees memory for larger arrays
        self.state.as_type(dtype, "L", "before")

    def _rescale(self, late: bool) -> None:
        """Scale the columns of L and F to the best scale under priors, or late to equal means.

        Updates of one factor at a time would approach the best scale very slowly. Momentum lets the
        means drift apart, so far that the floor of one factor matters in products with the other.
        """
        schedule, state, constraints = self.schedule, self.state, self.constraints
        scale: Array = np.ones(self.n_components)
        if late and not schedule.balanced and constraints.free:
            schedule.balanced = True
            scale = scale_of_means(state)
            schedule.curvature_age = FRESH_EVERY
        elif constraints.movable and not constraints.free:
            scale = scale_of_priors(state)
        if (scale == 1).all():
            return
        K, before = self.n_components, (state.total_L_before.copy(), state.total_F_before.copy())
        floors = np.full(K, 2 * MINVAL)
        for name in ("L", "before", "best"):
            dtype = str(self.begin_dtype) if name == "best" else None
            self.executor.apply(Convert(name, name, K, dtype, scale=scale, least=floors))
        for values in (self.best_F, state.F.values):
            convert(Factor(values, state.F.n_rows, K), scale=1 / scale, least=floors)
        lag = (self.lag_F.astype(np.uint32) << 16).view(np.float32)
        lag[:, :K] /= scale.astype(np.float32)
        self.lag_F[:] = lag.view(np.uint32) >> 16
        state.sum_columns()
        before[0][:K] *= scale
        before[1][:K] /= scale
        state.total_L_before, state.total_F_before = before

    def finish(self, settled: bool) -> Values:
        """Restore exact zeros."""
        best = self.schedule.best[-1]
        self.executor.drop("next", "before", "best")
        del self.best_F, self.lag_F  # no longer needed
        if self.state.dtype != self.dtype:
            self.state.as_type(self.dtype, "L")
        if settled:  # extrapolation may have raised parameters at the floor
            floors = np.full(self.n_components, 2 * MINVAL)
            self.executor.apply(Convert("L", "L", self.n_components, least=floors))
            convert(self.state.F, least=floors)
        return self.record_end(self.pending, best)

    def row_arrays(self) -> dict[str, str]:
        """Return the row arrays of a snapshot other than L."""
        return {"before_L": "before", "best_L": "best"}

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of how far F is ahead, and of F at the best point."""
        return {"lag_F": self.shape_of_F, "best_F": self.shape_of_F}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return numbers and arrays from which `restore` rebuilds the state."""
        numbers, arrays = super().snapshot()
        more = {"dtype": str(self.state.dtype), "schedule": asdict(self.schedule)}
        return numbers | more, arrays

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the state saved by `snapshot`."""
        super().restore(numbers, arrays)
        self.schedule = self._schedule(**numbers["schedule"])

    def resumed_state(self, numbers: dict[str, Any]) -> PoissonState:
        """Return a state of the dtype that a snapshot had, without factors."""
        state = self.make_state(self.begin_dtype, begun=True)
        if state.dtype != np.dtype(numbers["dtype"]):
            state.as_type(np.dtype(numbers["dtype"]))
        return state


def shares_correlations(n_components: int, n_features: int) -> bool:
    """Whether rows share the correlations of their curvature: see `OWN_UNTIL`.

    Only the shape of the counts decides, so that the choice does not depend on where they are.
    """
    if n_components <= OWN_ALWAYS:
        return False
    numbers = n_features * n_components * (n_components + 1) // 2
    return n_components > OWN_UNTIL or numbers > OWN_MOST


def first_type(
    dtype: Any,
    counts: CountMatrix,
    n_components: int,
    constraints: Constraints,
    max_iter: int,
    n_threads: int,
) -> Any:
    """Return the initial dtype of a fit: float32 if it loses nothing, unless the fit ends soon.

    Float32 would disturb K = 1, which starts at its optimum, and fixed parameters.
    """
    fixed = constraints.topics, constraints.features, constraints.samples
    if max_iter <= 4 or n_components == 1 or any(mask is not None for mask in fixed):
        return dtype
    if np.dtype(dtype) == np.float32 or beyond_float32(counts, n_threads):
        return dtype
    return np.float32
