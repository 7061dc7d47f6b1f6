"""HDF5 files that appear whole or not at all, and say so when the disk is full."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import block_file
from .whole_file import whole_stream


@contextmanager
def whole_hdf5(target: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Give an HDF5 file to write that appears whole or not at all, and a check for long work.

    A disk that is full is an OSError that says so, and Ctrl-C is heard, when the check is called
    and at the end.
    """
    import h5py

    with whole_stream(target) as raw:
        disk = _Disk(raw.fileno(), target)
        with disk:
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
        self._handler: Any = None
        self._pressed: list[Any] = []

    def __enter__(self) -> _Disk:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, lambda *pressed: self._pressed.append(pressed))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self.check()

    def check(self) -> None:
        """Raise what went wrong so far, and let a Ctrl-C have its effect."""
        while self._pressed:
            self._handler(*self._pressed.pop())
        if self._failure is not None:
            number, why = self._failure.errno, self._failure.strerror
            raise OSError(number, why, str(self._target)) from self._failure

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._file).st_size if start is None else start)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        return os.pread(self._file, size, self._at)

    def readinto(self, buffer: memoryview) -> int:
        found = block_file.read_into(self._file, buffer, self._at)
        buffer[found:] = bytes(len(buffer) - found)
        return len(buffer)

    def write(self, data: memoryview) -> int:
        done = 0
        try:
            while done < len(data) and self._failure is None:
                piece = data[done : done + block_file.CALL_BYTES]
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
