"""Loadings of rows of counts with fixed factors: a convex problem for each row.

With u the column sums of F, a row is ``min over b >= 0 of sum_k b_k u_k - sum_j x_j log(f_j . b)``.
It takes EM and Newton steps until its KKT residual is small and no EM step would raise a loading.
With more than `ACTIVE_ABOVE` components, Newton steps are restricted to the active components of a
row: they are few, and the K x K curvature of a row would cost a hundred times as much as its
gradient. Always in float64: if topics are nearly dependent, float32 ends before the optimum of a
row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...counts.sell import lanes_of
from ...engine import progress
from ...engine.protocol import Block, Executor, Needs, RowArrays, Step, Sums, Values
from ...kernels.functions import log
from ...storage.atomic import atomic_write
from ..factors import (
    LEAST,
    MINVAL,
    Array,
    aligned_copy,
    balancing_scales,
    per_lane,
    to_lanes,
)
from ..rows_pass import LaneBlocks, RowsPass
from ..slices import pieces, sliced_counts
from ..weights.measured import SampleGroups, own_totals
from ..weights.poisson_weights import ENTRIES, Observed, PoissonWeights, row_inputs, totals_of_rows
from .penalised_rows import PenalisedRows
from .penalty import Penalty
from .projector import ACTIVE_ABOVE, ROUNDS, TOL, Projector, RowSteps

# Copies of the loadings of a block and of F; numbers for every row of a block, and for every row.
_COPIES_BLOCK, _COPIES_HELD, _PER_BLOCK_ROW, _PER_NEW_ROW = 6, 5, 8, 4


def design_of(F: Array, order: Array, dtype: Any) -> tuple[Array, Array]:
    """Return factors (m, K) in lane order, and their column sums, for a `Projector`.

    A component without factors has sum 0 and loadings 0: it cannot explain any count.
    """
    K, stride = F.shape[1], kernels.row_stride(F.shape[1])
    total = np.zeros(stride)
    total[:K] = np.asarray(np.maximum(F, MINVAL), np.float64).sum(axis=0)
    total[:K][~F.any(axis=0)] = 0
    return to_lanes(F, order, stride, dtype, least=MINVAL), total


def _totals_of(
    design: Array,
    total: Array,
    order: Array,
    n_components: int,
    measured: Observed,
) -> Array:
    """Return the column sums of factors in lane order, times the values of groups (G, stride).

    They are 0 for components without factors in any feature of a group. If entries have weights,
    steps compute the sums of each row, and these are the sums of all features, `total` (stride,).
    """
    if isinstance(measured, PoissonWeights):
        return total
    totals = np.zeros((len(measured.values), design.shape[1]))
    for total, values in zip(totals, measured.values, strict=True):
        value = per_lane(values, order)
        there = value > 0
        of_group = design[there]
        alive = (of_group[:, :n_components] > MINVAL).any(axis=0)
        if value.dtype != bool:
            of_group = of_group * value[there, None]
        total[:n_components][alive] = of_group.sum(axis=0)[:n_components][alive]
    return totals


@dataclass(frozen=True)
class ProjectRows(Step):
    """Moves the loadings of every row to their optimum with F fixed: see `Projector`.

    `L` is the start; without it every component has the same expected counts. `total` is (stride,),
    or (n_groups, stride) if groups of rows have different measured features. The first `n_features`
    lanes of F are rows. If entries have weights, `e` (m, n_groups) are efficiencies of groups.
    """

    F: Any
    total: Array
    n_components: int
    n_steps: int = ROUNDS
    tol: float = TOL
    n_features: int = 0
    how: RowSteps | None = None
    penalty: Penalty | None = None
    e: Array | None = None

    reads = "rows"
    shared = ("F",)
    arrays = RowArrays(
        ("L", "totals", "pseudo", "rate", "groups", ENTRIES), ("projected",), ("projected",)
    )

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        totals, L, total = block["totals"], block.get("L"), self.total
        own = _own_totals(block, total, self.F, self.n_features, len(totals), self.e)
        if own is not None:
            own, total = own.astype(self.F.dtype), np.zeros(total.shape[-1])
        if L is None:
            L = self._equal(totals, block.n_rows, self.total if own is None else own)
        values = block.empty("projected", L)
        values[:] = L
        prior = {name: block[name] for name in ("pseudo", "rate") if block.get(name) is not None}
        with_own = prior
        if own is not None:  # components without factors in a row's features: floor
            with_own = own_totals(np.where(own > 0, own, 1), prior, own.dtype)
        projector = Projector(
            self.F, total, self.n_components, self.n_steps, self.tol, n_threads, own is not None,
            self.how,
        )  # fmt: skip
        # if all rows of a block take the same few steps, they take them together
        whole = self.n_steps < ROUNDS and self.n_components <= ACTIVE_ABOVE
        unfinished = 0
        for piece in pieces(block.counts, self.n_components, n_threads, whole):
            lanes = lanes_of(piece)
            problem = (
                sliced_counts(block.counts.slices(piece), len(self.F)), values[lanes],
                totals[lanes], {name: array[lanes] for name, array in with_own.items()},
            )  # fmt: skip
            unfinished += self._move(projector, block.get("L") is None, *problem)
            progress.advance(max(0, min(lanes.stop, block.n_rows) - lanes.start))
        if own is not None:
            best = np.zeros_like(values)
            if prior:
                np.divide(prior["pseudo"], prior["rate"], out=best, where=prior["rate"] > 0)
            np.copyto(values, best, where=own == 0)
        return {"unfinished": float(unfinished)}

    def _move(
        self, projector: Projector, new: bool, sliced: Any, values: Array, totals: Array,
        prior: dict[str, Array],
    ) -> int:  # fmt: skip
        """Move some rows, with the penalty if there is one."""
        if self.penalty is None:
            return projector.move(sliced, values, totals, prior)
        rows = PenalisedRows(projector, self.penalty, sliced, totals, prior)
        rows.move(values, new)
        return 0

    def _equal(self, totals: Array, n_rows: int, total: Array) -> Array:
        K = self.n_components
        sums = np.broadcast_to(total, (len(totals), total.shape[-1]))[:, :K]
        share = np.zeros(sums.shape)  # a component without factors has no loadings
        np.divide(1, K * sums, out=share, where=sums > 0)
        order = np.where(np.arange(len(totals)) < n_rows, np.arange(len(totals)), -1)
        plain = totals[:, None] * share
        return to_lanes(plain, order, self.F.shape[1], self.F.dtype, least=MINVAL)


def _own_totals(
    block: Block, total: Array, F: Array, n_features: int, n_lanes: int, e: Array | None
) -> Any:
    """Return the totals of each lane of a block, 0 for components without factors in its features.

    See `totals_of_rows`.
    """
    if block.get(ENTRIES) is None:
        return totals_of_rows(block, total, F, n_features, n_lanes)
    # sums of factors at the floor, which are zeros, are 0
    totals = totals_of_rows(block, total, np.where(F > MINVAL, F, 0), n_features, n_lanes, e)
    return np.where(totals > LEAST, totals, 0)


def fit_rows(
    counts: CountMatrix, executor: Executor, F: Array, L: Array, *, n_steps: int, dtype: DTypeLike,
    measured: Observed | None = None,
) -> Array:  # fmt: skip
    """Return loadings (n, K) after a few steps from L, with factors F (m, K) fixed."""
    layout, K, dtype = executor.layout, F.shape[1], np.dtype(dtype)
    scales = balancing_scales(counts.total, counts.shape, L, F)
    design, total = design_of(F / scales.astype(F.dtype), layout.column_order, dtype)
    inputs: dict[str, Any] = {"totals": per_lane(counts.row_totals, layout.row_order)}
    if measured is not None:
        total = _totals_of(design, total, layout.column_order, K, measured)
        inputs |= row_inputs(measured, layout)
    start = L * scales.astype(L.dtype)
    inputs["L"] = LaneBlocks(layout, start, design.shape[1], dtype, least=MINVAL)
    step = ProjectRows(design, total, K, n_steps, n_features=len(F))
    n_threads = executor.n_threads
    rows_pass = RowsPass(counts, (step,), "projected", K, inputs, n_threads=n_threads)
    loadings = rows_pass.gather_on(executor)
    loadings /= scales.astype(loadings.dtype)
    return loadings


def projection(
    counts: CountMatrix, F: Array, *, L: Array | None = None, n_steps: int = ROUNDS,
    tol: float = TOL, dtype: DTypeLike = np.float64, n_threads: int = 1,
    prior: tuple[Array, Array] | None = None, total: Array | None = None,
    measured: Observed | None = None, scored: bool = False,
    how: RowSteps | None = None, penalty: Penalty | None = None,
) -> RowsPass:  # fmt: skip
    """Return the pass that finds loadings (n, K) of rows with factors F (m, K) fixed.

    Rows start at L, by default with the same expected counts of every component. `prior` has
    pseudo-counts and rates (n, K). `total` (K,) is the expected size of a row per unit of each
    loading, by default the column sums of F; `measured` holds the measured features of rows. If
    `scored` is true, the pass finds ``sum_j x_ij log p_ij`` of each row instead, with ``p_ij =
    mu_ij / sum_j mu_ij`` and mu = L F^T: see `LogShares`.
    """
    scales, dtype = balancing_scales(counts.total, counts.shape, L, F), np.dtype(dtype)
    F, L = F / scales, None if L is None else L * scales
    total = None if total is None else total / scales
    if penalty is not None:
        penalty = penalty.scaled(scales)
    layout, K = counts.layout(n_threads), F.shape[1]
    design, sums = design_of(F, layout.column_order, np.float64)
    if total is not None:
        sums[:K] = np.where(sums[:K] > 0, total, 0)
    inputs: dict[str, Any] = {"totals": per_lane(counts.row_totals, layout.row_order)}
    if measured is not None:
        sums = _totals_of(design, sums, layout.column_order, K, measured)
        inputs |= row_inputs(measured, layout)
    lanes = partial(LaneBlocks, layout, stride=design.shape[1], dtype=np.float64)
    if L is not None:
        inputs["L"] = lanes(plain=L, least=MINVAL)
    if prior is not None:
        inputs["pseudo"] = lanes(plain=prior[0], empty=0)
        inputs["rate"] = lanes(plain=prior[1] / scales, empty=0)
    e = measured.of_groups(layout.column_order) if isinstance(measured, PoissonWeights) else None
    step = ProjectRows(design, sums, K, n_steps, tol, len(F), how, penalty, e)
    rows_pass = RowsPass(
        counts, (step,), "projected", K, inputs, projection_needs(counts, K), n_threads,
        (lambda rows, loadings: (loadings / scales).astype(dtype, copy=False),),
    )  # fmt: skip
    if not scored:
        return rows_pass
    sizes = F.sum(axis=0, dtype=np.float64) if total is None else total
    sizes = measured.group_sums(F) if isinstance(measured, SampleGroups) else sizes
    log_mu = LogMu.of(F, layout.column_order, "projected")
    lanes_of_F = log_mu.F if isinstance(measured, PoissonWeights) else None
    steps = (*rows_pass.steps, log_mu, LogShares(sizes, "projected", lanes_of_F, len(F), e))
    return replace(rows_pass, steps=steps, output="log_shares", width=1, finish=())


def row_sizes(L: Array, u: Array) -> Array:
    """Return ``sum_k l_ik u_k`` (n,), positive, from float64 loadings and column sums u of F."""
    # summed row by row: the rounding of a matrix product depends on its size
    sizes: Array = np.maximum((L * u).sum(axis=1), LEAST)
    return sizes


def project_rows(counts: CountMatrix, F: Array, **options: Any) -> Array:
    """Return loadings (n, K) of every row of the counts; for `options` see `projection`."""
    return projection(counts, F, **options).gather()


def projection_needs(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory for loadings of new rows; `row` is the part for each row of a block."""
    stride = kernels.row_stride(n_components)
    n, m = counts.shape
    return Needs(
        row=(stride * _COPIES_BLOCK + _PER_BLOCK_ROW) * 8,
        shared=m * stride * _COPIES_HELD * 8 + n * _PER_NEW_ROW * 8,
        sums=0,
    )


def write_array(
    target: Path, shape: tuple[int, ...], dtype: np.dtype[Any], pieces: Iterable[Array]
) -> None:
    """Write an array to a file in NumPy's format, some rows at a time, atomically."""
    described = np.lib.format.dtype_to_descr(dtype)
    with atomic_write(target) as part, part.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": described, "fortran_order": False, "shape": shape}
        )
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype).data)


@dataclass(frozen=True)
class LogMu(Step):
    """Sums x log mu over the nonzeros of every row, with F (lanes, stride) in float64."""

    F: Any
    n_components: int
    source: str = "L"

    reads = "rows"
    shared = ("F",)

    @classmethod
    def of(cls, F: Array, order: Array, source: str = "L") -> LogMu:
        """Return the step for factors (m, K)."""
        F = np.asarray(F, np.float64)
        K = F.shape[1]
        return cls(to_lanes(F, order, kernels.row_stride(K), np.float64), K, source)

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`."""
        return RowArrays((self.source,), ("log_mu",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Sum over the rows of a block."""
        L = aligned_copy(block[self.source], np.float64)
        logliks = np.zeros(len(L))
        problem = kernels.RowProblem(self.F, np.zeros(self.F.shape[1]), self.n_components)
        sliced = sliced_counts(block.counts, len(self.F))
        kernels.update_rows(sliced, problem, L, None, loglik_end=logliks, n_threads=n_threads)
        block.put("log_mu", logliks)
        return {}


@dataclass(frozen=True)
class LogShares(Step):
    """Makes ``log_shares`` of ``log_mu``: expected counts are divided by the size of their row.

    `sizes` (K,), or (n_groups, K) for rows of each group, is the expected size per unit of each
    loading. If entries have weights, it is computed from F (lanes, stride) and efficiencies `e`
    (m, n_groups) of groups.
    """

    sizes: Array
    source: str
    F: Any = None
    n_features: int = 0
    e: Array | None = None

    shared = ("F",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and what `LogMu` made of them."""
        return RowArrays((self.source, "log_mu", "totals", "groups", ENTRIES), ("log_shares",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Find the log shares of the rows of a block."""
        sizes, L = self.sizes, block[self.source][:, : self.sizes.shape[-1]]
        own = totals_of_rows(block, sizes, self.F, self.n_features, len(L), self.e)
        if own is not None:
            sizes = own[:, : L.shape[1]]
        block.put(
            "log_shares", block["log_mu"] - block["totals"] * log(row_sizes(L, sizes))
        )  # fmt: skip
        return {}


def log_mu_rows(counts: CountMatrix, L: Array, F: Array, *, n_threads: int = 1) -> Array:
    """Return the sum of x log mu over the nonzeros of each row, mu = L F^T, (n,) float64."""
    layout = counts.layout(n_threads)
    step = LogMu.of(F, layout.column_order)
    start = LaneBlocks(layout, L, step.F.shape[1], np.float64)
    return RowsPass(counts, (step,), "log_mu", inputs={"L": start}, n_threads=n_threads).gather()
