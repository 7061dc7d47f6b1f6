"""k-means with the same bits on every processor.

The algorithm is that of scikit-learn's ``KMeans``, with the same random numbers: greedy k-means++
(Arthur and Vassilvitskii, 2007, k-means++: the advantages of careful seeding, SODA 07, 1027-1035),
then Lloyd's iteration. Distances there come from BLAS, so the last bits depend on the processor.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense

Array = NDArray[Any]

# The iteration ends if the centres move less than this share of the variance of the points.
_TOLERANCE = 1e-4
# Two runs whose sums of squares differ by less are the same clusters.
_SAME = 1e-10


class Clusters(NamedTuple):
    """Centres (k, d), the cluster of each point (n,), and the sum of squared distances."""

    centers: Array
    labels: Array
    inertia: float


def k_means(
    points: Array, n_clusters: int, rng: np.random.RandomState, *, weights: Array | None = None,
    n_init: int = 1, max_iter: int = 100, n_threads: int = 1,
) -> Clusters:  # fmt: skip
    """Cluster points (n, d) with weights (n,); the best of `n_init` runs.

    A cluster may be empty if there are fewer distinct points than clusters.
    """
    weights = np.ones(len(points)) if weights is None else weights
    mean = points.mean(axis=0)
    centred = np.ascontiguousarray(points - mean)
    tolerance = _TOLERANCE * float(centred.var(axis=0).mean()) if centred.shape[1] else 0.0
    best = None
    for _ in range(n_init):
        seeds = _seeds(centred, n_clusters, weights, rng, n_threads)
        clusters = _lloyd(centred, seeds, weights, max_iter, tolerance, n_threads)
        if best is None or clusters.inertia < best.inertia * (1 - _SAME):
            best = clusters
    assert best is not None
    return best._replace(centers=best.centers + mean)


def _seeds(
    points: Array, n_clusters: int, weights: Array, rng: np.random.RandomState, n_threads: int
) -> Array:
    """Choose points in proportion to their squared distance from those chosen before.

    Of several candidates for the next seed, the one that decreases the sum of squares most is
    taken.
    """
    n_trials, squares = 2 + int(math.log(n_clusters)), (points * points).sum(axis=1)
    further = partial(dense.closer, points, squares, weights, n_threads=n_threads)
    shares = np.cumsum(weights / weights.sum())
    first = np.searchsorted(shares / shares[-1], rng.random_sample(), side="right")
    seeds = [int(first)]
    left, _ = further(np.full(len(points), np.inf), np.array(seeds))
    closest = np.ascontiguousarray(left[:, 0])
    potential = (closest * weights).sum()
    for _ in range(1, n_clusters):
        drawn = rng.uniform(size=n_trials) * potential
        candidates = np.searchsorted(np.cumsum(weights * closest), drawn)
        candidates = np.minimum(candidates, len(points) - 1)
        left, potentials = further(closest, candidates)
        best = int(np.argmin(potentials))
        potential, closest = potentials[best], np.ascontiguousarray(left[:, best])
        seeds.append(int(candidates[best]))
    centers: Array = points[seeds]
    return centers


def _lloyd(
    points: Array, centers: Array, weights: Array, max_iter: int, tolerance: float, n_threads: int
) -> Clusters:
    n_clusters, labels = len(centers), np.full(len(points), -1)
    weighted = np.column_stack([points * weights[:, np.newaxis], weights])
    for _ in range(max_iter):
        before, labels = labels, dense.nearest(points, centers, n_threads=n_threads)
        totals = dense.sums_of_groups(weighted, labels, n_clusters)
        sums, sizes = totals[:, :-1], totals[:, -1]
        empty = np.flatnonzero(sizes == 0)
        if empty.size:
            _fill(empty, points, centers, labels, weights, sums, sizes)
        moved = np.where(sizes[:, np.newaxis] > 0, sums, 0.0)
        moved /= np.where(sizes > 0, sizes, 1.0)[:, np.newaxis]
        shift = float(((moved - centers) ** 2).sum())
        centers = moved
        if np.array_equal(labels, before):
            break
        if shift <= tolerance:
            labels = dense.nearest(points, centers, n_threads=n_threads)
            break
    else:
        labels = dense.nearest(points, centers, n_threads=n_threads)
    inertia = float((_away(points, centers, labels) * weights).sum())
    return Clusters(centers, labels, inertia)


def _away(points: Array, centers: Array, labels: Array) -> Array:
    """Return squared distances (n,) of points from the centres of their clusters."""
    squares: Array = ((points - centers[labels]) ** 2).sum(axis=1)
    return squares


def _fill(
    empty: Array, points: Array, centers: Array, labels: Array, weights: Array, sums: Array,
    sizes: Array,
) -> None:  # fmt: skip
    """Move the points farthest from their centres to empty clusters."""
    away = _away(points, centers, labels)
    if not away.max() > 0:
        return
    for cluster, point in zip(empty, np.argsort(-away, kind="stable"), strict=False):
        own, weight = labels[point], weights[point]
        sums[own] -= weight * points[point]
        sizes[own] -= weight
        sums[cluster] = weight * points[point]
        sizes[cluster] = weight
