"""Plans of fits that are not run: memory, disk and predicted seconds for layouts of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.blocks import BLOCK_NONZEROS, SLICE_BYTES, cut_blocks, panel_entries
from ..counts.panels import bytes_of_panels
from ..counts.row_ranges import RowRange
from ..counts.sell import LANES
from .division import worth_reading
from .memory import plans_of_fit
from .partition import SHARE, partition_size, task_sizes_within
from .protocol import Needs
from .runner import FAN_IN
from .session import REMEMBERED
from .shares import LONGER, shares_of
from .worker import RunConfig

Array = NDArray[Any]
# How much slower a processor is if more than two are busy: 226,440 cells, 146 million nonzero
# counts and 20 topics on 16 virtual processors, beside two of them.
CROWDED = 1.36
# Bytes per second: sums between processes of a machine, sums that are added, counts from a disk.
SENT_PER_SECOND, ADDED_PER_SECOND, READ_PER_SECOND = 1e9, 2e9, 1e9
# Seconds of this process for each task: it is made, sent, and its results are combined.
SECONDS_PER_TASK = 0.01
# A limit that no worker reaches, from which the memory that a worker needs is computed.
_UNLIMITED = 1 << 50
_planning: ContextVar[bool] = ContextVar("planning", default=False)


class _Planned(Exception):  # noqa: N818
    """Ends a fit that is only planned, with its counts and needs."""


def end_if_planned(counts: CountMatrix, needs: Needs) -> None:
    """End the fit here if `needs_of` runs it."""
    if _planning.get():
        raise _Planned(counts, needs)


def needs_of(fit: Callable[[], Any]) -> tuple[CountMatrix, Needs]:
    """Return the counts and the needs of a fit, which checks its arguments and ends there."""
    token = _planning.set(True)
    try:
        fit()
    except _Planned as planned:
        counts, needs = planned.args
        return counts, needs
    finally:
        _planning.reset(token)
    raise ValueError("this model has no iterations to plan.")


class _Block(NamedTuple):
    """The lanes of a block."""

    first: int
    last: int


class PlannedLayout:
    """What plans ask of the layout of a packed store, before there is one."""

    kept = False

    def __init__(self, counts: CountMatrix):
        cuts = cut_blocks(counts.row_nnz)
        ends = np.cumsum([0, *(LANES * -(-np.diff(cuts) // LANES))]).tolist()
        self.blocks = [_Block(*pair) for pair in zip(ends[:-1], ends[1:], strict=True)]
        self.row_order = range(ends[-1])
        self.nbytes = SLICE_BYTES * counts.nnz
        self.buffer_bytes = SLICE_BYTES * min(counts.nnz, BLOCK_NONZEROS)
        self._panel = panel_entries(counts), np.dtype(np.uint16)

    def panel_bytes(self, per_count: int = 0) -> int:
        """Return the bytes that a visit of panels needs, and `per_count` for each count in use."""
        return bytes_of_panels(*self._panel, per_count)


class RepeatedCounts(CountMatrix):
    """Counts of which the samples of others are repeated: their sizes, for plans; not the counts.

    There are as many samples as `n_nonzeros` nonzero counts need.
    """

    from_file = True

    def __init__(self, counts: CountMatrix, n_nonzeros: float):
        n = max(1, math.ceil(counts.shape[0] * n_nonzeros / max(counts.nnz, 1)))
        super().__init__((n, counts.shape[1]), first_fraction=counts.first_fraction,
                         feature_names=counts.feature_names, of_text=counts.of_text)  # fmt: skip
        self.row_nnz, self.row_totals = (
            np.resize(array, n) for array in (counts.row_nnz, counts.row_totals)
        )
        self._nnz, self._dtype = int(self.row_nnz.sum()), counts.dtype
        times = self._nnz / max(counts.nnz, 1)
        self.column_nnz = np.ceil(counts.column_nnz * times).astype(np.int64)
        self.column_totals, self.largest = counts.column_totals * times, counts.largest

    def _pieces(self, start: int, stop: int, wanted: Array | None = None) -> Iterator[RowRange]:
        raise ValueError("a plan for repeated samples cannot read counts; leave out this option.")

    def _count_values(self, above: float) -> tuple[Array, Array]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def _make_layout(self, n_threads: int) -> Any:
        return PlannedLayout(self)


class Rates(NamedTuple):
    """Processor seconds of an iteration: for each nonzero count, and besides."""

    per_count: float
    fixed: float


class LayoutPlan(NamedTuple):
    """What an iteration costs in a layout; `n_workers` is 0 for a fit in this process.

    Bytes are those of a worker, at least and with its share of the counts in memory, and of this
    process. `n_blocks` are the blocks of the largest share, if blocks are not divided. The seconds
    are those with counts in memory, where solvers can divide blocks as the default one does.
    """

    n_workers: int
    n_threads: int
    least_bytes: int
    kept_bytes: int
    driver_bytes: int
    n_blocks: int
    seconds: float


def plan_layouts(
    counts: CountMatrix, needs: Needs, rates: Rates, layouts: list[tuple[int, int]]
) -> list[LayoutPlan]:
    """Return the plan of each layout: a number of workers, 0 for this process, and of threads."""
    return [
        _of_workers(counts, needs, rates, n_workers, n_threads)
        if n_workers
        else _of_process(counts, needs, rates, n_threads)
        for n_workers, n_threads in layouts
    ]


def seconds_of_reading(counts: CountMatrix) -> float:
    """Return the seconds in which counts are read that do not stay in memory."""
    return SLICE_BYTES * counts.nnz / READ_PER_SECOND


def _of_process(counts: CountMatrix, needs: Needs, rates: Rates, n_threads: int) -> LayoutPlan:
    plans = plans_of_fit(counts, needs, n_threads=n_threads)
    n_blocks = len(cut_blocks(counts.row_nnz)) - 1
    seconds = (rates.per_count * counts.nnz + rates.fixed) * _crowded(n_threads) / n_threads
    least, kept = min(plan.peak for plan in plans), plans[0].peak
    return LayoutPlan(0, n_threads, least, kept, kept, n_blocks, seconds)


def _of_workers(
    counts: CountMatrix, needs: Needs, rates: Rates, n_workers: int, n_threads: int
) -> LayoutPlan:
    layout, slots = PlannedLayout(counts), {str(i): 1 for i in range(n_workers)}
    n_blocks = len(layout.blocks)
    size = partition_size(n_blocks, n_workers)
    n_partitions = math.ceil(n_blocks / size)
    shares = shares_of(n_partitions, size, slots).ranges
    n_rounds = math.ceil(len(shares) / n_workers)
    largest = min(n_rounds * size * max(map(len, shares)), n_blocks)
    config = RunConfig("", "", ("", "", ()), "", n_threads, "", 0)
    limits: dict[str, int | None] = dict.fromkeys(slots, _UNLIMITED)
    tasks = task_sizes_within(limits, slots, config, layout, needs)
    needed = SHARE * _UNLIMITED - tasks.counts_memory
    of_counts = layout.nbytes * largest / n_blocks
    least, kept = (
        math.ceil(n_bytes / (SHARE - REMEMBERED)) for n_bytes in (needed, needed + of_counts)
    )
    (driver,) = plans_of_fit(counts, needs, elsewhere=True)
    n_processors = n_workers * n_threads
    crowded = _crowded(n_processors)
    # half of the work is that on rows: see `division` for which blocks are divided
    uneven = largest * n_workers > LONGER * n_blocks
    rows = 1 / n_workers if uneven and size == 1 else largest / n_blocks
    loadings_bytes = len(layout.row_order) * needs.saved_row
    divided = n_workers > 1 and worth_reading(
        loadings_bytes / max(needs.sums, 1), largest * n_workers / n_blocks - 1,
        counts.nnz / counts.shape[0] / n_processors,
    )  # fmt: skip
    columns = 1 / n_workers if divided else largest / n_blocks
    seconds = rates.per_count * counts.nnz * (rows + columns) / 2 / n_threads * crowded
    seconds += rates.fixed * crowded / n_processors + 2 * len(shares) * SECONDS_PER_TASK
    seconds += _seconds_of_sums(needs.sums, 1 if divided else len(shares))
    return LayoutPlan(n_workers, n_threads, least, kept, driver.peak, largest, seconds)


def _seconds_of_sums(n_bytes: int, n_shares: int) -> float:
    """Return the seconds in which the sums of workers are added in the tree, and sent to it."""
    levels = math.ceil(math.log(n_shares, FAN_IN)) if n_shares > 1 else 0
    once = n_bytes / SENT_PER_SECOND
    return once + levels * (FAN_IN - 1) * (once + n_bytes / ADDED_PER_SECOND)


def _crowded(n_processors: int) -> float:
    return CROWDED if n_processors > 2 else 1.0
