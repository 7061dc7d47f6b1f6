"""Weights of single counts, such as 0 for missing counts.

An entry (i, j) of weight w_ij has the term ``w_ij d(x_ij, mu_ij)``, so that an entry of weight 2
counts like two equal entries. Counts are already multiplied by their weights; sums over all entries
then need corrections by ``v_ij = w_ij - 1`` only where this is not 0:

    "frobenius"  sum_j w_ij mu_ij a_j = sum_j mu_ij a_j + sum_j v_ij mu_ij a_j
    "kl"         sum_j w_ij a_j       = sum_j a_j + sum_j v_ij a_j

If little of such a sum remains, it would be a rounding error: such rows are summed again over their
entries, and columns without any weight are known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ...kernels import dense
from ...kernels.functions import log
from ..factors import Array

ROWS = ("entries",)
# A sum that keeps less than this share of itself is summed again, or for a column, is at least this
# many times the rounding of float64.
_LITTLE, _ROUNDING = 1e-6, 4 * float(np.finfo(np.float64).eps)
# Minimum share of its curvature with which a coordinate moves: otherwise a parameter at the floor
# would let the other factor grow without bound. Sums of rows are exact, sums of columns have
# cancellation errors.
_LEAST_OF_ROW, _LEAST_OF_COLUMN = 1e-12, 1e-8
# Of an entry with a weight: its place and weight, those of a block once more, and two matrices.
_ENTRY_BYTES = 24 + 24 + 2 * 16
# Rows that are summed again at a time.
_PIECE = 1 << 6
_TYPE = np.dtype([("lane", np.int64), ("column", np.int64), ("v", np.float64)])


def memory_of_entries(less_one: sp.csr_array) -> int:
    """Return the bytes that weights of entries need in a fit."""
    return int(less_one.nnz) * _ENTRY_BYTES


class EntryWeights(NamedTuple):
    """Weights minus one of entries, as a CSR matrix (n, m), and ``constant``: see `constant_of`."""

    less_one: sp.csr_array
    constant: float

    def parts(self) -> list[Array]:
        """Return the arrays that a fit must have to be the same."""
        return [self.less_one.indptr, self.less_one.indices, self.less_one.data]

    def weightless(self) -> Array:
        """Return a mask (m,) of columns with weight 0 in every row."""
        return weightless_columns(self.less_one)


def weightless_columns(less_one: sp.csr_array) -> Array:
    """Return a mask (m,) of columns with weight 0 in every row, from weights minus one (n, m)."""
    n, m = less_one.shape
    n_weightless: Array = np.bincount(less_one.indices[less_one.data == -1], minlength=m)
    return n_weightless == n


def constant_of(x: Array, w: Array | float, loss: str) -> Array:
    """Return the part of each entry's loss without mu: w x^2, or w (x log x - x)."""
    if loss == "frobenius":
        return w * x * x
    terms: Array = w * (x * log(np.where(x > 0, x, 1)) - x)
    return terms


def in_blocks(less_one: sp.csr_array, layout: Any) -> list[Array]:
    """Return the entries of each block, its lanes and the lanes of the columns."""
    column = np.empty(less_one.shape[1], np.int64)
    order = layout.column_order[: less_one.shape[1]]
    column[order] = np.arange(len(order))
    out = []
    for place in layout.blocks:
        rows = layout.row_order[place.first : place.last]
        part = less_one[rows[rows >= 0]].tocoo()
        entries = np.empty(part.nnz, _TYPE)
        entries["lane"], entries["column"], entries["v"] = part.row, column[part.col], part.data
        out.append(entries[np.lexsort((entries["column"], entries["lane"]))])
    return out


def matrix_of(entries: Array, values: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return values at the entries of a block, which are in the order of rows, as a matrix."""
    ends = np.searchsorted(entries["lane"], np.arange(shape[0] + 1))
    return sp.csr_array(
        (np.ascontiguousarray(values), entries["column"].astype(np.int32), ends), shape
    )


class BlockEntries:
    """The entries of one block, with S (n_rows, K) and A (m, K) in float64."""

    def __init__(self, entries: Array, S: Array, A: Array, loss: str):
        self._S, self._A, self._loss, shape = S, A, loss, (len(S), len(A))
        lane, column, v = entries["lane"], entries["column"], entries["v"]
        mu = np.empty(len(v))
        for first in range(0, len(v), 1 << 16):
            here = slice(first, first + (1 << 16))
            mu[here] = dense.dots(S, lane[here], A, column[here])
        values = v * mu if loss == "frobenius" else v
        self._weights = matrix_of(entries, v, shape)
        self._matrix = matrix_of(entries, values, shape)
        # sum over the entries of v mu^2, or v mu
        self.loss = float((values * mu).sum())

    def rows_left(self, of_all: Array) -> Array:
        """Return sum_j w mu a_j, or sum_j w a_j, for every row, from the unweighted sums."""
        if self._loss == "kl":
            return sums_left(self._weights, self._A, of_all)
        sums = of_all + dense.of_sparse(self._matrix, self._A)
        for rows in _cancelled(sums, of_all):
            w = self._dense(rows) * dense.product(self._S[rows], self._A.T)
            sums[rows] = dense.product(w, self._A)
        return sums

    def curvature_left_of_rows(self, G: Array) -> tuple[Array, Array]:
        """Return the lower triangles of sum_j w a_j a_j^T for every row, from A^T A.

        Also return what was added to the diagonals, (n, K), as in `curvature_left_of_columns`.
        """
        lower = np.tril_indices(len(G))
        products, diagonal = _products(self._A), np.flatnonzero(lower[0] == lower[1])
        curvature: Array = G[lower] + dense.of_sparse(self._weights, products)
        for rows in _cancelled(curvature[:, diagonal], np.diag(G)):
            curvature[rows] = dense.product(self._dense(rows), products)
        return _raised(curvature, G, _LEAST_OF_ROW)

    def _dense(self, rows: Array) -> Array:
        """Return the weights w of some rows."""
        return 1 + self._weights[rows].toarray()

    def of_columns(self) -> Array:
        """Return sum_i v mu s_i, or sum_i v s_i, for every column."""
        sums: Array = dense.of_sparse(self._matrix.T.tocsr(), self._S)
        return sums

    def curvature_of_columns(self) -> Array:
        """Return the lower triangles of sum_i v s_i s_i^T for every column."""
        curvature: Array = dense.of_sparse(self._weights.T.tocsr(), _products(self._S))
        return curvature


def sums_left(less_one: sp.csr_array, A: Array, of_all: Array) -> Array:
    """Return sum_j w a_j for every row (n, K), from weights minus one (n, m) and sum_j a_j."""
    sums: Array = of_all + dense.of_sparse(less_one, A)
    for rows in _cancelled(sums, of_all):
        sums[rows] = dense.product(1 + less_one[rows].toarray(), A)
    return sums


def _cancelled(left: Array, of_all: Array) -> Iterator[Array]:
    """Yield numbers of rows, in batches, in which cancellation leaves little of a positive sum."""
    rows = np.flatnonzero((left < _LITTLE * of_all).any(axis=1))
    for first in range(0, len(rows), _PIECE):
        yield rows[first : first + _PIECE]


def columns_left(of_all: Array, corrections: Array, weightless: Array) -> Array:
    """Return weighted sums over samples (m, K), from unweighted ones."""
    sums = np.maximum(of_all + corrections, _ROUNDING * of_all)
    sums[weightless] = 0
    return sums


def curvature_left_of_columns(
    G: Array, corrections: Array, weightless: Array
) -> tuple[Array, Array]:
    """Return lower triangles (m, P) of sum_i w s_i s_i^T, and what was added to diagonals (m, K).

    If almost nothing remains of a diagonal, it is raised, so that the matrix is positive definite
    despite rounding.
    """
    curvature: Array = G[np.tril_indices(len(G))] + corrections
    curvature[weightless] = 0
    return _raised(curvature, G, _LEAST_OF_COLUMN)


def _raised(triangles: Array, G: Array, least: float) -> tuple[Array, Array]:
    """Raise diagonals of triangles to at least this share of G's; return what was added, too.

    Triangles that are zero stay unchanged.
    """
    row, column = np.tril_indices(len(G))
    diagonal = np.flatnonzero(row == column)
    added = np.maximum(least * np.diag(G) - triangles[:, diagonal], 0)
    added[~triangles[:, diagonal].any(axis=1)] = 0
    triangles[:, diagonal] += added
    return triangles, added


def _products(rows: Array) -> Array:
    """Return the lower triangles of the outer products of rows with themselves."""
    one, other = np.tril_indices(rows.shape[1])
    products: Array = rows[:, one] * rows[:, other]
    return products
