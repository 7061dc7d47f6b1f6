"""Features measured in each sample; unmeasured entries are not part of a likelihood.

Samples form groups, such as panels, and each group has its measured features. The row problem of a
sample of group g is the same as without groups, except that u holds the column sums of F over the
features of g; the problem of a feature has the column sums of L over the samples of the groups in
which it was measured. Nothing else changes, because all other terms involve nonzero counts only. So
there is a vector of K sums for each group, and no array with an entry for each sample and feature.

The kernels add a rate to the total of each row, as for a Gamma prior (Corollary 2). If rows have
different totals, the common total is 0, and the rate of each row is its own total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ...kernels import dense
from ..factors import LEAST, Array, aligned_copy


@dataclass(frozen=True)
class Measured:
    """Group number of each sample (n,), and a mask (G, m) of the features of each group."""

    groups: Array
    features: Array

    @classmethod
    def of(cls, counts: CountMatrix) -> Measured | None:
        """Return what counts say was measured in them, None if that is everything."""
        if counts.measured is None or counts.measured[0].all():
            return None
        features, groups = counts.measured
        return cls(groups, features)

    @classmethod
    def everything(cls, shape: tuple[int, int]) -> Measured:
        """Return the same for counts of which everything was measured."""
        return cls(np.zeros(shape[0], np.int64), np.ones((1, shape[1]), bool))

    @property
    def n_missing(self) -> int:
        """Number of entries that were not measured."""
        sizes = np.bincount(self.groups, minlength=len(self.features))
        return int(sizes @ np.count_nonzero(~self.features, axis=1))

    def same_entries(self, other: Measured | None) -> bool:
        """Whether the same entries were measured; None means all."""
        if other is None:
            return self.n_missing == 0
        pairs = np.unique(np.column_stack([self.groups, other.groups]), axis=0)
        return all(np.array_equal(self.features[g], other.features[h]) for g, h in pairs)

    def check(self, counts: CountMatrix) -> None:
        """Refuse counts at unmeasured entries."""
        for first, indptr, indices, _ in counts.chunks():
            last = first + len(indptr) - 1
            group = np.repeat(self.groups[first:last], np.diff(indptr))
            wrong = np.flatnonzero(~self.features[group, indices])
            if wrong.size:
                at = int(wrong[0])
                row = first + int(np.searchsorted(indptr, at, "right")) - 1
                sample = _name(row, counts.sample_names)
                raise ValueError(
                    f"X has a count in sample {sample} and feature "
                    f"{_name(int(indices[at]), counts.feature_names)}, which was not measured in "
                    "the panel of this sample, according to measured."
                )

    def clear(self, L: Array, F: Array) -> None:
        """Set loadings (n, K) to 0, in place, for topics without any measured feature in a sample.

        The likelihood does not depend on these loadings.
        """
        for g, features in enumerate(self.features):
            unknown = np.flatnonzero(~F[features].any(axis=0))
            if unknown.size:
                L[np.ix_(self.groups == g, unknown)] = 0

    def group_sums(self, F: Array) -> Array:
        """Return the column sums of F (m, K) over the features of each group, (G, K)."""
        return np.array([F[mask].sum(axis=0, dtype=np.float64) for mask in self.features])

    def sums(self, F: Array) -> Array:
        """Return the column sums of F (m, K) over the measured features of each sample, (n, K)."""
        sums: Array = self.group_sums(F)[self.groups]
        return sums

    def totals(self, rows: Array) -> Array:
        """Return the sums (m, K) of values (n, K) over the samples that measured each feature."""
        totals = np.zeros((self.features.shape[1], rows.shape[1]))
        for g, mask in enumerate(self.features):
            totals[mask] += rows[self.groups == g].sum(axis=0, dtype=np.float64)
        return totals

    def whole_totals(self, totals: Array, amounts: Array, frequencies: Array) -> Array:
        """Return the totals (n,) that samples would have if everything had been measured.

        The measured totals (n,) are divided by the share of the topics of a sample, in any amounts
        (n, K), that is in its measured features; `frequencies` (m, K) are divided by their sums.
        Samples whose topics have no measured feature have 0.
        """
        F = frequencies / np.maximum(frequencies.sum(axis=0), LEAST)
        inside, whole = (amounts * self.sums(F)).sum(axis=1), amounts.sum(axis=1)
        share = np.divide(inside, whole, out=np.zeros(len(amounts)), where=whole > 0)
        return np.divide(totals, share, out=np.zeros(len(amounts)), where=share > 0)

    def whole_feature_totals(self, totals: Array, amounts: Array, frequencies: Array) -> Array:
        """Return the totals (m,) that features would have if everything had been measured.

        Unmeasured entries add the counts that topics of these amounts (n, K) and frequencies
        (m, K) expect there.
        """
        whole = totals.astype(np.float64)
        for g, mask in enumerate(self.features):
            of_group = amounts[self.groups == g].sum(axis=0)
            whole[~mask] += (frequencies[~mask] * of_group).sum(axis=1)
        return whole

    def rows(self, rows: Any) -> Measured:
        """Return the selection for some of the samples."""
        return Measured(self.groups[rows], self.features)


def _name(number: int, names: Any) -> str:
    return str(number) if names is None else repr(str(names[number]))


def own_totals(totals: Array, prior: dict[str, Array]) -> dict[str, Array]:
    """Return the prior that adds row-specific totals (lanes, stride) to a common total of 0.

    `prior` has pseudo-counts and rates, or is empty.
    """
    if not prior:
        return {"pseudo": aligned_copy(np.zeros_like(totals)), "rate": aligned_copy(totals)}
    return {"pseudo": prior["pseudo"], "rate": aligned_copy(prior["rate"] + totals)}


def totals_of_groups(block: Block, totals: Array, dtype: Any) -> Array:
    """Return the totals for each lane of a block, from those of groups (G, stride)."""
    totals_of_rows: Array = totals.astype(dtype)[block["groups"].astype(np.intp)]
    return totals_of_rows


@dataclass(frozen=True)
class GroupSums(Step):
    """Sums the columns of L over each group of samples, weighted if samples have weights."""

    n_groups: int
    source: str = "L"

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and the groups and weights of samples."""
        return RowArrays((self.source, "groups", "weights"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        n, weights = block.n_rows, block.get("weights")
        L = block[self.source][:n].astype(np.float64)
        if weights is not None:
            L *= weights[:n, None]
        groups = block["groups"][:n].astype(np.int32)
        return {"sums": dense.sums_of_groups(L, groups, self.n_groups)}
