"""Joint EM with a penalty on one factor that makes some of its parameters zero.

One iteration, with the expected counts n_ijk of the old L and F, for a penalty on L and ||f_k||_p =
1 (for a penalty on F, exchange both):

1. ``l_ik <- sum_j n_ijk / (sum_j f_jk + slope_ik)``, with the slope of the penalty at the old L.
   It minimises an upper bound: the penalty is concave, and EM's own bound is separable.
2. With p = 1, ``f_jk <- sum_i n_ijk / sum_ij n_ijk``. With p = 2, f_jk minimises ``s_k f_jk -
   sum_i n_ijk log f_jk + a_k f_jk^2 / 2``, with s_k the sum of the new l_ik and a_k = weight q
   sum_i l_ik^q, because ||f||^q is below its tangent in ||f||^2. Then f_k is divided by its norm,
   and l_k multiplied by it (equation 37 has the same value at all scales).

Both steps lower the same bound, so that the penalised loss never rises.  At the end of a fit, the
factor with the penalty takes Newton steps to its optimum with the other one held: EM reaches zeros
only in the limit.  In sums over samples and norms of L, samples have their weights.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from ...counts.aligned import aligned_empty, aligned_zeros
from ...engine.protocol import Sums, Values
from ..factors import MINVAL, Array, Factor, at_floor
from ..projection.penalty import Penalty, PenaltySlopes, Slope
from ..projection.transform import ProjectRows
from .alternating import check_whole_columns
from .extrapolation import ExtrapolateRows, Momentum
from .joint_em import JointEM
from .objective import SEEN
from .penalised_steps import MinimiseRows, ProjectColumns, minimiser
from .row_update import EM, RowUpdate
from .state import Seen
from .steps import ColumnSums, Convert


class PenalisedEM(JointEM):
    """Joint EM with a penalty; row arrays ``L``, ``next``, ``pseudo`` and ``rate``."""

    def __init__(self, *arguments: Any, penalty: Penalty):
        super().__init__(*arguments)
        self._penalty = penalty

    @property
    def penalty(self) -> Penalty:
        """The penalty on one factor, where columns of the other have the norm `size`."""
        return self._penalty.scaled(1 / self.size)

    def look(self, how: RowUpdate, target: str | None) -> tuple[Seen, dict[str, Any]]:
        """Update the rows into `target`; return the penalised objective at the point before."""
        self.executor.apply(PenaltySlopes(self._slope_of_rows(), self.n_components))
        seen, terms = self.state.update_rows(how, target, reports=SEEN)
        terms["log_prior"] = self._log_prior(terms["log_prior"]) / self._penalty.exponent
        return seen, self.objective.at(self.state, seen, terms)

    @abstractmethod
    def _slope_of_rows(self) -> Slope:
        """Return the derivative of equation 37 with respect to L."""

    @abstractmethod
    def _log_prior(self, of_rows: float) -> float:
        """Return minus the sum of parameters times slopes; `of_rows` is that of L."""

    def _factor(self, slope: Slope) -> Factor:
        """Return F with slopes as the rates of a prior."""
        rate = slope.at(self.state.F.values, self.n_components)
        return replace(self.state.F, pseudo=aligned_zeros(rate.shape, rate.dtype), rate=rate)

    def _scale_rows(self, name: str, scales: Array) -> None:
        """Multiply the columns of loadings; entries at the floor stay there."""
        floors = MINVAL * np.maximum(scales, 1) * (1 + 1e-6)
        self.executor.apply(Convert(name, name, self.n_components, scale=scales, least=floors))

    def _slope_of_other(self, powers: Array) -> Slope:
        return self.penalty.slope_of_other(powers[: self.n_components], self.size)

    def _em_step_of_F(self, slope: Slope, sums: Sums | None, source: str) -> tuple[float, Array]:
        """Move F into `_moved`; return the residual of the previous F, and the numerators.

        `slope` is that of equation 37 with respect to F. Numerators ``sum_i n_ijk`` are (lanes, K).
        """
        state, K, F = self.state, self.n_components, self.state.F
        if self._moved is None:
            self._moved = aligned_empty(F.values.shape, state.dtype)
        state.F = self._factor(slope)
        rate = state.F.prior()["rate"][:, :K]
        kkt = state.move_columns(EM, self._moved, sums, source=source)
        state.F = F
        numerators = self._moved[:, :K] * (state.total_L[:K] + rate)
        return kkt / self.objective.scale_F, numerators


class SparseLoadings(PenalisedEM):
    """A penalty on L; columns of F have the norm `size`."""

    def _column_scales(self) -> Array:
        """Return the norms of the columns of F, divided by `size`."""
        if self._penalty.p == 1:
            return super()._column_scales()
        norms = np.sqrt(self.state.F.column_sums(exponent=2)[: self.n_components])
        scales: Array = (norms / self.size).astype(self.state.dtype)
        return scales

    def _slope_of_rows(self) -> Slope:
        return self.penalty.slope

    def _log_prior(self, of_rows: float) -> float:
        return of_rows

    def _powers(self, source: str) -> ColumnSums:
        return ColumnSums(self.n_components, source, self._penalty.exponent)

    def kkt_factors(self) -> float:
        """Return the residual of F at the current point, in one pass over the columns."""
        (powers,), sums = self.state.advance(self._powers("L"), columns=EM)
        return self._em_step_of_F(self._slope_of_other(powers["sums"]), sums, "L")[0]

    def update(self, iteration: int, ending: bool) -> None:
        """Compute the new F from the old L, and move to the new L and F."""
        state, K = self.state, self.n_components
        self.executor.copy("L", "before")
        (before, of_rows, after), sums = state.advance(
            self._powers("before"), ExtrapolateRows(K), self._powers("next"), columns=EM,
            source="before",
        )  # fmt: skip
        slope = self._slope_of_other(before["sums"])
        kkt, numerators = self._em_step_of_F(slope, sums, "before")
        rows = state.note_rows(of_rows)
        moved = self._normalised_factor(numerators, after["sums"])
        columns = state.extrapolate_factor(moved, state.F.values, Momentum(), state.F.values)
        scales = self._column_scales()
        self._normalise(state.F.values, scales)
        if self._penalty.p == 2:
            self._scale_rows("L", scales)
            state.sum_columns()
        self.pending = {"kkt_factors": kkt, **rows, **columns}

    def _normalised_factor(self, numerators: Array, powers: Array) -> Array:
        """Return F after step 2, before it is divided by its norm."""
        state, K = self.state, self.n_components
        assert self._moved is not None
        if self._penalty.p == 1:
            factor = numerators * (self.size / numerators[: state.F.n_rows].sum(axis=0))
        else:
            curvature = self._slope_of_other(powers).coefficient
            factor = minimiser(numerators, state.total_L[:K], curvature)
        # an EM step leaves zeros at the floor; their numerators would move them off it
        factor[at_floor(self._moved[:, :K])] = MINVAL
        self._moved[:, :K] = np.maximum(factor, MINVAL)
        return self._moved

    def finish(self, settled: bool) -> Values:
        """Move L to its optimum with F held, which EM only approaches where it is zero; end."""
        self.executor.drop("pseudo", "rate")
        state = self.state
        optimum = ProjectRows(
            state.F.values, state.total_F, self.n_components, penalty=self.penalty
        )
        self.executor.run(optimum)
        self.executor.copy("projected", "L")
        self.executor.drop("projected")
        state.sum_columns()
        return super().finish(settled)


class SparseComponents(PenalisedEM):
    """A penalty on F; columns of L have the norm `size`."""

    def __init__(self, *arguments: Any, penalty: Penalty):
        super().__init__(*arguments, penalty=penalty)
        check_whole_columns(
            self.executor, self.n_components, "SparsityPenalty(on='components') ends with steps",
            "on='loadings'",
        )  # fmt: skip

    @property
    def _last_scale(self) -> float:
        return 1 / self.size

    def _column_scales(self) -> Array:
        """Return the divisors of the columns of F with which those of L have the norm `size`."""
        return 1 / self._norms("L")

    def _norms(self, source: str) -> Array:
        """Return the norms of the columns of loadings, divided by `size`."""
        p = self._penalty.p
        ((sums_of_rows, _),) = self.executor.run(ColumnSums(self.n_components, source, p))
        sums = sums_of_rows["sums"][: self.n_components]
        norms: Array = (sums if p == 1 else np.sqrt(sums)) / self.size
        return norms

    def _slope_of_rows(self) -> Slope:
        powers = self.state.F.column_sums(exponent=self._penalty.exponent)
        return self._slope_of_other(powers)

    def _log_prior(self, of_rows: float) -> float:
        return self._factor(self.penalty.slope).log_prior()

    def kkt_factors(self) -> float:
        """Return the residual of F at the current point, in one pass over the columns."""
        _, sums = self.state.advance(columns=EM)
        return self._em_step_of_F(self.penalty.slope, sums, "L")[0]

    def update(self, iteration: int, ending: bool) -> None:
        """Move to the new F, and to the new L with it."""
        state, K, F = self.state, self.n_components, self.state.F.values
        self.executor.copy("L", "before")
        _, sums = state.advance(columns=EM, source="before")
        kkt, _ = self._em_step_of_F(self.penalty.slope, sums, "before")
        total = state.total_F[:K]
        assert self._moved is not None
        columns = state.extrapolate_factor(self._moved, F, Momentum(), F)
        if self._penalty.p == 2:
            curvature = self._slope_of_rows().coefficient
            self.executor.apply(MinimiseRows(total, state.total_F[:K], curvature))
        scales = 1 / self._norms("next")
        self._scale_rows("next", scales)
        ((of_rows, _),) = self.executor.run(ExtrapolateRows(K))
        if self._penalty.p == 2:
            self._normalise(F, scales)
        self.pending = {"kkt_factors": kkt, **state.note_rows(of_rows), **columns}

    def finish(self, settled: bool) -> Values:
        """Move F to its optimum with L held, which EM only approaches where it is zero; end."""
        state = self.state
        optimum = ProjectColumns(state.F.values, state.total_L, self.n_components, self.penalty)
        np.copyto(state.F.values, self.executor.run_columns(optimum)["values"])
        state.sum_columns()
        return super().finish(settled)
