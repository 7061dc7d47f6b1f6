"""Half-steps of a fit: one factor moves while the other is held.

`Halves` holds F and the rows of L in the order of the layout (see `nmfscale.counts.blocks`).  Where
the rows and their counts are is the business of `LocalRows`, or of who else offers the same.  What
the kernels report on the way (log-likelihood, KKT residual, changes, column sums) is added up in an
order that depends on the counts alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import kernels
from ..counts.base import CountMatrix
from ..counts.sell import LANES
from .factors import MINVAL, Array, Factor, Held, Report, in_order
from .local_rows import LocalRows, factor_in_lanes, lift_zeros, restore_zeros
from .steps import (
    Arrival,
    ColumnVisit,
    GoingOn,
    Momentum,
    Part,
    Rows,
    RowVisit,
    correlations,
    go_on,
    room_for_kept,
    sliced_counts,
)

# A curvature besides those of the kernels: the row's own diagonal, correlations that all rows
# share, with a margin on the diagonal that makes up for what they do not know of the row.
SHARED, SHARED_MARGIN = -1, 1.2
# Momentum sees to changes of scale up to this factor; what changes more is no longer the same.
MOST_SCALE = 2.0
_TOTALS = ("total_L", "total_F", "total_L_before", "total_F_before")


class Halves:
    """The two half-steps of a fit.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    L, F : ndarray (n, K) and (m, K)
        Start, positive.
    dtype : float32 or float64
        Of the arithmetic; sums over rows are float64 always.
    n_threads : int
    held : Held
    folder : str, optional
        See `LocalRows`.
    """

    def __init__(
        self,
        counts: CountMatrix,
        L: Array,
        F: Array,
        dtype: Any,
        n_threads: int,
        held: Held | None = None,
        folder: str | None = None,
    ):
        held = held or Held()
        rows = LocalRows(counts, L, dtype, n_threads, held, folder)
        self._begin(counts, rows, F, dtype, n_threads, held)

    @classmethod
    def over(
        cls, counts: CountMatrix, rows: Any, F: Array, dtype: Any, n_threads: int, held: Held
    ) -> Halves:
        """Return halves of rows that are elsewhere."""
        halves = object.__new__(cls)
        halves._begin(counts, rows, F, dtype, n_threads, held)
        return halves

    def _begin(
        self, counts: CountMatrix, rows: Any, F: Array, dtype: Any, n_threads: int, held: Held
    ) -> None:
        self.counts, self.rows, self.held, self.n_threads = counts, rows, held, n_threads
        self.layout = counts.layout(n_threads)
        self.n_components, self.dtype = F.shape[1], np.dtype(dtype)
        self.stride = kernels.row_stride(self.n_components)
        order = self.layout.column_order
        holds = held.topics is not None or held.features is not None
        self._given_F = F if holds else np.zeros((0, 0))
        self.F = factor_in_lanes(F, order, dtype, held=held.features, prior=held.prior_factors)
        self.sum_columns()
        self._kept: Array | None = None
        self._whole: Any = None
        self._shared: dict[str, Array] = {}

    @property
    def L(self) -> Any:
        """The loadings."""
        return self.rows.factor

    def problem(self, design: Array, total: Array, weighted: bool = True, **options: Any) -> Any:
        """Return the row problem of F."""
        self._prepare("F", options)
        weights = self.rows.all.weights if weighted else None
        if weights is not None:
            options["weight"] = weights.astype(self.dtype)
        if self.held.topics is not None:
            moves = np.zeros(self.stride, self.dtype)
            moves[: self.n_components] = ~self.held.topics
            options["moves"] = moves
        return kernels.RowProblem(
            design, total.astype(self.dtype), self.n_components, floor=MINVAL, **options
        )

    def _prepare(self, side: str, options: dict[str, Any]) -> int | None:
        """Put shared correlations in the place of a name; which curvature of its own is kept."""
        curvature: int | None = options.pop("curvature", None)
        if curvature != SHARED:
            return curvature
        options["correlation"] = self._shared[side].astype(self.dtype)
        return None

    def kept(self) -> Array:
        """Room for what is kept of long columns' curvature."""
        if self._kept is None:
            longest = self.layout.column_order[::LANES]  # the first of every slice
            self._kept = room_for_kept(self.counts.column_nnz[longest], self.n_components)
        return self._kept

    def _share(self, side: str, found: Array) -> None:
        """Let the next steps share these correlations."""
        K = self.n_components
        shared = np.empty((K, K))
        lower = np.tril_indices(K)
        shared[lower] = shared.T[lower] = found[:-1] / max(found[-1], 1e-300)
        np.fill_diagonal(shared, SHARED_MARGIN)
        self._shared[side] = shared

    def move_rows(
        self, method: str, out: Any, *, report: tuple[str, ...] = (), renew: bool = False,
        **options: Any,
    ) -> Report:  # fmt: skip
        """Update every row of L into `out`, F held.

        Parameters
        ----------
        method, report
            See `RowVisit`.
        curvature : {SHARED, kernels.KEEP, kernels.KEPT, kernels.SCALED}, optional
            Where the curvature of a second-order step is from; by default it is the row's own.
        renew : bool
            Whether later steps share the correlations found here.
        **options
            Of `kernels.RowProblem`.
        """
        curvature = self._prepare("L", options)
        visit = RowVisit(
            method, self.F.values, self.total_F, self.n_components, options, report, curvature,
            renew,
        )  # fmt: skip
        found = self.rows.move(visit, out)
        if found.correlations is not None:
            self._share("L", found.correlations)
        return Report(log_mu=found.log_mu, kkt=found.kkt)

    def move_columns(
        self, out: Array | None = None, *, lag: Array | None = None, best: Array | None = None,
        momentum: Momentum | None = None, **options: Any,
    ) -> Report:  # fmt: skip
        """Update every row of F into `out`, L held, from statistics summed over row blocks.

        With `lag` in place of `out` F goes on, with momentum, to a next point in its own memory:
        `lag` (bfloat16, as uint16) is how far F is ahead of the plain point before, and then of the
        present one. `best` takes F as it was. Options as in `move_rows`.
        """
        factor, kkt = self.F, np.zeros(len(self.F.values))
        arrays: dict[str, Any] = {"kkt_start": kkt} | factor.prior()
        if lag is None:
            self._visit_columns(out, arrays, **options)
            self._hold(out)
            return Report(kkt=factor.largest(kkt))
        stay = None if factor.held is None else factor.values[factor.held]
        going_on = GoingOn(factor, momentum or Momentum(), start=factor.values, lag=lag, best=best)
        self._visit_columns(None, arrays | {"ahead": going_on.ahead}, **options)
        now = None
        if stay is not None:
            factor.values[factor.held], lag[factor.held] = stay, 0
            now = factor.values - (lag.astype(np.uint32) << 16).view(np.float32)
        report = Report(kkt=factor.largest(kkt))
        self._arrive(going_on.arrival(factor, now), report)
        return report

    def _hold(self, out: Array | None) -> None:
        if out is not None and self.F.held is not None:
            out[self.F.held] = self.F.values[self.F.held]

    def _arrive(self, arrival: Arrival, report: Report) -> None:
        """Take note of where F has arrived."""
        self.total_F, self.total_F_before = arrival.sums, arrival.sums_before
        arrival.note(report, self.F.n_rows, self.n_components)

    def _visit_columns(
        self, out: Array | None, arrays: Any, *, renew: bool = False, **options: Any
    ) -> None:
        if not self.rows.one_block:
            self._step_from_sums(out, arrays, renew=renew, **options)
            return
        curvature = options.get("curvature")
        problem = self.problem(self.L.values, self.total_L, **options)
        if curvature not in (None, SHARED):
            arrays |= {"kept": self.kept(), "curvature_mode": curvature}
        found, start = None, self.F.values
        for _, columns in self.layout.visit("columns"):
            sliced = sliced_counts(columns, len(self.L.values))
            if renew:
                found = correlations(sliced, problem, start, self.n_components, self.n_threads)
            kernels.visit(sliced, problem, start, out, n_threads=self.n_threads, **arrays)
        if found is not None:
            self._share("F", found)

    def _step_from_sums(
        self, out: Array | None, arrays: Any, *, renew: bool = False, **options: Any
    ) -> None:
        """Sum each block's share in float64, in a fixed tree, then step."""
        parts = self._parts(options.get("curvature"), bool(options.get("newton_steps")))
        used = dict(options)
        curvature = self._prepare("F", used)
        sums = self.rows.sums(ColumnVisit(self.F.values, self.n_components, used, parts, renew))
        problem = self.problem(self.F.values, self.total_L, False, **options)
        if curvature is not None:
            arrays |= {"kept": self.kept(), "curvature_mode": curvature}
        for part, numbers in zip(parts, sums, strict=False):
            kernels.step(
                problem, numbers, self.F.values, out, wanted=part.wanted, first=part.first,
                n_threads=self.n_threads, **arrays,
            )  # fmt: skip
        if renew:
            self._share("F", sums[-1])

    def _parts(self, curvature: int | None, newton: bool) -> tuple[Part, ...]:
        """Say which statistics: fewer for columns whose curvature is kept or shared."""
        n_slices = len(self.F.values) // LANES
        n_diagonal = 0
        if curvature == SHARED:
            n_diagonal = n_slices
        elif curvature is not None:
            n_diagonal = len(self.kept())
        less = {
            SHARED: kernels.SUM_DIAGONAL,
            kernels.KEPT: kernels.SUM_DIAGONAL,
            kernels.SCALED: kernels.SUM_GRADIENT,
        }
        wanted = [less.get(curvature, kernels.SUM_FULL), kernels.SUM_FULL]
        if not newton:
            wanted = [kernels.SUM_GRADIENT] * 2
        places = [Part(0, n_diagonal, wanted[0]), Part(n_diagonal, n_slices, wanted[1])]
        return tuple(part for part in places if part.last > part.first)

    def move_whole_columns(
        self, method: str, out: Array, *, report: tuple[str, ...] = (), **options: Any
    ) -> Report:
        """Update every row of F by the rows kernel on the transposed matrix, in several steps."""
        if self._whole is None:
            self._whole = sliced_counts(self.layout.whole_columns, len(self.layout.row_order))
        seen = {name: np.zeros(len(out)) for name in report}
        problem = self.problem(self.L.values, self.total_L, **options)
        getattr(kernels, method)(
            self._whole, problem, self.F.values, out, n_threads=self.n_threads,
            **seen, **self.F.prior(),
        )  # fmt: skip
        self._hold(out)
        held = self.F.held
        if held is not None and "loglik_end" in seen:
            # seen where these would have gone
            again = np.zeros(len(out))
            kernels.visit(
                self._whole, self.problem(self.L.values, self.total_L), out, None,
                slices=np.flatnonzero(held.reshape(-1, LANES).any(axis=1)), loglik_end=again,
                n_threads=self.n_threads,
            )  # fmt: skip
            seen["loglik_end"][held] = again[held]
        found = Report()
        for name, values in seen.items():
            if name.startswith("loglik"):  # lanes without a row have no counts and add nothing
                found.log_mu = in_order(values)
            else:
                found.kkt = self.F.largest(values)
        return found

    def extrapolate(
        self, side: str, now: Any, before: Any, momentum: Momentum, report: Report, best: Any = None
    ) -> None:  # fmt: skip
        """Go on from `now` with momentum to the factor's next point, written where it is.

        `best` takes L as it was.
        """
        if side == "L":
            arrival = self.rows.go_on(now, before, momentum, report, best)
            self.total_L, self.total_L_before = arrival.sums, arrival.sums_before
            return
        whole = Rows(self.F, np.zeros(0))
        self._arrive(go_on(whole, now, before, momentum, self.n_threads), report)

    def scale_of_before(self) -> Array:
        """Return what brings L's plain point to the scale of the present one, for each column.

        L D and F D^-1 are one model for any diagonal D, so that momentum must not carry on how D
        changes: points are compared where the columns of both factors have equal means. F's plain
        point is divided by it.
        """
        K, out = self.n_components, np.ones(self.stride)
        totals = self.total_L_before, self.total_L, self.total_F_before, self.total_F
        L_before, L, F_before, F = np.maximum([sums[:K] for sums in totals], 1e-300)
        scale = np.sqrt(L / L_before * (F_before / F))
        out[:K] = np.minimum(np.maximum(scale, 1 / MOST_SCALE), MOST_SCALE)
        if self.held.topics is not None:
            out[:K][self.held.topics] = 1  # their scale is given
        return out

    def put(self, side: str, out: Any, values: Any) -> None:
        """Copy a point of a factor."""
        if side == "L":
            self.rows.put(out, values)
        else:
            np.copyto(out, values)

    def state(self) -> dict[str, Array]:
        """Arrays from which `restore` makes the same halves."""
        arrays = {"F": self.F.values} | {name: getattr(self, name) for name in _TOTALS}
        if self._kept is not None:
            arrays["kept_F_000000"] = self._kept
        shared = {f"shared_{side}": array for side, array in self._shared.items()}
        return arrays | shared | self.rows.state()

    def restore(self, arrays: dict[str, Array]) -> None:
        """Stand where the state was taken."""
        self.rows.restore(arrays)
        np.copyto(self.F.values, arrays["F"])
        for name in _TOTALS:
            setattr(self, name, arrays[name])
        self._kept = arrays.get("kept_F_000000")
        names = (f"shared_{side}" for side in "LF")
        self._shared = {name[-1]: arrays[name] for name in names if name in arrays}

    def replace(self, L: Any, F: Array) -> None:
        """Go to another point, given in lane order."""
        self.L.values, self.F.values = L, F
        self.sum_columns()

    def sum_columns(self) -> None:
        """Add up the columns of both factors."""
        self.total_L, self.total_F = self.rows.column_sums(), self.F.column_sums()
        self.total_L_before, self.total_F_before = self.total_L, self.total_F

    def restore_zeros(self) -> None:
        """Set what is at the floor to zero."""
        self.rows.restore_zeros()
        restore_zeros(self.F)
        self._end()

    def lift_zeros(self) -> None:
        """Undo that."""
        self.rows.lift_zeros()
        lift_zeros(self.F)
        self._end()

    def _end(self) -> None:
        """Give back what is held of F, which was raised to the floor."""
        order, held = self.F.order, self.F.held
        if self.held.topics is not None:
            lanes, topics = np.flatnonzero(order >= 0), np.flatnonzero(self.held.topics)
            self.F.values[np.ix_(lanes, topics)] = self._given_F[np.ix_(order[lanes], topics)]
        if held is not None:
            self.F.values[held, : self.n_components] = self._given_F[order[held]]
        self.sum_columns()

    def rescale(self, L: Array, F: Array) -> Array:
        """Scale columns in place so that their means agree (weights aside); the product stays.

        Returns what those of L were multiplied by.
        """
        n, m, K = self.L.n_rows, self.F.n_rows, self.n_components
        sums_L = Factor(self.L.order, n, K, L).column_sums()[:K] / n
        sums_F = Factor(self.F.order, m, K, F).column_sums()[:K] / m
        ratio = np.sqrt(sums_F / sums_L)
        L[:, :K] *= ratio.astype(self.dtype)
        F[:, :K] /= ratio.astype(self.dtype)
        return ratio

    def turn_into(self, dtype: Any) -> None:
        """Go on in another type."""
        self.dtype = np.dtype(dtype)
        self.rows.turn_into(dtype)
        self.F = self.F.as_type(dtype)
        self.sum_columns()
