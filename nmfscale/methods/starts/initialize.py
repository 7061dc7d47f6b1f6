"""Starting points of a fit: positive factors of the right scale for any counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ...counts.base import CountMatrix
from ...counts.label_totals import totals_of_labels
from ...counts.names import is_missing, of_features, of_samples, same_topics, shown, transposed
from ...counts.structure import non_negative
from ...counts.warn import warn_caller
from ...engine import progress
from ...kernels import dense
from ..factors import MINVAL, rescale
from .sample_clusters import totals_of_clusters
from .singular_vectors import singular_vectors
from .topic_score import NoSimplexError, topic_score

Array = NDArray[Any]
FitRows = Callable[[Array, Array], Array]

PoissonStart: TypeAlias = Literal["auto", "topic-score", "clusters", "random", "nndsvd"]
# Kinds of several starts, in turn. No kind ends highest on all counts.
KINDS = "auto", "clusters", "random"
# Number of components from which "auto" means clusters of samples: the time of Topic-SCORE grows
# with the cube of it.
MANY = 100
# Products of given factors must be finite in float32, in which most fits begin.
LARGEST = 1e15
# Share of a sample that starts in all clusters instead of its own, and share of overall frequencies
# in those of a cluster.
SHARED = 0.1
# Smaller entries of a singular vector are zeros with rounding errors.
ROUNDING = 1e-14


def initialize(
    counts: CountMatrix,
    n_components: int,
    init: str | ArrayLike = "auto",
    *,
    number: int = 0,
    random_state: Any = None,
    dtype: DTypeLike = np.float64,
    fit_rows: FitRows,
    n_threads: int = 1,
) -> tuple[Array, Array]:
    """Return loadings and factors from which a fit can start.

    Parameters
    ----------
    counts : CountMatrix of shape (n_samples, n_features)
        The counts.
    n_components : int
        Number of components K. For K = 1 the result is the maximum of the likelihood, whatever
        `init` is.
    init : {"auto", "topic-score", "clusters", "random", "nndsvd"} or array-like, default="auto"
        As in :class:`nmfscale.PoissonNMF`, where loadings are found by `fit_rows`.
    number : int, default=0
        Number of the start, of several: those of "auto" are of different kinds in turn.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers (k-means in "topic-score" and "clusters").
    dtype : {float32, float64}, default=float64
        Type of the result.
    fit_rows : callable
        ``fit_rows(F, L) -> L`` takes a few steps on the loadings with fixed factors.
    n_threads : int, default=1
        Number of threads; the result does not depend on it.

    Returns
    -------
    L : ndarray of shape (n_samples, n_components)
        Loadings, C-contiguous, at least 1e-10.
    F : ndarray of shape (n_features, n_components)
        Factors, C-contiguous, at least 1e-10; column means agree with those of L.

    Raises
    ------
    ValueError
        If `init` is neither a known name nor an array of labels, one per sample, with
        `n_components` different values.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.readers.open import as_counts
    >>> from nmfscale.methods.starts.initialize import initialize
    >>> counts = as_counts(np.array([[4, 0, 2], [0, 9, 0], [0, 3, 0]]))
    >>> L, F = initialize(counts, 2, ["a", "b", "b"], fit_rows=lambda F, L: L)
    >>> (L @ F.T).round(1)
    array([[3.6, 0.7, 1.8],
           [0.5, 8.3, 0.2],
           [0.2, 2.8, 0.1]])
    """
    from sklearn.utils import check_random_state

    rng = check_random_state(random_state)
    if not isinstance(init, str):
        init = _cluster_numbers(init, counts, n_components)
    elif init not in get_args(PoissonStart):
        allowed = ", ".join(map(repr, get_args(PoissonStart)))
        raise ValueError(
            f"init={shown(init)} is not one of {allowed} or an array of cluster labels."
        )
    L, F = _start(counts, n_components, init, number, rng, n_threads)
    if L is None:
        F = _floored(F, dtype)
        equal = np.repeat(counts.row_totals[:, np.newaxis] / n_components, n_components, axis=1)
        progress.stage("loadings", counts.shape[0])
        L = fit_rows(F, _floored(equal, dtype))
    L, F = rescale(L, F)
    return _floored(L, dtype), _floored(F, dtype)


def check_factors(
    L: ArrayLike | None,
    F: ArrayLike | None,
    counts: CountMatrix,
    n_components: int,
) -> tuple[Array | None, Array | None]:
    """Check factors L (n, K) and F (m, K) given as a start: non-negative, and below 1e15.

    Messages name them as arguments of `fit`: loadings, and components (K, m). Rows of tables are
    matched with samples and features by name, columns of both with each other.

    Loadings in an array of floats are returned themselves: a fit reads it once, and copies it then.
    """
    (n, m), K = counts.shape, n_components
    if L is not None:
        L = of_samples(L, counts, "loadings")
    if F is not None:
        F = same_topics(L, of_features(F, counts, "components"))
        axes = "(n_components, n_features)"
        F = non_negative(transposed(F), "components", (K, m), most=LARGEST, axes=axes)
        F = np.ascontiguousarray(F.T)
    if L is not None:
        axes = "(n_samples, n_components)"
        L = non_negative(L, "loadings", (n, K), most=LARGEST, axes=axes)
    return L, F


def _cluster_numbers(init: ArrayLike, counts: CountMatrix, n_components: int) -> Array:
    """Return the cluster number of each sample; clusters are numbered in sorted order of labels."""
    if isinstance(init, tuple | list) and len(init) == 2 and np.ndim(init[0]) == 2:
        raise ValueError(
            "init is a pair of matrices, and takes a name or labels of clusters: give factors to "
            "start from to fit, as fit(X, loadings=L, components=F.T), with a row of L for each "
            "sample and a row of F for each feature."
        )
    labels = np.asarray(of_samples(init, counts, "init"))
    if labels.shape != (counts.shape[0],):
        raise ValueError(
            f"init is an array of shape {labels.shape}; cluster labels need shape "
            f"(n_samples,) = ({counts.shape[0]},). Give factors to start from as L and F of fit."
        )
    if labels.dtype.kind in "Of":
        missing = [*map(is_missing, labels.tolist())]
        if any(missing):
            raise ValueError(f"init[{missing.index(True)}] is missing; every sample needs a label.")
        labels = labels.astype(str)
    names, numbers = np.unique(labels, return_inverse=True)
    if names.size != n_components:
        raise ValueError(
            f"init holds {names.size} different cluster labels, but n_components is "
            f"{n_components}; set n_components={names.size}."
        )
    return numbers


def _start(
    counts: CountMatrix, n_components: int, init: str | Array, number: int,
    rng: np.random.RandomState, n_threads: int,
) -> tuple[Array | None, Array]:  # fmt: skip
    """Make loadings and factors; None for loadings that must still be fitted to the factors."""
    if n_components == 1:
        # One cluster of all samples: the maximum of the likelihood.
        init = np.zeros(counts.shape[0], dtype=np.intp)
    if not isinstance(init, str):
        return _from_clusters(counts, init, n_components)
    if init == "nndsvd":
        return _from_singular_vectors(counts, n_components, rng, n_threads)
    enough = min(counts.shape) >= 3 * n_components
    if init == "auto" and enough:
        init = KINDS[number % len(KINDS)]
    if init == "clusters" or (init == "auto" and enough and n_components > MANY):
        totals = totals_of_clusters(counts, n_components, rng, n_threads=n_threads)
        # from all samples: a feature may be in none of the drawn ones
        return None, _smoothed(totals, counts.column_totals / max(counts.total, MINVAL))
    if init == "topic-score" or (init == "auto" and enough):
        try:
            return None, topic_score(counts, n_components, rng, n_threads=n_threads)
        except NoSimplexError as reason:
            if init == "topic-score":
                warn_caller(
                    f"Topic-SCORE found no {n_components} topics: {reason}. Starting at random."
                )
    return _random(counts, n_components, rng)


def _from_clusters(counts: CountMatrix, labels: Array, n_components: int) -> tuple[Array, Array]:
    """Return L, row totals times labels, and F, frequencies within clusters, both smoothed.

    Smoothed, because EM cannot leave zeros, and residuals, which are products with the parameters,
    do not show them.
    """
    L = np.full((counts.shape[0], n_components), SHARED / n_components)
    L[np.arange(counts.shape[0]), labels] += 1 - SHARED
    L *= counts.row_totals[:, np.newaxis]
    totals = totals_of_labels(counts, labels, n_components)
    return L, _smoothed(totals, totals.sum(axis=1) / max(counts.total, MINVAL))


def _smoothed(totals: Array, overall: Array) -> Array:
    """Return frequencies in clusters, from counts (m, K), mixed with overall frequencies (m,)."""
    shares: Array = totals / np.maximum(totals.sum(axis=0), MINVAL)
    return (1 - SHARED) * shares + SHARED * overall[:, np.newaxis]


def _random(
    counts: CountMatrix, n_components: int, rng: np.random.RandomState
) -> tuple[Array, Array]:
    """Draw uniform F, then uniform L; scale rows of L so that expected totals match the counts."""
    F = rng.uniform(size=(counts.shape[1], n_components))
    L = rng.uniform(size=(counts.shape[0], n_components))
    expected = dense.product(L, F.sum(axis=0)[:, np.newaxis])[:, 0]
    return L * (counts.row_totals / np.maximum(expected, MINVAL))[:, np.newaxis], F


def _from_singular_vectors(
    counts: CountMatrix, n_components: int, rng: np.random.RandomState, n_threads: int
) -> tuple[Array, Array]:
    """Return the larger of the positive and negative parts of each pair of singular vectors."""
    left, values, right = singular_vectors(counts, n_components, n_threads=n_threads)
    # Zeros are raised to the value at which all of L F^T would be a hundredth of the mean count.
    level = 0.1 * np.sqrt(counts.total / (counts.shape[0] * counts.shape[1] * n_components))
    # The number of singular vectors is limited by rows and columns; further components are random.
    L = level * rng.uniform(0.0, 2.0, size=(counts.shape[0], n_components))
    F = level * rng.uniform(0.0, 2.0, size=(counts.shape[1], n_components))
    for k, value in enumerate(values):
        u, v, weight = larger_part(left[:, k], right[:, k])
        scale = np.sqrt(value * weight)
        if scale > 0.0:
            L[:, k] = np.where(u > ROUNDING, scale * u, level)
            F[:, k] = np.where(v > ROUNDING, scale * v, level)
    expected = (L.sum(axis=0) * F.sum(axis=0)).sum()
    return L * (counts.total / max(expected, MINVAL)), F


def larger_part(u: Array, v: Array) -> tuple[Array, Array, float]:
    """Return the larger parts (by sign) of two vectors, normalised, and their weight."""
    parts = [(np.maximum(sign * u, 0.0), np.maximum(sign * v, 0.0)) for sign in (1.0, -1.0)]
    norms = [(np.sqrt((a * a).sum()), np.sqrt((b * b).sum())) for a, b in parts]
    weights = [float(a * b) for a, b in norms]
    larger = int(weights[1] > weights[0])
    lengths = norms[larger] if weights[larger] > 0.0 else (1.0, 1.0)
    return parts[larger][0] / lengths[0], parts[larger][1] / lengths[1], weights[larger]


def _floored(factor: Array, dtype: DTypeLike) -> Array:
    """Return a factor without zeros: multiplicative updates cannot move zeros."""
    return np.maximum(np.ascontiguousarray(factor, dtype=dtype), np.asarray(MINVAL, dtype=dtype))
