"""How well the batch of a sample can be told from its topics: areas under ROC curves.

Within a cluster, a linear discriminant learns to tell each batch from the others from the square
roots of proportions, and ranks samples that it has not seen. The area is the probability that it
ranks a sample of the batch before one of another batch: 0.5 if batches are mixed, 1 if they are
apart. Neither the order of the samples nor that of the batches matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from ...kernels import decompositions, dense

Array = NDArray[Any]
# Folds of the cross-validation, samples that a batch needs, and ridge as a share of the variance.
N_FOLDS, LEAST_SAMPLES, _RIDGE = 5, 20, 0.01


@dataclass(frozen=True)
class Pairs:
    """Pairs of a cluster and a batch: their numbers, and samples of the batch and of others."""

    clusters: Array
    batches: Array
    n_samples: Array
    n_others: Array

    @classmethod
    def of(cls, clusters: Array, batches: Array, n_batches: int) -> Pairs:
        """Return the pairs in which a batch, and all others together, have enough samples."""
        sizes = np.zeros((int(clusters.max()) + 1, n_batches), np.int64)
        np.add.at(sizes, (clusters, batches), 1)
        others = sizes.sum(axis=1, keepdims=True) - sizes
        cluster, batch = np.nonzero((sizes >= LEAST_SAMPLES) & (others >= LEAST_SAMPLES))
        return cls(cluster, batch, sizes[cluster, batch], others[cluster, batch])

    def areas(self, shares: Array, clusters: Array, batches: Array) -> Array:
        """Return the area of each pair, from the proportions (n, K) of the samples."""
        areas = np.zeros(len(self.clusters))
        for cluster in np.unique(self.clusters):
            pairs, members = self.clusters == cluster, clusters == cluster
            areas[pairs] = _areas(shares[members], batches[members], self.batches[pairs])
        return areas


def _areas(shares: Array, batches: Array, wanted: Array) -> Array:
    """Return the mean area over the folds for each of the wanted batches of one cluster."""
    names, codes = np.unique(batches, return_inverse=True)
    order, wanted, B = np.lexsort(shares.T), np.searchsorted(names, wanted), len(names)
    roots, codes = np.sqrt(shares[order]), codes.reshape(-1)[order]
    fold = _folds(codes, B)
    label = (fold * B + codes).astype(np.int32)
    sums = dense.sums_of_groups(roots, label, N_FOLDS * B).reshape(N_FOLDS, B, -1)
    sizes = np.bincount(label, minlength=N_FOLDS * B).reshape(N_FOLDS, B)
    squares = np.array([dense.cross(roots[fold == f]) for f in range(N_FOLDS)])
    areas = np.zeros(len(wanted))
    for f in range(N_FOLDS):
        n, of_batches = sizes.sum(axis=0) - sizes[f], sums.sum(axis=0) - sums[f]
        mean = of_batches.sum(axis=0) / n.sum()
        covariance = (squares.sum(axis=0) - squares[f]) / n.sum() - mean[:, None] * mean
        ridge = max(_RIDGE * float(np.trace(covariance)) / len(mean), np.finfo(np.float64).tiny)
        away = of_batches[wanted] / n[wanted, None] - mean
        directions = decompositions.solve(covariance + ridge * np.eye(len(mean)), away.T)
        held_out = fold == f
        scores = dense.product(roots[held_out], directions)
        areas += [_area(scores[:, w], codes[held_out] == b) for w, b in enumerate(wanted)]
    return areas / N_FOLDS


def _folds(codes: Array, n_batches: int) -> Array:
    """Return random folds (n,) of samples in an order of their own.

    Each batch has about the same number of samples in all folds. Batches take their turns by size,
    so that their numbers do not matter.
    """
    n = len(codes)
    mixed = np.random.default_rng(0).permutation(n)
    first = np.full(n_batches, n)
    np.minimum.at(first, codes, np.arange(n))
    turns = np.empty(n_batches, np.int64)
    turns[np.lexsort((first, np.bincount(codes, minlength=n_batches)))] = np.arange(n_batches)
    fold = np.empty(n, np.int64)
    fold[mixed[np.argsort(turns[codes[mixed]], kind="stable")]] = np.arange(n) % N_FOLDS
    return fold


def _area(scores: Array, of_batch: Array) -> float:
    """Return the area under the ROC curve; ties count half."""
    n_of, n_others = int(of_batch.sum()), int((~of_batch).sum())
    ranks = float(rankdata(scores)[of_batch].sum())
    return (ranks - n_of * (n_of + 1) / 2) / (n_of * n_others)
