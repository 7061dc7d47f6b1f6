"""Expected counts of topics by unit: the counts of each unit, split among topics.

With Poisson counts ``x_ij = sum_k z_ijk``, ``z_ijk ~ Poisson(l_ik f_jk)``, the expectation of a
part given the whole is ``E[z_ijk] = x_ij l_ik f_jk / mu_ij``, ``mu_ij = sum_k l_ik f_jk``. The sums
over the samples of a unit are ``f_jk sum_i l_ik x_ij / mu_ij``: statistics of an EM step of F, for
which each pair of a feature and a unit is a column of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.panels import panel_slices
from ...counts.sell import LANES, SellBlock, lanes_of
from ...counts.split_columns import split_columns
from ...engine.protocol import ColumnStep, Needs, Panel
from ..factors import aligned_copy, rows_of_sums
from ..slices import sliced_counts

Array = NDArray[Any]
# Least proportion and least frequency, so that every count has a positive mean.
LEAST = 1e-14
# Entries that are sorted by unit at a time, and bytes for each of them.
_ENTRIES, _ENTRY_BYTES = 1 << 20, 64
# Copies of the proportions, and of the result, that exist at a time.
_COPIES, _RESULTS = 3, 3


@dataclass(frozen=True)
class SumUnits(ColumnStep):
    """Sums the expected counts of the topics over the samples of each unit.

    Row arrays: ``proportions`` (lanes, stride) of the topics, and ``units`` (lanes,), the number of
    the unit of each sample. F (lanes, stride) has frequencies of the features in lane order. The
    result is ``expected`` (lanes, n_units, K).
    """

    F: Array
    n_components: int
    n_units: int

    shared = ("F",)
    uses = ("proportions", "units")

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Sum the counts of a panel, some slices at a time."""
        out = np.zeros((len(self.F[panel.lanes]), self.n_units, self.n_components))
        # the arrays of a slice, in entries of the same size
        beside = 3 * self.n_units * self.F.shape[1] * 8 // _ENTRY_BYTES
        for part in panel_slices(np.diff(panel.counts.offset) + beside, _ENTRIES):
            here = lanes_of(part)
            F = self.F[panel.lanes][here]
            out[here] = self._sums(panel.counts.slices(part), F, panel.arrays, n_threads)
        return {"expected": out}

    def _sums(self, counts: SellBlock, F: Array, arrays: dict[str, Array], n_threads: int) -> Array:
        """Return the sums (lanes, n_units, K) of some slices."""
        K, L = self.n_components, arrays["proportions"]
        parts, order = split_columns(counts, arrays["units"], self.n_units, n_threads)
        start, n_slices = aligned_copy(F[order // self.n_units]), len(order) // LANES
        sums = np.zeros((n_slices, kernels.statistics_size(K, kernels.SUM_GRADIENT), LANES))
        kernels.sums(
            sliced_counts(parts, len(L)), kernels.RowProblem(L, np.zeros(L.shape[1]), K), start,
            sums, wanted=kernels.SUM_GRADIENT, first=0, last=n_slices, n_threads=n_threads,
        )  # fmt: skip
        out = np.empty((len(order), K))
        out[order] = rows_of_sums(sums[:, :K], len(order)) * start[:, :K]
        return out.reshape(len(F), self.n_units, K)


def expected_needs(counts: CountMatrix, n_components: int, n_units: int) -> Needs:
    """Return the memory of the sums of all units."""
    stride, lanes = kernels.row_stride(n_components), -(-counts.shape[1] // LANES) * LANES
    results, pieces = lanes * n_units * n_components * 8, LANES * _ENTRY_BYTES
    entries = _ENTRIES * _ENTRY_BYTES
    row = stride * 8
    return Needs(
        row=_COPIES * row + pieces, shared=_RESULTS * results + lanes * row + entries, sums=0,
        task_row=0, task_shared=results + lanes * row + entries, whole_row=2 * row + pieces,
    )  # fmt: skip
