"""Counts of each feature in batches of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.sell import LANES
from ...engine.protocol import Block, Executor, RowArrays, Step, Sums, Values
from ..factors import Array, rows_of_sums
from ..slices import sliced_counts
from .steps import weighted_columns


def batch_totals(executor: Executor, batches: Array, n_features: int) -> Array:
    """Return the counts (m, B) of each feature in lane order in batches; `batches` are of groups.

    They are weighted if samples have weights.
    """
    step = BatchTotals(batches, len(executor.layout.column_order))
    ((_, (sums,)),) = executor.run(step)
    return rows_of_sums(sums, n_features)


@dataclass(frozen=True)
class BatchTotals(Step):
    """Sums the counts of each column over the samples of each batch, weighted if they have weights.

    `batches` (G,) are the batches of the groups of samples, `n_lanes` that of the columns.
    """

    batches: Array
    n_lanes: int

    reads = "columns"
    arrays = RowArrays(("groups", "weights", "weighted"))

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return int(self.batches.max()) + 1

    def empty_sums(self) -> Sums:
        """Return zeros."""
        return [np.zeros((self.n_lanes // LANES, self.n_batches, LANES))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the columns of a block."""
        batches = self.batches[block["groups"].astype(np.intp)]
        n, B = len(batches), self.n_batches
        there = aligned_empty((n, kernels.row_stride(B)), np.float64)
        there[:] = batches[:, None] == np.arange(there.shape[1])
        # numerators of least squares are sums of counts times rows
        problem = kernels.RowProblem(
            there, np.zeros(there.shape[1]), B, step=kernels.SQUARES, gram=np.zeros((B, B)),
            floor=0.0,
        )  # fmt: skip
        sliced = sliced_counts(weighted_columns(block, np.float64, n_threads, []), n)
        kernels.sums(
            sliced, problem, None, sums[0], wanted=kernels.SUM_GRADIENT, first=0,
            last=len(sums[0]), n_threads=n_threads,
        )  # fmt: skip
        return {}

    def of_slices(self, slices: slice) -> BatchTotals:
        """Return the step for some slices of columns."""
        return replace(self, n_lanes=(slices.stop - slices.start) * LANES)
