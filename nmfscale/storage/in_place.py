"""Changes of an HDF5 file in place that a crash cannot leave half done.

HDF5 changes its tables of contents in the middle of a file, so that a program that is killed while
it writes may leave a file that nothing can read. Here new data are appended to the file, where no
reader looks for them, and changes of existing bytes stay in memory until everything else is on the
disk. Then the old bytes are saved in a journal beside the file, the new bytes are written, and the
journal is removed. A crash before the last step leaves the file as it was, with unused bytes at its
end. A crash during the last step, which takes milliseconds, leaves the journal, from which
`restore` makes the old file again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import load_arrays
from .atomic import CALL_BYTES, FileInUseError, atomic_write, read_into
from .hdf5 import NO_LOCKS
from .interrupts import DeferredInterrupts

_PAGE = 4096


@contextmanager
def changed_hdf5(path: Path) -> Iterator[Any]:
    """Yield an HDF5 file to change; if the block fails, the file stays as it was.

    Ctrl-C in the block is delivered at its end, before the file is changed. A FileInUseError is
    raised if a program has the file open.
    """
    import h5py

    with open(path, "rb+", buffering=0) as raw:
        _lock(raw.fileno(), path)
        restore(path)
        changes = Changes(raw.fileno(), path)
        try:
            with DeferredInterrupts() as interrupts:
                with h5py.File(changes, "r+") as file:
                    yield file
                interrupts.deliver()
        except BaseException:
            changes.discard()
            raise
        changes.commit()


def _lock(file: int, path: Path) -> None:
    """Lock a file as HDF5 does, until it is closed."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return
    except BlockingIOError:
        raise FileInUseError(
            errno.EAGAIN, "a program, perhaps this one, has it open: close it, for an AnnData "
            "object by adata.file.close()", str(path),
        ) from None  # fmt: skip
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def journal_of(path: Path) -> Path:
    """Return the path of the journal of a file."""
    return path.with_name(f".journal-{path.name}.npz")


def restore(path: Path) -> bool:
    """Make the old file again if a crash has left a journal; return whether there was one."""
    journal = journal_of(path)
    if not journal.exists():
        return False
    saved = load_arrays(str(journal))
    with open(path, "rb+", buffering=0) as raw:
        _write_pages(raw.fileno(), saved["numbers"], saved["pages"], int(saved["size"]))
    journal.unlink()
    return True


def _write_pages(file: int, numbers: Any, pages: Any, size: int) -> None:
    for number, page in zip(numbers.tolist(), pages, strict=True):
        at = number * _PAGE
        os.pwrite(file, page.tobytes()[: max(0, size - at)], at)
    os.ftruncate(file, size)
    os.fsync(file)


class Changes:
    """A file object for HDF5 that appends to a file, and keeps other changes until `commit`.

    It never fails in a call of HDF5, which cannot handle that; `commit` raises the first error.
    """

    def __init__(self, file: int, path: Path):
        self._file, self._path, self._at = file, path, 0
        self._old_size = self._size = os.fstat(file).st_size
        self._pages: dict[int, bytearray] = {}
        self._failure: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._size)
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, size: int) -> bytes:
        """Return the changed bytes; beyond the end of the file there are zeros."""
        found = bytearray(size)
        self.readinto(memoryview(found))
        return bytes(found)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer as `read` does."""
        view = memoryview(buffer).cast("B")
        found = read_into(self._file, view, self._at)
        view[found:] = bytes(len(view) - found)
        for number in self._numbers(len(view)):
            if number in self._pages:
                low = max(self._at, number * _PAGE)
                high = min(self._at + len(view), number * _PAGE + len(self._pages[number]))
                if low < high:
                    part = self._pages[number][low - number * _PAGE : high - number * _PAGE]
                    view[low - self._at : high - self._at] = part
        return len(view)

    def _numbers(self, length: int) -> range:
        return range(self._at // _PAGE, (self._at + length - 1) // _PAGE + 1)

    def write(self, data: memoryview) -> int:
        """Append to the file, or keep a change."""
        view, end = memoryview(data).cast("B"), self._at + len(data)
        try:
            kept = min(max(self._old_size - self._at, 0), len(view))
            for number in self._numbers(kept) if kept else ():
                page = self._pages.setdefault(number, bytearray(self._old(number)))
                start = number * _PAGE
                low, high = max(self._at, start), min(self._at + kept, start + _PAGE)
                page[low - start : high - start] = view[low - self._at : high - self._at]
            done = kept
            while done < len(view) and self._failure is None:
                done += os.pwrite(self._file, view[done : done + CALL_BYTES], self._at + done)
        except OSError as error:
            self._failure = self._failure or error
        self._size = max(self._size, end)
        return len(view)

    def _old(self, number: int) -> bytes:
        length = min(_PAGE, self._old_size - number * _PAGE)
        return os.pread(self._file, length, number * _PAGE)

    def truncate(self, size: int) -> int:
        """Set the size that the file has after `commit`."""
        self._size = size
        try:
            os.ftruncate(self._file, max(size, self._old_size))
        except OSError as error:
            self._failure = self._failure or error
        return size

    def flush(self) -> None:
        """Do nothing: `commit` writes."""

    def discard(self) -> None:
        """Remove what was appended."""
        with suppress(OSError):
            os.ftruncate(self._file, self._old_size)

    def commit(self) -> None:
        """Write the changes; raise an OSError, and leave the file as it was, if that fails."""
        try:
            if self._failure is not None:
                why = self._failure
                raise OSError(why.errno, why.strerror, str(self._path)) from why
            os.fsync(self._file)
            self.save_journal()
        except BaseException:
            self.discard()
            raise
        with DeferredInterrupts():
            self.apply()
            journal_of(self._path).unlink()

    def save_journal(self) -> None:
        """Save the old bytes of all changed pages."""
        numbers = sorted(self._pages)
        old = np.zeros((len(numbers), _PAGE), np.uint8)
        for row, number in zip(old, numbers, strict=True):
            page = np.frombuffer(self._old(number), np.uint8)
            row[: len(page)] = page
        with atomic_write(journal_of(self._path)) as part, part.open("wb") as file:
            np.savez(file, numbers=np.array(numbers, np.int64), pages=old, size=self._old_size)

    def apply(self, n_pages: int | None = None) -> None:
        """Write the changed pages, or the first `n_pages` of them."""
        for number in sorted(self._pages)[:n_pages]:
            os.pwrite(self._file, self._pages[number], number * _PAGE)
        if n_pages is None:
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
