"""A start for many components: clusters of samples in the space of a few singular vectors.

Its cost grows with the number of components, not with a power of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine import progress
from .k_means import k_means
from .singular_vectors import singular_vectors
from .topic_score import drawn_rows

Array = NDArray[Any]

# Number of singular vectors, and of iterations of k-means.
_DIRECTIONS, _ROUNDS = 50, 20


def totals_of_clusters(
    counts: CountMatrix, n_components: int, rng: np.random.RandomState, *, n_threads: int = 1
) -> Array:
    """Return counts (n_features, n_components) of non-empty clusters of samples.

    If counts are large, a random subset of the samples is clustered, at least three for each
    cluster.
    """
    drawn = drawn_rows(counts, rng, least=3 * n_components)
    n_vectors = min(n_components, _DIRECTIONS)
    left, values, _ = singular_vectors(counts, n_vectors, drawn, n_threads=n_threads)
    places = left * values
    lengths = np.linalg.norm(places, axis=1, keepdims=True)
    places /= np.where(lengths > 0, lengths, 1)
    progress.stage("clusters of samples")
    n_clusters = min(n_components, len(places))
    _, labels, _ = k_means(places, n_clusters, rng, max_iter=_ROUNDS, n_threads=n_threads)
    matrix = counts.take_rows(drawn)
    totals = np.zeros((n_components, counts.shape[1]))
    for label in range(n_components):
        inside = np.flatnonzero(labels == label)
        # an empty cluster gets a sample of a different cluster
        some = inside if inside.size else rng.randint(len(labels), size=1)
        totals[label] = matrix[some].sum(axis=0)
    return totals.T
