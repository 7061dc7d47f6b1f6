"""Where things are that tasks of a fit need: named arrays, and loadings as points.

A point says how loadings are made from what is saved, so that any worker can make them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cluster.tasks import ClusterError
from ..methods.factors import Array
from ..methods.steps import Momentum, RowVisit
from ..storage.arrays import Arrays, DamagedFileError, load_arrays
from ..storage.store_blocks import StoredBlock


@dataclass(frozen=True)
class Ref:
    """Arrays under a name: in a file, or sent along with the task."""

    name: str
    path: str


def read_arrays(path: str) -> Arrays:
    """Read arrays of a fit; damage ends the fit, and says how it can be taken up again."""
    try:
        return load_arrays(path)
    except DamagedFileError as error:
        raise ClusterError(f"{error}. Fit again, or resume from a checkpoint.") from error


@dataclass(frozen=True)
class Visited:
    """Loadings of a group as a visit left them; once saved, how they were made is forgotten."""

    saved: Ref | None
    made: Move | None


@dataclass(frozen=True)
class Extrapolated:
    """Loadings that went on from `now`."""

    name: str
    now: Point
    before: Point
    momentum: Momentum


@dataclass(frozen=True)
class Changed:
    """The same loadings in another type, or with zeros restored."""

    name: str
    point: Point
    dtype: str
    zeros: bool = False


@dataclass(frozen=True)
class Move:
    """A visit of a group's rows; `kept`: which one kept the curvature it takes, or where it is."""

    name: str
    visit: RowVisit
    start: Point
    kept: Move | Ref | None = None


Point = Visited | Extrapolated | Changed


@dataclass(frozen=True)
class Group:
    """Neighbouring blocks that are worked on together."""

    number: int
    blocks: tuple[StoredBlock, ...]
    about: Ref


def file_name(name: str, group: Group) -> str:
    """Return the name of a file with arrays of a group."""
    return f"{name}-{group.number:06d}.npz"


def counts_name(block: StoredBlock, which: str) -> str:
    """Return the name under which a block's counts are sent."""
    return f"counts-{block.number}-{which}"


def numbered(values: list[Array]) -> Arrays:
    """Return one array for each block under its number in the group."""
    return {f"L_{i}": array for i, array in enumerate(values)}
