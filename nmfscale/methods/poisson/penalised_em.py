"""Joint EM with a penalty on the loadings that makes some of them zero.

One iteration, with the expected counts of the old L and F, and ||f_k||_p = 1:

1. ``l_ik <- sum_j n_ijk / (sum_j f_jk + slope_ik)``, with the slope of the penalty at the old L.
   It minimises an upper bound: the penalty is concave, and EM's own bound is separable.
2. With p = 1, ``f_jk <- sum_i n_ijk / sum_ij n_ijk``. With p = 2, f_jk minimises ``s_k f_jk -
   sum_i n_ijk log f_jk + a_k f_jk^2 / 2``, with s_k the sum of the new l_ik and a_k = weight q
   sum_i l_ik^q, because ||f||^q is below its tangent in ||f||^2. Then f_k is divided by its norm,
   and l_k multiplied by it (equation 37 has the same value at all scales).

Both steps lower the same bound, so that the penalised loss never rises.  At the end of a fit, L
takes Newton steps to its optimum with F held: EM reaches zeros only in the limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...counts.aligned import aligned_empty
from ...engine.protocol import Sums, Values
from ..factors import MINVAL, Array
from ..penalty import Penalty, PenaltySlopes, PowerSums
from ..transform import ProjectRows
from .joint_em import JointEM
from .objective import SEEN
from .row_update import EM, RowUpdate
from .state import Seen
from .steps import Convert, ExtrapolateRows, Momentum


class PenalisedEM(JointEM):
    """Joint EM with a penalty; row arrays ``L``, ``next``, ``pseudo`` and ``rate``."""

    def __init__(self, *given: Any, penalty: Penalty):
        super().__init__(*given)
        self._penalty = penalty

    @property
    def penalty(self) -> Penalty:
        """The penalty on L, whose factors have the norm `size`."""
        return self._penalty.scaled(1 / self.size)

    def _column_scales(self) -> Array:
        """Return the norms of the columns of F, divided by `size`."""
        if self._penalty.norm == "l1":
            return super()._column_scales()
        F = self.state.F
        values = F.values[: F.n_rows, : self.n_components].astype(np.float64)
        scales: Array = (np.sqrt((values * values).sum(axis=0)) / self.size).astype(F.values.dtype)
        return scales

    def look(self, how: RowUpdate, target: str | None) -> tuple[Seen, dict[str, Any]]:
        """Update the rows into `target`; return the penalised objective at the point before."""
        self.executor.apply(PenaltySlopes(self.penalty, self.n_components))
        seen, terms = self.state.update_rows(how, target, reports=SEEN)
        # the log prior is -sum_ik l_ik slope_ik, which is -q times the penalty
        terms["log_prior"] /= self._penalty.exponent
        return seen, self.objective.at(self.state, seen, terms)

    def _curvature(self, powers: Array) -> Array:
        """Return the slope (stride,) of the penalty in F with p = 1, or in F^2 / 2 with p = 2."""
        q, size = self._penalty.exponent, self.size
        scale = size if self._penalty.norm == "l1" else size * size
        found: Array = q * self.penalty.weight * powers / scale
        return found

    def _numerators(self, sums: Sums | None, source: str) -> Array:
        """Return ``sum_i n_ijk`` (lanes, stride), from an EM step of F without a penalty."""
        if self._moved is None:
            self._moved = aligned_empty(self.state.F.values.shape, self.state.dtype)
        self.state.move_columns(EM, self._moved, sums, source=source)
        return self._moved * self.state.total_L

    def _kkt(self, numerators: Array, powers: Array) -> float:
        """Return the largest ``|f g|``, g the gradient of the penalised loss with respect to F."""
        F, slope = self.state.F, self._curvature(powers)
        if self._penalty.norm == "l2":
            slope = slope * F.values
        residuals = np.abs(F.values * (self.state.total_L + slope) - numerators)
        return F.largest(residuals[:, : self.n_components].max(axis=1))

    def kkt_factors(self) -> float:
        """Return the residual of F at the current point, in one pass over the columns."""
        (found,), sums = self.state.advance(self._powers("L"), columns=EM)
        return self._kkt(self._numerators(sums, "L"), found["sums"]) / self.objective.scale_F

    def _powers(self, source: str) -> PowerSums:
        return PowerSums(self._penalty.exponent, self.n_components, source)

    def update(self, iteration: int, ending: bool) -> None:
        """Compute the new F from the old L, and move to the new L and F."""
        state, K = self.state, self.n_components
        self.executor.copy("L", "before")
        (before, found, after), sums = state.advance(
            self._powers("before"), ExtrapolateRows(K), self._powers("next"), columns=EM,
            source="before",
        )  # fmt: skip
        numerators = self._numerators(sums, "before")
        kkt = self._kkt(numerators, before["sums"])
        rows = state.note_rows(found)
        moved = self._moved_factor(numerators, after["sums"])
        columns = state.extrapolate_factor(moved, state.F.values, Momentum(), state.F.values)
        scales = self._column_scales()
        self._normalise(state.F.values)
        if self._penalty.norm == "l2":
            self.executor.apply(Convert("L", "L", K, scale=scales))
            state.sum_columns()
        self.pending = {"kkt_factors": kkt / self.objective.scale_F, **rows, **columns}

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

    def _moved_factor(self, numerators: Array, powers: Array) -> Array:
        """Return F after step 2, before it is divided by its norm."""
        state, K = self.state, self.n_components
        assert self._moved is not None
        numerators = numerators[:, :K]
        if self._penalty.norm == "l1":
            found = numerators * (self.size / numerators[: state.F.n_rows].sum(axis=0))
        else:
            s, a = state.total_L[:K], self._curvature(powers)[:K]
            found = 2 * numerators / (s + np.sqrt(s * s + 4 * a * numerators))
        self._moved[:, :K] = np.maximum(found, MINVAL)
        return self._moved
