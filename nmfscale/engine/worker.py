"""The tasks of a fit on a worker: run steps on a partition, or save a row array of it.

A worker finds their inputs: counts, recomputed row arrays, and recent ones in its cache.
"""

from __future__ import annotations

import json
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from ..storage.store_blocks import ColumnChecksums, ColumnPlace
from ..storage.version import package_version
from .caches import RECENT, WHOLE, block_file, buffer
from .lineage import (
    ArrayRef,
    Partition,
    Ref,
    Saved,
    StepRun,
    counts_name,
    in_order,
    numbered,
    panel_name,
    read_arrays,
)
from .local import LocalBlock
from .protocol import Array, ColumnStep, Panel, Sums, Values
from .runner import StepRunner, fold, run_column_step
from .threads import single_blas_thread

# Seconds without the folder of a fit after which the fit counts as ended.
_ENDED_AFTER = 2.0
# Placeholder text for an array: its name.
_NAMED = "array named"


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
    # the logarithm depends on the type of machine
    machine: str = field(default_factory=platform.machine)

    def take(self) -> None:
        """Set this process up to compute like all others, or raise an error."""
        if package_version() != self.version:
            raise UnfitWorkerError(f"nmfscale {package_version()} here, {self.version} there")
        if platform.machine() != self.machine:
            raise UnfitWorkerError(f"a machine of type {platform.machine()}, not {self.machine}")
        take_level(self.level)
        RECENT.most_bytes = self.memory


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
    """One partition on a worker: finds the counts and arrays that a task needs."""

    def __init__(self, config: RunConfig, partition: Partition, sent: Mapping[str, Any]):
        self.config, self.partition, self.sent = config, partition, sent
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
                file = block_file(*self.config.store)
                yield file.read(block, order, buffer(block.nbytes(order)))
                continue
            name = counts_name(block, order)
            if name not in self.sent:
                raise MissingArraysError(name)
            yield self.sent[name]

    def resolve(self, array: ArrayRef) -> list[Array]:
        """Return a row array for every block, from its file or recomputed by its step."""
        if isinstance(array, Saved):
            return in_order(self.arrays(array.ref))
        return self.outputs(array.run)[array.name]

    def outputs(self, run: StepRun) -> dict[str, list[Array]]:
        """Return the row arrays that a step makes, for every block."""
        return (self._known(run) or self._make(run)[0]).arrays

    def run(self, run: StepRun) -> tuple[list[Values], Sums]:
        """Return the results of a step for every block, and its sums over blocks."""
        if not run.step.arrays.makes:
            runner, _ = self._run(run)
            return runner.values[0], runner.sums()[0]
        made, sums = self._known(run), Sums()
        if made is None or made.has_sums:
            made, sums = self._make(run)
        self._of_task[run.name] = made
        return made.values, sums

    def _known(self, run: StepRun) -> Made | None:
        outputs: Made | None = self._of_task.get(run.name) or RECENT.get(self._key(run))
        return outputs

    def _key(self, run: StepRun) -> tuple[Any, ...]:
        return self.config.run, self.partition.number, run.name

    def _make(self, run: StepRun) -> tuple[Made, Sums]:
        """Run a step that makes row arrays, and cache its results except its sums."""
        runner, arrays = self._run(run)
        sums = runner.sums()[0]
        made = Made(runner.values[0], arrays, bool(sums))
        n_bytes = sum(array.nbytes for of_blocks in arrays.values() for array in of_blocks)
        RECENT.put(self._key(run), made, n_bytes)
        return made, sums

    def _run(self, run: StepRun) -> tuple[StepRunner, dict[str, list[Array]]]:
        """Run a step on the blocks, one after the other."""
        step = self.with_shared(run.step)
        inputs = {name: self.resolve(array) for name, array in run.inputs.items()}
        runner = StepRunner([step], self.config.n_threads)
        made: dict[str, list[Array]] = {}
        counts = repeat(None) if step.reads is None else self.counts(step.reads)
        for i, (place, of_block) in enumerate(zip(self.partition.blocks, counts, strict=False)):
            here = {name: arrays[i] for name, arrays in inputs.items()}
            block = LocalBlock(place.number, place, here).for_step(step, of_block)
            runner.add([block])
            for name, array in block.made.items():
                made.setdefault(name, []).append(array)
        return runner, made

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
            of_block = ColumnPlace(*row)
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

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Return what is saved under this name, or compute and save it.

        All workers compute the same result, so it does not matter who wrote the file.
        """
        assert self.config.folder is not None
        path = Path(self.config.folder, self.partition.file_name(name))
        if path.exists():
            return read_arrays(str(path))
        arrays = make()
        save_arrays(path, arrays)
        return arrays


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
def context_of(
    config: RunConfig, partition: Partition, sent: Mapping[str, Any]
) -> Iterator[TaskContext]:
    """Return the context of a partition, after setting this process up for the fit."""
    config.take()
    with single_blas_thread():
        yield TaskContext(config, partition, sent)


@dataclass
class Found:
    """Results of steps on consecutive partitions.

    `values` has a list for each step with an entry for each block, `sums` a branch of the tree for
    each step, `saved` a dict for each partition with references to saved row arrays, or the arrays
    themselves.
    """

    values: list[list[Values]]
    sums: list[Sums]
    saved: list[dict[str, Ref | Arrays]]

    def to_arrays(self) -> Arrays:
        """Return the results as named arrays; row arrays must be in files."""
        out: Arrays = {}

        def plain(value: Any) -> Any:
            if isinstance(value, Ref):
                return [value.name, value.path]
            out[f"array_{len(out)}"] = value
            return {_NAMED: f"array_{len(out) - 1}"}

        text = json.dumps([self.values, self.sums, self.saved], default=plain)
        return out | {"about": np.frombuffer(text.encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Found:
        """Rebuild the results: the inverse of `to_arrays`."""
        values, sums, saved = json.loads(
            arrays["about"].tobytes(),
            object_hook=lambda entry: arrays[entry[_NAMED]] if _NAMED in entry else entry,
        )
        return cls(
            values, sums, [{name: Ref(*ref) for name, ref in refs.items()} for refs in saved]
        )


def run_steps(
    config: RunConfig, partition: Partition, runs: tuple[StepRun, ...],
    saves: dict[str, StepRun], name: str | None, sent: Mapping[str, Any],
) -> Found:  # fmt: skip
    """Run steps on a partition, and save their row arrays named in `saves`.

    With a name the result is saved, too, so that it is not lost if this worker dies.
    """
    with context_of(config, partition, sent) as context:

        def find() -> Found:
            values, sums = zip(*(context.run(run) for run in runs), strict=True)
            saved = {
                array: context.save(run.name, numbered(context.outputs(run)[array]))
                for array, run in saves.items()
            }
            return Found(list(values), list(sums), [saved])

        if name is None or config.folder is None:
            return find()
        return Found.from_arrays(context.once(name, lambda: find().to_arrays()))


def join(*parts: Found) -> Found:
    """Add neighbouring branches of the sums; concatenate other results."""
    values = [
        [block for part in step for block in part]
        for step in zip(*(f.values for f in parts), strict=True)
    ]
    sums = [
        fold([[array.copy() for array in first], *others])
        for first, *others in zip(*(part.sums for part in parts), strict=True)
    ]
    return Found(values, sums, [saved for part in parts for saved in part.saved])


def save_array(
    config: RunConfig, partition: Partition, name: str, array: ArrayRef, sent: Mapping[str, Any]
) -> Ref | Arrays:
    """Save a row array of a partition."""
    with context_of(config, partition, sent) as context:
        return context.save(name, numbered(context.resolve(array)))


def run_panel(
    config: RunConfig, place: PanelPlace, step: ColumnStep, arrays: dict[str, Ref],
    sent: Mapping[str, Any],
) -> tuple[dict[str, Array], Array | None]:  # fmt: skip
    """Run a column step on a panel; return its results, and checksums if requested."""
    with context_of(config, Partition(0, ()), sent) as context:
        whole = {name: context.whole(name, ref) for name, ref in arrays.items()}
        counts, checksums = context.panel(place)
        panel = Panel(lanes_of(place.slices), counts, whole)
        return run_column_step(context.with_shared(step), panel, config.n_threads), checksums
