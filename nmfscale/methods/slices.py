"""Counts in slices of 16 rows, the form of the kernels, and in pieces that report progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import kernels
from ..counts.sell import LANES, SellBlock

# Nonzero counts times components between two reports of progress: less than a second of work.
_PIECE, _PIECE_SLICES = 20_000_000, 8


def sliced_counts(counts: SellBlock, n_design: int) -> Any:
    """Return counts in the form of the kernels, with indices below `n_design`."""
    return kernels.SlicedCounts(
        counts.index, counts.count, counts.offset, n_design, dense=counts.dense
    )


def pieces(
    counts: SellBlock, n_components: int, n_threads: int, whole: bool = False
) -> Iterator[slice]:
    """Split slices into pieces with progress after each; with `whole`, into a single piece."""
    n_slices, first = len(counts.offset) - 1, 0
    enough = _PIECE // (LANES * n_components)
    while first < n_slices and not whole:
        last = int(np.searchsorted(counts.offset, counts.offset[first] + enough))
        last = min(n_slices, max(last, first + _PIECE_SLICES * n_threads))
        yield slice(first, last)
        first = last
    if whole:
        yield slice(0, n_slices)
