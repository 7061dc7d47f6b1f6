"""Half-steps of a fit: the only door to the kernels.

`Halves` holds a count matrix and two factors in the order of the layout (see
`nmfscale.data.layout`) and moves one factor while the other is held.  What the kernels report on
the way (log-likelihood, KKT residual, changes, column sums) is added up here, in an order that
depends on the counts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.layout import Slices
from ..data.table import CountTable
from ..kernels import rows as kernels
from .factor import (
    LANES,
    MINVAL,
    Array,
    Factor,
    Held,
    Report,
    Totals,
    in_order,
    lane_order,
)  # fmt: skip

KEPT_FROM = 2
# A curvature besides those of the kernels: the row's own diagonal, correlations that all rows
# share, with a margin on the diagonal that makes up for what they do not know of the row.
SHARED, SHARED_MARGIN = -1, 1.2


def sliced_counts(slices: Slices, n_design: int) -> Any:
    """Return slices as the kernels take them, whose indices are below `n_design`."""
    return kernels.SlicedCounts(slices.index, slices.count, slices.offset, n_design)


class _Part(NamedTuple):
    """Statistics of the columns' slices first:last."""

    first: int
    last: int
    wanted: int
    sums: Array


class Halves:
    """The two half-steps of a fit on counts in memory.

    Parameters
    ----------
    counts : CountTable of shape (n, m)
    L, F : ndarray (n, K) and (m, K)
        Start, positive.
    dtype : float32 or float64
        Of the arithmetic; sums over rows are float64 always.
    n_threads : int
    held : Held
    folder : str, optional
        Where loadings are kept in files without a name; by default they are in memory.
    """

    def __init__(
        self,
        counts: CountTable,
        L: Array,
        F: Array,
        dtype: Any,
        n_threads: int,
        held: Held | None = None,
        folder: str | None = None,
    ):
        self.counts, self.n_threads, self.held = counts, n_threads, held or Held()
        self.layout = counts.layout(n_threads)
        self.n_components = L.shape[1]
        self.dtype = np.dtype(dtype)
        self.stride = kernels.row_stride(self.n_components)
        self.L = self._factor(
            L, self.layout.row_order, self.held.samples, self.held.prior_loadings, folder
        )
        self.F = self._factor(
            F, self.layout.column_order, self.held.features, self.held.prior_factors
        )
        self._whole: Any = None
        self.weights = self._in_lanes(self.held.weights)
        self.total_L = self.L.column_sums(self.weights)
        self.total_F = self.F.column_sums()
        self._kept: dict[str, list[Array]] = {}
        self._shared: dict[str, Array] = {}

    def _factor(
        self, plain: Array, order: Array, held: Array | None, prior: Any, folder: str | None = None
    ) -> Factor:
        values = lane_order(plain, order, self.stride, self.dtype, least=MINVAL, folder=folder)
        factor = Factor(order, plain.shape[0], self.n_components, values, folder=folder)
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

    def _rows(self) -> Iterator[tuple[Any, Any]]:
        """Blocks and their rows, one after the other."""
        for block, rows in self.layout.visit("rows"):
            yield block, sliced_counts(rows, self.counts.shape[1])

    def _columns(self) -> Iterator[tuple[Any, Any]]:
        """Blocks and their columns, one after the other."""
        for block, columns in self.layout.visit("columns"):
            yield block, sliced_counts(columns, block.last - block.first)

    def problem(
        self, design: Array, total: Array, side: str, first: int | None = None, **options: Any
    ) -> Any:
        """Return the row problem of a side; `first` is where a block's rows of the design begin."""
        if options.get("curvature") == SHARED:
            options["correlation"] = self._shared[side].astype(self.dtype)
        options.pop("curvature", None)
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
                lengths = np.append(self.counts.row_nnz, 0)[self.layout.row_order]
                parts = [lengths[block.first : block.last] for block in self.layout.blocks]
            else:
                parts = [np.append(self.counts.column_nnz, 0)[self.layout.column_order]]
            longest = [lengths.reshape(-1, LANES).max(axis=1) for lengths in parts]
            self._kept[side] = [
                np.zeros((int((steps >= KEPT_FROM * size).sum()), size, LANES), np.float32)
                for steps in longest
            ]
        return self._kept[side]

    def _keeping(self, side: str, i: int, curvature: int | None) -> dict[str, Any]:
        """Say to a kernel where curvature is kept, if it is."""
        if curvature in (None, SHARED):
            return {}
        return {"curvature": self.kept(side)[i], "curvature_mode": curvature}

    def _correlations(self, sliced: Any, problem: Any, start: Array) -> Array:
        """Add up the correlations of a sample of rows, packed, and their weight.

        A sample whose share falls with K costs no more than the visit.
        """
        every = max(1, self.n_components // 4)
        size = kernels.kept_size(self.n_components) + 1
        found = np.zeros((-(-sliced.n_slices // every), size))
        kernels.correlations(sliced, problem, start, found, every=every, n_threads=self.n_threads)
        return found.sum(axis=0)

    def _share(self, side: str, found: Array) -> None:
        """Let the next steps share these correlations."""
        K = self.n_components
        shared = np.empty((K, K))
        lower = np.tril_indices(K)
        shared[lower] = shared.T[lower] = found[:-1] / max(found[-1], 1e-300)
        np.fill_diagonal(shared, SHARED_MARGIN)
        self._shared[side] = shared

    def move_rows(
        self, method: str, out: Array, *, report: tuple[str, ...] = (), renew: bool = False,
        **options: Any,
    ) -> Report:  # fmt: skip
        """Update every row of L into `out`, F held.

        Parameters
        ----------
        method : {"visit", "descend"}
            The kernel.
        report : tuple of {"loglik_start", "kkt_start"}
            What to report.
        curvature : {SHARED, kernels.KEEP, kernels.KEPT}, optional
            Where the curvature of a second-order step is from; by default it is the row's own.
        renew : bool
            Whether later steps share the correlations found here.
        **options
            Of `kernels.RowProblem`.
        """
        seen = {name: np.zeros(len(out)) for name in report}
        problem = self.problem(self.F.values, self.total_F, "L", **options)
        found = []
        for i, (block, sliced) in enumerate(self._rows()):
            here = slice(block.first, block.last)
            start = self.L.values[here]
            arrays = {name: array[here] for name, array in seen.items()} | self.L.prior(here)
            arrays |= self._keeping("L", i, options.get("curvature"))
            if renew:
                found.append(self._correlations(sliced, problem, start))
            getattr(kernels, method)(
                sliced, problem, start, out[here], n_threads=self.n_threads, **arrays
            )
        if renew:
            self._share("L", np.sum(found, axis=0))
        return self._report(self.L, out, seen, self.weights)

    def move_columns(
        self, out: Array, *, ahead: Array | None = None, momentum: float = 0.0, **options: Any
    ) -> Report:
        """Update every row of F into `out`, L held, from statistics summed over row blocks.

        With `ahead` (which may be F's memory) F goes on to there, with momentum, as `extrapolate`
        would from `out`, where the plain point before the update is found. Options as in
        `move_rows`.
        """
        factor, kkt = self.F, np.zeros(len(out))
        arrays: dict[str, Any] = {"kkt_start": kkt} | factor.prior()
        if ahead is None:
            self._visit_columns(out, arrays, **options)
            return self._report(factor, out, {"kkt_start": kkt}, None)
        stay = None if factor.held is None else factor.values[factor.held]
        totals = Totals(len(out) // LANES, self.stride)
        arrays["ahead"] = kernels.Ahead(
            factor.n_rows, out, ahead, momentum, totals.sums, totals.change, totals.zeros
        )
        self._visit_columns(None, arrays, **options)
        factor.values = ahead
        if stay is not None:
            out[factor.held] = ahead[factor.held] = stay
        report = Report(kkt=float(kkt.max(where=factor.movable, initial=0.0)))
        self._arrive("F", totals, report)
        return report

    def _visit_columns(
        self, out: Array | None, arrays: Any, *, renew: bool = False, **options: Any
    ) -> None:
        if len(self.layout.blocks) > 1:
            self._step_from_sums(out, arrays, renew=renew, **options)
            return
        problem = self.problem(self.L.values, self.total_L, "F", 0, **options)
        arrays |= self._keeping("F", 0, options.get("curvature"))
        for _, sliced in self._columns():
            found = self._correlations(sliced, problem, self.F.values) if renew else None
            kernels.visit(sliced, problem, self.F.values, out, n_threads=self.n_threads, **arrays)
        if found is not None:
            self._share("F", found)

    def _step_from_sums(
        self, out: Array | None, arrays: Any, *, renew: bool = False, **options: Any
    ) -> None:
        """Sum each block's share in float64, block after block, then step."""
        curvature = options.get("curvature")
        parts = self._parts(curvature, bool(options.get("newton_steps")))
        found = []
        for block, sliced in self._columns():
            design = self.L.values[block.first : block.last]
            problem = self.problem(design, self.total_L, "F", block.first, **options)
            if renew:
                found.append(self._correlations(sliced, problem, self.F.values))
            for part in parts:
                kernels.sums(
                    sliced, problem, self.F.values, part.sums, wanted=part.wanted,
                    first=part.first, last=part.last, n_threads=self.n_threads,
                )  # fmt: skip
        problem = self.problem(self.L.values, self.total_L, "F", None, **options)
        if curvature not in (None, SHARED):
            arrays |= {"curvature": self.kept("F")[0]}
        for part in parts:
            kernels.step(
                problem, part.sums, self.F.values, out, wanted=part.wanted, first=part.first,
                n_threads=self.n_threads, **arrays,
            )  # fmt: skip
        if renew:
            self._share("F", np.sum(found, axis=0))

    def _parts(self, curvature: int | None, newton: bool) -> list[_Part]:
        """Room for the statistics: fewer for columns whose curvature is kept or shared."""
        n_slices = len(self.F.values) // LANES
        n_diagonal = 0
        if curvature == SHARED:
            n_diagonal = n_slices
        elif curvature is not None:
            n_diagonal = len(self.kept("F")[0])
        diagonal = curvature in (SHARED, kernels.KEPT)
        wanted = [kernels.SUM_DIAGONAL if diagonal else kernels.SUM_FULL, kernels.SUM_FULL]
        if not newton:
            wanted = [kernels.SUM_GRADIENT] * 2
        parts = []
        for first, last, kind in ((0, n_diagonal, wanted[0]), (n_diagonal, n_slices, wanted[1])):
            size = kernels.statistics_size(self.n_components, kind)
            if last > first:
                parts.append(_Part(first, last, kind, np.zeros((last - first, size, LANES))))
        return parts

    def move_whole_columns(
        self, method: str, out: Array, *, report: tuple[str, ...] = (), **options: Any
    ) -> Report:
        """Update every row of F by the rows kernel on the transposed matrix, in several steps."""
        if self._whole is None:
            self._whole = sliced_counts(self.layout.whole_columns, len(self.layout.row_order))
        seen = {name: np.zeros(len(out)) for name in report}
        problem = self.problem(self.L.values, self.total_L, "F", 0, **options)
        getattr(kernels, method)(
            self._whole, problem, self.F.values, out, n_threads=self.n_threads,
            **seen, **self.F.prior(),
        )  # fmt: skip
        return self._report(self.F, out, seen, None)

    def _report(
        self, factor: Factor, out: Array, seen: dict[str, Array], weights: Array | None
    ) -> Report:
        """Add up what the lanes reported; rows that are held go back to where they were."""
        if factor.held is not None:
            out[factor.held] = factor.values[factor.held]
        report = Report()
        for name, values in seen.items():
            if name.startswith("loglik"):  # lanes without a row have no counts and add nothing
                report.log_mu = in_order(values if weights is None else values * weights)
            else:
                report.kkt = float(values.max(where=factor.movable, initial=0.0))
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
        totals = Totals(len(now) // LANES, self.stride)
        problem = self.problem(now, np.zeros(self.stride), side)
        blocks = [(b.first, b.last, b.stop - b.start) for b in self.layout.blocks]
        for first, last, n_rows in blocks if side == "L" else [(0, len(now), factor.n_rows)]:
            here, slices = slice(first, last), slice(first // LANES, last // LANES)
            ahead = kernels.Ahead(
                n_rows, before[here], factor.values[here], momentum,
                totals.sums[slices], totals.change[slices], totals.zeros[slices],
            )  # fmt: skip
            kernels.extrapolate(problem, now[here], ahead, n_threads=self.n_threads)
        if factor.held is not None:
            factor.values[factor.held] = now[factor.held]
        self._arrive(side, totals, report)

    def _arrive(self, side: str, totals: Totals, report: Report) -> None:
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

    def state(self) -> dict[str, Array]:
        """Arrays from which `restore` makes the same halves."""
        arrays = {
            "L": self.L.values, "F": self.F.values, "total_L": self.total_L,
            "total_F": self.total_F,
        }  # fmt: skip
        for side, parts in self._kept.items():
            arrays |= {f"kept_{side}_{i:06d}": part for i, part in enumerate(parts)}
        return arrays | {f"shared_{side}": array for side, array in self._shared.items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Stand where the state was taken."""
        np.copyto(self.L.values, arrays["L"])
        np.copyto(self.F.values, arrays["F"])
        self.total_L, self.total_F = arrays["total_L"], arrays["total_F"]
        for side in "LF":
            found = [arrays[name] for name in sorted(arrays) if name.startswith(f"kept_{side}_")]
            if found:
                self._kept[side] = found
            if f"shared_{side}" in arrays:
                self._shared[side] = arrays[f"shared_{side}"]

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
        other.L, other.F = self.L.as_type(dtype), self.F.as_type(dtype)
        other.total_L, other.total_F = other.L.column_sums(other.weights), other.F.column_sums()
        return other
