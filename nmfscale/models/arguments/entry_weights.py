"""Checks of weights of entries, or of missing entries, that are given to `fit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import names_of, of_features, of_samples
from ...methods.weights.entries import EntryWeights, constant_of
from ...methods.weights.measured import Measured
from ...methods.weights.poisson_weights import PoissonWeights
from ...readers.streams.weighted import sums_of_rows, weighted_counts
from .validation import checked_array

Array = NDArray[Any]


def weighted_entries(
    counts: CountMatrix, data_weights: Any, loss: str
) -> tuple[CountMatrix, EntryWeights]:
    """Return counts multiplied by the weights of their entries, and these weights."""
    less_one = less_one_of(counts, data_weights)
    constant = sums_of_rows(counts, less_one, lambda x, w: constant_of(x, w, loss))
    weighted = weighted_counts(counts, less_one) if less_one.nnz else counts
    return weighted, EntryWeights(less_one, float(constant.sum()))


def less_one_of(counts: CountMatrix, data_weights: Any) -> sp.csr_array:
    """Return the weights of entries minus one (n, m), which are mostly 0, with sorted columns.

    Weights without feature names are in the order of the given columns, of which some may have been
    selected.
    """
    data_weights = of_samples(given_weights(counts, data_weights), counts, "data_weights")
    data_weights = of_features(data_weights, counts, "data_weights", axis=1)
    if sp.issparse(data_weights):
        less_one = _of_sparse(data_weights)
    else:
        dense = checked_array(data_weights, np.shape(data_weights), "data_weights", positive=False)
        less_one = sp.csr_array(dense - 1.0)
    if counts.columns_taken is not None and names_of(data_weights, 1) is None:
        less_one = _columns_of(less_one, np.asarray(counts.columns_taken))
    if less_one.shape != counts.shape:
        raise _of_other_shape(less_one.shape, counts.shape)
    less_one.eliminate_zeros()
    less_one.sort_indices()
    return less_one


def _of_other_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> ValueError:
    return ValueError(f"data_weights has shape {shape}; that of X, {wanted}, is needed.")


def _of_sparse(data_weights: Any) -> sp.csr_array:
    """Return sparse weights minus one: -1 where a mask is true, or the entries of numbers."""
    weights = sp.csr_array(data_weights, dtype=np.float64, copy=True)
    if data_weights.dtype == bool:
        weights.eliminate_zeros()
        weights.data[:] = -1
        return weights
    bad = np.flatnonzero(~(np.isfinite(weights.data) & (weights.data >= 0)))
    if bad.size:
        row = int(np.searchsorted(weights.indptr, bad[0], "right")) - 1
        raise ValueError(
            f"data_weights[{row}, {weights.indices[bad[0]]}] is {weights.data[bad[0]]}; "
            "non-negative "
            "finite numbers are needed."
        )
    if weights.nnz and (weights.data == 1).all():
        raise ValueError(
            "data_weights is sparse, and all its entries are 1, the weight of entries that it does "
            "not store: to mark missing entries, give a mask, data_weights.astype(bool)."
        )
    weights.data -= 1
    return weights


def _columns_of(less_one: sp.csr_array, taken: Array) -> sp.csr_array:
    """Return weights minus one for the features that were kept.

    Columns that were not given (-1) get weight 0.
    """
    if less_one.ndim != 2 or taken.max(initial=0) >= less_one.shape[1]:  # refused by the caller
        return less_one
    absent = taken < 0
    kept = sp.csr_array(less_one[:, taken].multiply(~absent))
    if absent.any():
        kept = kept - sp.csr_array(np.broadcast_to(absent, kept.shape), dtype=np.float64)
    return sp.csr_array(kept)


def observed_counts(
    counts: CountMatrix, data_weights: Any, measured: Measured | None
) -> tuple[CountMatrix, PoissonWeights | None]:
    """Return the counts without those of weight 0, and the weights, None if all are 1."""
    if data_weights is None:
        return counts, None
    weights = PoissonWeights(less_one_of(counts, data_weights))
    if not weights.less_one.nnz:
        return counts, None
    if measured is not None:
        raise ValueError(
            "data_weights cannot be combined with measured, nor with an outer join of files, which "
            "says what was measured: give weights of 0 there, too, and leave out measured "
            "(counts.measured = None)."
        )
    return weights.observed(counts), weights


def is_nan(data_weights: Any) -> bool:
    """Whether NaN in the counts are the missing entries; refuse any other text."""
    if isinstance(data_weights, str) and data_weights != "nan":
        raise ValueError(
            f"data_weights={data_weights!r}: give weights of entries, or 'nan' if missing entries "
            "of X are NaN."
        )
    return isinstance(data_weights, str)


def given_weights(counts: CountMatrix, data_weights: Any) -> Any:
    """Return the weights of entries, those of NaN if counts were read with them."""
    if not is_nan(data_weights):
        other = data_weights is not None and np.shape(data_weights)[1:] != counts.shape[1:]
        if other and counts.columns_taken is None and names_of(data_weights, 1) is None:
            raise _of_other_shape(np.shape(data_weights), counts.shape)
        return data_weights
    if counts.nan_entries is None:
        raise TypeError(
            "data_weights='nan' is for files and objects with NaN, and X is a "
            f"{type(counts).__name__}, which has none: pass what it was read from, or give a "
            "sparse matrix of bool that is true where an entry is missing."
        )
    return counts.nan_entries
