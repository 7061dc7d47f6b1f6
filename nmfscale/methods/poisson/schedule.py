"""Which steps iterations take, how they compute curvature, and how much momentum there is.

The schedule is that of `newton.Newton`; it depends on the log-likelihoods so far, and on nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ... import kernels
from .objective import FELL
from .row_update import EM, EXACT, SHARED, RowUpdate

# A fit is "far" in the first iterations, and as long as three of them gain more than this share of
# the log-likelihood.
FRESH_UNTIL, FRESH_ABOVE, FRESH_EVERY = 6, 3e-3, 6
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
