"""Sources of rows: the interface `RowReader`, and compressed and dense tables in HDF5 files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...counts.label_table import LabelTable
from ...counts.row_ranges import RowRange
from ...counts.structure import (
    check_pointers,
    check_range,
    check_rising,
    check_shape,
    corrupt,
    index_type,
)
from ...counts.validation import EntryNames, check_kind, rows_of_blocks
from ...storage.hdf5 import Reader, checked_dataset, need, opened_hdf5, sequential

Array = NDArray[Any]
# Row numbers, column numbers and values of entries in any order.
Triplets = tuple[Array, Array, Array]

# Approximate number of entries read from a dataset at a time, in whole chunks.
SLICE = 2**20
# Bytes for a block of a dense dataset in memory, and in HDF5's cache.
_DENSE_BYTES = 2**25
_BAND_BYTES = 2**27
_PARTS = "data", "indices", "indptr"


class MemoryLimits(NamedTuple):
    """Memory limits in bytes: for sorting entries, and for a table.

    `table` limits the memory that a table needs for its rows and columns, whatever their entries;
    None is the free memory.
    """

    sort: int
    table: int | None = None


class RowReader(Protocol):
    """A table whose rows can be read in any range; indices are checked, values are not."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype of the values."""

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of entries of each row, or an upper bound, (stop - start,)."""

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop."""

    def close(self) -> None:
        """Close files."""


class OpenedTable(NamedTuple):
    """A table found in a file.

    `columns` are the columns to keep, or None for all; `feature_names` and `var` are those of the
    columns that are kept. `obs` and `var` are functions that read tables of samples and features.
    """

    path: Path
    source: RowReader
    subject: str
    sample_names: Any = None
    feature_names: Any = None
    groups: Any = None
    columns: Array | None = None
    notes: Sequence[str] = ()
    of_text: bool = False
    obs: Callable[[], LabelTable] | None = None
    var: Callable[[], LabelTable] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples, and of features that are kept."""
        n, m = self.source.shape
        return n, m if self.columns is None else len(self.columns)


class NamedFileError(ValueError):
    """A fault of a file beside that of the counts; the message names the file."""


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Convert unforeseen errors, caused by damaged or odd files, to errors that name the file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        names_it = isinstance(error, ValueError) and path.name in str(error)
        if names_it or isinstance(error, NamedFileError):
            raise
        what = "is damaged, or does not follow its format"
        raise ValueError(f"{path} {what} ({type(error).__name__}: {error}).") from error


def column_of(values: Any, node: Any, size: int | None = None) -> Array:
    """Return the values of a dataset, which must be one for each of `size` rows or columns."""
    if np.ndim(values) != 1 or size not in (None, len(values)):
        wanted = f"({'n' if size is None else size},): one value for each row or column"
        fault = f"{node.name} has the shape {np.shape(values)}, but should have {wanted}"
        raise ValueError(f"{node.file.filename}: {fault}.")
    return np.asarray(values)


class CompressedGroup:
    """Compressed rows in an HDF5 group: the datasets `data`, `indices` and `indptr`.

    `guarded` is the group in a file opened by `guarded_hdf5`; the arrays are read from the file
    opened again without the guard.
    """

    def __init__(self, guarded: Any, shape: tuple[int, int], path: Path) -> None:
        self.shape = shape
        self.subject = f"{path} ({guarded.name})"
        check_shape(shape)
        for name in _PARTS:
            checked_dataset(need(guarded, name))
        with opened_hdf5(path) as file:
            group = need(file, guarded.name)
            self._reader = Reader(group, path)
            self._attach(group)
            data, indices, indptr = self._data, self._indices, self._indptr
            if data.ndim != 1:
                raise corrupt(self.subject, "data is not a 1-d array")
            check_number_type(data, self.subject)
            self.n_stored = check_pointers(indptr, indices, data, shape[0], self.subject)
        self.dtype = data.dtype
        itemsize = self.dtype.itemsize + np.dtype(index_type(shape[1])).itemsize
        self.n_bytes = self.n_stored * itemsize

    def _attach(self, group: Any) -> None:
        self._data, self._indices, self._indptr = (
            sequential(dataset, 2 * math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize)
            for dataset in (checked_dataset(need(group, name)) for name in _PARTS)
        )

    def pointers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return indptr[start : stop + 1], after checking it."""
        numbers: Array = self._reader.read(self._attach, lambda: self._indptr[start : stop + 1])
        check_rising(numbers, self.subject, start)
        if numbers[0] < 0 or numbers[-1] > self.n_stored:
            # All pointers must lie in 0..n_stored; only the requested ones are checked here.
            leaves = f"indptr leaves the range 0 to {self.n_stored}"
            raise corrupt(self.subject, f"{leaves} between rows {start} and {stop}")
        return numbers.astype(np.int64)

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of entries of each row, (stop - start,)."""
        return np.diff(self.pointers(start, stop))

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop; reads one slice of indices and one of data."""
        pointers = self.pointers(start, stop)
        indices, data = self.entries(int(pointers[0]), int(pointers[-1]))
        pointers -= pointers[0]
        return RowRange(start, pointers.astype(index_type(data.size), copy=False), indices, data)

    def entries(self, first: int, last: int) -> tuple[Array, Array]:
        """Return column numbers and values; numbers are checked before conversion to int32."""
        n_columns = self.shape[1]
        indices = np.empty(last - first, dtype=index_type(n_columns))
        data = np.empty(last - first, dtype=self.dtype)

        def fill() -> None:
            for start, stop in slices(self._indices, first, last):
                numbers = self._indices[start:stop]
                check_range(numbers, n_columns, "indices", self.subject, start)
                indices[start - first : stop - first] = numbers
            for start, stop in slices(self._data, first, last):
                data[start - first : stop - first] = self._data[start:stop]

        self._reader.read(self._attach, fill)
        return indices, data

    def transposed(self, n_entries: int) -> Iterator[Triplets]:
        """Yield all entries as (column, row, value), about `n_entries` at a time."""
        pointers = self.pointers(0, self.shape[0])
        narrow = index_type(self.shape[0])
        for start, stop in slices(self._data, 0, self.n_stored, n_entries):
            first = int(np.searchsorted(pointers, start, side="right")) - 1
            last = int(np.searchsorted(pointers, stop))
            lengths: Array = np.diff(np.clip(pointers[first : last + 1], start, stop))
            indices, data = self.entries(start, stop)
            yield indices, np.repeat(np.arange(first, last, dtype=narrow), lengths), data

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


class _Columns:
    """The columns of an HDF5 dataset as rows."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.shape = dataset, dataset.shape[::-1]

    def __getitem__(self, rows: slice) -> Array:
        """Return some columns, as rows."""
        values: Array = self._dataset[:, rows]
        return values.T


class DenseDataset:
    """Rows of a two-dimensional HDF5 dataset, or its columns if it is `transposed`.

    `dataset` is in a file opened by `guarded_hdf5`.
    """

    def __init__(
        self, dataset: Any, path: Path, memory_limit: int, transposed: bool = False
    ) -> None:
        where = f"{path} ({dataset.name})"
        checked_dataset(dataset)
        check_shape(dataset.shape)
        check_number_type(dataset, where)
        step = -1 if transposed else 1
        n, m = dataset.shape[::step]
        self.shape, self.dtype = (int(n), int(m)), dataset.dtype
        self._transposed = transposed
        height, width = (dataset.chunks or (1, 1))[::step]
        # Two consecutive reads may share one band of chunks across all columns.
        band = height * width * math.ceil(self.shape[1] / width) * self.dtype.itemsize
        self._cache_bytes = min(band, memory_limit // 4, _BAND_BYTES)
        with opened_hdf5(path) as file:
            dataset = need(file, dataset.name)
            self._reader = Reader(dataset, path)
            self._attach(dataset)
        # Compressing a block needs temporary arrays of up to 24 bytes for each entry.
        self._n_entries = min(memory_limit // 4, _DENSE_BYTES) // (24 + self.dtype.itemsize)

    def _attach(self, dataset: Any) -> None:
        self._dataset: Any = sequential(checked_dataset(dataset), self._cache_bytes)
        if self._transposed:
            self._dataset = _Columns(self._dataset)

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of columns for every row: an upper bound, as zeros are unknown."""
        return np.full(stop - start, self.shape[1], dtype=np.int64)

    def read(self, start: int, stop: int) -> RowRange:
        """Return the nonzero entries of rows start:stop."""
        rows: RowRange = self._reader.read(
            self._attach, lambda: rows_of_blocks(self._dataset, self._n_entries, start, stop)
        )
        return rows

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def check_number_type(dataset: Any, subject: str) -> None:
    """Refuse a dataset that does not hold real numbers: text, compounds, references, complex."""
    if dataset.dtype.kind == "O":
        raise ValueError(f"{subject} holds {dataset.dtype}, not numbers.")
    check_kind(dataset.dtype, EntryNames(subject), None)


def slices(
    dataset: Any, first: int, last: int, n_entries: int = SLICE
) -> Iterator[tuple[int, int]]:
    """Cut a range of entries at chunk boundaries, so that no chunk is decompressed twice."""
    length = dataset.chunks[0] if dataset.chunks else 1
    step = length * max(1, n_entries // length)
    edges = [first, *range((first // step + 1) * step, last, step), last]
    return pairwise(edges if first < last else [])
