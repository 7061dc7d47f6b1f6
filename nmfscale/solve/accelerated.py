"""The default method: EM and Newton on L, Newton on F from summed statistics, momentum on both.

One iteration visits the rows, then the columns, each once.  Momentum is k / (k + 3) and falls back
to zero, without undoing anything, when the log-likelihood fell; the log-likelihood is a by-product
of the next visit of the rows.  From iteration `FRESH_UNTIL` on, curvature is computed every
`FRESH_EVERY` iterations; in between its correlations are kept and only its diagonal is new, which
costs little more than a gradient.
"""

from __future__ import annotations

import numpy as np

from ..kernels import rows as kernels
from .monitor import Monitor
from .objective import Objective
from .updates import MINVAL, Halves, aligned_copy

FRESH_UNTIL, FRESH_EVERY = 12, 4
# A column of few counts is far from quadratic: where the columns are whole, those of at most so many
# nonzeros take an EM step before the Newton step.
EM_LONGEST = 256
MOMENTUM_DELAY = 3.0
# A fall by more than the best point gained in so many iterations goes back to it and lengthens the
# delay.
GAIN_OVER, SLOWER = 10, 1.2
# EM iterations, which never lower the likelihood, at the start and after going back (doubling each
# time).
CAREFUL_FIRST, CAREFUL_MOST = 1, 16
# ... and as long as an EM iteration gains more than this share of the log-likelihood.
CAREFUL_ABOVE = 1e-3
# Float32 carries a fit to about this relative gain per iteration; the rest is done in the type that
# was asked for.
FLOAT_UNTIL = 3e-6


class _Path:
    """Plain points before those that `Halves` holds, scratch for the next, the best one seen."""

    def __init__(self, halves: Halves, momentum: bool):
        L, F = halves.L.values, halves.F.values
        self.before_L, self.before_F = aligned_copy(L), aligned_copy(F)
        self.next_L, self.next_F = aligned_copy(L), aligned_copy(F)
        self.best_L, self.best_F = aligned_copy(L), aligned_copy(F)
        self.best: list[float] = []
        self.momentum, self.count, self.delay = momentum, 0.0, MOMENTUM_DELAY
        self.careful, self.patience = CAREFUL_FIRST, 1

    def weigh(self, halves: Halves, loglik: float) -> bool:
        """Note the log-likelihood where `halves` stands; whether momentum ran away.

        A small fall only takes the momentum away. A fall by more than the last iterations gained
        calls for `go_back`.
        """
        best = max(self.best[-1:], default=-np.inf)
        if loglik >= best:
            np.copyto(self.best_L, halves.L.values)
            np.copyto(self.best_F, halves.F.values)
            self.count += 1
        else:
            self.count = 0.0
        self.best.append(max(best, loglik))
        return self.best[-1] - loglik > self.best[-1] - self.best[max(-len(self.best), -GAIN_OVER)]

    def go_back(self, halves: Halves) -> None:
        """Stand at the best point again, and go on more slowly from there."""
        self.delay *= SLOWER
        self.careful = self.patience = min(2 * self.patience, CAREFUL_MOST)
        for values, before, good in (
            (halves.L.values, self.before_L, self.best_L),
            (halves.F.values, self.before_F, self.best_F),
        ):
            np.copyto(values, good)
            np.copyto(before, good)
        halves.replace(halves.L.values, halves.F.values)

    @property
    def gains_much(self) -> bool:
        """Whether EM still climbs fast: Newton from far away zeroes too much, and ends lower."""
        return len(self.best) < 2 or self.best[-1] - self.best[-2] > CAREFUL_ABOVE * abs(
            self.best[-1]
        )

    @property
    def settled(self) -> bool:
        """Whether the gain of an iteration has come down to what float32 resolves."""
        return len(self.best) > 1 and self.best[-1] - self.best[-2] < FLOAT_UNTIL * abs(
            self.best[-1]
        )

    @property
    def beta(self) -> float:
        return self.count / (self.count + self.delay) if self.momentum and not self.careful else 0.0

    def cast(self, halves: Halves) -> _Path:
        """Return the same path in the type of `halves`."""
        new = _Path(halves, self.momentum)
        for name in ("before_L", "before_F", "best_L", "best_F"):
            np.copyto(getattr(new, name), getattr(self, name))
        new.best, new.count, new.delay = self.best, self.count, self.delay
        new.careful, new.patience = self.careful, self.patience
        return new


def fit_accelerated(halves: Halves, monitor: Monitor, *, momentum: bool = True) -> Halves:
    """Run until the monitor says stop."""
    exact_type = halves.dtype
    objective = Objective(halves)
    # float32 would disturb K = 1, which starts at its optimum, and what has to stay as it was given
    given = (halves.held.topics, halves.held.features, halves.held.samples)
    mixed = exact_type == np.float64 and monitor.max_iter > 4 and halves.n_components > 1
    mixed &= all(mask is None for mask in given)
    if mixed:
        halves = halves.as_type(np.float32)
    short = {"em_steps": 1, "em_longest": EM_LONGEST} if len(halves.layout.blocks) == 1 else {}
    path = _Path(halves, momentum)
    pending: dict[str, float] = {}
    kept_for, iteration = FRESH_EVERY, 0
    while iteration < monitor.max_iter:
        keeping = iteration >= FRESH_UNTIL - 1
        fresh = not keeping or kept_for >= FRESH_EVERY - 1 or path.count == 0
        newton: dict[str, int] = {"newton_steps": 1}
        if keeping:
            newton["curvature"] = kernels.KEEP if fresh else kernels.KEPT
            if not path.careful:
                kept_for = 0 if fresh else kept_for + 1
        report = halves.move_rows("visit", path.next_L, em_steps=1, log_start=True, kkt_start=True,
                                  **({} if path.careful else newton))  # fmt: skip
        state = objective.at(halves, report)
        if iteration:
            # kkt_factors was seen in the columns' visit one half-step earlier
            monitor.record(**pending | state | {"kkt_loadings": report.kkt / objective.scale_L})
        iteration += 1
        ending = monitor.finished or iteration == monitor.max_iter
        ran_away = path.weigh(halves, state["loglik"])
        if ran_away or ending:
            if ran_away or not path.count:
                path.go_back(halves)
            if not ending:
                continue
            # The last iteration is one of EM: from the best point known it can only rise.
            path.careful = 1
            report = halves.move_rows("visit", path.next_L, em_steps=1, kkt_start=True)
        halves.extrapolate("L", path.next_L, path.before_L, path.beta, report)
        columns = halves.move_columns(path.next_F, **({"em_steps": 1} if path.careful else newton | short))
        halves.extrapolate("F", path.next_F, path.before_F, path.beta, columns)
        pending = {
            "kkt_factors": columns.kkt / objective.scale_F, "momentum": path.beta,
            "change_loadings": report.change, "change_factors": columns.change,
            "zeros_loadings": report.zeros, "zeros_factors": columns.zeros,
        }  # fmt: skip
        if ending:
            break
        path.careful = max(path.careful - 1, int(path.careful > 0 and path.gains_much))
        if mixed and (iteration >= monitor.max_iter - 3 or path.settled):
            mixed, halves = False, halves.as_type(exact_type)
            path = path.cast(halves)
    if halves.dtype != exact_type:
        halves = halves.as_type(exact_type)
    record_end(halves, objective, monitor, pending)
    return halves


def record_end(
    halves: Halves, objective: Objective, monitor: Monitor, pending: dict[str, float]
) -> None:
    """Restore exact zeros and complete the last record at the point that is handed back."""
    restore_zeros(halves)
    report = halves.move_rows(
        "visit", aligned_copy(halves.L.values), em_steps=1, log_start=True, kkt_start=True
    )
    kkt_factors = halves.move_columns(aligned_copy(halves.F.values), em_steps=1).kkt
    state = objective.at(halves, report)
    converged, interrupted = monitor.converged, monitor.interrupted
    kkt = {
        "kkt_loadings": report.kkt / objective.scale_L,
        "kkt_factors": kkt_factors / objective.scale_F,
    }
    monitor.record(**pending | state | kkt)
    monitor.converged, monitor.interrupted = converged or monitor.converged, interrupted


def restore_zeros(halves: Halves) -> None:
    """Parameters at the floor are zeros of the fit."""
    for factor in (halves.L, halves.F):
        # the floor as float32 has it is a little above, and float32 may have carried the fit
        factor.values[factor.values <= MINVAL * (1 + 1e-6)] = 0
    halves.total_L, halves.total_F = halves.L.column_sums(halves.weights), halves.F.column_sums()
