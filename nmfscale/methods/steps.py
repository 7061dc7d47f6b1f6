"""What is done with one block of counts, wherever it is: rows move, columns are summed.

A visit says what is to be done, the same for all blocks; what it finds in a block depends on the
block alone.  Small numbers of blocks are put together in their order, large arrays in the fixed
tree of `TreeSum`, so that it makes no difference where and when a block was visited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..counts.sell import LANES, SellBlock
from .factors import LEAST, MINVAL, Array, Factor, Report, in_order, over_slices

# Sums over blocks: so many neighbours are added, then so many of their sums, and so on.
FAN_IN = 4
KEPT_FROM = 2
# SellBlock whose correlations are in memory at a time: those of many components are large.
_SAMPLED_TOGETHER = 16


def sliced_counts(slices: SellBlock, n_design: int) -> Any:
    """Return slices as the kernels take them, whose indices are below `n_design`."""
    return kernels.SlicedCounts(slices.index, slices.count, slices.offset, n_design)


@dataclass
class Rows:
    """Rows of L in one block, or all of them, in lane order: what a visit knows besides counts.

    Attributes
    ----------
    factor : Factor
        Their loadings.
    totals : ndarray of float64
        Sum of the counts in each lane.
    weights : ndarray of float64, optional
        Weight of each lane in the likelihood.
    kept : ndarray of uint16, optional
        Of the curvature of the longest rows, as the kernels keep it.
    """

    factor: Factor
    totals: Array
    weights: Array | None = None
    kept: Array | None = None

    def part(self, here: slice, n_rows: int) -> Rows:
        """Return some lanes, with `n_rows` rows, in the same memory."""
        weights = None if self.weights is None else self.weights[here]
        return Rows(self.factor.part(here, n_rows), self.totals[here], weights)

    def log_sizes(self, total_F: Array) -> float:
        """Sum of t_i log s_i, t_i the total and s_i = sum_k l_ik u_k the size of sample i."""
        L = self.factor.values  # zero beyond K, as total_F is
        # not a product of matrices: threads of a BLAS stay busy for a while after one
        sizes = np.einsum("ik,k->i", L, total_F.astype(L.dtype)).astype(np.float64)
        np.log(np.maximum(sizes, LEAST, out=sizes), out=sizes)
        return self.weighted(np.multiply(self.totals, sizes, out=sizes))

    def weighted(self, values: Array) -> float:
        """Sum of one number a lane; lanes without a row have to hold 0."""
        return in_order(values if self.weights is None else values * self.weights)


def room_for_kept(longest: Array, n_components: int) -> Array:
    """Return room for what is kept of long rows' curvature: there it saves work.

    Long means that the longest row of a slice has `KEPT_FROM` times as many nonzeros as curvature
    has numbers, so that the room is small beside the counts.
    """
    size = kernels.packed_size(n_components)
    n_long = int((longest >= KEPT_FROM * size).sum())
    return np.zeros((n_long, size, LANES), np.uint16)


def correlations(sliced: Any, problem: Any, start: Array, K: int, n_threads: int) -> Array:
    """Add up the correlations of a sample of rows, packed, and their weight.

    A sample whose share falls with K costs no more than the visit.
    """
    every = max(1, K // 4)
    sampled = range(0, sliced.n_slices, every)
    total = np.zeros(kernels.packed_size(K) + 1)
    room = np.empty((_SAMPLED_TOGETHER, len(total)))
    for i in range(0, len(sampled), _SAMPLED_TOGETHER):
        some = sampled[i : i + _SAMPLED_TOGETHER]
        found = room[: len(some)]
        kernels.correlations(
            sliced, problem, start, found, first=some[0], every=every, n_threads=n_threads
        )
        kernels.sum_slices(found, total)
    return total


@dataclass(frozen=True)
class RowVisit:
    """What every row of L does while F is held.

    Attributes
    ----------
    method : {"visit", "descend"}
        The kernel.
    design, total : ndarray (lanes, stride) and (stride,)
        F in lane order and its column sums.
    n_components : int
    options : dict
        Of `kernels.RowProblem`.
    report : tuple of {"loglik_start", "kkt_start"}
        What to report.
    curvature : {kernels.KEEP, kernels.KEPT, kernels.SCALED}, optional
        Whether a second-order step keeps its curvature, or takes what was kept, with today's
        diagonal or scaled by today's numerators.
    renew : bool
        Whether to report correlations that later steps share.
    """

    method: str
    design: Any
    total: Array
    n_components: int
    options: dict[str, Any] = field(default_factory=dict)
    report: tuple[str, ...] = ()
    curvature: int | None = None
    renew: bool = False

    def run(self, slices: SellBlock, rows: Rows, out: Array, n_threads: int) -> RowReport:
        """Move a block's rows into `out`; rows that are held stay."""
        factor = rows.factor
        sliced = sliced_counts(slices, self.design.shape[0])
        problem = kernels.RowProblem(
            self.design, self.total.astype(self.design.dtype), self.n_components, floor=MINVAL,
            **self.options,
        )  # fmt: skip
        arrays: dict[str, Any] = {name: np.zeros(len(out)) for name in self.report}
        seen = dict(arrays)
        if self.curvature is not None:
            if rows.kept is None:
                rows.kept = room_for_kept(np.diff(slices.offset), self.n_components)
            arrays |= {"kept": rows.kept, "curvature_mode": self.curvature}
        found = None
        if self.renew:
            found = correlations(sliced, problem, factor.values, self.n_components, n_threads)
        getattr(kernels, self.method)(
            sliced, problem, factor.values, out, n_threads=n_threads, **arrays, **factor.prior()
        )
        if factor.held is not None:
            out[factor.held] = factor.values[factor.held]
        log_mu = rows.weighted(seen["loglik_start"]) if "loglik_start" in seen else math.nan
        kkt = factor.largest(seen["kkt_start"]) if "kkt_start" in seen else 0.0
        return RowReport(log_mu, kkt, found)


class RowReport(NamedTuple):
    """What a visit of rows saw of the point where it started."""

    log_mu: float
    kkt: float
    correlations: Array | None

    @staticmethod
    def of_all(reports: list[RowReport]) -> RowReport:
        """Put the reports of all blocks together."""
        found = [each.correlations for each in reports if each.correlations is not None]
        return RowReport(
            math.fsum(each.log_mu for each in reports),
            max(each.kkt for each in reports),
            np.sum(found, axis=0) if found else None,
        )


class Arrival(NamedTuple):
    """Where rows went on to, and from: column sums; the largest change, how many zeros."""

    sums: Array
    sums_before: Array
    change: float
    zeros: float

    @staticmethod
    def of_all(arrivals: list[Arrival]) -> Arrival:
        """Put those of all blocks together."""
        if len(arrivals) == 1:
            return arrivals[0]
        return Arrival(
            np.sum([each.sums for each in arrivals], axis=0),
            np.sum([each.sums_before for each in arrivals], axis=0),
            max(each.change for each in arrivals),
            math.fsum(each.zeros for each in arrivals),
        )

    def note(self, report: Report, n_rows: int, n_components: int) -> None:
        """Say how far a factor of so many rows went, relative to its mean."""
        n, total = n_rows * n_components, float(self.sums[:n_components].sum())
        report.change = self.change * n / total if total > 0 else 0.0
        report.zeros = self.zeros / n


class Momentum(NamedTuple):
    """How a factor goes on: to ``now + beta (now - scale * before)``, at least ``leaves * now``.

    Attributes
    ----------
    beta : float, default=0
    scale : ndarray (stride,), optional
        Of the columns of the point before: see `Halves.scale_of_before`. By default 1.
    leaves : float, default=0
        Momentum leaves at least this share of a parameter.
    """

    beta: float = 0.0
    scale: Array | None = None
    leaves: float = 0.0


class GoingOn:
    """Where `factor` goes on to, as the kernels take it, and what they sum of it.

    Parameters
    ----------
    factor : Factor
        Whose values take the next point.
    momentum : Momentum
    **points : ndarray (lanes, stride)
        Of `kernels.Ahead`.
    """

    def __init__(self, factor: Factor, momentum: Momentum, **points: Array | None):
        ahead = factor.values
        n_slices, stride = len(ahead) // LANES, ahead.shape[1]
        self.sums = np.empty((n_slices, 2, stride))
        self.change, self.zeros = np.empty(n_slices), np.empty(n_slices, np.int64)
        scale = np.ones(stride) if momentum.scale is None else momentum.scale
        self.ahead = kernels.Ahead(
            factor.n_rows, ahead, momentum.beta, scale.astype(ahead.dtype), self.sums,
            self.change, self.zeros, leaves=momentum.leaves, **points,
        )  # fmt: skip

    def arrival(self, factor: Factor, now: Array | None, weights: Array | None = None) -> Arrival:
        """Return the sums, of which the kernel knows neither weights nor what is held.

        `now` is wanted where there is either.
        """
        sums, sums_before = over_slices(self.sums)
        if now is not None and (factor.held is not None or weights is not None):
            sums = factor.column_sums(weights)
            sums_before = replace(factor, values=now).column_sums(weights)
        change = float(self.change.max(initial=0.0))
        return Arrival(sums, sums_before, change, float(self.zeros.sum()))


def go_on(
    rows: Rows, now: Array, before: Array, momentum: Momentum, n_threads: int,
    best: Array | None = None,
) -> Arrival:  # fmt: skip
    """Go on from `now` to the factor's values, of which `best` takes a copy before."""
    factor = rows.factor
    start = None if best is None else factor.values
    problem = kernels.RowProblem(
        now, np.zeros(now.shape[1], now.dtype), factor.n_components, floor=MINVAL
    )
    going_on = GoingOn(factor, momentum, before=before, start=start, best=best)
    kernels.extrapolate(problem, now, going_on.ahead, n_threads=n_threads)
    if factor.held is not None:
        factor.values[factor.held] = now[factor.held]
    return going_on.arrival(factor, now, rows.weights)


class Part(NamedTuple):
    """SellBlock first:last of the columns, and which statistics of them are summed."""

    first: int
    last: int
    wanted: int


@dataclass(frozen=True)
class ColumnVisit:
    """What is summed of the columns while L is held, so that F can step.

    Attributes
    ----------
    start : ndarray (lanes, stride)
        F in lane order.
    n_components : int
    options : dict
        Of `kernels.RowProblem`.
    parts : tuple of Part
    renew : bool
        Whether to sum correlations that later steps share.
    """

    start: Any
    n_components: int
    options: dict[str, Any]
    parts: tuple[Part, ...]
    renew: bool = False

    def room(self) -> list[Array]:
        """Return zeros to add to, one array for each part, and one for correlations."""
        K = self.n_components
        out = [
            np.zeros((part.last - part.first, kernels.statistics_size(K, part.wanted), LANES))
            for part in self.parts
        ]
        return out + ([np.zeros(kernels.packed_size(K) + 1)] if self.renew else [])

    def add(self, sums: list[Array], slices: SellBlock, rows: Rows, n_threads: int) -> None:
        """Add a block's share, L as `rows` has it."""
        L = rows.factor.values
        sliced = sliced_counts(slices, len(L))
        weight = None if rows.weights is None else rows.weights.astype(L.dtype)
        problem = kernels.RowProblem(
            L, np.zeros(L.shape[1], L.dtype), self.n_components, floor=MINVAL, weight=weight,
            **self.options,
        )  # fmt: skip
        if self.renew:
            sums[-1] += correlations(sliced, problem, self.start, self.n_components, n_threads)
        for part, out in zip(self.parts, sums, strict=False):
            kernels.sums(
                sliced, problem, self.start, out, wanted=part.wanted, first=part.first,
                last=part.last, n_threads=n_threads,
            )  # fmt: skip

    def over(self, blocks: Iterable[tuple[SellBlock, Rows]], n_threads: int) -> list[Array]:
        """Sum over blocks, which begin where the tree does."""
        tree, blocks = TreeSum(), iter(blocks)
        while True:
            sums, n_added = self.room(), 0
            for slices, rows in islice(blocks, FAN_IN):
                self.add(sums, slices, rows, n_threads)
                n_added += 1
            if n_added:
                tree.add(sums)
            if n_added < FAN_IN:
                return tree.result()


class TreeSum:
    """A sum in a fixed order: `FAN_IN` neighbours, then so many of these sums, and so on.

    Whoever adds up whole branches of the tree elsewhere finds the same bits.
    """

    def __init__(self) -> None:
        self._branches: list[list[list[Array]]] = []

    def add(self, arrays: list[Array]) -> None:
        """Add the next; the arrays are written over."""
        self._put(arrays, 0)

    def _put(self, arrays: list[Array], level: int) -> None:
        if level == len(self._branches):
            self._branches.append([])
        branch = self._branches[level]
        branch.append(arrays)
        if len(branch) == FAN_IN:
            self._branches[level] = []
            self._put(fold(branch), level + 1)

    def result(self) -> list[Array]:
        """Return the sum of everything."""
        rest: list[list[Array]] = []
        for branch in self._branches:
            together = branch + rest
            rest = [fold(together)] if together else []
        return rest[0]


def fold(items: list[list[Array]]) -> list[Array]:
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
