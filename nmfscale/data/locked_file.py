"""Files that one process at a time holds."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Files whose locks this process holds.
_locks: set[int] = set()


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock on a file, made for that; whether there is one: not every file system has locks.

    It is let go when the process ends, however it does, and does not pass on to its children.

    Raises
    ------
    BlockingIOError
        If another has it: who that is.
    """
    file = _lock(path)
    try:
        yield file is not None
    finally:
        if file in _locks:  # not so in a child
            _locks.remove(file)
            with suppress(OSError):
                if _is_at(file, path):
                    path.unlink()
            os.close(file)


def _lock(path: Path) -> int | None:
    try:
        import fcntl
    except ImportError:
        return None
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:  # nobody writes here
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):  # not removed by the one who had it
                break
        except BlockingIOError:
            owner = os.pread(file, 1000, 0).decode(errors="replace") or "another process"
            os.close(file)
            raise BlockingIOError(errno.EAGAIN, owner, str(path)) from None
        except OSError:
            path.unlink(missing_ok=True)
            os.close(file)
            return None
        os.close(file)
    _locks.add(file)
    with suppress(OSError):  # of a full disk
        os.truncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return file


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """Close what a child has of its parent's locks, which would outlast the parent."""
    for file in _locks:
        os.close(file)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
