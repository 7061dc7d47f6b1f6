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
    (n_rows,) numbers from 0. F may differ between labels, (lanes, n_labels, stride). The result
    (lanes, n_labels, size) has the statistics `wanted`.
    """
    parts, order = split_columns(counts, labels, n_labels, n_threads)
    of_parts = F[order // n_labels] if F.ndim == 2 else F.reshape(-1, F.shape[2])[order]
    sums = part_sums(parts, L, of_parts, n_components, wanted=wanted, n_threads=n_threads)
    out = np.empty_like(sums)
    out[order] = sums
    return out.reshape(len(F), n_labels, -1)


def part_sums(
    parts: SellBlock, L: Array, F: Array, n_components: int, *, wanted: int, n_threads: int
) -> Array:
    """Return the statistics (lanes, size) of parts of columns, with factors F (lanes, stride)."""
    n_slices, size = len(F) // LANES, kernels.statistics_size(n_components, wanted)
    sums = np.zeros((n_slices, size, LANES))
    kernels.sums(
        sliced_counts(parts, len(L)), kernels.RowProblem(L, np.zeros(L.shape[1]), n_components),
        aligned_copy(F), sums, wanted=wanted, first=0, last=n_slices, n_threads=n_threads,
    )  # fmt: skip
    return rows_of_sums(sums, len(F))


def matrices(packed: Array, n_components: int) -> Array:
    """Return symmetric matrices (n, K, K) of the statistics SUM_FULL (n, K (K + 1) / 2)."""
    out = np.empty((len(packed), n_components, n_components))
    first, second = np.tril_indices(n_components)
    out[:, first, second] = out[:, second, first] = packed
    return out
