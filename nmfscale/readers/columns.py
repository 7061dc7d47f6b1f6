"""Selections of the columns of counts, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..counts.base import CountMatrix, RowRange
from ..counts.memory import checked_counts
from ..counts.validation import CompressedRows, compressed_rows
from ..counts.warn import warn_caller
from ..storage.store import StoredCounts
from .file_counts import FileCounts
from .stream import RowStream

# A warning names left-out features if they have more than this share of the counts, and shows
# this many names.
_FEW = 0.01
_NAMED = 3
# Bytes for each nonzero count of a store's block while its rows are converted.
_STORE_BYTES = 60


def select_columns(counts: CountMatrix, columns: Any, names: Any = None) -> CountMatrix:
    """Return counts whose column j is column ``columns[j]`` of the given counts.

    If that is -1, column j has no counts; `names` of all columns are then needed if the counts have
    names. The result is in memory if the given counts are; otherwise it reads them block by block.
    """
    stream = SelectedColumns(counts, columns, names)
    found: CountMatrix
    if counts.from_file:
        found = FileCounts(stream)
    else:
        found = checked_counts(
            stream.rows(0, counts.shape[0]), subject=stream.subject, **stream.about
        )
    found.columns_taken = columns
    return found


def leave_out(counts: CountMatrix, columns: Any, reason: str) -> CountMatrix:
    """Return counts in which the columns of a mask (m,) are empty.

    A warning says what was left out and why, unless that is less than 1 % of the counts: held-out
    texts always have some new words.
    """
    left_out = np.flatnonzero(columns & (counts.column_nnz > 0))
    if not left_out.size:
        return counts
    total = float(counts.column_totals[left_out].sum())
    if total > _FEW * counts.total:
        names = left_out if counts.feature_names is None else counts.feature_names[left_out]
        some = ", ".join(repr(str(name)) for name in names[:_NAMED].tolist())
        what = f"{total:,.0f} counts" if counts.is_integer else f"counts that sum to {total:,.6g}"
        warn_caller(
            f"X has {what} in {len(left_out):,} feature{'s' if len(left_out) > 1 else ''} "
            f"{reason}, such as {some}: these counts are left out."
        )
    selected = np.arange(counts.shape[1])
    selected[left_out] = -1
    found = select_columns(counts, selected, counts.feature_names)
    found.columns_taken = counts.columns_taken
    return found


class SelectedColumns(RowStream):
    """Rows of counts, in memory or in files, with a selection of the columns."""

    def __init__(self, counts: CountMatrix, columns: Any, names: Any = None):
        self._counts, columns = counts, np.asarray(columns)
        self._filled = np.flatnonzero(columns >= 0)
        self._columns = columns[self._filled]
        self.subject = str(getattr(counts, "subject", getattr(counts, "path", "X")))
        self.shape = counts.shape[0], len(columns)
        self.about = counts._described(columns=columns)
        if names is not None:
            self.about["feature_names"] = names
        if isinstance(counts, StoredCounts):
            ends = np.cumsum(counts.row_nnz)[[block.stop - 1 for block in counts.layout().blocks]]
            self.piece_bytes = _STORE_BYTES * int(np.diff(ends, prepend=0).max())

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        # in pieces: the columns that are left out may have most of the counts
        parts = [self._selected(rows) for rows in self._counts.chunks(start, stop)]
        return self._checked(parts[0] if len(parts) == 1 else sp.vstack(parts, "csr"), start)

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in the pieces that the counts yield."""
        for rows in self._counts.chunks(start, stop):
            yield self._checked(self._selected(rows), rows.first)

    def _selected(self, rows: RowRange) -> Any:
        found = rows.matrix(self._counts.shape[1])[:, self._columns]
        if len(self._filled) == self.shape[1]:
            return found
        indices = self._filled.astype(found.indices.dtype)[found.indices]
        return sp.csr_array((found.data, indices, found.indptr), (found.shape[0], self.shape[1]))

    def _checked(self, matrix: Any, first: int) -> CompressedRows:
        # sorted, because sums of fractions depend on the order of the columns
        matrix.sort_indices()
        return compressed_rows(matrix, self.entry_names(), first=first, sort=True)
