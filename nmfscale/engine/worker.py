"""The tasks of a fit on a worker: run steps on a partition, or save a row array of it.

A worker finds their inputs: counts, recomputed row arrays, and recent ones in its cache.
"""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..cluster.tasks import MissingArraysError, UnfitWorkerError
from ..counts.aligned import aligned_copy
from ..counts.panels import stacked
from ..counts.sell import SellBlock, lanes_of
from ..storage.arrays import Arrays, save_arrays
from ..storage.atomic import retry
from ..storage.store_blocks import ColumnChecksums, SlicesPlace, StoredBlock
from ..storage.version import package_version
from .block_reader import BlockReader, Read
from .caches import COUNTS, RECENT, WHOLE, block_file
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
    panel_name,
    read_arrays,
)
from .local import LocalBlock
from .protocol import Array, ColumnStep, Panel, Values
from .runner import Branch, StepRunner, TreeSum, run_column_step
from .threads import single_blas_thread

# Seconds without the folder of a fit after which the fit counts as ended.
_ENDED_AFTER = 2.0


@dataclass(frozen=True)
class RunConfig:
    """Settings that all tasks of a fit share."""

    run: str
    version: str
    # path, type of the slices and mark of the packed store; None if counts are sent along
    store: tuple[str, str, tuple[int, ...]] | None
    # where row arrays are saved; None if they are returned
    folder: str | None
    n_threads: int
    # "baseline"; or "avx2" or "neon", which give the same bits as AVX-512
    level: str
    # bytes of recent arrays that a worker may cache
    memory: int
    # bytes of counts from the store that a worker may keep
    counts_memory: int = 0
    # the logarithm depends on the type of machine
    machine: str = field(default_factory=platform.machine)

    @property
    def fit(self) -> str:
        """The name of the fit; each of its starts is a run."""
        return self.run.partition("-")[0]

    def take(self) -> None:
        """Set this process up to compute like all others, or raise an error."""
        if package_version() != self.version:
            raise UnfitWorkerError(f"nmfscale {package_version()} here, {self.version} there")
        if platform.machine() != self.machine:
            raise UnfitWorkerError(f"a machine of type {platform.machine()}, not {self.machine}")
        take_level(self.level)
        RECENT.most_bytes, COUNTS.most_bytes = self.memory, self.counts_memory


def take_level(level: str) -> None:
    """Use an instruction set, or a wider one that gives the same bits."""
    same = [n for n in kernels.available_levels() if (n == "baseline") == (level == "baseline")]
    if not same:
        raise UnfitWorkerError(f"this processor has no {level}")
    if kernels.level() not in same:
        kernels.use_level(same[-1])


class Made(NamedTuple):
    """The results of a step that makes row arrays, for every block, without its sums."""

    values: list[Values]
    arrays: dict[str, list[Array]]
    has_sums: bool


class TaskContext:
    """One partition on a worker: finds the counts and arrays that a task needs.

    Steps that read counts run on some `slices` of the rows or columns of each block, if given.
    """

    def __init__(
        self, config: RunConfig, partition: Partition, sent: Mapping[str, Any],
        reader: BlockReader | None = None, slices: slice | None = None,
    ):  # fmt: skip
        self.config, self.partition, self.sent, self.slices = config, partition, sent, slices
        self.reader = BlockReader(config) if reader is None else reader
        # outputs of steps of this task, for which the cache may be too small
        self._of_task: dict[str, Made] = {}

    def arrays(self, ref: Ref) -> Arrays:
        """Return arrays from the cache, from the task, or from their file."""
        key = self.config.run, ref.name
        arrays = RECENT.get(key)
        if arrays is None:
            arrays = self._load(ref)
            # sent arrays may be shared with other tasks, and may not be aligned
            arrays = {name: aligned_copy(array) for name, array in arrays.items()}
            RECENT.put(key, arrays, sum(array.nbytes for array in arrays.values()))
        return arrays

    def _load(self, ref: Ref) -> Arrays:
        """Return arrays from the task, or from their file."""
        if ref.path in self.sent:
            sent: Arrays = self.sent[ref.path]
            return sent
        if self.config.folder is None:
            raise MissingArraysError(ref.path)
        begin, folder = time.monotonic(), Path(self.config.folder)

        def load() -> Arrays:
            try:
                return read_arrays(ref.path)
            except FileNotFoundError:
                # a worker must not wait long for files of an ended fit
                if time.monotonic() - begin > _ENDED_AFTER and not folder.exists():
                    raise OSError(f"{folder} is gone") from None
                raise

        return retry(Path(ref.path), load)

    def counts(self, order: str) -> Iterator[SellBlock]:
        """Yield the counts of the blocks, one after the other."""
        for block in self.partition.blocks:
            if self.config.store is not None:
                yield self.reader.read(Read(block, order, self.slices))
                continue
            name = counts_name(block, order)
            if name not in self.sent:
                raise MissingArraysError(name)
            yield self.sent[name]

    def resolve(self, array: ArrayRef) -> list[Array]:
        """Return a row array for every block, from its file or recomputed by its step."""
        if isinstance(array, Saved):
            return joined_parts([in_order(self.arrays(ref)) for ref in array.refs])
        return self.outputs(array.run)[array.name]

    def outputs(self, run: StepRun) -> dict[str, list[Array]]:
        """Return the row arrays that a step makes, for every block."""
        return (self._known(run) or self._make(run, None)).arrays

    def run(self, run: StepRun, tree: TreeSum) -> list[Values]:
        """Return the results of a step for every block, and add its sums to a tree."""
        divided = self.slices is not None and run.step.reads is not None
        if not run.step.arrays.makes:
            return self._run(run, tree).values
        made = self._run(run, tree) if divided else self._known(run)
        if made is None or (made.has_sums and not divided):
            made = self._make(run, tree)
        self._of_task[run.name] = made
        return made.values

    def _known(self, run: StepRun) -> Made | None:
        outputs: Made | None = self._of_task.get(run.name) or RECENT.get(self._key(run))
        return outputs

    def _key(self, run: StepRun) -> tuple[Any, ...]:
        return self.config.run, self.partition.number, run.name

    def _make(self, run: StepRun, tree: TreeSum | None) -> Made:
        """Run a step that makes row arrays, and cache its results except its sums."""
        made = self._run(run, tree)
        n_bytes = sum(array.nbytes for of_blocks in made.arrays.values() for array in of_blocks)
        RECENT.put(self._key(run), made, n_bytes)
        return made

    def _run(self, run: StepRun, tree: TreeSum | None) -> Made:
        """Run a step on the blocks, one after the other; without a tree, sums are not kept."""
        tree = TreeSum(self.partition.blocks[-1].number + 1) if tree is None else tree
        step, part = self.with_shared(run.step), None
        if step.reads is not None and self.slices is not None:
            step = step.of_slices(self.slices)
            part = self.slices if step.reads == "rows" else None
        inputs = {name: self.resolve(array) for name, array in run.inputs.items()}
        runner = StepRunner([step], self.config.n_threads, [tree], of_parts=self.slices is not None)
        arrays: dict[str, list[Array]] = {}
        counts = repeat(None) if step.reads is None else self.counts(step.reads)
        for i, (place, of_block) in enumerate(zip(self.partition.blocks, counts, strict=False)):
            here = {name: of_blocks[i] for name, of_blocks in inputs.items()}
            if part is not None:
                here = {name: _lanes_of_part(array, place, part) for name, array in here.items()}
                place = place.part(part)
            block = LocalBlock(place.number, place, here).for_step(step, of_block)
            runner.add([block])
            for name, array in block.made.items():
                arrays.setdefault(name, []).append(array)
        # shapes of sums may be those of shared arrays
        return Made(runner.values[0], arrays, bool(step.empty_sums()))

    def with_shared(self, step: Any) -> Any:
        """Return a step with its shared arrays in place of references."""
        refs = {name: getattr(step, name) for name in step.shared}
        arrays = {n: self.arrays(ref)["array"] for n, ref in refs.items() if isinstance(ref, Ref)}
        return replace(step, **arrays) if arrays else step

    def panel(self, place: PanelPlace) -> tuple[SellBlock, Array | None]:
        """Return the counts of a panel of columns, and its checksums if requested."""
        if self.config.store is None:
            name = panel_name(place.slices)
            if name not in self.sent:
                raise MissingArraysError(name)
            return self.sent[name], None
        file, stretches, firsts = block_file(*self.config.store), [], []
        for row in self.arrays(place.places)["array"].tolist():
            of_block = SlicesPlace(*row)
            stretches.append(file.read_columns(of_block, place.slices))
            firsts.append(of_block.first)
        checksums = ColumnChecksums.of(stretches) if place.checks else None
        pairs = list(zip(firsts, stretches, strict=True))
        return stacked(pairs, place.n_lanes, self.config.n_threads), checksums

    def whole(self, name: str, ref: Ref) -> Array:
        """Return a row array of all rows."""
        return WHOLE.get(self.config.run, name, ref, self._load)

    def save(self, name: str, arrays: Arrays) -> Ref | Arrays:
        """Write arrays of this partition to a new file; return them if there is no folder."""
        n_bytes = sum(array.nbytes for array in arrays.values())
        if self.config.folder is None:
            RECENT.put((self.config.run, self.partition.file_name(name)), arrays, n_bytes)
            return arrays
        # a worker that lost its connection may still write, and late
        own = f"{name}-{secrets.token_hex(4)}"
        target = Path(self.config.folder, self.partition.file_name(own))
        save_arrays(target, arrays)
        RECENT.put((self.config.run, target.name), arrays, n_bytes)
        return Ref(target.name, str(target))


def _lanes_of_part(array: Array, place: StoredBlock, part: slice) -> Array:
    """Return the entries of some slices of a row array with an entry for each lane.

    An array with a field ``lane``, in the order of lanes, may have any number of entries for each.
    """
    lanes = lanes_of(part)
    if "lane" in (array.dtype.names or ()):
        first, last = np.searchsorted(array["lane"], [lanes.start, lanes.stop])
        here = array[first:last].copy()
        here["lane"] -= lanes.start
        return here
    return array[lanes] if len(array) == place.last - place.first else array


@dataclass(frozen=True)
class PanelPlace:
    """A panel of columns: its slices, where the columns of blocks are, the number of all lanes.

    `checks`: whether to return checksums of the slices that are read.
    """

    slices: slice
    places: Ref
    n_lanes: int
    checks: bool


@contextmanager
def _set_up(config: RunConfig) -> Iterator[None]:
    """Set this process up for the fit."""
    config.take()
    with single_blas_thread():
        yield


@dataclass
class Found:
    """Results of steps on consecutive partitions.

    `values` has a list for each step with an entry for each block, `sums` the branches of the tree
    for each step, `saved` a dict for each partition with references to saved row arrays, or the
    arrays themselves. `n_blocks` is the number of all blocks of the fit.
    """

    n_blocks: int
    values: list[list[Values]]
    sums: list[list[Branch]]
    saved: list[dict[str, Ref | Arrays]]

    def __sizeof__(self) -> int:
        """Return the bytes of the sums: by this, Dask knows how much it keeps and sends."""
        branches = (branch for of_step in self.sums for branch in of_step)
        return object.__sizeof__(self) + sum(a.nbytes for branch in branches for a in branch.sums)


@dataclass(frozen=True)
class Work:
    """What a task does on one partition: runs of steps, and row arrays to save.

    Steps that read counts run on some `slices` of the rows or columns of each block, if given.
    Other tasks may have other slices; steps that read nothing and make no arrays then run in the
    one that `owns` the partition.
    """

    partition: Partition
    runs: tuple[StepRun, ...]
    saves: dict[str, Output]
    slices: slice | None = None
    owns: bool = True

    def reads(self) -> Iterator[Read]:
        """Yield the counts that the steps read."""
        for run in self.runs:
            if run.step.reads is not None:
                for block in self.partition.blocks:
                    yield Read(block, run.step.reads, self.slices)


def run_steps(
    config: RunConfig, n_blocks: int, works: tuple[Work, ...], sent: Mapping[str, Any]
) -> Found:
    """Run steps on consecutive partitions, add up their sums, and save row arrays.

    `n_blocks` is the number of all blocks of the fit.
    """
    values: list[list[Values]] = [[] for _ in works[0].runs]
    trees, saved = [TreeSum(n_blocks) for _ in values], []
    reads = [read for work in works for read in work.reads()]
    with _set_up(config), closing(BlockReader(config, reads)) as reader:
        for work in works:
            context = TaskContext(config, work.partition, sent, reader, work.slices)
            for run, tree, of_blocks in zip(work.runs, trees, values, strict=True):
                if work.owns or run.step.reads is not None or run.step.arrays.makes:
                    of_blocks += context.run(run, tree)
                else:
                    of_blocks += [{} for _ in work.partition.blocks]
            saved.append({
                name: context.save(output.file_name, numbered(context.resolve(output)))
                for name, output in work.saves.items()
            })  # fmt: skip
    return Found(n_blocks, values, [tree.branches for tree in trees], saved)


def join(*parts: Found) -> Found:
    """Add neighbouring branches of the sums; concatenate other results."""
    values = [
        [block for part in step for block in part]
        for step in zip(*(f.values for f in parts), strict=True)
    ]
    # arrays of other tasks, which Dask may send to several tasks, must not be overwritten
    n_blocks = parts[0].n_blocks
    trees = [TreeSum(n_blocks, in_place=False) for _ in values]
    for tree, *of_parts in zip(trees, *(part.sums for part in parts), strict=True):
        for branch in (branch for part in of_parts for branch in part):
            tree.add(branch)
    saved = [saved for part in parts for saved in part.saved]
    return Found(n_blocks, values, [tree.branches for tree in trees], saved)


def save_array(
    config: RunConfig, partition: Partition, name: str, array: ArrayRef, sent: Mapping[str, Any]
) -> Ref | Arrays:
    """Save a row array of a partition."""
    with _set_up(config):
        context = TaskContext(config, partition, sent)
        return context.save(name, numbered(context.resolve(array)))


def run_panel(
    config: RunConfig, place: PanelPlace, step: ColumnStep, arrays: dict[str, Ref],
    sent: Mapping[str, Any],
) -> tuple[dict[str, Array], Array | None]:  # fmt: skip
    """Run a column step on a panel; return its results, and checksums if requested."""
    with _set_up(config):
        context = TaskContext(config, Partition(0, ()), sent)
        whole = {name: context.whole(name, ref) for name, ref in arrays.items()}
        counts, checksums = context.panel(place)
        panel = Panel(lanes_of(place.slices), counts, whole)
        return run_column_step(context.with_shared(step), panel, config.n_threads), checksums
