"""Some of the columns of counts, in an order that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..counts.base import CountMatrix, RowRange
from ..counts.memory import checked_counts
from ..counts.validation import CompressedRows, compressed_rows
from ..storage.store import StoredCounts
from .file_counts import FileCounts
from .stream import RowStream

# Bytes a nonzero count that a block of a store takes while its rows are put together.
_STORE_BYTES = 60


def select_columns(counts: CountMatrix, columns: Any) -> CountMatrix:
    """Return counts whose column j is column ``columns[j]`` of those that are given.

    They are in memory if those are; if not, they are read from there, a block at a time.
    """
    stream = SelectedColumns(counts, columns)
    if counts.from_file:
        return FileCounts(stream)
    return checked_counts(stream.rows(0, counts.shape[0]), whom=stream.whom, **stream.about)


class SelectedColumns(RowStream):
    """Ranges of rows of counts wherever they are, with some of their columns."""

    def __init__(self, counts: CountMatrix, columns: Any):
        self._counts, self._columns = counts, columns
        self.whom = str(getattr(counts, "whom", getattr(counts, "path", "X")))
        self.shape = counts.shape[0], len(columns)
        names = counts.feature_names
        self.about = {
            "sample_names": counts.sample_names, "groups": counts.groups, "notes": counts.notes,
            "feature_names": None if names is None else names[columns],
        }  # fmt: skip
        if isinstance(counts, StoredCounts):
            ends = np.cumsum(counts.row_nnz)[[block.stop - 1 for block in counts.layout().blocks]]
            self.piece_bytes = _STORE_BYTES * int(np.diff(ends, prepend=0).max())

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        # piece by piece: the columns that are left out may have most of the counts
        parts = [self._selected(rows) for rows in self._counts.chunks(start, stop)]
        return self._checked(parts[0] if len(parts) == 1 else sp.vstack(parts, "csr"), start)

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in the pieces in which the counts are read."""
        for rows in self._counts.chunks(start, stop):
            yield self._checked(self._selected(rows), rows.first)

    def _selected(self, rows: RowRange) -> Any:
        return rows.matrix(self._counts.shape[1])[:, self._columns]

    def _checked(self, matrix: Any, first: int) -> CompressedRows:
        # in the order of the columns: sums of fractions depend on it
        matrix.sort_indices()
        return compressed_rows(matrix, self.entry_names(), first=first, sort=True)
