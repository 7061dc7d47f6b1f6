"""Sums over blocks in a fixed tree: the same bits, wherever the blocks are added."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmfscale.engine.partition import MOST_BLOCKS, MOST_PARTITIONS, partition_size
from nmfscale.engine.runner import FAN_IN, Branch, TreeSum, branches
from nmfscale.engine.shares import LONGER, most_branches, shares_of
from nmfscale.engine.shares import MOST_BLOCKS as MOST_OF_A_SHARE

MANY = settings(max_examples=200, deadline=None, derandomize=True)


def added(sums, first, n_blocks):
    """Return the branches of the sum of consecutive arrays, as one task adds them."""
    tree = TreeSum(n_blocks)
    for number, array in enumerate(sums, first):
        begun = tree.take(number) or Branch(number, number, [np.zeros_like(array)])
        begun.sums[0][...] += array
        tree.add(Branch(begun.first, number + 1, begun.sums))
    return tree.branches


def by_recursion(sums):
    """Add arrays as the tree is defined: a node adds `FAN_IN` children from left to right."""
    while len(sums) > 1:
        nodes = (sums[i : i + FAN_IN] for i in range(0, len(sums), FAN_IN))
        sums = [sum(rest, first) for first, *rest in nodes]
    return sums[0]


@pytest.mark.parametrize("n_blocks", [1, 3, 4, 5, 16, 17, 21, 63, 64, 65, 150])
@given(st.data())
@settings(max_examples=20, deadline=None, derandomize=True)
def test_the_shares_of_tasks_do_not_matter(n_blocks, data):
    rng = np.random.default_rng(n_blocks)
    sums = [rng.normal(size=8) * 10.0 ** rng.integers(-9, 9) for _ in range(n_blocks)]
    inner = data.draw(st.sets(st.integers(1, max(1, n_blocks - 1)), max_size=9))
    cuts = sorted({0, n_blocks} | (inner if n_blocks > 1 else set()))
    tree = TreeSum(n_blocks, in_place=False)
    for first, last in pairwise(cuts):
        for branch in added(sums[first:last], first, n_blocks):
            tree.add(branch)
    assert tree.total()[0].tobytes() == by_recursion(sums).tobytes()


@given(st.integers(1, 100_000), st.integers(1, 3000))
@MANY
def test_groups_are_branches_and_keep_all_workers_busy(n_blocks, n_slots):
    size = partition_size(n_blocks, n_slots)
    groups = list(branches(n_blocks, size))
    assert [i for here in groups for i in here] == list(range(n_blocks))
    assert size in FAN_IN ** np.arange(12) and len(groups) <= MOST_PARTITIONS
    if 1 < size <= MOST_BLOCKS and n_blocks <= MOST_PARTITIONS:
        rounds = -(-len(groups) // n_slots)
        assert rounds * size <= LONGER * -(-n_blocks // n_slots)


@given(st.integers(1, 1024), st.sampled_from([1, 4, 16]), st.lists(st.integers(1, 16), min_size=1))
@MANY
def test_every_worker_gets_one_share(n_partitions, size, threads):
    slots = {str(number): n_threads for number, n_threads in enumerate(threads)}
    ranges, n_slots = shares_of(n_partitions, size, slots)
    assert [i for share in ranges for i in share] == list(range(n_partitions))
    longest, n_shares = max(map(len, ranges)), len(ranges)
    assert longest * size <= max(LONGER * MOST_OF_A_SHARE, size)
    if len(set(threads)) == 1 and n_shares <= len(threads):
        assert longest <= LONGER * -(-n_partitions // len(threads)) and n_slots == threads[0]
    # large shares are a few branches
    assert most_branches(ranges, size) <= 1 + 2 * (FAN_IN - 1) * (1 + np.log(longest) / np.log(4))
