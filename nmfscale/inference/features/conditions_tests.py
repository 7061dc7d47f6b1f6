"""Comparisons of condition_features within one topic: designs, fits, moderated tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ...counts.names import shown
from ...kernels.decompositions import orthonormal_basis
from ...kernels.functions import exp, log
from ..design.groups import Labels
from ..moderation import VariancePrior
from ..quantiles import t_pvalue, t_quantile
from .pseudobulk_result import Pseudobulk
from .quasi_likelihood import common_alpha, fit_features, with_pseudocounts

Array = NDArray[Any]
_LOG_2 = 0.6931471805599453
# |t| below which a standard error is that of the curvature, not the change divided by t.
_SMALL_T = 0.1
# Least mean count of the features that normalize units, and least number of these features.
_LEAST_MEAN, _LEAST_FEATURES = 5.0, 20


def _independent(columns: Array) -> Array:
    """Return a mask of the columns that do not depend on earlier ones."""
    gram = np.array([(columns * column[:, None]).sum(axis=0) for column in columns.T])
    return np.logical_or.reduce(orthonormal_basis(gram) != 0)


@dataclass(frozen=True)
class _Comparison:
    """Units (U',) and the design (U', p) of a comparison; the last column is the group."""

    units: Array
    design: Array

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
        for code in (group, reference):
            if not (codes == code).any():
                return f"no unit of group {shown(labels.names[code])} has the topic"
        others = [g for g in range(len(labels.names)) if g not in (group, reference)]
        columns = np.column_stack([fixed[units], *(codes == g for g in (*others, group))])
        kept = _independent(columns.astype(np.float64))
        if not kept[-1]:
            return "strata, units or covariates explain the groups among the units with the topic"
        comparison = cls(units, columns[:, kept].astype(np.float64))
        if comparison.freedom < 1:
            return f"{len(units):,} units with the topic are too few for the comparison"
        return comparison


@dataclass(frozen=True)
class Tests:
    """Numbers of the tested features: log changes, errors, t^2 without phi, and variances."""

    features: Array
    change: Array
    error: Array
    ratio: Array
    variance: Array
    freedom: Array
    alpha: float

    def numbers(self, level: float) -> dict[str, Array]:
        """Return the numbers of the result, with variances that are moderated over the features."""
        prior = VariancePrior.of(self.variance, self.freedom)
        phi, freedom = prior.moderated(self.variance, self.freedom)
        phi = np.maximum(phi, np.finfo(float).tiny)
        t = np.sign(self.change) * np.sqrt(self.ratio / phi)
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


def compare_within(
    bulk: Pseudobulk, k: int, units: Array, fixed: Array, labels: Labels, reference: int,
    group: int, min_count: float, normalize: str,
) -> Tests | str:  # fmt: skip
    """Return the tests within a topic of a group against the reference, or why there are none."""
    whole = _Comparison.of(units, fixed, labels, reference, group)
    if isinstance(whole, str):
        return whole
    parts: list[Tests] = []
    factors = np.ones(len(bulk.counts))
    if normalize == "median-ratio":
        everywhere = bulk.counts[units, k][:, bulk.measured_everywhere]
        factors[units] = median_ratios(everywhere, bulk.sizes.sum(axis=0)[units, k])
    for features, expected in _patterns(bulk, k):
        measured, sizes = units[expected[units] >= min_count], expected * factors
        comparison = whole
        if len(measured) < len(units):
            other = _Comparison.of(measured, fixed, labels, reference, group)
            if isinstance(other, str):
                continue
            comparison = other
        counts = bulk.counts[comparison.units, k].T[features]
        kept = counts.sum(axis=1) >= min_count
        if kept.any():
            alpha = parts[0].alpha if parts else None
            parts.append(
                _fitted(features[kept], counts[kept], sizes[comparison.units], comparison, alpha)
            )
    if not parts:
        return f"no feature has {min_count:g} counts in the topic"
    return Tests(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("features", "change", "error", "ratio", "variance", "freedom")
        },
        alpha=parts[0].alpha,
    )


def median_ratios(counts: Array, sizes: Array) -> Array:
    """Return factors (U,) of the sizes (U,) with which most features have the same frequency.

    The median over the features of the ratio to the geometric mean over the units, as in DESeq
    (Anders, Huber 2010); 1 if few features have counts in all units. Rare features are left out:
    their ratios have few values.
    """
    common = (counts > 0).all(axis=0) & (counts.mean(axis=0) >= _LEAST_MEAN)
    if np.count_nonzero(common) < _LEAST_FEATURES:
        return np.ones(len(sizes))
    logs = log(counts[:, common] / sizes[:, None])
    ratios = np.median(logs - logs.mean(axis=0), axis=1)
    factors: Array = exp(ratios - ratios.mean())
    return factors


def _patterns(bulk: Pseudobulk, k: int) -> Iterator[tuple[Array, Array]]:
    """Yield features that the same panels measured, most first, and their sizes of units (U,)."""
    m = bulk.counts.shape[2]
    if bulk.measured is None:
        yield np.arange(m), bulk.sizes[0, :, k]
        return
    kinds, kind = np.unique(bulk.measured, axis=1, return_inverse=True)
    kind = kind.reshape(-1)
    for number in np.argsort(-np.bincount(kind), kind="stable").tolist():
        sizes = bulk.sizes[kinds[:, number], :, k].sum(axis=0)
        yield np.flatnonzero(kind == number), sizes


def _fitted(
    features: Array, counts: Array, sizes: Array, comparison: _Comparison, alpha: float | None
) -> Tests:
    """Return the fits of features with and without the group."""
    design, freedom = comparison.design, comparison.freedom
    counts = with_pseudocounts(counts, sizes)
    fit = None
    if alpha is None:
        fit = fit_features(counts, sizes, design, 0.0)
        alpha = common_alpha(counts, fit.means, freedom)
    if fit is None or alpha > 0:
        fit = fit_features(counts, sizes, design, alpha)
    without = fit_features(counts, sizes, design[:, :-1], alpha)
    return Tests(
        features, fit.coefficients[:, -1], fit.errors[:, -1],
        np.maximum(without.deviance - fit.deviance, 0.0), fit.pearson / freedom,
        np.full(len(features), float(freedom)), alpha,
    )  # fmt: skip
