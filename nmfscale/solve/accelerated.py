"""The default method: an EM and a Newton step on L, one Newton step on F from summed statistics, with momentum.

One iteration visits the rows, then the columns, each once.  Momentum is k / (k + 3) and falls back to zero, without
undoing anything, when the log-likelihood fell; the log-likelihood is a by-product of the next visit of the rows.  From
iteration `FRESH_UNTIL` on, curvature is computed every `FRESH_EVERY` iterations; in between its correlations are kept and
only its diagonal is new, which costs little more than a gradient.
"""

from __future__ import annotations

import numpy as np

from ..kernels import rows as kernels
from .monitor import Monitor
from .objective import Objective
from .updates import MINVAL, Halves, aligned_copy

FRESH_UNTIL, FRESH_EVERY = 12, 4
MOMENTUM_DELAY = 3.0
# Float32 carries a fit to about this relative gain per iteration; the rest is done in the type that was asked for.
FLOAT_UNTIL = 3e-6


class _Point:
    """The plain points before the extrapolated ones that `Halves` holds, and scratch for the next."""

    def __init__(self, halves: Halves):
        self.before_L, self.before_F = aligned_copy(halves.L.values), aligned_copy(halves.F.values)
        self.next_L, self.next_F = aligned_copy(halves.L.values), aligned_copy(halves.F.values)


def fit_accelerated(halves: Halves, monitor: Monitor, *, momentum: bool = True) -> Halves:
    """Run until the monitor says stop; the last iteration is a plain one, so that no momentum is left in the result."""
    exact_type = halves.dtype
    objective = Objective(halves)
    mixed = exact_type == np.float64 and monitor.max_iter > 4
    if mixed:
        halves = halves.as_type(np.float32)
    point = _Point(halves)
    count, last, log_gain = 1.0, -np.inf, np.inf
    curvature = kernels.KEEP
    pending: dict[str, float] = {}
    for iteration in range(monitor.max_iter):
        if mixed and (iteration >= monitor.max_iter - 3 or log_gain < FLOAT_UNTIL):
            mixed = False
            halves = halves.as_type(exact_type)
            point = _Point(halves) if not momentum else _carried(point, halves)
            curvature = kernels.KEEP
        report = halves.move_rows("visit", point.next_L, em_steps=1, newton_steps=1, curvature=curvature,
                                  log_start=True, kkt_start=True)  # fmt: skip
        state = objective.at(halves, report)
        fell = state["loglik"] < last
        log_gain = abs(state["loglik"] - last) / max(abs(state["loglik"]), 1e-300) if np.isfinite(last) else np.inf
        last = state["loglik"]
        if iteration:
            # kkt_factors was seen in the columns' visit one half-step earlier
            monitor.record(**pending | state | {"kkt_loadings": report.kkt / objective.scale_L})
        ending = monitor.finished or iteration == monitor.max_iter - 1
        if fell:
            count = 1.0
        beta = count / (count + MOMENTUM_DELAY) if momentum and not fell and not ending else 0.0
        count += not fell
        halves.extrapolate("L", point.next_L, point.before_L, beta, report)
        columns = halves.move_columns(point.next_F, newton_steps=1, curvature=curvature)
        halves.extrapolate("F", point.next_F, point.before_F, beta, columns)
        pending = {
            "kkt_factors": columns.kkt / objective.scale_F, "momentum": beta,
            "change_loadings": report.change, "change_factors": columns.change,
            "zeros_loadings": report.zeros, "zeros_factors": columns.zeros,
        }  # fmt: skip
        fresh = fell or iteration + 1 < FRESH_UNTIL or (iteration + 1 - FRESH_UNTIL) % FRESH_EVERY == 0
        curvature = kernels.KEEP if fresh else kernels.KEPT
        if ending:
            break
    if halves.dtype != exact_type:
        halves = halves.as_type(exact_type)
    record_end(halves, objective, monitor, pending)
    return halves


def _carried(point: _Point, halves: Halves) -> _Point:
    """The same plain points in the type of `halves`."""
    new = _Point(halves)
    new.before_L[:], new.before_F[:] = point.before_L, point.before_F
    return new


def record_end(halves: Halves, objective: Objective, monitor: Monitor, pending: dict[str, float]) -> None:
    """Restore exact zeros and complete the last record with what holds at the point that is handed back."""
    restore_zeros(halves)
    report = halves.move_rows("visit", aligned_copy(halves.L.values), em_steps=1, log_start=True, kkt_start=True)
    kkt_factors = halves.move_columns(aligned_copy(halves.F.values), em_steps=1).kkt
    state = objective.at(halves, report)
    converged, interrupted = monitor.converged, monitor.interrupted
    monitor.record(**pending | state | {"kkt_loadings": report.kkt / objective.scale_L,
                                        "kkt_factors": kkt_factors / objective.scale_F})  # fmt: skip
    monitor.converged, monitor.interrupted = converged or monitor.converged, interrupted


def restore_zeros(halves: Halves) -> None:
    """Parameters at the floor are zeros of the fit."""
    for factor in (halves.L, halves.F):
        # the floor as float32 has it is a little above, and float32 may have carried the fit
        factor.values[factor.values <= MINVAL * (1 + 1e-6)] = 0
    halves.total_L, halves.total_F = halves.L.column_sums(halves.weights), halves.F.column_sums()

