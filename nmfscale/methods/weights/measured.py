"""Features measured in each sample; unmeasured entries are not part of a likelihood.

Samples form groups, such as batches, and each group has its measured features. The row problem of a
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
from ..factors import Array, Factor, aligned_copy


@dataclass(frozen=True)
class Measured:
    """Group number of each sample (n,), and a mask (G, m) of the features of each group."""

    groups: Array
    features: Array

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
                    "the batch of this sample, according to measured."
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

    n_components: int
    n_groups: int
    source: str = "L"

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and the groups and weights of samples."""
        return RowArrays((self.source, "groups", "weights"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        rows = Factor(block[self.source], block.n_rows, self.n_components)
        groups, weights = block["groups"], block.get("weights")
        weights = np.ones(len(groups)) if weights is None else weights
        of_groups = [rows.column_sums(weights * (groups == g)) for g in range(self.n_groups)]
        return {"sums": np.array(of_groups)}
