"""NaN in counts: missing entries, which readers leave out and whose places they remember."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .row_ranges import RowRange

Array = NDArray[Any]


class NanEntries:
    """Places of NaN in a table whose rows are read in ranges, once or several times."""

    def __init__(self) -> None:
        self._found: list[tuple[Array, Array]] = []
        self._known = False

    def leave_out(self, rows: RowRange) -> RowRange:
        """Return rows without their NaN, whose places are noted."""
        if rows.data.dtype.kind != "f" or not (lost := np.isnan(rows.data)).any():
            return rows
        keep = ~lost
        if not self._known:
            row = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
            self._found.append((rows.first + row[lost], rows.indices[lost]))
        indptr = np.concatenate(([0], np.cumsum(keep)))[rows.indptr].astype(rows.indptr.dtype)
        return RowRange(rows.first, indptr, rows.indices[keep], rows.data[keep])

    def matrix(self, shape: tuple[int, int]) -> sp.csr_array:
        """Return a mask (n, m) of NaN, once all rows were read; later reads only leave them out."""
        none = np.zeros(0, np.int64), np.zeros(0, np.int64)
        places = [np.concatenate(parts) for parts in zip(none, *self._found, strict=True)]
        self._found, self._known = [], True
        mask = sp.csr_array((np.ones(len(places[0]), bool), tuple(places)), shape)
        mask.data[:] = True  # duplicates were added up
        return mask
