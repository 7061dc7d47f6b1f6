"""Atomic writes of files, and reads with retries."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from .interrupts import DeferredInterrupts
from .locks import FileInUseError, is_at, try_lock, unlock

# Prefix of a file's name until it is complete; a killed process may leave such a file behind.
UNFINISHED = ".part-"
_OPEN_FILES = "/proc/self/fd"
# The disk or the quota is full, or the file has reached the largest size.
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


@contextmanager
def atomic_write(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of an empty file beside `target`, which is renamed to `target` at the end.

    It has the same suffixes. With `durable`, the contents are flushed to the disk before the file
    is renamed, and the new name before this returns: both survive a crash of the machine. If the
    block fails, the temporary file is removed and `target` is unchanged.
    """
    check_replaceable(target)
    if durable:
        remove_leftovers(target.parent)
    with _errors_of(target), _new_part(target) as (part, file):
        yield part
        _rename(part, target, file, durable)


def _rename(part: Path, target: Path, file: int, durable: bool) -> None:
    """Rename a complete file, which is open and locked, and release its lock."""
    if durable:
        os.fsync(file)
    os.replace(part, target)
    unlock(file)
    if durable:
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _errors_of(target: Path) -> Iterator[None]:
    """Name the file in errors of a full disk.

    Errors of write() do not name a file, and those of open() name the temporary one.
    """
    try:
        yield
    except OSError as error:
        name = os.path.basename(str(error.filename or UNFINISHED))
        if error.errno in _FULL and name.startswith(UNFINISHED):
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


# Files that are not complete. Their writer holds a lock on them, and their names begin with a
# number of this machine: on network file systems, locks may not be seen on other machines.
_HERE = hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
_PART = re.compile(rf"{re.escape(UNFINISHED)}{_HERE}[0-9a-f]{{8}}-.")


def _part_of(target: Path) -> Path:
    return target.with_name(f"{UNFINISHED}{_HERE}{secrets.token_hex(4)}-{target.name}")


@contextmanager
def _new_part(target: Path) -> Iterator[tuple[Path, int]]:
    """Create an empty, locked file beside `target`; yield its path and descriptor."""
    for _ in range(10):
        part = _part_of(target)
        file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if try_lock(file) is not False and is_at(file, part):
            break
        os.close(file)  # another process took it for a leftover before it was locked
    else:
        raise FileInUseError(errno.EAGAIN, "new files in its folder are locked", str(target))
    try:
        yield part, file
    finally:
        part.unlink(missing_ok=True)
        os.close(file)


def remove_leftovers(folder: Path) -> None:
    """Remove incomplete files that killed processes of this machine have left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        parts = [folder / entry.name for entry in entries if _PART.match(entry.name)]
        for part in parts:
            with suppress(OSError):
                _remove_unlocked(part)


def _remove_unlocked(part: Path) -> None:
    """Remove a file unless a process holds its lock, or there are no locks."""
    file = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if try_lock(file) and is_at(file, part):
            part.unlink()
    finally:
        os.close(file)


def user_path(path: str | os.PathLike[str]) -> Path:
    """Expand ~ at the beginning of a path to the user's home."""
    return Path(os.path.expanduser(path))


def target_of(path: str | os.PathLike[str]) -> Path:
    """Resolve the path of a file to write; refuse a path where no file can be written."""
    target = Path(os.path.realpath(user_path(path)))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {target.parent} does not exist.")
    check_replaceable(target)
    return target


def check_replaceable(target: Path) -> None:
    """Refuse to replace an existing folder, device, pipe or socket by a file."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; pass the name of a file in it.")
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is a device, a pipe or a socket; pass the name of a file.")


@contextmanager
def atomic_stream(target: Path) -> Iterator[BinaryIO]:
    """Yield a file open for reading and writing, which becomes `target` as in `atomic_write`.

    If the system supports unnamed files, a killed process leaves nothing behind.
    """
    nameless = _nameless(target.parent)
    if nameless is None:
        with atomic_write(target) as part, open(part, "rb+", buffering=0) as raw:
            yield raw
        return
    check_replaceable(target)
    remove_leftovers(target.parent)
    part, number = _part_of(target), nameless.fileno()
    with _errors_of(target), nameless:
        yield nameless
        try_lock(number)
        try:
            # with src_dir_fd, which is otherwise unused, os.link follows the symbolic link in /proc
            os.link(f"{_OPEN_FILES}/{number}", part, src_dir_fd=number, follow_symlinks=True)
            _rename(part, target, number, durable=True)
        finally:
            part.unlink(missing_ok=True)


def _nameless(folder: Path) -> BinaryIO | None:
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_OPEN_FILES):
        return None
    try:
        return open(os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o666), "rb+", buffering=0)
    except OSError:  # not supported by the file system; other errors recur in atomic_write
        return None


@contextmanager
def atomic_hdf5(target: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Yield an HDF5 file to write, which appears complete or not at all, and a `check` function.

    Call `check` regularly: it raises an OSError if the disk is full, and delivers Ctrl-C. Both are
    also raised at the end.
    """
    import h5py

    with atomic_stream(target) as raw, _Disk(raw.fileno(), target) as disk:
        # this file version has checksums of everything but arrays and text of variable length
        with h5py.File(disk, "w", libver=("v110", "v110")) as file:
            yield file, disk.check


class _Disk:
    """A file object for HDF5 that never fails: it records the first error for `check` to raise.

    HDF5 cannot handle a failed write or a KeyboardInterrupt: it hides the error, cannot close the
    file, or crashes when Python exits.
    """

    def __init__(self, file: int, target: Path):
        self._file, self._target, self._at = file, target, 0
        self._failure: OSError | None = None
        self._interrupts = DeferredInterrupts()

    def __enter__(self) -> _Disk:
        self._interrupts.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._interrupts.__exit__(*exception)
        self.check()

    def check(self) -> None:
        """Raise the first recorded error, and deliver a Ctrl-C."""
        self._interrupts.deliver()
        if (failure := self._failure) is not None:
            raise OSError(failure.errno, failure.strerror, str(self._target)) from failure

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._file).st_size if start is None else start)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        buffer = memoryview(bytearray(size))
        return bytes(buffer[: read_into(self._file, buffer, self._at)])

    def readinto(self, buffer: memoryview) -> int:
        n_read = read_into(self._file, buffer, self._at)
        buffer[n_read:] = bytes(len(buffer) - n_read)
        return len(buffer)

    def write(self, data: memoryview) -> int:
        try:
            if self._failure is None:
                write_at(self._file, data, self._at)
        except OSError as error:
            self._failure = error
        return len(data)

    def truncate(self, size: int) -> int:
        try:
            os.ftruncate(self._file, size)
        except OSError as error:
            self._failure = self._failure or error
        return size

    def flush(self) -> None:
        pass


# Reading and writing --------------------------------------------------------------------------

# Errors that a network file system may raise for an existing file; seconds to retry after them.
TRANSIENT = errno.EIO, errno.ESTALE, errno.ENOENT
RETRY_SECONDS = 30.0
# Bytes for one call: Linux transfers at most 2 GiB at a time, macOS refuses larger requests.
CALL_BYTES = 1 << 30


def write_at(file: int, data: Any, first: int) -> None:
    """Write all of a buffer from byte `first` of a file."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        n_written = os.pwrite(file, view[done : done + CALL_BYTES], first + done)
        if not n_written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += n_written


def read_into(file: int, buffer: memoryview, first: int) -> int:
    """Fill a buffer from byte `first` of a file; return the number of bytes read."""
    done = 0
    while done < len(buffer):
        n_read = os.preadv(file, [buffer[done : done + CALL_BYTES]], first + done)
        if not n_read:
            break
        done += n_read
    return done


def retry(
    path: Path, read: Any, errors: tuple[int, ...] = TRANSIENT, seconds: float | None = None,
    what: str = "cannot be read",
) -> Any:  # fmt: skip
    """Return `read()`; retry for some seconds if it fails with one of the transient `errors`."""
    seconds = RETRY_SECONDS if seconds is None else seconds
    deadline, pause = time.monotonic() + seconds, 0.05
    while True:
        try:
            return read()
        except OSError as error:
            if error.errno not in errors:
                raise
            if time.monotonic() + pause > deadline:
                why = f"{path} {what} ({error.strerror or error}); gave up after {seconds:g} s"
                raise OSError(error.errno, why) from error
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def file_id(status: os.stat_result) -> tuple[int, ...]:
    """Return the identity of a file's contents: inode, size and time of modification."""
    return status.st_ino, status.st_size, status.st_mtime_ns
