"""Silhouettes of clusters, with the same bits on every processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense

Array = NDArray[Any]
# Points whose distances from all points are in memory at a time.
_ROWS = 256


def mean_silhouettes(points: Array, labelings: Sequence[Array]) -> list[float]:
    """Return the mean silhouette of the points (n, d) for each of several labels (n,).

    As ``silhouette_score`` of scikit-learn: a is the mean distance of a point from the other points
    of its cluster, b the smallest mean distance from those of a different cluster, and the
    silhouette is (b - a) / max(a, b). It is 0 for the only point of a cluster. With a single
    cluster, the mean is -1.
    """
    n = len(points)
    codes = [np.unique(labels, return_inverse=True)[1] for labels in labelings]
    members = [np.eye(code.max() + 1)[code] for code in codes]
    together = np.concatenate(members, axis=1)
    sums = np.empty((n, together.shape[1]))
    squares, twice = (points * points).sum(axis=1), np.ascontiguousarray(-2.0 * points.T)
    for first in range(0, n, _ROWS):
        here = np.arange(first, min(first + _ROWS, n))
        away = dense.product(points[here], twice)
        away += squares + squares[here, np.newaxis]
        away[here - first, here] = 0.0
        sums[here] = dense.product(np.sqrt(np.maximum(away, 0.0)), together)
    ends = np.cumsum([memberships.shape[1] for memberships in members])[:-1]
    parts = zip(codes, members, np.split(sums, ends, axis=1), strict=True)
    return [_mean_silhouette(*part) for part in parts]


def _mean_silhouette(code: Array, members: Array, sums: Array) -> float:
    sizes, own = members.sum(axis=0), members > 0.0
    if len(sizes) < 2:
        return -1.0
    inside = sums[own] / np.maximum(sizes[code] - 1.0, 1.0)
    outside = np.where(own, np.inf, sums / sizes).min(axis=1)
    larger = np.maximum(inside, outside)
    silhouettes = np.divide(outside - inside, larger, out=np.zeros(len(code)), where=larger > 0.0)
    return float(np.where(sizes[code] > 1.0, silhouettes, 0.0).mean())
