"""Runs steps on blocks, and combines what they return: the same in this process and on a worker.

Numbers of blocks are combined in the order of the blocks, and large sums in the fixed tree of
`TreeSum`. So the result does not depend on where and when a block was processed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .protocol import Array, Block, ColumnStep, Panel, Step, Sums, Values

# Number of neighbours that a node of the tree adds.
FAN_IN = 4


def run_step(step: Step, block: Block, sums: Sums, n_threads: int) -> Values:
    """Run a step on one block, and check what it made and what it returns."""
    values, name = step.run(block, sums, n_threads), type(step).__name__
    for made in step.arrays.makes:
        if made not in block.made:
            raise ValueError(f"{name} did not make its row array {made!r} in every block.")
    return {key: _number_or_array(name, key, value) for key, value in values.items()}


def _number_or_array(step: str, name: str, value: Any) -> Any:
    """Return a number as Python's own, which is the same after it was sent or saved."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value
    value = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if not isinstance(value, int | float):
        raise TypeError(f"{step} returns {name}={value!r}: a step returns numbers and arrays.")
    return value


def run_column_step(step: ColumnStep, panel: Panel, n_threads: int) -> dict[str, Array]:
    """Run a step on one panel of columns, and check what it returns."""
    outputs, n_lanes = step.run(panel, n_threads), panel.lanes.stop - panel.lanes.start
    for name, array in outputs.items():
        if len(array) != n_lanes:
            raise ValueError(
                f"{type(step).__name__} returns {name!r}, which has no entry for each lane of its "
                "panel."
            )
    return outputs


def join_panels(panels: list[dict[str, Array]]) -> dict[str, Array]:
    """Return the arrays of all columns, from those of the panels in their order."""
    if len(panels) == 1:
        return panels[0]
    return {name: np.concatenate([panel[name] for panel in panels]) for name in panels[0]}


def combine(values: list[Values]) -> Values:
    """Combine the numbers of blocks, in the order of blocks.

    For names that begin with ``max_`` the maximum is taken; other numbers are added exactly, and
    arrays block after block, entry by entry.
    """
    out: Values = {}
    for name, first in values[0].items():
        numbers = [block[name] for block in values]
        if isinstance(first, np.ndarray):
            reduce = np.max if name.startswith("max_") else np.sum
            out[name] = first if len(numbers) == 1 else reduce(numbers, axis=0)
        elif name.startswith("max_"):
            out[name] = max(numbers)
        else:
            out[name] = math.fsum(numbers)
    return out


class TreeSum:
    """A sum in a fixed order: a tree in which each node adds `FAN_IN` neighbours.

    If whole branches of the tree are added elsewhere, the bits are the same.
    """

    def __init__(self) -> None:
        self._branches: list[list[Sums]] = []

    def add(self, sums: Sums) -> None:
        """Add the next term; its arrays are overwritten."""
        self._put(sums, 0)

    def _put(self, sums: Sums, level: int) -> None:
        if level == len(self._branches):
            self._branches.append([])
        branch = self._branches[level]
        branch.append(sums)
        if len(branch) == FAN_IN:
            self._branches[level] = []
            self._put(fold(branch), level + 1)

    def result(self) -> Sums:
        """Return the total."""
        rest: list[Sums] = []
        for branch in self._branches:
            together = branch + rest
            rest = [fold(together)] if together else []
        return rest[0]


def fold(items: list[Sums]) -> Sums:
    """Add neighbours from left to right, in place of the first."""
    first, *others = items
    for other in others:
        for into, array in zip(first, other, strict=True):
            into += array
    return first


def branches(n_blocks: int, size: int) -> Iterator[range]:
    """Split blocks into branches of the tree; `size` is a power of `FAN_IN`."""
    for first in range(0, n_blocks, size):
        yield range(first, min(first + size, n_blocks))


class StepRunner:
    """Runs steps on consecutive blocks and adds up their results.

    Blocks are processed one after the other; every branch of the tree starts new sums.
    """

    def __init__(self, steps: Sequence[Step], n_threads: int):
        self.steps, self.n_threads = steps, n_threads
        self.values: list[list[Values]] = [[] for _ in steps]
        self._trees = [TreeSum() for _ in steps]
        self._sums: list[Sums] = []
        self._n_added = 0

    def add(self, blocks: Sequence[Block]) -> None:
        """Run every step on the next block, of which each step has its own view."""
        if not self._n_added:
            self._sums = [step.empty_sums() for step in self.steps]
        for i, (step, block) in enumerate(zip(self.steps, blocks, strict=True)):
            self.values[i].append(run_step(step, block, self._sums[i], self.n_threads))
        self._n_added += 1
        if self._n_added == FAN_IN:
            self._close()

    def _close(self) -> None:
        for tree, sums in zip(self._trees, self._sums, strict=True):
            tree.add(sums)
        self._n_added = 0

    def sums(self) -> list[Sums]:
        """Return the sums of every step."""
        if self._n_added:
            self._close()
        return [tree.result() for tree in self._trees]
