"""What a fit, or loadings of new rows, will need of memory, said before it begins."""

from __future__ import annotations

import math
import tempfile
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..counts.base import CountMatrix
from ..counts.blocks import SLICE_BYTES, cut_blocks
from ..counts.sell import LANES
from ..counts.sizes import MemoryLimitError, parse_bytes, readable
from ..methods.alternating import METHODS
from ..methods.newton import SHARED_FROM
from ..methods.steps import FAN_IN

# Copies of each factor in lane order at the worst moment, and numbers of 8 bytes for every row.
_COPIES_L, _COPIES_F, _PER_ROW = 5, 4, 14
# Of correlations that rows share: of both factors, and what they are found by.
_COPIES_SHARED = 6
# Rows that a start by singular vectors draws, in bytes: sparse, once more, and what it is made of.
_START_BYTES = 4_000_000 * 8 * 3
# Imports that are made late, threads, and what an allocator does not give back.
_BESIDES = 64 << 20
# For new rows: copies of the loadings of a block in their own type and in float64, copies of F in
# float64, and numbers of 8 bytes for every row of a block and for every row.
_COPIES_BLOCK, _COPIES_MADE, _COPIES_HELD, _PER_BLOCK_ROW, _PER_NEW_ROW = 3, 3, 5, 8, 4


class Plan(NamedTuple):
    """How a fit is done within a limit.

    Attributes
    ----------
    peak : int
        Bytes that the process will hold at most, with what it holds now.
    keep : bool
        Whether counts that are read from a file stay in memory.
    folder : str or None
        Where loadings are kept on disk, if they are.
    """

    peak: int
    keep: bool
    folder: str | None

    def __str__(self) -> str:
        """One line for a user."""
        where = "in memory" if self.keep else "read from the file in every iteration"
        loadings = "" if self.folder is None else f", loadings on disk in {self.folder}"
        return f"predicted peak memory {readable(self.peak)}: counts {where}{loadings}"


def plan_fit(
    counts: CountMatrix, n_components: int, dtype: Any, memory_limit: int | float | str | None,
    *, elsewhere: bool = False, scratch: int = 0,
) -> Plan:  # fmt: skip
    """Decide what stays in memory; refuse a fit for which even the least is too much.

    Parameters
    ----------
    counts : CountMatrix
        In memory or in a file.
    n_components : int
        K.
    dtype : data-type
        Of the factors.
    memory_limit : int, float, str or None
        Bytes that the process may hold; by default what the machine has free and it holds now.
    elsewhere : bool, default=False
        Whether other processes read the counts.
    scratch : int, default=0
        Bytes that the threads need besides: see :func:`descent_bytes`.

    Returns
    -------
    Plan
        The first that fits: counts in memory; counts read in every iteration; loadings on disk.

    Raises
    ------
    MemoryLimitError
        If none fits, naming the bytes needed.
    """
    held, limit = _held_and_limit(memory_limit)
    layout = counts.layout() if counts.from_file else None
    rest, loadings = _factor_bytes(counts, n_components, np.dtype(dtype).itemsize)
    rest += held + _BESIDES + scratch
    if elsewhere:
        return _first_that_fits([Plan(rest + loadings, False, None)], limit)
    if layout is None:
        rest += SLICE_BYTES * counts.nnz
        return _first_that_fits([Plan(rest + loadings, True, None)], limit)
    streamed = rest + layout.buffer_bytes
    folder = tempfile.gettempdir()
    return _first_that_fits(
        [
            Plan(rest + loadings + layout.nbytes, True, None),
            Plan(streamed + loadings, False, None),
            Plan(streamed, False, folder),
        ],
        limit,
    )


def descent_bytes(
    counts: CountMatrix, n_components: int, dtype: Any, solver: str, n_threads: int
) -> int:
    """Return the bytes in which threads gather the factors of a whole row: coordinate descent's."""
    if solver not in METHODS or METHODS[solver].kernel != "descend":
        return 0
    longest = max(int(counts.row_nnz.max()), int(counts.column_nnz.max()))
    return n_threads * longest * (n_components + 2) * LANES * np.dtype(dtype).itemsize


def _first_that_fits(plans: list[Plan], limit: int) -> Plan:
    for plan in plans:
        if plan.peak <= limit:
            return plan
    raise _too_much(
        "the fit needs", plans[-1].peak, limit,
        "raise memory_limit, fit fewer components, or use dtype='float32'",
    )  # fmt: skip


def check_projection(
    counts: CountMatrix, n_components: int, dtype: Any, memory_limit: int | float | str | None,
    *, n_threads: int = 1, gathered: bool = True,
) -> int:  # fmt: skip
    """Refuse loadings of new rows that would take more memory than the process may hold.

    Parameters
    ----------
    counts, n_components, dtype, memory_limit
        As for :func:`plan_fit`.
    n_threads : int, default=1
        That the layout of the counts is made with, where it is yet to be made.
    gathered : bool, default=True
        Whether the loadings of all rows are brought together in memory.

    Returns
    -------
    int
        Bytes that the process will hold at most, with what it holds now.

    Raises
    ------
    MemoryLimitError
        If that is too much, naming the bytes needed.
    """
    # made first: what the layout of a file holds is then held already
    of_counts = counts.layout(n_threads).buffer_bytes if counts.from_file else 0
    held, limit = _held_and_limit(memory_limit)
    n, m = counts.shape
    itemsize, stride = np.dtype(dtype).itemsize, kernels.row_stride(n_components)
    n_block = int(np.diff(cut_blocks(counts.row_nnz)).max())
    of_block = stride * (_COPIES_BLOCK * itemsize + _COPIES_MADE * 8) + _PER_BLOCK_ROW * 8
    rest = m * stride * _COPIES_HELD * 8 + n * _PER_NEW_ROW * 8
    peak = held + _BESIDES + of_counts + rest + n_block * of_block
    if not counts.from_file:
        peak += SLICE_BYTES * counts.nnz
    whole = n * n_components * itemsize if gathered else 0
    if peak + whole > limit:
        remedy = "raise memory_limit"
        if peak <= limit:
            remedy += ", or have transform write them to a file, with out='NAME.npy'"
        raise _too_much("the loadings need", peak + whole, limit, remedy)
    return peak + whole


def _held_and_limit(memory_limit: int | float | str | None) -> tuple[int, int]:
    """Bytes that the process holds now, and those that it may hold."""
    import psutil

    held = psutil.Process().memory_info().rss
    if memory_limit is not None:
        return held, parse_bytes(memory_limit)
    return held, held + psutil.virtual_memory().available


def _too_much(what: str, peak: int, limit: int, remedy: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"{what} {readable(peak)} of memory ({peak:,} bytes) and may use {readable(limit)}: "
        f"{remedy}."
    )


def _factor_bytes(counts: CountMatrix, n_components: int, itemsize: int) -> tuple[int, int]:
    """Bytes of everything but the counts and the loadings, and of the loadings."""
    n, m = counts.shape
    stride = kernels.row_stride(n_components)
    lanes = -(-m // LANES) * LANES
    kind = kernels.SUM_FULL if n_components < SHARED_FROM else kernels.SUM_DIAGONAL
    # the sum at hand, and branches of the tree that wait for their neighbours
    n_blocks = max(1, len(cut_blocks(counts.row_nnz)) - 1)
    n_sums = 1 + (FAN_IN - 1) * math.ceil(math.log(n_blocks, FAN_IN))
    statistics = kernels.statistics_size(n_components, kind) * 8 * n_sums
    factors = lanes * (_COPIES_F * stride * itemsize + statistics)
    start = min(counts.nnz * 24, _START_BYTES)
    shared = 0 if n_components < SHARED_FROM else _COPIES_SHARED * n_components**2 * 8
    return factors + start + shared + n * _PER_ROW * 8, n * stride * itemsize * _COPIES_L
