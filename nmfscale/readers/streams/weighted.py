"""Counts multiplied by weights of their entries, such as 0 for missing ones, or of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.row_ranges import RowRange
from .derived import DerivedRows

Array = NDArray[Any]


def weighted_counts(counts: CountMatrix, less_one: sp.csr_array) -> CountMatrix:
    """Return counts times the weights of their entries; `less_one` (n, m) are weights minus one.

    The result is in memory if the given counts are; otherwise it reads them block by block. Counts
    keep their type if all weights are 0 or 1.
    """
    weighted = WeightedRows(counts, less_one).counts()
    weighted.columns_taken = counts.columns_taken
    return weighted


def counts_by_feature(counts: CountMatrix, weights: Array) -> CountMatrix:
    """Return counts times the weights (m,) of their features, float64.

    The result is in memory if the given counts are; otherwise it reads them block by block.
    """
    weighted = WeightedColumns(counts, weights).counts()
    weighted.columns_taken = counts.columns_taken
    return weighted


def sums_of_rows(
    counts: CountMatrix, weights: sp.csr_array | Array, function: Callable[[Array, Array], Array]
) -> Array:
    """Sum a function of counts and their weights, both float64, over each row's nonzeros, (n,).

    `weights` are those of features (m,), or weights minus one of entries (n, m).
    """
    out = np.zeros(counts.shape[0])
    for rows in counts.chunks():
        # sorted, because sums depend on the order
        matrix = rows.matrix(counts.shape[1]).sorted_indices()
        rows = rows._replace(indices=matrix.indices, data=matrix.data)
        w = weights[rows.indices] if weights.ndim == 1 else weights_at(rows, weights)
        terms = function(rows.data.astype(np.float64), w)
        n_rows = len(rows.indptr) - 1
        entry_row = np.repeat(np.arange(n_rows), np.diff(rows.indptr))
        out[rows.first : rows.first + n_rows] = np.bincount(entry_row, terms, n_rows)
    return out


def weights_at(rows: RowRange, less_one: sp.csr_array) -> Array:
    """Return the weights of the entries of some rows; `less_one` has sorted columns."""
    n_rows, n_columns = len(rows.indptr) - 1, less_one.shape[1]
    ends = less_one.indptr[[rows.first, rows.first + n_rows]]
    weighed = less_one.indptr[rows.first : rows.first + n_rows + 1]
    out = np.ones(len(rows.indices))
    if ends[0] == ends[1]:
        return out
    # the places of weights are sorted, because rows and their columns are
    places = _places(weighed, less_one.indices[slice(*ends)], n_columns)
    wanted = _places(rows.indptr, rows.indices, n_columns)
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    there = places[at] == wanted
    out[there] += less_one.data[slice(*ends)][at[there]]
    return out


def _places(indptr: Array, indices: Array, n_columns: int) -> Array:
    """Return the number of each entry in the matrix, row after row."""
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))
    return rows * n_columns + indices


class WeightedRows(DerivedRows):
    """Rows of counts, in memory or in files, times the weights of their entries."""

    def __init__(self, counts: CountMatrix, less_one: sp.csr_array):
        super().__init__(counts, counts.shape[1], counts._described())
        self._less_one = less_one
        self._only_zeros = bool((less_one.data == -1).all())

    def _derived(self, rows: RowRange) -> Any:
        w = weights_at(rows, self._less_one)
        data = rows.data * (w.astype(rows.data.dtype) if self._only_zeros else w)
        shape = len(rows.indptr) - 1, self.shape[1]
        matrix = sp.csr_array((data, rows.indices.copy(), rows.indptr.copy()), shape)
        matrix.eliminate_zeros()
        return matrix


class WeightedColumns(DerivedRows):
    """Rows of counts, in memory or in files, times the weights of their features."""

    def __init__(self, counts: CountMatrix, weights: Array):
        super().__init__(counts, counts.shape[1], counts._described() | {"feature_weights": None})
        self._weights = weights

    def _derived(self, rows: RowRange) -> Any:
        shape = len(rows.indptr) - 1, self.shape[1]
        data = rows.data * self._weights[rows.indices]
        return sp.csr_array((data, rows.indices.copy(), rows.indptr.copy()), shape)
