"""Memory that starts on a cache line, and that goes back to the system as soon as it is free."""

from __future__ import annotations

import math
import mmap
import tempfile
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The allocator keeps much of what is freed, and a large array that comes later may not fit there.
_MAPPED_BYTES = 1 << 17
# From so many bytes on, large pages save look-ups of addresses, as NumPy knows.
_LARGE_PAGES_BYTES = 1 << 22


def aligned_empty(shape: tuple[int, ...], dtype: Any, folder: str | None = None) -> NDArray[Any]:
    """Return an array that starts on a cache line, as the kernels require.

    With `folder` it is kept in a file there, which has no name and goes with the array.
    """
    if folder is not None:
        with tempfile.TemporaryFile(dir=folder) as file:
            return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size >= _MAPPED_BYTES:
        memory = mmap.mmap(-1, size)
        if size >= _LARGE_PAGES_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype).reshape(shape)
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return such an array, of zeros."""
    out = aligned_empty(shape, dtype)
    if out.nbytes < _MAPPED_BYTES:  # the system's memory comes as zeros
        out.fill(0)
    return out
