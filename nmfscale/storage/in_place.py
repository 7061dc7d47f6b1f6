"""Changes of an HDF5 file in place that a crash cannot leave half done.

HDF5 changes its tables of contents in the middle of a file, so that a program that is killed while
it writes may leave a file that nothing can read. Here new data are appended to the file, where no
reader looks for them, and changes of existing bytes stay in memory until everything else is on the
disk. Then the old and the new bytes are saved in a journal beside the file, the new bytes are
written, and the journal is removed. A crash before the new bytes are written leaves the file as it
was, with unused bytes at its end. A crash while they are written, which takes milliseconds, leaves
a file that no program opens and a journal, from which `restore` makes the old file again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .atomic import read_into, write_at
from .hdf5 import how_to_restore, journal_of
from .interrupts import DeferredInterrupts
from .journal import PAGE, Journal, page_of, recover
from .locks import FileInUseError, is_at, try_lock


@contextmanager
def changed_hdf5(path: Path) -> Iterator[Any]:
    """Yield an HDF5 file to change; if the block fails, the file stays as it was.

    Ctrl-C in the block is delivered at its end, before the file is changed. A FileInUseError is
    raised if a program has the file open, a JournalError for a journal of other contents.
    """
    import h5py

    with open(path, "rb+", buffering=0) as raw:
        _lock(raw.fileno(), path)
        recover(raw.fileno(), _real(path))
        changes = Changes(raw.fileno(), _real(path))
        try:
            with DeferredInterrupts() as interrupts:
                with h5py.File(changes, "r+") as file:
                    yield file
                interrupts.deliver()
        except BaseException:
            changes.discard()
            raise
        changes.commit()


def restore(path: Path) -> str | None:
    """Restore a file and remove its journal, as `recover` does; None if there is no journal."""
    if not journal_of(path).exists():
        with open(path, "rb"):  # missing file: Python's own message
            return None
    with open(path, "rb+", buffering=0) as raw:
        _lock(raw.fileno(), path)
        return recover(raw.fileno(), _real(path))


def check_changeable(path: Path) -> None:
    """Refuse a file that cannot be changed: in use, write-protected, in a read-only folder."""
    with open(path, "rb+", buffering=0) as raw:
        _lock(raw.fileno(), path)
    folder = _real(path).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"cannot change {path}: the folder {folder} is read-only, and needs a journal while "
            "the file is changed."
        )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _lock(file: int, path: Path) -> None:
    """Lock a file as HDF5 does, until it is closed."""
    if try_lock(file) is False:
        raise FileInUseError(
            errno.EAGAIN, "a program, perhaps this one, has it open: close it, for an AnnData "
            "object by adata.file.close()", str(path),
        )  # fmt: skip


class Changes:
    """A file object for HDF5 that appends to a file, and keeps other changes until `commit`.

    It never fails in a call of HDF5, which cannot handle that; `commit` raises the first error.
    The file never becomes shorter: HDF5 ignores bytes at the end that it does not use.
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
        buffer = bytearray(size)
        self.readinto(memoryview(buffer))
        return bytes(buffer)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer as `read` does."""
        view = memoryview(buffer).cast("B")
        n_read = read_into(self._file, view, self._at)
        view[n_read:] = bytes(len(view) - n_read)
        for number in self._numbers(len(view)):
            if number in self._pages:
                low = max(self._at, number * PAGE)
                high = min(self._at + len(view), number * PAGE + len(self._pages[number]))
                if low < high:
                    part = self._pages[number][low - number * PAGE : high - number * PAGE]
                    view[low - self._at : high - self._at] = part
        return len(view)

    def _numbers(self, length: int) -> range:
        return range(self._at // PAGE, (self._at + length - 1) // PAGE + 1)

    def write(self, data: memoryview) -> int:
        """Append to the file, or keep a change."""
        view, end = memoryview(data).cast("B"), self._at + len(data)
        try:
            kept = min(max(self._old_size - self._at, 0), len(view))
            for number in self._numbers(kept) if kept else ():
                if number not in self._pages:
                    self._pages[number] = bytearray(page_of(self._file, number, self._old_size))
                start = number * PAGE
                low, high = max(self._at, start), min(self._at + kept, start + PAGE)
                self._pages[number][low - start : high - start] = view[
                    low - self._at : high - self._at
                ]
            if self._failure is None:
                write_at(self._file, view[kept:], self._at + kept)
        except OSError as error:
            self._failure = self._failure or error
        self._size = max(self._size, end)
        return len(view)

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
            journal = self.save_journal()
        except BaseException:
            journal_of(self._path).unlink(missing_ok=True)
            self.discard()
            raise
        with DeferredInterrupts():
            try:
                journal.apply(self._file)
            except OSError as error:
                self._undo(journal, error)
            journal_of(self._path).unlink()

    def save_journal(self) -> Journal:
        """Bring what was appended to the disk, and save and return the journal."""
        try:
            if self._failure is not None:
                raise self._failure
            if not is_at(self._file, self._path):
                raise OSError(errno.ESTALE, "it was removed or replaced meanwhile")
            os.ftruncate(self._file, max(self._size, self._old_size))
            os.fsync(self._file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        old = {number: page_of(self._file, number, self._old_size) for number in self._pages}
        new = {number: bytes(page) for number, page in self._pages.items()}
        journal = Journal.of(self._file, old, new, self._old_size)
        journal.save(self._path)
        return journal

    def _undo(self, journal: Journal, error: OSError) -> None:
        """Restore the file after a failed write, and raise the error with the name of the file."""
        try:
            journal.undo(self._file)
        except OSError as failed:
            why = f"{error.strerror}; the file is half written: when its disk works again, "
            why += f"{how_to_restore(self._path)} restores it"
            raise OSError(error.errno, why, str(self._path)) from failed
        journal_of(self._path).unlink()
        raise OSError(error.errno, error.strerror, str(self._path)) from error
