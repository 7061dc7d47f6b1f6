"""Weights of single entries in the likelihood of a Poisson NMF, such as 0 for missing ones.

The log-likelihood is ``sum_ij w_ij (x_ij log mu_ij - mu_ij - log x_ij!)``. The row problem of a
sample is that of the counts w x, except that u holds the sums of F over the features, each times
its weight in this sample; that of a feature has weighted sums of L. These sums are those over all
rows, plus those of the weights minus one: see `entries`. Only the constant needs the counts x
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ...kernels import dense
from ...kernels.functions import log, log_gamma, xlogy
from ...readers.streams.weighted import sums_of_rows, weighted_counts
from ..factors import LEAST, Array, per_lane
from .entries import columns_left, in_blocks, matrix_of, sums_left
from .measured import SampleGroups, totals_of_groups

ENTRIES = "entries"
# Rows whose sums are computed at a time.
_PIECE = 1 << 12


@dataclass(frozen=True)
class PoissonWeights:
    """Weights minus one of entries, a CSR matrix (n, m) with sorted columns.

    A missing entry has -1.
    """

    less_one: sp.csr_array

    @property
    def only_zeros(self) -> bool:
        """Whether all weights are 0 or 1."""
        return bool((self.less_one.data == -1).all())

    def observed(self, counts: CountMatrix) -> CountMatrix:
        """Return counts without those of weight 0."""
        zeros = self.less_one.copy()
        zeros.data = np.where(zeros.data == -1, -1.0, 0.0)
        zeros.eliminate_zeros()
        return weighted_counts(counts, zeros) if zeros.nnz else counts

    def weighted(self, observed: CountMatrix) -> CountMatrix:
        """Return the result of `observed` times the weights."""
        return observed if self.only_zeros else weighted_counts(observed, self.less_one)

    def constants(self, observed: CountMatrix) -> tuple[Array, Array] | None:
        """Return sums of w log x! and of w x log x over each sample (n,), from `observed` counts.

        None if they are those of the counts.
        """
        if self.only_zeros:
            return None
        of_logs = sums_of_rows(observed, self.less_one, lambda x, w: w * log_gamma(x + 1))
        return of_logs, sums_of_rows(observed, self.less_one, lambda x, w: w * xlogy(x, x))

    def log_weights(self, weighted: CountMatrix) -> Array | float:
        """Return sums of w x log w over each sample (n,), from `weighted` counts."""
        if self.only_zeros:
            return 0.0
        return sums_of_rows(weighted, self.less_one, lambda x, w: x * log(w))

    def sums(self, F: Array) -> Array:
        """Return the weighted column sums of F (m, K) for each sample, (n, K)."""
        return _sums_of_rows(self.less_one, F.astype(np.float64))

    def rows(self, rows: Any) -> PoissonWeights:
        """Return the weights of some of the samples."""
        return PoissonWeights(self.less_one[rows])

    def clear(self, L: Array, F: Array) -> None:
        """Set loadings (n, K) to 0, in place, for topics without an observed feature in a sample.

        The likelihood does not depend on these loadings.
        """
        for first in range(0, len(L), _PIECE):
            here = slice(first, first + _PIECE)
            L[here][self.rows(here).sums(F) == 0] = 0


# What is known of the entries of samples: values of groups of samples, or weights of entries.
Observed: TypeAlias = SampleGroups | PoissonWeights


def row_inputs(observed: Observed, layout: Any) -> dict[str, Any]:
    """Return the row arrays that say what was observed in the samples."""
    if isinstance(observed, PoissonWeights):
        return {ENTRIES: in_blocks(observed.less_one, layout)}
    return {"groups": per_lane(observed.groups, layout.row_order)}


def totals_of_rows(block: Block, total: Array, F: Array, n_features: int, n_lanes: int) -> Any:
    """Return the totals of each lane of a block (lanes, stride) in float64; None if all are equal.

    `total` is (stride,), or (n_groups, stride) if groups of rows have different measured features;
    F (lanes, stride) in lane order is needed if entries have weights. Totals of rows without
    observed features are positive, so that no update divides by 0.
    """
    if total.ndim == 2:
        return totals_of_groups(block, total, np.float64)
    entries = block.get(ENTRIES)
    if entries is None:
        return None
    less_one = matrix_of(entries, entries["v"], (n_lanes, n_features))
    return np.maximum(_sums_of_rows(less_one, F[:n_features].astype(np.float64)), LEAST)


def _sums_of_rows(less_one: sp.csr_array, F: Array) -> Array:
    total = np.broadcast_to(F.sum(axis=0), (less_one.shape[0], F.shape[1]))
    return sums_left(less_one, F, total)


@dataclass(frozen=True)
class SumsOfEntries(Step):
    """Sums the rows of L times the weights minus one of each feature, and those of samples.

    `shape` is that of F in lane order, whose first `n_features` lanes are rows.
    """

    shape: tuple[int, int]
    n_features: int
    source: str = "L"

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, weights of entries and of samples."""
        return RowArrays((self.source, ENTRIES, "weights"))

    def empty_sums(self) -> Sums:
        """Return a zero array in the shape of F."""
        return [np.zeros(self.shape)]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        L, weights = block[self.source][: block.n_rows].astype(np.float64), block.get("weights")
        if weights is not None:
            L *= weights[: block.n_rows, None]
        entries = block[ENTRIES]
        less_one = matrix_of(entries, entries["v"], (len(L), self.n_features))
        sums[0][: self.n_features] += dense.of_sparse(less_one.T.tocsr(), L, n_threads=n_threads)
        return {}


def totals_of_columns(
    total: Array, corrections: Array, weightless: Array, order: Array, never: Array
) -> Array:
    """Return the weighted column sums of L for each feature.

    `total` (stride,) is that with weights of 1, `corrections` the result of `SumsOfEntries`, and
    `order` that of the features in it. A feature in the mask `weightless` (m,) has `never`.
    """
    all_of = np.broadcast_to(total, corrections.shape)
    sums = columns_left(all_of, corrections, np.zeros(len(corrections), bool))
    sums[: len(weightless)][weightless[order[: len(weightless)]]] = never
    return sums
