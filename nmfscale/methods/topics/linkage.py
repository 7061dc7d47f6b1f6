"""Clusters of the topics of many fits, with at most one topic of a fit in each cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Similarity of clusters that cannot be joined.
_APART = -1.0


def average_linkage(similarities: Array, fits: Array, least: float) -> Array:
    """Return the cluster (T,) of each of T topics, numbered by its first topic.

    Starting with one cluster for each topic, the two clusters with the largest mean similarity of
    their topics are joined until it is below `least`; clusters with topics of the same fit (T,) are
    not joined. Of equal similarities, the first in the order of topics counts.
    """
    n = len(similarities)
    between = np.where(fits[:, None] == fits, _APART, similarities)
    sizes, cluster = np.ones(n), np.arange(n)
    nearest = between.argmax(axis=1)
    largest = between[cluster, nearest]
    while largest.size and (value := largest.max()) >= least:
        first = int(np.flatnonzero(largest == value)[0])
        one, other = sorted((first, int(nearest[first])))
        sums = sizes[one] * between[one] + sizes[other] * between[other]
        sizes[one] += sizes[other]
        apart = (between[one] == _APART) | (between[other] == _APART)
        joined = np.where(apart, _APART, sums / sizes[one])
        between[one], between[:, one] = joined, joined
        between[other], between[:, other] = _APART, _APART
        cluster[cluster == other] = one
        # of all other clusters, the mean is at most the largest similarity that is known
        changed = np.flatnonzero((nearest == one) | (nearest == other))
        changed = np.union1d(changed, [one, other])
        nearest[changed] = between[changed].argmax(axis=1)
        largest[changed] = between[changed, nearest[changed]]
    return np.unique(cluster, return_inverse=True)[1]
