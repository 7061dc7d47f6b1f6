"""Arrays that start on a cache line, and whose memory returns to the system when they are freed."""

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

# Larger arrays are mapped: the allocator would keep freed memory, which later arrays may not fit.
_MAPPED_BYTES = 1 << 17
# Size of a huge page, which saves many address translations.
_PAGE_BYTES = 1 << 21


def aligned_empty(shape: tuple[int, ...], dtype: Any, folder: str | None = None) -> NDArray[Any]:
    """Return an uninitialised array that starts on a cache line, as the kernels require.

    With `folder`, the array lives in an unnamed file there, which is deleted with the array.
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
    """Reserve a file's space on the disk at once, if the system supports it.

    Otherwise a write to mapped memory would kill the process when the disk is full.
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
            f"cannot keep an array of {size:,} bytes in {folder} ({error.strerror}): free space "
            "there, set TMPDIR to a folder with more space, or raise memory_limit",
        ) from error


def _mapped(size: int) -> NDArray[np.uint8]:
    """Return memory mapped from the system, in huge pages as far as possible."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    flags = {"flags": private} if private else {}
    of_pages = size // _PAGE_BYTES * _PAGE_BYTES
    if not of_pages or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.frombuffer(mmap.mmap(-1, size, **flags), np.uint8)
    # start at the boundary of a huge page; memory before and after the array is never touched
    memory = mmap.mmap(-1, size + _PAGE_BYTES, **flags)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    with suppress(OSError):  # the system has no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE, start, of_pages)
    return raw[start : start + size]


def aligned_copy(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Return a copy of an array that starts on a cache line; with another dtype if given."""
    out = aligned_empty(array.shape, dtype or array.dtype)
    out[...] = array
    return out


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros that starts on a cache line."""
    out = aligned_empty(shape, dtype)
    if out.nbytes < _MAPPED_BYTES:  # mapped memory is zero at first
        out.fill(0)
    return out
