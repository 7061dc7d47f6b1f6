"""Selections of the columns of counts, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ...counts.base import CountMatrix
from ...counts.row_ranges import RowRange
from ...counts.warn import warn_caller
from .derived import DerivedRows

# A warning names left-out features if they have more than this share of the counts, and shows
# this many names.
_FEW = 0.01
_NAMED = 3


def select_columns(counts: CountMatrix, columns: Any, names: Any = None) -> CountMatrix:
    """Return counts whose column j is column ``columns[j]`` of the given counts.

    If that is -1, column j has no counts; `names` of all columns are then needed if the counts have
    names. The result is in memory if the given counts are; otherwise it reads them block by block.
    """
    selection = SelectedColumns(counts, columns, names).counts()
    selection.columns_taken = columns
    return selection


def leave_out(counts: CountMatrix, columns: Any, reason: str) -> CountMatrix:
    """Return counts in which the columns of a mask (m,) are empty.

    A warning says what was left out and why, unless that is less than 1 % of the counts: held-out
    texts always have some new words.
    """
    left_out = np.flatnonzero(columns & (counts.column_nnz > 0))
    if not left_out.size:
        return counts
    total = float(counts.column_totals[left_out].sum())
    if total > _FEW * counts.total:
        names = left_out if counts.feature_names is None else counts.feature_names[left_out]
        some = ", ".join(repr(str(name)) for name in names[:_NAMED].tolist())
        what = f"{total:,.0f} counts" if counts.is_integer else f"counts that sum to {total:,.6g}"
        warn_caller(
            f"X has {what} in {len(left_out):,} feature{'s' if len(left_out) > 1 else ''} "
            f"{reason}, such as {some}: these counts are left out."
        )
    selected = np.arange(counts.shape[1])
    selected[left_out] = -1
    selection = select_columns(counts, selected, counts.feature_names)
    selection.columns_taken = counts.columns_taken
    return selection


class SelectedColumns(DerivedRows):
    """Rows of counts, in memory or in files, with a selection of the columns."""

    def __init__(self, counts: CountMatrix, columns: Any, names: Any = None):
        columns = np.asarray(columns)
        super().__init__(counts, len(columns), counts._described(columns=columns))
        self._filled = np.flatnonzero(columns >= 0)
        self._columns = columns[self._filled]
        if names is not None:
            self.about["feature_names"] = names

    def _derived(self, rows: RowRange) -> Any:
        matrix = rows.matrix(self._counts.shape[1])[:, self._columns]
        if len(self._filled) == self.shape[1]:
            return matrix
        indices = self._filled.astype(matrix.indices.dtype)[matrix.indices]
        return sp.csr_array((matrix.data, indices, matrix.indptr), (matrix.shape[0], self.shape[1]))
