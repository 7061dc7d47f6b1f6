"""Which topics of two fits belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[Any]


def cosines_of(F: Array, other: Array) -> Array:
    """Return the cosines (K, K') between columns of F (m, K) and of `other` (m, K')."""
    norms = [np.linalg.norm(A, axis=0) for A in (F, other)]
    cosines: Array = F.T @ other / np.maximum(np.outer(*norms), np.finfo(float).tiny)
    return cosines


def affinities_of(F: Array, other: Array) -> Array:
    """Return ``sum_j sqrt(p_jk q_jk')`` (K, K') of columns divided by their sums: Bhattacharyya's.

    It is the cosine of their square roots.
    """
    return cosines_of(np.sqrt(F), np.sqrt(other))


def best_pairs(similarities: Array) -> tuple[Array, Array]:
    """Return rows and columns of the pairs whose similarities have the largest sum.

    There are as many pairs as the shorter side has topics; rows are sorted.
    """
    here, there = linear_sum_assignment(similarities, maximize=True)
    return here, there


def match_columns(F: Array, other: Array) -> tuple[Array, Array]:
    """Return which columns of `other` (m, K) belong to those of F, and the cosines (K,)."""
    cosines = cosines_of(F, other)
    here, there = best_pairs(cosines)
    return there, cosines[here, there]
