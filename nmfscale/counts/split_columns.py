"""Columns of counts split by a label of the rows, each part as a column of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from ._sell import place_rows
from .sell import LANES, SellBlock, empty_block, offsets_of

Array = NDArray[Any]


def split_columns(
    columns: SellBlock, labels: Array, n_labels: int, n_threads: int
) -> tuple[SellBlock, NDArray[np.int64]]:
    """Return slices with a column for each pair of a column and a label of rows.

    `labels` (lanes,) are those of the rows, from 0. The second result (lanes,) is the pair in each
    lane, ``column * n_labels + label``. Entries of a column are in the order of the lanes of their
    rows, and pieces of large counts are put together.
    """
    n_lanes = LANES * (len(columns.offset) - 1)
    values, index = columns.count.reshape(-1, LANES), columns.index.reshape(-1, LANES)
    slices = np.repeat(np.arange(n_lanes // LANES), np.diff(columns.offset))
    entry, lane = np.nonzero(values)
    rows = index[entry, lane].astype(np.int64)
    pair = (slices[entry] * LANES + lane) * n_labels + labels[rows].astype(np.int64)
    parts = coo_array(
        (values[entry, lane].astype(np.float64), (pair, rows)),
        (n_lanes * n_labels, columns.n_others),
    ).tocsr()
    length = np.diff(parts.indptr).astype(np.int64)
    order = np.argsort(-length, kind="stable")  # the number of lanes is a multiple of 16
    out = empty_block(offsets_of(length[order], len(order)), columns.n_others, np.dtype(np.float64))
    place_rows(
        parts.indptr.astype(np.int64), parts.indices.astype(np.int32), parts.data, order,
        np.arange(columns.n_others, dtype=np.int32), out.offset, out.index, out.count, n_threads,
    )  # fmt: skip
    return out, order
