"""Coherence of topics: how often their leading features occur in the same samples or windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.functions import log

Array = NDArray[Any]
CoherenceMeasure: TypeAlias = Literal["c_v", "c_npmi", "c_uci", "u_mass"]
# Added to the probability of two features in one sample, which may be 0 (Roeder et al. 2015).
_EPSILON = 1e-12
# Windows of a text whose words are in memory at a time.
_WINDOWS = 4096
# Pairs of words of texts whose numbers of windows are added up at a time.
_WAITING = 1 << 20


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


class WindowCooccurrences(Cooccurrences):
    """The same for windows of `size` words that slide over texts, one word at a time.

    A text with fewer words is one window. `n_windows` is the number of windows so far.
    `as_gensim`: a word that occurs several times in a window ends with the first of these, until it
    enters again, as in gensim 4.
    """

    def __init__(self, leading: Sequence[Array], n_features: int, size: int, as_gensim: bool):
        super().__init__(leading, n_features)
        self._size, self._as_gensim, self.n_windows = size, as_gensim, 0
        self._pairs: list[tuple[Array, Array]] = []
        self._n_waiting = 0

    def add_text(self, words: Array) -> None:
        """Count the windows of a text, given by its words: features, or -1 for all others."""
        n = max(len(words) - self._size + 1, 1)
        self.n_windows += n
        at = np.flatnonzero(words >= 0)
        features, column = np.unique(words[at], return_inverse=True)
        column = column.reshape(-1)
        # windows that have the word at a place, by their first words
        first, last = np.maximum(at - self._size + 1, 0), at
        if self._as_gensim:
            order = np.argsort(column * len(words) + at)
            ordered = (column * len(words) + at)[order]
            last = at[order[np.searchsorted(ordered, column * len(words) + first)]]
        for begin in range(0, n if len(at) else 0, _WINDOWS):
            size = min(_WINDOWS, n - begin)
            changes = np.zeros((size + 1, len(features)), np.int64)
            np.add.at(changes, (np.clip(first - begin, 0, size), column), 1)
            np.add.at(changes, (np.clip(last + 1 - begin, 0, size), column), -1)
            self._add_windows(self._place[features], changes[:-1].cumsum(axis=0) > 0)

    def _add_windows(self, place: Array, present: Array) -> None:
        """Count windows that have some of the words at these places."""
        together = dense.cross(present)
        self._pairs.append((
            np.stack([np.repeat(place, len(place)), np.tile(place, len(place))]),
            together.astype(np.int64).ravel(),
        ))  # fmt: skip
        self._n_waiting += together.size
        if self._n_waiting > _WAITING:
            self._flush()

    def _flush(self) -> None:
        if self._pairs:
            places, numbers = zip(*self._pairs, strict=True)
            together = (np.concatenate(numbers), np.concatenate(places, axis=1))
            self._together = self._together + sp.csr_array(together, self._together.shape)
        self._pairs, self._n_waiting = [], 0

    @property
    def of_topics(self) -> Array:
        """As for samples."""
        self._flush()
        return super().of_topics


def coherences(
    together: Array, leading: Sequence[Array], n_samples: Array, measured: Array
) -> tuple[Array, Array]:
    """Return NPMI and UMass coherence of each topic (K,), given `Cooccurrences.of_topics`.

    `together` (G, K, n_top, n_top) are those of groups of samples, `n_samples` (G,) their sizes and
    `measured` (G, n_features) their measured features: the probabilities of a pair are shares of
    the samples that measured both.
    """
    npmi, umass = (
        np.array([
            coherence_of(
                measure, together[:, k, : len(top), : len(top)], n_samples, measured[:, top]
            )[0]
            for k, top in enumerate(leading)
        ])
        for measure in ("c_npmi", "u_mass")
    )  # fmt: skip
    return npmi, umass


def coherence_of(
    measure: CoherenceMeasure, together: Array, n_samples: Array, measured: Array
) -> tuple[float, Array]:
    """Return the coherence of one topic, and that of each of its n features (n,).

    `together` (G, n, n) are samples with both features, `measured` (G, n) the measured features.
    With probabilities p_i and p_j of being in a sample, and p_ij of being in it together, of a pair
    in which i is before j:

        c_uci = log((p_ij + e) / (p_i p_j)),    c_npmi = c_uci / -log(p_ij + e),
        u_mass = log((p_ij + e) / p_i).

    The coherence is the mean over all pairs, or over those of a feature. A pair with a feature in
    no sample contributes 0, as in a topic of a single feature. "c_v": the vector of a feature is
    its c_npmi with all features, itself included; its coherence is the cosine of this vector and
    the sum of all vectors, 0 for a feature in no sample.
    """
    n = together.shape[1]
    both = measured[:, :, None] & measured[:, None]
    size = np.maximum((both * n_samples[:, None, None]).sum(axis=0), 1)
    single = np.broadcast_to(np.diagonal(together, axis1=1, axis2=2)[:, :, None], together.shape)
    p, p_i = ((both * of_pair).sum(axis=0) / size for of_pair in (together, single))
    seen = (p_i > 0) & (p_i.T > 0)
    p = np.where(seen, p + _EPSILON, 1.0)
    p_i = np.where(seen, p_i, 1.0)
    if measure == "u_mass":
        upper = np.triu(log(p / p_i), 1)
        values = upper + upper.T
    else:
        values = log(p / (p_i * p_i.T))
    if measure in ("c_npmi", "c_v"):
        # two features that are in every sample say nothing about each other: 0 / 0
        values = np.divide(values, -log(p), out=np.zeros((n, n)), where=p < 1)
    if measure == "c_v":
        of_features = _cosines(values)
        return float(of_features.mean()), of_features
    pairs = np.triu(seen, 1)
    n_pairs = n * (n - 1) // 2
    np.fill_diagonal(values, 0.0)
    mean = float(values[pairs].sum() / n_pairs) if pairs.any() else 0.0
    return mean, values.sum(axis=1) / max(n - 1, 1)


def _cosines(vectors: Array) -> Array:
    """Return the cosine of each row (n, n) and the sum of all rows, 0 for a row of zeros."""
    total = vectors.sum(axis=0)
    lengths = np.sqrt((vectors * vectors).sum(axis=1)) * np.sqrt((total * total).sum())
    products = (vectors * total).sum(axis=1)
    return np.divide(products, lengths, out=np.zeros(len(vectors)), where=lengths > 0)
