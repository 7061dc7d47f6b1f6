"""Atomic writes of files, locks on files, and reads with retries."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from .interrupts import DeferredInterrupts

# Prefix of a file's name until it is complete; a killed process may leave such a file behind.
UNFINISHED = ".part-"
_OPEN_FILES = "/proc/self/fd"
# The disk or the quota is full, or the file has reached the largest size.
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


@contextmanager
def atomic_write(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `target`, with the same suffixes; rename it at the end.

    With `durable`, the contents are flushed to the disk before the file is renamed, and the new
    name before this returns: both survive a crash of the machine. If the block fails, the temporary
    file is removed and `target` is unchanged.
    """
    check_replaceable(target)
    part = target.with_name(f"{UNFINISHED}{secrets.token_hex(6)}-{target.name}")
    try:
        yield part
        if not durable:
            os.replace(part, target)
            return
        with open(part, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(part, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        # errors of write() do not name the file, and those of open() name the temporary one
        if error.errno in _FULL and error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


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
        with atomic_write(target) as part, open(part, "xb+", buffering=0) as raw:
            yield raw
        return
    with nameless, atomic_write(target) as part:
        yield nameless
        # with src_dir_fd, which is otherwise unused, os.link follows the symbolic link in /proc
        number = nameless.fileno()
        os.link(f"{_OPEN_FILES}/{number}", part, src_dir_fd=number, follow_symlinks=True)


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
        return os.pread(self._file, size, self._at)

    def readinto(self, buffer: memoryview) -> int:
        found = read_into(self._file, buffer, self._at)
        buffer[found:] = bytes(len(buffer) - found)
        return len(buffer)

    def write(self, data: memoryview) -> int:
        done = 0
        try:
            while done < len(data) and self._failure is None:
                piece = data[done : done + CALL_BYTES]
                done += os.pwrite(self._file, piece, self._at + done)
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


# Descriptors of the files that this process has locked.
_locks: set[int] = set()


class FileInUseError(BlockingIOError):
    """A file is locked by another process, or by another fit in this process."""


class FileLock:
    """A lock on a file created for this purpose, held inside `with`.

    `with` yields True, or False if the file system has no locks. The lock is released when the
    process ends, in whatever way, and is not inherited by child processes. If another process or
    fit holds it, a FileInUseError names that process. After a Ctrl-C at any moment, the lock is
    either held by a running `with`, or released.
    """

    _file = -1

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> bool:
        """Acquire the lock; return whether the file system has locks."""
        try:
            with DeferredInterrupts():
                file = _lock(self._path)
                self._file = -1 if file is None else file
        except KeyboardInterrupt:
            self._release()
            raise
        return self._file >= 0

    def __exit__(self, *exception: object) -> None:
        """Release the lock."""
        self._release()

    def __del__(self) -> None:
        """Release it after a Ctrl-C between the end of `__enter__` and the block."""
        if self._file >= 0:
            self._release()

    def _release(self) -> None:
        try:
            with DeferredInterrupts():
                self._unlock()
        except KeyboardInterrupt:
            self._unlock()  # Ctrl-C may have been raised before it was deferred
            raise

    def _unlock(self) -> None:
        file, self._file = self._file, -1
        if file in _locks:  # not in a child process
            _locks.remove(file)
            with suppress(OSError):
                if _is_at(file, self._path):
                    self._path.unlink()
            os.close(file)


def _lock(path: Path) -> int | None:
    try:
        import fcntl
    except ImportError:
        return None
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:  # the folder is read-only
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):  # it was not removed by the previous owner meanwhile
                break
        except BlockingIOError:
            owner = os.pread(file, 1000, 0).decode(errors="replace") or "another process"
            os.close(file)
            raise FileInUseError(errno.EAGAIN, owner, str(path)) from None
        except OSError:
            path.unlink(missing_ok=True)
            os.close(file)
            return None
        os.close(file)
    _locks.add(file)
    with suppress(OSError):  # the disk is full
        os.truncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return file


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _close_inherited() -> None:
    """Close a child's copies of the parent's locks, which would outlive the parent."""
    for file in _locks:
        os.close(file)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


# Reading --------------------------------------------------------------------------------------

# Errors that a network file system may raise for an existing file; seconds to retry after them.
TRANSIENT = errno.EIO, errno.ESTALE, errno.ENOENT
RETRY_SECONDS = 30.0
# Bytes for one call: Linux transfers at most 2 GiB at a time, macOS refuses larger requests.
CALL_BYTES = 1 << 30


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


def file_id(found: os.stat_result) -> tuple[int, ...]:
    """Return the identity of a file's contents: inode, size and time of modification."""
    return found.st_ino, found.st_size, found.st_mtime_ns
