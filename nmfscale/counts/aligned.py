"""Memory that starts on a cache line, and that goes back to the system as soon as it is free."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The allocator keeps much of what is freed, and a large array that comes later may not fit there.
_MAPPED_BYTES = 1 << 17
# A large page saves many look-ups of addresses.
_PAGE_BYTES = 1 << 21


def aligned_empty(shape: tuple[int, ...], dtype: Any, folder: str | None = None) -> NDArray[Any]:
    """Return an array that starts on a cache line, as the kernels require.

    With `folder` it is kept in a file there, which has no name and goes with the array.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if folder is not None:
        with tempfile.TemporaryFile(dir=folder) as file:
            _claim(file.fileno(), size, folder)
            return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)
    if size >= _MAPPED_BYTES:
        return _mapped(size).view(dtype).reshape(shape)
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _claim(file: int, size: int, folder: str) -> None:
    """Take the room of a file on the disk at once, where the system can.

    A write to mapped memory for which a full disk has no room would end the process.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot
            return
        raise OSError(
            error.errno,
            f"cannot keep an array of {size:,} bytes in {folder} ({error.strerror}): make room "
            "there, set TMPDIR to a folder with more, or raise memory_limit",
        ) from error


def _mapped(size: int) -> NDArray[np.uint8]:
    """Return memory of the system, as far as possible in large pages where it has them."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    flags = {"flags": private} if private else {}
    of_pages = size // _PAGE_BYTES * _PAGE_BYTES
    if not of_pages or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.frombuffer(mmap.mmap(-1, size, **flags), np.uint8)
    # from where such a page begins; what lies before and behind is never touched
    memory = mmap.mmap(-1, size + _PAGE_BYTES, **flags)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE, start, of_pages)
    return raw[start : start + size]


def aligned_copy(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Return a copy of an array, in another type if wanted."""
    out = aligned_empty(array.shape, dtype or array.dtype)
    out[...] = array
    return out


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return such an array, of zeros."""
    out = aligned_empty(shape, dtype)
    if out.nbytes < _MAPPED_BYTES:  # the system's memory comes as zeros
        out.fill(0)
    return out
