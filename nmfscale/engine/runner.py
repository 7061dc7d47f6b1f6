"""Runs steps on blocks, and combines what they return: the same in this process and on a worker.

Numbers of blocks are combined in the order of the blocks, and large sums in the fixed tree of
`TreeSum`. So the result does not depend on where and when a block was processed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .protocol import Array, Block, ColumnStep, OverLanes, Panel, Step, Sums, Values

# Number of neighbours that a node of the tree adds.
FAN_IN = 4


def run_step(
    step: Step, block: Block, sums: Sums, n_threads: int, *, of_part: bool = False
) -> Values:
    """Run a step on one block, and check what it made and what it returns.

    Given part of a block, values over lanes are not reduced: see `joined_values`.
    """
    values, name = step.run(block, sums, n_threads), type(step).__name__
    for made in step.arrays.makes:
        if made not in block.made:
            raise ValueError(f"{name} did not make its row array {made!r} in every block.")
    if not of_part or step.reads is None:
        return _reduced(name, values)
    for key, value in values.items():
        if not (isinstance(value, OverLanes) or key.startswith("max_")):
            raise TypeError(
                f"{name} returns {key!r} of a part of a block: return OverLanes or a maximum, or "
                "let the step need whole blocks."
            )
    return values


def joined_values(step: Step, parts: Sequence[Values]) -> Values:
    """Return the values of a block, given those of parts of its rows or columns in their order.

    A step that reads no counts ran on the whole block in one of the tasks at least.
    """
    if step.reads is None:
        return next(filter(None, parts), {})
    values = combine([{n: v for n, v in part.items() if n[:4] == "max_"} for part in parts])
    for name, value in parts[0].items():
        if isinstance(value, OverLanes):
            lanes = np.concatenate([part[name].lanes for part in parts])
            values[name] = OverLanes(lanes, value.reduce)
    return _reduced(type(step).__name__, values)


def _reduced(step: str, values: Values) -> Values:
    return {
        name: _number_or_array(
            step, name, value.reduce(value.lanes) if isinstance(value, OverLanes) else value
        )
        for name, value in values.items()
    }


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
    if len(values) == 1:  # counts of one block, whose iterations may be short
        alone = values[0].items()
        return {n: v if isinstance(v, np.ndarray) or n[:4] == "max_" else v + 0.0 for n, v in alone}
    out: Values = {}
    for name, first in values[0].items():
        numbers = [block[name] for block in values]
        if isinstance(first, np.ndarray):
            reduce = np.max if name.startswith("max_") else np.sum
            out[name] = reduce(numbers, axis=0)
        elif name.startswith("max_"):
            out[name] = max(numbers)
        else:
            out[name] = math.fsum(numbers)
    return out


class Branch(NamedTuple):
    """The sums of blocks first:last: a branch of the tree of `TreeSum`, or its first children."""

    first: int
    last: int
    sums: Sums


class TreeSum:
    """A sum over `n_blocks` in a fixed order: a tree in which each node adds `FAN_IN` neighbours.

    Children are added from left to right, each as soon as it is complete. So the sum of some
    consecutive blocks is a few branches, that of all blocks is one, and its bits do not depend on
    where blocks were added. Arrays are overwritten, unless `in_place` is false.
    """

    def __init__(self, n_blocks: int, *, in_place: bool = True) -> None:
        self.branches: list[Branch] = []
        self.n_blocks, self._in_place = n_blocks, in_place

    def take(self, block: int) -> Branch | None:
        """Remove and return the branch to which this block can be added, if there is one."""
        if self.branches and self._are_siblings(self.branches[-1], Branch(block, block + 1, [])):
            return self.branches.pop()
        return None

    def add(self, branch: Branch) -> None:
        """Add the next branch, whose blocks follow those that were added before."""
        while self.branches and self._are_siblings(self.branches[-1], branch):
            before = self.branches.pop()
            branch = Branch(before.first, branch.last, self._fold(before.sums, branch.sums))
        self.branches.append(branch)

    def total(self) -> Sums:
        """Return the sum of all blocks."""
        ((_, _, sums),) = self.branches
        return sums

    def _are_siblings(self, before: Branch, branch: Branch) -> bool:
        """Whether a complete branch follows the first children of the same node."""
        size, is_last = 1, branch.last == self.n_blocks
        while size < self.n_blocks and branch.first % size == 0:
            # the last branch of a level may be smaller than others
            if is_last or branch.last - branch.first == size:
                node = branch.first - branch.first % (FAN_IN * size)
                if node == before.first < branch.first <= node + FAN_IN * size - size:
                    return branch.last <= node + FAN_IN * size
            size *= FAN_IN
        return False

    def _fold(self, first: Sums, other: Sums) -> Sums:
        if not self._in_place:
            return [array + more for array, more in zip(first, other, strict=True)]
        for into, array in zip(first, other, strict=True):
            into += array
        return first


def branches(n_blocks: int, size: int) -> Iterator[range]:
    """Split blocks into branches of the tree; `size` is a power of `FAN_IN`."""
    for first in range(0, n_blocks, size):
        yield range(first, min(first + size, n_blocks))


class StepRunner:
    """Runs steps on consecutive blocks, one after the other, and adds up their results.

    `trees`, one for each step, may hold the sums of earlier blocks. `of_parts`: the blocks are
    parts, see `joined_values`.
    """

    def __init__(
        self, steps: Sequence[Step], n_threads: int, trees: Sequence[TreeSum], *,
        of_parts: bool = False,
    ):  # fmt: skip
        self.steps, self.n_threads, self.trees = steps, n_threads, trees
        self._of_parts = of_parts
        self.values: list[list[Values]] = [[] for _ in steps]

    def add(self, blocks: Sequence[Block]) -> None:
        """Run every step on the next block, of which each step has its own view."""
        for i, (step, block) in enumerate(zip(self.steps, blocks, strict=True)):
            number = block.number
            branch = self.trees[i].take(number) or Branch(number, number, step.empty_sums())
            values = run_step(step, block, branch.sums, self.n_threads, of_part=self._of_parts)
            self.values[i].append(values)
            self.trees[i].add(Branch(branch.first, number + 1, branch.sums))
