"""Joint EM: both factors from the same expected counts.

Geiger and Park, Algorithms 4 and 6; PLSA when normalised.
"""

from __future__ import annotations

from ..engine.monitor import Monitor
from .factors import MINVAL, aligned_copy, at_floor
from .newton import record_end
from .objective import Objective
from .poisson import Halves
from .steps import Momentum


def fit_joint(halves: Halves, monitor: Monitor) -> None:
    """Run until the monitor says stop.

    With n_ijk the expected counts, l_ik = sum_j n_ijk and f_jk is proportional to sum_i n_ijk, its
    columns summing to one: the M step of PLSA for both factors at once, so that the likelihood
    never falls.
    """
    objective = Objective(halves)
    K = halves.n_components
    sums = halves.total_F[:K].astype(halves.dtype)
    halves.F.values[:, :K] /= sums
    halves.L.values[:, :K] *= sums
    halves.replace(halves.L.values, halves.F.values)
    L, F = aligned_copy(halves.L.values), aligned_copy(halves.F.values)
    pending: dict[str, float] = {}
    for iteration in range(monitor.max_iter):
        rows = halves.move_rows("visit", L, em_steps=1, report=("loglik_start", "kkt_start"))
        state = objective.at(halves, rows)
        if iteration:
            monitor.record(**pending | state | {"kkt_loadings": rows.kkt / objective.scale_L})
            if monitor.finished:
                monitor.forget_last()
                break
        columns = halves.move_columns(F, em_steps=1)
        halves.extrapolate("F", F, halves.F.values, Momentum(), columns)
        floored = at_floor(F[:, :K])
        F[:, :K] /= halves.total_F[:K].astype(halves.dtype)
        F[:, :K][floored] = MINVAL
        halves.extrapolate("L", L, halves.L.values, Momentum(), rows)
        halves.F.values[:] = F
        halves.total_F = halves.F.column_sums()
        pending = {
            "kkt_factors": columns.kkt / objective.scale_F,
            "change_loadings": rows.change,
            "change_factors": columns.change,
            "zeros_loadings": rows.zeros,
            "zeros_factors": columns.zeros,
        }
    record_end(halves, objective, monitor, pending, state["loglik"])
