"""The rows of L with their counts, block by block, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import kernels
from ..counts.base import CountMatrix
from ..counts.sell import SellBlock
from .factors import MINVAL, Array, Factor, Held, Report, aligned_copy, at_floor, lane_order
from .steps import Arrival, ColumnVisit, Momentum, RowReport, Rows, RowVisit, go_on


def factor_in_lanes(
    plain: Array, order: Array, dtype: Any, *, held: Array | None = None, prior: Any = None,
    folder: str | None = None,
) -> Factor:  # fmt: skip
    """Return a factor (n, K) in lane order, raised to the floor, with what is held of it."""
    n_rows, K = plain.shape
    stride = kernels.row_stride(K)
    values = lane_order(plain, order, stride, dtype, least=MINVAL, folder=folder)
    factor = Factor(order, n_rows, K, values, folder=folder)
    if held is not None:
        factor.held = np.zeros(len(order), bool)
        factor.held[order >= 0] = held[order[order >= 0]]
    if prior is not None:
        factor.pseudo, factor.rate = (lane_order(p, order, stride, dtype, 0) for p in prior)
    return factor


def per_lane(per_row: Array, order: Array) -> Array:
    """Return one number for each row in lane order, 0 where there is no row."""
    out = np.zeros(len(order))
    out[order >= 0] = per_row[order[order >= 0]]
    return out


def restore_zeros(factor: Factor) -> None:
    """Parameters at the floor are zeros of the fit, unless a prior keeps them from zero."""
    zeros = at_floor(factor.values)
    if factor.pseudo is not None:
        zeros &= factor.pseudo <= 0
    factor.values[zeros] = 0


def lift_zeros(factor: Factor) -> None:
    """Undo that."""
    of_rows = factor.order[:, None] >= 0  # between blocks there is padding
    values = factor.values[:, : factor.n_components]
    np.maximum(values, MINVAL, out=values, where=of_rows)


class LocalRows:
    """The rows of L with their counts, block by block, in this process.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    L : ndarray (n, K)
        Start, positive.
    dtype : float32 or float64
    n_threads : int
    held : Held
    folder : str, optional
        Where loadings are kept in files without a name; by default they are in memory.
    """

    def __init__(
        self, counts: CountMatrix, L: Array, dtype: Any, n_threads: int, held: Held,
        folder: str | None = None,
    ):  # fmt: skip
        self.layout, self.n_threads = counts.layout(n_threads), n_threads
        order = self.layout.row_order
        self.factor = factor_in_lanes(
            L, order, dtype, held=held.samples, prior=held.prior_loadings, folder=folder
        )
        weights = None if held.weights is None else per_lane(held.weights, order)
        self.all = Rows(self.factor, per_lane(counts.row_totals, order), weights)
        self._lanes = [slice(block.first, block.last) for block in self.layout.blocks]
        self._blocks: list[Rows] = []
        self._blocks_of: Array | None = None

    @property
    def one_block(self) -> bool:
        """Whether columns are whole."""
        return len(self.layout.blocks) == 1

    @property
    def bytes_read(self) -> int:
        """Bytes of counts read from a file so far."""
        return self.layout.bytes_read

    @property
    def blocks(self) -> list[Rows]:
        """The rows of every block."""
        if self._blocks_of is not self.factor.values:  # points are in memory of their own
            found = [
                self.all.part(here, block.stop - block.start)
                for here, block in zip(self._lanes, self.layout.blocks, strict=True)
            ]
            for rows, before in zip(found, self._blocks, strict=False):
                rows.kept = before.kept
            self._blocks, self._blocks_of = found, self.factor.values
        return self._blocks

    def visit(self, which: str) -> Iterator[tuple[SellBlock, Rows]]:
        """Hand out counts and rows, block by block."""
        for (_, slices), rows in zip(self.layout.visit(which), self.blocks, strict=True):
            yield slices, rows

    def move(self, visit: RowVisit, out: Array) -> RowReport:
        """Move all rows into `out`."""
        return RowReport.of_all(
            [
                visit.run(slices, rows, out[here], self.n_threads)
                for here, (slices, rows) in zip(self._lanes, self.visit("rows"), strict=True)
            ]
        )

    def go_on(
        self, now: Array, before: Array, momentum: Momentum, report: Report,
        best: Array | None = None,
    ) -> Arrival:  # fmt: skip
        """Go on from `now` to a next point; `best` takes the present one."""
        arrivals = [
            go_on(
                rows, now[here], before[here], momentum, self.n_threads,
                None if best is None else best[here],
            )
            for here, rows in zip(self._lanes, self.blocks, strict=True)
        ]  # fmt: skip
        arrival = Arrival.of_all(arrivals)
        arrival.note(report, self.factor.n_rows, self.factor.n_components)
        return arrival

    def sums(self, visit: ColumnVisit) -> list[Array]:
        """Sum the columns over all blocks."""
        return visit.over(self.visit("columns"), self.n_threads)

    def column_sums(self) -> Array:
        """Return the sums over rows."""
        found = [rows.factor.column_sums(rows.weights) for rows in self.blocks]
        return np.sum(found, axis=0)

    def log_sizes(self, total_F: Array) -> float:
        """Sum of t_i log s_i over all samples: see `Rows.log_sizes`."""
        return float(np.sum([rows.log_sizes(total_F) for rows in self.blocks]))

    def log_prior(self) -> float:
        """Sum of the logarithms of the loadings' prior."""
        return float(np.sum([rows.factor.log_prior(rows.weights) for rows in self.blocks]))

    def put(self, out: Array, values: Array) -> None:
        """Copy a point."""
        np.copyto(out, values)

    def cast(self, values: Array, dtype: Any = None) -> Array:
        """Return a point in a type, by default that of the rows."""
        return aligned_copy(values, dtype or self.factor.values.dtype, self.factor.folder)

    def turn_into(self, dtype: Any) -> None:
        """Go on in another type."""
        self.factor = self.factor.as_type(dtype)
        self.all = Rows(self.factor, self.all.totals, self.all.weights)

    def restore_zeros(self) -> None:
        """Set what is at the floor to zero."""
        restore_zeros(self.factor)

    def lift_zeros(self) -> None:
        """Undo that."""
        lift_zeros(self.factor)

    def state(self) -> dict[str, Array]:
        """Arrays from which `restore` makes the same rows."""
        kept = {
            f"kept_L_{i:06d}": rows.kept
            for i, rows in enumerate(self.blocks)
            if rows.kept is not None
        }
        return {"L": self.factor.values} | kept

    def restore(self, arrays: dict[str, Array]) -> None:
        """Stand where the state was taken."""
        np.copyto(self.factor.values, arrays["L"])
        for i, rows in enumerate(self.blocks):
            rows.kept = arrays.get(f"kept_L_{i:06d}")

    def array(self, values: Array) -> Array:
        """Return a point as one array in lane order."""
        return values
