"""Division of blocks among workers where whole blocks are too few, or sums larger than loadings.

In a pass over rows, each task has parts of the rows of some blocks, with about equal work. In a
pass over columns, each task has a range of the columns of all blocks. It adds up its sums in the
tree of all blocks, so that workers send the sums once together, not once each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..counts.sell import LANES
from .lineage import Output, Partition, Ref, StepRun
from .protocol import Array, Outcome, Step, Values
from .runner import combine, joined_values
from .shares import LONGER, MOST_BLOCKS, units_of
from .worker import Found, Work

# Work on a slice beside its counts, in counts of each lane: a step of its rows, or adding its sums.
_BESIDES = {"rows": 16, "columns": 4}
# Columns are divided if loadings have at most this many times the bytes of the sums: every task
# reads them all, instead of sending all sums.
MOST_LOADINGS = 2.0
# A worker reads the loadings of a sample, at 1 GB/s, in the time of a processor's work on so many
# counts in a pass.
COUNTS_OF_READ = 5

Saved = list[dict[str, list[Ref]]]


class DividedRun(NamedTuple):
    """A run of steps on parts of blocks.

    `works` are those of each task, `labels` name its rows or columns. `join(found)`, given the
    result of each task in their order, returns the outcomes of the steps, and the files of the row
    arrays of each partition.
    """

    labels: list[str]
    works: list[tuple[Work, ...]]
    join: Callable[[list[Found]], tuple[list[Outcome], Saved]]


class Division:
    """Divides the blocks of a packed store; all loadings have `loadings_bytes`."""

    def __init__(self, layout: Any, partitions: list[Partition], loadings_bytes: int):
        self._layout, self._partitions = layout, partitions
        self._loadings_bytes, self._most_sums = loadings_bytes, 0
        self._work: dict[str, list[Array]] = {}

    def divides_rows(self, steps: Sequence[Step], longest: int, slots: Mapping[str, int]) -> bool:
        """Whether to divide rows: not if the `longest` share of whole blocks is hardly longer."""
        if self._are_even(longest, units_of(slots)[1]) or not _divides(steps, "rows"):
            return False
        return len(self._partitions) == len(self._layout.blocks)

    def divides_columns(
        self, steps: Sequence[Step], longest: int, slots: Mapping[str, int]
    ) -> bool:
        """Whether to divide columns: see `worth_reading`; `longest` is as in `divides_rows`.

        The largest sums so far decide: workers would have to read and keep counts in both forms if
        a fit went back and forth.
        """
        n_units = units_of(slots)[1]
        if n_units == 1 or not _divides(steps, "columns"):
            return False
        n_bytes = sum(array.nbytes for step in steps for array in step.empty_sums())
        self._most_sums = max(self._most_sums, n_bytes, 1)
        longer = longest * n_units / len(self._partitions) - 1
        each = LANES * sum(map(np.sum, self._work_of("columns"))) / len(self._layout.row_order)
        return worth_reading(
            self._loadings_bytes / self._most_sums, longer, each / sum(slots.values())
        )

    def rows(
        self, steps: Sequence[Step], runs: list[list[StepRun]], saves: list[dict[str, Output]],
        slots: Mapping[str, int],
    ) -> DividedRun:  # fmt: skip
        """Divide rows; all row arrays that steps make of parts are saved."""
        makes = [
            {
                name: Output(run, name)
                for run in own
                if run.step.reads
                for name in run.step.arrays.makes
            }
            for own in runs
        ]
        parts = self._parts_of_rows(units_of(slots)[1])
        works = [
            tuple(
                Work(
                    self._partitions[block], tuple(runs[block]), makes[block], slices,
                    owns=slices.start == 0,
                )
                for block, slices in of_task
            )
            for of_task in parts
        ]  # fmt: skip

        labels = [
            f"rows {of_task[0].partition.blocks[0].start}:{of_task[-1].partition.blocks[-1].stop}"
            for of_task in works
        ]

        def join(found: list[Found]) -> tuple[list[Outcome], Saved]:
            values: list[list[list[Values]]] = [[] for _ in runs]
            saved: Saved = [{name: [] for name in of_block} for of_block in makes]
            for of_task, result in zip(parts, found, strict=True):
                for i, (block, _) in enumerate(of_task):
                    values[block].append([of_step[i] for of_step in result.values])
                    for name, ref in result.saved[i].items():
                        saved[block][name].append(ref)  # type: ignore[arg-type]
            outcomes = []
            for at, step in enumerate(steps):
                of_blocks = [joined_values(step, [part[at] for part in parts]) for parts in values]
                outcomes.append(Outcome(combine(of_blocks), []))
            return outcomes, saved

        return DividedRun(labels, works, join)

    def columns(
        self, steps: Sequence[Step], runs: list[list[StepRun]], saves: list[dict[str, Output]],
        slots: Mapping[str, int],
    ) -> DividedRun:  # fmt: skip
        """Divide columns; the first task saves."""
        n_blocks, n_units = len(self._layout.blocks), units_of(slots)[1]
        work = np.sum(self._work_of("columns"), axis=0)
        ranges = cut_evenly(work, n_units * -(-n_blocks // (n_units * MOST_BLOCKS)))
        works = [
            tuple(
                Work(
                    partition, tuple(runs[i]), {} if number else saves[i], slices,
                    owns=i % len(ranges) == number,
                )
                for i, partition in enumerate(self._partitions)
            )
            for number, slices in enumerate(ranges)
        ]  # fmt: skip

        def join(found: list[Found]) -> tuple[list[Outcome], Saved]:
            outcomes = []
            for i, step in enumerate(steps):
                parts = zip(*(of_task.values[i] for of_task in found), strict=True)
                values = [joined_values(step, of_block) for of_block in parts]
                ranges = [of_task.sums[i][0].sums for of_task in found] if step.reads else []
                sums = [np.concatenate(arrays) for arrays in zip(*ranges, strict=True)]
                outcomes.append(Outcome(combine(values), sums))
            saved: Any = [
                {name: [ref] for name, ref in of_partition.items()}
                for of_partition in found[0].saved
            ]
            return outcomes, saved

        labels = [f"columns in lanes {s.start * LANES}:{s.stop * LANES}" for s in ranges]
        return DividedRun(labels, works, join)

    def _are_even(self, longest: int, n_units: int) -> bool:
        """Whether the longest share of whole blocks is hardly longer than equal shares."""
        n_blocks, n_partitions = len(self._layout.blocks), len(self._partitions)
        return longest * (n_blocks / n_partitions) <= LONGER * n_blocks / n_units

    def _parts_of_rows(self, n_tasks: int) -> list[list[tuple[int, slice]]]:
        """Return the blocks of each task, with some slices of each."""
        work = self._work_of("rows")
        ends = np.cumsum([0, *map(len, work)]).tolist()
        tasks = []
        for task in cut_evenly(np.concatenate(work), n_tasks):
            parts = []
            for block, (first, last) in enumerate(pairwise(ends)):
                begin, end = max(task.start, first), min(task.stop, last)
                if begin < end:
                    parts.append((block, slice(begin - first, end - first)))
            tasks.append(parts)
        return tasks

    def _work_of(self, order: str) -> list[Array]:
        """Return the work on each slice of every block."""
        if order not in self._work:
            file, blocks = self._layout.file, self._layout.blocks
            offsets = [file.read_offset(block, order) for block in blocks]
            self._work[order] = [np.diff(offset) + _BESIDES[order] for offset in offsets]
        return self._work[order]


def worth_reading(beside_sums: float, longer: float, counts_each: float) -> bool:
    """Whether it is worthwhile that all workers read all loadings, so that columns can be divided.

    `beside_sums` are the bytes of the loadings as a multiple of those of the sums, `longer` is by
    how much the longest share of whole blocks exceeds an equal share (0.1: a tenth), `counts_each`
    are nonzero counts of a sample for each processor.
    """
    return beside_sums <= MOST_LOADINGS or longer * counts_each >= COUNTS_OF_READ


def _divides(steps: Sequence[Step], order: str) -> bool:
    """Whether all steps that read counts read this order, and do not need whole blocks."""
    readers = [step for step in steps if step.reads is not None]
    if not readers or any(step.reads != order for step in readers):
        return False
    if any(step.of_slices(slice(0, 1)) is None for step in readers):
        return False
    made = {name for step in readers for name in step.arrays.makes}
    if order == "columns":
        return not made and not any(step.empty_sums() for step in steps if step.reads is None)
    # rows that are made in parts are whole only after the run
    uses = {name for step in steps if step.reads is None for name in step.arrays.uses}
    return not made & uses and not any(step.empty_sums() for step in steps)


def first_stage(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the first steps that read counts in one order.

    The next step reads the other order, or uses row arrays that they make.
    """
    order, made = None, set[str]()
    for i, step in enumerate(steps):
        if order is not None and (step.reads not in (None, order) or made & {*step.arrays.uses}):
            return steps[:i]
        if step.reads is not None:
            order, made = step.reads, made | {*step.arrays.makes}
    return steps


def cut_evenly(work: Array, n_parts: int) -> list[slice]:
    """Cut slices into at most `n_parts` ranges with about equal work; none is empty."""
    ends = np.cumsum(work)
    wanted = np.arange(1, n_parts) * (ends[-1] / n_parts)
    # the cut nearest to the wanted one
    cuts = np.searchsorted(ends - work / 2, wanted)
    edges = np.unique([0, *cuts, len(work)]).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]
