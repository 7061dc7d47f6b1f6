"""Coherence of topics: how often their leading features occur in the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...kernels.functions import log

Array = NDArray[Any]
# Added to the probability of two features in one sample, which may be 0 (Roeder et al. 2015).
_EPSILON = 1e-12


class Cooccurrences:
    """Counts samples with each leading feature of a topic, and with each pair of these.

    `leading` has the leading features of each topic, numbers of the `n_features` columns.
    """

    def __init__(self, leading: Sequence[Array], n_features: int):
        features = np.unique(np.concatenate(leading))
        self._place = np.full(n_features, -1)
        self._place[features] = np.arange(len(features))
        self._together = sp.csr_array((len(features), len(features)), dtype=np.int64)
        self._leading = leading

    def add(self, rows: sp.csr_array) -> None:
        """Count the samples of some rows (n, n_features)."""
        place = self._place[rows.indices]
        kept = (place >= 0) & (rows.data > 0)
        ends = np.concatenate([[0], np.cumsum(kept)])[rows.indptr]
        present = sp.csr_array(
            (np.ones(ends[-1], np.int64), place[kept], ends),
            (rows.shape[0], self._together.shape[0]),
        )
        self._together = self._together + present.T @ present

    @property
    def of_topics(self) -> Array:
        """Numbers of samples with both of two leading features, (K, n_top, n_top).

        Topics with fewer than n_top features have zeros for the others.
        """
        n_top = max(map(len, self._leading))
        together_in = np.zeros((len(self._leading), n_top, n_top), np.int64)
        for together, features in zip(together_in, self._leading, strict=True):
            chosen, size = self._place[features], len(features)
            together[:size, :size] = self._together[chosen][:, chosen].toarray()
        return together_in


def coherences(
    together: Array, leading: Sequence[Array], n_samples: Array, measured: Array
) -> tuple[Array, Array]:
    """Return NPMI and UMass coherence of each topic (K,), given `Cooccurrences.of_topics`.

    `together` (G, K, n_top, n_top) are those of groups of samples, `n_samples` (G,) their sizes and
    `measured` (G, n_features) their measured features: the probabilities of a pair are shares of
    the samples that measured both.

    Both are means over pairs of features with probabilities p_i and p_j of being in a sample, and
    p_ij of being in it together:

        NPMI = log((p_ij + e) / (p_i p_j)) / -log(p_ij + e),
        UMass = log((p_ij + e) / p_i), where i is before j.

    A pair with a feature in no sample contributes 0, as in a topic of a single feature.
    """
    of_topics = [
        _of_topic(together[:, k, : len(top), : len(top)], n_samples, measured[:, top])
        for k, top in enumerate(leading)
    ]
    npmi, umass = np.array(of_topics).reshape(-1, 2).T
    return npmi, umass


def _of_topic(together: Array, n_samples: Array, measured: Array) -> tuple[float, float]:
    """Return the coherences of one topic, from samples with both features (G, n, n)."""
    i, j = np.triu_indices(together.shape[1], 1)
    both = measured[:, i] & measured[:, j]
    size = np.maximum((both * n_samples[:, None]).sum(axis=0), 1)
    p, p_i, p_j = (
        (both * together[:, a, b]).sum(axis=0) / size for a, b in ((i, j), (i, i), (j, j))
    )
    seen = (p_i > 0) & (p_j > 0)
    if not seen.any():
        return 0.0, 0.0
    n_pairs, p, p_i, p_j = len(i), p[seen] + _EPSILON, p_i[seen], p_j[seen]
    information = log(p / (p_i * p_j))
    # two features that are in every sample say nothing about each other: 0 / 0
    npmi = np.divide(information, -log(p), out=np.zeros(len(p)), where=p < 1)
    umass = log(p / p_i)
    return float(npmi.sum() / n_pairs), float(umass.sum() / n_pairs)
