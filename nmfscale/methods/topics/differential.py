"""Poisson regression of every feature on topics whose proportions are held.

Counts are ``x_ij ~ Poisson(e_gj sum_k s_i l_ik f_jk)`` with known sizes s, proportions L, and
efficiencies e of features in groups of samples, such as batches: each feature is a separate convex
problem. Efficiencies are 1, or 0 for features that a group did not measure, and only the linear
terms depend on them. Pseudo-counts at the mean rate of a feature keep its frequencies positive. A
kernel finds the frequencies f_j and likelihood ratios of their equality: see
``kernels/contrasts.h``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...counts.panels import panel_slices
from ...counts.sell import LANES, SellBlock, lanes_of, largest_of
from ...engine.protocol import ColumnStep, Needs, Panel
from ...kernels import dense
from ..factors import in_lane_order, per_lane, to_lanes
from ..slices import sliced_counts
from ..weights.measured import SampleGroups
from .efficiency_errors import with_errors_of_efficiencies
from .split_sums import split_sums
from .unit_covariances import unit_covariances

Array = NDArray[Any]
# Least proportion of a topic, so that every count has a positive mean.
LEAST_PROPORTION = 1e-10
# Pseudo-counts of likelihood ratios. One of a count would make tests of rare features conservative.
PSEUDOCOUNT_OF_TESTS = 0.02
# Rows whose products are added up together, and numbers that are computed for features together.
_ROWS, _NUMBERS = 1 << 16, 1 << 20
# Squared Newton decrement at which a minimum has been found.
FOUND = 1e-5
# Copies of the design in this process, and in a task of a cluster; of efficiencies.
_COPIES, _COPIES_TASK, _COPIES_EFFICIENCIES = 3, 2, 4


@dataclass(frozen=True)
class FeatureDesign:
    """The design ``s_i l_ik`` (n, K) of the regressions of all features, and its sums by group.

    `groups` (n,) are the numbers of groups of samples, such as batches, and `efficiencies` (G, m)
    those of features in them, 0 if they were not measured; without groups, there is one, in which
    all are 1. `sums` (G, K) are the column sums of the design, `gram` (G, K, K) the sums of
    products of its columns, `sizes` (G,) the numbers of samples with counts. `units` (n,) are the
    numbers of units of samples, and `unit_sums` (G, U, K) the sums over their samples; both are
    None without units.
    """

    values: Array
    groups: Array
    efficiencies: Array
    sums: Array
    gram: Array
    sizes: Array
    units: Array | None = None
    unit_sums: Array | None = None

    @classmethod
    def of(
        cls, proportions: Array, sizes: Array, n_features: int, among: SampleGroups | None = None,
        units: Array | None = None,
    ) -> FeatureDesign:  # fmt: skip
        """Return the design for proportions (n, K), sizes (n,) and units (n,) of the samples.

        `among` has the groups of samples and the efficiencies of features in them.
        """
        values = np.maximum(proportions, LEAST_PROPORTION) * sizes[:, None]
        groups, efficiencies = np.zeros(len(values), np.intp), np.ones((1, n_features))
        if among is not None:
            groups, efficiencies = among.groups, among.values.astype(np.float64)
        G, K = len(efficiencies), values.shape[1]
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
        of_units = None if units is None else unit_totals
        return cls(values, groups, efficiencies, totals, gram, n_samples, units, of_units)

    @property
    def whole(self) -> Array:
        """Column sums (K,) over all samples."""
        whole: Array = self.sums.sum(axis=0)
        return whole

    @cached_property
    def totals(self) -> Array:
        """Linear terms (m, K): column sums over all samples, times the efficiencies of features."""
        return dense.product(self.efficiencies.T, self.sums)

    @property
    def n_samples(self) -> Array:
        """Number (m,) of samples with counts of which efficiencies are not 0."""
        there = (self.efficiencies > 0).T.astype(np.float64)
        return dense.product(there, self.sizes[:, None])[:, 0].astype(np.int64)

    @property
    def n_units(self) -> int:
        """Number of units that have counts."""
        return 0 if self.unit_sums is None else int(self.unit_sums.any(axis=(0, 2)).sum())

    def with_means(self) -> bool:
        """Whether efficiencies change expected counts of features where these were measured."""
        return not np.isin(self.efficiencies, (0, 1)).all()

    def squares_of_means(self, frequencies: Array, features: Array) -> Array:
        """Return sums of squared expected counts (m,) for frequencies (m, K) of features (m,)."""
        sums, (G, K, _) = np.zeros(len(frequencies)), self.gram.shape
        for some in _parts(len(sums), K * K):
            e, f = self.efficiencies[:, features[some]].T, frequencies[some]
            gram = dense.product(e * e, self.gram.reshape(G, K * K)).reshape(-1, K, K)
            for k in range(K):
                sums[some] += f[:, k] * (f * gram[:, k]).sum(axis=1)
        return sums

    def squared_shares(self, features: Array) -> Array:
        """Return sums (m, K) over units of their squared shares of the totals of features (m,)."""
        assert self.unit_sums is not None
        G, U, K = self.unit_sums.shape
        totals = np.maximum(self.totals[features], np.finfo(float).tiny)
        out = np.empty((len(features), K))
        for some in _parts(len(features), U * K):
            of_units = totals_of_units(self.unit_sums, self.efficiencies[:, features[some]].T)
            shares = of_units / totals[some, None]
            out[some] = (shares * shares).sum(axis=1)
        return out

    def rows(self, layout: Any) -> dict[str, Array]:
        """Return the row arrays of the regressions in lane order: the design, units and groups."""
        stride = kernels.row_stride(self.values.shape[1])
        arrays = {"design": to_lanes(self.values, layout.row_order, stride, np.float64)}
        if self.units is not None:
            arrays["units"] = per_lane(self.units, layout.row_order)
        if self.with_means():
            arrays["groups"] = per_lane(self.groups, layout.row_order)
        return arrays


def totals_of_units(unit_sums: Array, efficiencies: Array) -> Array:
    """Return the totals (p, U, K) of units for efficiencies (p, G), from sums (G, U, K)."""
    G, U, K = unit_sums.shape
    return dense.product(efficiencies, unit_sums.reshape(G, U * K)).reshape(-1, U, K)


def _parts(n: int, size: int) -> Iterator[slice]:
    """Yield slices of n features of which each needs some numbers."""
    step = max(1, _NUMBERS // max(size, 1))
    for first in range(0, n, step):
        yield slice(first, first + step)


@dataclass(frozen=True)
class RegressFeatures(ColumnStep):
    """Regresses the features of a panel on the row array ``design``.

    `totals` (lanes, K) are those of the design, `efficiencies` (lanes, G) those of the features,
    `means` (lanes,) their mean rates, positive. `weights` (K, K) are those of the topics that each
    topic is compared with; None compares with the least extreme one. Results are ``regressions``
    (lanes, 5 K + 2), as the kernel writes them, and ``squares`` (lanes,), the sums of squared
    counts; with `unit_sums` (G, U, K) and a row array ``units``, also ``covariances`` of log
    coefficients between units. A row array ``groups`` is needed if expected counts of measured
    features depend on efficiencies. With `batch_shape`, that of the prior of efficiencies which a
    fit to `part` times as many counts found, errors and likelihood ratios allow for their errors.
    """

    totals: Array
    efficiencies: Array
    means: Array
    pseudocount: float
    bounds: bool
    weights: Array | None = None
    unit_sums: Array | None = None
    batch_shape: float | None = None
    part: float = 1.0

    uses = ("design", "units", "groups")
    shared = ("totals", "efficiencies", "unit_sums")

    @classmethod
    def of(
        cls, counts: CountMatrix, design: FeatureDesign, pseudocount: float, weights: Array | None,
        batch_shape: float | None = None, part: float = 1.0,
    ) -> RegressFeatures:  # fmt: skip
        """Return the step for counts."""
        order = counts.layout().column_order
        totals, efficiencies = (
            to_lanes(values, order, values.shape[1], np.float64, empty=0.0)
            for values in (design.totals, design.efficiencies.T)
        )
        sizes = totals.sum(axis=1)
        rates = per_lane(counts.column_totals, order) / np.where(sizes > 0, sizes, 1.0)
        rates = np.where(rates > 0, rates, 1.0)
        return cls(
            totals, efficiencies, rates, float(pseudocount), counts.is_integer, weights,
            design.unit_sums, batch_shape, part,
        )  # fmt: skip

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Regress the features of a panel."""
        design, K = panel.arrays["design"], self.totals.shape[1]
        efficiencies = self.efficiencies[panel.lanes]
        totals = self.totals[panel.lanes].reshape(-1, LANES, K).transpose(0, 2, 1)
        out = aligned_empty((len(panel.counts.offset) - 1, 5 * K + 2, LANES), np.dtype(float))
        kernels.contrasts(
            sliced_counts(panel.counts, len(design)), kernels.RowProblem(design, None, K),
            np.ascontiguousarray(totals), np.ascontiguousarray(self.means[panel.lanes]), out,
            pseudo=self.pseudocount, pseudo_of_tests=self._pseudo_of_tests,
            bounds=self.bounds, n_threads=n_threads, weights=self.weights,
        )  # fmt: skip
        numbers = out.transpose(0, 2, 1).reshape(-1, 5 * K + 2)
        in_order = in_lane_order(len(numbers), len(numbers))
        f = to_lanes(numbers[:, :K], in_order, design.shape[1], np.float64)
        if "groups" in panel.arrays:
            groups = panel.arrays["groups"].astype(np.intp)
            numbers[:, 5 * K] = _products(panel.counts, design, f, groups, efficiencies)
            if self.batch_shape is not None and self.unit_sums is None:
                numbers = self._with_errors(panel, numbers, f, groups, n_threads)
        results = {"squares": sums_of_squares(panel.counts), "regressions": numbers}
        if self.unit_sums is not None:
            results["covariances"] = unit_covariances(
                panel.counts, design, panel.arrays["units"],
                totals_of_units(self.unit_sums, efficiencies), f[:, :K], self.pseudocount,
            )  # fmt: skip
        return results

    @property
    def _pseudo_of_tests(self) -> float:
        return min(self.pseudocount, PSEUDOCOUNT_OF_TESTS)

    def _with_errors(
        self, panel: Panel, numbers: Array, f: Array, groups: Array, n_threads: int
    ) -> Array:
        """Return the numbers of regressions with the errors of efficiencies, by some slices."""
        design, K, G = panel.arrays["design"], self.totals.shape[1], self.efficiencies.shape[1]
        out = np.empty_like(numbers)
        assert self.batch_shape is not None
        beside = np.full(len(panel.counts.offset) - 1, 2 * G * K * K)
        for part in panel_slices(np.diff(panel.counts.offset) + beside, _NUMBERS):
            here = lanes_of(part)
            curvature = split_sums(
                panel.counts.slices(part), design, f[here], groups, G, K, wanted=kernels.SUM_FULL,
                n_threads=n_threads,
            )  # fmt: skip
            out[here] = with_errors_of_efficiencies(
                numbers[here], curvature, self.weights, (self.pseudocount, self._pseudo_of_tests),
                self.batch_shape, self.part,
            )  # fmt: skip
        return out


def _products(
    counts: SellBlock, design: Array, f: Array, groups: Array, efficiencies: Array
) -> Array:
    """Return sums (lanes,) of counts times expected counts, by frequencies (lanes, stride)."""
    sums = np.zeros((len(counts.offset) - 1, LANES))
    for s, (first, last) in enumerate(zip(counts.offset[:-1], counts.offset[1:], strict=True)):
        index, values = (
            array[first * LANES : last * LANES].reshape(-1, LANES)
            for array in (counts.index, counts.count)
        )
        entry, lane = np.nonzero(values)
        rows, features = index[entry, lane], s * LANES + lane
        means = dense.dots(design, rows, f, features) * efficiencies[features, groups[rows]]
        sums[s] = np.bincount(lane, values[entry, lane] * means, LANES)
    return sums.reshape(-1)


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
        frequencies = parts[0]
        mean_squares = design.squares_of_means(frequencies, features)
        residual = squares - 2 * numbers[:, 5 * K] + mean_squares
        means = np.where(nonempty, (frequencies * design.totals[features]).sum(axis=1), 1.0)
        n = design.n_samples[features]
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
    squares, products, with_means = np.zeros(m), np.zeros(m), design.with_means()
    for first, indptr, indices, data in counts.chunks():
        samples = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        values, columns = np.asarray(data, np.float64), np.asarray(indices, np.int64)
        means = dense.dots(design.values, samples.astype(np.int64), frequencies, columns)
        if with_means:
            means *= design.efficiencies[design.groups[samples], columns]
        np.add.at(squares, columns, values * values)  # in the order of the samples
        np.add.at(products, columns, values * means)
    mean_squares = design.squares_of_means(frequencies, np.arange(m))
    means = (frequencies * design.totals).sum(axis=1)
    n = design.n_samples
    # both factors were fitted to these counts
    fitted = n / np.maximum(n - K, 1) * (m / max(m - K, 1))
    excess = (squares - 2 * products + mean_squares) * fitted - means
    positive = (excess > 0) & (mean_squares > 0)
    return np.divide(excess, mean_squares, out=np.zeros(m), where=positive)


def regression_needs(
    counts: CountMatrix, n_components: int, n_threads: int, n_units: int = 0, n_groups: int = 1
) -> Needs:
    """Return the memory of the regressions of all features, with errors by some units.

    `n_groups` is the number of groups of samples in which features have efficiencies.
    """
    stride, lanes = kernels.row_stride(n_components), -(-counts.shape[1] // LANES) * LANES
    design, pairs = stride * 8, n_components * (n_components + 1) // 2
    results = lanes * (5 * n_components + 3 + (pairs if n_units else 0)) * 8
    # what is computed for one feature at a time: four arrays of its samples, five of its units
    of_units = 8 * n_units * (n_groups * n_components + 5 * n_components * n_components)
    results += lanes * (n_components + _COPIES_EFFICIENCIES * n_groups) * 8
    row = 8 + 4 * n_components * 8 if n_units else 0
    return Needs(
        row=_COPIES * design + row, shared=4 * results + of_units, sums=0, task_row=0,
        task_shared=results + of_units, whole_row=_COPIES_TASK * design + row,
    )  # fmt: skip
