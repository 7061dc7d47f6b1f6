"""Steps that move rows to their optimum with fixed factors: see `transform`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import kernels
from ...counts.sell import LANES
from ..factors import MINVAL, Array, aligned_copy

ROUNDS = 500
TOL = 1e-8
# Up to this many components, the curvature of a row covers all of them.
ACTIVE_ABOVE = 32
# Number of EM steps that identify the active components of a row, and of EM steps for each of a few
# steps.
_EM_STEPS, _EM_A_STEP = 8, 2
# A row is finished if its residual is small and no EM step would raise a loading by more than this
# share: residuals are products with the loadings, and do not show errors of loadings near zero.
_LIFTS = 1e-3


class RowSteps(NamedTuple):
    """A kernel that takes steps on rows, and its options of `kernels.RowProblem`."""

    kernel: str
    options: dict[str, Any]


class Projector:
    """Moves the loadings of a block, in lane order, to their optimum with fixed factors.

    Each row is a separate convex problem: it takes at most `n_steps` EM and Newton steps until its
    KKT residual is at most `tol` times its total, and then stays fixed, independently of other
    rows. With many components (see `ACTIVE_ABOVE`) a few steps are EM steps only. `design` is F in
    lane order, `total` its column sums; `total` is 0 if `rates` is set, in which case rows have
    their own totals as rates of a prior. `how` are steps in place of EM and Newton steps.
    """

    def __init__(
        self, design: Array, total: Array, n_components: int, n_steps: int, tol: float,
        n_threads: int, rates: bool = False, how: RowSteps | None = None,
    ):  # fmt: skip
        self.n_steps, self.n_components, self.n_threads, self.total = (
            n_steps, n_components, n_threads, total
        )  # fmt: skip
        eps = 50 * float(np.finfo(design.dtype).eps)
        self._tol = max(tol, eps)
        self._floored = MINVAL * float(total.max())
        # components without factors, and padding
        self._dead = np.arange(len(total)) >= n_components if rates else total == 0
        options: dict[str, Any] = {"floor": MINVAL, "em_steps": 1}
        if self._dead[:n_components].any():
            options["moves"] = (~self._dead).astype(design.dtype)
        held = design, total.astype(design.dtype), n_components
        self.plain = kernels.RowProblem(*held)  # takes no steps
        newton: dict[str, Any] = {"newton_steps": 1, "qp_sweeps": 50, "qp_tolerance": 1e-12}
        self._at_once: Any = None
        self._kernel = "update_rows" if how is None else how.kernel
        if how is not None:
            self._em = kernels.RowProblem(*held, **options)
            self._newton = kernels.RowProblem(*held, **options | how.options)
        elif n_components > ACTIVE_ABOVE and n_steps < ROUNDS:
            options["em_steps"] = _EM_A_STEP * n_steps
            self._at_once = kernels.update_rows, kernels.RowProblem(*held, **options)
        elif n_components > ACTIVE_ABOVE:
            options["em_steps"] = _EM_STEPS
            newton |= {"newton_steps": n_steps, "tolerance": max(tol / 100, eps)}
            self._at_once = kernels.solve_rows, kernels.RowProblem(*held, **options, **newton)
        else:
            self._em = kernels.RowProblem(*held, **options)
            self._newton = kernels.RowProblem(*held, **options, **newton)

    def move(
        self, sliced: Any, values: Array, totals: Array, prior: dict[str, Array],
        steep: bool = False,
    ) -> int:  # fmt: skip
        """Move the rows of `values` to their optimum, in place.

        Return the number of rows that have not reached it, as far as this is known. If rates are
        `steep` at the floor, rows are also finished when a step no longer changes them.
        """
        unfinished = 0
        scale = totals
        if prior:
            scale = scale + prior["pseudo"].sum(axis=1, dtype=np.float64)
        if self._at_once is None:
            unfinished = self._step(sliced, values, scale, prior, steep)
        else:
            kernel, problem = self._at_once
            kernel(sliced, problem, values, values, n_threads=self.n_threads, **prior)
        values[values <= MINVAL] = 0
        values[scale == 0] = 0
        values[:, self._dead] = 0
        if prior:
            pseudo, rate = (prior[name][:, self._dead] for name in ("pseudo", "rate"))
            best = np.zeros_like(pseudo)
            np.divide(pseudo, rate, out=best, where=rate > 0)
            values[:, self._dead] = best
        return unfinished

    def _step(
        self, sliced: Any, values: Array, scale: Array, prior: dict[str, Array], steep: bool
    ) -> int:
        """Take steps on all components of rows; residuals are relative to `scale`.

        Return the number of rows that would take further steps.
        """
        after = aligned_copy(values)
        # An empty row has no scale for its residual: without a prior it is zero and stays zero.
        moving, kkt = scale > 0, np.zeros(len(values))
        unproven, lifted = moving, np.zeros(len(values), bool)
        for _ in range(self.n_steps):
            if not moving.any():
                self._update("update_rows", self._em, sliced, values, after, unproven, prior)
                lifted = unproven & (after > (1 + _LIFTS) * values).any(axis=1)
                moving = unproven = lifted
                if not moving.any():
                    break
            self._update(
                self._kernel, self._newton, sliced, values, after, moving, prior, kkt_start=kkt
            )
            moving = moving & (lifted | (kkt > self._tol * scale))
            if steep:  # a coordinate at the floor has a residual of the floor times its rate
                change = np.abs(after - values).max(axis=1)
                moving = moving & (change > self._tol * values.max(axis=1))
            lifted = np.zeros(len(values), bool)
            values[moving] = after[moving]
        # a coordinate at the floor has a residual of up to the floor times its column sum
        return int((moving & (kkt > self._tol * scale + self._floored)).sum())

    def _update(
        self, kernel: str, problem: Any, sliced: Any, values: Array, after: Array, rows: Array,
        prior: dict[str, Array], **options: Any,
    ) -> None:  # fmt: skip
        if kernel == "update_rows":
            options["slices"] = np.flatnonzero(rows.reshape(-1, LANES).any(axis=1))
        getattr(kernels, kernel)(
            sliced, problem, values, after, n_threads=self.n_threads, **prior, **options
        )
