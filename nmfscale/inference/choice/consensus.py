"""Consensus of the topics of many fits: a filter of outliers, clusters, and their medians."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.warn import warn_caller
from ...kernels import dense
from ...methods.starts.k_means import k_means
from ..samples.silhouettes import mean_silhouettes

Array = NDArray[Any]
# Runs of k-means, their iterations and seed.
_N_INIT, _ITERATIONS, _SEED = 10, 300, 1


@dataclass(frozen=True)
class Consensus:
    """Consensus topics.

    Attributes
    ----------
    topics : ndarray of shape (K, n_features)
        Frequencies of the features, the medians of the clusters; rows sum to one.
    labels : ndarray of shape (n_starts, K), int
        Consensus topic to which each topic of each fit belongs; -1 for topics that were left out.
    distances : ndarray of shape (n_starts, K)
        Mean distance of each topic from its nearest neighbours.
    silhouette : float
        Mean silhouette of the clusters, from -1 to 1; 0, that of a single cluster, with one topic.
    density_threshold : float
        The largest distance of a topic that was not left out.
    """

    topics: Array
    labels: Array
    distances: Array
    silhouette: float
    density_threshold: float

    @property
    def shares(self) -> Array:
        """Share of the fits that have each consensus topic, (K,)."""
        K = len(self.topics)
        return np.array([(self.labels == k).any(axis=1).mean() for k in range(K)])

    @property
    def n_left_out(self) -> int:
        """Number of topics that were left out."""
        return int((self.labels < 0).sum())


def consensus_of(topics: Array, threshold: float, n_neighbors: int) -> Consensus | None:
    """Return the consensus of topics (n_starts, K, m); None if too few are left."""
    n, K, m = topics.shape
    every = topics.reshape(n * K, m).astype(np.float64)
    points = _directions(every)
    # squared distances of unit vectors
    squares = np.maximum(2 - 2 * dense.product(points, points.T), 0)
    np.fill_diagonal(squares, 0)
    nearest = np.sort(np.sqrt(squares), axis=1)[:, 1 : n_neighbors + 1]
    distances = nearest.mean(axis=1) if nearest.size else np.zeros(n * K)
    kept = distances <= threshold
    if kept.sum() < K:
        warn_caller(
            f"{int(kept.sum())} of {n * K} topics have neighbours within density_threshold="
            f"{threshold:g}, and {K} are needed for a consensus: raise it, or fit fewer topics."
        )
        return None
    _, clusters, _ = k_means(
        points[kept], K, np.random.RandomState(_SEED), n_init=_N_INIT, max_iter=_ITERATIONS
    )
    n_clusters = len(np.unique(clusters))
    if n_clusters < K:
        warn_caller(
            f"the topics of all fits are only {n_clusters} different ones, and {K} are needed for "
            "a consensus: fit fewer topics."
        )
        return None
    medians = np.stack([np.median(every[kept][clusters == k], axis=0) for k in range(K)])
    sums = medians.sum(axis=1)
    # a median of topics without common features: their mean
    for k in np.flatnonzero(sums <= 0):
        medians[k] = every[kept][clusters == k].mean(axis=0)
    medians /= medians.sum(axis=1, keepdims=True)
    labels = np.full(n * K, -1)
    labels[kept] = clusters
    silhouette = 0.0
    if 1 < K < kept.sum():
        silhouette = mean_silhouettes(points[kept], [clusters])[0]
    order = np.argsort(-np.bincount(clusters, minlength=K), kind="stable")
    place = np.append(np.argsort(order), -1)
    return Consensus(
        medians[order], place[labels].reshape(n, K), distances.reshape(n, K), silhouette, threshold
    )


def _directions(topics: Array) -> Array:
    """Return unit vectors of the deviations of topics from their mean: see `match_topics`."""
    mean = topics.mean(axis=0)
    scale = np.divide(1, np.sqrt(mean), out=np.zeros_like(mean), where=mean > 0)
    points = (topics - mean) * scale
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return np.divide(points, norms, out=np.zeros_like(points), where=norms > 1e-10)
