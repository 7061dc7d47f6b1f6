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

from ...counts.aligned import aligned_copy, aligned_zeros
from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ...kernels import dense
from ...kernels.functions import log
from ..factors import LEAST, Array


class SampleGroups:
    """Sums of factors that differ between groups of samples, and not within them."""

    groups: Array

    @property
    def values(self) -> Array:
        """What the factors of each feature are multiplied by in each group, (G, m)."""
        raise NotImplementedError

    def group_sums(self, F: Array) -> Array:
        """Return the sums (G, K) of F (m, K) over the features, times the values of each group."""
        raise NotImplementedError

    def sums(self, F: Array) -> Array:
        """Return these sums for each sample, (n, K)."""
        sums: Array = self.group_sums(F)[self.groups]
        return sums

    def rows(self, rows: Any) -> SampleGroups:
        """Return the selection for some of the samples."""
        raise NotImplementedError

    def weighted(self, counts: CountMatrix) -> CountMatrix:
        """Return the counts: kernels take them as they are."""
        return counts

    def log_weights(self, counts: CountMatrix) -> Array | float:
        """Return the sums of x log v over each sample (n,), v the value of a count x; or 0."""
        return 0.0

    def whole_totals(self, totals: Array, amounts: Array, frequencies: Array) -> Array:
        """Return the totals (n,) that samples would have if all values were 1.

        The totals (n,) are divided by the share of the topics of a sample, in any amounts (n, K),
        that is seen with its values; `frequencies` (m, K) are divided by their sums. Samples whose
        topics have no feature with a value above 0 have 0.
        """
        F = frequencies / np.maximum(frequencies.sum(axis=0), LEAST)
        inside, whole = (amounts * self.sums(F)).sum(axis=1), amounts.sum(axis=1)
        share = np.divide(inside, whole, out=np.zeros(len(amounts)), where=whole > 0)
        return np.divide(totals, share, out=np.zeros(len(amounts)), where=share > 0)


@dataclass(frozen=True)
class SampleEfficiencies(SampleGroups):
    """Group number of each sample (n,), and efficiencies (G, m) of features in each group."""

    groups: Array
    efficiencies: Array

    @property
    def values(self) -> Array:
        """The efficiencies."""
        return self.efficiencies

    def group_sums(self, F: Array) -> Array:
        """Return the sums (G, K) of F (m, K) times the efficiencies of each group."""
        return dense.product(self.efficiencies, F.astype(np.float64))

    def log_weights(self, counts: CountMatrix) -> Array | float:
        """Return the sums of x log e over each sample (n,)."""
        # a count of a feature that its batch lacked in the fit, without a prior, is impossible
        logs, sums = log(np.maximum(self.efficiencies, LEAST)), np.zeros(counts.shape[0])
        for first, indptr, indices, data in counts.chunks():
            row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            terms = data * logs[self.groups[first + row], indices]
            sums[first : first + len(indptr) - 1] = np.bincount(row, terms, len(indptr) - 1)
        return sums

    def rows(self, rows: Any) -> SampleEfficiencies:
        """Return the selection for some of the samples."""
        return SampleEfficiencies(self.groups[rows], self.efficiencies)


@dataclass(frozen=True)
class Measured(SampleGroups):
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

    @property
    def values(self) -> Array:
        """The masks."""
        return self.features

    def group_sums(self, F: Array) -> Array:
        """Return the column sums (G, K) of F (m, K) over the features of each group."""
        return np.array([F[mask].sum(axis=0, dtype=np.float64) for mask in self.features])

    def totals(self, rows: Array) -> Array:
        """Return the sums (m, K) of values (n, K) over the samples that measured each feature."""
        totals = np.zeros((self.features.shape[1], rows.shape[1]))
        for g, mask in enumerate(self.features):
            totals[mask] += rows[self.groups == g].sum(axis=0, dtype=np.float64)
        return totals

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


def own_totals(totals: Array, prior: dict[str, Array], dtype: Any) -> dict[str, Array]:
    """Return the prior that adds row-specific totals (lanes, stride) to a common total of 0.

    `prior` has pseudo-counts and rates, or is empty. Arrays of the result have the type `dtype`.
    """
    if not prior:
        rate = aligned_copy(totals, dtype)
        return {"pseudo": aligned_zeros(totals.shape, dtype), "rate": rate}
    rate = aligned_copy(prior["rate"] + totals.astype(dtype))
    return {"pseudo": prior["pseudo"], "rate": rate}


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
