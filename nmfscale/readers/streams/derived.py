"""Counts that are computed from other counts, one range of rows at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from ...counts.base import CountMatrix
from ...counts.row_ranges import RowRange
from ...counts.validation import CompressedRows, compressed_rows
from ...storage.store import StoredCounts
from .file_counts import FileCounts
from .stream import RowStream, subject_of

# Bytes for each nonzero count of a store's block while its rows are converted.
_STORE_BYTES = 60


class DerivedRows(RowStream):
    """Rows that `_derived` computes from the rows of counts, in memory or in files."""

    def __init__(self, counts: CountMatrix, n_columns: int, about: dict[str, Any]):
        self._counts, self.about = counts, about
        self.subject = subject_of(counts)
        self.shape = counts.shape[0], n_columns
        if isinstance(counts, StoredCounts):
            ends = np.cumsum(counts.row_nnz)[[block.stop - 1 for block in counts.layout().blocks]]
            self.piece_bytes = _STORE_BYTES * int(np.diff(ends, prepend=0).max())

    @abstractmethod
    def _derived(self, rows: RowRange) -> Any:
        """Return some rows as a new sparse matrix, which may be changed."""

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        # in pieces: what is left out may be most of the counts
        parts = [self._derived(rows) for rows in self._counts.chunks(start, stop)]
        return self._checked(parts[0] if len(parts) == 1 else sp.vstack(parts, "csr"), start)

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in the pieces that the counts yield."""
        for rows in self._counts.chunks(start, stop):
            yield self._checked(self._derived(rows), rows.first)

    def _checked(self, matrix: Any, first: int) -> CompressedRows:
        # sorted, because sums of fractions depend on the order of the columns
        matrix.sort_indices()
        return compressed_rows(matrix, self.entry_names(), first=first, sort=True)

    def counts(self) -> CountMatrix:
        """Return the counts, in memory if those they are computed from are."""
        return FileCounts(self) if self._counts.from_file else self.in_memory()
