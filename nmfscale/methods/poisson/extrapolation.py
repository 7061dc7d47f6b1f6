"""Momentum: loadings are extrapolated away from those before, and their column sums are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ... import kernels
from ...counts.cached import cached_property
from ...counts.sell import LANES
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ..factors import MINVAL, Array, Factor, over_slices
from .steps import SAMPLES, rows_of


class Momentum(NamedTuple):
    """Extrapolation to ``now + beta (now - scale * before)``, at least ``leaves * now``.

    `scale` (stride,) applies to the columns of the previous point: see `scales.scale_of_before`.
    """

    beta: float = 0.0
    scale: Array | None = None
    leaves: float = 0.0


class Extrapolation:
    """Arrays with which kernels extrapolate rows into `target`, and the sums that they return.

    `given` holds the points of `kernels.Extrapolation` and the weights of rows in the sums.
    """

    def __init__(self, n_rows: int, target: Array, momentum: Momentum, **options: Array | None):
        n_slices, stride = len(target) // LANES, target.shape[1]
        self._sums = np.empty((n_slices, 2, stride))
        self._change, self._zeros = np.empty(n_slices), np.empty(n_slices, np.int64)
        scale = np.ones(stride) if momentum.scale is None else momentum.scale
        self.operand = kernels.Extrapolation(
            n_rows, target, momentum.beta, scale.astype(target.dtype), self._sums, self._change,
            self._zeros, leaves=momentum.leaves, **options,
        )  # fmt: skip

    def found(self) -> Values:
        """Return column sums after and before, the largest change, the number of zeros."""
        sums, sums_before = over_slices(self._sums)
        change = float(self._change.max(initial=0.0))
        return {
            "sums": sums, "sums_before": sums_before, "max_change": change,
            "zeros": float(self._zeros.sum()),
        }  # fmt: skip


def extrapolate(
    rows: Factor, before: Array, target: Array, momentum: Momentum, weights: Array | None,
    n_threads: int,
) -> Values:  # fmt: skip
    """Extrapolate rows away from `before`; fixed rows stay, and sums are weighted."""
    now = rows.values
    problem = kernels.RowProblem(
        now, np.zeros(now.shape[1], now.dtype), rows.n_components, floor=MINVAL
    )
    to = Extrapolation(rows.n_rows, target, momentum, before=before, weight=weights)
    kernels.extrapolate(problem, now, to.operand, n_threads=n_threads)
    target[rows.n_rows :] = now[rows.n_rows :]
    if rows.fixed is not None:
        target[rows.fixed] = now[rows.fixed]
    sums = to.found()
    if rows.fixed is not None:  # which the kernel ignores
        after = Factor(target, rows.n_rows, rows.n_components)
        sums["sums"], sums["sums_before"] = after.column_sums(weights), rows.column_sums(weights)
    return sums


@dataclass(frozen=True)
class ExtrapolateRows(Step):
    """Extrapolates L from `now` away from `before`; reports the change."""

    n_components: int
    momentum: Momentum = Momentum()
    now: str = "next"
    before: str = "before"
    target: str = "L"

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `target`, which is `now` if there is no momentum."""
        same = () if self.momentum.beta else ((self.target, self.now),)
        return RowArrays((self.now, self.before, *SAMPLES), (self.target,), aliases=same)

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Extrapolate the rows of a block."""
        rows = rows_of(block, self.now, self.n_components)
        before, weights = block[self.before], block.get("weights")
        target = block.empty(self.target, rows.values)
        return extrapolate(rows, before, target, self.momentum, weights, n_threads)
