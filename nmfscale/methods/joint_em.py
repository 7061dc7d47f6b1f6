"""Joint EM, solver="joint-em": both factors from the same expected counts.

Geiger and Park, Algorithms 4 and 6; PLSA when normalised.  With the expected counts
``n_ijk = x_ij l_ik f_jk / (L F^T)_ij`` of component k, and columns of F that sum to one:

1. ``l_ik <- sum_j n_ijk``
2. ``f_jk <- sum_i n_ijk / sum_ij n_ijk``, from the L that step 1 began with.

This is the M step of PLSA for both factors at once, so that the likelihood never falls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.protocol import Values
from .factors import MINVAL, Array, aligned_copy, at_floor
from .objective import FactorModel
from .steps import Convert, ExtrapolateRows, Momentum


class JointEM(FactorModel):
    """Joint EM; row arrays ``L`` and ``next``."""

    def start(self) -> None:
        """Scale the columns of F to one."""
        self.state = state = self.make_state(self.dtype)
        K = self.n_components
        sums = state.total_F[:K].astype(state.dtype)
        state.F.values[:, :K] /= sums
        self.blocks.apply(Convert("L", "L", K, scale=sums))
        state.sum_columns()
        self.pending: dict[str, Any] = {}
        self._loglik = np.nan

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Find the new rows, and see on the way what the present point is worth."""
        seen, at = self.look("next", em_steps=1)
        self._loglik = at["loglik"]
        if not iteration:
            return None
        return self.pending | at | {"kkt_loadings": seen.kkt / self.objective.scale_L}

    def update(self, iteration: int, ending: bool) -> None:
        """Find the new F from the old L, and go to both."""
        state, K = self.state, self.n_components
        self.blocks.copy("L", "before")
        (found,), sums = state.advance(ExtrapolateRows(K), columns={"em_steps": 1}, source="before")
        new = aligned_copy(state.F.values)
        kkt = state.move_columns(new, sums, source="before", em_steps=1)
        columns = state.extrapolate_factor(new, state.F.values, Momentum(), aligned_copy(new))
        floored = at_floor(new[:, :K])
        new[:, :K] /= state.total_F[:K].astype(state.dtype)
        new[:, :K][floored] = MINVAL
        state.set_factor(new)
        state.total_F = state.F.column_sums()
        rows = state.note_rows(found)
        self.pending = {"kkt_factors": kkt / self.objective.scale_F, **rows, **columns}

    def finish(self, converged: bool) -> Values:
        """Restore exact zeros."""
        self.blocks.drop("next", "before")
        return self.record_end(self.pending, self._loglik)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what `restore` takes."""
        return {"pending": self.pending}, self.state.state()

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Stand where the state was taken."""
        self.state = self.make_state(self.dtype, begun=True)
        self.state.restore(arrays)
        self.pending = numbers["pending"]
