"""Singular vectors of counts by random projections, with the same bits on every processor.

Randomized subspace iteration (Halko, Martinsson and Tropp, 2011, Finding structure with randomness,
SIAM Review 53, 217-288), as in scikit-learn's ``randomized_svd``, whose last bits depend on BLAS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine import progress
from ...kernels import decompositions, dense, functions

Array = NDArray[Any]

# Further columns of the random projection; iterations, and those for many vectors.
_FURTHER, _ROUNDS, _FEWER_ROUNDS, _MANY = 10, 4, 2, 100


def singular_vectors(
    counts: CountMatrix, n_vectors: int, rows: Array | None = None, *,
    weigh: Callable[[Any], Any] | None = None, n_threads: int = 1,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return U (rows, k), decreasing singular values (k,) and V (features, k), k <= n_vectors.

    There are fewer if the counts, or the selected rows, have fewer rows or columns. The largest
    entry of each column of U is positive. `weigh` replaces the matrix of counts by another one.
    """
    progress.stage("singular vectors")
    # Sums follow the order of storage, which must not influence the start: it is sorted. The type
    # does not depend on where the counts are.
    matrix = counts.take_rows(rows).astype(np.float64, copy=False)
    if weigh is not None:
        matrix = weigh(matrix)
    transposed, n_found = matrix.T.tocsr(), min(n_vectors, *matrix.shape)
    wide = matrix.shape[0] < matrix.shape[1]
    tall, flat = (transposed, matrix) if wide else (matrix, transposed)
    times = partial(dense.of_sparse, n_threads=n_threads)
    # Seeded by a constant: the same counts give the same vectors, whatever the random state.
    Q = _normal(np.random.RandomState(0), (min(matrix.shape), n_vectors + _FURTHER))
    # columns of zeros stay zeros, and products need not pad again
    Q = dense.padded(Q)
    for _ in range(_ROUNDS if n_vectors <= _MANY else _FEWER_ROUNDS):
        Q = _orthonormal(times(tall, Q), n_threads)
        Q = _orthonormal(times(flat, Q), n_threads)
    # twice: columns of very different lengths are orthonormal only approximately at first
    Q = _orthonormal(_orthonormal(times(tall, Q), n_threads), n_threads)
    B = times(flat, Q)
    squares, turn = decompositions.eigh(dense.cross(B, n_threads=n_threads))
    values = np.sqrt(np.maximum(squares[::-1][:n_found], 0.0))
    turn, sizes = turn[:, ::-1][:, :n_found], np.where(values > 0.0, values, 1.0)
    U, V = (dense.product(basis, turn, n_threads=n_threads) for basis in (Q, B))
    V /= sizes
    if wide:
        # V computed again from U: precise values for rare features
        U, V = V, times(transposed, V) / sizes
    largest = np.argmax(np.abs(U), axis=0)
    signs = np.where(U[largest, np.arange(n_found)] < 0, -1.0, 1.0)
    return U * signs, values, V * signs


def _orthonormal(Y: Array, n_threads: int) -> Array:
    """Return an orthonormal basis of the columns of Y, and zeros for dependent columns."""
    turn = decompositions.orthonormal_basis(dense.cross(Y, n_threads=n_threads))
    basis: Array = dense.product(Y, turn, n_threads=n_threads)
    return basis


def _normal(rng: np.random.RandomState, shape: tuple[int, int]) -> Array:
    """Return what ``rng.normal(size=shape)`` returns, but with our logarithm (polar method)."""
    n_pairs = (shape[0] * shape[1] + 1) // 2
    accepted = np.empty((0, 2))
    while len(accepted) < n_pairs:
        # the share pi / 4 of the pairs is in the unit circle
        drawn = 2.0 * rng.random_sample((int(1.3 * (n_pairs - len(accepted))) + 16, 2)) - 1.0
        squared = drawn[:, 0] * drawn[:, 0] + drawn[:, 1] * drawn[:, 1]
        inside = (squared < 1.0) & (squared != 0.0)
        pairs, squared = drawn[inside, ::-1], squared[inside]
        pairs = pairs * np.sqrt(-2.0 * functions.log(squared) / squared)[:, np.newaxis]
        accepted = np.concatenate([accepted, pairs])
    return accepted.ravel()[: shape[0] * shape[1]].reshape(shape)
