"""What a worker does for a fit whose rows are spread over many: pure functions of named arrays.

A task is told where everything is that it needs: blocks of a packed store, factors, and loadings
as points.  It keeps nothing that others depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..methods.factors import Array, aligned_copy
from ..methods.steps import Arrival, ColumnVisit, RowReport, fold, sliced_counts
from ..methods.transform import TOL, Projector
from ..storage.arrays import Arrays
from .lineage import Extrapolated, Group, Move, Point, Ref, numbered
from .worker import Setting, workbench_of


class Moved(NamedTuple):
    """What `move_rows` hands back: one entry for each block, and where the rows are, if saved."""

    reports: list[RowReport]
    log_sizes: list[float]
    log_priors: list[float]
    saved: Ref | Arrays | None


def move_rows(
    setting: Setting, group: Group, move: Move, save: bool, given: Mapping[str, Any]
) -> Moved:
    """Move the rows of a group."""
    with workbench_of(setting, group, given) as work:
        found = work.move(move)
        saved = work.save(move.name, numbered(found.values)) if save else None
    return Moved(found.reports, found.log_sizes, found.log_priors, saved)


class Summed(NamedTuple):
    """What `sum_columns` hands back: where every block arrived, and a branch of the sums."""

    arrivals: list[Arrival]
    sums: list[Array]

    def arrays(self) -> Arrays:
        """Return the same as named arrays."""
        fields = zip(Arrival._fields, zip(*self.arrivals, strict=True), strict=False)
        out = {name: np.stack(values) for name, values in fields}
        return out | {f"sums_{i}": array for i, array in enumerate(self.sums)}

    @classmethod
    def of(cls, arrays: Arrays) -> Summed:
        """Return what the named arrays were made of."""
        fields = [arrays[name] for name in Arrival._fields if name in arrays]
        arrivals = [Arrival(*values) for values in zip(*fields, strict=True)]
        return cls(arrivals, [arrays[f"sums_{i}"] for i in range(len(arrays) - len(fields))])


def sum_columns(
    setting: Setting, group: Group, name: str | None, point: Point, visit: ColumnVisit,
    given: Mapping[str, Any],
) -> Summed:  # fmt: skip
    """Sum the columns of a group at a point, and say of one ahead where it is.

    With a name the result is saved, too: it need not be found again if this worker dies.
    """
    with workbench_of(setting, group, given) as work:

        def find() -> Arrays:
            arrivals = work.arrive(point)[1] if isinstance(point, Extrapolated) else []
            here = replace(visit, start=work.arrays(visit.start)["F"])
            blocks = zip(work.slices("columns"), work.rows(work.point(point)), strict=True)
            return Summed(arrivals, here.over(blocks, setting.n_threads)).arrays()

        return Summed.of(work.once(name, find))


def sum_rows(setting: Setting, group: Group, point: Point, given: Mapping[str, Any]) -> list[Array]:
    """Return the column sums of every block's loadings at a point."""
    with workbench_of(setting, group, given) as work:
        rows = work.rows(work.point(point))
        return [each.factor.column_sums(each.weights) for each in rows]


def add_branches(*branches: Summed) -> Summed:
    """Add neighbouring branches of the sums."""
    arrivals = [arrival for branch in branches for arrival in branch.arrivals]
    first = [array.copy() for array in branches[0].sums]
    return Summed(arrivals, fold([first, *(branch.sums for branch in branches[1:])]))


def project(
    setting: Setting, group: Group, name: str, point: Point, F: Ref, total: Array, n_steps: int,
    given: Mapping[str, Any],
) -> Ref | Arrays:  # fmt: skip
    """Save the loadings that a few steps from a point lead to while F is held."""
    with workbench_of(setting, group, given) as work:
        K, n_threads = setting.n_components, setting.n_threads
        projector = Projector(work.arrays(F)["F"], total, K, n_steps, TOL, n_threads)
        all_rows = work.rows([aligned_copy(values) for values in work.point(point)])
        for slices, rows in zip(work.slices("rows"), all_rows, strict=True):
            sliced = sliced_counts(slices, slices.n_others)
            projector.move(sliced, rows.factor.values, rows.totals, rows.factor.prior())
        return work.save(name, numbered([rows.factor.values for rows in all_rows]))


def save_point(
    setting: Setting, group: Group, name: str, point: Point | Move | Ref, given: Mapping[str, Any]
) -> Ref | Arrays:
    """Save the loadings at a point, or the curvature that a visit kept."""
    with workbench_of(setting, group, given) as work:
        if isinstance(point, Move | Ref):
            return work.save(name, numbered(work.curvature(point)))
        return work.save(name, numbered(work.point(point)))
