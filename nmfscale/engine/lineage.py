"""Where the row arrays of a fit on a cluster are: saved in a file, or made by a step.

A row array that is not saved is a step and what it uses, so that any worker can make it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..cluster.tasks import ClusterError
from ..storage.arrays import Arrays, DamagedFileError, load_arrays
from ..storage.store_blocks import StoredBlock
from .protocol import Array, Step


@dataclass(frozen=True)
class Ref:
    """Arrays under a name: in a file, or sent along with the task under the path of the file."""

    name: str
    path: str


@dataclass(frozen=True, eq=False)
class Saved:
    """The row array of a partition in a file; how it was made is forgotten."""

    ref: Ref


@dataclass(frozen=True, eq=False)
class StepRun:
    """One step on one partition, and the row arrays that it uses; `step` has refs where it shares.

    Its name tells it from all others of a fit.
    """

    name: str
    step: Step
    inputs: dict[str, ArrayRef]


@dataclass(frozen=True, eq=False)
class Output:
    """The row array of this name that a step makes."""

    run: StepRun
    name: str


ArrayRef = Saved | Output


@dataclass(frozen=True)
class Partition:
    """Neighbouring blocks that are worked on together."""

    number: int
    blocks: tuple[StoredBlock, ...]

    def file_name(self, name: str) -> str:
        """Return the name of a file with arrays of this partition."""
        return f"{name}-{self.number:06d}.npz"


def counts_name(block: StoredBlock, order: str) -> str:
    """Return the name under which a block's counts are sent."""
    return f"counts-{block.number}-{order}"


def numbered(arrays: list[Array]) -> Arrays:
    """Name the array of each block by its number in the partition."""
    return {f"block_{i}": array for i, array in enumerate(arrays)}


def in_order(arrays: Arrays) -> list[Any]:
    """Undo `numbered`."""
    return [arrays[f"block_{i}"] for i in range(len(arrays))]


def read_arrays(path: str) -> Arrays:
    """Read arrays of a fit; damage ends the fit, and says how it can be resumed."""
    try:
        return load_arrays(path)
    except DamagedFileError as error:
        raise ClusterError(f"{error}. Fit again, or resume from a checkpoint.") from error
