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
from .entries import columns_left, in_blocks, matrix_of, sums_left, weightless_columns
from .measured import SampleEfficiencies, SampleGroups, totals_of_groups

ENTRIES = "entries"
# Rows whose sums are computed at a time.
_PIECE = 1 << 12


@dataclass(frozen=True)
class PoissonWeights:
    """Weights minus one of entries, a CSR matrix (n, m) with sorted columns.

    A missing entry has -1. Expected counts may also have the efficiencies of groups of samples.
    """

    less_one: sp.csr_array
    efficiencies: SampleEfficiencies | None = None

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
        logs = 0.0 if self.efficiencies is None else self.efficiencies.log_weights(weighted)
        if self.only_zeros:
            return logs
        return logs + sums_of_rows(weighted, self.less_one, lambda x, w: x * log(w))

    def sums(self, F: Array) -> Array:
        """Return the weighted column sums of F (m, K) for each sample, (n, K)."""
        groups = e = None
        if self.efficiencies is not None:
            groups, e = self.efficiencies.groups, self.efficiencies.values.T
        return _sums_of_rows(self.less_one, F.astype(np.float64), groups, e)

    def of_groups(self, order: Array) -> Array | None:
        """Return the efficiencies (m, n_groups) of features in this order, if there are any."""
        e = self.efficiencies
        return None if e is None else e.values.T[order[: e.values.shape[1]]]

    def expected(self, L: Array, F: Array, n_groups: int) -> Array:
        """Return what the weights minus one add to sums of L F^T over groups, (n_groups, m)."""
        assert self.efficiencies is not None
        entries = self.less_one.tocoo()
        mu = dense.dots(L, entries.row.astype(np.int64), F, entries.col.astype(np.int64))
        group, m = self.efficiencies.groups[entries.row], len(F)
        sums = np.bincount(group * m + entries.col, entries.data * mu, n_groups * m)
        return sums.reshape(n_groups, m)

    def rows(self, rows: Any) -> PoissonWeights:
        """Return the weights of some of the samples."""
        e = None if self.efficiencies is None else self.efficiencies.rows(rows)
        return PoissonWeights(self.less_one[rows], e)

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
        entries: dict[str, Any] = {ENTRIES: in_blocks(observed.less_one, layout)}
        if observed.efficiencies is None:
            return entries
        return entries | row_inputs(observed.efficiencies, layout)
    return {"groups": per_lane(observed.groups, layout.row_order)}


def totals_of_rows(
    block: Block, total: Array, F: Array, n_features: int, n_lanes: int, e: Array | None = None
) -> Any:
    """Return the totals of each lane of a block (lanes, stride) in float64; None if all are equal.

    `total` is (stride,), or (n_groups, stride) if groups of rows have different measured features
    or efficiencies; F (lanes, stride) in lane order is needed if entries have weights, and then
    efficiencies `e` (m, n_groups) as well. Totals of rows without observed features are positive,
    so that no update divides by 0.
    """
    entries = block.get(ENTRIES)
    if entries is None:
        return None if total.ndim == 1 else totals_of_groups(block, total, np.float64)
    less_one = matrix_of(entries, entries["v"], (n_lanes, n_features))
    groups = None if e is None else block["groups"].astype(np.intp)
    return np.maximum(
        _sums_of_rows(less_one, F[:n_features].astype(np.float64), groups, e), LEAST
    )  # fmt: skip


def _sums_of_rows(
    less_one: sp.csr_array, F: Array, groups: Array | None = None, e: Array | None = None
) -> Array:
    """Return the weighted sums of F for each row, with efficiencies `e` (m, G) of its group."""
    if groups is None or e is None:
        total = np.broadcast_to(F.sum(axis=0), (less_one.shape[0], F.shape[1]))
        return sums_left(less_one, F, total)
    sums = np.empty((less_one.shape[0], F.shape[1]))
    for g in np.unique(groups):
        rows = np.flatnonzero(groups == g)
        sums[rows] = _sums_of_rows(less_one[rows], F * e[:, g, None])
    return sums


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


@dataclass(frozen=True)
class GroupSumsOfEntries(Step):
    """Sums the same of the samples of each group.

    `shape` is (n_groups, m, stride), with features in lane order.
    """

    shape: tuple[int, int, int]
    source: str = "L"

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, weights of entries and of samples, and groups."""
        return RowArrays((self.source, ENTRIES, "weights", "groups"))

    def empty_sums(self) -> Sums:
        """Return zeros."""
        return [np.zeros(self.shape)]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        n, weights, entries = block.n_rows, block.get("weights"), block[ENTRIES]
        L, groups = block[self.source][:n].astype(np.float64), block["groups"][:n]
        if weights is not None:
            L *= weights[:n, None]
        less_one = matrix_of(entries, entries["v"], (n, self.shape[1]))
        for g in np.unique(groups).astype(np.intp):
            rows = np.flatnonzero(groups == g)
            of_group = less_one[rows].T.tocsr()
            sums[0][g] += dense.of_sparse(of_group, L[rows], n_threads=n_threads)
        return {}


def weightless_in_groups(less_one: sp.csr_array, groups: Array, n_groups: int) -> Array:
    """Return a mask (n_groups, m) of columns with weight 0 in every row of a group."""
    return np.array([weightless_columns(less_one[groups == g]) for g in range(n_groups)])


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
