"""The executor for this process, with counts in memory or read from a file block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..counts.aligned import aligned_empty
from ..counts.panels import panel_slices
from ..counts.sell import LANES, SellBlock, lanes_of
from .checks import check_step, check_steps
from .protocol import (
    Array,
    ColumnStep,
    Executor,
    KnownPanel,
    NotePanel,
    Outcome,
    Panel,
    RowArrays,
    Step,
)
from .runner import StepRunner, TreeSum, combine, join_panels, run_column_step, run_step

# Number of spare row arrays whose memory is kept for new ones of the same shape: a fit that returns
# to its best point drops three at once and needs them again soon after.
_MOST_SPARE = 3
# Entries of a small panel, and least number of its slices for each thread.
_SMALL_PANEL, _SLICES_A_THREAD = 1 << 21, 4


class _RowArray:
    """A row array: views of one array in lane order, or a separate array for each block."""

    def __init__(self, blocks: Sequence[Array], whole: Array | None = None):
        self.blocks, self.whole = blocks, whole


class LocalBlock:
    """One block as a step sees it, in this process or on a worker; `place` is its description.

    `for_step` returns the view of the block for a step. Arrays that steps make are in new memory,
    or in the memory that ``room(name, like, dtype)`` returns.
    """

    def __init__(
        self, number: int, place: Any, arrays: dict[str, Array],
        room: Callable[[str, Array, Any], Array] | None = None,
    ):  # fmt: skip
        self.number, self.n_rows = number, place.stop - place.start
        self.counts: SellBlock | None = None
        self.made: dict[str, Array] = {}
        self._n_lanes, self._known, self._room = place.last - place.first, arrays, room
        self._step, self._arrays = "no step", RowArrays()

    def for_step(self, step: Step, counts: SellBlock | None) -> LocalBlock:
        """Return the same block, with the same arrays and these counts."""
        block = LocalBlock.__new__(LocalBlock)
        block.__dict__.update(self.__dict__)
        block.counts, block._step, block._arrays = counts, type(step).__name__, step.arrays
        return block

    def __getitem__(self, name: str) -> Array:
        """Return a row array."""
        array = self.get(name)
        if array is None:
            raise LookupError(f"{self._step} needs a row array {name!r}, and there is none.")
        return array

    def get(self, name: str) -> Array | None:
        """Return a row array, or None."""
        if name in self._arrays.uses and name not in self.made:
            return self._known.get(name)
        if name not in (*self._arrays.uses, *self._arrays.makes):
            raise ValueError(f"{self._step} looks at {name!r}, which its `uses` do not name.")
        return self.made.get(name)

    def empty(self, name: str, like: Array, dtype: Any = None) -> Array:
        """Return memory for a row array."""
        dtype = dtype or like.dtype
        if len(like) != self._n_lanes:
            raise ValueError(
                f"{self._step} makes {name!r} with {len(like)} entries, not one for each lane of "
                "the block: arrays of another shape are made with put."
            )
        if self._room is None:
            array = aligned_empty(like.shape, dtype)
        else:
            array = self._room(name, like, dtype)
        self.put(name, array)
        return array

    def put(self, name: str, array: Array) -> None:
        """Store a row array that a step made."""
        if name not in self._arrays.makes:
            raise ValueError(f"{self._step} makes {name!r}, which its `makes` do not name.")
        self.made[name] = array


class LocalExecutor(Executor):
    """Runs steps in this process.

    Row arrays are in memory or, with `folder`, in unnamed files there.
    """

    def __init__(self, layout: Any, n_threads: int, folder: str | None = None):
        self.layout, self.n_threads, self.folder = layout, n_threads, folder
        self._arrays: dict[str, _RowArray] = {}
        self._spare: list[Array] = []

    @property
    def bytes_read(self) -> int:
        """Bytes of counts read from files so far."""
        return int(self.layout.bytes_read)

    @property
    def keeps_counts(self) -> bool:
        """Whether counts stay in memory."""
        return bool(self.layout.kept)

    def put(self, name: str, array: Array | Sequence[Array]) -> None:
        """Store an array in lane order, or a list with an array for each block."""
        self._check_put(name, array)
        self._forget(name)
        if isinstance(array, Sequence):
            self._arrays[name] = _RowArray(array)
            return
        parts = [array[block.first : block.last] for block in self.layout.blocks]
        self._arrays[name] = _RowArray(parts, array)

    def get(self, name: str) -> Array:
        """Return a row array in lane order."""
        array = self._arrays.get(name)
        return super().get(name) if array is None or array.whole is None else array.whole

    def get_blocks(self, name: str) -> list[Array] | None:
        """Return the row array of each block."""
        return list(self._arrays[name].blocks) if name in self._arrays else None

    def copy(self, source: str, target: str) -> None:
        """Let two names refer to the same array."""
        array = self._arrays[source]
        if array is not self._arrays.get(target):
            self._forget(target)
            self._arrays[target] = array

    def drop(self, *names: str) -> None:
        """Delete row arrays and release all spare memory."""
        for name in names:
            self._forget(name)
        self._spare.clear()

    def _forget(self, name: str) -> None:
        gone = self._arrays.pop(name, None)
        if gone is None or gone.whole is None or gone in self._arrays.values():
            return
        self._spare.append(gone.whole)
        del self._spare[:-_MOST_SPARE]

    def apply(self, step: Step) -> None:
        """Run a step that only makes arrays."""
        check_step(step, "apply")
        self.run(step)

    def run(self, *steps: Step) -> list[Outcome]:
        """Run steps on every block."""
        check_steps(steps)
        self._forget_unused(steps)
        whole: dict[str, Array] = {}
        trees = [TreeSum(len(self.layout.blocks)) for _ in steps]
        runner, made = StepRunner(steps, self.n_threads, trees), []
        for block in self._blocks(steps, whole):
            runner.add(block)
            made.append(block[0].made)
        for name in made[0]:
            parts = [arrays[name] for arrays in made]
            self._forget(name)
            self._arrays[name] = _RowArray(parts, whole.get(name))
        for step in steps:
            for name, source in step.arrays.aliases:
                self.copy(source, name)
        pairs = zip(runner.values, trees, strict=True)
        return [Outcome(combine(values), tree.total()) for values, tree in pairs]

    def run_columns(
        self, step: ColumnStep, *, stored: KnownPanel | None = None, note: NotePanel | None = None
    ) -> dict[str, Array]:
        """Run a step on every panel of columns."""
        arrays = {name: self.get(name) for name in step.uses if name in self._arrays}
        outputs = []
        panels = self.layout.visit_panels()
        for slices, counts in panels if note is None else self._small(panels):
            lanes = lanes_of(slices)
            values = None if stored is None else stored(lanes)
            if values is None:
                values = run_column_step(step, Panel(lanes, counts, arrays), self.n_threads)
                if note is not None:
                    note(lanes, values)
            outputs.append(values)
        return join_panels(outputs)

    def _small(self, panels: Iterator[tuple[slice, SellBlock]]) -> Iterator[tuple[slice, Any]]:
        """Cut panels into small ones, each with enough slices for all threads."""
        for slices, counts in panels:
            steps = np.diff(counts.offset)
            enough = _SLICES_A_THREAD * self.n_threads * LANES * int(steps.max(initial=0))
            for part in panel_slices(steps, max(_SMALL_PANEL, enough)):
                first = slices.start
                yield slice(first + part.start, first + part.stop), counts.slices(part)

    def stream(self, output: str, *steps: Step) -> Iterator[tuple[Any, Array]]:
        """Run steps block by block; yield one of the row arrays that they make, and keep none."""
        check_steps(steps, "stream")
        for place, blocks in zip(self.layout.blocks, self._blocks(steps, None), strict=True):
            for step, block in zip(steps, blocks, strict=True):
                run_step(step, block, [], self.n_threads)
            yield place, blocks[0].made[output]

    def _forget_unused(self, steps: Sequence[Step]) -> None:
        """Allow arrays to overwrite the arrays that they replace if no step needs these."""
        used: set[str] = set()
        made: set[str] = set()
        for step in steps:
            used |= set(step.arrays.uses) - made
            made |= set(step.arrays.makes)
        for name in made - used:
            self._forget(name)

    def _blocks(
        self, steps: Sequence[Step], whole: dict[str, Array] | None
    ) -> Iterator[list[LocalBlock]]:
        """Yield every block as each step sees it; with `whole`, outputs are parts of its arrays."""

        def room(place: Any, name: str, like: Array, dtype: Any) -> Array:
            assert whole is not None
            if name not in whole:
                shape = (len(self.layout.row_order), *like.shape[1:])
                whole[name] = self._room(shape, dtype)
            return whole[name][place.first : place.last]

        used = {name for step in steps for name in step.arrays.uses}
        for i, (place, counts) in enumerate(self._counts({step.reads for step in steps})):
            arrays = {n: self._arrays[n].blocks[i] for n in used if n in self._arrays}
            room_here = None if whole is None else partial(room, place)
            block = LocalBlock(i, place, arrays, room_here)
            yield [block.for_step(step, counts.get(step.reads)) for step in steps]

    def _counts(self, orders: set[str | None]) -> Iterator[tuple[Any, dict[Any, SellBlock]]]:
        orders = orders - {None}
        if not orders:
            yield from ((block, {}) for block in self.layout.blocks)
        elif len(orders) == 1:
            (order,) = orders
            for block, counts in self.layout.visit(order):
                yield block, {order: counts}
        else:
            for block, rows, columns in self.layout.visit_both():
                yield block, {"rows": rows, "columns": columns}

    def _room(self, shape: tuple[int, ...], dtype: Any) -> Array:
        for i, array in enumerate(self._spare):
            if array.shape == shape and array.dtype == dtype:
                return self._spare.pop(i)
        return aligned_empty(shape, dtype, self.folder)
