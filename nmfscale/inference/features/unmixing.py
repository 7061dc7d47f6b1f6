"""Counts of topics in units from counts that were split among topics with common frequencies.

With frequencies f_k that are the same everywhere, a part of the counts of topic k is split to topic
l: ``r_k = y_k - s_k f_k``, the residual of the split counts y of a unit in which topic k has the
size s_k and the frequency ``f_k (1 + d_k)``, has the expectation ``sum_l T_kl s_l f_l d_l``. T_kl
is the share of the counts from topic l that is split to k. As r is linear in the counts, ``s_k f_k
+ sum_l (T^-1)_kl r_l`` has the expectation ``s_k f_k (1 + d_k)``, however large d is: one step of
Fisher scoring from f is unbiased. Its variance is that of ``s_k f_k`` Poisson counts, inflated by
the diagonal of ``T^-1``.

T is that of all units. So it is exact for units with the same mixtures of topics, and differences
of units from these are small as long as d is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.decompositions import inverse
from .pseudobulk_result import Pseudobulk

Array = NDArray[Any]
# What is added to the correlations of topics, and features whose matrices are inverted together.
_RIDGE, _FEATURES = 1e-6, 1 << 12


@dataclass(frozen=True)
class Unmixing:
    """``T^-1`` of each feature (m, K, K), and its diagonal `inflation` (K, m), at least 1."""

    inverses: Array
    inflation: Array

    @classmethod
    def of(cls, bulk: Pseudobulk) -> Unmixing:
        """Return the matrices from the confusion of topics."""
        m, K = bulk.confusion.shape[0], bulk.counts.shape[1]
        first, second = np.tril_indices(K)
        inverses = np.empty((m, K, K))
        for start in range(0, m, _FEATURES):
            here = slice(start, start + _FEATURES)
            matrices = np.zeros((len(inverses[here]), K, K))
            matrices[:, first, second] = matrices[:, second, first] = bulk.confusion[here]
            totals = np.maximum(matrices.sum(axis=2), np.finfo(float).tiny)
            roots = np.sqrt(totals)
            matrices /= roots[:, :, None] * roots[:, None, :]
            matrices[:, range(K), range(K)] += _RIDGE
            inverses[here] = inverse(matrices)[0] * (roots[:, :, None] / roots[:, None, :])
        diagonal = np.diagonal(inverses, axis1=1, axis2=2).T
        return cls(inverses, np.maximum(diagonal, 1.0))

    def counts(self, bulk: Pseudobulk, topic: int) -> Array:
        """Return the counts (U, m) of a topic in all units, some of them slightly negative."""
        out = _means(bulk, topic)
        for k in range(bulk.counts.shape[1]):
            out += self.inverses[:, topic, k] * (bulk.counts[:, k] - _means(bulk, k))
        return out


def _means(bulk: Pseudobulk, topic: int) -> Array:
    """Return the expected counts (U, m) of a topic with the common frequencies."""
    return bulk.sizes_of_features(topic) * bulk.frequencies[topic]
