"""Locks on files."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from .interrupts import DeferredInterrupts

# Descriptors of the files that this process has locked.
_locks: set[int] = set()


class FileInUseError(BlockingIOError):
    """A file is locked by another process, or by another fit in this process."""

    __module__ = "nmfscale.errors"


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
                if is_at(file, self._path):
                    self._path.unlink()
            os.close(file)


def _lock(path: Path) -> int | None:
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:  # the folder is read-only
            return None
        is_ours = try_lock(file)
        if is_ours and is_at(file, path):  # it was not removed by the previous owner meanwhile
            break
        owner = os.pread(file, 1000, 0).decode(errors="replace") or "another process"
        os.close(file)
        if is_ours is None:
            path.unlink(missing_ok=True)
            return None
        if not is_ours:
            raise FileInUseError(errno.EAGAIN, owner, str(path))
    _locks.add(file)
    with suppress(OSError):  # the disk is full
        os.truncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return file


def try_lock(file: int) -> bool | None:
    """Lock an open file until it is closed; return False if it is locked, None without locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def unlock(file: int) -> None:
    """Release the lock of an open file."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at a path: neither removed nor replaced."""
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
