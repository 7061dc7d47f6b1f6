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

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...engine.protocol import Values
from ..factors import MINVAL, Array, Constraints, Factor, aligned_copy
from .efficiencies import ADAPT_EVERY, SCALE_EVERY, BatchEfficiencies
from .extrapolation import ExtrapolateRows, Momentum
from .objective import FELL, HISTORY, FactorModel, beyond_float32
from .row_update import EM, EXACT, SHARED, RowUpdate
from .scales import (
    scale_batches,
    scale_features,
    scale_of_before,
    scale_of_means,
    scale_of_priors,
)
from .state import PoissonState
from .steps import Convert, convert

# A fit is "far" in the first iterations, and as long as three of them gain more than this share of
# the log-likelihood.
FRESH_UNTIL, FRESH_ABOVE, FRESH_EVERY = 6, 3e-3, 6
# With more components than `OWN_UNTIL`, or more than `OWN_ALWAYS` and this many numbers of
# curvature of F, rows share the correlations of their curvature, computed on a sample of rows every
# `FRESH_EVERY` iterations: cost and memory are then linear in K. Per-row correlations need 3 to 10
# times fewer iterations to converge to the last nat; with shared ones, saddle points at K = 20 cost
# hundreds of iterations.
OWN_ALWAYS, OWN_UNTIL, OWN_MOST = 16, 32, 25_000_000
# The loss of a column of few counts is far from quadratic: if columns are whole, those with at most
# this many nonzeros take an EM step before the Newton step, until a fit is late.
EM_LONGEST = 256
# A fit is "late" if three iterations gain less than this share, and none has fallen for a while.
# Curvature then changes so little that rescaling by the numerators is enough. With the same gain,
# quadratic models are minimised exactly, if they are those of each row.
LATE_BELOW = 1e-4
# Momentum is k / (k + delay).  It is aggressive as long as three iterations gain more than this
# share of the log-likelihood, until it has overshot once: this is faster, and fits end higher.
MOMENTUM_DELAY, AGGRESSIVE_DELAY, AGGRESSIVE_ABOVE = 3.0, 0.45, 4e-4
# Momentum leaves at least this share of a parameter: if it is the only one that explains a count,
# removing it costs more than the rest of the step gains. A Newton step may still reach zero.
MOMENTUM_LEAVES = 0.2
# Momentum grows as long as an iteration gains this share of the previous gain. Otherwise it
# restarts; but as long as three iterations gain more than this share of the log-likelihood, it only
# stops growing, because restarts far from the optimum lead to lower ends.
MIN_GAIN_RATIO, RESTART_BELOW = 0.4, 1e-3
# Near the end, if three iterations gain less than this share, momentum grows until the
# log-likelihood falls: gains fluctuate there, and restarts would make convergence very slow.
PATIENT_BELOW = 3e-6
# After a fall by more than the gain over this many points, the fit returns to the best point and
# increases the delay.
GAIN_OVER, SLOWER = 10, 1.4
# Number of EM iterations, which never lower the likelihood, at the start and after each return to
# the best point (doubled each time).
WARMUP, WARMUP_MOST = 1, 16
# EM continues as long as an iteration gains more than this share of the log-likelihood.
WARMUP_ABOVE = 1e-3
# The EM step before the Newton step on L matters far from the optimum, but not once three
# iterations gain less than this share. Shared correlations describe a row less well, and a second
# pass costs as much as the step: with them every second iteration has the EM step until the end.
EM_ABOVE = 1e-3
# Float32 is sufficient down to about this relative gain of three iterations; the rest of a fit runs
# in the requested type.
FLOAT_UNTIL = 1e-7


@dataclass
class MomentumSchedule:
    """Schedule of updates and momentum, based on the log-likelihoods so far."""

    momentum: bool = True
    # rows share the correlations of their curvature
    shared: bool = False
    # all counts are in one block
    columns_whole: bool = True
    # the best log-likelihood so far, after each point; number of points since the last fall
    best: list[float] = field(default_factory=list)
    n_rising: int = 0
    # k, the gain of the last point, and the delay of beta = k / (k + delay)
    count: float = 0.0
    gained: float = 0.0
    delay: float = AGGRESSIVE_DELAY
    # remaining EM iterations, and their number after a return to the best point
    warmup: int = WARMUP
    patience: int = 1
    # iterations since curvature was computed
    curvature_age: int = FRESH_EVERY
    # the current point is the best; the fit has just returned to it
    improved: bool = False
    returned: bool = False
    # a Newton step could have lifted zeros of the start
    zeros_moved: bool = False
    # the column means of L and F have been made equal
    balanced: bool = False

    def updates(self, iteration: int) -> tuple[RowUpdate, RowUpdate]:
        """Return the next updates of rows and of columns."""
        fresh = self.curvature_age >= FRESH_EVERY - 1
        refresh = self.shared and fresh
        if self.warmup:
            return (replace(EM, refresh=refresh),) * 2
        self.zeros_moved = True
        late = not self.shared and self.slow(LATE_BELOW)
        curvature = None
        near = iteration >= FRESH_UNTIL - 1 and self.gain(3) < FRESH_ABOVE
        if self.shared or near:
            self.curvature_age = 0 if fresh else self.curvature_age + 1
            reused = kernels.RESCALE if late else kernels.REUSE
            own = kernels.STORE if fresh else reused
            curvature = SHARED if self.shared else own
        else:
            self.curvature_age = FRESH_EVERY
        far = self.gain(3) > EM_ABOVE
        newton = RowUpdate(newton_steps=1, curvature=curvature, refresh=refresh)
        if not self.shared and self.gain(3) < LATE_BELOW:
            newton = replace(newton, **EXACT)
        rows = columns = newton
        if far or (self.shared and iteration % 2 == 0):
            rows = replace(newton, em_steps=1)
        if self.columns_whole and not late:
            columns = replace(newton, em_steps=1, em_longest=EM_LONGEST)
        return rows, columns

    def judge(self, loglik: float) -> bool:
        """Record the log-likelihood of the current point; return whether it fell too far.

        A small fall only removes most of the momentum. After a fall by more than the gain of the
        last iterations, the fit must return to the best point.
        """
        if self.returned:  # the stored best point may have lost some digits
            self.best[-1] = min(loglik, self.best[-1])
        best = self.best[-1] if self.best else loglik
        before, self.gained = self.gained, max(loglik - best, 0.0)
        self.improved, self.returned = loglik >= best, False
        self.n_rising = self.n_rising + 1 if best - loglik <= FELL * abs(best) else 0
        least = MIN_GAIN_RATIO * before if self.gain(3) > PATIENT_BELOW else 0.0
        if self.improved and (self.count < 2 or self.gained >= least):
            self.count += 1
        elif not self.improved or self.gain(3) < RESTART_BELOW:
            self.count = 1.0
        self.best.append(max(best, loglik))
        gained = self.best[-1] - self.best[max(-len(self.best), -GAIN_OVER)]
        return self.best[-1] - loglik > max(gained, 0.0)

    def go_back(self) -> None:
        """Reduce momentum after a fall in log-likelihood."""
        if self.delay < MOMENTUM_DELAY:
            self.delay, self.warmup = MOMENTUM_DELAY, WARMUP
        else:
            self.delay *= SLOWER
            self.warmup = self.patience = min(2 * self.patience, WARMUP_MOST)
        self.improved, self.returned = False, True

    def count_warmup(self) -> None:
        """Count down the iterations of EM; the last is repeated while EM still gains fast."""
        if self.warmup:
            self.count = 0.0
        climbs = self.warmup > 0 and self.gain(1) > WARMUP_ABOVE
        self.warmup = max(self.warmup - 1, int(climbs))

    def gain(self, iterations: int) -> float:
        """Return the relative gain of the last iterations, infinity before there are enough."""
        if len(self.best) <= iterations:
            return np.inf
        gained, now = self.best[-1] - self.best[-1 - iterations], abs(self.best[-1])
        if now == 0:  # rounded: the terms of huge counts cancel each other
            return np.inf if gained else 0.0
        return gained / now

    def slow(self, share: float) -> bool:
        """Whether three iterations without a fall gained less than this share."""
        return self.n_rising > 3 and self.gain(3) < share

    @property
    def settled(self) -> bool:
        """Whether float32 can make no more progress."""
        return self.slow(FLOAT_UNTIL)

    @property
    def beta(self) -> float:
        """The momentum of the next step."""
        if not self.momentum or self.warmup:
            return 0.0
        aggressive = self.gain(3) > AGGRESSIVE_ABOVE
        delay = self.delay if aggressive else max(self.delay, MOMENTUM_DELAY)
        return self.count / (self.count + delay)


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
