"""Counts in a dask array, whose row chunks are computed when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from ...counts.row_ranges import RowRange
from ...counts.structure import check_shape
from ...counts.validation import CompressedRows, canonical_rows, rows_of_matrix
from .stream import RowStream


def is_dask_array(X: Any) -> bool:
    """Whether an object is a dask array; does not import dask."""
    # views of AnnData objects use a subclass of dask's class
    kinds = (kind.__module__.partition(".")[0] for kind in type(X).__mro__)
    return "dask" in kinds and hasattr(X, "numblocks")


class DaskRows(RowStream):
    """Rows of a dask array whose chunks have all columns.

    One chunk is computed at a time, by dask's default scheduler or the active client; the last
    chunk is kept.
    """

    subject = "dask array"

    def __init__(
        self, array: Any, sample_names: Any = None, feature_names: Any = None, groups: Any = None,
        obs: Any = None,
    ) -> None:  # fmt: skip
        if array.ndim != 2:
            raise ValueError(f"Expected 2D array, got a dask array of shape {array.shape}.")
        if np.isnan(array.shape).any():
            raise ValueError(
                "X is a dask array whose chunks have unknown sizes: call X.compute_chunk_sizes() "
                "first."
            )
        if array.numblocks[1] > 1:
            raise ValueError(
                f"X is a dask array with {array.numblocks[1]} chunks of columns, but counts are "
                "read by rows: pass X.rechunk({1: -1})."
            )
        self.shape = int(array.shape[0]), int(array.shape[1])
        check_shape(self.shape)
        self.about = dict(
            sample_names=sample_names, feature_names=feature_names, groups=groups, obs=obs
        )
        self._array = array
        self._ends = np.cumsum([0, *array.chunks[0]])
        self._chunk: tuple[int, CompressedRows] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the chunk in memory."""
        return {**super().__getstate__(), "_chunk": None}

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        n_columns, fraction = self.shape[1], None
        parts = [sp.csr_array((0, n_columns), dtype=np.uint8)]  # the result for an empty range
        for i, (low, high) in enumerate(pairwise(self._ends.tolist())):
            if max(low, start) < min(high, stop):
                chunk = self._checked(i)
                fraction = fraction or chunk.first_fraction
                part = chunk.rows.part(max(start - low, 0), min(stop, high) - low)
                parts.append(part.matrix(n_columns))
        X = parts[-1] if len(parts) < 3 else sp.vstack(parts[1:], format="csr")
        rows = RowRange(start, X.indptr, X.indices, X.data)
        return CompressedRows(rows, (stop - start, n_columns), True, fraction, [])

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop, one chunk of the array at a time, whatever its size."""
        last = self.shape[0] if stop is None else stop
        for i, (low, high) in enumerate(pairwise(self._ends.tolist())):
            if start <= low < high <= last:
                yield self._checked(i)
            elif max(low, start) < min(high, last):
                yield self.rows(max(low, start), min(high, last))

    def _checked(self, i: int) -> CompressedRows:
        last = self._chunk
        if last is None or last[0] != i:
            last = self._chunk = None  # free it first: one chunk in memory, not two
            matrix = self._array.blocks[i].compute()
            start, stop = self._ends[i : i + 2].tolist()
            if np.shape(matrix) != (stop - start, self.shape[1]):
                raise ValueError(
                    f"Chunk {i} of the dask array has shape {np.shape(matrix)}, but the array "
                    f"declares {(stop - start, self.shape[1])}: pass chunks= to map_blocks."
                )
            names = self.entry_names()
            rows, shape = rows_of_matrix(matrix, names, start)
            last = self._chunk = i, canonical_rows(self.observed(rows), shape, names, sort=True)
        return last[1]  # not self._chunk: another thread may have replaced it
