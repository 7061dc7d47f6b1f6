"""Checks of weights of entries, or of missing entries, that are given to `fit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.names import names_of, of_features, of_samples
from ..methods.entries import EntryWeights, constant_of
from ..methods.measured import Measured
from ..methods.missing import Missing
from ..readers.weighted import weighted_counts, weights_at
from .validation import checked_array

Array = NDArray[Any]


def weighted_entries(
    counts: CountMatrix, given: Any, loss: str
) -> tuple[CountMatrix, EntryWeights]:
    """Return counts multiplied by the weights of their entries, and these weights."""
    less_one = less_one_of(counts, given)
    constant = np.zeros(counts.shape[0])
    for rows in counts.chunks():
        # sorted, because sums depend on the order
        matrix = rows.matrix(counts.shape[1]).sorted_indices()
        rows = rows._replace(indices=matrix.indices, data=matrix.data)
        w, n_rows = weights_at(rows, less_one), len(rows.indptr) - 1
        each = constant_of(rows.data.astype(np.float64), w, loss)
        entry_row = np.repeat(np.arange(n_rows), np.diff(rows.indptr))
        constant[rows.first : rows.first + n_rows] = np.bincount(entry_row, each, n_rows)
    weighted = weighted_counts(counts, less_one) if less_one.nnz else counts
    return weighted, EntryWeights(less_one, float(constant.sum()))


def less_one_of(counts: CountMatrix, given: Any) -> sp.csr_array:
    """Return the weights of entries minus one (n, m), which are mostly 0, with sorted columns.

    Weights without feature names are in the order of the given columns, of which some may have been
    selected.
    """
    given = of_samples(given, counts, "data_weights")
    given = of_features(given, counts, "data_weights", axis=1)
    taken = counts.columns_taken
    if taken is not None and names_of(given, 1) is None:
        given = _columns_of(given, taken)
    if np.shape(given) != counts.shape:
        raise ValueError(
            f"data_weights has shape {np.shape(given)}; that of X, {counts.shape}, is needed."
        )
    if sp.issparse(given):
        found = sp.csr_array((given != 0), dtype=np.float64)
        found.data = -found.data
    else:
        found = sp.csr_array(
            checked_array(given, counts.shape, "data_weights", positive=False) - 1.0
        )
    found.eliminate_zeros()
    found.sort_indices()
    return found


def observed_counts(
    counts: CountMatrix, data_weights: Any, measured: Measured | None
) -> tuple[CountMatrix, Missing | None]:
    """Return the observed counts and the missing entries, None if there are none."""
    if data_weights is None:
        return counts, None
    less_one = less_one_of(counts, data_weights)
    if not less_one.nnz:
        return counts, None
    if measured is not None:
        raise ValueError(
            "data_weights cannot be combined with measured, nor with an outer join of files, which "
            "says what was measured: give weights of 0 there, too, and leave out measured "
            "(counts.measured = None)."
        )
    other = np.flatnonzero(less_one.data != -1)
    if other.size:
        at = int(other[0])
        row = int(np.searchsorted(less_one.indptr, at, "right")) - 1
        raise ValueError(
            f"data_weights[{row}, {less_one.indices[at]}] is {1 + less_one.data[at]:g}: give 1 for "
            "observed and 0 for missing entries. Weights of samples are row_weights; SSNMF has "
            "weights of single entries."
        )
    return weighted_counts(counts, less_one), Missing(less_one)


def without_nan(X: Any, data_weights: Any) -> tuple[Any, Any]:
    """Return X with 0 in place of NaN, and the missing entries, if `data_weights` is "nan".

    Otherwise both are returned as they are.
    """
    if not isinstance(data_weights, str):
        return X, data_weights
    if data_weights != "nan":
        raise ValueError(
            f"data_weights={data_weights!r}: give weights of entries, or 'nan' if missing entries "
            "of X are NaN."
        )
    if sp.issparse(X):
        X, missing = sp.csr_array(X, copy=True), sp.csr_array(X, copy=True)
        missing.data = np.isnan(X.data)
        missing.eliminate_zeros()
        X.data = np.where(np.isnan(X.data), 0, X.data)
        return X, missing
    if hasattr(X, "isna") and hasattr(X, "fillna"):
        return X.fillna(0), sp.csr_array(np.asarray(X.isna()))
    if not isinstance(X, np.ndarray | list):
        raise TypeError(
            f"data_weights='nan' is for arrays, sparse matrices and pandas DataFrames, and X is a "
            f"{type(X).__name__}: give a sparse matrix that is nonzero where an entry is missing."
        )
    array = np.asarray(X)
    if array.dtype.kind != "f" or array.ndim != 2:
        array = np.asarray(X, np.float64)
    return np.where(np.isnan(array), 0, array), sp.csr_array(np.isnan(array))


def _columns_of(weights: Any, taken: Any) -> Any:
    """Return weights of entries for the features that were kept.

    Columns that were not given (-1) get weight 0.
    """
    shape, absent = np.shape(weights), np.asarray(taken) < 0
    if len(shape) != 2 or max(taken) >= shape[1]:  # the check of shapes raises the error
        return weights
    if not sp.issparse(weights):
        return np.where(absent, 0.0, np.asarray(weights)[:, taken])
    of_absent = sp.csr_array(np.broadcast_to(absent, (shape[0], len(taken))))
    return sp.csr_array(weights)[:, taken].multiply(~absent) + of_absent
