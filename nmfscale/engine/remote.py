"""A fit whose rows are spread over the workers of a Dask cluster.

`RemoteRows` offers what `LocalRows` does.  Loadings are points made of saved files (see
`nmfscale.engine.lineage`), so that every task can be done again anywhere; the driver holds F.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import kernels
from ..cluster.pool import WorkerPool
from ..cluster.tasks import Task
from ..counts.aligned import aligned_empty
from ..methods.factors import Array, Factor, Held, Report
from ..methods.local_rows import factor_in_lanes, per_lane
from ..methods.steps import (
    FAN_IN,
    Arrival,
    ColumnVisit,
    Momentum,
    RowReport,
    Rows,
    RowVisit,
    branches,
)
from ..storage.arrays import Arrays, save_arrays
from ..storage.store import StoredCounts
from .lineage import (
    Changed,
    Extrapolated,
    Group,
    Move,
    Point,
    Ref,
    Visited,
    counts_name,
    file_name,
    numbered,
    read_arrays,
)
from .tasks import (
    Moved,
    Summed,
    add_branches,
    move_rows,
    project,
    save_point,
    sum_columns,
    sum_rows,
)
from .worker import Setting

# Factors that may be asked for again.
_RECENT_FACTORS = 4
# Sums of an iteration that take more bytes than this would cost more to save than to find again.
_SAVED_SUMS = 1 << 30


@dataclass(eq=False)
class RemotePoint:
    """Where loadings are, and of what type: a point for each group of blocks."""

    parts: list[Point]
    dtype: np.dtype[Any]


@dataclass(eq=False)
class RemoteFactor:
    """The loadings as a fit knows a factor."""

    n_rows: int
    n_components: int
    values: RemotePoint
    plain: Callable[[], Array]

    def room(self) -> RemotePoint:
        """Return another name for the present point."""
        return RemotePoint(list(self.values.parts), self.values.dtype)


class RemoteRows:
    """The rows of L with their counts, worked on by a pool.

    Parameters
    ----------
    counts : StoredCounts of shape (n, m)
    L : ndarray (n, K)
        Start, positive.
    dtype : float32 or float64
    held : Held
    pool : WorkerPool
        Which fetches what it sends by `fetch`.
    setting : Setting
    folder : Path
        Of the driver, for all files of the fit.
    group_size : int
        How many blocks make a task.
    save_every : int, default=1
        Of so many visits of the rows, the loadings after the first two are saved.
    """

    one_block = False

    def __init__(
        self, counts: StoredCounts, L: Array, dtype: Any, held: Held, pool: WorkerPool,
        setting: Setting, folder: Path, group_size: int, save_every: int = 1,
    ):  # fmt: skip
        self.layout, self.pool, self.setting, self.folder = counts.layout(), pool, setting, folder
        self.dtype, self.save_every, self.bytes_read = np.dtype(dtype), save_every, 0
        order = self.layout.row_order
        weights = None if held.weights is None else per_lane(held.weights, order)
        whole = factor_in_lanes(L, order, dtype, held=held.samples, prior=held.prior_loadings)
        self.all = Rows(whole, per_lane(counts.row_totals, order), weights)
        self.groups = [
            self._group(number, blocks)
            for number, blocks in enumerate(branches(len(self.layout.blocks), group_size))
        ]
        self._n_points = self._n_moves = self._n_factors = self._n_sums = 0
        self.factor = RemoteFactor(
            whole.n_rows, whole.n_components,
            RemotePoint(self._saved(whole.values), self.dtype), self.plain,
        )  # fmt: skip
        self.all.factor = Factor(order, whole.n_rows, whole.n_components, np.empty((0, 0)))
        self._keepers: list[Move | Ref] = []
        self._recent: deque[Ref] = deque(maxlen=_RECENT_FACTORS)
        self._pending: tuple[Arrival, Report, list[Point]] | None = None
        self._seen = 0.0, 0.0

    def _group(self, number: int, blocks: range) -> Group:
        """Save what is known of a group's rows besides their counts and loadings."""
        stored, arrays = tuple(self.layout.blocks[i] for i in blocks), Arrays()
        whole = self.all.factor
        for i, block in enumerate(stored):
            here = slice(block.first, block.last)
            known = {
                "totals": self.all.totals, "weights": self.all.weights, "held": whole.held,
                "pseudo": whole.pseudo, "rate": whole.rate,
            }  # fmt: skip
            arrays |= {f"{n}_{i}": array[here] for n, array in known.items() if array is not None}
        return Group(number, stored, self._write(f"about-{number:06d}.npz", arrays))

    def _write(self, name: str, arrays: Arrays) -> Ref:
        save_arrays(self.folder / name, arrays)
        return Ref(name, str(self.folder / name))

    def _saved(self, values: Array) -> list[Point]:
        """Save loadings in lane order and return where they are."""
        self._n_points += 1
        parts: list[Point] = []
        for group in self.groups:
            arrays = numbered([values[block.first : block.last] for block in group.blocks])
            ref = self._write(file_name(f"point-{self._n_points}", group), arrays)
            parts.append(self._visited(ref))
        return parts

    def _visited(self, ref: Ref) -> Visited:
        """Return a saved point, whose file goes when nothing is made of it any more."""
        point = Visited(ref, None)
        weakref.finalize(point, _drop, ref, weakref.ref(self.pool))
        return point

    def _publish(self, F: Array) -> Ref:
        """Save F in a file, which goes when no move is made with it any more."""
        name = f"F-{hashlib.blake2b(F.data, digest_size=16).hexdigest()}"
        for known in self._recent:
            if known.name.startswith(name):
                return known
        self._n_factors += 1
        ref = self._write(f"{name}-{self._n_factors}.npz", {"F": F})
        weakref.finalize(ref, _drop, replace(ref), weakref.ref(self.pool))
        self._recent.append(ref)
        return ref

    def _jobs(self, which: str, refs: list[Ref], *args: Any) -> list[Task]:
        """Return a task for each group; each of `args` is for all, or a list with one for each."""
        tasks = []
        for i, group in enumerate(self.groups):
            sends: list[str] = []
            if self.setting.store is None and which:
                sends += [counts_name(block, which) for block in group.blocks]
            if self.setting.folder is None:
                sends += [ref.name for ref in refs]
            own = tuple(arg[i] if isinstance(arg, list) else arg for arg in args)
            label = f"rows {group.blocks[0].start}:{group.blocks[-1].stop} of {self.layout.path}"
            tasks.append(Task(label, (self.setting, group, *own), group.number, tuple(sends)))
            if which:
                self.bytes_read += sum(block.nbytes(which) for block in group.blocks)
        return tasks

    def fetch(self, name: str) -> Any:
        """Return what a pool sends under a name."""
        if name.startswith("counts-"):
            _, number, which = name.split("-")
            return self.layout.file.read(self.layout.blocks[int(number)], which)
        return read_arrays(str(self.folder / name))

    def move(self, visit: RowVisit, out: RemotePoint) -> RowReport:
        """Move all rows into `out`."""
        ref = self._publish(visit.design)
        sent, name = replace(visit, design=ref), f"move-{self._n_moves}"
        kept: list[Any] = [None] * len(self.groups)
        if visit.curvature in (kernels.KEPT, kernels.SCALED):
            kept = self._keepers
        moves = [
            Move(name, sent, start, keeper)
            for start, keeper in zip(self.factor.values.parts, kept, strict=True)
        ]
        # a point ahead is made from two: both saved, nothing before is needed
        save = self._n_moves % self.save_every < 2
        self._n_moves += 1
        found: list[Moved] = self.pool.run(
            "rows", move_rows, self._jobs("rows", [ref], moves, save)
        )
        if visit.curvature == kernels.KEEP:
            self._keepers = list(moves)
        out.parts = [
            self._visited(self._ref(name, group, moved.saved)) if save else Visited(None, move)
            for group, move, moved in zip(self.groups, moves, found, strict=True)
        ]
        self._seen = (
            float(np.sum([size for moved in found for size in moved.log_sizes])),
            float(np.sum([prior for moved in found for prior in moved.log_priors])),
        )
        return RowReport.of_all([report for moved in found for report in moved.reports])

    def project(self, F: Array, total: Array, n_steps: int) -> Array:
        """Return loadings (n, K) a few steps from here, with F, in lane order, held."""
        ref, self._n_points = self._publish(F), self._n_points + 1
        name = f"point-{self._n_points}"
        tasks = self._jobs("rows", [ref], name, self.factor.values.parts, ref, total, n_steps)
        found = self.pool.run("project", project, tasks)
        self.factor.values.parts = [
            self._visited(self._ref(name, group, saved))
            for group, saved in zip(self.groups, found, strict=True)
        ]
        return self.plain()

    def _ref(self, name: str, group: Group, saved: Any) -> Ref:
        """Where a worker saved arrays; or save what it handed back."""
        return saved if isinstance(saved, Ref) else self._write(file_name(name, group), saved)

    def go_on(
        self, now: RemotePoint, before: RemotePoint, momentum: Momentum, report: Report,
        best: RemotePoint | None = None,
    ) -> Arrival:  # fmt: skip
        """Go on from `now`: where to is found, and the sums filled in, when columns are summed."""
        if best is not None:
            best.parts = self.cast(self.factor.values, best.dtype).parts
        self._n_points += 1
        self.factor.values.parts = [
            Extrapolated(f"ahead-{self._n_points}", here, old, momentum)
            for here, old in zip(now.parts, before.parts, strict=True)
        ]
        sums, sums_before = np.zeros((2, kernels.row_stride(self.factor.n_components)))
        arrival = Arrival(sums, sums_before, 0.0, 0.0)
        # without momentum it is where it was; the point before, which may be made of many, can go
        parts = self.factor.values.parts if momentum.beta else now.parts
        self._pending = arrival, report, list(parts)
        return arrival

    def sums(self, visit: ColumnVisit) -> list[Array]:
        """Sum the columns over all blocks."""
        ref = self._publish(visit.start)
        self._n_sums += 1
        name = f"sums-{self._n_sums}"
        n_bytes = len(self.groups) * sum(array.nbytes for array in visit.room())
        saved = name if n_bytes <= _SAVED_SUMS else None
        sent = replace(visit, start=ref)
        tasks = self._jobs("columns", [ref], saved, self.factor.values.parts, sent)
        found: Summed = self.pool.reduce("sums", sum_columns, tasks, add_branches, FAN_IN)
        for group in self.groups if saved else ():
            _remove(str(self.folder / file_name(name, group)))
        if self._pending is not None:
            pending, report, self.factor.values.parts = self._pending
            arrival = Arrival.of_all(found.arrivals)
            pending.sums[:], pending.sums_before[:] = arrival.sums, arrival.sums_before
            arrival.note(report, self.factor.n_rows, self.factor.n_components)
            self._pending = None
        return found.sums

    def column_sums(self) -> Array:
        """Return the sums over rows."""
        self._pending = None
        tasks = self._jobs("", [], self.factor.values.parts)
        found = self.pool.run("totals", sum_rows, tasks)
        return np.sum([each for group in found for each in group], axis=0)

    def log_sizes(self, total_F: Array) -> float:
        """Sum of t_i log s_i where the last visit of the rows began."""
        return self._seen[0]

    def log_prior(self) -> float:
        """Sum of the logarithms of the loadings' prior where the last visit of the rows began."""
        return self._seen[1]

    def put(self, out: RemotePoint, values: RemotePoint | Array) -> None:
        """Let a point be the same as another, in its own type."""
        if not isinstance(values, RemotePoint):
            values = RemotePoint(self._saved(values), values.dtype)
        out.parts = self.cast(values, out.dtype).parts

    def cast(self, values: RemotePoint, dtype: Any = None, zeros: bool = False) -> RemotePoint:
        """Return a point in a type, by default that of the rows."""
        dtype = np.dtype(dtype or self.dtype)
        if dtype == values.dtype and not zeros:
            return RemotePoint(list(values.parts), dtype)
        self._n_points += 1
        name = f"changed-{self._n_points}"
        return RemotePoint([Changed(name, part, str(dtype), zeros) for part in values.parts], dtype)

    def turn_into(self, dtype: Any) -> None:
        """Go on in another type."""
        self.dtype = np.dtype(dtype)
        self.factor.values = self.cast(self.factor.values)

    def restore_zeros(self) -> None:
        """Set what is at the floor to zero."""
        self._floored = self.factor.values
        self.factor.values = self.cast(self.factor.values, zeros=True)

    def lift_zeros(self) -> None:
        """Undo that."""
        self.factor.values = self._floored

    def array(self, values: RemotePoint) -> Array:
        """Return a point as one array in lane order."""
        found = self._read(values.parts)
        shape = len(self.layout.row_order), kernels.row_stride(self.factor.n_components)
        out: Array | None = None
        for group, arrays in zip(self.groups, found, strict=True):
            for i, block in enumerate(group.blocks):
                values_here = arrays[f"L_{i}"]
                if out is None:
                    out = aligned_empty(shape, values_here.dtype)
                out[block.first : block.last] = values_here
        assert out is not None
        return out

    def _read(self, parts: list[Any]) -> Any:
        """Arrays of every group: from their files, or made by workers for this purpose."""
        made = [i for i, p in enumerate(parts) if not (isinstance(p, Visited) and p.saved)]
        refs = {i: p.saved for i, p in enumerate(parts) if i not in made}
        if made:
            self._n_points += 1
            name = f"point-{self._n_points}"
            tasks = self._jobs("", [], name, parts)
            found = self.pool.run("save", save_point, [tasks[i] for i in made])
            refs |= {
                i: self._ref(name, self.groups[i], each)
                for i, each in zip(made, found, strict=True)
            }
        for i in range(len(parts)):
            yield read_arrays(refs[i].path)
            if i in made:
                _remove(refs[i].path)

    def plain(self) -> Array:
        """Return the loadings in the order of the user's rows, (n, K)."""
        values = self.array(self.factor.values)
        order, K = self.layout.row_order, self.factor.n_components
        return Factor(order, self.factor.n_rows, K, values).plain()

    def state(self) -> Arrays:
        """Arrays from which `restore` makes the same rows, here or elsewhere."""
        out = {"L": self.array(self.factor.values)}
        if self._keepers:
            for group, arrays in zip(self.groups, self._read(self._keepers), strict=True):
                for i, block in enumerate(group.blocks):
                    out[f"kept_L_{block.number:06d}"] = arrays[f"L_{i}"]
        return out

    def restore(self, arrays: Arrays) -> None:
        """Stand where the state was taken."""
        self.factor.values.parts = self._saved(arrays["L"])
        self._keepers = []
        if any(name.startswith("kept_L_") for name in arrays):
            for group in self.groups:
                kept = [arrays[f"kept_L_{block.number:06d}"] for block in group.blocks]
                self._keepers.append(self._write(file_name("kept", group), numbered(kept)))


def _drop(ref: Ref, pool: weakref.ref[WorkerPool]) -> None:
    """Remove a file, and what was sent of it."""
    _remove(ref.path)
    alive = pool()
    if alive is not None:
        alive.forget([ref.name])


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
