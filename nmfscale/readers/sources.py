"""Tables in memory and in HDF5 files, a range of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..counts.base import RowRange
from ..counts.structure import (
    check_pointers,
    check_range,
    check_rising,
    check_shape,
    corrupt,
    index_type,
)
from ..counts.validation import EntryNames, check_kind, rows_of_blocks
from ..storage.hdf5 import Reader, checked_dataset, need, opened_hdf5, sequential

Array = NDArray[Any]
# Row numbers, column numbers and values of entries in any order.
Triplets = tuple[Array, Array, Array]

# Entries read from a dataset at a time, about: whole chunks, if they are smaller.
SLICE = 2**20
# Bytes in use for a block of a dense dataset, and kept of it in HDF5's cache.
_DENSE_BYTES = 2**25
_BAND_BYTES = 2**27
_PARTS = "data", "indices", "indptr"


class MemoryLimits(NamedTuple):
    """How many bytes may be used to bring entries into order, and for a table.

    `table` is for all that it needs however few its entries; None is what the machine has free.
    """

    sort: int
    table: int | None = None


class RowReader(Protocol):
    """Rows that can be read in any range; indices and pointers sound, values not looked at."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values, as stored."""

    def entry_counts(self, start: int, stop: int) -> Array:
        """Entries of each row, or a bound on them, (stop - start,)."""

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop."""

    def close(self) -> None:
        """Let go of files."""


class OpenedTable(NamedTuple):
    """A table found in a file; `columns` are those to keep, None for all."""

    path: Path
    source: RowReader
    whom: str
    sample_names: Any = None
    feature_names: Any = None
    groups: Any = None
    columns: Array | None = None
    notes: Sequence[str] = ()


class NamedFileError(ValueError):
    """What is wrong with a file beside that of the counts; its message names that file."""


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Say of this file what nobody foresaw that a damaged or odd one may hold."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        names_it = isinstance(error, ValueError) and path.name in str(error)
        if names_it or isinstance(error, NamedFileError):
            raise
        what = "is damaged, or not laid out as its format says"
        raise ValueError(f"{path} {what} ({type(error).__name__}: {error}).") from error


def column_of(values: Any, node: Any, size: int | None = None) -> Array:
    """Return values of a dataset that must be one for each of `size` rows or columns."""
    if np.ndim(values) != 1 or size not in (None, len(values)):
        wanted = f"({'n' if size is None else size},): one value for each row or column"
        found = f"{node.name} has the shape {np.shape(values)}, but should have {wanted}"
        raise ValueError(f"{node.file.filename}: {found}.")
    return np.asarray(values)


class CompressedGroup:
    """Compressed rows in an HDF5 group: the datasets `data`, `indices` and `indptr`.

    `looked_at` is the group in a guarded file; it is opened anew for its arrays.
    """

    def __init__(self, looked_at: Any, shape: tuple[int, int], path: Path) -> None:
        self.shape = shape
        self.whom = f"{path} ({looked_at.name})"
        check_shape(shape)
        for name in _PARTS:
            checked_dataset(need(looked_at, name))
        with opened_hdf5(path) as file:
            group = need(file, looked_at.name)
            self._reader = Reader(group, path)
            self._attach(group)
            data, indices, indptr = self._data, self._indices, self._indptr
            if data.ndim != 1:
                raise corrupt(self.whom, "data is not a 1-d array")
            check_number_type(data, self.whom)
            self.n_stored = check_pointers(indptr, indices, data, shape[0], self.whom)
        self.dtype = data.dtype
        itemsize = self.dtype.itemsize + np.dtype(index_type(shape[1])).itemsize
        self.n_bytes = self.n_stored * itemsize

    def _attach(self, group: Any) -> None:
        self._data, self._indices, self._indptr = (
            sequential(dataset, 2 * math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize)
            for dataset in (checked_dataset(need(group, name)) for name in _PARTS)
        )

    def pointers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Entries of indptr from `start` to `stop`, the last included."""
        numbers: Array = self._reader.read(self._attach, lambda: self._indptr[start : stop + 1])
        check_rising(numbers, self.whom, start)
        if numbers[0] < 0 or numbers[-1] > self.n_stored:
            # Pointers outside this range may be wrong: here only those asked for are known.
            leaves = f"indptr leaves the range 0 to {self.n_stored}"
            raise corrupt(self.whom, f"{leaves} between rows {start} and {stop}")
        return numbers.astype(np.int64)

    def entry_counts(self, start: int, stop: int) -> Array:
        """Entries of each row, (stop - start,)."""
        return np.diff(self.pointers(start, stop))

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop; one slice each of indices and data is read."""
        pointers = self.pointers(start, stop)
        indices, data = self.entries(int(pointers[0]), int(pointers[-1]))
        pointers -= pointers[0]
        return RowRange(start, pointers.astype(index_type(data.size), copy=False), indices, data)

    def entries(self, first: int, last: int) -> tuple[Array, Array]:
        """Column numbers, checked in their own type before they are narrowed, and values."""
        n_columns = self.shape[1]
        indices = np.empty(last - first, dtype=index_type(n_columns))
        data = np.empty(last - first, dtype=self.dtype)

        def fill() -> None:
            for start, stop in slices(self._indices, first, last):
                numbers = self._indices[start:stop]
                check_range(numbers, n_columns, "indices", self.whom, start)
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


class DenseDataset:
    """Rows of a two-dimensional HDF5 dataset, which is one of a guarded file, opened anew."""

    def __init__(self, dataset: Any, path: Path, memory_limit: int) -> None:
        where = f"{path} ({dataset.name})"
        checked_dataset(dataset)
        check_shape(dataset.shape)
        check_number_type(dataset, where)
        self.shape, self.dtype = (int(dataset.shape[0]), int(dataset.shape[1])), dataset.dtype
        height, width = dataset.chunks or (1, 1)
        # Two reads in a row may share one band of chunks, across all columns.
        band = height * width * math.ceil(self.shape[1] / width) * self.dtype.itemsize
        self._cache_bytes = min(band, memory_limit // 4, _BAND_BYTES)
        with opened_hdf5(path) as file:
            dataset = need(file, dataset.name)
            self._reader = Reader(dataset, path)
            self._attach(dataset)
        # A block is taken apart in temporaries of up to 24 bytes for each entry.
        self._n_entries = min(memory_limit // 4, _DENSE_BYTES) // (24 + self.dtype.itemsize)

    def _attach(self, dataset: Any) -> None:
        self._dataset = sequential(checked_dataset(dataset), self._cache_bytes)

    def entry_counts(self, start: int, stop: int) -> Array:
        """All columns: what is zero shows when it is read."""
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


def check_number_type(dataset: Any, whom: str) -> None:
    """Refuse what is no real number: text, compounds, references, complex numbers."""
    if dataset.dtype.kind == "O":
        raise ValueError(f"{whom} holds {dataset.dtype}, not numbers.")
    check_kind(dataset.dtype, EntryNames(whom), None)


def slices(
    dataset: Any, first: int, last: int, n_entries: int = SLICE
) -> Iterator[tuple[int, int]]:
    """Cut a range of entries where chunks end, so that none is decompressed twice."""
    length = dataset.chunks[0] if dataset.chunks else 1
    step = length * max(1, n_entries // length)
    edges = [first, *range((first // step + 1) * step, last, step), last]
    return pairwise(edges if first < last else [])
