"""Weights of single counts in a semi-supervised NMF, such as 0 for those that are missing.

An entry (i, j) of weight w_ij has the term ``w_ij d(x_ij, mu_ij)``, so that one of weight 2 counts
as two alike. Counts come multiplied by their weights; then sums over all entries need corrections
by ``v_ij = w_ij - 1`` only where that is not 0:

    "frobenius"  sum_j w_ij mu_ij a_j = sum_j mu_ij a_j + sum_j v_ij mu_ij a_j
    "kl"         sum_j w_ij a_j       = sum_j a_j + sum_j v_ij a_j
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .factors import Array

ROWS = ("entries",)
_TYPE = np.dtype([("lane", np.int64), ("column", np.int64), ("v", np.float64)])


class EntryWeights(NamedTuple):
    """Weights less one of entries, a CSR matrix (n, m), and ``constant``: see `constant_of`."""

    less_one: sp.csr_array
    constant: float


def constant_of(x: Array, w: Array | float, loss: str) -> Array:
    """Return what each entry adds to the loss whatever mu is: w x^2, or w (x log x - x)."""
    if loss == "frobenius":
        return w * x * x
    found: Array = w * (x * np.log(np.where(x > 0, x, 1)) - x)
    return found


def in_blocks(less_one: sp.csr_array, layout: Any) -> list[Array]:
    """Return the entries of each block, its lanes and the lanes of the columns."""
    column = np.empty(less_one.shape[1], np.int64)
    order = layout.column_order[: less_one.shape[1]]
    column[order] = np.arange(len(order))
    out = []
    for place in layout.blocks:
        rows = layout.row_order[place.first : place.last]
        part = less_one[rows[rows >= 0]].tocoo()
        found = np.empty(part.nnz, _TYPE)
        found["lane"], found["column"], found["v"] = part.row, column[part.col], part.data
        out.append(found[np.lexsort((found["column"], found["lane"]))])
    return out


class BlockEntries:
    """The entries of one block, with S (n_rows, K) and A (m, K) in float64."""

    def __init__(self, entries: Array, S: Array, A: Array, loss: str):
        self._S, self._A, shape = S, A, (len(S), len(A))
        lane, column, v = entries["lane"], entries["column"], entries["v"]
        mu = np.empty(len(v))
        for first in range(0, len(v), 1 << 16):
            here = slice(first, first + (1 << 16))
            mu[here] = np.einsum("ek,ek->e", S[lane[here]], A[column[here]])
        values = v * mu if loss == "frobenius" else v
        self._weights = sp.csr_array((v, (lane, column)), shape)
        self._matrix = sp.csr_array((values, (lane, column)), shape)
        # sum over the entries of v mu^2, or v mu
        self.loss = float((values * mu).sum())

    def of_rows(self) -> Array:
        """Return sum_j v mu a_j, or sum_j v a_j, of every row."""
        return np.asarray(self._matrix @ self._A)

    def curvature_of_rows(self) -> Array:
        """Return sum_j v a_j a_j^T of every row, its lower triangle row by row."""
        return np.asarray(self._weights @ _products(self._A))

    def of_columns(self) -> Array:
        """Return sum_i v mu s_i, or sum_i v s_i, of every column."""
        return np.asarray(self._matrix.T @ self._S)

    def curvature_of_columns(self) -> Array:
        """Return sum_i v s_i s_i^T of every column, likewise."""
        return np.asarray(self._weights.T @ _products(self._S))


def _products(rows: Array) -> Array:
    """Return the lower triangles of the outer products of rows with themselves."""
    one, other = np.tril_indices(rows.shape[1])
    found: Array = rows[:, one] * rows[:, other]
    return found
