"""How many blocks make a task, so that workers share them well and can hold them."""

from __future__ import annotations

from typing import Any

from .. import kernels
from ..counts.sell import LANES
from ..counts.sizes import MemoryLimitError, readable
from ..methods.newton import SHARED_FROM
from ..methods.steps import FAN_IN
from .worker import Setting

# Groups of blocks, each a branch of the tree and a task: at most; at least, so that workers that
# join later find something to do; and at least for each task that the workers do at a time.
MOST_GROUPS, LEAST_GROUPS, LEAST_PER_SLOT = 1024, 16, 2
# Groups have more blocks only where there would be too many groups.
MOST_BLOCKS = FAN_IN**2
# How much longer workers may take to work through groups than through single blocks.
LONGER = 1.05
# Of what a worker may hold, so much is used: Dask slows it down beyond.
_SHARE = 0.6
# Python and its libraries.
_WORKER_BYTES = 250 << 20


def group_size(n_blocks: int, n_slots: int) -> int:
    """Return how many blocks make a task: the more, the fewer sums travel.

    Parameters
    ----------
    n_blocks : int
    n_slots : int
        Tasks that all workers do at a time.

    Returns
    -------
    int
        A power of the tree's fan-in; a whole round takes hardly longer than with single blocks.

    Examples
    --------
    >>> from nmfscale.engine.partition import group_size
    >>> group_size(16, 2), group_size(64, 2), group_size(64, 16), group_size(10_000, 20)
    (1, 4, 1, 16)
    """
    size, shortest = 1, -(-n_blocks // n_slots)
    while size < MOST_BLOCKS:
        larger = size * FAN_IN
        n_groups = -(-n_blocks // larger)
        longest = -(-n_groups // n_slots) * larger
        least = max(LEAST_GROUPS, LEAST_PER_SLOT * n_slots)
        if n_groups < least or longest > LONGER * shortest:
            break
        size = larger
    while -(-n_blocks // size) > MOST_GROUPS:
        size *= FAN_IN
    return size


def group_size_within(
    limits: dict[str, int | None], slots: dict[str, int], setting: Setting, layout: Any
) -> int:
    """Return how many blocks make a task that workers can hold.

    Parameters
    ----------
    limits : dict of str to int or None
        Bytes that every worker that takes part may hold; None where there is no limit.
    slots : dict of str to int
        Tasks that every worker does at a time.
    setting : Setting
    layout : Layout

    Raises
    ------
    MemoryLimitError
        If a worker cannot hold what it must: before any work starts, with the bytes needed.
    """
    n_blocks = len(layout.blocks)
    size = group_size(n_blocks, sum(slots.values()))
    sent = layout.nbytes // len(limits) if setting.store is None else 0
    for worker, limit in limits.items():
        if limit is None:
            continue
        besides, n_tasks = _WORKER_BYTES + setting.memory + sent, slots.get(worker, 1)
        while (need := besides + n_tasks * _task_bytes(setting, layout, size)) > _SHARE * limit:
            if size == 1 or n_blocks * FAN_IN > size * MOST_GROUPS:
                raise MemoryLimitError(
                    f"worker {worker} may hold {readable(limit)}, and the fit needs workers of "
                    f"{readable(need / _SHARE)} ({int(need / _SHARE):,} bytes): start them with "
                    "more memory or fewer threads, or fit fewer components."
                )
            size //= FAN_IN
    return size


def _task_bytes(setting: Setting, layout: Any, size: int) -> int:
    """Bytes that a task holds: a block, loadings of all of its blocks, sums and factors."""
    largest: int = layout.buffer_bytes // 2
    K, stride = setting.n_components, kernels.row_stride(setting.n_components)
    lanes = size * max(block.last - block.first for block in layout.blocks)
    columns, own = -(-layout.shape[1] // LANES) * LANES, K < SHARED_FROM
    wanted = kernels.SUM_FULL if own else kernels.SUM_DIAGONAL
    sums = columns * 8 * kernels.statistics_size(K, wanted)
    # two points, where they lead, what was there before; the same of priors; curvature
    rows = lanes * (8 * stride * 8 + own * kernels.packed_size(K) * 2)
    return largest + rows + (1 + FAN_IN) * sums + 3 * columns * stride * 8
