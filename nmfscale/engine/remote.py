"""The executor for a Dask cluster: row arrays are in files, or steps recompute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..cluster.pool import WorkerPool
from ..cluster.tasks import Task
from ..counts.sell import lanes_of
from ..storage.arrays import Arrays
from ..storage.store import StoredCounts
from ..storage.store_blocks import StoredBlock
from . import progress
from .checks import check_step, check_steps
from .division import DividedRun, Division, first_stage
from .fit_files import FitFiles, remove
from .lineage import (
    ArrayRef,
    Output,
    Partition,
    Ref,
    Saved,
    StepRun,
    counts_name,
    in_order,
    joined_parts,
    numbered,
    outputs_to_save,
    panel_name,
    read_arrays,
    unsaved_inputs,
)
from .protocol import (
    Array,
    ColumnStep,
    Executor,
    KnownPanel,
    NotePanel,
    Outcome,
    Step,
)
from .runner import FAN_IN, branches, combine, join_panels
from .shares import Shares, shares_of
from .worker import Found, PanelPlace, RunConfig, Work, join, run_panel, run_steps, save_array

StepType = TypeVar("StepType", Step, ColumnStep)

# Tasks of a stream, for each concurrent task of the workers, whose results may wait in this
# process.
_STREAMED = 8


class DaskExecutor(Executor):
    """Runs steps on the workers of a pool; each task processes a share of the partitions.

    A partition has `partition_size` blocks, and shares begin at multiples of `least_branch`
    partitions: see `shares`. The pool calls `fetch` for objects that it sends. `folder` is the
    driver's folder for all files of the fit. Row arrays that can be recomputed by less than
    `save_every` runs are not saved; from there on, the inputs of a run are. These are about two
    loadings of as many runs, because loadings are extrapolated from the two before. All loadings
    have `loadings_bytes`. `n_threads` is for this process.
    """

    one_block = False  # whole columns are never in this process
    bytes_read = 0

    def __init__(
        self, counts: StoredCounts, pool: WorkerPool, config: RunConfig, folder: Path,
        partition_size: int, least_branch: int = 1, save_every: int = 1, n_threads: int = 1,
        loadings_bytes: int = 0,
    ):  # fmt: skip
        self.layout, self.pool, self.config = counts.layout(), pool, config
        self.least_branch, self.save_every, self.n_threads = least_branch, save_every, n_threads
        self._last_shares: Shares | None = None
        blocks = self.layout.blocks
        self.partitions = [
            Partition(number, tuple(blocks[i] for i in here))
            for number, here in enumerate(branches(len(blocks), partition_size))
        ]
        self._division = Division(self.layout, self.partitions, loadings_bytes)
        self._arrays: dict[str, list[ArrayRef]] = {}
        self._files = FitFiles(folder, pool)
        self._places: Ref | None = None  # of the columns of all blocks

    # Row arrays ---------------------------------------------------------------------------------

    def put(self, name: str, array: Array | Sequence[Array]) -> None:
        """Save an array in lane order, or a list with an array for each block."""
        self._check_put(name, array)
        file, refs = self._files.new_name(name), []
        for partition in self.partitions:
            if isinstance(array, Sequence):
                parts = [array[block.number] for block in partition.blocks]
            else:
                parts = [array[block.first : block.last] for block in partition.blocks]
            refs.append(
                self._files.saved([self._files.write(partition.file_name(file), numbered(parts))])
            )
        self._arrays[name] = list(refs)

    def copy(self, source: str, target: str) -> None:
        """Let two names refer to the same array."""
        self._arrays[target] = list(self._arrays[source])

    def drop(self, *names: str) -> None:
        """Delete row arrays."""
        for name in names:
            self._arrays.pop(name, None)

    def get_blocks(self, name: str) -> list[Array] | None:
        """Return the row array of each block, from its file; workers save it first if necessary."""
        if name not in self._arrays:
            return None
        arrays, saved = self._arrays[name], self._files.new_name(name)
        made = [i for i, array in enumerate(arrays) if isinstance(array, Output)]
        tasks = self._tasks(
            (), (), self._singles(),
            lambda here: (self.config, self.partitions[here.start], saved, arrays[here.start]),
        )  # fmt: skip
        replies = self.pool.run("save", save_array, [tasks[i] for i in made]) if made else []
        refs = {i: self._ref(saved, i, reply) for i, reply in zip(made, replies, strict=True)}
        out = []
        for i, array in enumerate(arrays):
            files = array.refs if isinstance(array, Saved) else (refs[i],)
            out += joined_parts([in_order(read_arrays(file.path)) for file in files])
            if i in refs:
                remove(refs[i].path)
        return out

    def _ref(self, name: str, partition: int, saved: Ref | Arrays) -> Ref:
        """Return the reference to arrays that a worker saved; if it returned them, save them."""
        if isinstance(saved, Ref):
            return saved
        return self._files.write(self.partitions[partition].file_name(name), saved)

    # Steps --------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Note the step that makes arrays; they are computed lazily."""
        check_step(step, "apply")
        (published, _), run_name = self._publish(step), self._files.new_name("step")
        runs = [self._runs([published], [run_name], i) for i in range(len(self.partitions))]
        self._keep([step], runs, [{} for _ in runs])

    def _runs(self, steps: list[Step], names: list[str], partition: int) -> list[StepRun]:
        """Return the runs of steps on a partition; later runs use the outputs of earlier ones."""
        made: dict[str, ArrayRef] = {}
        runs = []
        for step, name in zip(steps, names, strict=True):
            inputs = {
                array_name: made[array_name]
                if array_name in made
                else self._arrays[array_name][partition]
                for array_name in step.arrays.uses
                if array_name in made or array_name in self._arrays
            }
            runs.append(StepRun(name, step, inputs))
            made |= {array_name: Output(runs[-1], array_name) for array_name in step.arrays.makes}
        return runs

    def run(self, *steps: Step) -> list[Outcome]:
        """Run steps on the shares of the workers, one task for each: whole blocks, or parts.

        Sums of a share are added on its worker, and are not saved: a worker that dies costs the
        time of its share again, once in the lifetime of a worker, and files would cost a sixth of
        the processor time of every iteration.
        """
        check_steps(steps)
        shares = self._shares()
        first = first_stage(steps)
        if len(first) < len(steps) and self._order(first, shares) == "rows":
            return [*self._run(first, shares), *self.run(*steps[len(first) :])]
        return self._run(steps, shares)

    def _run(self, steps: Sequence[Step], shares: Shares) -> list[Outcome]:
        published, shared = zip(*(self._publish(step) for step in steps), strict=True)
        names = [self._files.new_name("step") for _ in steps]
        runs = [self._runs(list(published), names, i) for i in range(len(self.partitions))]
        if self.save_every == 1:
            saves = [outputs_to_save(own) for own in runs]
        else:
            saves = [unsaved_inputs(own, self.save_every - 1) for own in runs]
        config = replace(self.config, n_threads=shares.n_slots * self.config.n_threads)
        order = self._order(steps, shares)
        if order is not None:
            divide = getattr(self._division, order)
            divided = divide(steps, runs, saves, self.pool.ready())
            outcomes, saved = divided.join(self._run_parts(steps, divided, config))
        else:
            refs = [ref for of_step in shared for ref in of_step]
            works = self._works(runs, saves)
            outcomes, saved = self._run_whole(steps, refs, shares.ranges, works, config)
            if self.save_every > 1 and any(saves):
                self._end_lineages(saves, saved)
                # the same runs, of saved inputs
                runs = [self._runs(list(published), names, i) for i in range(len(runs))]
                saved = [{} for _ in runs]
        self._keep(steps, runs, saved)
        return outcomes

    def _order(self, steps: Sequence[Step], shares: Shares) -> str | None:
        """Return the order in which blocks are better divided, None if whole blocks are better.

        Workers need files: parts of counts, and the rows that other workers made.
        """
        if self.config.store is None or self.config.folder is None:
            return None
        slots, longest = self.pool.ready(), max(map(len, shares.ranges))
        if self._division.divides_rows(steps, longest, slots):
            return "rows"
        if self.save_every == 1 and self._division.divides_columns(steps, longest, slots):
            return "columns"
        return None

    def _run_parts(
        self, steps: Sequence[Step], divided: DividedRun, config: RunConfig
    ) -> list[Found]:
        """Run tasks on parts of blocks; return their results."""
        n_blocks = len(self.layout.blocks)
        each = math.ceil(n_blocks / len(divided.works))
        # affinities apart from those of partitions, because a task has parts of many
        tasks = [
            Task(f"{label} of {self.layout.path}", (config, n_blocks, work), -1 - i, n_blocks=each)
            for i, (label, work) in enumerate(zip(divided.labels, divided.works, strict=True))
        ]
        self._count_reads(steps, self.layout.blocks)
        found: list[Found] = self.pool.run(_label(steps), run_steps, tasks)
        return found

    def _run_whole(
        self, steps: Sequence[Step], shared: list[Ref], ranges: list[range], works: list[Work],
        config: RunConfig,
    ) -> tuple[list[Outcome], list[dict[str, list[Ref]]]]:  # fmt: skip
        """Run tasks on whole blocks; return their outcomes, and the files of each partition."""
        n_blocks = len(self.layout.blocks)
        tasks = self._tasks(
            steps, shared, ranges,
            lambda share: (config, n_blocks, tuple(works[share.start : share.stop])),
        )  # fmt: skip
        have_sums = [bool(step.empty_sums()) for step in steps]
        if len(tasks) > 1 and any(have_sums):
            found: Found = self.pool.reduce(_label(steps), run_steps, tasks, join, FAN_IN)
        else:
            found = join(*self.pool.run(_label(steps), run_steps, tasks))
        outcomes = [
            Outcome(combine(values), of_step[0].sums if has_sums else [])
            for values, of_step, has_sums in zip(found.values, found.sums, have_sums, strict=True)
        ]
        return outcomes, [
            {
                name: [self._ref(work.saves[name].file_name, i, arrays)]
                for name, arrays in found.saved[i].items()
            }
            for i, work in enumerate(works)
        ]

    def _works(self, runs: list[list[StepRun]], saves: list[dict[str, Output]]) -> list[Work]:
        """Return the work on each partition."""
        return list(map(Work, self.partitions, map(tuple, runs), saves))

    def _shares(self) -> Shares:
        """Return the shares of the workers that are here now."""
        size = len(self.partitions[0].blocks)
        shares = shares_of(len(self.partitions), size, self.pool.ready(), self.least_branch)
        if shares != self._last_shares:
            # tasks of other shares take a different time
            self.pool.seconds.clear()
            self._last_shares = shares
        return shares

    def run_columns(
        self, step: ColumnStep, *, stored: KnownPanel | None = None, note: NotePanel | None = None
    ) -> dict[str, Array]:
        """Run a step on every panel of columns, each in one task.

        Workers receive whole row arrays from this process.
        """
        self.save_every = 1  # saving loadings costs less than sending them from this process
        published, shared = self._publish(step)
        arrays = {
            name: self._files.share(name, self.get(name))
            for name in step.uses
            if name in self._arrays
        }
        if self._places is None:
            places = [block.column_place for block in self.layout.blocks]
            self._places = self._files.share("places", np.array(places))
        refs = [self._places, *shared, *arrays.values()]
        sent = [ref.path for ref in refs] if self.config.folder is None else []
        checks, panels, tasks = self.layout.column_checksums, self.layout.panels, []
        results: dict[int, dict[str, Array]] = {}
        numbers: list[int] = []  # of the panels that have a task
        for i, panel in enumerate(panels):
            lanes = lanes_of(panel)
            values = None if stored is None else stored(lanes)
            if values is not None:
                results[i] = values
                continue
            numbers.append(i)
            place = PanelPlace(panel, self._places, len(self.layout.row_order), not checks.done)
            sends = sent if self.config.store else [*sent, panel_name(panel)]
            label = f"columns in lanes {lanes.start}:{lanes.stop} of {self.layout.path}"
            args = self.config, place, published, arrays
            tasks.append(Task(label, args, len(self.partitions) + i, tuple(sends)))
        self.bytes_read += sum(block.nbytes("columns") for block in self.layout.blocks)

        def keep(number: int, output: tuple[dict[str, Array], Array | None]) -> None:
            at = numbers[number]
            results[at], checksums = output
            if checksums is not None:
                checks.add(panels[at], checksums)
            if note is not None:
                note(lanes_of(panels[at]), results[at])

        with self.pool.batch(type(step).__name__, run_panel, tasks) as batch:
            batch.send_all()
            batch.results(keep)
        return join_panels([results[i] for i in range(len(panels))])

    def stream(self, output: str, *steps: Step) -> Iterator[tuple[Any, Array]]:
        """Run steps on some partitions at a time, and read the files of their row arrays."""
        check_steps(steps, "stream")
        published, shared = zip(*(self._publish(step) for step in steps), strict=True)
        names = [self._files.new_name("step") for _ in steps]
        runs = [self._runs(list(published), names, i) for i in range(len(self.partitions))]
        makes = max(i for i, step in enumerate(steps) if output in step.arrays.makes)
        works = self._works(runs, [{output: Output(own[makes], output)} for own in runs])
        tasks = self._tasks(
            steps, [ref for refs in shared for ref in refs], self._singles(),
            lambda here: (self.config, len(self.layout.blocks), (works[here.start],)),
        )  # fmt: skip
        label, first = _label(steps), 0
        while first < len(tasks):
            n_together = _STREAMED * sum(self.pool.wait_for_workers().values())
            here = self.partitions[first : first + n_together]
            refs = self._streamed(
                label, output, Output(runs[0][makes], output).file_name, here, tasks
            )
            for partition, ref in zip(here, refs, strict=True):
                yield from zip(partition.blocks, in_order(read_arrays(ref.path)), strict=True)
                remove(ref.path)
            first += len(here)

    def _streamed(
        self, label: str, output: str, name: str, partitions: list[Partition], tasks: list[Task]
    ) -> list[Ref]:
        """Return the files of a row array of some partitions, once their tasks are done."""
        refs: dict[int, Ref] = {}

        def note(i: int, outcome: Found) -> None:
            partition, (saved,) = partitions[i], outcome.saved
            refs[i] = self._ref(name, partition.number, saved[output])
            progress.advance(partition.blocks[-1].stop - partition.blocks[0].start)

        numbers = [partition.number for partition in partitions]
        with self.pool.batch(label, run_steps, [tasks[number] for number in numbers]) as batch:
            batch.send_all()
            batch.results(note)
        return [refs[i] for i in range(len(partitions))]

    def _end_lineages(
        self, outputs: list[dict[str, Output]], saved: list[dict[str, list[Ref]]]
    ) -> None:
        """Replace outputs of earlier runs by their files, under all names that refer to them."""
        for i, of_partition in enumerate(outputs):
            for name, output in of_partition.items():
                file = self._files.saved(saved[i][name])
                for arrays in self._arrays.values():
                    if arrays[i] is output:
                        arrays[i] = file

    def _keep(
        self, steps: Sequence[Step], runs: list[list[StepRun]],
        saved_arrays: list[dict[str, list[Ref]]],
    ) -> None:  # fmt: skip
        """Note where the outputs of steps are."""
        for i, saved in enumerate(saved_arrays):
            made: dict[str, ArrayRef] = {}
            for step, run in zip(steps, runs[i], strict=True):
                for name in step.arrays.makes:
                    made[name] = Output(run, name)
                    if name in saved:
                        made[name] = self._files.saved(saved[name])
                for name, source in step.arrays.aliases:
                    made[name] = made[source] if source in made else self._arrays[source][i]
            for name, array in made.items():
                self._arrays.setdefault(name, [array] * len(self.partitions))[i] = array

    def _publish(self, step: StepType) -> tuple[StepType, list[Ref]]:
        """Return a step as it is sent, with references in place of its shared arrays."""
        arrays = {name: getattr(step, name) for name in step.shared}
        refs = {n: self._files.publish(array) for n, array in arrays.items() if array is not None}
        return replace(step, **refs) if refs else step, list(refs.values())  # type: ignore[type-var]

    def _singles(self) -> list[range]:
        return [range(i, i + 1) for i in range(len(self.partitions))]

    def _tasks(
        self, steps: Sequence[Step], shared: Sequence[Ref], ranges: Sequence[range],
        args: Callable[[range], tuple[Any, ...]],
    ) -> list[Task]:  # fmt: skip
        """Return a task for each range of partitions, with its own arguments."""
        orders = [step.reads for step in steps if step.reads is not None]
        if "columns" in orders and self._places is not None:
            # workers have these counts once, in panels or in blocks
            self.pool.forget(map(panel_name, self.layout.panels))
        tasks = []
        for numbers in ranges:
            blocks = [block for i in numbers for block in self.partitions[i].blocks]
            sends: list[str] = []
            if self.config.store is None:
                sends += [counts_name(block, order) for order in orders for block in blocks]
            if self.config.folder is None:
                sends += [ref.path for ref in shared]
            label = f"rows {blocks[0].start}:{blocks[-1].stop} of {self.layout.path}"
            tasks.append(
                Task(label, args(numbers), numbers.start, tuple(sends), n_blocks=len(blocks))
            )
            self._count_reads(steps, blocks)
        return tasks

    def _count_reads(self, steps: Sequence[Step], blocks: Sequence[StoredBlock]) -> None:
        """Count the bytes of blocks that steps read."""
        orders = [step.reads for step in steps if step.reads is not None]
        self.bytes_read += sum(block.nbytes(order) for order in orders for block in blocks)


def _label(steps: Sequence[Step]) -> str:
    """Return the name of a batch that runs steps."""
    return "-".join(type(step).__name__ for step in steps)
