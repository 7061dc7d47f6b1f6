"""Sums over blocks in a fixed tree: the same bits, however many blocks make a task."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmfscale.engine.partition import LONGER, MOST_BLOCKS, MOST_PARTITIONS, partition_size
from nmfscale.engine.runner import FAN_IN, TreeSum, branches, fold

MANY = settings(max_examples=200, deadline=None, derandomize=True)


def added(sums):
    """Add arrays as one process does."""
    tree = TreeSum()
    for each in sums:
        tree.add([each.copy()])
    return tree.result()[0]


def level_by_level(sums):
    """Add arrays as tasks do, of which each has the results of at most `FAN_IN`."""
    while len(sums) > 1:
        sums = [
            fold([[each.copy()] for each in sums[i : i + FAN_IN]])[0]
            for i in range(0, len(sums), FAN_IN)
        ]
    return sums[0]


@pytest.mark.parametrize("size", [1, FAN_IN, FAN_IN**2, FAN_IN**3])
@pytest.mark.parametrize("n_blocks", [1, 3, 4, 5, 16, 17, 21, 63, 64, 65, 150])
def test_the_size_of_tasks_does_not_matter(n_blocks, size):
    rng = np.random.default_rng(n_blocks)
    sums = [rng.normal(size=8) * 10.0 ** rng.integers(-9, 9) for _ in range(n_blocks)]
    groups = [[sums[i] for i in here] for here in branches(n_blocks, size)]
    found = level_by_level([added(group) for group in groups])
    assert found.tobytes() == added(sums).tobytes()


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
