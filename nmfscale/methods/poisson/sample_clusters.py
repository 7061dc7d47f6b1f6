"""A start for many components: clusters of samples in the space of a few singular vectors.

Its cost grows with the number of components, not with a power of it.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine import progress
from .topic_score import drawn_rows, singular_vectors

Array = NDArray[Any]

# Number of singular vectors, and of iterations of k-means.
_DIRECTIONS, _ROUNDS = 50, 20


def totals_of_clusters(counts: CountMatrix, n_components: int, rng: np.random.RandomState) -> Array:
    """Return counts (n_features, n_components) of non-empty clusters of samples.

    If counts are large, a random subset of the samples is clustered, at least three for each
    cluster. The caller limits BLAS to one thread, so that the result does not depend on the number
    of threads.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    drawn = drawn_rows(counts, rng, least=3 * n_components)
    left, values, _ = singular_vectors(counts, min(n_components, _DIRECTIONS), drawn)
    places = left * values
    lengths = np.linalg.norm(places, axis=1, keepdims=True)
    places /= np.where(lengths > 0, lengths, 1)
    progress.stage("clusters of samples")
    k_means = KMeans(min(n_components, len(places)), n_init=1, max_iter=_ROUNDS, random_state=rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct places: see below
        labels = k_means.fit_predict(places.astype(np.float32))
    matrix = counts.take_rows(drawn)
    totals = np.zeros((n_components, counts.shape[1]))
    for label in range(n_components):
        inside = np.flatnonzero(labels == label)
        # an empty cluster gets a sample of a different cluster
        some = inside if inside.size else rng.randint(len(labels), size=1)
        totals[label] = matrix[some].sum(axis=0)
    return totals.T
