"""Efficiencies of features in batches that a fit did not have, with its factors held.

The loadings of all samples of a batch and its efficiencies are estimated in turn: an EM algorithm
for the marginal likelihood of :mod:`nmfscale.methods.poisson.efficiencies`. Efficiencies and
loadings share a scale, which only the prior determines: without a step of its own it would creep.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...engine import progress
from ...kernels.functions import exp, log
from ..factors import LEAST, Array

# Efficiencies are estimated until none changes by more than this share of its standard error.
_TOL, _ROUNDS, _SCALE_STEPS = 0.02, 100, 30


def new_efficiencies(T: Array, shape: float, expected: Callable[[Array], Array]) -> Array:
    """Return the efficiencies (B, m) of features in batches with counts T (B, m).

    ``expected(e)`` returns the sums M (B, m) of ``L F^T`` over the samples of each batch, with
    loadings that are best for efficiencies e. `shape` is that of the prior.
    """
    progress.stage("efficiencies of new batches")
    efficiencies = np.ones(T.shape)
    for _ in range(_ROUNDS):
        M = expected(efficiencies)
        # a prior of loadings adds to the counts that are expected of a batch
        surplus = (efficiencies * M - T).sum(axis=1, keepdims=True) if shape else 0.0
        new = _means(T, M, shape, surplus)
        change = np.abs(log(np.maximum(new, LEAST)) - log(np.maximum(efficiencies, LEAST)))
        efficiencies = new
        if (change * np.sqrt(T)).max(initial=0.0) <= _TOL:
            break
    return efficiencies


def _means(T: Array, M: Array, a: float, surplus: Array | float) -> Array:
    """Return posterior means of efficiencies, after a step of the scale of each batch.

    At its best scale, the counts that are expected of a batch are its counts plus the `surplus`.
    """
    if a == 0:
        e = np.divide(T, M, out=np.ones_like(M), where=M > 0)
        weights = np.where(e > 0, M, 0.0)
        logs = (weights * log(np.maximum(e, LEAST))).sum(axis=1, keepdims=True)
        return e / exp(logs / np.maximum(weights.sum(axis=1, keepdims=True), LEAST))
    scale = np.ones((len(M), 1))
    for _ in range(_SCALE_STEPS):  # Newton steps in the log of the scale, as for features in a fit
        share = scale * M / (scale * M + a)
        mass = (T + a) * share
        slope = T.sum(axis=1, keepdims=True) + surplus - mass.sum(axis=1, keepdims=True)
        curvature = (mass * (1 - share)).sum(axis=1, keepdims=True)
        step = np.divide(np.abs(slope), curvature, out=np.zeros_like(slope), where=curvature > 0)
        scale = scale * np.where(slope > 0, 1 + step, 1 / (1 + step))
    return (a + T) / (a + scale * M)
