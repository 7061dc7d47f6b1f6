"""Where a worker does its tasks: arrays and points found by name, recent ones remembered."""

from __future__ import annotations

import platform
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..cluster.tasks import MissingArraysError, UnfitWorkerError
from ..counts.aligned import aligned_empty
from ..counts.sell import SellBlock
from ..methods.factors import Array, Factor, aligned_copy
from ..methods.local_rows import restore_zeros
from ..methods.steps import Arrival, RowReport, Rows, go_on
from ..storage.arrays import Arrays, save_arrays
from ..storage.atomic import retry
from ..storage.store_blocks import BlockFile
from ..storage.version import package_version
from .lineage import (
    Changed,
    Extrapolated,
    Group,
    Move,
    Point,
    Ref,
    counts_name,
    file_name,
    read_arrays,
)
from .threads import single_blas_thread

# Seconds without the folder of a fit before it counts as ended.
_ENDED_AFTER = 2.0


@dataclass(frozen=True)
class Setting:
    """What all tasks of a fit have in common.

    Attributes
    ----------
    run, version : str
        Name of the fit; of the package.
    store : tuple or None
        Path, type of the slices and mark of the packed store; None if counts are sent along.
    folder : str or None
        Where loadings are saved; None if they are handed back.
    n_components, n_threads : int
    level : {"baseline", "avx2"}
        Instruction set of all workers; AVX2 and AVX-512 give the same bits.
    memory : int
        Bytes of recent arrays that a worker may remember.
    machine : str
        Its type; each has a logarithm of its own.
    """

    run: str
    version: str
    store: tuple[str, str, tuple[int, ...]] | None
    folder: str | None
    n_components: int
    n_threads: int
    level: str
    memory: int
    machine: str = field(default_factory=platform.machine)

    def take(self) -> None:
        """Make this process compute as all others do, or refuse."""
        if package_version() != self.version:
            raise UnfitWorkerError(f"nmfscale {package_version()} here, {self.version} there")
        if platform.machine() != self.machine:
            raise UnfitWorkerError(f"a machine of type {platform.machine()}, not {self.machine}")
        take_level(self.level)
        _memory.most_bytes = self.memory


def take_level(level: str) -> None:
    """Use an instruction set, or a wider one that gives the same bits."""
    same = [n for n in kernels.available_levels() if (n == "baseline") == (level == "baseline")]
    if not same:
        raise UnfitWorkerError(f"this processor has no {level}")
    if kernels.level() not in same:
        kernels.use_level(same[-1])


class _Memory:
    """Recent arrays of this process, the oldest forgotten first."""

    def __init__(self) -> None:
        self.most_bytes, self._held = 0, 0
        self._items: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> Any:
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key][0]

    def put(self, key: tuple[Any, ...], value: Any, n_bytes: int) -> None:
        with self._lock:
            if key not in self._items:
                self._items[key], self._held = (value, n_bytes), self._held + n_bytes
            while self._held > self.most_bytes and len(self._items) > 1:
                self._held -= self._items.popitem(last=False)[1][1]

    def forget(self, run: str) -> None:
        with self._lock:
            for key in [key for key in self._items if key[0].startswith(run)]:
                self._held -= self._items.pop(key)[1]


_memory = _Memory()
_buffers = threading.local()


def forget_run(run: str) -> None:
    """Let go of what this process remembers of a fit."""
    _memory.forget(run)


@lru_cache(maxsize=8)
def _block_file(path: str, count_dtype: str, mark: tuple[int, ...]) -> BlockFile:
    return BlockFile(Path(path), np.dtype(count_dtype), mark)


def _buffer(n_bytes: int) -> Array:
    """Return memory of this thread, which holds one block at a time."""
    if len(getattr(_buffers, "bytes", ())) < n_bytes:
        _buffers.bytes = np.empty(n_bytes, np.uint8)
    found: Array = _buffers.bytes[:n_bytes]
    return found


class MovedHere(NamedTuple):
    """Where the rows of every block went, what they reported, their sizes and their priors."""

    values: list[Array]
    reports: list[RowReport]
    log_sizes: list[float]
    log_priors: list[float]


class Workbench:
    """One group of blocks, and how to find what a task needs of it."""

    def __init__(self, setting: Setting, group: Group, given: Mapping[str, Any]):
        self.setting, self.group, self.given = setting, group, given

    def arrays(self, ref: Ref) -> Arrays:
        """Return arrays from memory, from what was sent, or from their file."""
        key = self.setting.run, ref.name
        found = _memory.get(key)
        if found is None:
            found = self.given.get(ref.name)
            if found is None:
                found = self._load(ref)
            # what was sent may be shared with other tasks, and starts anywhere
            found = {name: aligned_copy(array) for name, array in found.items()}
            _memory.put(key, found, sum(array.nbytes for array in found.values()))
        return found

    def _load(self, ref: Ref) -> Arrays:
        if self.setting.folder is None:
            raise MissingArraysError(ref.name)
        begin, folder = time.monotonic(), Path(self.setting.folder)

        def load() -> Arrays:
            try:
                return read_arrays(ref.path)
            except FileNotFoundError:
                # a worker must not wait long for files of a fit that has ended
                if time.monotonic() - begin > _ENDED_AFTER and not folder.exists():
                    raise OSError(f"{folder} is gone") from None
                raise

        return retry(Path(ref.path), load)

    def slices(self, which: str) -> Iterator[SellBlock]:
        """Hand out the counts of the blocks, one after the other."""
        for block in self.group.blocks:
            if self.setting.store is not None:
                file = _block_file(*self.setting.store)
                yield file.read(block, which, _buffer(block.nbytes(which)))
                continue
            name = counts_name(block, which)
            if name not in self.given:
                raise MissingArraysError(name)
            yield self.given[name]

    def rows(self, values: list[Array]) -> list[Rows]:
        """Return the rows of every block, with these loadings."""
        about, out = self.arrays(self.group.about), []
        for i, (block, L) in enumerate(zip(self.group.blocks, values, strict=True)):
            n_rows = block.stop - block.start
            order = np.arange(len(L))
            order[n_rows:] = -1
            prior: dict[str, Any] = {
                name: aligned_copy(about[f"{name}_{i}"], L.dtype)
                for name in ("pseudo", "rate")
                if f"{name}_{i}" in about
            }
            factor = Factor(
                order, n_rows, self.setting.n_components, L, about.get(f"held_{i}"), **prior
            )
            out.append(Rows(factor, about[f"totals_{i}"], about.get(f"weights_{i}")))
        return out

    def point(self, point: Point) -> list[Array]:
        """Return the loadings of every block at a point."""
        if isinstance(point, Extrapolated):
            return self.arrive(point)[0]
        if isinstance(point, Changed):
            dtype = np.dtype(point.dtype)
            values = [aligned_copy(each, dtype) for each in self.point(point.point)]
            for rows in self.rows(values) if point.zeros else ():
                restore_zeros(rows.factor)
            return values
        if point.saved is not None:
            found = self.arrays(point.saved)
            return [found[f"L_{i}"] for i in range(len(self.group.blocks))]
        assert point.made is not None
        return self.move(point.made).values

    def arrive(self, point: Extrapolated) -> tuple[list[Array], list[Arrival]]:
        """Return the loadings of a point ahead, and what is to be said of every block."""
        key = self.setting.run, self.group.number, point.name
        found = _memory.get(key)
        if found is None:
            now, before = self.point(point.now), self.point(point.before)
            # lanes without a row are not written
            rows = self.rows([aligned_copy(each) for each in now])
            arrivals = [
                go_on(each, here, old, point.momentum, self.setting.n_threads)
                for each, here, old in zip(rows, now, before, strict=True)
            ]
            found = [each.factor.values for each in rows], arrivals
            _memory.put(key, found, sum(each.nbytes for each in now))
        return found

    def move(self, move: Move) -> MovedHere:
        """Move the rows of every block, unless it was done just now."""
        key = self.setting.run, self.group.number, move.name
        found = _memory.get(key)
        if found is None:
            found, kept = self._visit(move)
            _memory.put(key, found, sum(each.nbytes for each in found.values))
            if kept is not None:
                _memory.put((*key, "kept"), kept, sum(each.nbytes for each in kept))
        return found

    def curvature(self, keeper: Move | Ref) -> list[Array]:
        """Return the curvature that a visit kept, of every block."""
        if isinstance(keeper, Ref):
            found = self.arrays(keeper)
            return [found[f"L_{i}"] for i in range(len(self.group.blocks))]
        key = self.setting.run, self.group.number, keeper.name, "kept"
        found = _memory.get(key)
        if found is None:
            found = self._visit(keeper)[1]
            _memory.put(key, found, sum(each.nbytes for each in found))
        return found

    def _visit(self, move: Move) -> tuple[MovedHere, Any]:
        visit = replace(move.visit, design=self.arrays(move.visit.design)["F"])
        all_rows = self.rows(self.point(move.start))
        if move.kept is not None:
            for rows, kept in zip(all_rows, self.curvature(move.kept), strict=True):
                rows.kept = kept
        out, reports = [], []
        for slices, rows in zip(self.slices("rows"), all_rows, strict=True):
            out.append(aligned_empty(rows.factor.values.shape, rows.factor.values.dtype))
            reports.append(visit.run(slices, rows, out[-1], self.setting.n_threads))
        sizes = [rows.log_sizes(visit.total) for rows in all_rows]
        priors = [rows.factor.log_prior(rows.weights) for rows in all_rows]
        keeps = visit.curvature == kernels.KEEP
        kept_here = [rows.kept for rows in all_rows] if keeps else None
        return MovedHere(out, reports, sizes, priors), kept_here

    def save(self, name: str, arrays: Arrays) -> Ref | Arrays:
        """Write arrays of this group to a new file; hand them back where there is no folder."""
        n_bytes = sum(array.nbytes for array in arrays.values())
        if self.setting.folder is None:
            _memory.put((self.setting.run, file_name(name, self.group)), arrays, n_bytes)
            return arrays
        # a worker that was cut off may write as well, and late
        target = Path(self.setting.folder, file_name(f"{name}-{secrets.token_hex(4)}", self.group))
        save_arrays(target, arrays)
        _memory.put((self.setting.run, target.name), arrays, n_bytes)
        return Ref(target.name, str(target))

    def once(self, name: str | None, make: Callable[[], Arrays]) -> Arrays:
        """Make arrays of this group, unless they were left under this name; leave them there.

        They are the same whoever makes them, so that it does not matter whose file it is.
        """
        if name is None or self.setting.folder is None:
            return make()
        path = Path(self.setting.folder, file_name(name, self.group))
        if path.exists():
            return read_arrays(str(path))
        found = make()
        save_arrays(path, found)
        return found


@contextmanager
def workbench_of(setting: Setting, group: Group, given: Mapping[str, Any]) -> Iterator[Workbench]:
    """Compute as all workers of a fit do, on a group of its blocks."""
    setting.take()
    with single_blas_thread():
        yield Workbench(setting, group, given)
