"""Comparisons of the frequencies of features between topics: statistics, p-values, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...kernels.functions import log, log1p
from ...methods.topics.differential import FeatureDesign, Regressions
from ..design.loadings import number_of_topic
from ..quantiles import normal_quantile, normal_tail, t_pvalue, t_quantile
from .differential_units import tests_between_units

Array = NDArray[Any]
ReferenceName: TypeAlias = Literal["least-extreme", "mean"]
LEAST_EXTREME: ReferenceName = "least-extreme"
# Degrees of freedom from which a t distribution is taken as normal.
_LARGE = 1000


@dataclass(frozen=True)
class Reference:
    """What topics are compared with: `kind` "least-extreme", "mean" or "topics", which `members`.

    `label` is its text for the result.
    """

    kind: str
    members: tuple[int, ...] = ()
    label: str = ""

    @classmethod
    def of(cls, reference: Any, names: tuple[Any, ...]) -> Reference:
        """Return the reference for an argument; topics are given by name or number."""
        if isinstance(reference, str) and reference not in names:
            if reference in get_args(ReferenceName):
                return cls(reference, label=reference)
            names_in_words = ", ".join(map(shown, names))
            raise ValueError(
                f"reference={shown(reference)} is not 'least-extreme', 'mean' or a topic: "
                "topics are "
                f"{names_in_words}."
            )
        several = isinstance(reference, Sequence | np.ndarray) and not isinstance(reference, str)
        wanted = list(reference) if several else [reference]
        members = [number_of_topic(topic, names, "reference") for topic in wanted]
        if not members or len(set(members)) < len(members) or len(members) == len(names):
            raise ValueError(
                f"reference={shown(reference)}: some of the topics are needed, each once, and "
                "at least "
                "one topic must be left to compare."
            )
        label = " and ".join(str(names[k]) for k in members)
        return cls("topics", tuple(sorted(members)), f"topic{'s' * (len(members) > 1)} {label}")

    def weights(self, totals: Array) -> Array | None:
        """Return the weights (K, K) of the topics that each topic is compared with, or None.

        Topics have the weights of their expected sizes `totals` (K,). A single topic that is its
        own reference is compared with another one, to no purpose: see `own`.
        """
        if self.kind == LEAST_EXTREME:
            return None
        K = len(totals)
        out = np.zeros((K, K))
        for k in range(K):
            members = [member for member in self.members or range(K) if member != k]
            members = members or [(k + 1) % K]
            sizes = np.maximum(totals[members], np.finfo(float).tiny)
            out[k, members] = sizes / sizes.sum()
        return out

    @property
    def own(self) -> tuple[int, ...]:
        """Topics that are their own reference."""
        return self.members if len(self.members) == 1 else ()


@dataclass(frozen=True)
class Tests:
    """Comparisons of topics, arrays (m, K): natural log ratios, their standard errors, z.

    `z` has the sign of the log ratio, and the least absolute value of the comparisons that a topic
    is tested by. It is a t statistic with `freedom` degrees of freedom, normal if that is None.
    """

    log_ratios: Array
    errors: Array
    z: Array
    freedom: float | None

    @classmethod
    def of(
        cls, regressions: Regressions, compared: Reference, design: FeatureDesign,
        weights: Array | None, family: str, totals: Array, covariances: Array | None,
        features: Array,
    ) -> Tests:  # fmt: skip
        """Return the tests of regressions; features without counts have z = 0.

        With `covariances` of log coefficients between units, these take the place of the likelihood
        and of the family.
        """
        log_ratios = log_ratios_of(regressions.frequencies, regressions.others, weights)
        share = np.zeros_like(log_ratios)
        if compared.kind == "mean":
            # log f_k - log(mean): what topic k adds to the mean of all takes part of the change
            counts = regressions.frequencies * design.whole
            share = counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(float).tiny)
            mean = counts.sum(axis=1) / design.whole.sum()
            log_ratios = _log_of(regressions.frequencies) - _log_of(mean)[:, None]
        if covariances is not None:
            errors, sizes, freedom = tests_between_units(
                regressions, weights, covariances, design, features
            )
        else:
            varies = family == "quasi-poisson"
            factor = np.maximum(regressions.dispersion, 1.0)[:, None] if varies else 1.0
            errors = regressions.errors * np.sqrt(factor)
            sizes = np.sqrt(regressions.least / factor)
            left = int(design.sizes.sum()) - log_ratios.shape[1]
            freedom = max(left, 1) if varies else np.inf
        errors = errors * (1 - share)
        tested = (totals > 0)[:, None] & ~np.isin(np.arange(errors.shape[1]), compared.own)
        log_ratios, errors, z = (
            np.where(tested, values, 0.0)
            for values in (log_ratios, errors, np.sign(log_ratios) * sizes)
        )
        return cls(log_ratios, errors, z, float(freedom) if freedom < _LARGE else None)

    @property
    def pvalues(self) -> Array:
        """Two-sided p-values."""
        sizes = np.abs(self.z)
        p = 2 * normal_tail(sizes) if self.freedom is None else t_pvalue(sizes, self.freedom)
        return np.minimum(p, 1.0)

    @property
    def scores(self) -> Array:
        """Absolute values of standard normal numbers with the same p-values, about."""
        sizes = np.abs(self.z)
        if self.freedom is None:
            return sizes
        n = self.freedom  # Wallace 1959, Bounds on normal approximations to Student's distribution
        out: Array = np.sqrt(n * log1p(sizes * sizes / n)) * ((8 * n + 1) / (8 * n + 3))
        return out

    def intervals(self, level: float) -> tuple[Array, Array]:
        """Return both ends of intervals of the log ratios, which include 0 if p > 1 - level.

        They are those of the standard error on the log scale, unless these contradict the test.
        """
        quantile = (
            normal_quantile((1 + level) / 2)
            if self.freedom is None
            else t_quantile(self.freedom, level)
        )
        change, half = np.abs(self.log_ratios), quantile * self.errors
        sizes, near = np.abs(self.z), change - half
        found = sizes > quantile
        by_test = change * (1 - quantile / np.where(found, sizes, quantile))  # 0 if not found
        near = np.where(found == (near > 0), near, by_test)
        ends = np.array([near, change + half]) * np.where(self.log_ratios < 0, -1.0, 1.0)
        lower, upper = ends.min(axis=0), ends.max(axis=0)
        return lower, upper


def _log_of(values: Array) -> Array:
    """Return logarithms; 0, of features without counts, stays 0."""
    out: Array = log(np.where(values > 0, values, 1.0))
    return out


def log_ratios_of(frequencies: Array, others: Array, weights: Array | None) -> Array:
    """Return log f_k less the log of what it is compared with, (..., m, K)."""
    logs = _log_of(frequencies)
    if weights is None:
        return logs - np.take_along_axis(logs, np.maximum(others, 0), axis=-1)
    means = np.zeros_like(frequencies)
    for k in range(len(weights)):
        means[..., k] = (frequencies * weights[k]).sum(axis=-1)
    return logs - _log_of(means)
