"""Starts of topics that are to have certain features: what occurs in samples with these features.

A seeded topic starts from the counts of all samples, weighted by the share of its seeds in them,
that is, from co-occurrences with its seeds. It takes the place of the topic of another start in
which its seeds have the largest share of their frequencies. After a few iterations of the fit,
seeded topics are those that then explain most of the counts of their seeds: a topic may have left
its seeds for another theme, and a topic without seeds may have taken them. The same is done when
the best of several starts is continued.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ...counts.base import CountMatrix
from ...kernels import dense
from ..factors import MINVAL
from .topic_score import drawn_rows

Array = NDArray[Any]
# Share of the overall frequencies in a seeded topic, and the number of samples that suffices.
_SHARED, _LEAST_ROWS = 0.1, 1000


def seeded_factors(
    counts: CountMatrix, F: Array, pseudo: Array, rng: np.random.RandomState, n_threads: int
) -> Array:
    """Return factors F (m, K) with seeded topics, given `pseudo` (m, K), in their places.

    Columns sum to one. If counts are large, co-occurrences are those in a random subset of samples.
    """
    seeded = np.flatnonzero(pseudo.any(axis=0))
    others = np.asarray(F, np.float64) / np.maximum(F.sum(axis=0, dtype=np.float64), MINVAL)
    if not seeded.size:
        return others
    matrix = counts.take_rows(drawn_rows(counts, rng, least=_LEAST_ROWS))
    matrix = matrix.astype(np.float64, copy=False)
    are_seeds = (pseudo[:, seeded] > 0).astype(np.float64)
    shares = dense.of_sparse(matrix, are_seeds, n_threads=n_threads)
    lengths = dense.of_sparse(matrix, np.ones((matrix.shape[1], 1)), n_threads=n_threads)
    shares /= np.maximum(lengths, MINVAL)
    together = dense.of_sparse(matrix.T.tocsr(), shares, n_threads=n_threads)
    overall = counts.column_totals / max(counts.total, MINVAL)
    together /= np.maximum(together.sum(axis=0), MINVAL)
    own = (1 - _SHARED) * together + _SHARED * overall[:, None]
    own += pseudo[:, seeded] / max(counts.total, MINVAL)
    own /= own.sum(axis=0)
    # which topics would have the occurrences of the seeds; words that all topics have do not count
    held = others / np.maximum(others.sum(axis=1, keepdims=True), MINVAL)
    explained = dense.product(np.ascontiguousarray(are_seeds.T), held)
    replaced = linear_sum_assignment(explained, maximize=True)[1]
    out = np.empty_like(others)
    kept = np.delete(np.arange(others.shape[1]), replaced)
    out[:, np.delete(np.arange(others.shape[1]), seeded)] = others[:, kept]
    out[:, seeded] = own
    return out


def shares_of_seeds(sizes: Array, pseudo: Array) -> Array:
    """Return the mean share (S, K) of each topic in the expected counts of each set of seeds.

    `sizes` (m, K) are proportional to the expected counts of topics in features, and sets are the
    columns of `pseudo` (m, K) with a positive number. Each seed of a set has the same weight.
    """
    seeds = (pseudo[:, pseudo.any(axis=0)] > 0).astype(np.float64)
    seeds /= seeds.sum(axis=0)
    used = seeds.any(axis=1)
    shares = np.asarray(sizes[used], np.float64)
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), MINVAL)
    means: Array = dense.product(np.ascontiguousarray(seeds[used].T), shares)
    return means


def in_places_of_seeds(L: Array, F: Array, pseudo: Array) -> tuple[Array, Array]:
    """Return L (n, K) and F (m, K), with topics in the places of the seeds that they explain most.

    The arrays are not changed; without another order, they are returned.
    """
    seeded = np.flatnonzero(pseudo.any(axis=0))
    if not seeded.size:
        return L, F
    explained = shares_of_seeds(F * L.sum(axis=0, dtype=np.float64), pseudo)
    taken = linear_sum_assignment(explained, maximize=True)[1]
    order = np.empty(L.shape[1], np.intp)
    order[seeded] = taken
    others = np.delete(np.arange(len(order)), seeded)
    order[others] = np.delete(np.arange(len(order)), taken)
    if (order == np.arange(len(order))).all():
        return L, F
    return np.ascontiguousarray(L[:, order]), np.ascontiguousarray(F[:, order])
