"""Similarities of the topics of fits, and matching of those of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ...kernels import dense

Array = NDArray[Any]
# The norm of ``f / sqrt(p)`` is at least one; a shorter difference than this is rounding.
_NO_DIRECTION = 1e-10
# Least share of the squared norm of a deviation that is taken as no noise.
_LEAST_SHARE = 0.5


def cosines_of(F: Array, other: Array) -> Array:
    """Return the cosines (K, K') between columns of F (m, K) and of `other` (m, K')."""
    norms = [np.linalg.norm(A, axis=0) for A in (F, other)]
    cosines: Array = dense.cross(F, other) / np.maximum(np.outer(*norms), np.finfo(float).tiny)
    return cosines


def affinities_of(F: Array, other: Array) -> Array:
    """Return Bhattacharyya coefficients ``sum_j sqrt(p_jk q_jk')`` (K, K') of normalised columns.

    It is the cosine of their square roots.
    """
    return cosines_of(np.sqrt(F), np.sqrt(other))


def lift_correlations_of(F: Array, other: Array) -> Array:
    """Return cosines (K, K') of deviations of topics from the mean topic, at least 0.

    With frequencies f_j and g_j and the mean p_j of all topics of both fits, they are cosines of
    ``(f_j - p_j) / sqrt(p_j)``: correlations of lifts f_j / p_j, features weighted by p_j. Features
    that all topics share, such as housekeeping genes, do not contribute. If a fit has a single
    topic, the mean is not subtracted, and it is the cosine of ``f_j / sqrt(p_j)``.
    """
    here, there = (_directions(lifts) for lifts in _deviations((F, other))[0])
    correlations = np.maximum(dense.cross(here, there), 0)
    # topics that equal the mean have no direction, and are similar to each other
    alike = np.outer(F.any(axis=0) & ~here.any(axis=0), other.any(axis=0) & ~there.any(axis=0))
    return np.where(alike, 1.0, correlations)


def corrected_lift_similarities(
    F: Array, other: Array, counts: Array, counts_of_other: Array
) -> Array:
    """Return similarities by lift of matched topics, corrected for the noise of their counts.

    A frequency f_j that is estimated from the n counts of a topic has at least the variance f_j / n
    of Poisson counts, so that the squared norm of its deviation exceeds that of the topic by at
    least ``sum_j f_j / (n p_j)``. The cosine of two such deviations is divided by the square roots
    of the shares of their squared norms that are no noise (Spearman 1904, The proof and measurement
    of association between two things). `counts` (K,) are those of the topics.
    """
    here, there, similarities = lift_pairs(F, other)
    deviations, weight = _deviations((F, other))
    for A, topics, n, lifts in (
        (F, here, counts, deviations[0]), (other, there, counts_of_other, deviations[1])
    ):  # fmt: skip
        noise = (_frequencies(A) * weight**2).sum(axis=0) / np.maximum(n, 1)
        squares = (lifts**2).sum(axis=0)
        share = 1 - np.divide(noise, squares, out=np.zeros_like(noise), where=squares > 0)
        similarities = similarities / np.sqrt(share[topics].clip(_LEAST_SHARE, 1))
    return similarities.clip(0, 1)


def lift_correlations_among(
    factors: Sequence[Array], rows: Sequence[int], columns: Sequence[int]
) -> Array:
    """Return the same between the topics of some of several fits (m, K), with the mean of all.

    `rows` and `columns` are the compared fits. Each fit has the same weight in the mean, whatever
    its number of topics.
    """
    points = [_directions(lifts) for lifts in _deviations(factors)[0]]
    here, there = (np.concatenate([points[i] for i in fits], axis=1) for fits in (rows, columns))
    alike = [
        np.concatenate([factors[i].any(axis=0) & ~points[i].any(axis=0) for i in fits])
        for fits in (rows, columns)
    ]
    return np.where(np.outer(*alike), 1.0, np.maximum(dense.cross(here, there), 0))


def _deviations(factors: Sequence[Array]) -> tuple[list[Array], Array]:
    """Return deviations of topics from their mean times a weight of features, and the weight."""
    frequencies = [_frequencies(F) for F in factors]
    mean = (sum(f.mean(axis=1) for f in frequencies) / len(factors))[:, None]
    weight = np.divide(1, np.sqrt(mean), out=np.zeros_like(mean), where=mean > 0)
    centre = mean if min(f.shape[1] for f in frequencies) > 1 else 0 * mean
    return [(f - centre) * (f.any(axis=0) * weight) for f in frequencies], weight


def _frequencies(F: Array) -> Array:
    sums = F.sum(axis=0, dtype=np.float64)
    return np.divide(F, sums, out=np.zeros(F.shape), where=sums > 0)


def _directions(columns: Array) -> Array:
    """Return columns divided by their norms; columns within rounding of zero become zero."""
    norms = np.linalg.norm(columns, axis=0)
    return np.divide(columns, norms, out=np.zeros_like(columns), where=norms > _NO_DIRECTION)


def best_pairs(similarities: Array) -> tuple[Array, Array]:
    """Return rows and columns of the one-to-one pairs with the largest sum of similarities.

    The number of pairs is the smaller number of topics; rows are sorted.
    """
    here, there = linear_sum_assignment(similarities, maximize=True)
    return here, there


def lift_pairs(F: Array, other: Array) -> tuple[Array, Array, Array]:
    """Return the matched columns of F (m, K) and `other` (m, K'), and their similarities by lift.

    Similarities are `lift_correlations_of`, at most 1.
    """
    similarities = lift_correlations_of(F, other).clip(0, 1)
    here, there = best_pairs(similarities)
    return here, there, similarities[here, there]


def match_columns(F: Array, other: Array) -> tuple[Array, Array]:
    """Return the columns of `other` (m, K) that match those of F, and the cosines (K,).

    They are matched by `lift_correlations_of`.
    """
    here, there = best_pairs(lift_correlations_of(F, other))
    return there, cosines_of(F, other)[here, there]
