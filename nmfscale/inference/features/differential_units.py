"""Tests of features between units: t statistics whose variances are moderated over features.

A few units say little about the variance of one feature, and thousands of features are alike. The
variance of a difference of frequencies ``sum_k c_k f_k`` is expected to be
``s sum_k c_k^2 (f_k / u_k + r f_k^2 a_k)``: that of Poisson counts, where u are expected counts of
topics, and that of units whose frequencies differ by factors, where a is the sum of squared shares
of the units in a topic. Variances relative to this trend have a prior, as in limma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...counts.warn import warn_caller
from ...kernels.functions import exp, log
from ...methods.topics.differential import FeatureDesign, Regressions
from ...methods.topics.unit_covariances import unpacked
from ..design.groups import Design, Labels, warn_of_samples_as_units
from ..moderation import VariancePrior

Array = NDArray[Any]
# Values of r from which that of the trend is chosen, relative to the one at which both parts of the
# variance are equal.
_SHARES_OF_UNITS = (0.0, *(4.0**power for power in range(-5, 6)))
# Expected counts of a feature in the topics of a comparison from which its variance has a part in
# the prior; least and largest number of such features.
_LEAST_COUNTS, _LEAST_FEATURES, _MOST_FEATURES = 10.0, 20, 1000
# Number of units below which to warn; the sum of squared shares of units in a topic from which one
# unit has most of it; share of the variance between units from which a topic may be one of units.
_FEW_UNITS, _ONE_UNIT, _OF_UNITS = 10, 0.5, 0.6


@dataclass(frozen=True)
class _Comparison:
    """Differences ``sum_l c_l f_l`` of frequencies f (m, K), for the tests of topics `tested`.

    `parts` (m, K) are ``c_l f_l``, not 0 for the topics `members`; `logs` (m, K) are coefficients
    of log frequencies in the log ratio.
    """

    tested: tuple[int, ...]
    members: tuple[int, ...]
    parts: Array
    logs: Array

    def variances(self, covariances: Array) -> Array:
        """Return the variances (m,) of the differences by the jackknife."""
        return _variances(covariances, self.parts, self.members)


@dataclass(frozen=True)
class _Trend:
    """Expected variances, but for s: `of_poisson` and `of_units` (m, K) multiply ``c_k^2 f_k^2``.

    `counts` (m, K) are the expected counts of features in topics.
    """

    of_poisson: Array
    of_units: Array
    counts: Array

    @classmethod
    def of(cls, frequencies: Array, design: FeatureDesign, features: Array) -> _Trend:
        """Return the trend for the frequencies (m, K) of features."""
        counts = frequencies * np.maximum(design.totals[features], np.finfo(float).tiny)
        return cls(_divided(np.ones_like(counts), counts), design.squared_shares(features), counts)

    def fitted(self, comparison: _Comparison, variances: Array) -> tuple[float, float, Array]:
        """Return r, s, and the ratios of some variances to the trend, none if there are too few."""
        counts = self.counts[:, list(comparison.members)].sum(axis=1)
        kept = np.flatnonzero((counts >= _LEAST_COUNTS) & (variances > 0))
        if len(kept) < _LEAST_FEATURES:
            return np.nan, np.nan, np.empty(0)
        kept = kept[:: -(-len(kept) // _MOST_FEATURES)]
        poisson, units = (part[kept] for part in self._parts(comparison))
        equal = float(poisson.sum() / units.sum())
        logs = [
            log(variances[kept] / (poisson + share * equal * units)) for share in _SHARES_OF_UNITS
        ]
        best = int(np.argmin([values.var() for values in logs]))
        mean = logs[best].mean()
        return _SHARES_OF_UNITS[best] * equal, float(exp(mean)), exp(logs[best] - mean)

    def expected(self, comparison: _Comparison, r: float, s: float) -> Array:
        """Return expected variances (m,)."""
        poisson, units = self._parts(comparison)
        out: Array = s * (poisson + r * units)
        return out

    def _parts(self, comparison: _Comparison) -> tuple[Array, Array]:
        squares = comparison.parts * comparison.parts
        return (squares * self.of_poisson).sum(axis=1), (squares * self.of_units).sum(axis=1)


@dataclass(frozen=True)
class _Moderation:
    """The prior of variances with `own` degrees of freedom, and r and s (C, 2) of all trends.

    `freedom` are the degrees of freedom of moderated variances, at most those of all features
    together. Without features enough for a prior, `prior` is None.
    """

    trend: _Trend
    own: float
    numbers: Array
    prior: VariancePrior | None
    freedom: float

    @classmethod
    def of(
        cls, f: Array, weights: Array | None, covariances: Array, design: FeatureDesign,
        features: Array,
    ) -> _Moderation:  # fmt: skip
        """Estimate the prior from the variances of all comparisons."""
        trend, own = _Trend.of(f, design, features), design.n_units - 1.0
        fits = [
            trend.fitted(comparison, comparison.variances(covariances))
            for comparison in _comparisons(f, weights)
        ]
        numbers = np.array([fit[:2] for fit in fits])
        ratios = np.concatenate([fit[2] for fit in fits])
        if not len(ratios):
            return cls(trend, own, numbers, None, own)
        # comparisons with few features have the trend of others
        numbers = np.where(np.isnan(numbers), np.nanmedian(numbers, axis=0), numbers)
        prior = VariancePrior.of(ratios, np.full(len(ratios), own))
        most = own * max(len(fit[2]) for fit in fits)
        return cls(trend, own, numbers, prior, min(own + prior.freedom, most))

    def moderated(self, number: int, comparison: _Comparison, variances: Array) -> Array:
        """Return the moderated variances (m,) of a comparison."""
        if self.prior is None:
            return variances
        r, s = self.numbers[number].tolist()
        expected = self.trend.expected(comparison, r, s)
        ratios = _divided(variances, expected)
        return self.prior.moderated(ratios, np.full(len(ratios), self.own))[0] * expected


def tests_between_units(
    regressions: Regressions, weights: Array | None, covariances: Array, design: FeatureDesign,
    features: Array,
) -> tuple[Array, Array, float]:  # fmt: skip
    """Return standard errors of log ratios and absolute t statistics, (m, K), and their freedom.

    The statistics are those of differences of frequencies, not of their logarithms, whose errors
    are large where a feature hardly occurs; without weights, the least one of all other topics.
    """
    f, others = regressions.frequencies, regressions.others
    moderation = _Moderation.of(f, weights, covariances, design, features)
    errors, sizes = np.zeros_like(f), np.full_like(f, np.inf)
    for number, comparison in enumerate(_comparisons(f, weights)):
        variances = comparison.variances(covariances)
        moderated = moderation.moderated(number, comparison, variances)
        t = _divided(np.abs(comparison.parts.sum(axis=1)), np.sqrt(moderated))
        of_logs = _variances(covariances, comparison.logs, comparison.members)
        error = np.sqrt(of_logs * _divided(moderated, variances))
        for k in comparison.tested:
            other = sum(comparison.members) - k
            compared = weights is not None or others[:, k] == other
            errors[:, k] = np.where(compared, error, errors[:, k])
            sizes[:, k] = np.minimum(sizes[:, k], t)
    return errors, sizes, moderation.freedom


# Warnings --------------------------------------------------------------------------------------


def warn_of_units(design: FeatureDesign, labels: Labels | None, names: tuple[Any, ...]) -> None:
    """Warn of samples that cannot be units, of few units, and of topics of one unit."""
    if labels is None or design.unit_sums is None:
        n = int(design.sizes.sum())
        one = Labels(np.zeros(n, np.int64), (None,))
        warn_of_samples_as_units(Design(np.arange(n), n, None, one))
        return
    if design.n_units < _FEW_UNITS:
        warn_caller(
            f"there are {design.n_units} units: with fewer than about {_FEW_UNITS}, differences "
            "must be large to be found, and p-values depend on units being alike. More units are "
            "needed, not more samples."
        )
    shares = design.unit_sums.sum(axis=0) / design.whole
    alone = np.flatnonzero((shares * shares).sum(axis=0) > _ONE_UNIT)
    if alone.size:
        units = shares[:, alone].argmax(axis=0)
        such = ", ".join(
            f"{names[k]} ({shares[u, k]:.0%} in unit {shown(labels.names[u])})"
            for k, u in zip(alone, units, strict=True)
        )
        warn_caller(
            f"one unit has most of topics {such}: how much these topics vary between units cannot "
            "be estimated, and p-values of comparisons with them are too small."
        )


def warn_of_topics_of_units(proportions: Array, units: Labels, names: tuple[Any, ...]) -> None:
    """Warn of fitted topics whose proportions (n, K) vary between units, and hardly within them."""
    n, U = len(units), len(np.unique(units.codes))
    if n == U:
        return
    sums = np.zeros((len(units.names), proportions.shape[1]))
    np.add.at(sums, units.codes, proportions)
    within = proportions - (sums / np.maximum(units.sizes, 1)[:, None])[units.codes]
    apart = proportions - proportions.mean(axis=0)
    total = (apart * apart).sum(axis=0) / (n - 1)
    between = 1 - _divided((within * within).sum(axis=0) / (n - U), total)
    of_units = np.flatnonzero((between > _OF_UNITS) & (total > 0))
    if of_units.size:
        such = ", ".join(f"{names[k]} ({between[k]:.0%})" for k in of_units)
        warn_caller(
            f"most of the variance of topics {such} is between units: they may be nothing but "
            "differences between these units, which both parts of the split counts share. If so, "
            "tests of their features at 5% reject about 10%. Confirm their features in other units."
        )


# Comparisons -----------------------------------------------------------------------------------


def _comparisons(f: Array, weights: Array | None) -> Iterator[_Comparison]:
    """Yield comparisons of all pairs of topics, or of each topic with those that have weights."""
    K = f.shape[1]
    for k in range(K):
        if weights is None:
            for i in range(k):
                signs = np.zeros(K)
                signs[k], signs[i] = 1.0, -1.0
                yield _Comparison((k, i), (k, i), f * signs, np.broadcast_to(signs, f.shape))
            continue
        parts = f * weights[k]
        logs = -_divided(parts, parts.sum(axis=1, keepdims=True))
        members = (*np.flatnonzero(weights[k]).tolist(), k)
        parts = -parts
        parts[:, k], logs[:, k] = f[:, k], 1.0
        yield _Comparison((k,), members, parts, logs)


def _variances(covariances: Array, contrasts: Array, members: tuple[int, ...]) -> Array:
    """Return the variances (m,) of contrasts (m, K) of log coefficients; others have weight 0."""
    out = np.zeros(len(contrasts))
    for k in members:
        for i in members:
            out += contrasts[:, k] * contrasts[:, i] * unpacked(covariances, k, i)
    return np.maximum(out, 0.0)


def _divided(values: Array, by: Array) -> Array:
    """Return quotients, 0 where the divisor is 0."""
    out: Array = np.divide(values, by, out=np.zeros(np.broadcast(values, by).shape), where=by > 0)
    return out
