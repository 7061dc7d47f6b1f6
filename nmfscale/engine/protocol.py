"""The protocol between methods and the engine: steps, blocks, executors and methods.

A method of fitting a model is a `Method`. It talks to the counts, and to arrays with a row for each
sample, by steps only. A `Step` is one pass over the blocks of the counts: it is pure, can be
pickled, and names what it reads and what it makes. An `Executor` runs steps in this process or on a
cluster, so that a method does not know where the counts are.

Numbers of blocks are combined in the order of the blocks, and large sums in the fixed tree of
`TreeSum`. So the result does not depend on where and when a block was worked on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..counts.sell import SellBlock

Array = NDArray[Any]
Values = dict[str, Any]
Sums = list[Array]

# So many neighbours of the tree are added, then so many of their sums, and so on.
FAN_IN = 4


class Block(Protocol):
    """One block of the counts as a step sees it.

    Row arrays have an entry for each lane of the block; the first `n_rows` lanes are rows.
    """

    number: int
    n_rows: int
    counts: Any  # SellBlock in the order that the step reads

    def __getitem__(self, name: str) -> Array:
        """Return a row array."""

    def get(self, name: str) -> Array | None:
        """Return a row array, or None where there is none of this name."""

    def empty(self, name: str, like: Array, dtype: Any = None) -> Array:
        """Return memory for a row array that the step makes, of the shape of another."""

    def put(self, name: str, array: Array) -> None:
        """Hand over a row array that the step made, of any shape."""


class RowArrays(NamedTuple):
    """Names of the row arrays of a step.

    Attributes
    ----------
    uses : tuple of str
        What it looks at; names that do not exist are left out.
    makes : tuple of str
        What it makes.
    saves : tuple of str
        What of that a cluster writes to disk; it computes the rest again when that is needed.
    aliases : tuple of (str, str)
        What it makes that equals something else that it uses or makes.
    """

    uses: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


class Step(ABC):
    """One pass over the blocks; `run` changes nothing but the arrays that it makes, and `sums`.

    Attributes
    ----------
    reads : {"rows", "columns"} or None
        Order of the counts that `run` needs.
    shared : tuple of str
        Fields that hold large arrays: a cluster gets each of them once.
    """

    reads: ClassVar[str | None] = None
    shared: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def arrays(self) -> RowArrays:
        """Names of the row arrays that `run` uses and makes."""

    def empty_sums(self) -> Sums:
        """Return arrays to which `run` adds the share of a block."""
        return []

    @abstractmethod
    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Work on one block. Return few and small numbers: see `combine`."""


class Outcome(NamedTuple):
    """What a step found: combined numbers of all blocks, and sums over them."""

    values: Values
    sums: Sums


class Executor(ABC):
    """Runs steps over the blocks of a count matrix, and holds row arrays under names.

    Row arrays are not changed once they are made: a name may stand for another array later.

    Attributes
    ----------
    layout : Layout
        Of the counts.
    n_threads : int
        For what the method does in this process.
    folder : str or None
        Where row arrays are kept on disk, if they are.
    """

    layout: Any
    n_threads: int
    folder: str | None = None

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes of counts read from files so far."""

    @property
    def one_block(self) -> bool:
        """Whether all rows are in one block, in this process."""
        return len(self.layout.blocks) == 1

    @property
    def keeps_counts(self) -> bool:
        """Whether counts stay in the memory of this process."""
        return False

    @abstractmethod
    def whole_columns(self) -> SellBlock:
        """Return the columns of all blocks together; refused where the counts stay elsewhere."""

    @abstractmethod
    def run(self, *steps: Step) -> list[Outcome]:
        """Run steps on every block, one step after the other."""

    @abstractmethod
    def apply(self, step: Step) -> None:
        """Let a step that reads no counts make its arrays; on a cluster, once they are needed."""

    @abstractmethod
    def put(self, name: str, array: Array | Sequence[Array]) -> None:
        """Hold an array in lane order, or a list with an array for each block."""

    @abstractmethod
    def get(self, name: str) -> Array:
        """Return a row array in lane order; it must not be changed."""

    @abstractmethod
    def get_blocks(self, name: str) -> list[Array] | None:
        """Return the row array of each block, None where there is none of this name."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Let `target` stand for the array of `source`, without a copy in memory."""

    @abstractmethod
    def drop(self, *names: str) -> None:
        """Forget row arrays, and give their memory back."""


class Needs(NamedTuple):
    """Bytes that a method needs besides the counts.

    Attributes
    ----------
    row : int
        For each lane, in this process: row arrays that may be on disk.
    shared : int
        For all that is not row arrays, in this process, without sums.
    sums : int
        For the sums of one block.
    start : int
        For finding a start.
    scratch : int
        For what threads need.
    per_count : int
        For each nonzero count at hand, besides the count itself.
    task_row, task_shared : int
        For each lane, and for what is shared, in a task of a cluster.
    saved_row : int
        For each row, on disk, whenever row arrays are saved.
    """

    row: int
    shared: int
    sums: int
    start: int = 0
    scratch: int = 0
    per_count: int = 0
    task_row: int = 0
    task_shared: int = 0
    saved_row: int = 0


class Method(ABC):
    """One method of fitting one model; `nmfscale.engine.loop.fit` calls it.

    Attributes
    ----------
    record : tuple of str
        Columns of the history after iteration and seconds. The first is the objective, which
        rises; integers are named in `counted`.
    residuals : tuple of str
        Columns of which the largest vanishes at an optimum.
    residual_name, result_name : str
        What messages call the residual, and what a further fit may start from.
    gain_per_tol : float
        A fit ends where its objective gains less than this times `tol`: see `Monitor`.
    ends_with_update : bool
        Whether a fit that has converged makes one more update, of its last iteration.
    """

    record: ClassVar[tuple[str, ...]]
    residuals: ClassVar[tuple[str, ...]]
    residual_name: ClassVar[str] = "relative KKT residual"
    result_name: ClassVar[str] = "factors"
    counted: ClassVar[tuple[str, ...]] = ("bytes_read",)
    gain_per_tol: ClassVar[float] = 1e-3
    ends_with_update: ClassVar[bool] = False
    executor: Executor

    @abstractmethod
    def start(self) -> None:
        """Move to the start."""

    @abstractmethod
    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Look at the point reached so far; return its record, None before the first update."""

    @abstractmethod
    def update(self, iteration: int, ending: bool) -> None:
        """Go to the next point; `ending` if it is the last."""

    @abstractmethod
    def finish(self, settled: bool) -> dict[str, Any]:
        """Stand at the point that is handed back; return its record.

        The fit is `settled` if it has converged or is on a plateau.
        """

    def residuals_here(self) -> dict[str, Any] | None:
        """Return the residuals of the present point, where a fit that has converged would end.

        Those of a record may be of points nearby; None if they are not. Infinite where the fit
        would not end here.
        """
        return None

    @abstractmethod
    def result(self) -> dict[str, Array]:
        """Return the arrays of that point, in the order of the counts."""

    @abstractmethod
    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return numbers and arrays from which `restore` makes the same state."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays that every snapshot has, known before the start."""

    @abstractmethod
    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the state that `snapshot` saved, in a method that was not started."""


def combine(values: list[Values]) -> Values:
    """Combine the numbers of blocks, in their order.

    Of a name that begins with ``max_`` the largest is taken; other numbers are added exactly, and
    arrays block after block.
    """
    out: Values = {}
    for name, first in values[0].items():
        found = [each[name] for each in values]
        if name.startswith("max_"):
            out[name] = max(found)
        elif isinstance(first, np.ndarray):
            out[name] = first if len(found) == 1 else np.sum(found, axis=0)
        else:
            out[name] = math.fsum(found)
    return out


class TreeSum:
    """A sum in a fixed order: `FAN_IN` neighbours, then so many of these sums, and so on.

    Adding up whole branches of the tree elsewhere gives the same bits.
    """

    def __init__(self) -> None:
        self._branches: list[list[Sums]] = []

    def add(self, sums: Sums) -> None:
        """Add the next; its arrays are written over."""
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
        """Return the sum of everything."""
        rest: list[Sums] = []
        for branch in self._branches:
            together = branch + rest
            rest = [fold(together)] if together else []
        return rest[0]


def fold(items: list[Sums]) -> Sums:
    """Add neighbours from left to right, into the first."""
    first, *others = items
    for other in others:
        for into, array in zip(first, other, strict=True):
            into += array
    return first


def branches(n_blocks: int, size: int) -> Iterator[range]:
    """Cut blocks into branches of the tree; `size` is a power of `FAN_IN`."""
    for first in range(0, n_blocks, size):
        yield range(first, min(first + size, n_blocks))


class StepRunner:
    """Runs steps on neighbouring blocks and adds up what they find.

    Blocks are taken one after the other; sums are begun anew for every branch of the tree.
    """

    def __init__(self, steps: Sequence[Step], n_threads: int):
        self.steps, self.n_threads = steps, n_threads
        self.values: list[list[Values]] = [[] for _ in steps]
        self._trees = [TreeSum() for _ in steps]
        self._sums: list[Sums] = []
        self._n_added = 0

    def add(self, blocks: Sequence[Block]) -> None:
        """Run every step on the next block, given as each of them sees it."""
        if not self._n_added:
            self._sums = [step.empty_sums() for step in self.steps]
        for i, (step, block) in enumerate(zip(self.steps, blocks, strict=True)):
            self.values[i].append(step.run(block, self._sums[i], self.n_threads))
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
