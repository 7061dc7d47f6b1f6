"""Scales of the columns of L and F: L D and F D^-1 give the same model for any diagonal D.

The likelihood does not depend on D. Momentum must compare points at the same scale, priors
determine the scale, and the floor of one factor should not matter in products with the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...counts.cached import cached_property
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ..factors import LEAST, MINVAL, Array, Factor, at_floor
from .efficiencies import BatchEfficiencies
from .state import PoissonState
from .steps import ColumnSums

# Momentum and priors change a scale by at most this factor in an iteration.
MOST_SCALE = 2.0
# Loadings of batches are not scaled by factors as close to 1 as this.
LEAST_CHANGE = 1e-6


def scale_of_before(state: PoissonState) -> Array:
    """Return the factors (stride,) that bring the plain point of L to the current scale.

    Momentum must not extrapolate changes of D: points are compared at the scale at which the
    columns of both factors have equal means. F's plain point is divided by it.
    """
    K, out = state.n_components, np.ones(state.stride)
    totals = state.total_L_before, state.total_L, state.total_F_before, state.total_F
    L_before, L, F_before, F = np.maximum([sums[:K] for sums in totals], 1e-300)
    scale = np.sqrt(L / L_before * (F_before / F))
    out[:K] = np.minimum(np.maximum(scale, 1 / MOST_SCALE), MOST_SCALE)
    if state.constraints.topics is not None:
        out[:K][state.constraints.topics] = 1  # their scale is given
    return out


def scale_of_means(state: PoissonState) -> Array:
    """Return powers of two d (K,) for which column means of L d and F / d agree."""
    K = state.n_components
    L, F = state.total_L[:K] / state.n_rows, state.total_F[:K] / state.F.n_rows
    ratio = np.maximum(F, LEAST) / np.maximum(L, LEAST)
    scale: Array = np.ldexp(1.0, np.frexp(ratio)[1] // 2)  # 2^round(log2(ratio) / 2)
    return scale


def scale_of_priors(state: PoissonState) -> Array:
    """Return scales d (K,) for which L d and F / d are most probable under their priors.

    Multiplying factors by D adds ``sum (alpha - 1) log D - D sum rate f`` to the log prior, and
    dividing loadings by D adds ``-sum (alpha - 1) log D - sum rate l / D``. If there is no best D,
    D is 1.
    """
    K, F = state.n_components, state.F
    pseudo = b = c = np.zeros(K)
    if F.pseudo is not None and F.rate is not None:
        pseudo = F.pseudo[: F.n_rows, :K].sum(axis=0, dtype=np.float64)
        b = replace(F, values=F.values * F.rate).column_sums()[:K]
    if state.constraints.prior_loadings is not None:
        ((sums, _),) = state.executor.run(PriorSums(K))
        pseudo, c = pseudo - sums["pseudo"][:K], sums["rate"][:K]
    # the root of b D^2 - pseudo D - c, without cancellation
    root = np.sqrt(pseudo**2 + 4 * b * c)
    over = np.where(pseudo > 0, pseudo + root, 2 * c)
    under = np.where(pseudo > 0, 2 * b, root - pseudo)
    D = np.divide(over, under, out=np.ones(K), where=(over > 0) & (under > 0))
    scale: Array = 1 / np.clip(D, 1 / MOST_SCALE, MOST_SCALE)
    return scale


def scale_features(state: PoissonState, lag: Array | None = None) -> float:
    """Scale the features of F, in place, to their best scales; return the gain of sum x log mu.

    This matters if there are efficiencies of batches, which would otherwise let it change slowly.
    `lag` (bfloat16, as uint16) is the difference of F from its plain point.
    """
    efficiencies, F = state.efficiencies, state.F
    if not isinstance(efficiencies, BatchEfficiencies) or state.constraints.topics is not None:
        return 0.0
    c = np.ones(len(F.values))
    c[: F.n_rows] = efficiencies.scales(F, F.fixed)
    floored = at_floor(F.values)
    F.values *= c.astype(F.values.dtype)[:, None]
    np.maximum(F.values, MINVAL, out=F.values, where=floored | (F.values < MINVAL))
    F.values[:, state.n_components :] = 0
    before = F.values
    if lag is not None:
        numbers = (lag.astype(np.uint32) << 16).view(np.float32) * c.astype(np.float32)[:, None]
        lag[:] = numbers.view(np.uint32) >> 16
        before = F.values - numbers
    sums = {"sums": F.column_sums(), "sums_before": replace(F, values=before).column_sums()}
    state.take_column_sums(sums)
    return efficiencies.log_gain(c[: F.n_rows], axis=1)


def scale_batches(state: PoissonState, *names: str) -> float:
    """Scale the loadings of batches to better scales; return the gain of sum x log mu.

    `names` are loadings other than L to scale alike. The first is the previous plain point, if
    there are any. Loadings that are fixed, or have a prior, keep their scale.
    """
    efficiencies, constraints = state.efficiencies, state.constraints
    if constraints.samples is not None or constraints.prior_loadings is not None:
        return 0.0
    assert isinstance(efficiencies, BatchEfficiencies)
    c = efficiencies.scales_of_batches(state.F)
    if np.abs(c - 1).max() < LEAST_CHANGE:
        return 0.0
    K, of_groups = state.n_components, c[efficiencies.batches]
    for name in ("L", *names):
        state.executor.apply(ScaleGroups(name, K, of_groups))
    totals = state.executor.run(*(ColumnSums(K, name) for name in ("L", *names[:1])))
    efficiencies.sum_groups(state.executor)
    state.total_L = totals[0].values["sums"]
    state.total_L_before = totals[-1].values["sums"]
    return efficiencies.log_gain(c, axis=0)


@dataclass(frozen=True)
class ScaleGroups(Step):
    """Scales loadings by the factor of the group (G,) of each sample; floors stay."""

    source: str
    n_components: int
    scales: Array

    @cached_property
    def arrays(self) -> RowArrays:
        """Replaces `source`."""
        return RowArrays((self.source, "groups"), (self.source,))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Scale the rows of a block."""
        now, groups = block[self.source], block["groups"].astype(np.intp)
        scaled = now * self.scales.astype(now.dtype)[groups][:, None]
        np.maximum(scaled, MINVAL, out=scaled)
        np.copyto(scaled, now, where=at_floor(now))
        block.empty(self.source, now)[:] = scaled
        return {}


@dataclass(frozen=True)
class PriorSums(Step):
    """Sums pseudo-counts, and rates times L, of the prior of L."""

    n_components: int
    arrays = RowArrays(("L", "pseudo", "rate", "weights"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        terms = {"pseudo": block["pseudo"], "rate": block["L"] * block["rate"]}
        return {
            name: Factor(values, block.n_rows, self.n_components).column_sums(block.get("weights"))
            for name, values in terms.items()
        }
