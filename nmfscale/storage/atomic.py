"""Files that appear whole or not at all, locks on files, and reads that are tried again."""

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

# What a file is called until it is complete; a process that is killed may leave one behind.
UNFINISHED = ".part-"
_OPEN_FILES = "/proc/self/fd"
# The disk or the quota is full, or the file is as long as files may be.
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


@contextmanager
def atomic_write(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a path beside `target`, of the same suffixes, and move it into place at the end.

    What was written is on the disk before it gets its name, and the name before this returns,
    unless it need not outlast the machine (`durable`). If the block fails, what was written is
    removed and `target` is as it was.
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
        # write() does not name its file, and open() names the part
        if error.errno in _FULL and error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path in which ~ at the beginning stands for the home of the user."""
    return Path(os.path.expanduser(path))


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path means; refuse one that cannot be written."""
    target = Path(os.path.realpath(user_path(path)))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {target.parent} does not exist.")
    check_replaceable(target)
    return target


def check_replaceable(target: Path) -> None:
    """Refuse to put a file in the place of anything that is there and is no file."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file in it.")
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is a device, a pipe or a socket; give the name of a file.")


@contextmanager
def atomic_stream(target: Path) -> Iterator[BinaryIO]:
    """Give a file to read and write that gets its name at the end, as with `atomic_write`.

    Where the system has files without a name, a process that is killed leaves nothing behind.
    """
    nameless = _nameless(target.parent)
    if nameless is None:
        with atomic_write(target) as part, open(part, "xb+", buffering=0) as raw:
            yield raw
        return
    with nameless, atomic_write(target) as part:
        yield nameless
        # given a folder, even one that does not matter, the link of /proc is followed
        number = nameless.fileno()
        os.link(f"{_OPEN_FILES}/{number}", part, src_dir_fd=number, follow_symlinks=True)


def _nameless(folder: Path) -> BinaryIO | None:
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_OPEN_FILES):
        return None
    try:
        return open(os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o666), "rb+", buffering=0)
    except OSError:  # a file system without; or atomic_write says what is wrong
        return None


@contextmanager
def atomic_hdf5(target: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Give an HDF5 file to write that appears whole or not at all, and a check for long work.

    A disk that is full is an OSError that says so, and Ctrl-C is heard, when the check is called
    and at the end.
    """
    import h5py

    with atomic_stream(target) as raw, _Disk(raw.fileno(), target) as disk:
        # this version of HDF5 has checksums of all but the arrays and text of any length
        with h5py.File(disk, "w", libver=("v110", "v110")) as file:
            yield file, disk.check


class _Disk:
    """A file that takes all that HDF5 writes and remembers the first failure.

    HDF5 does not survive one, a KeyboardInterrupt neither: it hides it, cannot close the file, or
    crashes when Python ends.
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
        """Raise what went wrong so far, and let a Ctrl-C have its effect."""
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


# Files whose locks this process holds.
_locks: set[int] = set()


class FileInUseError(BlockingIOError):
    """Another process, or another fit of this one, has locked a file."""


class FileLock:
    """A lock on a file, made for that, held inside `with`: True, or False without such locks.

    Not every file system has locks. It is released when the process ends, however it does, and does
    not pass on to its children. If another process or fit has it, a FileInUseError names the
    process. Ctrl-C at any moment leaves it either held by a running `with`, or released.
    """

    _file = -1

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> bool:
        """Take the lock; whether there is one."""
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
                self._let_go()
        except KeyboardInterrupt:
            self._let_go()  # Ctrl-C may have come before it was held back
            raise

    def _let_go(self) -> None:
        file, self._file = self._file, -1
        if file in _locks:  # not so in a child
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
        except OSError:  # nobody writes here
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):  # not removed by the one who had it
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


# Reading --------------------------------------------------------------------------------------

# What a network file system says of a file that is there: asked again for so many seconds.
TRANSIENT = errno.EIO, errno.ESTALE, errno.ENOENT
RETRY_SECONDS = 30.0
# Linux moves no more than 2 GiB in one call, macOS refuses to.
CALL_BYTES = 1 << 30


def read_into(file: int, buffer: memoryview, first: int) -> int:
    """Fill a buffer of bytes from byte `first` of a file; how many bytes there were."""
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
    """Call `read`, again for a while if it fails with one of the errors that may pass."""
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
    """Return what tells a file from another that takes its place."""
    return found.st_ino, found.st_size, found.st_mtime_ns
