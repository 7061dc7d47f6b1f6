"""Single entries that were not observed; they are not part of a likelihood.

The row problem of a sample is the same as without missing entries, except that u holds the column
sums of F over the features that were observed in it; that of a feature has the column sums of L
over the samples in which it was observed. Nothing else changes, because counts at missing entries
are left out. These sums are those over all rows minus those over missing entries: see `entries`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..engine.protocol import Block, RowArrays, Step, Sums, Values
from ..kernels import dense
from .entries import columns_left, in_blocks, matrix_of, sums_left
from .factors import LEAST, Array, per_lane
from .measured import Measured, totals_of_groups

ENTRIES = "entries"
# Rows whose sums are computed at a time.
_PIECE = 1 << 12


@dataclass(frozen=True)
class Missing:
    """Missing entries: a sparse matrix (n, m) with -1 at each of them, their weights minus one."""

    less_one: sp.csr_array

    def sums(self, F: Array) -> Array:
        """Return the column sums of F (m, K) over the observed features of each sample, (n, K)."""
        return _sums_of_rows(self.less_one, F.astype(np.float64))

    def rows(self, rows: Any) -> Missing:
        """Return the missing entries of some of the samples."""
        return Missing(self.less_one[rows])

    def clear(self, L: Array, F: Array) -> None:
        """Set loadings (n, K) to 0, in place, for topics without an observed feature in a sample.

        The likelihood does not depend on these loadings.
        """
        for first in range(0, len(L), _PIECE):
            here = slice(first, first + _PIECE)
            L[here][self.rows(here).sums(F) == 0] = 0


def row_inputs(observed: Measured | Missing, layout: Any) -> dict[str, Any]:
    """Return the row arrays that say what was observed in the samples."""
    if isinstance(observed, Missing):
        return {ENTRIES: in_blocks(observed.less_one, layout)}
    return {"groups": per_lane(observed.groups, layout.row_order)}


def totals_of_rows(block: Block, total: Array, F: Array, n_features: int, n_lanes: int) -> Any:
    """Return the totals of each lane of a block (lanes, stride) in float64; None if all are equal.

    `total` is (stride,), or (n_groups, stride) if groups of rows have different measured features;
    F (lanes, stride) in lane order is needed if entries are missing. Totals of rows without
    observed features are positive, so that no update divides by 0.
    """
    if total.ndim == 2:
        return totals_of_groups(block, total, np.float64)
    found = block.get(ENTRIES)
    if found is None:
        return None
    missing = matrix_of(found, found["v"], (n_lanes, n_features))
    return np.maximum(_sums_of_rows(missing, F[:n_features].astype(np.float64)), LEAST)


def _sums_of_rows(less_one: sp.csr_array, F: Array) -> Array:
    total = np.broadcast_to(F.sum(axis=0), (less_one.shape[0], F.shape[1]))
    return sums_left(less_one, F, total)


@dataclass(frozen=True)
class MissingSums(Step):
    """Sums minus the rows of L over the missing entries of each feature, weighted by sample.

    `shape` is that of F in lane order, whose first `n_features` lanes are rows.
    """

    shape: tuple[int, int]
    n_features: int
    source: str = "L"

    @property
    def arrays(self) -> RowArrays:
        """Names of the row arrays that the step uses."""
        return RowArrays((self.source, ENTRIES, "weights"))

    def empty_sums(self) -> Sums:
        """Return a zero array in the shape of F."""
        return [np.zeros(self.shape)]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        L, weights = block[self.source][: block.n_rows].astype(np.float64), block.get("weights")
        if weights is not None:
            L *= weights[: block.n_rows, None]
        found = block[ENTRIES]
        missing = matrix_of(found, found["v"], (len(L), self.n_features))
        sums[0][: self.n_features] += dense.of_sparse(missing.T.tocsr(), L, n_threads=n_threads)
        return {}


def totals_of_columns(
    total: Array, less: Array, missing: sp.csr_array, order: Array, never: Array
) -> Array:
    """Return the column sums of L over the samples in which each feature was observed.

    `total` (stride,) is over all samples, `less` the result of `MissingSums`, and `order` that of
    the features in `less`. A feature that was observed nowhere has `never`.
    """
    n, m = missing.shape
    of_no_sample = np.bincount(missing.indices, minlength=m)[order[:m]] == n
    all_of = np.broadcast_to(total, less.shape)
    found = columns_left(all_of, less, np.zeros(len(less), bool))
    found[:m][of_no_sample] = never
    return found
