"""Predicts the memory of a fit, or of loadings of new rows, before it starts."""

from __future__ import annotations

import math
import tempfile
from typing import NamedTuple

import numpy as np

from ..counts.base import CountMatrix
from ..counts.blocks import BLOCK_NONZEROS, SLICE_BYTES, cut_blocks
from ..counts.free_memory import free_memory
from ..counts.sizes import MemoryLimitError, parse_bytes, readable
from .protocol import Needs
from .runner import FAN_IN

# Late imports, threads, and memory that the allocator does not return.
_BESIDES = 64 << 20
# Bytes of a nonzero count in columns of all blocks together, about.
_WHOLE_COLUMN_BYTES = 6
# Share of the free memory for parts of counts, and bytes of an entry beside its slices.
_SHARE, _ENTRY_BYTES = 0.5, 12


class Plan(NamedTuple):
    """How a fit runs within a memory limit.

    `peak` is the maximum memory of the process in bytes, including its current memory. `keep`:
    counts that are read from a file stay in memory. `folder`: where loadings are kept on disk, if
    they are.
    """

    peak: int
    keep: bool
    folder: str | None

    def __str__(self) -> str:
        """Return one line for the user."""
        where = "in memory" if self.keep else "read from the file in every iteration"
        loadings = "" if self.folder is None else f", loadings on disk in {self.folder}"
        return f"predicted peak memory {readable(self.peak)}: counts {where}{loadings}"


def plan_fit(
    counts: CountMatrix, needs: Needs, memory_limit: int | float | str | None, *,
    elsewhere: bool = False, in_float64: bool = True, n_threads: int = 1,
) -> Plan:  # fmt: skip
    """Decide what stays in memory; refuse a fit that needs too much in every configuration.

    The first plan that fits is returned: counts in memory; counts read in every iteration; row
    arrays on disk, too. With `elsewhere` other processes read the counts. Without `memory_limit`
    the limit is the current memory of the process plus the free memory: of the machine, and within
    its control groups and resource limits. The error advises float32 if the fit ends `in_float64`.
    """
    plans = plans_of_fit(counts, needs, elsewhere=elsewhere, n_threads=n_threads)
    _, limit = _held_and_limit(memory_limit)
    for plan in plans:
        if plan.peak <= limit:
            return plan
    remedy = f"{_more(memory_limit)}{',' if in_float64 else ' or'} fit fewer components"
    if in_float64:
        remedy += ", or use dtype='float32'"
    if not counts.from_file and not elsewhere:
        remedy += (
            f"; or write a packed store, about {readable(SLICE_BYTES * counts.nnz)} ('nmfscale "
            "store', nmfscale.write_store), which a fit reads a block at a time"
        )
    raise _too_much("the fit needs", plans[-1].peak, limit, remedy)


def plans_of_fit(
    counts: CountMatrix, needs: Needs, *, elsewhere: bool = False, n_threads: int = 1
) -> list[Plan]:
    """Return the plans between which `plan_fit` decides, the one that needs most memory first."""
    held, _ = _held_and_limit(None)
    layout = counts.layout(n_threads) if counts.from_file else None
    rest = held + _BESIDES + _bytes_of_fit(counts, needs)
    rows = counts.shape[0] * needs.row
    if elsewhere:
        return [Plan(rest + rows, False, None)]
    if layout is None:
        n_bytes = (SLICE_BYTES + needs.per_count) * counts.nnz
        if needs.whole_row and len(cut_blocks(counts.row_nnz)) > 2:
            n_bytes += _WHOLE_COLUMN_BYTES * counts.nnz
        return [Plan(rest + rows + n_bytes, True, None)]
    of_panels = layout.panel_bytes(needs.per_count) if needs.whole_row else 0
    streamed = rest + layout.buffer_bytes + needs.per_count * min(counts.nnz, BLOCK_NONZEROS)
    streamed += of_panels
    kept = layout.nbytes + of_panels + needs.per_count * counts.nnz
    return [
        Plan(rest + rows + kept, True, None),
        Plan(streamed + rows, False, None),
        Plan(streamed, False, tempfile.gettempdir()),
    ]


def fits_within(
    counts: CountMatrix, needs: Needs, memory_limit: int | float | str | None, most: int
) -> int:
    """Return how many fits (at least 1) fit in memory while they share the reads of a file.

    It is 1 if there are no reads to share: counts are in memory, or stay there once they are read.
    """
    if not reads_anew(counts):
        return 1
    try:
        plan = plan_fit(counts, needs, memory_limit)
    except MemoryLimitError:  # the fit itself will raise the error
        return 1
    if plan.keep or plan.folder is not None:
        return 1
    _, limit = _held_and_limit(memory_limit)
    weighted = needs.per_count * min(counts.nnz, BLOCK_NONZEROS)
    of_one = _bytes_of_fit(counts, needs) + weighted + counts.shape[0] * needs.row
    return max(1, min(most, 1 + (limit - plan.peak) // of_one))


def reads_anew(counts: CountMatrix) -> bool:
    """Whether fits would read counts from a file in every pass if memory cannot hold them."""
    if not counts.from_file:
        return False
    layout = counts.layout()
    return len(layout.blocks) > 1 and not layout.kept


def check_stream(
    counts: CountMatrix, needs: Needs, memory_limit: int | float | str | None, *,
    gathered: int = 0, n_threads: int = 1,
) -> int:  # fmt: skip
    """Return the bytes that a pass block by block needs; refuse it if memory is too small.

    `needs.row` is for each lane of a block; `gathered` is the number of bytes of the output of all
    blocks.
    """
    # built first, so that its memory is part of the current memory
    of_counts = counts.layout(n_threads).buffer_bytes if counts.from_file else 0
    held, limit = _held_and_limit(memory_limit)
    n_block = int(np.diff(cut_blocks(counts.row_nnz)).max())
    peak = held + _BESIDES + of_counts + needs.shared + n_block * needs.row
    if not counts.from_file:
        peak += SLICE_BYTES * counts.nnz
    if peak + gathered > limit:
        remedy = _more(memory_limit)
        if peak <= limit:
            remedy += ", or have transform write them to a file, with out='NAME.npy'"
        raise _too_much("the loadings need", peak + gathered, limit, remedy)
    return peak + gathered


def free_bytes(memory_limit: int | float | str | None) -> int:
    """Return how many more bytes the process may use."""
    held, limit = _held_and_limit(memory_limit)
    return max(0, limit - held)


def have_room(n_entries: int, memory_limit: int | float | str | None) -> bool:
    """Whether half of the free memory holds a part of counts with this number of nonzeros."""
    return n_entries * (_ENTRY_BYTES + SLICE_BYTES) <= _SHARE * free_bytes(memory_limit)


def check_columns(
    counts: CountMatrix, needs: Needs, memory_limit: int | float | str | None, *,
    n_threads: int = 1, what: str = "the regressions of the features need",
    remedy: str = "or pass fewer features at a time",
) -> int:  # fmt: skip
    """Return the bytes that a pass over panels of columns needs; refuse it if memory is too small.

    `needs.row` is for each row, `needs.shared` for everything else except the counts. `what` begins
    the error, and `remedy` ends it.
    """
    # built first, so that its memory is part of the current memory
    layout = counts.layout(n_threads)
    held, limit = _held_and_limit(memory_limit)
    peak = held + _BESIDES + needs.shared + counts.shape[0] * needs.row
    if counts.from_file:
        peak += layout.buffer_bytes + layout.panel_bytes()
    else:
        several = len(cut_blocks(counts.row_nnz)) > 2
        peak += (SLICE_BYTES + several * _WHOLE_COLUMN_BYTES) * counts.nnz
    if peak > limit:
        raise _too_much(what, peak, limit, f"{_more(memory_limit)}, {remedy}")
    return peak


def _bytes_of_fit(counts: CountMatrix, needs: Needs) -> int:
    """Return the bytes that a fit needs beyond row arrays and counts."""
    # the current sum of `FAN_IN` blocks, and a branch of each higher level of the tree
    n_blocks = max(1, len(cut_blocks(counts.row_nnz)) - 1)
    n_sums = 1 + math.ceil(math.log(math.ceil(n_blocks / FAN_IN), FAN_IN))
    return needs.shared + needs.start + needs.scratch + n_sums * needs.sums


def _held_and_limit(memory_limit: int | float | str | None) -> tuple[int, int]:
    """Return the bytes that the process uses now, and its limit."""
    import psutil

    held = psutil.Process().memory_info().rss
    if memory_limit is not None:
        return held, parse_bytes(memory_limit)
    return held, held + free_memory()


def _more(memory_limit: int | float | str | None) -> str:
    return "give this process more memory" if memory_limit is None else "raise memory_limit"


def _too_much(what: str, peak: int, limit: int, remedy: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"{what} {readable(peak)} of memory ({peak:,} bytes) and may use {readable(limit)}: "
        f"{remedy}."
    )
