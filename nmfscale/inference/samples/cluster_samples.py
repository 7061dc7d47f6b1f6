"""Clusters of samples with similar proportions, by k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from ...counts.argument_types import SeedLike
from ...counts.names import shown
from ...methods.starts.k_means import Clusters, k_means
from ...models.pipelines import FittedModel, refuse_swapped
from ..design.loadings import topics_of_samples
from ..replicates.replicates import check_positive
from .cluster_samples_result import SampleClusters
from .silhouettes import mean_silhouettes

Array = NDArray[Any]
# The largest number of clusters that is compared; samples that silhouettes are calculated from;
# iterations of k-means.
_MOST, _SAMPLES, _ITERATIONS = 20, 5_000, 300


def cluster_samples(
    model: FittedModel | ArrayLike,
    n_clusters: int | None = None,
    *,
    n_init: int = 10,
    random_state: SeedLike | None = None,
    topic_names: ArrayLike | None = None,
) -> SampleClusters:
    """Find clusters of samples with similar proportions of topics.

    k-means works on the square roots of proportions, whose distances are Hellinger distances: a
    change from 0 to 5% counts more than one from 50 to 55%.

    Parameters
    ----------
    model : fitted model, or array-like or DataFrame of shape (n_samples, K)
        A model, or non-negative loadings, whose rows are divided by their sums.
    n_clusters : int, default=None
        Number of clusters. None selects the number with the largest mean silhouette, from 2 to
        twice the number of topics, but at most 20; 5,000 random samples are used if there are more.
    n_init : int, default=10
        Number of starts of k-means; the one with the smallest sum of squares is used.
    random_state : int, RandomState instance or None, default=None
        Seed of the starts.
    topic_names : sequence of str, default=None
        Names of the topics; by default those of the model.

    Returns
    -------
    SampleClusters
        Labels of the samples, and mean proportions of the clusters.

    Raises
    ------
    ValueError
        If loadings are negative or not finite, or there are fewer different samples than clusters.

    Warns
    -----
    UserWarning
        If samples have no counts: they are in no cluster.

    Notes
    -----
    Clusters are numbered along a hierarchical clustering of their centers, so that similar ones are
    neighbours; ``pl.structure_plot(model, groups=found)`` draws them in this order.

    Clusters are found even in proportions that vary continuously: look at the plot, and at the
    silhouettes, which are near 1 for separate clusters and below 0.3 for a continuum. Clusters
    depend on the samples' topics; do not test if topics differ between clusters.

    Examples
    --------
    >>> from nmfscale import cluster_samples
    >>> proportions = [[0.9, 0.1, 0], [0.8, 0.2, 0], [0, 0.1, 0.9], [0, 0, 1], [0, 0.9, 0.1]]
    >>> cluster_samples(proportions, 3, random_state=0).sizes.tolist()
    [2, 1, 2]
    """
    check_positive("n_init", n_init)
    refuse_swapped(model, n_clusters, "the number of clusters")
    topics = topics_of_samples(model, "proportions", topic_names)
    kept = ~topics.empty
    rows = topics.rows[kept]
    roots = np.sqrt(rows)
    numbers = _checked_numbers(n_clusters, roots)
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    fits = {
        number: k_means(
            roots, number, np.random.RandomState(seed), n_init=int(n_init), max_iter=_ITERATIONS
        )
        for number in numbers
    }
    silhouettes = _silhouettes(roots, fits, seed) if n_clusters is None else {}
    best = max(silhouettes, key=lambda number: silhouettes[number]) if silhouettes else numbers[0]
    fit = fits[best]
    place = np.argsort(_order(fit.centers))
    labels, distances = np.full(len(kept), -1), np.zeros(len(kept))
    labels[kept] = place[fit.labels]
    centers = np.array([rows[labels[kept] == cluster].mean(axis=0) for cluster in range(best)])
    distances[kept] = np.sqrt(((roots - fit.centers[fit.labels]) ** 2).sum(axis=1))
    return SampleClusters(
        labels, centers, distances, silhouettes, topics.topic_names, topics.sample_names
    )


def _checked_numbers(n_clusters: int | None, roots: Array) -> list[int]:
    """Return the numbers of clusters to compare."""
    # k-means cannot have more clusters than different samples
    n_different = len(np.unique(roots, axis=0))
    if n_clusters is not None:
        check_positive("n_clusters", n_clusters)
        if n_clusters > n_different:
            raise ValueError(
                f"n_clusters is {shown(n_clusters)}, and there are {n_different:,} different "
                "samples: give at most as many clusters."
            )
        return [int(n_clusters)]
    most = min(2 * roots.shape[1], _MOST, n_different - 1, len(roots) - 1)
    if most < 2:
        raise ValueError(
            f"there are {n_different:,} different samples: too few to compare numbers of clusters. "
            "Give n_clusters."
        )
    return list(range(2, most + 1))


def _silhouettes(roots: Array, fits: dict[int, Clusters], seed: int) -> dict[int, float]:
    """Return the mean silhouette for each number of clusters."""
    some = np.arange(len(roots))
    if len(roots) > _SAMPLES:
        some = np.sort(np.random.default_rng(seed).choice(len(roots), _SAMPLES, replace=False))
    silhouettes = mean_silhouettes(roots[some], [fit.labels[some] for fit in fits.values()])
    return dict(zip(fits, silhouettes, strict=True))


def _order(centers: Array) -> Array:
    """Return the clusters in an order in which neighbours are similar."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    if len(centers) < 3:
        return np.arange(len(centers))
    order: Array = leaves_list(linkage(centers, "average", optimal_ordering=True))
    return order
