"""Streams of counts: files read a range of rows at a time, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...counts.base import CountMatrix, labels_of
from ...counts.memory import Counts, checked_counts
from ...counts.names import checked_names
from ...counts.nan_entries import NanEntries
from ...counts.row_ranges import RowRange, row_chunks
from ...counts.sizes import check_table_size
from ...counts.structure import check_shape, index_type
from ...counts.validation import CHUNK, CompressedRows, EntryNames, canonical_rows, working_type
from ...storage.atomic import retry, user_path
from ..formats.formats import NAN, given_choices, open_table
from ..formats.zarr_store import METADATA
from ..sources.masks import MASKS, NAMES
from ..sources.sources import MemoryLimits, OpenedTable, named_errors
from ..sources.subsets import chosen_part

MEMORY_LIMIT = 2**30
_SMALLEST_LIMIT = 2**20


class RowStream(ABC):
    """A table whose rows are read in ranges, and checked when they are read.

    `subject` is its name in messages; `about` holds names, groups and notes, as keyword arguments
    of `CountMatrix`; `piece_bytes` is the memory for reading, besides the rows themselves, if it
    matters. With `missing`, NaN are missing entries, whose places it notes.
    """

    subject: str
    shape: tuple[int, int]
    about: dict[str, Any]
    missing: NanEntries | None = None
    bytes_read, piece_bytes = 0, 0
    _last: tuple[int, int, RowRange] | None = None

    @abstractmethod
    def rows(self, start: int, stop: int) -> CompressedRows:
        """Return checked rows start:stop, with sorted columns, without duplicates or zeros."""

    def nan_entries(self) -> Any:
        """Return a mask (n, m) of NaN, once all rows were read; None if they are refused."""
        return None if self.missing is None else self.missing.matrix(self.shape)

    def observed(self, rows: RowRange) -> RowRange:
        """Return rows without NaN, if these are missing entries."""
        return rows if self.missing is None else self.missing.leave_out(rows)

    def whole(self) -> CompressedRows:
        """Return all rows, checked."""
        return self.rows(0, self.shape[0])

    def in_memory(self) -> Counts:
        """Return the counts of all rows."""
        counts: Counts = checked_counts(self.whole(), subject=self.subject, **self.about)
        counts.nan_entries = self.nan_entries()
        return counts

    def entry_names(self) -> EntryNames:
        """Return the names used in messages about entries."""
        return EntryNames(self.subject, self.about["sample_names"], self.about["feature_names"])

    @abstractmethod
    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in pieces of at most `max_bytes`, if rows and file allow that."""

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop, and keep them: the same range is often read again by columns."""
        last = self._last
        if last is None or last[:2] != (start, stop):
            last = self._last = None  # free it first: one range in memory, not two
            rows = self.rows(start, stop).rows
            self.bytes_read += rows.nbytes
            last = self._last = start, stop, rows
        return last[2]  # not self._last: another thread may have replaced it

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows in memory."""
        return {**self.__dict__, "_last": None}


def subject_of(counts: CountMatrix) -> str:
    """Return the name of counts in messages."""
    return str(getattr(counts, "subject", getattr(counts, "path", "X")))


class CountStream(RowStream, AbstractContextManager["CountStream"]):
    """Counts in a file, samples x features, read a range of rows at a time by one thread.

    `open_stream` creates it. It is a context manager, and holds the names, not the counts.
    """

    def __init__(
        self, table: OpenedTable, seen: Fingerprint, table_limit: int | None = None
    ) -> None:
        # absolute: the current folder may change before the file is read again
        self.path = table.path.absolute()
        self.subject, self._table_limit = table.subject, table_limit
        self._source, self._columns, self.fingerprint = table.source, table.columns, seen
        n_rows, n_columns = table.source.shape
        if table.columns is not None:
            self._positions = np.full(n_columns, -1, dtype=index_type(n_columns))
            self._positions[table.columns] = np.arange(table.columns.size)
            n_columns = table.columns.size
        self.shape = (n_rows, n_columns)
        check_shape(self.shape)
        self.about = {"notes": table.notes, "obs": table.obs, "of_text": table.of_text}
        with named_errors(self.path):
            for name in ("sample_names", "feature_names", "groups"):
                size, of = (n_columns, "column") if name == "feature_names" else (n_rows, "row")
                check = labels_of if name == "groups" else checked_names
                self.about[name] = check(getattr(table, name), size, name, of)
        self._closed = False

    @property
    def source(self) -> dict[str, Any]:
        """The path and fingerprint of the file."""
        return {"path": str(self.path.resolve()), **self.fingerprint._asdict()}

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the counts in the file; text files must be read completely to find it."""
        return self._source.dtype

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield pieces of at most `max_bytes`, but at least one row.

        Building a piece takes about five times as much memory. A piece may become larger if sums
        of duplicates need a wider dtype.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes={max_bytes!r} must be positive.")
        last = self.shape[0] if stop is None else stop
        while start < last:
            stop = min(last, start + self._rows_that_fit(start, max_bytes))
            yield self.rows(start, stop)
            start = stop

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        if not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"Rows {start} to {stop} are not within 0 to {self.shape[0]}.")
        return self._canonical(start, stop, sort=True)

    def whole(self) -> CompressedRows:
        """Return all rows, checked, with the columns of a row in the order of the file."""
        n_bytes = getattr(self._source, "n_bytes", 0)
        check_table_size(self.shape, self.subject, self._table_limit, n_bytes)
        return self._canonical(0, self.shape[0], sort=False)

    def close(self) -> None:
        """Close the file and remove temporary files."""
        self._closed = True
        self._source.close()

    def __exit__(self, *_: object) -> None:
        """Close the stream."""
        self.close()

    def _rows_that_fit(self, start: int, max_bytes: int) -> int:
        """Return the number of rows from `start` on that fit into a piece."""
        self._check_usable()
        kinds = (np.empty(0, index_type(self.shape[1])), working_type(np.empty(0, self.dtype)))
        per_entry = sum(kind.itemsize for kind in kinds)
        n_rows = 1024
        while True:
            stop = min(start + n_rows, self.shape[0])
            n_entries = np.cumsum(self._source.entry_counts(start, stop), dtype=np.int64)
            sizes = n_entries * per_entry + 8 * np.arange(2, n_entries.size + 2)
            if sizes[-1] > max_bytes or stop == self.shape[0]:
                return max(1, int(np.searchsorted(sizes, max_bytes, side="right")))
            n_rows *= 4

    def _canonical(self, start: int, stop: int, sort: bool) -> CompressedRows:
        self._check_usable()
        with named_errors(self.path):
            rows = self._source.read(start, stop)
            if self._columns is not None:
                rows = self._selected(rows)
            shape = stop - start, self.shape[1]
            return canonical_rows(self.observed(rows), shape, self.entry_names(), sort=sort)

    def _selected(self, rows: RowRange) -> RowRange:
        """Remove the columns that are not selected; works in the given arrays."""
        n_kept, (start, indptr, indices, data) = 0, rows
        pointers = np.zeros_like(indptr)
        for first, last in row_chunks(indptr, CHUNK):
            part = slice(indptr[first], indptr[last])
            columns = self._positions[indices[part]]
            keep = columns >= 0
            before = np.concatenate(([0], np.cumsum(keep)))
            pointers[first : last + 1] = n_kept + before[indptr[first : last + 1] - part.start]
            stop = n_kept + int(before[-1])
            indices[n_kept:stop], data[n_kept:stop] = columns[keep], data[part][keep]
            n_kept = stop
        return RowRange(start, pointers, indices[:n_kept], data[:n_kept])

    def _check_usable(self) -> None:
        if self._closed:
            raise ValueError(f"The stream of {self.subject} is closed.")
        status = retry(self.path, self.path.stat)
        if (status.st_size, status.st_mtime_ns) != self.fingerprint[:2]:
            raise ValueError(f"{self.path} was changed since it was opened; open it again.")


def open_stream(
    path: str | os.PathLike[str], *, memory_limit: int = MEMORY_LIMIT,
    table_limit: int | None = None, **choices: Any,
) -> CountStream:  # fmt: skip
    """Open a file of counts to read it a range of rows at a time; `choices` as in `open_counts`.

    Tables that are stored by rows (compressed rows or dense arrays in .h5ad, and 10x .h5) are read
    in place. The entries of text files and compressed columns are sorted by rows at the first read,
    in `memory_limit` bytes if these suffice, otherwise in a temporary file of 12 to 20 bytes per
    entry. .npz files are loaded completely. `table_limit` limits the memory that a table needs for
    its rows and columns, whatever their entries; None is the free memory.
    """
    options = given_choices(**choices)
    part = {name: options.pop(name) for name in (*NAMES, *MASKS) if name in options}
    if memory_limit < _SMALLEST_LIMIT:
        raise ValueError(f"memory_limit={memory_limit!r} must be at least {_SMALLEST_LIMIT} bytes.")
    limits = MemoryLimits(memory_limit, table_limit)
    table = open_table(user_path(path), limits, options)
    try:
        check_table_size(table.source.shape, table.subject, table_limit)
        table = chosen_part(table, part)
        seen = retry(table.path, lambda: fingerprint(table.path))
        stream = CountStream(table, seen, table_limit)
        stream.missing = NanEntries() if NAN in options else None
        return stream
    except BaseException:
        table.source.close()
        raise


_SAMPLES = 16
_SAMPLE_BYTES = 2**16


class Fingerprint(NamedTuple):
    """Size in bytes, time of the last change in nanoseconds, and a hash of samples of a file."""

    size: int
    mtime_ns: int
    sha256: str


def fingerprint(path: str | os.PathLike[str]) -> Fingerprint:
    """Compute the fingerprint of a file without reading much of it.

    The SHA-256 covers the metadata of the arrays of a zarr store. For a file, it covers 16 evenly
    spaced samples of 64 KiB, including both ends, or all bytes of a smaller file. A change
    elsewhere that preserves size and time is not detected.
    """
    digest = hashlib.sha256()
    if Path(path).is_dir():  # a zarr store, whose metadata describe it
        for place in sorted(place for name in METADATA for place in Path(path).glob(f"*/{name}")):
            digest.update(place.read_bytes())
        status = os.stat(path)
        return Fingerprint(status.st_size, status.st_mtime_ns, digest.hexdigest())
    with Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
        else:
            last = status.st_size - _SAMPLE_BYTES
            for at in range(_SAMPLES):
                file.seek(last * at // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return Fingerprint(status.st_size, status.st_mtime_ns, digest.hexdigest())
