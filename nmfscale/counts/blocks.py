"""The block contract: counts in blocks of rows, each in SELL-16 by rows and by columns.

The numbers of nonzeros alone decide where blocks are cut, and the order of rows and columns.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._sell import count_values
from .base import CountMatrix
from .cached import cached_property
from .panels import ColumnFile, bytes_of_panels, panel_slices, stacked
from .sell import LANES, SellBlock, SellBuilder, largest_of, pieces_of

Array = NDArray[Any]

BLOCK_NONZEROS = 1 << 23
# A few counts that exceed a narrow type are split into several entries of the same row and column.
# The likelihood and its derivatives are linear in the counts, so this does not change them. At
# most this share of the nonzeros may be such extra entries.
MOST_SPLIT = 1 / 16
# Approximate bytes for each nonzero count: of both orders, and of all buffers of a visit.
SLICE_BYTES, _BUFFER_BYTES = 7, 40


class Block:
    """Rows ``start:stop`` of the counts, in lanes ``first:last``, by rows and by columns.

    Both are built when they are first used and then kept, or built at each use if `keep` is false.
    """

    def __init__(
        self, builder: SellBuilder, start: int, stop: int, first: int, order: Array, keep: bool
    ):
        self._builder, self._order, self.keep = builder, order, keep
        self._made: dict[str, SellBlock] = {}
        self.start, self.stop, self.first, self.last = start, stop, first, first + len(order)

    @property
    def rows(self) -> SellBlock:
        """The rows in SELL-16; indices are lanes of the columns."""
        return self._slices("rows")

    @property
    def columns(self) -> SellBlock:
        """The columns in SELL-16; indices are lanes of the block's rows."""
        return self._slices("columns")

    def _slices(self, which: str) -> SellBlock:
        if which in self._made:
            return self._made[which]
        made: SellBlock = getattr(self._builder, which)(self.start, self.stop, self._order)
        return self._made.setdefault(which, made) if self.keep else made


class Layout:
    """A count matrix in blocks of rows, each in SELL-16 by rows and by columns.

    Lane i holds row ``row_order[i]`` of the counts, or no row if that is -1. Within a block, rows
    are sorted by falling number of nonzeros. Columns are sorted by falling number of nonzeros in
    the whole matrix: `column_order` is the same for all blocks. `large` holds the values of counts
    that are split into pieces, and how often each occurs.

    ``reader.read(start, stop)`` returns a `RowRange`. With `keep`, blocks stay in memory once they
    are built; without, the reader is a stream. `counts` is used only while the layout is built.
    """

    def __init__(
        self, counts: CountMatrix, reader: Any, n_threads: int = 1, *, keep: bool = True,
        has_sorted_indices: bool = True,
    ):  # fmt: skip
        self.shape = counts.shape
        self.column_order = column_order_of(counts)
        self.count_dtype, self.large = narrow_type(counts)
        self._reader, self._nnz, self._n_threads = reader, counts.nnz, n_threads
        self._panel_entries = panel_entries(counts)
        self._builder = SellBuilder(
            reader, self.shape, self.count_dtype, self.column_order, n_threads, has_sorted_indices
        )
        self.blocks: list[Any] = []
        orders = []
        for start, stop, first, order in block_orders(counts.row_nnz):
            self.blocks.append(Block(self._builder, start, stop, first, order, keep))
            orders.append(np.where(order < 0, -1, order + start))
        self.row_order = np.concatenate(orders)

    def visit(self, which: str) -> Iterator[tuple[Any, SellBlock]]:
        """Yield each block with its "rows" or "columns".

        If blocks do not stay in memory, the next one is built while the caller works on one.
        """
        slices = (getattr(block, which) for block in self.blocks)
        yield from zip(self.blocks, slices if self.kept else prefetched(slices), strict=True)

    def visit_both(self) -> Iterator[tuple[Any, SellBlock, SellBlock]]:
        """Yield each block with its rows and its columns."""
        yield from ((block, block.rows, block.columns) for block in self.blocks)

    def visit_panels(self) -> Iterator[tuple[slice, SellBlock]]:
        """Yield slices of the columns, and these columns over all blocks, panel after panel.

        Indices are lanes of all rows. Counts that stay in memory make one panel. Otherwise, the
        first visit writes the columns of all blocks to a temporary file, because a stream would
        have to be read again for every panel; the next panel is read while one is in use.
        """
        if self.kept or len(self.blocks) == 1:
            yield slice(0, len(self.column_order) // LANES), self.whole_columns
            return
        panels = cut_panels(self._column_file.entries_of_slices())
        yield from zip(panels, prefetched(map(self._panel, panels)), strict=True)

    def panel_bytes(self, per_count: int = 0) -> int:
        """Return the bytes that a visit of panels needs, and `per_count` for each count in use."""
        if self.kept or len(self.blocks) == 1:
            return 0
        return bytes_of_panels(self._panel_entries, self.count_dtype, per_count)

    def _panel(self, which: slice) -> SellBlock:
        columns = self._column_file.read(which)
        stretches = [
            (block.first, slices) for block, slices in zip(self.blocks, columns, strict=True)
        ]
        return stacked(stretches, len(self.row_order), self._n_threads)

    @cached_property
    def _column_file(self) -> ColumnFile:
        return ColumnFile(columns for _, columns in self.visit("columns"))

    def keep(self) -> None:
        """Keep blocks in memory from their next use on."""
        for block in self.blocks:
            block.keep = True

    @property
    def kept(self) -> bool:
        """Whether blocks stay in memory once they are built."""
        return all(block.keep for block in self.blocks)

    @property
    def bytes_read(self) -> int:
        """Bytes of counts read from a file so far."""
        of_panels = self._column_file.bytes_read if "_column_file" in self.__dict__ else 0
        return int(getattr(self._reader, "bytes_read", 0)) + of_panels

    @property
    def buffer_bytes(self) -> int:
        """Bytes that a visit needs if blocks do not stay in memory."""
        # two blocks in SELL-16, one of them with its compressed rows, sorted and split
        block_bytes = _BUFFER_BYTES * min(self._nnz, BLOCK_NONZEROS)
        return block_bytes + getattr(self._reader, "piece_bytes", 0)

    @cached_property
    def whole_columns(self) -> SellBlock:
        """The columns of the whole matrix in SELL-16."""
        if len(self.blocks) == 1:
            return self.blocks[0].columns
        return self._builder.columns(0, self.shape[0], self.row_order)

    def count_values(self) -> tuple[Array, NDArray[np.int64]] | None:
        """Return the values of the counts and how often each occurs; None if many are large."""
        return self._values

    @cached_property
    def _values(self) -> tuple[Array, NDArray[np.int64]] | None:
        value_counts = ValueCounts(self)
        for _, rows in self.visit("rows") if value_counts.possible else ():
            value_counts.add(rows)
        return value_counts.result()

    @property
    def nbytes(self) -> int:
        """Memory of the counts in SELL-16 in bytes; an estimate if blocks stay in their file."""
        if not self.kept:
            return SLICE_BYTES * self._nnz
        return sum(block.rows.nbytes + block.columns.nbytes for block in self.blocks)


class ValueCounts:
    """Counts how often each count occurs, slice by slice."""

    def __init__(self, layout: Layout):
        self.dtype, self.large = layout.count_dtype, layout.large
        self.possible = self.dtype.itemsize <= 2
        self._found = np.zeros((4, 1 << 8 * self.dtype.itemsize if self.possible else 0), np.int64)

    def add(self, rows: SellBlock) -> None:
        """Count the values in the rows of one more block."""
        if self.possible:
            count_values(rows.count, self._found)

    def result(self) -> tuple[Array, NDArray[np.int64]] | None:
        """Return the values of the counts and how often each occurs; None if many are large."""
        if not self.possible:
            return None
        times = self._found.sum(axis=0)
        large, often = self.large
        whole, rest = pieces_of(large, self.dtype)
        times[-1] -= whole @ often
        np.subtract.at(times, rest, often)
        values = np.flatnonzero(times[1:]) + 1  # 0 fills the padding
        return np.concatenate([values, large]), np.concatenate([times[values], often])


def prefetched(items: Iterator[Any]) -> Generator[Any, None, None]:
    """Yield the items of an iterator, and compute the next one in a thread meanwhile."""
    end = object()
    with ThreadPoolExecutor(1) as ahead:
        pending = ahead.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = ahead.submit(next, items, end)
            yield item


def cut_blocks(row_nnz: Array) -> NDArray[np.int64]:
    """Return the first row of every block, and the end.

    A block has as many rows as fit into 2^23 nonzeros, but at least one.
    """
    ends = np.cumsum(row_nnz, dtype=np.int64)
    cuts = [0]
    while cuts[-1] < len(row_nnz):
        done = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(
            max(cuts[-1] + 1, int(np.searchsorted(ends, done + BLOCK_NONZEROS, side="right")))
        )
    return np.array(cuts)


def block_orders(row_nnz: Array) -> Iterator[tuple[int, int, int, NDArray[np.int64]]]:
    """Yield, for each block, its rows start:stop, its first lane, and its rows in lane order."""
    cuts, first = cut_blocks(row_nnz).tolist(), 0
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        order = lane_order_of(row_nnz[start:stop])
        yield start, stop, first, order
        first += len(order)


def cut_panels(steps: Array) -> list[slice]:
    """Cut slices of columns into panels that have at most as many entries as a block has counts."""
    return panel_slices(steps, BLOCK_NONZEROS)


def panel_entries(counts: CountMatrix) -> int:
    """Return how many entries a panel may have: those of a block, or of the longest slice."""
    return max(BLOCK_NONZEROS, LANES * int(counts.column_nnz.max(initial=0)))


def narrow_type(counts: CountMatrix) -> tuple[np.dtype[Any], tuple[Array, Array]]:
    """Return the smallest dtype of the kernels for the counts, and the values that exceed it.

    Every count is represented exactly, a few of them in several pieces. The values that are split
    come with how often each occurs.
    """
    none = np.empty(0, np.int64), np.empty(0, np.int64)
    if counts.is_integer:
        for dtype in (np.dtype(np.uint8), np.dtype(np.uint16)):
            values, times = counts.large_counts(largest_of(dtype))
            if pieces_of(values, dtype)[0] @ times <= MOST_SPLIT * counts.nnz:
                return dtype, (values, times)
        return np.dtype(np.float32 if counts.largest <= 1 << 24 else np.float64), none
    return np.dtype(np.float32 if counts.dtype == np.float32 else np.float64), none


def lane_order_of(length: Array) -> NDArray[np.int64]:
    """Return the order by falling length, ties in their own order; -1 fills up the last slice."""
    order = np.full(-(-len(length) // LANES) * LANES, -1, np.int64)
    order[: len(length)] = np.argsort(-length.astype(np.int64), kind="stable")
    return order


def column_order_of(counts: CountMatrix) -> NDArray[np.int32]:
    """Return the column in every lane; indices of the kernels are these lanes."""
    return lane_order_of(counts.column_nnz).astype(np.int32)
