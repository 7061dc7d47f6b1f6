"""Lineage of the row arrays of a fit on a cluster: saved in a file, or computed by a step.

A row array that is not saved is represented by a step and its inputs, from which any worker can
recompute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cluster.tasks import ClusterError
from ..counts.aligned import aligned_empty
from ..counts.cached import cached_property
from ..storage.arrays import Arrays, DamagedFileError, load_arrays
from ..storage.store_blocks import StoredBlock
from .protocol import Array, Step


@dataclass(frozen=True)
class Ref:
    """Reference to named arrays: in a file, or sent with the task under the path of the file."""

    name: str
    path: str


@dataclass(frozen=True, eq=False)
class Saved:
    """A row array of a partition that is saved in a file; its lineage is dropped.

    If several tasks made parts of a block, each has a file.
    """

    refs: tuple[Ref, ...]


@dataclass(frozen=True, eq=False)
class StepRun:
    """One run of a step on a partition, with its inputs; shared arrays of `step` are references.

    Its name is unique in a fit. Its outputs can be recomputed from saved arrays by at most `depth`
    runs one after the other of steps that have arrays to save.
    """

    name: str
    step: Step
    inputs: dict[str, ArrayRef]

    @cached_property
    def depth(self) -> int:
        """Length of the longest chain of runs, this one included, of steps with arrays to save."""
        own = int(bool(self.step.arrays.saves))
        return own + max((_depth(array) for array in self.inputs.values()), default=0)


@dataclass(frozen=True, eq=False)
class Output:
    """A named output of a run of a step."""

    run: StepRun
    name: str

    @property
    def file_name(self) -> str:
        """The name of its file, without the number of the partition."""
        return f"{self.run.name}-{self.name}"


ArrayRef = Saved | Output


def _depth(array: ArrayRef) -> int:
    return array.run.depth if isinstance(array, Output) else 0


def outputs_to_save(runs: Sequence[StepRun]) -> dict[str, Output]:
    """Return the row arrays that steps save, by their names."""
    return {name: Output(run, name) for run in runs for name in run.step.arrays.saves}


def unsaved_inputs(runs: Sequence[StepRun], deepest: int) -> dict[str, Output]:
    """Return the inputs of runs that are not saved, if one has a lineage of `deepest` runs.

    All of them are: otherwise the lineage of their outputs would be as long.
    """
    readers = [run for run in runs if run.step.arrays.saves]
    inputs = {
        name: array
        for run in readers
        for name, array in run.inputs.items()
        if isinstance(array, Output) and array.run not in runs
    }
    return inputs if max(map(_depth, inputs.values()), default=0) >= deepest else {}


@dataclass(frozen=True)
class Partition:
    """Consecutive blocks that one task processes."""

    number: int
    blocks: tuple[StoredBlock, ...]

    def file_name(self, name: str) -> str:
        """Return a file name for arrays of this partition."""
        return f"{name}-{self.number:06d}.npz"


def counts_name(block: StoredBlock, order: str) -> str:
    """Return the name under which the counts of a block are sent."""
    return f"counts-{block.number}-{order}"


def panel_name(panel: slice) -> str:
    """Return the name under which the counts of a panel of columns are sent."""
    return f"counts-panel-{panel.start}-{panel.stop}"


def numbered(arrays: list[Array]) -> Arrays:
    """Return a dict of the arrays of blocks, keyed by position in the partition."""
    return {f"block_{i}": array for i, array in enumerate(arrays)}


def joined_parts(parts: list[list[Array]]) -> list[Array]:
    """Return the arrays of blocks, given those of the files of a `Saved`."""
    if len(parts) == 1:
        return parts[0]
    arrays = [array for (array,) in parts]
    n_lanes = sum(map(len, arrays))
    out = aligned_empty((n_lanes, *arrays[0].shape[1:]), arrays[0].dtype)
    return [np.concatenate(arrays, out=out)]


def in_order(arrays: Arrays) -> list[Any]:
    """Return a list of arrays in the order of blocks: the inverse of `numbered`."""
    return [arrays[f"block_{i}"] for i in range(len(arrays))]


def read_arrays(path: str) -> Arrays:
    """Read arrays of a fit; if they are damaged, raise an error that says how to resume."""
    try:
        return load_arrays(path)
    except DamagedFileError as error:
        raise ClusterError(f"{error}. Start again, or resume a fit from a checkpoint.") from error


def fetch(layout: Any, name: str) -> Any:
    """Return the object that a pool sends under a name: counts, or arrays from a driver's file.

    Names of counts are those of `counts_name` and `panel_name`; names of arrays are paths of their
    files.
    """
    if name.startswith("counts-panel-"):
        return layout.panel(slice(*map(int, name.split("-")[2:])))
    if name.startswith("counts-"):
        _, number, order = name.split("-")
        return layout.file.read(layout.blocks[int(number)], order)
    return read_arrays(name)
