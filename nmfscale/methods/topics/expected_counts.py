"""Expected counts of topics by unit: the counts of each unit, split among topics.

With Poisson counts ``x_ij = sum_k z_ijk``, ``z_ijk ~ Poisson(l_ik f_jk)``, the expectation of a
part given the whole is ``E[z_ijk] = x_ij l_ik f_jk / mu_ij``, ``mu_ij = sum_k l_ik f_jk``. The sums
over the samples of a unit are ``f_jk sum_i l_ik x_ij / mu_ij``: statistics of an EM step of F, for
which each pair of a feature and a unit is a column of its own.

Of the counts that come from topic k, ``sum_i l_ik f_jk l_iq f_jq / mu_ij`` are expected to be split
to topic q: the confusion of topics, Fisher's information on the logarithms of the frequencies.

Efficiencies of features in groups of samples, such as batches, are factors of z and mu alike: they
do not change how a count is split, only the number of counts that are expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.panels import panel_slices
from ...counts.sell import LANES, lanes_of
from ...engine.protocol import ColumnStep, Needs, Panel
from ...kernels import dense
from .split_sums import split_sums

Array = NDArray[Any]
# Least proportion and least frequency, so that every count has a positive mean.
LEAST = 1e-14
# Entries that are sorted by unit at a time, and bytes for each of them.
_ENTRIES, _ENTRY_BYTES = 1 << 20, 64
# Samples and features whose means are computed at a time, and arrays of them.
_ROWS, _FEATURES, _ARRAYS = 1 << 11, 256, 4
# Copies of the proportions, and of the result, that exist at a time.
_COPIES, _RESULTS = 3, 3


@dataclass(frozen=True)
class SumUnits(ColumnStep):
    """Sums the expected counts of the topics over the samples of each unit.

    Row arrays: ``proportions`` (lanes, stride) of the topics; ``units`` (lanes,), the number of the
    unit of each sample; ``totals`` (lanes,), its expected counts with efficiencies of 1; ``groups``
    (lanes,), the number of its row in `efficiencies`. F (lanes, stride) has frequencies of the
    features in lane order, `efficiencies` (G, lanes) those in groups of samples, 0 for features
    that were not measured; None means 1. Results are ``expected`` (lanes, n_units, K), and
    ``confusion`` (lanes, K (K + 1) / 2), packed.
    """

    F: Array
    n_components: int
    n_units: int
    efficiencies: Array | None

    shared = ("F", "efficiencies")
    uses = ("proportions", "units", "totals", "groups")

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Sum the counts of a panel, some slices at a time."""
        out = np.zeros((len(self.F[panel.lanes]), self.n_units, self.n_components))
        # the arrays of a slice, in entries of the same size
        beside = 3 * self.n_units * self.F.shape[1] * 8 // _ENTRY_BYTES
        for part in panel_slices(np.diff(panel.counts.offset) + beside, _ENTRIES):
            here = lanes_of(part)
            F = self.F[panel.lanes][here]
            sums = split_sums(
                panel.counts.slices(part), panel.arrays["proportions"], F, panel.arrays["units"],
                self.n_units, self.n_components, wanted=kernels.SUM_GRADIENT, n_threads=n_threads,
            )  # fmt: skip
            out[here] = sums * F[:, None, : self.n_components]
        return {"expected": out, "confusion": self._confusion(panel, n_threads)}

    def _confusion(self, panel: Panel, n_threads: int) -> Array:
        """Return the sums (lanes, K (K + 1) / 2) over all samples, some samples at a time."""
        K = self.n_components
        first, second = np.tril_indices(K)
        L, totals = panel.arrays["proportions"], panel.arrays["totals"]
        F = np.ascontiguousarray(self.F[panel.lanes][:, :K])
        out = np.zeros((len(F), len(first)))
        for rows in _slices(len(L), _ROWS):
            shares = np.ascontiguousarray(L[rows, :K])
            pairs = shares[:, first] * shares[:, second]
            for features in _slices(len(F), _FEATURES):
                means = dense.product(shares, F[features].T, n_threads=n_threads)
                weights = totals[rows, None] / np.maximum(means, np.finfo(float).tiny)
                if self.efficiencies is not None:
                    groups = panel.arrays["groups"][rows].astype(np.intp)
                    weights *= self.efficiencies[:, panel.lanes][:, features][groups]
                out[features] += dense.cross(weights, pairs, n_threads=n_threads)
        out *= F[:, first] * F[:, second]
        return out


def _slices(n: int, size: int) -> list[slice]:
    """Return slices of `size` of n numbers."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def expected_needs(counts: CountMatrix, n_components: int, n_units: int) -> Needs:
    """Return the memory of the sums of all units."""
    stride, lanes = kernels.row_stride(n_components), -(-counts.shape[1] // LANES) * LANES
    pairs = n_components * (n_components + 1) // 2
    results, pieces = lanes * (n_units * n_components + pairs) * 8, LANES * _ENTRY_BYTES
    entries = _ENTRIES * _ENTRY_BYTES + _ROWS * (_ARRAYS * _FEATURES + 2 * pairs) * 8
    row = (stride + 3) * 8
    return Needs(
        row=_COPIES * row + pieces, shared=_RESULTS * results + lanes * row + entries, sums=0,
        task_row=0, task_shared=results + lanes * row + entries, whole_row=2 * row + pieces,
    )  # fmt: skip
