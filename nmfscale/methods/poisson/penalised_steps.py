"""Steps of a fit with a penalty on the components: see `penalised_em`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...counts.sell import LANES, SellBlock
from ...engine.protocol import Block, ColumnStep, Panel, RowArrays, Step, Sums, Values
from ..factors import MINVAL, Array, aligned_copy, at_floor
from ..projection.penalised_rows import PenalisedRows
from ..projection.penalty import Penalty
from ..projection.projector import ROUNDS, TOL, Projector
from ..slices import sliced_counts


def minimiser(numerators: Array, total: Array, curvature: Array) -> Array:
    """Return v >= 0 that minimises ``total v - numerators log v + curvature v^2 / 2``."""
    minimum: Array = 2 * numerators / (total + np.sqrt(total * total + 4 * curvature * numerators))
    return minimum


@dataclass(frozen=True)
class MinimiseRows(Step):
    """Moves ``next`` from an EM step with ``rate`` and `total` to the `minimiser`.

    `total` (K,) are the column sums of F in the EM step, `new_total` (K,) those of the new F, and
    `curvature` (K,) is that of the penalty.
    """

    total: Array
    new_total: Array
    curvature: Array
    arrays = RowArrays(("next", "rate"), ("next",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        moved, K = block["next"], len(self.total)
        numerators = moved[:, :K] * (self.total + block["rate"][:, :K])
        rows_at_minimum = minimiser(numerators, self.new_total, self.curvature)
        rows_at_minimum[at_floor(moved[:, :K])] = MINVAL
        out = block.empty("next", moved)
        out[:, K:] = 0
        out[:, :K] = rows_at_minimum
        return {}


@dataclass(frozen=True)
class ProjectColumns(ColumnStep):
    """Moves every row of F to its optimum with L fixed and a penalty on F: see `Projector`.

    F (lanes, stride) is in lane order, `total` (stride,) are the column sums of L. `room` is memory
    for counts that are weighted, one panel after the other.
    """

    F: Any
    total: Array
    n_components: int
    penalty: Penalty
    room: list[Array] = field(default_factory=list)

    shared = ("F",)
    uses = ("L", "weights")

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Move the rows of a panel."""
        L, weights, counts = panel.arrays["L"], panel.arrays.get("weights"), panel.counts
        if weights is not None:
            counts = counts.weighted(weights, L.dtype, n_threads, self.room)
        projector = Projector(L, self.total, self.n_components, ROUNDS, TOL, n_threads)
        values = aligned_copy(self.F[panel.lanes])
        sliced = sliced_counts(counts, len(L))
        rows = PenalisedRows(projector, self.penalty, sliced, _totals(counts), {})
        rows.move(values, new=False)
        return {"values": values}


def _totals(counts: SellBlock) -> Array:
    """Return the sum of the counts of every lane."""
    sums, full = np.zeros((len(counts.offset) - 1, LANES)), np.diff(counts.offset) > 0
    if full.any():
        entries, first = counts.count.reshape(-1, LANES), counts.offset[:-1][full]
        sums[full] = np.add.reduceat(entries, first, axis=0, dtype=np.float64)
    return sums.reshape(-1)
