"""Joint EM, solver="joint-em": updates both factors from the same expected counts.

Geiger and Park, Algorithms 4 and 6; PLSA when normalised.  With the expected counts
``n_ijk = x_ij l_ik f_jk / (L F^T)_ij`` of component k, and columns of F that sum to one (with very
many counts only at the end: see `size_of_columns`):

1. ``l_ik <- sum_j n_ijk``
2. ``f_jk <- sum_i n_ijk / sum_ij n_ijk``, from the L that step 1 began with.

This is the M step of PLSA for both factors at once, so that the likelihood never falls.  From F and
rows of L that sum to one, F is that of PLSA, and L its proportions times the totals (Lemma B.1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...engine.protocol import Values
from ...kernels.functions import log1p
from ..factors import MINVAL, Array, at_floor
from .extrapolation import ExtrapolateRows, Momentum
from .objective import FactorModel
from .row_update import EM
from .steps import Convert, convert

# Lanes of F that stay in the cache while they are divided and summed.
_PIECE = 1 << 9
# Number of counts from which a column of F that sums to one may have entries near the floor that
# still explain counts.
_MANY = 2.0**26


def size_of_columns(total: float) -> float:
    """Return the column sums of F: one, or a power of two between the scales of F and L.

    Powers of two change no digit of a product of both factors.
    """
    return 1.0 if total < _MANY else math.ldexp(1.0, (math.frexp(total)[1] - 1) // 2)


def penalise(factor: Array, history: Array, penalty: float, total: float) -> None:
    """Apply a penalty times the sum of a factor, in place, to a fit without penalty.

    Columns of the other factor sum to one. By equation 35, the penalised loss of L / (1 + penalty)
    is then the loss of L plus log(1 + penalty) sum x (`total` is sum x), so both have the same
    optima; the same holds for F.
    """
    factor /= 1 + penalty
    more = float(log1p(penalty)) * total
    history["loglik"] -= more
    # after an update the sum of the factor is sum x
    history["deviance"] += 2 * (more - total * penalty / (1 + penalty))


class JointEM(FactorModel):
    """Joint EM; row arrays ``L`` and ``next``."""

    _loglik = np.nan
    # memory for the new F before it is normalised
    _moved: Array | None = None

    def start(self) -> None:
        """Scale the columns of F."""
        self.state = state = self.make_state(self.dtype)
        K = self.n_components
        sums = self._column_scales()
        state.F.values[:, :K] /= sums
        self.executor.apply(Convert("L", "L", K, scale=sums))
        state.sum_columns()
        self.pending = {}

    @property
    def size(self) -> float:
        """The column sums of F."""
        return size_of_columns(self.objective.total)

    @property
    def _last_scale(self) -> float:
        """The multiplier of L with which the columns of F sum to one."""
        return self.size

    def _column_scales(self) -> Array:
        """Return the divisors of the columns of F."""
        state = self.state
        scales: Array = (state.total_F[: self.n_components] / self.size).astype(state.dtype)
        return scales

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Compute the new rows, and on the way the objective at the current point."""
        seen, at = self.look(EM, "next")
        self._loglik = at["loglik"]
        if not iteration:
            return None
        return self.pending | at | {"kkt_loadings": seen.kkt / self.objective.scale_L}

    def update(self, iteration: int, ending: bool) -> None:
        """Compute the new F from the old L, and move to the new L and F."""
        state, K = self.state, self.n_components
        self.executor.copy("L", "before")
        (of_rows,), sums = state.advance(ExtrapolateRows(K), columns=EM, source="before")
        F = state.F.values
        if self._moved is None:  # fresh memory in every iteration would cost a tenth of it
            self._moved = aligned_empty(F.shape, F.dtype)
        kkt = state.move_columns(EM, self._moved, sums, source="before")
        columns = state.extrapolate_factor(self._moved, F, Momentum(), F)
        self._normalise(F, self._column_scales())
        rows = state.note_rows(of_rows)
        self.pending = {"kkt_factors": kkt / self.objective.scale_F, **rows, **columns}

    def _normalise(self, F: Array, by: Array) -> None:
        """Divide the columns of the new F by (K,); entries at the floor stay there."""
        K, n_rows, total = self.n_components, self.state.F.n_rows, np.zeros(F.shape[1])
        # of whole pieces: operations on short rows, or on selected entries, take several times as
        # long
        scales, floor = (np.full((_PIECE, F.shape[1]), value, F.dtype) for value in (1, 0))
        scales[:, :K], floor[:, :K] = by, MINVAL
        for first in range(0, len(F), _PIECE):
            lanes = F[first : first + _PIECE]
            numbers, n = lanes.reshape(-1), lanes.size
            floored = at_floor(numbers)
            numbers /= scales.reshape(-1)[:n]
            numbers *= ~floored
            np.maximum(numbers, floor.reshape(-1)[:n] * floored, out=numbers)
            of_rows = lanes[: max(0, n_rows - first)]
            kernels.sum_slices(of_rows.astype(np.float64, copy=False), total)
        self.state.total_F = total

    def finish(self, settled: bool) -> Values:
        """Restore exact zeros, and scale the columns of F to sum to one."""
        self.executor.drop("next", "before")
        end, K = self.record_end(self.pending, self._loglik), self.n_components
        if self.size != 1:
            scale = np.full(K, self._last_scale)
            self.executor.apply(Convert("L", "L", K, scale=scale))
            convert(self.state.F, scale=1 / scale)
        return end
