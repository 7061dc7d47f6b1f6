"""Starts of an NMF with the squared Frobenius norm: factors, whose loadings an iteration finds."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from ...counts.base import CountMatrix
from ..factors import Array
from ..starts.initialize import ROUNDING, larger_part
from ..starts.singular_vectors import singular_vectors
from ..starts.topic_score import MAX_NONZEROS, drawn_rows
from ..weights.weighting import Weights

FrobeniusStart: TypeAlias = Literal["nndsvd", "random"]
# Bytes of a nonzero number of the rows whose singular vectors are found, and number of arrays with
# a vector for each sample, or for each feature (measured: 21 to 24, and 3).
_BYTES_EACH, _VECTORS = 32, 3


def start_of(
    counts: CountMatrix, n_components: int, init: str, weights: Weights, square: float, rng: Any,
    n_threads: int,
) -> Array:  # fmt: skip
    """Return factors F (m, K) to start from.

    "random": uniform numbers. "nndsvd": the larger parts, by sign, of the right singular vectors of
    the weighted counts (Boutsidis and Gallopoulos, 2008), zeros elsewhere; those of a random subset
    of the samples if counts are many. There are as many as samples and features; further factors
    are random. `square` is the sum of squares of the weighted counts.
    """
    n, m = counts.shape
    # the size of factors that explain all squares together with loadings of the same size
    F: Array = rng.uniform(size=(m, n_components))
    F *= np.sqrt(3 * np.sqrt(square) / m) / n_components
    if init == "random" or not square:
        return F
    left, values, right = singular_vectors(
        counts, n_components, drawn_rows(counts, rng, least=3 * n_components),
        weigh=partial(weighted, weights=weights), n_threads=n_threads,
    )  # fmt: skip
    for k, value in enumerate(values):
        _, v, weight = larger_part(left[:, k], right[:, k])
        if value * weight > 0.0:
            F[:, k] = np.where(v > ROUNDING, np.sqrt(value * weight) * v, 0.0)
    return F


def weighted(matrix: sp.csr_array, weights: Weights) -> sp.csr_array:
    """Return rows of counts, in float64, multiplied by weights of features and scaled to norm 1."""
    matrix = sp.csr_array(matrix)
    if weights.features is not None:
        matrix.data = matrix.data * weights.features[matrix.indices]
    if weights.unit:
        filled = np.flatnonzero(np.diff(matrix.indptr))
        norms = np.ones(matrix.shape[0])
        norms[filled] = np.sqrt(np.add.reduceat(matrix.data * matrix.data, matrix.indptr[filled]))
        matrix.data = matrix.data / np.repeat(norms, np.diff(matrix.indptr))
    return matrix


def needs_of_start(counts: CountMatrix, n_components: int) -> int:
    """Return the bytes that a start by singular vectors needs."""
    vectors = _VECTORS * sum(counts.shape)
    return min(counts.nnz, MAX_NONZEROS) * _BYTES_EACH + vectors * (n_components + 16) * 8
