"""Sizes of partitions and shares: workers share tasks evenly, and a task fits in their memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..counts.sizes import MemoryLimitError, readable
from .protocol import Needs
from .runner import FAN_IN
from .shares import LONGER, most_branches, shares_of
from .worker import RunConfig

# Number of partitions (each a branch of the tree): maximum; minimum, so that workers
# that join later get tasks; minimum for each concurrent task of the workers.
MOST_PARTITIONS, LEAST_PARTITIONS, LEAST_PER_SLOT = 1024, 16, 2
# Partitions have more blocks only if there would be too many partitions.
MOST_BLOCKS = FAN_IN**2
# Share of a worker's memory limit that is used: beyond it, Dask slows the worker down.
SHARE = 0.6
# Memory of Python and its libraries.
_WORKER_BYTES = 250 << 20
# An index and a count.
_LEAST_BYTES = 3
# Counts that a worker without a memory limit may keep.
_KEPT_BYTES = 1 << 30


def partition_size(n_blocks: int, n_slots: int) -> int:
    """Return the number of blocks of a partition; workers run `n_slots` tasks at a time.

    It is a power of the tree's fan-in. Larger partitions have fewer files, but workers should still
    be able to share them evenly.
    """
    size, shortest = 1, -(-n_blocks // n_slots)
    while size < MOST_BLOCKS:
        larger = size * FAN_IN
        n_partitions = -(-n_blocks // larger)
        longest = -(-n_partitions // n_slots) * larger
        least = max(LEAST_PARTITIONS, LEAST_PER_SLOT * n_slots)
        if n_partitions < least or longest > LONGER * shortest:
            break
        size = larger
    while -(-n_blocks // size) > MOST_PARTITIONS:
        size *= FAN_IN
    return size


class TaskSizes(NamedTuple):
    """Sizes of partitions and shares, and the memory that they leave.

    A partition has `partition_size` blocks, and shares begin at multiples of `least_branch`
    partitions. Each worker may keep counts of `counts_memory` bytes.
    """

    partition_size: int
    least_branch: int
    counts_memory: int


def task_sizes_within(
    limits: dict[str, int | None], slots: dict[str, int], config: RunConfig, layout: Any,
    needs: Needs,
) -> TaskSizes:  # fmt: skip
    """Return the sizes of tasks that fit in the memory of workers.

    `limits` holds the memory limit of every worker in bytes, None if there is none, `slots` its
    number of concurrent tasks. Raise MemoryLimitError, with the bytes needed, if a worker has too
    little memory.
    """
    n_blocks = len(layout.blocks)
    size, least_branch = partition_size(n_blocks, sum(slots.values())), 1
    sent = layout.nbytes // len(limits) if config.store is None else 0
    besides = _WORKER_BYTES + config.memory + sent + len(layout.row_order) * needs.whole_row
    while True:
        n_partitions = math.ceil(n_blocks / size)
        shares = shares_of(n_partitions, size, slots, least_branch).ranges
        of_task = _task_bytes(needs, layout, size, most_branches(shares, size))
        of_task += config.n_threads * needs.task_thread
        needed = {
            worker: besides + slots.get(worker, 1) * of_task
            for worker, limit in limits.items() if limit is not None
        }  # fmt: skip
        left = {worker: SHARE * (limits[worker] or 0) - need for worker, need in needed.items()}
        if all(n_bytes >= 0 for n_bytes in left.values()):
            least = int(min(left.values(), default=_KEPT_BYTES))
            return TaskSizes(size, least_branch, 0 if config.store is None else least)
        if least_branch < n_partitions:
            least_branch *= FAN_IN
        elif size > 1 and n_blocks * FAN_IN <= size * MOST_PARTITIONS:
            size, least_branch = size // FAN_IN, 1
        else:
            raise _too_little(min(left, key=left.__getitem__), limits, needed)


def _too_little(
    worker: str, limits: dict[str, int | None], needed: dict[str, int]
) -> MemoryLimitError:
    limit, need = limits[worker] or 0, needed[worker]
    return MemoryLimitError(
        f"worker {worker} may hold {readable(limit)}, and the work needs workers of "
        f"{readable(need / SHARE)} ({int(need / SHARE):,} bytes): start them with more memory or "
        "fewer threads, or use fewer components."
    )


def _task_bytes(needs: Needs, layout: Any, size: int, n_branches: int) -> int:
    """Return the bytes of a task: blocks, row arrays of a partition, sums, shared arrays.

    A task that joins has the branches of `FAN_IN` tasks and their sums.
    """
    largest: int = layout.buffer_bytes // 2
    of_counts = 2 * largest + largest // _LEAST_BYTES * needs.per_count
    lanes = size * max(block.last - block.first for block in layout.blocks)
    of_rows = of_counts + lanes * needs.task_row + (1 + FAN_IN) * n_branches * needs.sums
    of_panel: int = layout.panel_bytes(needs.per_count) if needs.whole_row else 0
    return max(of_rows, of_panel) + needs.task_shared
