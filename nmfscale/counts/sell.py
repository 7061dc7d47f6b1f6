"""Rows or columns of counts side by side, 16 to a slice, as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._sell import count_columns, place_columns, place_rows, weigh
from .aligned import aligned_empty, aligned_zeros
from .base import RowRange
from .validation import changed

Array = NDArray[Any]

LANES = 16
# Counts that are looked at together.
_PIECE = 1 << 17
# Counts for which it pays to wake a thread.
_LEAST_SHARE = 1 << 12
# Types of whole numbers that are multiplied, and up to where they are exact.
_EXACT = (np.uint16, 2.0**16 - 1), (np.float32, 2.0**24)


@dataclass(frozen=True)
class SellBlock:
    """Rows side by side, 16 to a slice.

    Step q, lane r holds ``index[16 q + r]`` and ``count[16 q + r]``; an index comes again where a
    count was split. Shorter rows are padded with index 0 and count 0. ``offset`` is the first step
    of every slice.
    """

    index: Array
    count: Array
    offset: NDArray[np.int64]
    n_others: int

    def weighted(
        self, weights: Array, dtype: Any, n_threads: int, room: list[Array] | None = None
    ) -> SellBlock:
        """Return the same with every count times the weight of its index.

        Products are in `dtype`, float32 or float64, or in a type that holds all of them exactly.
        `room` holds the memory of a block before, which is written over if it is large enough.
        """
        of_counts = type_of_products(self.count.dtype, weights, np.dtype(dtype))
        room, size = [] if room is None else room, self.count.size * of_counts.itemsize
        if not room or len(room[0]) < size:
            room.clear()
            room.append(aligned_empty((size,), np.uint8))
        count = room[0][:size].view(of_counts)
        weigh(self.index, self.count, weights.astype(of_counts), count, n_threads)
        return replace(self, count=count)

    def slices(self, which: slice) -> SellBlock:
        """Return some neighbouring slices, in the same memory."""
        offset = self.offset[which.start : which.stop + 1]
        steps = slice(offset[0] * LANES, offset[-1] * LANES)
        index, count = self.index[steps], self.count[steps]
        return replace(self, index=index, count=count, offset=offset - offset[0])

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.index.nbytes + self.count.nbytes + self.offset.nbytes


def type_of_products(of_counts: np.dtype[Any], weights: Array, dtype: Any) -> np.dtype[Any]:
    """Return the smallest type that holds counts times whole weights exactly, else `dtype`."""
    if of_counts.kind == "u" and (weights == np.rint(weights)).all():
        largest = largest_of(of_counts) * float(weights.max(initial=0.0))
        for exact, limit in _EXACT:
            if largest <= limit:
                return np.dtype(exact)
    return np.dtype(dtype)


class _Pieces(NamedTuple):
    """Pieces, as large as the narrow type allows, of counts that are larger."""

    row: NDArray[np.int64]
    column: Array


class SellBuilder:
    """Stands rows or columns of a count matrix side by side, in the order asked for.

    Layouts and blocks hold it; it holds neither, nor the counts, so that all of them go as soon as
    the last name does. `reader` is as in `Layout`.
    """

    def __init__(
        self, reader: Any, shape: tuple[int, int], count_dtype: np.dtype[Any],
        column_order: NDArray[np.int32], n_threads: int, has_sorted_indices: bool,
    ):  # fmt: skip
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
        rows: RowRange = self._reader.read(start, stop)
        if not self._sorted:
            rows = changed(rows, self.shape[1], "sort_indices")
        indptr, indices, data = rows.indptr.astype(np.int64, copy=False), rows.indices, rows.data
        if self.count_dtype.kind != "u":
            none = np.zeros(0, np.int64)
            return indptr, indices, data.astype(self.count_dtype, copy=False), _Pieces(none, none)
        large = _above(data, largest_of(self.count_dtype))
        whole, rest = pieces_of(data[large], self.count_dtype)
        narrow = aligned_empty(data.shape, self.count_dtype)
        np.copyto(narrow, data, casting="unsafe")
        narrow[large] = rest
        at = np.repeat(large, whole)
        row = np.searchsorted(indptr, at, side="right") - 1
        return indptr, indices, narrow, _Pieces(row, indices[at])

    def rows(self, start: int, stop: int, order: NDArray[np.int64]) -> SellBlock:
        """Return the rows of one block in slices."""
        stands = self._column_position()
        indptr, indices, data, pieces = self._csr(start, stop)
        length = np.diff(indptr)
        more = np.bincount(pieces.row, minlength=len(length))
        offset = _offsets((length + more)[order[order >= 0]], len(order))
        rows = _empty_block(offset, self.shape[1], self.count_dtype)
        place_rows(
            indptr, indices, data, order, stands, offset, rows.index, rows.count, self._n_threads,
        )  # fmt: skip
        lane = _lanes(order, len(length))
        self._place_pieces(rows, lane[pieces.row], length[pieces.row], stands[pieces.column])
        return rows

    def columns(self, start: int, stop: int, order: NDArray[np.int64]) -> SellBlock:
        """Return the columns of rows start:stop, which stand in lane order `order`, in slices."""
        n_columns, stands = self.shape[1], self._column_position()
        indptr, indices, data, pieces = self._csr(start, stop)
        in_order = np.where(order >= 0, np.diff(indptr)[order], 0)
        # a share takes two numbers a column, and should not have fewer counts than that
        n_shares = max(1, min(self._n_threads, len(indices) // max(n_columns, _LEAST_SHARE)))
        shares = np.arange(1, n_shares) * len(indices) / n_shares
        cuts = np.concatenate([[0], np.searchsorted(np.cumsum(in_order), shares), [len(order)]])
        found = aligned_zeros((n_shares, n_columns), np.int64)
        count_columns(indptr, indices, order, cuts, found, self._n_threads)
        place = np.cumsum(found, axis=0, out=aligned_empty(found.shape, np.int64))
        length = place[-1][self.column_order[:n_columns]]
        lane = _lanes(order, len(indptr) - 1)[pieces.row]
        by_column = np.lexsort((lane, stands[pieces.column]))
        column = stands[pieces.column[by_column]]
        without_pieces = length[column]
        np.add.at(length, column, 1)
        offset = _offsets(length, len(self.column_order))
        columns = _empty_block(offset, len(order), self.count_dtype)
        place -= found
        place += offset[stands // LANES]
        place *= LANES
        place += stands % LANES
        place_columns(
            indptr, indices, data, order, cuts, place, columns.index, columns.count,
            self._n_threads,
        )  # fmt: skip
        self._place_pieces(columns, column, without_pieces, lane[by_column])
        return columns

    def _place_pieces(self, slices: SellBlock, lane: Array, length: Array, index: Array) -> None:
        """Let pieces, lane by lane, follow the `length` entries of their lanes."""
        first = np.flatnonzero(np.diff(lane, prepend=-1))
        ordinal = np.arange(len(lane)) - np.repeat(first, np.diff(first, append=len(lane)))
        at = (slices.offset[lane // LANES] + length + ordinal) * LANES + lane % LANES
        slices.index[at] = index
        slices.count[at] = largest_of(self.count_dtype) if len(at) else 0


def _above(data: Array, most: float) -> NDArray[np.int64]:
    """Return where counts are larger, looking at a piece at a time."""
    found = [
        first + np.flatnonzero(data[first : first + _PIECE] > most)
        for first in range(0, len(data), _PIECE)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def largest_of(dtype: np.dtype[Any]) -> float:
    """Return the largest count that a type of slices holds."""
    return np.iinfo(dtype).max if dtype.kind == "u" else np.inf


def pieces_of(large: Array, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many pieces, as large as the type allows, each count takes, and its rest."""
    largest = int(largest_of(dtype))
    whole = (large.astype(np.int64) - 1) // largest
    return whole, large.astype(np.int64) - whole * largest


def _lanes(order: Array, n_rows: int) -> NDArray[np.int64]:
    """Return the lane of every row."""
    lane = np.empty(n_rows, np.int64)
    lane[order[order >= 0]] = np.flatnonzero(order >= 0)
    return lane


def _offsets(length_in_lane_order: Array, n_lanes: int) -> NDArray[np.int64]:
    padded = np.zeros(n_lanes, np.int64)
    padded[: len(length_in_lane_order)] = length_in_lane_order
    return np.concatenate([[0], np.cumsum(padded.reshape(-1, LANES).max(axis=1))])


def _empty_block(offset: Array, n_others: int, count_dtype: np.dtype[Any]) -> SellBlock:
    size = int(offset[-1]) * LANES
    index_dtype = np.uint16 if n_others <= 1 << 16 else np.int32
    index, count = aligned_zeros((size,), index_dtype), aligned_zeros((size,), count_dtype)
    return SellBlock(index, count, offset, n_others)
