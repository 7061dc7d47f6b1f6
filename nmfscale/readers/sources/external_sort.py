"""External sort: converts entries in any order to rows, in bounded memory."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...counts.row_ranges import RowRange, row_chunks
from ...counts.structure import index_type
from .sources import MemoryLimits, Triplets

Array = NDArray[Any]

# A run stores the row of every entry whose number is a multiple of this, for look-ups.
_STRIDE = 1024
# Upper bound of the bytes for each entry of a run while it is sorted or merged.
_BYTES_PER_ENTRY = 160


class SortedRows:
    """Rows built from triplets (row, column, value) in any order.

    The first use reads all triplets and sorts them by row in pieces of bounded size (runs), which
    stay in memory while they are small and are otherwise written to one temporary file. Reading a
    range of rows merges its entries from all runs. The temporary file has no name, so nothing is
    left behind, however the process ends. Without `dtype`, values are int32 if all fit, else
    int64. `release` is called at the end, to close the source of the triplets.
    """

    def __init__(
        self, shape: tuple[int, int], triplets: Callable[[], Iterator[Triplets]],
        limits: MemoryLimits, dtype: np.dtype[Any] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.shape = shape
        self._release = release
        self._triplets, self._limits, self._dtype = triplets, limits, dtype
        self._most_entries = max(2**10, limits.sort // _BYTES_PER_ENTRY)
        self._runs: list[_Run] | None = None
        self._row_counts = np.zeros(0, dtype=np.int64)
        self._file: IO[bytes] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values; if none was given, this reads all of them."""
        if self._dtype is not None:
            return self._dtype
        return np.result_type(np.int32, *(run.dtypes[2] for run in self._sorted_runs()))

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of entries of each row, (stop - start,)."""
        self._sorted_runs()
        return self._row_counts[start:stop]

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop, with the entries of each row in their original order."""
        runs = self._sorted_runs()
        indptr = np.zeros(stop - start + 1, dtype=np.int64)
        np.cumsum(self._row_counts[start:stop], out=indptr[1:])
        n_entries = int(indptr[-1])
        indices = np.empty(n_entries, dtype=index_type(self.shape[1]))
        data = np.empty(n_entries, dtype=self.dtype)
        for first, last in row_chunks(indptr, self._entries_at_once(n_entries)):
            if indptr[first] == indptr[last]:
                continue
            parts = [run.rows(start + first, start + last) for run in runs]
            rows, columns, values = _joined([part for part in parts if part[0].size])
            where = slice(indptr[first], indptr[last])
            order = _order(rows)
            indices[where], data[where] = columns[order], values[order]
        return RowRange(start, indptr.astype(index_type(n_entries), copy=False), indices, data)

    def close(self) -> None:
        """Delete the entries and the temporary file, and close the source."""
        self._forget()
        if self._release is not None:
            self._release()

    def _forget(self) -> None:
        self._runs = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _sorted_runs(self) -> list[_Run]:
        if self._runs is None:
            try:
                self._runs = self._sort()
            except BaseException:
                self._forget()
                raise
        return self._runs

    def _entries_at_once(self, n_entries: int) -> int:
        """Return the size of a piece: limits both the number of runs and temporary memory."""
        return min(self._most_entries, max(2**18, n_entries // 32))

    def _sort(self) -> list[_Run]:
        self._row_counts = np.zeros(self.shape[0], dtype=np.int64)
        runs: list[_Run] = []
        waiting: list[Triplets] = []
        n_sorted = n_waiting = n_bytes = 0
        for triplets in self._triplets():
            waiting.append(triplets)
            n_waiting += triplets[0].size
            if n_waiting >= self._entries_at_once(n_sorted):
                runs.append(self._run(waiting))
                n_sorted, n_bytes = n_sorted + n_waiting, n_bytes + runs[-1].n_bytes
                n_waiting = 0
            if n_bytes > self._limits.sort // 4:
                self._spill(runs)
                n_bytes = 0
        if waiting:
            runs.append(self._run(waiting))
        return runs

    def _run(self, waiting: list[Triplets]) -> _Run:
        """Sort the waiting triplets into a run, and count the entries of each row."""
        rows, columns, values = _joined(waiting)
        waiting.clear()
        order = _order(rows)
        rows, columns, values = rows[order], columns[order], values[order]
        # Not bincount: a few entries may have row numbers far apart.
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        self._row_counts[rows[starts]] += np.diff(starts, append=rows.size)
        if self._dtype is None and values.size:
            largest = max(-int(values.min()), int(values.max()))
            values = values.astype(index_type(largest), copy=False)
        return _Run(rows, columns, values)

    def _spill(self, runs: list[_Run]) -> None:
        folder = tempfile.gettempdir()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="nmfscale-", dir=folder, buffering=0)
                # a fit does not close counts that it has opened: close the file with the object
                weakref.finalize(self, self._file.close)
            for run in runs:
                run.spill(self._file)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write a temporary file in {folder} ({error.strerror}); "
                "free space there, set TMPDIR to a folder with more space, or raise memory_limit",
            ) from error


class _Run:
    """Triplets sorted by row, in memory or in a file."""

    def __init__(self, *arrays: Array) -> None:
        self.size = arrays[0].size
        self.n_bytes = sum(array.nbytes for array in arrays)
        self.dtypes = [array.dtype for array in arrays]
        self._marks = arrays[0][::_STRIDE].copy()
        self._arrays: tuple[Array, ...] | None = arrays
        self._file: IO[bytes] | None = None
        self._offsets: list[int] = []

    def spill(self, file: IO[bytes]) -> None:
        """Move the arrays to the end of the file."""
        for array in self._arrays or ():
            self._offsets.append(file.seek(0, 2))
            rest = memoryview(array.view(np.uint8).data)
            while rest:
                rest = rest[file.write(rest) :]
        self._arrays, self._file = None, file

    def rows(self, start: int, stop: int) -> Triplets:
        """Return the triplets of a range of rows."""
        first = max(0, int(np.searchsorted(self._marks, start)) - 1) * _STRIDE
        last = min(self.size, int(np.searchsorted(self._marks, stop)) * _STRIDE)
        rows = self._part(0, first, last)
        low, high = np.searchsorted(rows, (start, stop)).tolist()
        columns, values = (self._part(at, first + low, first + high) for at in (1, 2))
        return rows[low:high], columns, values

    def _part(self, which: int, first: int, last: int) -> Array:
        if self._arrays is not None:
            return self._arrays[which][first:last]
        assert self._file is not None
        dtype, n_entries = self.dtypes[which], max(0, last - first)
        self._file.seek(self._offsets[which] + first * dtype.itemsize)
        part = np.fromfile(self._file, dtype, n_entries)
        if part.size < n_entries:
            raise OSError("A temporary file is shorter than what was written to it.")
        return part


def _joined(pieces: list[Triplets]) -> Triplets:
    if len(pieces) == 1:
        return pieces[0]
    rows, columns, values = zip(*pieces, strict=True)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


def _order(rows: Array) -> Any:
    """Return a stable order by row; a slice if the rows are sorted already."""
    if rows.size < 2 or bool((rows[1:] >= rows[:-1]).all()):
        return slice(None)
    return np.argsort(rows, kind="stable")
