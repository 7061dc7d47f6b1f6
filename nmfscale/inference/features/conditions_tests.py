"""Comparisons of condition_features within one topic: designs, fits, moderated tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ...counts.names import shown
from ...kernels.decompositions import orthonormal_basis
from ...kernels.functions import exp, log
from ..design.groups import Labels
from ..moderation import VarianceTrend
from ..quantiles import t_pvalue, t_quantile
from .pseudobulk_result import Pseudobulk
from .quasi_likelihood import common_alpha, fit_features, variances, with_pseudocounts

Array = NDArray[Any]
_LOG_2 = 0.6931471805599453
# |t| below which a standard error is that of the curvature, not the change divided by t.
_SMALL_T = 0.1
# Least mean count of the features that normalize units, and least number of these features.
_LEAST_MEAN, _LEAST_FEATURES = 5.0, 20
# p of features that do not take part in the normalization.
_DIFFERS = 0.1


def _independent(columns: Array) -> Array:
    """Return a mask of the columns that do not depend on earlier ones."""
    gram = np.array([(columns * column[:, None]).sum(axis=0) for column in columns.T])
    return np.logical_or.reduce(orthonormal_basis(gram) != 0)


@dataclass(frozen=True)
class _Comparison:
    """Units (U',) and the design (U', p) of a comparison; the last column is the group.

    `smallest_group` is the number of units of the group or of the reference, whichever is smaller.
    """

    units: Array
    design: Array
    smallest_group: int

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the residuals."""
        return self.design.shape[0] - self.design.shape[1]

    @classmethod
    def of(
        cls, units: Array, fixed: Array, labels: Labels, reference: int, group: int
    ) -> _Comparison | str:
        """Return the comparison of a group with the reference, or why there is none."""
        codes = labels.codes[units]
        sizes = [int(np.count_nonzero(codes == code)) for code in (group, reference)]
        for code, size in zip((group, reference), sizes, strict=True):
            if not size:
                return f"no unit of group {shown(labels.names[code])} has the topic"
        others = [g for g in range(len(labels.names)) if g not in (group, reference)]
        columns = np.column_stack([fixed[units], *(codes == g for g in (*others, group))])
        kept = _independent(columns.astype(np.float64))
        if not kept[-1]:
            return "strata, units or covariates explain the groups among the units with the topic"
        comparison = cls(units, columns[:, kept].astype(np.float64), min(sizes))
        if comparison.freedom < 1:
            return f"{len(units):,} units with the topic are too few for the comparison"
        return comparison


@dataclass(frozen=True)
class Tests:
    """Numbers of the tested features: log changes, errors, t^2 without phi, variances, means."""

    features: Array
    change: Array
    error: Array
    ratio: Array
    variance: Array
    freedom: Array
    mean: Array
    alpha: float

    def t(self) -> tuple[Array, Array, Array]:
        """Return t, its degrees of freedom, and phi, moderated over the features."""
        prior = VarianceTrend.of(self.variance, self.freedom, self.mean)
        phi, freedom = prior.moderated(self.variance, self.freedom)
        phi = np.maximum(phi, np.finfo(float).tiny)
        return np.sign(self.change) * np.sqrt(self.ratio / phi), freedom, phi

    def numbers(self, level: float) -> dict[str, Array]:
        """Return the numbers of the result."""
        t, freedom, phi = self.t()
        pvalue, lfc = t_pvalue(t, freedom), self.change / _LOG_2
        curvature = self.error * np.sqrt(phi) / _LOG_2
        large = np.abs(t) > _SMALL_T
        error = np.where(large, np.abs(lfc) / np.where(large, np.abs(t), 1.0), curvature)
        distinct, place = np.unique(freedom, return_inverse=True)
        margin = t_quantile(distinct, level)[place.reshape(-1)] * error
        return {
            "lfc": lfc, "std_error": error, "lower": lfc - margin, "upper": lfc + margin, "t": t,
            "freedom": freedom, "pvalue": pvalue, "qvalue": false_discovery_control(pvalue),
            "dispersion": phi,
        }  # fmt: skip


@dataclass(frozen=True)
class TopicCounts:
    """Counts (U, m) of topic k in the units, and by what their variance is inflated (m,)."""

    bulk: Pseudobulk
    k: int
    counts: Array
    inflation: Array

    def patterns(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield features that the same samples measured, most first, and sizes of units.

        Sizes (U,) are those with efficiencies of 1, then those of features, (1, U) or (p, U).
        """
        bulk, k = self.bulk, self.k
        sizes = bulk.sizes[:, :, k]
        if bulk.efficiencies is None:
            yield np.arange(self.counts.shape[1]), sizes[0], sizes
            return
        of_features = bulk.sizes_of_features(k).T
        there, kind = np.unique(bulk.efficiencies > 0, axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        for number in np.argsort(-np.bincount(kind), kind="stable").tolist():
            features = np.flatnonzero(kind == number)
            yield features, sizes[there[:, number]].sum(axis=0), of_features[features]

    def factors(self, units: Array, left_out: Array) -> Array:
        """Return factors (U,) of the sizes of some units, from the features that are not left out.

        Other units have 1.
        """
        used = np.setdiff1d(np.flatnonzero(self.bulk.measured_everywhere), left_out)
        factors, sizes = np.ones(len(self.counts)), self.bulk.sizes_of_features(self.k)[units]
        counts = self.counts[np.ix_(units, used)]
        factors[units] = median_ratios(counts, sizes if sizes.shape[1] == 1 else sizes[:, used])
        return factors


def compare_within(
    topic: TopicCounts, units: Array, fixed: Array, labels: Labels, reference: int, group: int,
    min_count: float, normalize: str,
) -> Tests | str:  # fmt: skip
    """Return the tests within a topic of a group against the reference, or why there are none.

    Features that differ, by first tests, do not take part in the normalization of the second.
    """
    whole = _Comparison.of(units, fixed, labels, reference, group)
    if isinstance(whole, str):
        return whole

    def comparison(measured: Array) -> _Comparison | str:
        if len(measured) == len(units):
            return whole
        return _Comparison.of(measured, fixed, labels, reference, group)

    if normalize == "total":
        return _tests(topic, units, comparison, np.ones(len(topic.counts)), min_count)
    tests = _tests(topic, units, comparison, topic.factors(units, np.array([], int)), min_count)
    if isinstance(tests, str):
        return tests
    t, freedom, _ = tests.t()
    differ = tests.features[t_pvalue(t, freedom) <= _DIFFERS]
    return _tests(topic, units, comparison, topic.factors(units, differ), min_count)


def _tests(
    topic: TopicCounts, units: Array, comparison_of: Callable[[Array], _Comparison | str],
    factors: Array, min_count: float,
) -> Tests | str:  # fmt: skip
    """Return the tests of all features with factors (U,) of the sizes of units."""
    parts: list[Tests] = []
    for features, expected, of_features in topic.patterns():
        comparison = comparison_of(units[expected[units] >= min_count])
        if isinstance(comparison, str):
            continue
        here = comparison.units
        sizes = (of_features * factors)[:, here]
        counts = np.maximum(topic.counts[here].T[features], 0.0)
        counts /= topic.inflation[features, None]
        kept = counts.sum(axis=1) >= min_count
        kept &= _n_effective(counts, sizes) >= comparison.smallest_group / 2
        if kept.any():
            alpha = parts[0].alpha if parts else None
            sizes = sizes if len(sizes) == 1 else sizes[kept]
            parts.append(_fitted(features[kept], counts[kept], sizes, comparison, alpha))
    if not parts:
        return f"no feature has {min_count:g} counts in the topic, in enough units"
    names = [field.name for field in fields(Tests) if field.name != "alpha"]
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Tests(**arrays, alpha=parts[0].alpha)


def _n_effective(counts: Array, sizes: Array) -> Array:
    """Return the numbers (m,) of units with counts (m, U), in so far as units have sizes (., U).

    The sum of the counts is squared and divided by the sum of squares, of which Poisson counts have
    y by chance. Units of different sizes count as if they were equal.
    """
    totals, squares = counts.sum(axis=1), (counts * (counts - 1)).sum(axis=1)
    whole = sizes.shape[1] * (sizes * sizes).sum(axis=1) / sizes.sum(axis=1) ** 2
    with_squares = squares > 0
    ratios = totals * totals / np.where(with_squares, squares, 1.0)
    return np.where(with_squares, ratios * whole, np.inf)


def median_ratios(counts: Array, sizes: Array) -> Array:
    """Return factors (U,) of the sizes (U, .) with which most features have the same frequency.

    The median over the features of the ratio to the geometric mean over the units, as in DESeq
    (Anders, Huber 2010); 1 if few features have counts in all units. Rare features are left out:
    their ratios have few values.
    """
    common = (counts > 0).all(axis=0) & (counts.mean(axis=0) >= _LEAST_MEAN)
    if np.count_nonzero(common) < _LEAST_FEATURES:
        return np.ones(len(sizes))
    logs = log(counts[:, common] / (sizes if sizes.shape[1] == 1 else sizes[:, common]))
    ratios = np.median(logs - logs.mean(axis=0), axis=1)
    factors: Array = exp(ratios - ratios.mean())
    return factors


def _fitted(
    features: Array, counts: Array, sizes: Array, comparison: _Comparison, alpha: float | None
) -> Tests:
    """Return the fits of features with and without the group."""
    design = comparison.design
    counts = with_pseudocounts(counts, sizes)
    fit = None
    if alpha is None:
        fit = fit_features(counts, sizes, design, 0.0)
        alpha = common_alpha(counts, fit.means, comparison.freedom)
    if fit is None or alpha > 0:
        fit = fit_features(counts, sizes, design, alpha)
    without = fit_features(counts, sizes, design[:, :-1], alpha)
    return Tests(
        features, fit.coefficients[:, -1], fit.errors[:, -1],
        np.maximum(without.deviance - fit.deviance, 0.0),
        *variances(counts, fit, sizes, alpha), counts.mean(axis=1), alpha,
    )  # fmt: skip
