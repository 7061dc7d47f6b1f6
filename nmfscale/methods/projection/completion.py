"""Document completion: loadings fitted to one part of the counts predict the other part.

Each count x is split in two: ``z ~ Binomial(x, share)`` is held out, x - z is seen.  For Poisson
counts both parts are independent (binomial thinning), so that loadings fitted to the seen counts do
not depend on the held-out counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...counts.base import CountMatrix
from ...counts.row_ranges import RowRange
from ...readers.streams.columns import select_columns
from ..factors import Array
from ..weights.poisson_weights import Observed
from .transform import log_mu_rows, row_sizes


def split_counts(rows: RowRange, n_columns: int, share: float, rng: Any) -> tuple[Any, Any]:
    """Split the counts of some rows into seen and held-out counts, two sparse matrices.

    Entries are drawn row by row and column by column, so that the split does not depend on where
    the counts are stored or on the size of chunks.
    """
    seen = rows.matrix(n_columns).sorted_indices()
    held = seen.copy()
    held.data = rng.binomial(seen.data.astype(np.int64), share)
    seen.data = seen.data - held.data
    seen.eliminate_zeros()
    held.eliminate_zeros()
    return seen, held


def log_shares(
    counts: CountMatrix, L: Array, F: Array, n_threads: int,
    measured: Observed | None = None, left_out: Array | None = None,
) -> Array:  # fmt: skip
    """Return ``sum_j x_ij log p_ij`` with ``p_ij = mu_ij / sum_j mu_ij``, mu = L F^T, (n,).

    The sums over j include only measured features, and none of a mask `left_out` (m,). Weights of
    entries and efficiencies multiply mu; counts are then weighted.
    """
    logs = 0.0 if measured is None else measured.log_weights(counts)
    L = L.astype(np.float64, copy=False)
    if left_out is not None and left_out.any():
        counts = select_columns(
            counts, np.where(left_out, -1, np.arange(len(F))), counts.feature_names
        )
        F = np.where(left_out[:, None], 0.0, F)
    u = F.sum(axis=0, dtype=np.float64) if measured is None else measured.sums(F)
    sizes = row_sizes(L, u)
    return logs + log_mu_rows(counts, L / sizes[:, None], F, n_threads=n_threads)
