"""The shares of the workers of a cluster: consecutive partitions, one task for each share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from .runner import FAN_IN, Branch, TreeSum

# Blocks of a share at most: if its worker dies, they are processed again.
MOST_BLOCKS = 64
# How much larger a share may be than with equal shares, so that it consists of whole branches.
LONGER = 1.05


class Shares(NamedTuple):
    """Ranges of partitions, and the number of concurrent tasks of a worker that each replaces.

    A share is one task, with the kernel threads of the `n_slots` tasks that it replaces.
    """

    ranges: list[range]
    n_slots: int


def units_of(slots: Mapping[str, int]) -> tuple[int, int]:
    """Return how many concurrent tasks of a worker make a unit, and the number of units.

    All workers consist of whole units, which are as large as possible.
    """
    unit = math.gcd(*slots.values())
    return unit, sum(slots.values()) // unit


def shares_of(
    n_partitions: int, partition_size: int, slots: Mapping[str, int], least_branch: int = 1
) -> Shares:
    """Divide partitions of some blocks among workers, which run `slots` tasks at a time.

    Every worker gets one share: a task sums all its blocks, and kernels use its threads. If
    workers differ, some get several shares. Shares begin at multiples of `least_branch`
    partitions, and at larger branches of the tree if they are hardly larger for it.
    """
    unit, n_units = units_of(slots)
    n_tasks = math.ceil(n_partitions * partition_size / (n_units * MOST_BLOCKS))
    n_shares = min(n_units * n_tasks, n_partitions)
    longest, branch = LONGER * math.ceil(n_partitions / n_shares), least_branch
    while branch * FAN_IN <= n_partitions:
        branch *= FAN_IN
    while branch > least_branch:
        if max(map(len, _cut(n_partitions, n_shares, branch))) <= longest:
            break
        branch //= FAN_IN
    return Shares(_cut(n_partitions, n_shares, branch), max(1, unit // n_tasks))


def _cut(n_partitions: int, n_shares: int, branch: int) -> list[range]:
    """Cut partitions into nearly equal shares at multiples of `branch`."""
    n_branches = math.ceil(n_partitions / branch)
    n_shares = min(n_shares, n_branches)
    cuts = [branch * (i * n_branches // n_shares) for i in range(n_shares)] + [n_partitions]
    return [range(first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def most_branches(ranges: list[range], partition_size: int) -> int:
    """Return the number of branches of the tree that a share holds at most."""
    most = 1
    for share in ranges:
        tree = TreeSum(ranges[-1].stop * partition_size)
        for block in range(share.start * partition_size, share.stop * partition_size):
            first = tree.take(block)
            tree.add(Branch(block if first is None else first.first, block + 1, []))
            most = max(most, len(tree.branches))
    return most
