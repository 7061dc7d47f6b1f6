"""Counts in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._sell import count_columns
from .base import CountMatrix, totals_of_rows
from .cached import cached_property
from .nan_entries import NanEntries
from .row_ranges import RowRange
from .validation import CHUNK, CompressedRows, EntryNames, canonical_rows, rows_of_matrix

Array = NDArray[Any]


class Counts(CountMatrix):
    """Counts in memory.

    Created by :func:`nmfscale.as_counts` and :func:`nmfscale.read_counts`. The arrays are
    compressed sparse rows without negative, infinite or missing values, explicit zeros and
    duplicate entries. The column numbers within a row need not be sorted. Where possible, the
    arrays are read-only views of the arrays that were passed.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Compressed sparse rows. Index dtypes are int32 or int64, and may differ.
    shape : tuple of int
        Number of samples and of features.
    has_sorted_indices : bool, default=False
        Whether the column numbers rise within every row.
    **about
        Names, groups, notes and the first fraction: keyword arguments of :class:`CountMatrix`.

    Notes
    -----
    Every parameter is also an attribute of the same name.

    Examples
    --------
    >>> from nmfscale import as_counts
    >>> counts = as_counts([[0, 2, 1], [3, 0, 0]])
    >>> counts.shape, counts.nnz, counts.row_totals.tolist()
    ((2, 3), 3, [3.0, 3.0])
    >>> counts.take_rows().toarray()
    array([[0, 2, 1],
           [3, 0, 0]])
    """

    def __init__(
        self, indptr: Array, indices: Array, data: Array, shape: tuple[int, int],
        *, has_sorted_indices: bool = False, **about: Any,
    ) -> None:  # fmt: skip
        super().__init__(shape, **about)
        # read-only views, so that nothing can write to the caller's memory through them
        self.indptr, self.indices, self.data = indptr.view(), indices.view(), data.view()
        for array in (self.indptr, self.indices, self.data):
            array.flags.writeable = False
        self.has_sorted_indices = has_sorted_indices
        self._nnz, self._dtype = int(self.data.size), self.data.dtype

    @cached_property
    def row_nnz(self) -> NDArray[np.int64]:
        """Number of nonzero counts of each sample, (n_samples,)."""
        return np.diff(self.indptr).astype(np.int64)

    @cached_property
    def column_nnz(self) -> NDArray[np.int64]:
        """Number of nonzero counts of each feature, (n_features,)."""
        nnz = np.zeros((1, self.shape[1]), np.int64)
        whole = np.array([0, self.nnz])  # one row of all entries: row boundaries do not matter here
        count_columns(whole, self.indices, whole[:1], np.array([0, 1]), nnz, 1)
        return nnz[0]

    @cached_property
    def row_totals(self) -> NDArray[np.float64]:
        """Sum of the counts of each sample, (n_samples,)."""
        totals = np.zeros(self.shape[0])
        for rows in self.chunks():
            totals[rows.first : rows.first + len(rows.indptr) - 1] = totals_of_rows(rows)
        return totals

    @cached_property
    def column_totals(self) -> NDArray[np.float64]:
        """Sum of the counts of each feature, (n_features,)."""
        size = self.shape[1]
        totals = np.zeros(size)
        step = max(CHUNK, size)  # keeps bincount's converted copies small
        for start in range(0, self.nnz, step):
            part = slice(start, start + step)
            totals += np.bincount(self.indices[part], weights=self.data[part], minlength=size)
        return totals

    @cached_property
    def largest(self) -> float:
        """The largest count."""
        return float(self.data.max()) if self.nnz else 0.0

    def _rows(self) -> RowRange:
        return RowRange(0, self.indptr, self.indices, self.data)

    def _pieces(self, start: int, stop: int, wanted: Array | None = None) -> Iterator[RowRange]:
        return self._rows().part(start, stop).parts(CHUNK)

    def _count_values(self, above: float) -> tuple[Array, Array]:
        chunks = self.chunks() if self.largest > above else ()
        large = [self.data[:0], *(data[data > above] for *_, data in chunks)]
        values, times = np.unique(np.concatenate(large).astype(np.int64), return_counts=True)
        return values, times

    def _make_layout(self, n_threads: int) -> Any:
        from .blocks import Layout

        # The reader does not refer to the counts: no cycle, all is freed with the last reference.
        reader, is_sorted = MemoryRows(self._rows(), self.shape), self.has_sorted_indices
        return Layout(self, reader, n_threads, has_sorted_indices=is_sorted)


def checked_counts(
    matrix: Any, *, subject: str = "X", notes: Sequence[str] = (), kind: Any = Counts,
    nan: bool = False, **about: Any,
) -> Any:  # fmt: skip
    """Check a dense or sparse matrix, unless it is checked, and build counts with its names.

    If `nan` is true, NaN are missing entries, which the counts remember as `nan_entries`.
    """
    missing = NanEntries() if nan else None
    # a part of an AnnData object that is in a file
    rows = matrix.to_memory() if hasattr(matrix, "to_memory") else matrix
    if not isinstance(rows, CompressedRows):
        names = EntryNames(subject, about.get("sample_names"), about.get("feature_names"))
        stored, shape = rows_of_matrix(rows, names)
        stored = stored if missing is None else missing.leave_out(stored)
        rows = canonical_rows(stored, shape, names)
    counts = kind(
        *rows.rows[1:], rows.shape, has_sorted_indices=rows.has_sorted_indices,
        first_fraction=rows.first_fraction, notes=[*notes, *rows.notes], **about,
    )  # fmt: skip
    counts.nan_entries = None if missing is None else missing.matrix(rows.shape)
    return counts


class MemoryRows:
    """The rows of a table in memory; `read` returns views of a range of rows."""

    def __init__(self, rows: RowRange, shape: tuple[int, int]) -> None:
        self.read = rows.part
        self.shape, self.dtype, self._indptr = shape, rows.data.dtype, rows.indptr

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of entries of each row, (stop - start,)."""
        return np.diff(self._indptr[start : stop + 1])

    def close(self) -> None:
        """Do nothing: the arrays belong to the counts."""
