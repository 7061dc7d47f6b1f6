"""Numbers of bytes as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(size: int | float | str) -> int:
    """Return a number of bytes.

    Parameters
    ----------
    size : int, float or str
        Bytes, or "2GB", "500 MB", "1.5 GiB": units are powers of 1000, or of 1024 with an i.

    Returns
    -------
    int
        Positive.

    Raises
    ------
    ValueError
        If it is no positive size.

    Examples
    --------
    >>> from nmfscale.counts.sizes import parse_bytes
    >>> parse_bytes("2GB"), parse_bytes("1.5 GiB"), parse_bytes(10_000)
    (2000000000, 1610612736, 10000)
    """
    found = re.fullmatch(r"\s*([\d.]+(?:e\+?\d+)?)\s*([KMGT]?)(i?)B?\s*", str(size), re.IGNORECASE)
    try:
        assert found is not None
        base = 1024 if found[3] else 1000
        n_bytes = int(float(found[1]) * base ** _UNITS[found[2].upper()])
        assert n_bytes > 0
    except (AssertionError, ValueError, OverflowError):
        raise ValueError(
            f"memory_limit={size!r} is not a size; give bytes or a text such as '2GB' or '500MB'."
        ) from None
    return n_bytes


def readable(n_bytes: float) -> str:
    """Write a number of bytes as a user reads it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{int(n_bytes)} B"
