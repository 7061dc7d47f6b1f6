"""Poisson regression of every feature on topics whose proportions are held.

Counts are ``x_ij ~ Poisson(sum_k s_i l_ik f_jk)`` with known sizes s and proportions L: each
feature is a separate convex problem. Pseudo-counts at the mean rate of a feature keep its
frequencies positive. A kernel finds the frequencies f_j and likelihood ratios of their equality:
see ``kernels/contrasts.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...counts.sell import LANES, SellBlock, largest_of
from ...engine.protocol import ColumnStep, Needs, Panel
from ..factors import per_lane, to_lanes
from ..slices import sliced_counts

Array = NDArray[Any]
# Least proportion of a topic, so that every count has a positive mean.
LEAST_PROPORTION = 1e-10
# Pseudo-counts of likelihood ratios. One of a count would make tests of rare features conservative.
PSEUDOCOUNT_OF_TESTS = 0.02
# Rows whose products are added up together.
_ROWS = 1 << 16
# Squared Newton decrement at which a minimum has been found.
FOUND = 1e-5
# Copies of the design in this process, and in a task of a cluster.
_COPIES, _COPIES_TASK = 3, 2


@dataclass(frozen=True)
class FeatureDesign:
    """The design ``s_i l_ik`` (n, K) of the regressions of all features, and its sums.

    `totals` (K,) are its column sums, `gram` (K, K) the sums of products of its columns.
    """

    values: Array
    totals: Array
    gram: Array

    @classmethod
    def of(cls, proportions: Array, sizes: Array) -> FeatureDesign:
        """Return the design for proportions (n, K) and sizes (n,)."""
        values = np.maximum(proportions, LEAST_PROPORTION) * sizes[:, None]
        K = values.shape[1]
        totals, gram = np.zeros(K), np.zeros((K, K))
        for first in range(0, len(values), _ROWS):
            part = values[first : first + _ROWS]
            totals += part.sum(axis=0)
            for k in range(K):  # column by column: a matrix product depends on the library
                gram[k] += (part[:, [k]] * part).sum(axis=0)
        return cls(values, totals, gram)

    def rows(self, layout: Any) -> Array:
        """Return the design in lane order (lanes, stride)."""
        stride = kernels.row_stride(self.values.shape[1])
        return to_lanes(self.values, layout.row_order, stride, np.float64)


@dataclass(frozen=True)
class RegressFeatures(ColumnStep):
    """Regresses the features of a panel on the row array ``design``.

    `totals` (K,) are the column sums of the design and `means` (lanes,) the mean rates of the
    features, positive. `weights` (K, K) are those of the topics that each topic is compared with;
    None compares with the least extreme one. Results are ``regressions`` (lanes, 5 K + 2), as the
    kernel writes them, and ``squares`` (lanes,), the sums of squared counts.
    """

    totals: Array
    means: Array
    pseudocount: float
    bounds: bool
    weights: Array | None = None

    uses = ("design",)

    @classmethod
    def of(
        cls, counts: CountMatrix, design: FeatureDesign, pseudocount: float, weights: Array | None
    ) -> RegressFeatures:
        """Return the step for counts."""
        order = counts.layout().column_order
        rates = per_lane(counts.column_totals, order) / design.totals.sum()
        rates = np.where(rates > 0, rates, 1.0)
        return cls(design.totals, rates, float(pseudocount), counts.is_integer, weights)

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Regress the features of a panel."""
        design, K = panel.arrays["design"], len(self.totals)
        total = np.zeros(design.shape[1])
        total[:K] = self.totals
        out = aligned_empty((len(panel.counts.offset) - 1, 5 * K + 2, LANES), np.dtype(float))
        kernels.contrasts(
            sliced_counts(panel.counts, len(design)), kernels.RowProblem(design, total, K),
            np.ascontiguousarray(self.means[panel.lanes]), out, pseudo=self.pseudocount,
            pseudo_of_tests=min(self.pseudocount, PSEUDOCOUNT_OF_TESTS), bounds=self.bounds,
            n_threads=n_threads, weights=self.weights,
        )  # fmt: skip
        numbers = out.transpose(0, 2, 1).reshape(-1, 5 * K + 2)
        return {"regressions": numbers, "squares": sums_of_squares(panel.counts)}


def sums_of_squares(counts: SellBlock) -> Array:
    """Return the sum of squared counts of every lane; pieces of one count are put together."""
    sums = np.zeros((len(counts.offset) - 1, LANES))
    for s, (first, last) in enumerate(zip(counts.offset[:-1], counts.offset[1:], strict=True)):
        values = counts.count[first * LANES : last * LANES].reshape(-1, LANES).astype(np.float64)
        sums[s] = (values * values).sum(axis=0)
        if counts.count.dtype.kind != "u" or not (values == largest_of(counts.count.dtype)).any():
            continue
        index = counts.index[first * LANES : last * LANES].reshape(-1, LANES)
        for lane in np.flatnonzero((values == largest_of(counts.count.dtype)).any(axis=0)):
            there = values[:, lane] > 0
            whole = np.bincount(index[there, lane], values[there, lane])
            sums[s, lane] = (whole * whole).sum()
    return sums.reshape(-1)


@dataclass(frozen=True)
class Regressions:
    """The regressions of m features on K topics; features without counts have frequencies of 0.

    `frequencies` (m, K); `others` (m, K), the topic that each is compared with, -1 for weights;
    `errors` (m, K), standard errors of the log of their ratio; `ratios` (m, K), likelihood ratios
    of their equality; `least` (m, K), the least ratio of all other topics; `dispersion` (m,);
    `unsolved` (m,), features of which a minimum was not found.
    """

    frequencies: Array
    others: Array
    errors: Array
    ratios: Array
    least: Array
    dispersion: Array
    unsolved: Array

    @classmethod
    def of(
        cls, numbers: Array, squares: Array, totals: Array, design: FeatureDesign, n: int
    ) -> Regressions:
        """Return the regressions of features from the results of `RegressFeatures`, in their order.

        `totals` (m,) are the total counts of the features, n the number of samples that have
        counts.
        """
        K, nonempty = len(design.totals), totals > 0
        parts = [
            np.where(nonempty[:, None], numbers[:, i * K : (i + 1) * K], 0.0) for i in range(5)
        ]
        frequencies = parts[0]
        # sum (x - mu)^2 / sum mu
        mean_squares = np.zeros(len(totals))
        for k in range(K):
            mean_squares += frequencies[:, k] * (frequencies * design.gram[k]).sum(axis=1)
        residual = squares - 2 * numbers[:, 5 * K] + mean_squares
        means = np.where(nonempty, (frequencies * design.totals).sum(axis=1), 1.0)
        dispersion = np.where(nonempty, residual / means * (n / max(n - K, 1)), 1.0)
        others = np.where(nonempty[:, None], numbers[:, K : 2 * K], -1).astype(np.int32)
        return cls(
            frequencies, others, parts[2], parts[3], parts[4], np.maximum(dispersion, 0.0),
            nonempty & (numbers[:, 5 * K + 1] > FOUND),
        )  # fmt: skip


def regression_needs(counts: CountMatrix, n_components: int, n_threads: int) -> Needs:
    """Return the memory of the regressions of all features."""
    stride, lanes = kernels.row_stride(n_components), -(-counts.shape[1] // LANES) * LANES
    design = stride * 8
    results = lanes * (5 * n_components + 3) * 8
    return Needs(
        row=_COPIES * design, shared=4 * results, sums=0, task_row=0, task_shared=results,
        whole_row=_COPIES_TASK * design,
    )  # fmt: skip
