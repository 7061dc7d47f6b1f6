"""The block contract: counts cut into blocks of rows by their own numbers, in slices of 16."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import placing
from .aligned import aligned_empty, aligned_zeros
from .compressed import sort_columns
from .table import CountTable

Array = NDArray[Any]

LANES = 16
BLOCK_NONZEROS = 1 << 23
# A few counts too large for a narrow type are split into several of the same row and column: to
# the likelihood and its derivatives, which are linear in the counts, this makes no difference.
MOST_SPLIT = 1 / 16
# Bytes a nonzero count of both orders, about, and of all that a visit has at hand.
SLICE_BYTES, _BUFFER_BYTES = 7, 40
# Counts that are looked at together.
_PIECE = 1 << 17


@dataclass(frozen=True)
class Slices:
    """Rows side by side, 16 to a slice.

    Step q, lane r holds ``index[16 q + r]`` and ``count[16 q + r]``; an index comes again where a
    count was split. Shorter rows are padded with index 0 and count 0. ``offset`` is the first step
    of every slice.
    """

    index: Array
    count: Array
    offset: NDArray[np.int64]
    n_others: int

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.index.nbytes + self.count.nbytes + self.offset.nbytes


class _Pieces(NamedTuple):
    """Pieces, as large as the narrow type allows, of counts that are larger."""

    row: NDArray[np.int64]
    column: Array


class Slicer:
    """Stands rows or columns of a count matrix side by side, in the order asked for.

    Layouts and blocks hold it; it holds neither, nor the counts, so that all of them go as soon as
    the last name does. `reader` is as in `Layout`.
    """

    def __init__(
        self,
        reader: Any,
        shape: tuple[int, int],
        count_dtype: np.dtype[Any],
        column_order: NDArray[np.int32],
        n_threads: int,
        has_sorted_indices: bool,
    ):
        self.shape, self.count_dtype, self.column_order = shape, count_dtype, column_order
        self._reader, self._n_threads, self._sorted = reader, n_threads, has_sorted_indices

    def _column_position(self) -> NDArray[np.int32]:
        """Return where every column stands."""
        n_columns = self.shape[1]
        position = np.empty(n_columns, np.int32)
        position[self.column_order[:n_columns]] = np.arange(n_columns, dtype=np.int32)
        return position

    def _csr(self, start: int, stop: int) -> tuple[Array, Array, Array, _Pieces]:
        """Return rows start:stop, columns sorted, counts narrow, and pieces that go elsewhere."""
        indptr, indices, data = self._reader.read(start, stop)
        if not self._sorted:
            shape = stop - start, self.shape[1]
            indptr, indices, data = sort_columns(indptr, indices, data, shape)
        indptr = np.asarray(indptr, dtype=np.int64)
        if self.count_dtype.kind != "u":
            none = np.zeros(0, np.int64)
            return indptr, indices, data.astype(self.count_dtype, copy=False), _Pieces(none, none)
        large = _above(data, _largest(self.count_dtype))
        whole, rest = _pieces(data[large], self.count_dtype)
        narrow = aligned_empty(data.shape, self.count_dtype)
        np.copyto(narrow, data, casting="unsafe")
        narrow[large] = rest
        at = np.repeat(large, whole)
        row = np.searchsorted(indptr, at, side="right") - 1
        return indptr, indices, narrow, _Pieces(row, indices[at])

    def rows(self, start: int, stop: int, order: NDArray[np.int64]) -> Slices:
        """Return the rows of one block in slices."""
        stands = self._column_position()
        indptr, indices, data, pieces = self._csr(start, stop)
        length = np.diff(indptr)
        more = np.bincount(pieces.row, minlength=len(length))
        offset = _offsets((length + more)[order[order >= 0]], len(order))
        rows = _empty_slices(offset, self.shape[1], self.count_dtype)
        placing.place_rows(
            indptr, indices, data, order, stands, offset, rows.index, rows.count, self._n_threads,
        )  # fmt: skip
        lane = _lanes(order, len(length))
        self._place_pieces(rows, lane[pieces.row], length[pieces.row], stands[pieces.column])
        return rows

    def columns(self, start: int, stop: int, order: NDArray[np.int64]) -> Slices:
        """Return the columns of rows start:stop, which stand in lane order `order`, in slices."""
        n_columns, stands = self.shape[1], self._column_position()
        indptr, indices, data, pieces = self._csr(start, stop)
        in_order = np.where(order >= 0, np.diff(indptr)[order], 0)
        shares = np.arange(1, self._n_threads) * len(indices) / self._n_threads
        cuts = np.concatenate([[0], np.searchsorted(np.cumsum(in_order), shares), [len(order)]])
        found = aligned_zeros((self._n_threads, n_columns), np.int64)
        placing.count_columns(indptr, indices, order, cuts, found, self._n_threads)
        place = np.cumsum(found, axis=0, out=aligned_empty(found.shape, np.int64))
        length = place[-1][self.column_order[:n_columns]]
        lane = _lanes(order, len(indptr) - 1)[pieces.row]
        by_column = np.lexsort((lane, stands[pieces.column]))
        column = stands[pieces.column[by_column]]
        without_pieces = length[column]
        np.add.at(length, column, 1)
        offset = _offsets(length, len(self.column_order))
        columns = _empty_slices(offset, len(order), self.count_dtype)
        place -= found
        place += offset[stands // LANES]
        place *= LANES
        place += stands % LANES
        placing.place_columns(
            indptr, indices, data, order, cuts, place, columns.index, columns.count,
            self._n_threads,
        )  # fmt: skip
        self._place_pieces(columns, column, without_pieces, lane[by_column])
        return columns

    def _place_pieces(self, slices: Slices, lane: Array, length: Array, index: Array) -> None:
        """Let pieces, lane by lane, follow the `length` entries of their lanes."""
        first = np.flatnonzero(np.diff(lane, prepend=-1))
        ordinal = np.arange(len(lane)) - np.repeat(first, np.diff(first, append=len(lane)))
        at = (slices.offset[lane // LANES] + length + ordinal) * LANES + lane % LANES
        slices.index[at] = index
        slices.count[at] = _largest(self.count_dtype) if len(at) else 0


class Block:
    """Rows ``start:stop`` of the counts, lanes ``first:last``, and both orders of them.

    Rows and columns are made when first used and kept, or each time anew if `keep` is false.
    """

    def __init__(
        self, slicer: Slicer, start: int, stop: int, first: int, order: Array, keep: bool = True
    ):
        self._slicer, self._order, self.keep = slicer, order, keep
        self._made: dict[str, Slices] = {}
        self.start, self.stop, self.first, self.last = start, stop, first, first + len(order)

    @property
    def rows(self) -> Slices:
        """The rows in slices; indices are lanes of the columns."""
        return self._slices("rows")

    @property
    def columns(self) -> Slices:
        """The columns in slices; indices are lanes of the block's rows."""
        return self._slices("columns")

    def _slices(self, which: str) -> Slices:
        if which in self._made:
            return self._made[which]
        made: Slices = getattr(self._slicer, which)(self.start, self.stop, self._order)
        return self._made.setdefault(which, made) if self.keep else made


class Layout:
    """A count matrix in blocks of sliced rows and columns.

    Lane i holds row ``row_order[i]`` of the counts, or nothing where that is -1: within a block the
    rows stand by falling number of nonzeros. Columns stand by falling number of nonzeros in the
    whole matrix, in every block the same.

    Parameters
    ----------
    counts : CountTable
        Only looked at while the layout is made.
    reader : object
        ``read(start, stop)`` returns these rows compressed, as a `RowSource` does;
        a `StreamRows` where blocks do not stay in memory.
    n_threads : int
    keep : bool
        Whether blocks stay in memory once they were made.
    has_sorted_indices : bool
        Whether the reader's column numbers rise within every row.

    Attributes
    ----------
    row_order, column_order : ndarray of int64 and of int32
        Original number of the row (column) in every lane, -1 in the padding.
    blocks : list of Block
    large : tuple of ndarray
        Values that are split in pieces, and how often each occurs.
    """

    def __init__(
        self,
        counts: CountTable,
        reader: Any,
        n_threads: int = 1,
        *,
        keep: bool = True,
        has_sorted_indices: bool = True,
    ):
        self.shape = counts.shape
        self.column_order = column_order_of(counts)
        self.count_dtype, self.large = narrow_type(counts)
        self._reader, self._nnz = reader, counts.nnz
        self._slicer = Slicer(
            reader, self.shape, self.count_dtype, self.column_order, n_threads, has_sorted_indices
        )
        self.blocks: list[Any] = []
        orders = []
        for start, stop, first, order in block_orders(counts.row_nnz):
            self.blocks.append(Block(self._slicer, start, stop, first, order, keep))
            orders.append(np.where(order < 0, -1, order + start))
        self.row_order = np.concatenate(orders)

    def visit(self, which: str) -> Iterator[tuple[Any, Slices]]:
        """Blocks and their "rows" or "columns", one after the other.

        Where blocks do not stay in memory, the next is made while one is worked on.
        """
        slices = (getattr(block, which) for block in self.blocks)
        yield from zip(self.blocks, slices if self.kept else made_ahead(slices), strict=True)

    def visit_both(self) -> Iterator[tuple[Any, Slices, Slices]]:
        """Blocks, their rows and their columns."""
        yield from ((block, block.rows, block.columns) for block in self.blocks)

    def keep(self) -> None:
        """Let blocks stay in memory once they were made."""
        for block in self.blocks:
            block.keep = True

    @property
    def kept(self) -> bool:
        """Whether blocks stay in memory once they were made."""
        return all(block.keep for block in self.blocks)

    @property
    def bytes_read(self) -> int:
        """Bytes of counts read from a file so far."""
        return getattr(self._reader, "bytes_read", 0)

    @property
    def buffer_bytes(self) -> int:
        """Bytes that a visit needs where blocks do not stay in memory."""
        # two blocks in slices, one of them with its compressed rows, sorted and split
        return _BUFFER_BYTES * min(self._nnz, BLOCK_NONZEROS)

    @cached_property
    def whole_columns(self) -> Slices:
        """The columns of the whole matrix in slices; refused where blocks stay in their file."""
        if len(self.blocks) == 1:
            return self.blocks[0].columns
        if not self.kept:
            raise no_whole_columns(self._reader.stream.whom, len(self.blocks))
        return self._slicer.columns(0, self.shape[0], self.row_order)

    def count_values(self) -> tuple[Array, NDArray[np.int64]] | None:
        """Return the values of the counts and how often each occurs; None unless most are small."""
        found = ValueCounts(self)
        for _, rows in self.visit("rows") if found.possible else ():
            found.add(rows)
        return found.result()

    @property
    def nbytes(self) -> int:
        """Memory of the sliced counts in bytes, about, where they are yet to be made."""
        if not self.kept:
            return SLICE_BYTES * self._nnz
        return sum(block.rows.nbytes + block.columns.nbytes for block in self.blocks)


def no_whole_columns(whom: object, n_blocks: int) -> ValueError:
    """Return the error of a solver that needs whole columns of counts that stay in a file."""
    return ValueError(
        f"{whom} is read in {n_blocks} blocks of rows, and this solver needs whole columns: use "
        "solver='auto', or counts in memory, into which read_counts reads a file."
    )


class ValueCounts:
    """Counts how often each count occurs, slice by slice."""

    def __init__(self, layout: Layout):
        self.dtype, self.large = layout.count_dtype, layout.large
        self.possible = self.dtype.itemsize <= 2
        self._found = np.zeros((4, 1 << 8 * self.dtype.itemsize if self.possible else 0), np.int64)

    def add(self, rows: Slices) -> None:
        """Take the rows of one more block."""
        if self.possible:
            placing.count_values(rows.count, self._found)

    def result(self) -> tuple[Array, NDArray[np.int64]] | None:
        """Return the values of the counts and how often each occurs; None unless most are small."""
        if not self.possible:
            return None
        times = self._found.sum(axis=0)
        large, often = self.large
        whole, rest = _pieces(large, self.dtype)
        times[-1] -= whole @ often
        np.subtract.at(times, rest, often)
        values = np.flatnonzero(times[1:]) + 1  # 0 fills the padding
        return np.concatenate([values, large]), np.concatenate([times[values], often])


def made_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Hand out items of an iterator, of which the next is made in a thread meanwhile."""
    end = object()
    with ThreadPoolExecutor(1) as ahead:
        pending = ahead.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = ahead.submit(next, items, end)
            yield item


def cut_blocks(row_nnz: Array) -> NDArray[np.int64]:
    """Return where blocks begin, and the end: as many rows as 2^23 nonzeros allow, at least one."""
    ends = np.cumsum(row_nnz, dtype=np.int64)
    cuts = [0]
    while cuts[-1] < len(row_nnz):
        done = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(
            max(cuts[-1] + 1, int(np.searchsorted(ends, done + BLOCK_NONZEROS, side="right")))
        )
    return np.array(cuts)


def block_orders(row_nnz: Array) -> Iterator[tuple[int, int, int, NDArray[np.int64]]]:
    """For each block: its rows start:stop, its first lane, the order of its rows in lanes."""
    cuts, first = cut_blocks(row_nnz).tolist(), 0
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        order = lane_order_of(row_nnz[start:stop])
        yield start, stop, first, order
        first += len(order)


def narrow_type(counts: CountTable) -> tuple[np.dtype[Any], tuple[Array, Array]]:
    """Smallest type of the kernels for the counts, and the values that need several pieces of it.

    Every count is held exactly, a few of them in pieces; with the values comes how often each
    occurs.
    """
    none = np.empty(0, np.int64), np.empty(0, np.int64)
    if counts.is_integer:
        for dtype in (np.dtype(np.uint8), np.dtype(np.uint16)):
            values, times = counts.large_counts(_largest(dtype))
            if _pieces(values, dtype)[0] @ times <= MOST_SPLIT * counts.nnz:
                return dtype, (values, times)
        return np.dtype(np.float32 if counts.largest <= 1 << 24 else np.float64), none
    return np.dtype(np.float32 if counts.dtype == np.float32 else np.float64), none


def _above(data: Array, most: float) -> NDArray[np.int64]:
    """Return where counts are larger, looking at a piece at a time."""
    found = [
        first + np.flatnonzero(data[first : first + _PIECE] > most)
        for first in range(0, len(data), _PIECE)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _largest(dtype: np.dtype[Any]) -> float:
    return np.iinfo(dtype).max if dtype.kind == "u" else np.inf


def _pieces(large: Array, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many pieces, as large as the type allows, each count takes, and its rest."""
    largest = int(_largest(dtype))
    whole = (large.astype(np.int64) - 1) // largest
    return whole, large.astype(np.int64) - whole * largest


def lane_order_of(length: Array) -> NDArray[np.int64]:
    """Longest first, ties in their own order, padded with -1 to whole slices."""
    order = np.full(-(-len(length) // LANES) * LANES, -1, np.int64)
    order[: len(length)] = np.argsort(-length.astype(np.int64), kind="stable")
    return order


def column_order_of(counts: CountTable) -> NDArray[np.int32]:
    """Order of the columns in lanes, whose numbers are those of an index of the kernels."""
    return lane_order_of(counts.column_nnz).astype(np.int32)


def _lanes(order: Array, n_rows: int) -> NDArray[np.int64]:
    """Return the lane of every row."""
    lane = np.empty(n_rows, np.int64)
    lane[order[order >= 0]] = np.flatnonzero(order >= 0)
    return lane


def _offsets(length_in_lane_order: Array, n_lanes: int) -> NDArray[np.int64]:
    padded = np.zeros(n_lanes, np.int64)
    padded[: len(length_in_lane_order)] = length_in_lane_order
    return np.concatenate([[0], np.cumsum(padded.reshape(-1, LANES).max(axis=1))])


def _empty_slices(offset: Array, n_others: int, count_dtype: np.dtype[Any]) -> Slices:
    size = int(offset[-1]) * LANES
    index_dtype = np.uint16 if n_others <= 1 << 16 else np.int32
    index, count = aligned_zeros((size,), index_dtype), aligned_zeros((size,), count_dtype)
    return Slices(index, count, offset, n_others)
