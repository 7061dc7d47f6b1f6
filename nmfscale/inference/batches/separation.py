"""Which topics are in one batch only, and what is then known of the frequencies of their features.

A topic k with expected counts A_bk in batch b, and frequencies f_kj, tells of the efficiency of
feature j in b by comparison of b with the other batches: of C counts in b and D elsewhere the
information on the logarithm of their ratio is ``C D / (C + D)``. Over topics, it is
``I_bj = sum_k f_kj A_bk (1 - A_bk / A_k)``, to which the prior, Gamma(a, a), adds a. A topic that
is only in b tells nothing: its frequencies times the efficiencies are what was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.functions import log
from ...methods.factors import LEAST, proportions
from ...methods.weights.measured import Measured

Array = NDArray[Any]


def sums_of_batches(rows: Array, batches: Array, n_batches: int) -> Array:
    """Return the sums (B, K) of the rows (n, K) of each batch."""
    sums: Array = dense.sums_of_groups(rows, batches.astype(np.int32), n_batches)
    return sums


def concentrations(means: Array, amounts: Array) -> tuple[Array, Array]:
    """Return the batch (K,) in which each topic is heaviest, and the share (K,) that is there.

    The share is the smaller one of that of the expected counts (B, K), which large batches have
    more of, and that of the mean proportions (B, K), which small batches may have more of.
    """
    of_means, of_counts = (
        table / np.maximum(table.sum(axis=0), LEAST) for table in (means, amounts)
    )
    smaller = np.minimum(of_means, of_counts)
    return smaller.argmax(axis=0), smaller.max(axis=0)


@dataclass(frozen=True)
class Expected:
    """Expected counts of topics and of features in batches, by a fit with efficiencies.

    `amounts` (B, K) are those of topics and `counts` (B, m) those of features, if all efficiencies
    were 1; `frequencies` (K, m) are the rows of F, divided by their sums. `counts` and
    `efficiencies` (B, m) of features that were not measured in a batch are 0.
    """

    amounts: Array
    counts: Array
    frequencies: Array
    efficiencies: Array
    shape: float

    @classmethod
    def of(
        cls, rows: Array, batches: Array, components: Array, efficiencies: Array, shape: float,
        measured: Measured,
    ) -> Expected:  # fmt: skip
        """Return them, given expected counts (n, K) of topics in samples, and batches (n,)."""
        B, frequencies = len(efficiencies), proportions(components)
        pairs = np.stack([batches, measured.groups])
        (batch, panel), group = np.unique(pairs, axis=1, return_inverse=True)
        there = measured.features[panel].astype(np.float64)
        amounts = sums_of_batches(rows, group.reshape(-1), len(batch))
        counts = sums_of_batches(dense.product(amounts, frequencies) * there, batch, B)
        known = sums_of_batches(there, batch, B) > 0
        return cls(
            sums_of_batches(amounts, batch, B), counts, frequencies,
            np.where(known, efficiencies, 0.0), shape,
        )  # fmt: skip

    @property
    def spread(self) -> Array:
        """Root mean square (B,) of the logarithms of efficiencies, weighted by expected counts."""
        logs = log(np.where(self.efficiencies > 0, self.efficiencies, 1.0))
        sums = np.maximum(self.counts.sum(axis=1), LEAST)
        spread: Array = np.sqrt((self.counts * logs * logs).sum(axis=1) / sums)
        return spread

    def uncertainty(self, homes: Array) -> Array:
        """Return the standard error (K,) of log efficiencies where each topic is heaviest.

        It is a root mean square over features, weighted by their frequencies in the topic.
        """
        if np.isinf(self.shape):
            return np.zeros(len(homes))
        elsewhere = 1 - self.amounts / np.maximum(self.amounts.sum(axis=0), LEAST)
        information = dense.product(self.amounts * elsewhere, self.frequencies)
        variances = 1 / (max(self.shape, 1.0) + information)
        errors: Array = np.sqrt((self.frequencies * variances[homes]).sum(axis=1))
        return errors

    @property
    def of_prior(self) -> Array:
        """Weight (B,) of the prior in efficiencies, the mean over the counts of all batches."""
        if np.isinf(self.shape):
            return np.ones(len(self.amounts))
        if self.shape == 0:
            return np.zeros(len(self.amounts))
        overall = self.counts.sum(axis=0)
        weights: Array = self.shape / (self.shape + self.counts)
        return (weights * overall).sum(axis=1) / max(float(overall.sum()), LEAST)
