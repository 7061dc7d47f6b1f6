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
from ...kernels import dense
from ..factors import per_lane, to_lanes
from ..slices import sliced_counts
from ..weights.measured import Measured
from .unit_covariances import unit_covariances

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

    Where samples did not measure all features, sums are those over the samples that measured a
    feature. Features that the same samples measured have one pattern; `patterns` (m,) are its
    numbers, all 0 where everything was measured. `totals` (P, K) are the column sums of the design
    for each pattern, `gram` (P, K, K) the sums of products of its columns, `n_samples` (P,) the
    numbers of samples with counts. `whole` (K,) are the column sums over all samples. `units` (n,)
    are the numbers of units of samples, and `unit_totals` (P, U, K) the sums over their samples;
    both are None without units.
    """

    values: Array
    patterns: Array
    totals: Array
    gram: Array
    n_samples: Array
    whole: Array
    units: Array | None = None
    unit_totals: Array | None = None

    @classmethod
    def of(
        cls, proportions: Array, sizes: Array, n_features: int, measured: Measured | None = None,
        units: Array | None = None,
    ) -> FeatureDesign:  # fmt: skip
        """Return the design for proportions (n, K), sizes (n,) and units (n,) of the samples."""
        values = np.maximum(proportions, LEAST_PROPORTION) * sizes[:, None]
        groups, masks = np.zeros(len(values), np.intp), np.ones((1, 1), bool)
        patterns = np.zeros(n_features, np.int64)
        if measured is not None:
            groups = measured.groups
            masks, patterns = np.unique(measured.features.T, axis=0, return_inverse=True)
        G, K = masks.shape[1], values.shape[1]
        n_units = 0 if units is None else int(units.max()) + 1
        totals, gram = np.zeros((G, K)), np.zeros((G, K, K))
        unit_totals, n_samples = np.zeros((G, n_units, K)), np.zeros(G, np.int64)
        for g in range(G):
            here = np.flatnonzero(groups == g)
            n_samples[g] = np.count_nonzero(sizes[here])
            for first in range(0, len(here), _ROWS):
                rows = here[first : first + _ROWS]
                part = values[rows]
                totals[g] += part.sum(axis=0)
                for k in range(K):  # column by column: a matrix product depends on the library
                    gram[g, k] += (part[:, [k]] * part).sum(axis=0)
                if units is not None:
                    np.add.at(unit_totals[g], units[rows], part)

        def of_patterns(array: Array) -> Array:
            return np.array([array[mask].sum(axis=0) for mask in masks])

        return cls(
            values, patterns.reshape(-1), of_patterns(totals), of_patterns(gram),
            of_patterns(n_samples), totals.sum(axis=0), units,
            None if units is None else of_patterns(unit_totals),
        )  # fmt: skip

    @property
    def n_units(self) -> int:
        """Number of units that have counts."""
        return 0 if self.unit_totals is None else int(self.unit_totals.any(axis=(0, 2)).sum())

    def squares_of_means(self, frequencies: Array, patterns: Array) -> Array:
        """Return sums of squared expected counts (m,) for frequencies (m, K) and patterns (m,)."""
        sums = np.zeros(len(frequencies))
        for k in range(frequencies.shape[1]):
            sums += frequencies[:, k] * (frequencies * self.gram[patterns, k]).sum(axis=1)
        return sums

    def rows(self, layout: Any) -> dict[str, Array]:
        """Return the row arrays of the regressions in lane order: the design, and the units."""
        stride = kernels.row_stride(self.values.shape[1])
        arrays = {"design": to_lanes(self.values, layout.row_order, stride, np.float64)}
        if self.units is not None:
            arrays["units"] = per_lane(self.units, layout.row_order)
        return arrays


@dataclass(frozen=True)
class RegressFeatures(ColumnStep):
    """Regresses the features of a panel on the row array ``design``.

    `patterns` (lanes,) and `totals` (P, K) are those of the design, `means` (lanes,) the mean rates
    of the features, positive. `weights` (K, K) are those of the topics that each topic is compared
    with; None compares with the least extreme one. Results are ``regressions`` (lanes, 5 K + 2), as
    the kernel writes them, and ``squares`` (lanes,), the sums of squared counts; with `unit_totals`
    (P, U, K) and a row array ``units``, also ``covariances`` of log coefficients between units.
    """

    patterns: Array
    totals: Array
    means: Array
    pseudocount: float
    bounds: bool
    weights: Array | None = None
    unit_totals: Array | None = None

    uses = ("design", "units")
    shared = ("unit_totals",)

    @classmethod
    def of(
        cls, counts: CountMatrix, design: FeatureDesign, pseudocount: float, weights: Array | None
    ) -> RegressFeatures:
        """Return the step for counts."""
        order = counts.layout().column_order
        patterns = per_lane(design.patterns, order).astype(np.intp)
        sizes = design.totals.sum(axis=1)[patterns]
        rates = per_lane(counts.column_totals, order) / np.where(sizes > 0, sizes, 1.0)
        rates = np.where(rates > 0, rates, 1.0)
        return cls(
            patterns, design.totals, rates, float(pseudocount), counts.is_integer, weights,
            design.unit_totals,
        )  # fmt: skip

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Regress the features of a panel."""
        design, K = panel.arrays["design"], self.totals.shape[1]
        counts, patterns = sliced_counts(panel.counts, len(design)), self.patterns[panel.lanes]
        results: dict[str, Array] = {"squares": sums_of_squares(panel.counts)}
        for pattern in np.unique(patterns):
            chosen = patterns == pattern
            total = np.zeros(design.shape[1])
            total[:K] = self.totals[pattern]
            out = aligned_empty((len(panel.counts.offset) - 1, 5 * K + 2, LANES), np.dtype(float))
            kernels.contrasts(
                counts, kernels.RowProblem(design, total, K),
                np.ascontiguousarray(self.means[panel.lanes]), out, pseudo=self.pseudocount,
                pseudo_of_tests=min(self.pseudocount, PSEUDOCOUNT_OF_TESTS), bounds=self.bounds,
                n_threads=n_threads, weights=self.weights,
            )  # fmt: skip
            numbers = out.transpose(0, 2, 1).reshape(-1, 5 * K + 2)
            parts = {"regressions": numbers}
            if self.unit_totals is not None:
                parts["covariances"] = unit_covariances(
                    panel.counts, design, panel.arrays["units"], self.unit_totals[pattern],
                    numbers[:, :K], self.pseudocount, chosen,
                )  # fmt: skip
            for name, values in parts.items():
                results.setdefault(name, np.zeros_like(values))
                results[name][chosen] = values[chosen]
        return results


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
    `errors` (m, K), standard errors of the log of their ratio; `least` (m, K), the likelihood ratio
    of their equality, or the least ratio of all other topics; `dispersion` (m,); `unsolved` (m,),
    features of which a minimum was not found.
    """

    frequencies: Array
    others: Array
    errors: Array
    least: Array
    dispersion: Array
    unsolved: Array

    @classmethod
    def of(
        cls, numbers: Array, squares: Array, totals: Array, design: FeatureDesign, features: Array
    ) -> Regressions:
        """Return the regressions of `features` from their results by `RegressFeatures`.

        `totals` (m,) are the total counts of the features.
        """
        K, nonempty = len(design.whole), totals > 0
        parts = [
            np.where(nonempty[:, None], numbers[:, i * K : (i + 1) * K], 0.0) for i in range(5)
        ]
        frequencies, patterns = parts[0], design.patterns[features]
        mean_squares = design.squares_of_means(frequencies, patterns)
        residual = squares - 2 * numbers[:, 5 * K] + mean_squares
        means = np.where(nonempty, (frequencies * design.totals[patterns]).sum(axis=1), 1.0)
        n = design.n_samples[patterns]
        dispersion = np.where(nonempty, residual / means * (n / np.maximum(n - K, 1)), 1.0)
        others = np.where(nonempty[:, None], numbers[:, K : 2 * K], -1).astype(np.int32)
        return cls(
            frequencies, others, parts[2], parts[4], np.maximum(dispersion, 0.0),
            nonempty & (numbers[:, 5 * K + 1] > FOUND),
        )  # fmt: skip


def excess_variances(counts: CountMatrix, design: FeatureDesign, frequencies: Array) -> Array:
    """Return the variance of features (m,) beyond Poisson, relative to their squared means.

    It is the dispersion of negative binomial counts with the means of a fitted model, the design
    times its frequencies (m, K), by the method of moments; at least 0.
    """
    m, K = frequencies.shape
    squares, products = np.zeros(m), np.zeros(m)
    for first, indptr, indices, data in counts.chunks():
        samples = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        values, columns = np.asarray(data, np.float64), np.asarray(indices, np.int64)
        means = dense.dots(design.values, samples.astype(np.int64), frequencies, columns)
        np.add.at(squares, columns, values * values)  # in the order of the samples
        np.add.at(products, columns, values * means)
    mean_squares = design.squares_of_means(frequencies, design.patterns)
    means = (frequencies * design.totals[design.patterns]).sum(axis=1)
    n = design.n_samples[design.patterns]
    # both factors were fitted to these counts
    fitted = n / np.maximum(n - K, 1) * (m / max(m - K, 1))
    excess = (squares - 2 * products + mean_squares) * fitted - means
    positive = (excess > 0) & (mean_squares > 0)
    return np.divide(excess, mean_squares, out=np.zeros(m), where=positive)


def regression_needs(
    counts: CountMatrix, n_components: int, n_threads: int, n_units: int = 0
) -> Needs:
    """Return the memory of the regressions of all features, with errors by some units."""
    stride, lanes = kernels.row_stride(n_components), -(-counts.shape[1] // LANES) * LANES
    design, pairs = stride * 8, n_components * (n_components + 1) // 2
    results = lanes * (5 * n_components + 3 + (pairs if n_units else 0)) * 8
    # what is computed for one feature at a time: four arrays of its samples, five of its units
    of_units = 8 * n_units * (n_components + 5 * n_components * n_components)
    row = 8 + 4 * n_components * 8 if n_units else 0
    return Needs(
        row=_COPIES * design + row, shared=4 * results + of_units, sums=0, task_row=0,
        task_shared=results + of_units, whole_row=_COPIES_TASK * design + row,
    )  # fmt: skip
