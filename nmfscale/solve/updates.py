"""Half-steps of a fit: the only door to the kernels.

`Halves` holds a count matrix and two factors in the order of the layout (see
`nmfscale.data.layout`) and moves one factor while the other is held.  What the kernels report on
the way (log-likelihood, KKT residual, changes, column sums) is added up here, in an order that
depends on the counts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.counts import Counts
from ..kernels import rows as kernels

Array = NDArray[Any]
LANES = 16
MINVAL = 1e-10
KEPT_FROM = 2


@dataclass(frozen=True)
class Held:
    """What a fit may not move, and what is known beforehand.

    Attributes
    ----------
    topics : ndarray of bool (K,), optional
        Topics whose factors stay as they were given.
    features, samples : ndarray of bool (m,) and (n,), optional
        Rows of F and of L that stay as they were given.
    weights : ndarray (n,), optional
        Weight of each sample in the likelihood.
    prior_factors, prior_loadings : tuple (pseudo, rate), optional
        Gamma priors (Corollary 2): alpha - 1 pseudo-counts and rate beta, arrays (m, K) and (n, K).
    """

    topics: Array | None = None
    features: Array | None = None
    samples: Array | None = None
    weights: Array | None = None
    prior_factors: tuple[Array, Array] | None = None
    prior_loadings: tuple[Array, Array] | None = None


@dataclass
class Factor:
    """One factor in lane order: `values` (lanes, stride), 64-byte aligned, padded at the floor."""

    order: Array
    n_rows: int
    n_components: int
    values: Array
    held: Array | None = None
    pseudo: Array | None = None
    rate: Array | None = None

    @cached_property
    def movable(self) -> Array:
        """Lanes with a row that is not held, bool."""
        real = self.order >= 0
        return real if self.held is None else real & ~self.held

    def plain(self, values: Array | None = None) -> Array:
        """Return the factor in the order of the user's rows, (n_rows, K)."""
        values = self.values if values is None else values
        out = np.empty((self.n_rows, self.n_components), values.dtype)
        filled = self.order >= 0
        out[self.order[filled]] = values[filled, : self.n_components]
        return out

    def column_sums(self, weights: Array | None = None) -> Array:
        """Return sums over rows in float64, slice after slice, (stride,)."""
        values = self.values.astype(np.float64)
        values[self.order < 0] = 0
        if weights is not None:
            values *= weights[:, None]
        return values.reshape(-1, LANES, values.shape[1]).sum(axis=1).sum(axis=0)


@dataclass
class Report:
    """What one half-step saw of the point where it started, and how far it went."""

    log_mu: float = math.nan
    kkt: float = math.nan
    change: float = 0.0
    zeros: float = 0.0


class _Totals:
    """What `kernels.Ahead` sums, one entry a slice."""

    def __init__(self, n_slices: int, stride: int):
        self.sums = np.zeros((n_slices, stride))
        self.change, self.zeros = np.zeros(n_slices), np.zeros(n_slices, np.int64)


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array that starts on a cache line, as the kernels require."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_copy(values: Array, dtype: Any = None) -> Array:
    """Return a copy of an array in lane order, in another type if wanted."""
    out = aligned_empty(values.shape, dtype or values.dtype)
    out[:] = values
    return out


def lane_order(plain: Array, order: Array, stride: int, dtype: Any, empty: float = MINVAL) -> Array:
    """Return rows of `plain` (n, K) in lane order, zeros up to `stride`, `empty` in the padding."""
    out = aligned_empty((len(order), stride), dtype)
    n_components = plain.shape[1]
    out[:, n_components:] = 0
    out[:, :n_components] = plain.astype(dtype, copy=False)[order]
    out[order < 0, :n_components] = empty
    return out


def in_order(values: Array) -> float:
    """Sum of one number per lane: lane by lane over slices, then exactly over the 16 lanes."""
    return math.fsum(values.reshape(-1, LANES).sum(axis=0))


class Halves:
    """The two half-steps of a fit on counts in memory.

    Parameters
    ----------
    counts : Counts of shape (n, m)
    L, F : ndarray (n, K) and (m, K)
        Start, positive.
    dtype : float32 or float64
        Of the arithmetic; sums over rows are float64 always.
    n_threads : int
    held : Held
    """

    def __init__(
        self,
        counts: Counts,
        L: Array,
        F: Array,
        dtype: Any,
        n_threads: int,
        held: Held | None = None,
    ):
        self.counts, self.n_threads, self.held = counts, n_threads, held or Held()
        self.layout = counts.layout(n_threads)
        self.n_components = L.shape[1]
        self.dtype = np.dtype(dtype)
        self.stride = kernels.row_stride(self.n_components)
        self.L = self._factor(L, self.layout.row_order, self.held.samples, self.held.prior_loadings)
        self.F = self._factor(
            F, self.layout.column_order, self.held.features, self.held.prior_factors
        )
        n_columns = counts.shape[1]
        self._rows, self._columns = [], []
        for block in self.layout.blocks:
            rows, columns = block.rows, block.columns
            self._rows.append(kernels.SlicedCounts(rows.index, rows.count, rows.offset, n_columns))
            self._columns.append(
                kernels.SlicedCounts(
                    columns.index, columns.count, columns.offset, block.last - block.first
                )
            )
        self._whole: Any = None
        self.weights = self._in_lanes(self.held.weights)
        self.total_L = self.L.column_sums(self.weights)
        self.total_F = self.F.column_sums()
        self._kept: dict[str, list[Array]] = {}

    def _factor(self, plain: Array, order: Array, held: Array | None, prior: Any) -> Factor:
        values = lane_order(np.maximum(plain, MINVAL), order, self.stride, self.dtype)
        factor = Factor(order, plain.shape[0], self.n_components, values)
        if held is not None:
            factor.held = np.zeros(len(order), bool)
            factor.held[order >= 0] = held[order[order >= 0]]
        if prior is not None:
            factor.pseudo, factor.rate = (
                lane_order(p, order, self.stride, self.dtype, 0) for p in prior
            )
        return factor

    def _in_lanes(self, per_row: Array | None) -> Array | None:
        if per_row is None:
            return None
        out = np.zeros(len(self.layout.row_order))
        filled = self.layout.row_order >= 0
        out[filled] = per_row[self.layout.row_order[filled]]
        return out

    def problem(
        self, design: Array, total: Array, side: str, first: int | None = None, **options: Any
    ) -> Any:
        """Return the row problem of a side; `first` is where a block's rows of the design begin."""
        if side == "F":
            if self.weights is not None and first is not None:
                options["weight"] = self.weights[first : first + len(design)].astype(self.dtype)
            if self.held.topics is not None:
                moves = np.zeros(self.stride, self.dtype)
                moves[: self.n_components] = ~self.held.topics
                options["moves"] = moves
        return kernels.RowProblem(
            design, total.astype(self.dtype), self.n_components, floor=MINVAL, **options
        )

    def kept(self, side: str) -> list[Array]:
        """Room for the curvature of long rows, for each block of L, or of long columns, for F.

        Long means with `KEPT_FROM` times as many nonzeros as curvature has numbers: there it saves
        work, and is small beside the counts.
        """
        if side not in self._kept:
            size = kernels.kept_size(self.n_components)
            if side == "L":
                longest = [np.diff(block.rows.offset) for block in self.layout.blocks]
            else:
                length = np.zeros(len(self.layout.column_order), np.int64)
                real = self.layout.column_order >= 0
                length[real] = self.counts.column_nnz[self.layout.column_order[real]]
                longest = [length.reshape(-1, LANES).max(axis=1)]
            self._kept[side] = [
                np.zeros((int((steps >= KEPT_FROM * size).sum()), size, LANES), np.float32)
                for steps in longest
            ]
        return self._kept[side]

    def move_rows(
        self, method: str, out: Array, *, curvature: int | None = None, **options: Any
    ) -> Report:
        """Update every row of L into `out`, F held; method is "visit" or "descend"."""
        reports = {
            name: np.zeros(len(out)) for name in ("log_start", "log_end", "kkt_start", "kkt_end")
        }
        wanted = {
            "log_start": "loglik_start",
            "log_end": "loglik_end",
            "kkt_start": "kkt_start",
            "kkt_end": "kkt_end",
        }
        asked = {name: options.pop(name, False) for name in wanted}
        problem = self.problem(self.F.values, self.total_F, "L", **options)
        for i, (block, sliced) in enumerate(zip(self.layout.blocks, self._rows, strict=True)):
            here = slice(block.first, block.last)
            arrays: dict[str, Any] = {wanted[n]: reports[n][here] for n in wanted if asked[n]}
            if self.L.pseudo is not None and self.L.rate is not None:
                arrays |= {"pseudo": self.L.pseudo[here], "rate": self.L.rate[here]}
            if curvature is not None:
                arrays |= {"curvature": self.kept("L")[i], "curvature_mode": curvature}
            getattr(kernels, method)(
                sliced, problem, self.L.values[here], out[here], n_threads=self.n_threads, **arrays
            )
        return self._report(self.L, out, reports, asked, self.weights)

    def move_columns(
        self,
        out: Array,
        *,
        ahead: Array | None = None,
        momentum: float = 0.0,
        curvature: int | None = None,
        **options: Any,
    ) -> Report:
        """Update every row of F into `out`, L held, from statistics summed over row blocks.

        With `ahead` (which may be F's memory) F goes on to there, with momentum, as `extrapolate`
        would from `out`, where the plain point before the update is found.
        """
        factor, kkt = self.F, np.zeros(len(out))
        arrays: dict[str, Any] = {"kkt_start": kkt}
        if factor.pseudo is not None and factor.rate is not None:
            arrays |= {"pseudo": factor.pseudo, "rate": factor.rate}
        if ahead is None:
            self._visit_columns(out, curvature, arrays, options)
            return self._report(factor, out, {"kkt_start": kkt}, {"kkt_start": True}, None)
        stay = None if factor.held is None else factor.values[factor.held]
        totals = _Totals(len(out) // LANES, self.stride)
        problem = self.problem(self.L.values, self.total_L, "F")
        arrays["ahead"] = kernels.Ahead(
            problem, factor.n_rows, out, ahead, momentum, totals.sums, totals.change, totals.zeros
        )
        self._visit_columns(None, curvature, arrays, options)
        factor.values = ahead
        if stay is not None:
            out[factor.held] = ahead[factor.held] = stay
        report = Report(kkt=float(kkt.max(where=factor.movable, initial=0.0)))
        self._arrive("F", totals, report)
        return report

    def _visit_columns(
        self, out: Array | None, curvature: int | None, arrays: Any, options: Any
    ) -> None:
        if len(self._columns) > 1:
            self._step_from_sums(out, curvature, arrays, options)
            return
        problem = self.problem(self.L.values, self.total_L, "F", 0, **options)
        if curvature is not None:
            arrays |= {"curvature": self.kept("F")[0], "curvature_mode": curvature}
        kernels.visit(
            self._columns[0], problem, self.F.values, out, n_threads=self.n_threads, **arrays
        )

    def _step_from_sums(
        self, out: Array | None, curvature: int | None, arrays: Any, options: Any
    ) -> None:
        """Sum each block's share in float64, block after block, then step, part by part."""
        K, n_slices = self.n_components, len(self.F.values) // LANES
        n_kept = len(self.kept("F")[0]) if curvature is not None else 0
        step = max(1, (1 << 22) // (LANES * kernels.kept_size(K)))
        cuts = sorted({*range(0, n_slices, step), n_kept, n_slices})
        for first, last in zip(cuts[:-1], cuts[1:], strict=True):
            full = (
                kernels.SUM_DIAGONAL
                if last <= n_kept and curvature == kernels.KEPT
                else kernels.SUM_FULL
            )
            wanted = full if options.get("newton_steps") else kernels.SUM_GRADIENT
            size = {
                kernels.SUM_FULL: kernels.kept_size(K),
                kernels.SUM_DIAGONAL: 2 * K,
                kernels.SUM_GRADIENT: K,
            }[wanted]
            sums = np.zeros((last - first, size, LANES))
            for block, sliced in zip(self.layout.blocks, self._columns, strict=True):
                design = self.L.values[block.first : block.last]
                problem = self.problem(design, self.total_L, "F", block.first, **options)
                kernels.sums(
                    sliced, problem, self.F.values, sums,
                    wanted=wanted, first=first, last=last, n_threads=self.n_threads,
                )  # fmt: skip
            problem = self.problem(self.L.values, self.total_L, "F", None, **options)
            kept = {}
            if curvature is not None and last <= n_kept:
                kept = {"curvature": self.kept("F")[0]}
            kernels.step(
                problem, sums, self.F.values, out,
                wanted=wanted, first=first, n_threads=self.n_threads, **arrays, **kept,
            )  # fmt: skip

    def move_whole_columns(self, method: str, out: Array, **options: Any) -> Report:
        """Update every row of F by the rows kernel on the transposed matrix, in several steps."""
        if self._whole is None:
            whole = self.layout.whole_columns
            self._whole = kernels.SlicedCounts(
                whole.index, whole.count, whole.offset, len(self.layout.row_order)
            )
        wanted = {"log_end": "loglik_end", "kkt_start": "kkt_start"}
        asked = {name: options.pop(name, False) for name in wanted}
        reports = {name: np.zeros(len(out)) for name in wanted}
        arrays = {wanted[name]: reports[name] for name in wanted if asked[name]}
        if self.F.pseudo is not None and self.F.rate is not None:
            arrays |= {"pseudo": self.F.pseudo, "rate": self.F.rate}
        problem = self.problem(self.L.values, self.total_L, "F", 0, **options)
        getattr(kernels, method)(
            self._whole, problem, self.F.values, out, n_threads=self.n_threads, **arrays
        )
        return self._report(self.F, out, reports, asked, None)

    def _report(
        self, factor: Factor, out: Array, values: Any, asked: Any, weights: Array | None
    ) -> Report:
        """Add up what the lanes reported; rows that are held go back to where they were."""
        if factor.held is not None:
            out[factor.held] = factor.values[factor.held]
        report = Report()
        for name in ("log_start", "log_end"):
            if asked.get(name):  # lanes without a row have no counts and add nothing
                log_mu = values[name] if weights is None else values[name] * weights
                report.log_mu = in_order(log_mu)
        for name in ("kkt_start", "kkt_end"):
            if asked.get(name):
                report.kkt = float(values[name].max(where=factor.movable, initial=0.0))
        return report

    def extrapolate(
        self,
        side: str,
        now: Array,
        before: Array,
        momentum: float,
        report: Report,
        out: Array | None = None,
    ) -> None:
        """Take `now + momentum (now - before)` for the factor's next point.

        It is written where the point was, or to `out`, which may be `before`.
        """
        factor = self.L if side == "L" else self.F
        factor.values = factor.values if out is None else out
        totals = _Totals(len(now) // LANES, self.stride)
        problem = self.problem(now, np.zeros(self.stride), side)
        blocks = [(b.first, b.last, b.stop - b.start) for b in self.layout.blocks]
        for first, last, n_rows in blocks if side == "L" else [(0, len(now), factor.n_rows)]:
            here, slices = slice(first, last), slice(first // LANES, last // LANES)
            ahead = kernels.Ahead(
                problem, n_rows, before[here], factor.values[here], momentum,
                totals.sums[slices], totals.change[slices], totals.zeros[slices],
            )  # fmt: skip
            kernels.extrapolate(problem, now[here], ahead, n_threads=self.n_threads)
        if factor.held is not None:
            factor.values[factor.held] = now[factor.held]
        self._arrive(side, totals, report)

    def _arrive(self, side: str, totals: _Totals, report: Report) -> None:
        """Take note of the column sums where a factor has arrived, and of how far it went."""
        factor = self.L if side == "L" else self.F
        weights = self.weights if side == "L" else None
        sums = totals.sums.sum(axis=0)
        if factor.held is not None or weights is not None:
            sums = factor.column_sums(weights)
        if side == "L":
            self.total_L = sums
        else:
            self.total_F = sums
        scale = sums[: self.n_components].mean() / factor.n_rows
        report.change = float(totals.change.max()) / scale if scale > 0 else 0.0
        report.zeros = float(totals.zeros.sum()) / (factor.n_rows * self.n_components)

    def replace(self, L: Array, F: Array) -> None:
        """Go to another point, given in lane order."""
        self.L.values, self.F.values = L, F
        self.total_L, self.total_F = self.L.column_sums(self.weights), self.F.column_sums()

    def rescale(self, L: Array, F: Array) -> None:
        """Scale columns in place so that their means agree (weights aside); the product stays."""
        n, m, K = self.L.n_rows, self.F.n_rows, self.n_components
        sums_L = Factor(self.L.order, n, K, L).column_sums()[:K] / n
        sums_F = Factor(self.F.order, m, K, F).column_sums()[:K] / m
        ratio = np.sqrt(sums_F / sums_L)
        L[:, :K] *= ratio.astype(self.dtype)
        F[:, :K] /= ratio.astype(self.dtype)

    def as_type(self, dtype: Any) -> Halves:
        """Return the same point and layout in another type."""
        other = object.__new__(Halves)
        other.__dict__.update(self.__dict__)
        other.dtype = np.dtype(dtype)
        for side in ("L", "F"):
            mine = getattr(self, side)
            theirs = Factor(
                mine.order,
                mine.n_rows,
                mine.n_components,
                aligned_copy(mine.values, dtype),
                mine.held,
            )
            if mine.pseudo is not None:
                theirs.pseudo, theirs.rate = (
                    aligned_copy(mine.pseudo, dtype),
                    aligned_copy(mine.rate, dtype),
                )
            setattr(other, side, theirs)
        other.total_L, other.total_F = other.L.column_sums(other.weights), other.F.column_sums()
        return other
