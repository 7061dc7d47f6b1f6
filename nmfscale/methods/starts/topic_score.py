"""Topic-SCORE: the factors of a topic model from a few singular vectors of the counts.

Divide the second and later right singular vectors of a count matrix by the first, feature by
feature: in a topic model the features then lie in a simplex whose corners are features of a
single topic (Ke and Wang, 2024, Using SVD for topic modeling, JASA 119, 434-449).

Counts are first divided by the square roots of the totals of their row and their column, as in
correspondence analysis. Without that, a few long documents determine the singular vectors, and fits
end in low optima. Totals are raised, as in regularised spectral clustering (Qin and Rohe, 2013,
NIPS 26), by the mean of columns, and by three times the median of rows, which long documents do not
change: otherwise the noise of short rows and rare features takes the place of the long documents.
The corners stay where they are: rows of the counts of a topic model may have any size, and the size
of a column cancels in the ratios.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from math import ceil, comb
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ... import kernels
from ...counts.base import CountMatrix
from ...engine import progress
from ...kernels import decompositions, dense
from .k_means import k_means
from .singular_vectors import singular_vectors

Array = NDArray[Any]

# Rows are drawn until they hold this many nonzero counts: the vertices need no more, and a start
# must not cost more than the fit.
MAX_NONZEROS = 4_000_000
# Features that are clustered: the most frequent ones, whose ratios are the least noisy.
_MAX_POINTS = 10_000
_MAX_SUBSETS = 5_000
# With more vertices than this, vertices are chosen among features, this many of the most frequent
# for each vertex: the time for clusters grows with the cube of the number of vertices, and fits end
# as high without them.
_CLUSTERED, _EACH = 100, 5
# Totals of rows are raised by this multiple of their median: those of cells, which vary by less,
# get about equal weights.
_RAISED = 3
_TIE = 1e-12
# Centres closer than this, relative to the largest distance, count as one.
_SAME = 1e-3
# Singular values come from squares: smaller ones are noise.
_NOISE = 1e-6
# Minimum of the first singular vector in a feature, relative to all of its vectors.
_NEAREST = 0.01


class NoSimplexError(ValueError):
    """The counts do not span a simplex with the requested number of vertices."""


def topic_score(
    counts: CountMatrix, n_components: int, rng: np.random.RandomState, *, n_threads: int = 1
) -> Array:
    """Estimate factors (n_features, n_components) whose columns sum to one.

    Raise :class:`NoSimplexError` if the counts have too low a rank or too few features.
    """
    drawn, totals = drawn_rows(counts, rng), counts.column_totals
    of_columns = _roots(totals, totals.mean())
    _, values, vectors = singular_vectors(
        counts, n_components, drawn, weigh=partial(_weighted, of_columns=of_columns),
        n_threads=n_threads,
    )  # fmt: skip
    if values.size < n_components or not values[-1] > _NOISE * values[0]:
        raise NoSimplexError(f"the counts have no {n_components} singular values above noise")
    if vectors[:, 0].sum() < 0.0:
        vectors = -vectors
    norms = np.linalg.norm(vectors, axis=1)
    # Features without a part in the first vector (a group of samples that shares no feature with
    # the others) would lie at infinity; they are kept within reach.
    size = np.maximum(vectors[:, 0], _NEAREST * norms)
    ratios = vectors[:, 1:] / np.maximum(size, np.finfo(np.float64).tiny)[:, np.newaxis]
    size *= of_columns
    seen = norms > 0.0
    points = np.flatnonzero(seen)
    frequent = points[np.argsort(-totals[points], kind="stable")[:_MAX_POINTS]]
    # The error of a ratio falls with the square root of the feature's total.
    if n_components > _CLUSTERED:
        progress.stage("corners among the features")
        places = ratios[frequent[: _EACH * n_components]]
        vertices = places[_successive_projection(places, n_components)]
    else:
        progress.stage("clusters of features")
        weights = np.sqrt(totals[frequent])
        n_centers = min(3 * n_components, len(frequent))
        # More vertices mean more centres and dimensions, and the start must be short.
        many = 3 * n_components > 36
        centers, _, _ = k_means(
            ratios[frequent], n_centers, rng, weights=weights, n_init=1 if many else 2,
            max_iter=30 if many else 100, n_threads=n_threads,
        )  # fmt: skip
        progress.stage("corners among the clusters")
        vertices = hunt_vertices(centers, n_components)
    weights = np.full((counts.shape[1], n_components), 1.0 / n_components)
    weights[seen] = mixture_weights(ratios[seen], vertices, n_threads)
    # Features outside the drawn rows belong to no vertex; their size is that of their total.
    size = np.where(seen, size, totals * (size[seen].sum() / totals[seen].sum()))
    factors = weights * size[:, np.newaxis]
    return factors / factors.sum(axis=0)


def _weighted(matrix: sp.csr_array, of_columns: Array) -> sp.csr_array:
    """Return rows divided by the square roots of their raised totals, and columns by numbers."""
    totals = matrix.sum(axis=1)
    of_rows = _roots(totals, _RAISED * np.median(totals))
    data = matrix.data / np.repeat(of_rows, np.diff(matrix.indptr))
    data /= of_columns[matrix.indices]
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _roots(totals: Array, by: Any) -> Array:
    """Return square roots of totals that are raised by a number; never 0."""
    return np.sqrt(np.maximum(totals + by, np.finfo(np.float64).tiny))


def drawn_rows(counts: CountMatrix, rng: np.random.RandomState, least: int = 1) -> Array | None:
    """Return at least `least` random rows in increasing order; None if counts are few."""
    if counts.nnz <= MAX_NONZEROS:
        return None
    order = rng.permutation(counts.shape[0])
    reached = int(np.searchsorted(np.cumsum(counts.row_nnz[order]), MAX_NONZEROS))
    drawn: Array = np.sort(order[: max(reached + 1, least)])
    return drawn


def hunt_vertices(centers: Array, n_components: int) -> Array:
    """Choose among centres (n_centers, K - 1) the vertices (K, K - 1) of a simplex around them.

    Up to K = 10, 1.5 K candidates: the two centres farthest apart, then one by one the centre with
    the largest mean squared distance to those chosen before. Choose the subset of K candidates
    whose simplex has the smallest maximum distance to the candidates. For more vertices, or if no
    subset spans a simplex: successive projection.
    """
    centers = centers[np.lexsort(centers.T)]
    squared = _squared_distances(centers)
    centers = centers[~np.triu(squared <= _SAME**2 * squared.max(), 1).any(axis=0)]
    if len(centers) < n_components:
        raise NoSimplexError(f"the features have only {len(centers)} distinct places")
    n_candidates = min(ceil(1.5 * n_components), len(centers))
    if comb(n_candidates, n_components) <= _MAX_SUBSETS:
        candidates = _far_apart(centers, n_candidates)
        subsets = np.array(list(combinations(range(n_candidates), n_components)))
        inverses, volumes = decompositions.inverse(_with_ones(candidates)[subsets])
        volumes = np.abs(volumes)
        solid = volumes > 1e-10 * volumes.max()
        if solid.any():
            return candidates[_tightest(candidates, subsets[solid], inverses[solid])]
    return centers[_successive_projection(centers, n_components)]


def mixture_weights(points: Array, vertices: Array, n_threads: int = 1) -> Array:
    """Return points (m, K - 1) as mixtures (m, K) of the vertices; clip points outside."""
    inverse, _ = decompositions.inverse(_with_ones(vertices))
    weights: Array = dense.product(_with_ones(points), inverse, n_threads=n_threads)
    np.maximum(weights, 0.0, out=weights)
    return weights / weights.sum(axis=1, keepdims=True)


def _squared_distances(points: Array) -> Array:
    """Return squared distances (n, n) of points (n, d) from each other."""
    distances = np.zeros((len(points), len(points)))
    for values in points.T:
        away = values[:, np.newaxis] - values
        away *= away
        distances += away
    return distances


def _far_apart(centers: Array, n_candidates: int) -> Array:
    squared = _squared_distances(centers)
    chosen = [int(i) for i in np.unravel_index(np.argmax(squared), squared.shape)]
    while len(chosen) < n_candidates:
        spread = squared[chosen].sum(axis=0)
        spread[chosen] = -np.inf
        chosen.append(int(np.argmax(spread)))
    return centers[chosen]


def _successive_projection(centers: Array, n_components: int) -> Array:
    """Choose the longest vector repeatedly, each time projecting its direction out of all."""
    # Lifted to a height similar to their size, so that angles between vertices reflect their
    # distances.
    height = np.sqrt(np.mean(np.sum(centers**2, axis=1)))
    lifted = np.column_stack([centers, np.full(len(centers), height)])
    # as in a QR decomposition that takes the longest column first
    _, R, order = decompositions.qr(lifted.T, pivoting=True)
    longest = R.diagonal()[:n_components]
    if len(longest) < n_components or not longest.min() > _NOISE * height:
        raise NoSimplexError("the features lie in a plane of too few dimensions")
    chosen: Array = order[:n_components]
    return chosen


def _tightest(candidates: Array, subsets: Array, inverses: Array) -> Array:
    """Return the subset whose simplex has the smallest maximum distance to the candidates.

    A point with barycentric coordinate b_k < 0 lies beyond the facet opposite corner k, -b_k
    heights away from it. The largest of these is a lower bound of its distance: subsets are tried
    in the order of their bounds, and the search ends when no bound is below the best distance
    found.
    """
    heights = 1.0 / np.linalg.norm(inverses[:, :-1], axis=1)
    size = inverses.shape[1]
    all_columns = np.ascontiguousarray(inverses.transpose(1, 0, 2)).reshape(size, -1)
    places = dense.product(_with_ones(candidates), all_columns)
    places = places.reshape(len(candidates), -1, size).transpose(1, 0, 2)
    beyond = -places * heights[:, np.newaxis]
    nearest = np.maximum(beyond.max(axis=2), 0.0)
    bounds = nearest.max(axis=1)
    best, smallest = len(subsets), np.inf
    for trial in np.argsort(bounds, kind="stable"):
        # Subsets that share the face nearest to the point tie up to rounding; the first one is
        # chosen.
        enough = smallest * (1.0 + _TIE)
        if bounds[trial] > enough:
            break
        largest, corners = 0.0, candidates[subsets[trial]]
        for point in np.argsort(-nearest[trial], kind="stable"):
            if nearest[trial, point] <= 0.0 or largest > enough:
                break
            largest = max(largest, _distance(candidates[point], corners))
        if largest < smallest * (1.0 - _TIE) or (largest <= enough and trial < best):
            best, smallest = trial, min(largest, smallest)
    return subsets[best]


def _distance(point: Array, corners: Array) -> float:
    """Return the distance of a point p from the convex hull of vertices v_k.

    The w >= 0 that minimises |sum_k w_k (v_k - p)|^2 + (1 - sum_k w_k)^2 is a multiple of the
    weights of the nearest mixture of vertices.
    """
    edges = (corners - point).T
    scale = np.abs(edges).max()
    gram = dense.cross(np.vstack([edges, np.full(len(corners), scale)]))
    weights, gain, residual = np.full((len(corners), 1), scale * scale), np.empty(1), np.empty(1)
    kernels.nnls(gram, weights, gain, residual, n_threads=1)
    nearest = (edges * (weights[:, 0] / weights.sum())).sum(axis=1)
    return float(np.sqrt((nearest * nearest).sum()))


def _with_ones(points: Array) -> Array:
    return np.column_stack([points, np.ones(len(points))])
