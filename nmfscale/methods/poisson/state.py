"""The state of a Poisson NMF during a fit, and the two half-steps that all methods share.

F is in this process; L is a row array of an `Executor`, wherever that is.  Reports of the kernels
(log-likelihood, KKT residuals, changes, column sums) are summed in an order that depends on the
counts only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.sell import LANES, SellBlock, type_of_products
from ...engine.protocol import Executor, Step, Sums, Values
from ..factors import (
    MINVAL,
    Array,
    Constraints,
    Factor,
    aligned_copy,
    per_lane,
    sum_lanes,
    to_lanes,
)
from ..slices import sliced_counts
from ..weights.entries import weightless_columns
from ..weights.measured import own_totals
from ..weights.poisson_weights import PoissonWeights, SumsOfEntries, row_inputs, totals_of_columns
from .efficiencies import efficiencies_of
from .extrapolation import Extrapolation, Momentum, extrapolate
from .row_update import SHARED, SHARED_MARGIN, RowUpdate, correlations, room_for_curvature
from .steps import (
    ColumnSums,
    Convert,
    Part,
    SampleTerms,
    SumColumns,
    UpdateColumns,
    UpdateRows,
    WeighColumns,
    convert,
)

TOTALS = ("total_L", "total_F", "total_L_before", "total_F_before")


class Seen(NamedTuple):
    """Diagnostics of the point before a half-step: sum x log mu, the largest |b g|."""

    log_mu: float = float("nan")
    kkt: float = float("nan")


class PoissonState:
    """L (n, K) and F (m, K) of a fit, with column sums and stored curvature.

    The start must be positive. Without L only the shape of F is used, and `restore` must follow.
    `dtype` is the type of the arithmetic; sums over rows are always float64.
    """

    def __init__(
        self, counts: CountMatrix, executor: Executor, L: Array | None, F: Array, dtype: Any,
        constraints: Constraints | None = None,
    ):  # fmt: skip
        self.counts, self.executor = counts, executor
        self.constraints = constraints_of_fit = constraints or Constraints()
        self.layout, self.n_threads = executor.layout, executor.n_threads
        self.n_rows, self.n_components, self.dtype = counts.shape[0], F.shape[1], np.dtype(dtype)
        self.stride = kernels.row_stride(self.n_components)
        self.total_L = self.total_L_before = self.total_F = self.total_F_before = np.zeros(0)
        rows, columns = self.layout.row_order, self.layout.column_order
        self.totals = per_lane(counts.row_totals, rows)
        weights, mask = constraints_of_fit.weights, constraints_of_fit.features
        self.weights = None if weights is None else per_lane(weights, rows)
        self._put_samples()
        self.efficiencies = efficiencies_of(constraints_of_fit, executor, len(F))
        values = to_lanes(F, columns, self.stride, dtype, least=MINVAL)
        fixed = None if mask is None else per_lane(mask, columns)
        pseudo, rate = self._prior(constraints_of_fit.prior_factors, columns)
        self.F = Factor(values, len(F), self.n_components, fixed, pseudo, rate)
        if L is not None:
            folder = self.executor.folder
            lanes = to_lanes(L, rows, self.stride, self.dtype, least=MINVAL, folder=folder)
            self.executor.put("L", lanes)
            self.sum_columns()
        self._curvature_F: Array | None = None
        self._weighted: SellBlock | None = None
        self._room: list[Array] = []
        self._shared: dict[str, Array] = {}

    def _put_samples(self) -> None:
        """Put weights, priors and masks of samples into the executor."""
        order, constraints = self.layout.row_order, self.constraints
        pseudo, rate = self._prior(constraints.prior_loadings, order)
        fixed = None if constraints.samples is None else per_lane(constraints.samples, order)
        groups = None if constraints.groups is None else per_lane(constraints.groups, order)
        arrays: dict[str, Any] = {"totals": self.totals, "weights": self.weights, "fixed": fixed,
                                 "pseudo": pseudo, "rate": rate, "groups": groups}  # fmt: skip
        if constraints.entries is not None:
            arrays |= row_inputs(PoissonWeights(constraints.entries), self.layout)
        for name, array in arrays.items():
            if array is not None:
                self.executor.put(name, array)

    def _prior(self, prior: Any, order: Array) -> tuple[Array | None, Array | None]:
        if prior is None:
            return None, None
        pseudo, rate = (to_lanes(values, order, self.stride, self.dtype, 0) for values in prior)
        return pseudo, rate

    # L ------------------------------------------------------------------------------------------

    def update_rows(
        self, how: RowUpdate, target: str | None = "next", *, source: str = "L",
        reports: tuple[str, ...] = (),
    ) -> tuple[Seen, Values]:  # fmt: skip
        """Update every row of L into `target`, with F fixed.

        If the log-likelihood is reported, the terms of the samples are returned, too.
        """
        update = UpdateRows(
            self.F.values, self.total_of_rows(), self.n_components, how, source, target, reports,
            self._correlation("L", how), self.F.n_rows, self._of_entries(),
        )  # fmt: skip
        terms = [self.sample_terms(source)] if "loglik_start" in reports else []
        (of_rows, _), *of_samples = self.executor.run(update, *terms)
        if how.refresh:
            self._share("L", of_rows["correlations"])
        seen = Seen(of_rows.get("log_mu", np.nan), of_rows.get("max_kkt", np.nan))
        return seen, of_samples[0].values if of_samples else {}

    def _share(self, side: str, correlations: Array) -> None:
        """Use these correlations in the next steps."""
        K = self.n_components
        shared = np.empty((K, K))
        lower = np.tril_indices(K)
        shared[lower] = shared.T[lower] = correlations[:-1] / max(correlations[-1], 1e-300)
        np.fill_diagonal(shared, SHARED_MARGIN)
        self._shared[side] = shared

    def _correlation(self, side: str, how: RowUpdate) -> Array | None:
        """Return the correlations for an update of a factor, if rows share them."""
        return self._shared[side].astype(self.dtype) if how.curvature == SHARED else None

    def total_of_rows(self) -> Array:
        """Return u, the column sums of F (stride,), or those of each group (n_groups, stride)."""
        if self.efficiencies is None:
            return self.total_F
        return self.efficiencies.totals_of_rows(self.F)

    def _of_entries(self) -> Array | None:
        """Return the efficiencies (m, n_groups) of features if entries have weights, too."""
        e = self.efficiencies
        return None if e is None or e.weightless is None else e.of_groups(self.F)

    def note_rows(self, of_rows: Values) -> dict[str, float]:
        """Store the column sums of L after an extrapolation; return its columns of the history."""
        self.total_L, self.total_L_before = of_rows["sums"], of_rows["sums_before"]
        return self._changes(of_rows, "loadings", self.n_rows)

    def _changes(self, sums: Values, name: str, n_rows: int) -> dict[str, float]:
        """Return the largest change of a factor relative to its mean, and its share of zeros."""
        n, total = n_rows * self.n_components, float(sums["sums"][: self.n_components].sum())
        change = sums["max_change"] * n / total if total > 0 else 0.0
        return {f"change_{name}": change, f"zeros_{name}": sums["zeros"] / n}

    # F ------------------------------------------------------------------------------------------

    def prior_of_F(self, source: str = "L") -> dict[str, Array]:
        """Return the prior of F in the form of the kernels.

        If not all entries are part of the likelihood, it includes the totals of the columns.
        """
        if self.constraints.all_observed:
            return self.F.prior()
        return own_totals(self._totals_of_columns(source), self.F.prior(), self.dtype)

    def _totals_of_columns(self, source: str) -> Array:
        """Return the column sums of L for each feature: with weights of entries, weighted sums.

        Otherwise they are sums over groups times the efficiencies of the feature in these.
        """
        entries, order = self.constraints.entries, self.layout.column_order
        if entries is not None and self.efficiencies is None:
            of_entries = SumsOfEntries(self.F.values.shape, self.F.n_rows, source)
            ((_, (more,)),) = self.executor.run(of_entries)
            # without a prior, a feature that was observed nowhere becomes zero
            never = self.total_L if self.F.pseudo is None else np.zeros(self.stride)
            weightless = weightless_columns(entries)
            return totals_of_columns(self.total_L, more, weightless, order, never)
        assert self.efficiencies is not None
        self._sum_groups(source)
        return self.efficiencies.totals_of_columns(self.F)

    def problem_of_F(self, how: RowUpdate, design: Array) -> Any:
        """Return the row problem of F, with column sums of L unless `prior_of_F` has them."""
        total, moves, shared = self._total_of_F(), self._moves_of_F(), self._correlation("F", how)
        return how.problem(design, total, self.n_components, shared, moves)

    def _total_of_F(self) -> Array:
        total = self.total_L.astype(self.dtype)
        return total if self.constraints.all_observed else np.zeros_like(total)

    def _moves_of_F(self) -> Array | None:
        """Return a mask (stride,) of the components of F that move; None if all do."""
        if self.constraints.topics is None:
            return None
        moves = np.zeros(self.stride, self.dtype)
        moves[: self.n_components] = ~self.constraints.topics
        return moves

    def whole_columns(self) -> Any:
        """Return the columns of a single block in the form of the kernels, perhaps weighted."""
        counts = self.layout.whole_columns
        if self.weights is not None:
            if self._weighted is None:  # whole columns stay in memory
                self._weighted = counts.weighted(self.weights, self.dtype, self.n_threads)
            counts = self._weighted
        return sliced_counts(counts, len(self.layout.row_order))

    def curvature_F(self) -> Array:
        """Return memory for the curvature of long columns."""
        if self._curvature_F is None:
            longest = self.layout.column_order[::LANES]  # the first of every slice
            self._curvature_F = room_for_curvature(
                self.counts.column_nnz[longest], self.n_components
            )
        return self._curvature_F

    def sum_step(self, how: RowUpdate, source: str = "L") -> SumColumns:
        """Return the step that sums the statistics of F for `move_columns`.

        If counts stay in memory, they are weighted once.
        """
        if self.weights is not None and self.executor.keeps_counts:
            if self.executor.get_blocks("weighted") is None:
                self.executor.run(WeighColumns(str(self.dtype)))
        parts = self._parts(how)
        return SumColumns(self.F.values, self.n_components, parts, how.refresh, source, self._room)

    def _parts(self, how: RowUpdate) -> tuple[Part, ...]:
        """Return the statistics to sum: fewer for columns whose curvature is reused or shared."""
        n_slices = len(self.F.values) // LANES
        n_less = 0
        if how.curvature == SHARED:
            n_less = n_slices
        elif how.curvature is not None:
            n_less = len(self.curvature_F())
        less: dict[int | None, int] = {
            SHARED: kernels.SUM_DIAGONAL,
            kernels.REUSE: kernels.SUM_DIAGONAL,
            kernels.RESCALE: kernels.SUM_GRADIENT,
        }
        wanted = [less.get(how.curvature, kernels.SUM_FULL), kernels.SUM_FULL]
        if not how.newton_steps:
            wanted = [kernels.SUM_GRADIENT] * 2
        places = [Part(0, n_less, wanted[0]), Part(n_less, n_slices, wanted[1])]
        return tuple(part for part in places if part.last > part.first)

    def move_columns(
        self, how: RowUpdate, out: Array | None, sums: Sums | None, *, source: str = "L",
        **arrays: Any,
    ) -> float:  # fmt: skip
        """Move every row of F into `out`, from `sums` or, for a single block, from its columns.

        Return the largest KKT residual at the previous F. `arrays` are arguments of the kernels.
        """
        F, kkt, shared = self.F.values, np.zeros(len(self.F.values)), None
        arrays |= {"kkt_start": kkt, **self.prior_of_F(source)}
        if how.mode is not None:
            arrays |= {"curvature": self.curvature_F(), "curvature_mode": how.mode}
        if sums is None:
            L = self.executor.get(source)
            problem = self.problem_of_F(how, L)
            sliced = self.whole_columns()
            if how.refresh:
                shared = correlations(sliced, problem, F, self.n_components, self.n_threads)
            kernels.update_rows(sliced, problem, F, out, n_threads=self.n_threads, **arrays)
        else:
            problem = self.problem_of_F(how, F)
            for part, numbers in zip(self._parts(how), sums, strict=False):
                kernels.step(
                    problem, numbers, F, out, wanted=part.wanted, first=part.first,
                    n_threads=self.n_threads, **arrays,
                )  # fmt: skip
            shared = sums[-1] if how.refresh else None
        if shared is not None:
            self._share("F", shared)
        if out is not None and self.F.fixed is not None:
            out[self.F.fixed] = F[self.F.fixed]
        return self.F.largest(kkt)

    def advance(
        self, *steps: Step, columns: RowUpdate, source: str = "L"
    ) -> tuple[list[Values], Sums | None]:
        """Run steps; if there are several blocks, sum the statistics of F in the same pass."""
        if self.executor.one_block:
            return [results.values for results in self.executor.run(*steps)] if steps else [], None
        *results, sums = self.executor.run(*steps, self.sum_step(columns, source))
        return [result.values for result in results], sums.sums

    def extrapolate_columns(
        self, how: RowUpdate, sums: Sums | None, lag: Array, best: Array | None, momentum: Momentum
    ) -> tuple[float, dict[str, float]]:
        """Move F and extrapolate it in place; return the KKT residual and the changes.

        `lag` (bfloat16, as uint16) holds the difference of F from the previous plain point, and is
        updated for the current one. The previous F is copied to `best`.
        """
        factor = self.F
        stay = None if factor.fixed is None else factor.values[factor.fixed]
        to = Extrapolation(
            factor.n_rows, factor.values, momentum, start=factor.values, lag=lag, best=best
        )
        kkt = self.move_columns(how, None, sums, extrapolation=to.operand)
        changes = to.found()
        if stay is not None:
            factor.values[factor.fixed], lag[factor.fixed] = stay, 0
            now = factor.values - (lag.astype(np.uint32) << 16).view(np.float32)
            changes["sums"] = factor.column_sums()
            changes["sums_before"] = replace(factor, values=now).column_sums()
        return kkt, self.note_columns(changes)

    def note_columns(self, sums: Values) -> dict[str, float]:
        """Store the column sums of F; return the columns of the history on its change."""
        self.take_column_sums(sums)
        return self._changes(sums, "factors", self.F.n_rows)

    def take_column_sums(self, sums: Values) -> None:
        """Store the column sums of F, and of its previous plain point."""
        self.total_F, self.total_F_before = sums["sums"], sums["sums_before"]
        self._moved()

    def extrapolate_factor(
        self, now: Array, before: Array, momentum: Momentum, target: Array
    ) -> dict[str, float]:
        """Extrapolate F from `now` away from `before` into `target`, which becomes F."""
        self.set_factor(now)
        sums = extrapolate(self.F, before, target, momentum, None, self.n_threads)
        self.set_factor(target)
        return self.note_columns(sums)

    def update_columns(self, how: RowUpdate, out: Array, *, reports: tuple[str, ...] = ()) -> Seen:
        """Update every row of F in several steps, by the row kernel on the transposed counts."""
        step = UpdateColumns(
            self.F.values, self._total_of_F(), self.n_components, how, reports, self._moves_of_F(),
            self.F.fixed, **self.prior_of_F(), room=self._room,
        )  # fmt: skip
        updated = self.executor.run_columns(step)
        np.copyto(out, updated["values"])
        # lanes without a row have no counts and add nothing
        log_mu = sum_lanes(updated["loglik_end"]) if "loglik_end" in updated else np.nan
        return Seen(
            log_mu, self.F.largest(updated["kkt_start"]) if "kkt_start" in updated else np.nan
        )

    # Both ---------------------------------------------------------------------------------------

    def sample_terms(self, source: str = "L") -> SampleTerms:
        """Return the step that sums the terms of samples in the objective."""
        F = None if self.constraints.entries is None else self.F.values
        total, e = self.total_of_rows(), self._of_entries()
        return SampleTerms(total, self.n_components, source, F, self.F.n_rows, e)

    def set_factor(self, values: Array) -> None:
        """Use this memory for F."""
        self.F = replace(self.F, values=values)
        self._moved()

    def _moved(self) -> None:
        if self.efficiencies is not None:
            self.efficiencies.moved()

    def sum_columns(self) -> None:
        """Compute the column sums of both factors, and those of groups."""
        ((of_rows, _),) = self.executor.run(ColumnSums(self.n_components))
        self._sum_groups()
        self.total_L, self.total_F = of_rows["sums"], self.F.column_sums()
        self.total_L_before, self.total_F_before = self.total_L, self.total_F

    def _sum_groups(self, source: str = "L") -> None:
        """Compute the column sums of L over groups of samples, if there are groups."""
        if self.efficiencies is not None:
            self.efficiencies.sum_groups(self.executor, source)

    def restore_zeros(self) -> None:
        """Set parameters at the floor to zero."""
        self._end("restore")

    def lift_zeros(self) -> None:
        """Set zeros to the floor again."""
        self._end("lift")

    def _end(self, zeros: str) -> None:
        self.executor.apply(Convert("L", "L", self.n_components, zeros=zeros))
        convert(self.F, zeros=zeros)
        # restore fixed parameters of F that were raised to the floor
        order, fixed = self.layout.column_order, self.F.fixed
        factors: Any = self.constraints.factors
        if self.constraints.topics is not None:
            lanes, topics = np.flatnonzero(order >= 0), np.flatnonzero(self.constraints.topics)
            self.F.values[np.ix_(lanes, topics)] = factors[np.ix_(order[lanes], topics)]
        if fixed is not None:
            self.F.values[fixed, : self.n_components] = factors[order[fixed]]
        self.sum_columns()

    def as_type(self, dtype: Any, *names: str) -> None:
        """Convert the state to another dtype; `names` are the loadings to convert."""
        self.dtype = np.dtype(dtype)
        for name in (*names, *(("pseudo", "rate") if self.constraints.prior_loadings else ())):
            self.executor.apply(Convert(name, name, self.n_components, dtype=str(self.dtype)))
        self.F = self.F.as_type(dtype)
        if self.weights is not None:
            of_counts = type_of_products(self.layout.count_dtype, self.weights, self.dtype)
            if of_counts.kind == "f":  # integers hold for any type
                self._weighted = None
                self.executor.drop("weighted")
        if names:
            self.sum_columns()

    def state(self) -> dict[str, Array]:
        """Return arrays from which `restore` rebuilds the state."""
        arrays = {"L": self.executor.get("L"), "F": self.F.values}
        arrays |= {name: getattr(self, name) for name in TOTALS}
        if self._curvature_F is not None:
            arrays["curvature_F"] = self._curvature_F
        for i, stored in enumerate(self.executor.get_blocks("curvature") or ()):
            arrays[f"curvature_L_{i:06d}"] = stored
        return arrays | {f"shared_{side}": array for side, array in self._shared.items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore the state saved by `snapshot`."""
        self.executor.put("L", aligned_copy(arrays["L"]))
        np.copyto(self.F.values, arrays["F"])
        for name in TOTALS:
            setattr(self, name, arrays[name])
        self._curvature_F = arrays.get("curvature_F")
        stored = sorted(name for name in arrays if name.startswith("curvature_L_"))
        if stored:
            self.executor.put("curvature", [arrays[name] for name in stored])
        names = (f"shared_{side}" for side in "LF")
        self._shared = {name[-1]: arrays[name] for name in names if name in arrays}
        self._sum_groups()
