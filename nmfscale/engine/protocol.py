"""The protocol between methods and the engine: steps, blocks, executors and methods.

A method of fitting a model is a `Method`. It accesses the counts, and arrays with a row for each
sample, by steps only. A `Step` is one pass over the blocks of the counts: it is pure, can be
pickled, and names its inputs and outputs. A `ColumnStep` is one pass over the columns of the
counts. An `Executor` runs steps in this process or on a cluster, so that a method does not depend
on where the counts are.

The same rules hold in every executor: `check_steps` checks the declarations of steps before they
run, and `nmfscale.engine.runner` checks their results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from numpy.typing import NDArray

from ..counts.aligned import aligned_empty
from ..counts.sell import SellBlock

Array = NDArray[Any]
Values = dict[str, Any]  # numbers, arrays, or `OverLanes`
Sums = list[Array]
KnownPanel = Callable[[slice], dict[str, Array] | None]
NotePanel = Callable[[slice, dict[str, Array]], None]


class OverLanes(NamedTuple):
    """A value of a block that ``reduce`` computes from an array with an entry for each lane.

    If a cluster divides the slices that a step reads, each task returns its `lanes`, and `reduce`,
    a function of a module, gets those of all slices.
    """

    lanes: Array
    reduce: Callable[[Array], Any]


class Block(Protocol):
    """One block of the counts, with its row arrays, as a step receives it.

    Row arrays have an entry for each lane of the block; the first `n_rows` lanes are rows. A step
    gets the row arrays that it names in `RowArrays.uses`, and makes those that it names in
    `RowArrays.makes`; a block refuses any other name.
    """

    number: int
    n_rows: int
    counts: Any  # SellBlock in the order that the step reads
    made: dict[str, Array]  # row arrays that the steps of this run have made so far

    def __getitem__(self, name: str) -> Array:
        """Return a row array."""

    def get(self, name: str) -> Array | None:
        """Return a row array, or None if there is none of this name."""

    def empty(self, name: str, like: Array, dtype: Any = None) -> Array:
        """Return memory for a row array that the step makes, in the shape of another one."""

    def put(self, name: str, array: Array) -> None:
        """Store a row array of any shape that the step made."""


class RowArrays(NamedTuple):
    """Names of the row arrays of a step.

    Attributes
    ----------
    uses : tuple of str
        Names of the inputs; names that do not exist are left out.
    makes : tuple of str
        Names of the outputs, which the step makes in every block.
    saves : tuple of str
        Names of the outputs that a cluster writes to disk; it recomputes the other ones when they
        are needed.
    aliases : tuple of (str, str)
        Pairs of an output and an input or output with the same numbers. After the run both names
        refer to the latter, and the memory of the former is free.
    """

    uses: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


class Step(ABC):
    """One pass over the blocks; `run` changes only the arrays that it makes, and `sums`.

    Attributes
    ----------
    reads : {"rows", "columns"} or None
        Order of the counts that `run` needs.
    divides : bool
        Whether the slices that it reads can be in several tasks: see `of_slices`.
    shared : tuple of str
        Fields that hold large arrays: a cluster gets each of them once.
    """

    reads: ClassVar[str | None] = None
    divides: ClassVar[bool] = False
    shared: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def arrays(self) -> RowArrays:
        """Names of the row arrays that `run` uses and makes.

        An attribute of the class; or a `cached_property`, if they depend on fields of the step.
        """

    def empty_sums(self) -> Sums:
        """Return zero arrays to which `run` adds the contribution of a block."""
        return []

    @abstractmethod
    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Work on one block, and return a few numbers and small arrays: see `combine`.

        The contribution of the block must be added to each entry of `sums` in a single addition.
        The result then does not depend on the number of blocks of a task.
        """

    def of_slices(self, slices: slice) -> Step | None:
        """Return this step for some slices of every block, None if it needs whole blocks.

        A cluster with few blocks divides them. Counts are then those of the slices; if the step
        reads rows, so are row arrays with an entry for each lane, or with a field ``lane``. Sums,
        if there are any, are concatenated. Values must be `OverLanes`, or maxima.
        """
        return self if self.divides else None


class Panel(NamedTuple):
    """A panel of consecutive columns of the counts, over all rows, as a column step receives it.

    Attributes
    ----------
    lanes : slice
        The columns, as lanes; their number is a multiple of 16.
    counts : SellBlock
        These columns; indices are lanes of all rows.
    arrays : dict of str to ndarray
        The row arrays that the step uses, with an entry for each lane of all rows.
    """

    lanes: slice
    counts: SellBlock
    arrays: dict[str, Array]


class ColumnStep(ABC):
    """One pass over panels of columns, with row arrays of all rows at hand; `run` changes nothing.

    Attributes
    ----------
    shared : tuple of str
        Fields that hold large arrays: a cluster gets each of them once.
    """

    shared: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def uses(self) -> tuple[str, ...]:
        """Names of the row arrays that `run` uses; names that do not exist are left out."""

    @abstractmethod
    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Work on one panel. Return arrays with an entry for each of its lanes.

        The results for a column must not depend on the other columns of the panel.
        """


class Outcome(NamedTuple):
    """The result of a step: combined numbers of all blocks, and sums over blocks."""

    values: Values
    sums: Sums


class Executor(ABC):
    """Runs steps over the blocks of a count matrix and holds named row arrays.

    Row arrays are immutable: instead of a change, a name refers to a new array later.

    Attributes
    ----------
    layout : Layout
        Layout of the counts.
    n_threads : int
        Number of threads for the work of the method in this process.
    folder : str or None
        Where row arrays are kept on disk, None if they are in memory.
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
    def run(self, *steps: Step) -> list[Outcome]:
        """Run steps on every block, one step after the other."""

    @abstractmethod
    def run_columns(
        self, step: ColumnStep, *, stored: KnownPanel | None = None, note: NotePanel | None = None
    ) -> dict[str, Array]:
        """Run a step on every panel; return its arrays with an entry for each lane of the columns.

        Every count is read once. With ``note(lanes, arrays)``, panels are small enough to show
        progress, and it receives the arrays of each panel as soon as they are there, in any order.
        ``stored(lanes)`` returns the arrays of a panel on which the step need not run, or None.
        """

    @abstractmethod
    def stream(self, output: str, *steps: Step) -> Iterator[tuple[Any, Array]]:
        """Run steps on every block, and keep none of the row arrays that they make.

        Yield the blocks of the layout in their order, each with its row array `output`.
        """

    @abstractmethod
    def apply(self, step: Step) -> None:
        """Run a step that makes arrays; on a cluster it runs when they are needed.

        The step reads no counts and adds to no sums. The numbers that it returns are not kept.
        """

    @abstractmethod
    def put(self, name: str, array: Array | Sequence[Array]) -> None:
        """Store an array in lane order, or a sequence with an array of any shape for each block.

        A sequence may compute the array of a block each time it is needed.
        """

    def _check_put(self, name: str, array: Array | Sequence[Array]) -> None:
        """Refuse an array that does not have an entry for each lane, or each block."""
        needed, what = len(self.layout.row_order), "lanes"
        if isinstance(array, Sequence):
            needed, what = len(self.layout.blocks), "blocks"
        if len(array) != needed:
            raise ValueError(f"{name!r} has {len(array)} entries for {needed} {what}.")

    def get(self, name: str) -> Array:
        """Return a row array in lane order; it must not be changed."""
        parts, blocks = self.get_blocks(name), self.layout.blocks
        if parts is None:
            raise LookupError(f"there is no row array {name!r}.")
        kinds = {(part.dtype, part.shape[1:]) for part in parts}
        fit = (part.shape[:1] == (b.last - b.first,) for part, b in zip(parts, blocks, strict=True))
        if len(kinds) > 1 or not all(fit):
            raise ValueError(
                f"the arrays {name!r} of the blocks have no entry for each lane, or differ in type "
                "or shape: get_blocks returns them one by one."
            )
        ((dtype, shape),) = kinds
        out = aligned_empty((len(self.layout.row_order), *shape), dtype, self.folder)
        for block, part in zip(blocks, parts, strict=True):
            out[block.first : block.last] = part
        return out

    @abstractmethod
    def get_blocks(self, name: str) -> list[Array] | None:
        """Return the row array of each block, None if there is none of this name."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Let `target` refer to the array of `source`, without a copy in memory."""

    @abstractmethod
    def drop(self, *names: str) -> None:
        """Delete row arrays and release their memory."""


class Needs(NamedTuple):
    """Bytes that a method needs in addition to the counts.

    Attributes
    ----------
    row : int
        Bytes for each lane, in this process: row arrays that may be on disk.
    shared : int
        Bytes for everything except row arrays and sums, in this process.
    sums : int
        Bytes for the sums of one block.
    start : int
        Bytes for finding a start.
    scratch : int
        Bytes for temporary arrays of threads and of one block.
    per_count : int
        Bytes for each nonzero count in memory, in addition to the count itself.
    task_row, task_shared : int
        Bytes for each lane, and for shared arrays, in a task on a cluster.
    saved_row : int
        Bytes for each row on disk, whenever row arrays are saved.
    whole_row : int
        Bytes for each lane of all rows, in a worker that processes a panel of columns; 0 if columns
        are read in blocks only.
    task_thread : int
        Bytes for each thread in a task.
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
    whole_row: int = 0
    task_thread: int = 0


class Method(ABC):
    """One method of fitting one model; `nmfscale.engine.loop.fit` calls it.

    Attributes
    ----------
    record : tuple of str
        Columns of the history after iteration and seconds. The first is the objective, which is
        maximised; columns of integers are named in `counted`.
    residuals : tuple of str
        Columns whose maximum vanishes at an optimum.
    residual_name, result_name : str
        Names in messages for the residual, and for the arrays from which a further fit can start.
    gain_per_tol : float
        A fit ends if its objective gains less than this times `tol`: see `Monitor`.
    ends_with_update : bool
        Whether a converged fit takes one more update, that of its last iteration.
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
        """Evaluate the current point; return its record, None before the first update."""

    @abstractmethod
    def update(self, iteration: int, ending: bool) -> None:
        """Move to the next point; `ending` if it is the last."""

    @abstractmethod
    def finish(self, settled: bool) -> dict[str, Any]:
        """Move to the point that will be returned; return its record.

        The fit is `settled` if it has converged or is on a plateau.
        """

    def residuals_here(self) -> dict[str, Any] | None:
        """Return the residuals of the current point, at which a converged fit would end.

        Residuals of a record may be those of nearby points. None means that those of the record are
        exact for the current point. Return infinity if the fit would not end at this point.
        """
        return None

    @abstractmethod
    def result(self) -> dict[str, Array]:
        """Return the arrays of the final point, in the order of the counts."""

    @abstractmethod
    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return numbers and arrays from which `restore` rebuilds the state."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of every snapshot; they are known before the start."""

    @abstractmethod
    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the state saved by `snapshot`, in a method that has not been started."""
