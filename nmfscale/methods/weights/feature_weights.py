"""Weights of features in the likelihood of a Poisson NMF, such as those of modalities.

The log-likelihood is ``sum_ij w_j (x_ij log mu_ij - mu_ij - log x_ij!)``. Up to a constant, it is
that of counts w x with means w mu: so a fit to these counts has the factors w F and the same L.
The problem of a feature does not depend on its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...counts.base import CountMatrix
from ...kernels.functions import log, log_gamma
from ...readers.streams.weighted import counts_by_feature, sums_of_rows
from ..factors import Array, Constraints
from .measured import Measured, SampleGroups


@dataclass(frozen=True)
class FeatureWeights(SampleGroups):
    """Values of groups of samples, times the weights (m,) of features."""

    unweighted: SampleGroups
    weights: Array

    @property
    def groups(self) -> Array:  # type: ignore[override]
        """Group of each sample (n,)."""
        return self.unweighted.groups

    @property
    def values(self) -> Array:
        """The values (G, m), times the weights."""
        values: Array = self.unweighted.values * self.weights
        return values

    def group_sums(self, F: Array) -> Array:
        """Return the sums (G, K) of F (m, K) times weights and values of each group."""
        return self.unweighted.group_sums(F.astype(np.float64) * self.weights[:, None])

    def weighted(self, counts: CountMatrix) -> CountMatrix:
        """Return the counts times the weights."""
        return counts_by_feature(counts, self.weights)

    def log_weights(self, counts: CountMatrix) -> Array | float:
        """Return sums of x log w over each sample (n,), from weighted counts x."""
        logs = sums_of_rows(counts, self.weights, lambda x, w: x * log(w))
        return logs + self.unweighted.log_weights(counts)

    def rows(self, rows: Any) -> FeatureWeights:
        """Return the selection for some of the samples."""
        return FeatureWeights(self.unweighted.rows(rows), self.weights)


def with_feature_weights(
    observed: SampleGroups | None, counts: CountMatrix
) -> tuple[SampleGroups | None, CountMatrix]:
    """Return what was observed, and counts, both with the weights of features of the counts."""
    weights = counts.feature_weights
    if weights is None:
        return observed, counts
    everything = Measured.everything(counts.shape) if observed is None else observed
    return FeatureWeights(everything, weights), counts_by_feature(counts, weights)


def weighted_problem(
    counts: CountMatrix, F: Array | None, constraints: Constraints, weights: Array
) -> tuple[CountMatrix, Array | None, Constraints]:
    """Return counts, start and constraints of the fit whose factors are those times the weights.

    Its log-likelihood has the constant of the counts as they are.
    """
    of_features, prior = weights[:, None], constraints.prior_factors
    if prior is not None:
        constraints = replace(constraints, prior_factors=(prior[0], prior[1] / of_features))
    weighted = counts_by_feature(counts, weights)
    constant = sums_of_rows(counts, weights, lambda x, w: w * (log_gamma(x + 1) + x * log(w)))
    constraints = replace(constraints, entry_constants=(constant, weighted.row_x_log_x))
    return weighted, None if F is None else (F * of_features).astype(F.dtype), constraints


def unweighted_factors(
    F: Array, weights: Array, start: Array | None, constraints: Constraints
) -> Array:
    """Return the factors (m, K) of the counts; those that are fixed are exactly as given."""
    out = (F / weights[:, None]).astype(F.dtype)
    if start is not None:
        if constraints.topics is not None:
            out[:, constraints.topics] = start[:, constraints.topics]
        if constraints.features is not None:
            out[constraints.features] = start[constraints.features]
    return out
