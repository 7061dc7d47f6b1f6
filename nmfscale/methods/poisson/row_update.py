"""One update of the rows of a factor: its steps and its curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import kernels
from ...counts.sell import LANES
from ..factors import MINVAL, Array

# The curvature of a row is stored if its slice has this many times as many steps as the curvature
# has numbers.
KEPT_FROM = 2
# Slices whose correlations are in memory at a time, as they are large with many components.
SAMPLED_TOGETHER = 16
# A mode of curvature in addition to those of the kernels: the row's own diagonal, and correlations
# that all rows share, with a margin on the diagonal because shared correlations do not fit each
# row.
SHARED, SHARED_MARGIN = -1, 1.2


@dataclass(frozen=True)
class RowUpdate:
    """One update of the rows of a factor, with the other factor fixed.

    Attributes
    ----------
    em_steps : int
        Number of EM steps.
    newton_steps : int
        Number of second-order steps after them: Newton steps, or sweeps of coordinate descent.
    kernel : {"update_rows", "descend"}
        Kernel that takes Newton steps, or sweeps.
    guarded : bool
        Whether sweeps use the step size of scalar Newton.
    em_longest : int
        Rows of slices with more entries take no EM steps.
    qp_sweeps, qp_tolerance : int, float
        A Newton step minimises its quadratic model by sweeps of coordinate descent: at most this
        many, until no coordinate of the row lowers the model by more than half the tolerance.
    curvature : int or None
        Curvature of a Newton step. None: computed for each row. STORE, REUSE and RESCALE are modes
        of the kernels: computed and stored, stored with a new diagonal, or stored and rescaled by
        the new numerators. SHARED: correlations that all rows share, with the diagonal of each row.
    refresh : bool
        Whether to compute the correlations that later updates share.
    """

    em_steps: int = 0
    newton_steps: int = 0
    kernel: str = "update_rows"
    guarded: bool = False
    em_longest: int = 1 << 62
    qp_sweeps: int = 10
    qp_tolerance: float = 1e-4
    curvature: int | None = None
    refresh: bool = False

    @property
    def mode(self) -> int | None:
        """Mode of the kernels for stored curvature; None without it."""
        return None if self.curvature == SHARED else self.curvature

    def problem(
        self, design: Array, total: Array, n_components: int, correlation: Array | None = None,
        moves: Array | None = None,
    ) -> Any:  # fmt: skip
        """Return the row problem with these steps; for arguments see `kernels.RowProblem`."""
        return kernels.RowProblem(
            design, total, n_components, moves=moves, floor=MINVAL, em_steps=self.em_steps,
            newton_steps=self.newton_steps, em_longest=self.em_longest, guarded=self.guarded,
            correlation=correlation, qp_sweeps=self.qp_sweeps, qp_tolerance=self.qp_tolerance,
        )  # fmt: skip


# Options of a Newton step that minimises its quadratic model exactly. Slow directions of a fit gain
# less in each row than the default tolerance, and would take hundreds of iterations.
EXACT: dict[str, Any] = {"qp_sweeps": 30, "qp_tolerance": 1e-12}
# One EM step.
EM = RowUpdate(em_steps=1)


def room_for_curvature(longest: Array, n_components: int) -> Array:
    """Return memory for the curvature of long rows, for which storing it saves work.

    It is small compared with the counts: see `KEPT_FROM`. `longest` is the number of steps of each
    slice.
    """
    size = kernels.packed_size(n_components)
    n_long = int((longest >= KEPT_FROM * size).sum())
    return np.zeros((n_long, size, LANES), np.uint16)


def correlations(sliced: Any, problem: Any, start: Array, K: int, n_threads: int) -> Array:
    """Sum the packed correlations of a sample of rows, and their weights.

    The sample is smaller with more components, so that it costs no more than an update of all rows.
    """
    every = max(1, K // 4)
    sampled = range(0, sliced.n_slices, every)
    total = np.zeros(kernels.packed_size(K) + 1)
    room = np.empty((SAMPLED_TOGETHER, len(total)))
    for i in range(0, len(sampled), SAMPLED_TOGETHER):
        some = sampled[i : i + SAMPLED_TOGETHER]
        sums = room[: len(some)]
        kernels.correlations(
            sliced, problem, start, sums, first=some[0], every=every, n_threads=n_threads
        )
        kernels.sum_slices(sums, total)
    return total
