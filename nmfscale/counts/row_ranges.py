"""Ranges of rows of a table, as compressed sparse rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[Any]


class RowRange(NamedTuple):
    """Compressed sparse rows of a table, from row `first` on; `indptr` starts at 0."""

    first: int
    indptr: Array
    indices: Array
    data: Array

    def part(self, start: int, stop: int) -> RowRange:
        """Return views of rows start:stop, numbered from `first`."""
        low, high = self.indptr[start], self.indptr[stop]
        pointers = self.indptr[start : stop + 1] - low
        return RowRange(self.first + start, pointers, self.indices[low:high], self.data[low:high])

    def parts(self, n_entries: int) -> Iterator[RowRange]:
        """Yield parts of whole rows with about `n_entries` entries each."""
        return (self.part(*rows) for rows in row_chunks(self.indptr, n_entries))

    def matrix(self, n_columns: int) -> sp.csr_array:
        """Return these rows as a SciPy matrix."""
        shape = (len(self.indptr) - 1, n_columns)
        return sp.csr_array((self.data, self.indices, self.indptr), shape=shape)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.indptr.nbytes + self.indices.nbytes + self.data.nbytes


def row_chunks(indptr: Array, n_entries: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with about `n_entries` entries each."""
    cuts = np.searchsorted(indptr, np.arange(n_entries, int(indptr[-1]), n_entries))
    return pairwise(np.unique([0, *cuts.tolist(), len(indptr) - 1]).tolist())
