"""Steps of a Poisson NMF: the work on one block of counts with the other factor fixed.

Row arrays: loadings under several names; ``totals`` (counts of each sample), ``weights`` of samples
in the likelihood and ``weighted`` (counts of the columns times these), ``fixed`` (a mask of samples
whose loadings stay), ``pseudo`` and ``rate`` of a prior, ``groups`` (group numbers of samples with
different measured features) and ``entries`` (with weights), if there are any; ``curvature``, the
stored curvature of long rows. Loadings are (lanes, stride); the other arrays have one number for
each lane, or the shape of loadings; ``weighted``, ``entries`` and ``curvature`` have different
shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.cached import cached_property
from ...counts.sell import LANES, SellBlock, lanes_of
from ...engine.protocol import Block, ColumnStep, OverLanes, Panel, RowArrays, Step, Sums, Values
from ...kernels import dense
from ..factors import LEAST, MINVAL, Array, Factor, at_floor, sum_lanes, weighted_sum
from ..slices import sliced_counts
from ..weights.measured import own_totals
from ..weights.poisson_weights import ENTRIES, totals_of_rows
from .row_update import EM, RowUpdate, correlations, room_for_curvature

# Row arrays of samples other than loadings.
SAMPLES = "weights", "fixed", "pseudo", "rate", "groups", ENTRIES


def rows_of(block: Block, name: str, n_components: int) -> Factor:
    """Return the loadings of a block and their constraints."""
    options = {
        name_of_array: block.get(name_of_array) for name_of_array in ("fixed", "pseudo", "rate")
    }
    return Factor(block[name], block.n_rows, n_components, **options)


@dataclass(frozen=True)
class UpdateRows(Step):
    """Updates every row of L with F fixed; reports diagnostics of the point before the update.

    F (lanes, stride) is in lane order, `total` its column sums (stride,), or those over the
    features of each group of rows (n_groups, stride). Without a `target`, only the `reports`,
    "loglik_start" or "kkt_start", are computed. `correlation` (K, K) holds shared correlations, if
    rows share them. The first `n_features` lanes of F are rows. If groups have efficiencies and
    entries have weights, `e` (m, n_groups) are the efficiencies. `slices` are those of the rows of
    a block that this step updates, None for all.
    """

    F: Any
    total: Array
    n_components: int
    how: RowUpdate = EM
    source: str = "L"
    target: str | None = "next"
    reports: tuple[str, ...] = ()
    correlation: Array | None = None
    n_features: int = 0
    e: Array | None = None
    slices: slice | None = None

    reads = "rows"
    shared = ("F",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `target`, if there is one, and `curvature` if `how` stores it."""
        stored, new = ("curvature",), () if self.target is None else (self.target,)
        reuses = self.how.mode in (kernels.REUSE, kernels.RESCALE)
        makes = (*new, *stored) if self.how.mode == kernels.STORE else new
        return RowArrays((self.source, *SAMPLES, *(stored if reuses else ())), makes, new)

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Update the rows of a block."""
        rows = rows_of(block, self.source, self.n_components)
        sliced = sliced_counts(block.counts, len(self.F))
        total, prior = self.total.astype(self.F.dtype), rows.prior()
        n_lanes = len(rows.values)
        own = totals_of_rows(block, self.total, self.F, self.n_features, n_lanes, self.e)
        if own is not None:
            prior = own_totals(own, prior, total.dtype)
            total = np.zeros(total.shape[-1], total.dtype)
        problem = self.how.problem(self.F, total, self.n_components, self.correlation)
        seen = {name: np.zeros(len(rows.values)) for name in self.reports}
        arrays: dict[str, Any] = {**seen}
        if self.how.mode is not None:
            stored = block.get("curvature")
            if self.how.mode == kernels.STORE:
                stored = room_for_curvature(np.diff(block.counts.offset), self.n_components)
                block.put("curvature", stored)
            elif stored is not None and self.slices is not None:  # long rows are the first
                stored = stored[self.slices]
            arrays |= {"curvature": stored, "curvature_mode": self.how.mode}
        of_block: Values = {}
        if self.how.refresh:
            of_block["correlations"] = correlations(
                sliced, problem, rows.values, self.n_components, n_threads
            )
        out = None if self.target is None else block.empty(self.target, rows.values)
        getattr(kernels, self.how.kernel)(
            sliced, problem, rows.values, out, n_threads=n_threads, **arrays, **prior
        )
        if out is not None and rows.fixed is not None:
            out[rows.fixed] = rows.values[rows.fixed]
        if "loglik_start" in seen:
            log_mu, weights = seen["loglik_start"], block.get("weights")
            log_mu = log_mu if weights is None else log_mu * weights
            of_block["log_mu"] = OverLanes(log_mu, sum_lanes)
        if "kkt_start" in seen:
            of_block["max_kkt"] = rows.largest(seen["kkt_start"])
        return of_block

    def of_slices(self, slices: slice) -> UpdateRows | None:
        """Return the step for some slices of rows, unless it sums over those of a whole block."""
        return None if self.how.refresh else replace(self, slices=slices)


@dataclass(frozen=True)
class SampleTerms(Step):
    """Sums the terms of samples in the objective: sizes, and the log prior of L.

    With t_i the total and s_i = sum_k l_ik u_k the size of a sample, u the column sums of F:
    ``log_sizes`` = sum_i t_i log s_i. If groups of samples have different measured features, u is
    that of the group, and `total` is (n_groups, stride); if entries have weights, u is that of the
    sample, computed from F (lanes, stride), with efficiencies `e` of groups. Then ``expected`` =
    sum_i s_i is computed as well.
    """

    total: Array
    n_components: int
    source: str = "L"
    F: Any = None
    n_features: int = 0
    e: Array | None = None

    shared = ("F",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and all that rows may have."""
        return RowArrays((self.source, "totals", *SAMPLES))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the terms of a block."""
        rows, weights = rows_of(block, self.source, self.n_components), block.get("weights")
        L = rows.values
        terms: Values = {"log_prior": rows.log_prior(weights)}
        own = totals_of_rows(block, self.total, self.F, self.n_features, len(L), self.e)
        if own is not None:
            sizes = (L.astype(np.float64) * own).sum(axis=1)
            terms["expected"] = weighted_sum(sizes, weights)
        else:
            sizes = np.empty(len(L))
            dense.matvec(L, self.total.astype(L.dtype), sizes, n_threads=n_threads)
        np.maximum(sizes, LEAST, out=sizes)
        kernels.log(sizes, sizes, n_threads=n_threads)
        np.multiply(block["totals"], sizes, out=sizes)
        return {"log_sizes": weighted_sum(sizes, weights), **terms}


class Part(NamedTuple):
    """Slices first:last of the columns, and the statistics of them to sum."""

    first: int
    last: int
    wanted: int


@dataclass(frozen=True)
class WeighColumns(Step):
    """Makes ``weighted``: the counts in columns, multiplied by the weights of samples."""

    dtype: str

    reads = "columns"
    arrays = RowArrays(("weights",), ("weighted",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Weight the counts of a block."""
        block.put("weighted", block.counts.weighted(block["weights"], self.dtype, n_threads).count)
        return {}


def weighted_columns(block: Block, dtype: Any, n_threads: int, room: list[Array]) -> SellBlock:
    """Return the columns of a block, weighted if samples have weights; stored or computed."""
    counts: SellBlock = block.counts
    weights, weighted = block.get("weights"), block.get("weighted")
    if weights is None:
        return counts
    if weighted is None:
        return counts.weighted(weights, dtype, n_threads, room)
    return replace(counts, count=weighted)


@dataclass(frozen=True)
class SumColumns(Step):
    """Sums the statistics for a step of F, in lane order, with L fixed.

    `refresh`: whether to sum correlations that later steps share. `room` is memory for the weighted
    counts of one block at a time. `slices` are those of the columns to sum, None for all; `parts`
    are counted from the first of them.
    """

    F: Any
    n_components: int
    parts: tuple[Part, ...]
    refresh: bool = False
    source: str = "L"
    room: list[Array] = field(default_factory=list)
    slices: slice | None = None

    reads = "columns"
    shared = ("F",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and weights of samples."""
        return RowArrays((self.source, "weights", "weighted"))

    def empty_sums(self) -> Sums:
        """Return zero arrays, one for each part and one for correlations."""
        K = self.n_components
        out = [
            np.zeros((part.last - part.first, kernels.statistics_size(K, part.wanted), LANES))
            for part in self.parts
        ]
        return out + ([np.zeros(kernels.packed_size(K) + 1)] if self.refresh else [])

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        L = block[self.source]
        F = self.F if self.slices is None else self.F[lanes_of(self.slices)]
        sliced = sliced_counts(weighted_columns(block, L.dtype, n_threads, self.room), len(L))
        problem = RowUpdate().problem(L, np.zeros(L.shape[1], L.dtype), self.n_components)
        if self.refresh:
            sums[-1] += correlations(sliced, problem, F, self.n_components, n_threads)
        for part, out in zip(self.parts, sums, strict=False):
            if part.last > part.first:
                kernels.sums(
                    sliced, problem, F, out, wanted=part.wanted, first=part.first, last=part.last,
                    n_threads=n_threads,
                )  # fmt: skip
        return {}

    def of_slices(self, slices: slice) -> SumColumns | None:
        """Return the step for some slices of columns, unless correlations are summed over all."""
        if self.refresh:
            return None
        first, last = slices.start, slices.stop
        parts = tuple(
            Part(min(max(p.first, first), last) - first, min(max(p.last, first), last) - first,
                 p.wanted)
            for p in self.parts
        )  # fmt: skip
        return replace(self, parts=parts, slices=slices)


@dataclass(frozen=True)
class UpdateColumns(ColumnStep):
    """Updates every row of F, in lane order, by the steps `how` with L fixed.

    `total` (stride,) are the column sums of L, `moves` (stride,) the components that move, `fixed`
    (lanes,) the rows of F that stay, `pseudo` and `rate` (lanes, stride) a prior. `reports` are
    "kkt_start" and "loglik_end", which `run` returns in addition to the new rows, "values". `room`
    is memory for counts that are weighted, one panel after the other.
    """

    F: Any
    total: Array
    n_components: int
    how: RowUpdate
    reports: tuple[str, ...]
    moves: Array | None = None
    fixed: Array | None = None
    pseudo: Any = None
    rate: Any = None
    room: list[Array] = field(default_factory=list)

    shared = ("F", "pseudo", "rate")
    uses = ("L", "weights")

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Update the rows of a panel."""
        L, weights, counts = panel.arrays["L"], panel.arrays.get("weights"), panel.counts
        if weights is not None:
            counts = counts.weighted(weights, L.dtype, n_threads, self.room)
        sliced, start = sliced_counts(counts, len(L)), self.F[panel.lanes]
        prior = {name: getattr(self, name) for name in ("pseudo", "rate")}
        prior = {name: array[panel.lanes] for name, array in prior.items() if array is not None}
        seen = {name: np.zeros(len(start)) for name in self.reports}
        out = aligned_empty(start.shape, start.dtype)
        update = getattr(kernels, self.how.kernel)
        update(sliced, self._problem(L, self.how), start, out, n_threads=n_threads, **seen, **prior)
        if self.fixed is not None:
            fixed = self.fixed[panel.lanes]
            out[fixed] = start[fixed]
            if "loglik_end" in seen:  # reported at the point that these rows would have reached
                again = np.zeros(len(out))
                slices = np.flatnonzero(fixed.reshape(-1, LANES).any(axis=1))
                kernels.update_rows(
                    sliced, self._problem(L, RowUpdate()), out, None, loglik_end=again,
                    slices=slices, n_threads=n_threads,
                )  # fmt: skip
                seen["loglik_end"][fixed] = again[fixed]
        return {"values": out, **seen}

    def _problem(self, L: Array, how: RowUpdate) -> Any:
        return how.problem(L, self.total, self.n_components, moves=self.moves)


@dataclass(frozen=True)
class ColumnSums(Step):
    """Sums the columns of L, or of a power of L, weighted if samples have weights."""

    n_components: int
    source: str = "L"
    exponent: float = 1.0

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and weights of samples."""
        return RowArrays((self.source, "weights"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        rows = Factor(block[self.source], block.n_rows, self.n_components)
        return {"sums": rows.column_sums(block.get("weights"), self.exponent)}


@dataclass(frozen=True)
class Convert(Step):
    """Converts a row array: to another dtype, scaled by (K,), with zeros restored or lifted.

    `zeros` is "restore": parameters at the floor become zero, unless a prior keeps them from zero;
    or "lift": zeros are raised to the floor. Positive parameters below `least` are raised to it (a
    number), or parameters up to `least` are set to the floor (an array (K,)).
    """

    source: str
    target: str
    n_components: int
    dtype: str | None = None
    scale: Any = None
    zeros: str | None = None
    least: Any = None

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `target` of `source`; zeros need the prior."""
        uses = (self.source, "pseudo") if self.zeros else (self.source,)
        return RowArrays(uses, (self.target,))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Convert the rows of a block."""
        source = block[self.source]
        out = block.empty(self.target, source, self.dtype)
        dense.copyto(out, source, n_threads=n_threads)
        pseudo = block.get("pseudo") if self.zeros else None
        factor = Factor(out, block.n_rows, self.n_components, pseudo=pseudo)
        convert(factor, scale=self.scale, zeros=self.zeros, least=self.least)
        return {}


def convert(
    factor: Factor, *, scale: Array | None = None, zeros: str | None = None, least: Any = None
) -> None:
    """Convert a factor in place: see `Convert`."""
    values = factor.values
    of_rows = values[: factor.n_rows, : factor.n_components]
    if scale is not None:
        values[:, : factor.n_components] *= scale.astype(values.dtype)
    if np.ndim(least):
        columns = values[:, : factor.n_components]
        columns[(columns > 0) & (columns <= least)] = MINVAL  # lanes without a row hold 0
    elif least is not None:
        np.maximum(values, least, out=values, where=values > 0)
    if zeros == "lift":
        np.maximum(of_rows, MINVAL, out=of_rows)
    elif zeros == "restore":
        floored = at_floor(of_rows)
        if factor.pseudo is not None:
            floored &= factor.pseudo[: factor.n_rows, : factor.n_components] <= 0
        of_rows[floored] = 0
