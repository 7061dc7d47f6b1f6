"""Sizes in bytes: parse and format them, and refuse tables that do not fit in memory."""

from __future__ import annotations

import re

from .free_memory import free_memory

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
# Bytes for each row and column, whatever its counts: a pointer, the number of nonzeros, the sum.
_MARGIN_BYTES = 24


class MemoryLimitError(MemoryError, ValueError):
    """A table, a fit, or loadings of new rows would need more memory than allowed."""

    __module__ = "nmfscale.errors"


def parse_bytes(size: int | float | str) -> int:
    """Convert "2GB", "500 MB", "1.5 GiB" or a plain number to a positive number of bytes."""
    match = re.fullmatch(r"\s*([\d.]+(?:e\+?\d+)?)\s*([KMGT]?)(i?)B?\s*", str(size), re.IGNORECASE)
    try:
        assert match is not None
        base = 1024 if match[3] else 1000
        n_bytes = int(float(match[1]) * base ** _UNITS[match[2].upper()])
        assert n_bytes > 0
    except (AssertionError, OverflowError, ValueError):
        raise ValueError(
            f"memory_limit={size!r} is not a size; pass bytes or a text such as '2GB' or '500MB'."
        ) from None
    return n_bytes


def readable(n_bytes: float) -> str:
    """Format a number of bytes with a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{int(n_bytes)} B"


def check_table_size(
    shape: tuple[int, ...], subject: str, memory_limit: int | float | str | None, n_bytes: int = 0
) -> None:
    """Refuse a table that needs too much memory, for its rows and columns and `n_bytes` more."""
    needed = n_bytes + _MARGIN_BYTES * sum(int(size) for size in shape)
    if memory_limit is None:
        limit, remedy = free_memory(), "free memory, or use another machine"
    else:
        limit, remedy = parse_bytes(memory_limit), "raise memory_limit"
    if needed > limit:
        raise MemoryLimitError(
            f"{subject} has the shape {tuple(shape)} and needs {readable(needed)} of memory "
            f"({needed:,} bytes), but may use {readable(limit)}: {remedy}, or leave out rows "
            "and columns without counts."
        )
