"""Chosen rows and columns of tables in files; only the chosen entries are checked."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.label_table import rows_of
from ...counts.row_ranges import RowRange
from ...counts.structure import index_type
from .masks import described
from .sources import OpenedTable, RowReader

Array = NDArray[Any]
# Rows that are not chosen are read, too, if there are at most so many between two chosen ones: a
# read of neighbouring rows costs less than two reads.
_GAP = 64


def chosen_part(table: OpenedTable, options: dict[str, Any]) -> OpenedTable:
    """Return a table with the names, samples and features that options choose."""
    if not options:
        return table
    subset = described(
        options, table.shape, str(table.path), sample_names=table.sample_names,
        feature_names=table.feature_names, obs=table.obs, var=table.var,
    )  # fmt: skip
    columns, source, obs = table.columns, table.source, table.obs
    if subset.columns is not None:
        columns = subset.columns if columns is None else columns[subset.columns]
    if subset.rows is not None:
        source = ChosenRows(source, subset.rows)
        obs = None if obs is None else partial(rows_of, obs, subset.rows)
    return table._replace(
        source=source, columns=columns, obs=obs, var=None, groups=subset.of_rows(table.groups),
        **subset.about(),
    )  # fmt: skip


class ChosenRows:
    """Some rows of a table, `rows` (n,) in rising order, numbered from 0."""

    def __init__(self, source: RowReader, rows: Array) -> None:
        self._source, self._rows = source, rows
        self.shape = len(rows), source.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype of the values."""
        return self._source.dtype

    def _runs(self, start: int, stop: int) -> list[Array]:
        """Return the numbers of rows start:stop in the table, in runs that are read together."""
        rows = self._rows[start:stop]
        return np.split(rows, np.flatnonzero(np.diff(rows) > _GAP) + 1)

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of entries of each row, or an upper bound, (stop - start,)."""
        counts = [
            self._source.entry_counts(int(run[0]), int(run[-1]) + 1)[run - run[0]]
            for run in self._runs(start, stop)
            if run.size
        ]
        return np.concatenate([np.zeros(0, np.int64), *counts])

    def read(self, start: int, stop: int) -> RowRange:
        """Return rows start:stop."""
        parts = [self._read_run(run) for run in self._runs(start, stop) if run.size]
        lengths = [np.diff(part.indptr) for part in parts]
        indptr = np.concatenate(([0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]))))
        empty = np.empty(0, index_type(self.shape[1])), np.empty(0, self.dtype)
        indices, data = (
            np.concatenate([getattr(part, name) for part in parts] or [none])
            for name, none in zip(("indices", "data"), empty, strict=True)
        )
        return RowRange(start, indptr.astype(index_type(data.size), copy=False), indices, data)

    def _read_run(self, run: Array) -> RowRange:
        first, last = int(run[0]), int(run[-1]) + 1
        rows = self._source.read(first, last)
        if len(run) == last - first:
            return rows
        matrix = rows.matrix(self.shape[1])[run - first]
        return RowRange(0, matrix.indptr, matrix.indices, matrix.data)

    def close(self) -> None:
        """Close files."""
        self._source.close()
