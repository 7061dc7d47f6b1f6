"""Counts that stay in their file (.h5ad, 10x .h5, .mtx, ...) and are read a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix, totals_of_rows
from ...counts.blocks import Layout
from ...counts.row_ranges import RowRange
from .stream import RowStream

Array = NDArray[Any]
# Bytes of compressed rows that are examined at a time.
_PIECE_BYTES = 1 << 25
# The frequencies of distinct counts above this are collected, to choose the narrow dtype: smaller
# counts fit into the smallest one, uint8.
_SMALL = 255


class FileCounts(CountMatrix):
    """Counts in a file of any format, checked once and then read when they are needed.

    Every visit reads, checks and arranges the counts again: for more than a few iterations, a
    packed store is faster. The stream stays open while the counts are in use. `source` holds the
    path and the fingerprint of the file, or the kind of object.
    """

    from_file = True

    def __init__(self, stream: RowStream):
        self._stream = stream
        n, m = stream.shape
        self.row_nnz, self.column_nnz = np.zeros(n, np.int64), np.zeros(m, np.int64)
        self.row_totals, self.column_totals = np.zeros(n), np.zeros(m)
        self.largest, fraction, large = 0.0, None, (np.zeros(0, np.int64), np.zeros(0, np.int64))
        kinds = set()
        for chunk in stream.chunks(_PIECE_BYTES):
            rows = chunk.rows
            here = slice(rows.first, rows.first + chunk.shape[0])
            kinds.add(rows.data.dtype)
            self.row_nnz[here] = np.diff(rows.indptr)
            self.row_totals[here] = totals_of_rows(rows)
            self.largest = max(self.largest, float(rows.data.max(initial=0)))
            self.column_nnz += np.bincount(rows.indices, minlength=m)
            self.column_totals += np.bincount(rows.indices, weights=rows.data, minlength=m)
            fraction = fraction or chunk.first_fraction
            if fraction is None:
                large = _merged(large, rows.data[rows.data > _SMALL].astype(np.int64))
        self._large, self._dtype = large, np.result_type(*kinds)
        self._nnz = int(self.row_nnz.sum())
        super().__init__((n, m), **stream.about, first_fraction=fraction)
        self.subject, self.nan_entries = stream.subject, stream.nan_entries()
        self.source = getattr(stream, "source", {"object": stream.subject})

    def _make_layout(self, n_threads: int) -> Any:
        return Layout(self, self._stream, n_threads, keep=False)

    def _count_values(self, above: float) -> tuple[Array, Array]:
        return self._large

    def _pieces(self, start: int, stop: int, wanted: Array | None = None) -> Iterator[RowRange]:
        for chunk in self._stream.chunks(_PIECE_BYTES, start, stop):
            rows = chunk.rows
            yield rows._replace(data=rows.data.astype(self._dtype, copy=False))


def _merged(table: tuple[Array, Array], numbers: Array) -> tuple[Array, Array]:
    """Add values to a table of distinct values and how often each occurs."""
    if not numbers.size:
        return table
    new, often = np.unique(numbers, return_counts=True)
    values, place = np.unique(np.concatenate([table[0], new]), return_inverse=True)
    times = np.zeros(len(values), np.int64)
    np.add.at(times, place, np.concatenate([table[1], often]))
    return values, times
