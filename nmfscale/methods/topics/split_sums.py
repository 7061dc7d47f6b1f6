"""Statistics of columns that are split by a label of the rows, such as their unit or batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.sell import LANES, SellBlock
from ...counts.split_columns import split_columns
from ..factors import aligned_copy, rows_of_sums
from ..slices import sliced_counts

Array = NDArray[Any]


def split_sums(
    counts: SellBlock, L: Array, F: Array, labels: Array, n_labels: int, n_components: int, *,
    wanted: int, n_threads: int,
) -> Array:  # fmt: skip
    """Return what the kernel `sums` computes for each pair of a column and a label.

    `counts` are columns in lanes, L (n_rows, stride) and F (lanes, stride) factors, `labels`
    (n_rows,) numbers from 0. The result (lanes, n_labels, size) has the statistics `wanted`.
    """
    parts, order = split_columns(counts, labels, n_labels, n_threads)
    start, n_slices = aligned_copy(F[order // n_labels]), len(order) // LANES
    size = kernels.statistics_size(n_components, wanted)
    sums = np.zeros((n_slices, size, LANES))
    kernels.sums(
        sliced_counts(parts, len(L)), kernels.RowProblem(L, np.zeros(L.shape[1]), n_components),
        start, sums, wanted=wanted, first=0, last=n_slices, n_threads=n_threads,
    )  # fmt: skip
    out = np.empty((len(order), size))
    out[order] = rows_of_sums(sums, len(order))
    return out.reshape(len(F), n_labels, size)
