"""Rows or columns of counts in SELL-16 (sliced ELLPACK), the format that the kernels read.

Rows are sorted by falling number of nonzeros, and 16 neighbours form a slice: its entry q holds
the q-th nonzero of each of the 16 rows, next to each other in memory. Shorter rows of a slice are
padded with zeros, so that one vector instruction processes the same entry of all of its rows.

The position of a row in this order is its *lane*. Indices are lanes, too: those of the columns in
slices of rows, and those of the rows in slices of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._sell import count_columns, find_dense, place_columns, place_rows, weigh
from .aligned import aligned_empty, aligned_zeros
from .cached import cached_property
from .row_ranges import RowRange
from .validation import changed

Array = NDArray[Any]

LANES = 16
# Number of counts that are examined at a time.
_PIECE = 1 << 17
# With fewer counts than this for each thread, waking another thread does not pay.
_LEAST_SHARE = 1 << 12
# Types for products of integers, and the largest integer up to which each is exact.
_EXACT = (np.uint16, 2.0**16 - 1), (np.float32, 2.0**24)


@dataclass(frozen=True)
class SellBlock:
    """Rows (or columns) of one block in SELL-16.

    Entry q of lane r of a slice is ``index[16 q + r]`` and ``count[16 q + r]``, where q counts
    through all slices: slice s has the entries ``offset[s]`` to ``offset[s + 1] - 1``. An index
    repeats in a row if its count was split. Padding has index 0 and count 0. Indices are less than
    ``n_others``.
    """

    index: Array
    count: Array
    offset: NDArray[np.int64]
    n_others: int

    def weighted(
        self, weights: Array, dtype: Any, n_threads: int, room: list[Array] | None = None
    ) -> SellBlock:
        """Return the same block with every count multiplied by the weight of its index.

        Products have `dtype`, float32 or float64, or a smaller type that holds all of them exactly.
        `room` holds the memory of an earlier block, which is reused if it is large enough.
        """
        count_dtype = type_of_products(self.count.dtype, weights, np.dtype(dtype))
        room, size = [] if room is None else room, self.count.size * count_dtype.itemsize
        if not room or len(room[0]) < size:
            room.clear()
            room.append(aligned_empty((size,), np.uint8))
        count = room[0][:size].view(count_dtype)
        weigh(self.index, self.count, weights.astype(count_dtype), count, n_threads)
        return replace(self, count=count)

    def slices(self, which: slice) -> SellBlock:
        """Return a block of some neighbouring slices, as views of the same memory."""
        offset = self.offset[which.start : which.stop + 1]
        entries = slice(offset[0] * LANES, offset[-1] * LANES)
        index, count = self.index[entries], self.count[entries]
        return replace(self, index=index, count=count, offset=offset - offset[0])

    @cached_property
    def dense(self) -> NDArray[np.uint8]:
        """Whether a slice is dense: entry q has index q in all lanes that have a count there."""
        out = np.zeros(len(self.offset) - 1, np.uint8)
        find_dense(self.index, self.count, self.offset, out)
        return out

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.index.nbytes + self.count.nbytes + self.offset.nbytes


def type_of_products(count_dtype: np.dtype[Any], weights: Array, dtype: Any) -> np.dtype[Any]:
    """Return the smallest type that holds counts times integer weights exactly, else `dtype`."""
    if count_dtype.kind == "u" and (weights == np.rint(weights)).all():
        largest = largest_of(count_dtype) * float(weights.max(initial=0.0))
        for exact, limit in _EXACT:
            if largest <= limit:
                return np.dtype(exact)
    return np.dtype(dtype)


class _Pieces(NamedTuple):
    """Entries that a narrow type needs for large counts, each with the type's largest value.

    A count that exceeds its type is split: these pieces, and the rest in the count's own entry.
    """

    row: NDArray[np.int64]
    column: Array


class SellBuilder:
    """Converts rows start:stop of a count matrix to SELL-16, by rows or by columns.

    Layouts and blocks refer to the builder, which refers neither to them nor to the counts: without
    a reference cycle, all are freed with the last reference. `reader` is as in `Layout`.
    """

    def __init__(
        self, reader: Any, shape: tuple[int, int], count_dtype: np.dtype[Any],
        column_order: NDArray[np.int32], n_threads: int, has_sorted_indices: bool,
    ):  # fmt: skip
        self.shape, self.count_dtype, self.column_order = shape, count_dtype, column_order
        self._reader, self._n_threads, self._sorted = reader, n_threads, has_sorted_indices

    def _lane_of_columns(self) -> NDArray[np.int32]:
        """Return the lane of every column."""
        n_columns = self.shape[1]
        lane = np.empty(n_columns, np.int32)
        lane[self.column_order[:n_columns]] = np.arange(n_columns, dtype=np.int32)
        return lane

    def _csr(self, start: int, stop: int) -> tuple[Array, Array, Array, _Pieces]:
        """Return rows start:stop, sorted and with narrow counts, and the pieces of large counts."""
        rows: RowRange = self._reader.read(start, stop)
        if not self._sorted:
            rows = changed(rows, self.shape[1], "sort_indices")
        indptr, indices, data = rows.indptr.astype(np.int64, copy=False), rows.indices, rows.data
        if self.count_dtype.kind != "u":
            none = np.zeros(0, np.int64)
            return indptr, indices, data.astype(self.count_dtype, copy=False), _Pieces(none, none)
        large = _above(data, largest_of(self.count_dtype))
        whole, rest = pieces_of(data[large], self.count_dtype)
        # the rest takes the place of the large count; the pieces, `whole` of them, follow the row
        narrow = aligned_empty(data.shape, self.count_dtype)
        np.copyto(narrow, data, casting="unsafe")
        narrow[large] = rest
        at = np.repeat(large, whole)
        row = np.searchsorted(indptr, at, side="right") - 1
        return indptr, indices, narrow, _Pieces(row, indices[at])

    def rows(self, start: int, stop: int, order: NDArray[np.int64]) -> SellBlock:
        """Return the rows of one block in SELL-16; lane i holds row ``start + order[i]``."""
        column_lane = self._lane_of_columns()
        indptr, indices, data, pieces = self._csr(start, stop)
        length = np.diff(indptr)
        n_pieces = np.bincount(pieces.row, minlength=len(length))
        # lengths in lane order; lanes of the padding (order < 0) are the last ones, of length 0
        offset = offsets_of((length + n_pieces)[order[order >= 0]], len(order))
        rows = empty_block(offset, self.shape[1], self.count_dtype)
        place_rows(
            indptr, indices, data, order, column_lane, offset, rows.index, rows.count,
            self._n_threads,
        )  # fmt: skip
        lane = _lanes(order, len(length))[pieces.row]
        self._place_pieces(rows, lane, length[pieces.row], column_lane[pieces.column])
        return rows

    def columns(self, start: int, stop: int, order: NDArray[np.int64]) -> SellBlock:
        """Return the columns of rows start:stop, whose lane order is `order`, in SELL-16."""
        n_columns, column_lane = self.shape[1], self._lane_of_columns()
        indptr, indices, data, pieces = self._csr(start, stop)
        # 1) Cut the lanes of the rows into shares of about equally many counts, one a thread. Each
        # share needs two numbers for each column, so that fewer counts than columns do not pay.
        lane_nnz = np.where(order >= 0, np.diff(indptr)[order], 0)
        n_shares = max(1, min(self._n_threads, len(indices) // max(n_columns, _LEAST_SHARE)))
        ends = np.arange(1, n_shares) * len(indices) / n_shares
        cuts = np.concatenate([[0], np.searchsorted(np.cumsum(lane_nnz), ends), [len(order)]])
        # 2) Count the nonzeros of each column in each share; `place` are their cumulated numbers.
        n_entries = aligned_zeros((n_shares, n_columns), np.int64)
        count_columns(indptr, indices, order, cuts, n_entries, self._n_threads)
        place = np.cumsum(n_entries, axis=0, out=aligned_empty(n_entries.shape, np.int64))
        length = place[-1][self.column_order[:n_columns]]  # of each column, in lane order
        # 3) Sort pieces of split counts by column, then by row. They follow the other entries of
        # their column, and lengthen it.
        row_lane = _lanes(order, len(indptr) - 1)[pieces.row]
        by_column = np.lexsort((row_lane, column_lane[pieces.column]))
        piece_lane = column_lane[pieces.column[by_column]]
        length_without_pieces = length[piece_lane]
        np.add.at(length, piece_lane, 1)
        offset = offsets_of(length, len(self.column_order))
        columns = empty_block(offset, len(order), self.count_dtype)
        # 4) Turn `place` into positions in `index`: where a share's first entry of a column goes.
        place -= n_entries
        place += offset[column_lane // LANES]
        place *= LANES
        place += column_lane % LANES
        place_columns(
            indptr, indices, data, order, cuts, place, columns.index, columns.count,
            self._n_threads,
        )  # fmt: skip
        self._place_pieces(columns, piece_lane, length_without_pieces, row_lane[by_column])
        return columns

    def _place_pieces(self, slices: SellBlock, lane: Array, length: Array, index: Array) -> None:
        """Append pieces, sorted by lane, to the first `length` entries of their lanes."""
        # the number of each piece within its lane
        first = np.flatnonzero(np.diff(lane, prepend=-1))
        ordinal = np.arange(len(lane)) - np.repeat(first, np.diff(first, append=len(lane)))
        # entry q of lane r of a slice is at 16 (offset + q) + r
        at = (slices.offset[lane // LANES] + length + ordinal) * LANES + lane % LANES
        slices.index[at] = index
        slices.count[at] = largest_of(self.count_dtype) if len(at) else 0


def _above(data: Array, most: float) -> NDArray[np.int64]:
    """Return the positions of counts larger than `most`; examines one piece at a time."""
    positions = [
        first + np.flatnonzero(data[first : first + _PIECE] > most)
        for first in range(0, len(data), _PIECE)
    ]
    return np.concatenate([np.zeros(0, np.int64), *positions])


def largest_of(dtype: np.dtype[Any]) -> float:
    """Return the largest count that fits into one entry of a dtype."""
    return np.iinfo(dtype).max if dtype.kind == "u" else np.inf


def pieces_of(large: Array, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each large count, its number of pieces of the dtype's largest value, and rest."""
    largest = int(largest_of(dtype))
    whole = (large.astype(np.int64) - 1) // largest  # so that the rest is 1 to largest
    return whole, large.astype(np.int64) - whole * largest


def lanes_of(slices: slice) -> slice:
    """Return the lanes of neighbouring slices."""
    return slice(slices.start * LANES, slices.stop * LANES)


def _lanes(order: Array, n_rows: int) -> NDArray[np.int64]:
    """Return the lane of every row, from the row of every lane."""
    lane = np.empty(n_rows, np.int64)
    lane[order[order >= 0]] = np.flatnonzero(order >= 0)
    return lane


def offsets_of(length_in_lane_order: Array, n_lanes: int) -> NDArray[np.int64]:
    """Return the first step of every slice, and the end, from the length of every lane."""
    padded = np.zeros(n_lanes, np.int64)
    padded[: len(length_in_lane_order)] = length_in_lane_order
    # a slice is as long as the longest of its 16 lanes
    return np.concatenate([[0], np.cumsum(padded.reshape(-1, LANES).max(axis=1))])


def empty_block(offset: Array, n_others: int, count_dtype: np.dtype[Any]) -> SellBlock:
    """Return slices of zeros."""
    size = int(offset[-1]) * LANES
    index_dtype = np.uint16 if n_others <= 1 << 16 else np.int32
    index, count = aligned_zeros((size,), index_dtype), aligned_zeros((size,), count_dtype)
    return SellBlock(index, count, offset, n_others)
