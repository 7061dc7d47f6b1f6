"""Number of blocks of a task: workers share tasks evenly, and a task fits in their memory."""

from __future__ import annotations

from typing import Any

from ..counts.sizes import MemoryLimitError, readable
from .protocol import Needs
from .runner import FAN_IN
from .worker import RunConfig

# Number of partitions (each a branch of the tree and a task): maximum; minimum, so that workers
# that join later get tasks; minimum for each concurrent task of the workers.
MOST_PARTITIONS, LEAST_PARTITIONS, LEAST_PER_SLOT = 1024, 16, 2
# Partitions have more blocks only if there would be too many partitions.
MOST_BLOCKS = FAN_IN**2
# How much longer workers may take for partitions than for single blocks.
LONGER = 1.05
# Share of a worker's memory limit that is used: beyond it, Dask slows the worker down.
_SHARE = 0.6
# Memory of Python and its libraries.
_WORKER_BYTES = 250 << 20
# An index and a count.
_LEAST_BYTES = 3


def partition_size(n_blocks: int, n_slots: int) -> int:
    """Return the number of blocks of a task; workers run `n_slots` tasks at a time.

    It is a power of the tree's fan-in. Larger tasks send fewer sums, but a pass over all tasks
    should take hardly longer than with single blocks.
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


def partition_size_within(
    limits: dict[str, int | None], slots: dict[str, int], config: RunConfig, layout: Any,
    needs: Needs,
) -> int:  # fmt: skip
    """Return the number of blocks of a task that fits in the memory of workers.

    `limits` holds the memory limit of every worker in bytes, None if there is none, `slots` its
    number of concurrent tasks. Raise MemoryLimitError, with the bytes needed, if a worker has too
    little memory.
    """
    n_blocks = len(layout.blocks)
    size = partition_size(n_blocks, sum(slots.values()))
    sent = layout.nbytes // len(limits) if config.store is None else 0
    for worker, limit in limits.items():
        if limit is None:
            continue
        besides, n_tasks = _WORKER_BYTES + config.memory + sent, slots.get(worker, 1)
        besides += len(layout.row_order) * needs.whole_row
        of_threads = config.n_threads * needs.task_thread
        while (
            need := besides + n_tasks * (_task_bytes(needs, layout, size) + of_threads)
        ) > _SHARE * limit:
            if size == 1 or n_blocks * FAN_IN > size * MOST_PARTITIONS:
                raise MemoryLimitError(
                    f"worker {worker} may hold {readable(limit)}, and the work needs workers of "
                    f"{readable(need / _SHARE)} ({int(need / _SHARE):,} bytes): start them with "
                    "more memory or fewer threads, or use fewer components."
                )
            size //= FAN_IN
    return size


def _task_bytes(needs: Needs, layout: Any, size: int) -> int:
    """Return the bytes of a task: a block, row arrays of all its blocks, sums, shared arrays."""
    largest: int = layout.buffer_bytes // 2
    largest += largest // _LEAST_BYTES * needs.per_count
    lanes = size * max(block.last - block.first for block in layout.blocks)
    of_rows = largest + lanes * needs.task_row + (1 + FAN_IN) * needs.sums
    of_panel: int = layout.panel_bytes(needs.per_count) if needs.whole_row else 0
    return max(of_rows, of_panel) + needs.task_shared
