"""Comparisons of the frequencies of features between topics, and their bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...kernels.functions import log
from ...methods.topics.differential import FeatureDesign, Regressions
from ..design.loadings import number_of_topic

Array = NDArray[Any]
ReferenceName: TypeAlias = Literal["least-extreme", "mean"]
LEAST_EXTREME: ReferenceName = "least-extreme"
# Features whose replicates are compared at a time.
_FEATURES = 256


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

    `z` has the sign of the log ratio; `least` is the least squared z of all other topics.
    """

    log_ratios: Array
    errors: Array
    z: Array
    least: Array

    @classmethod
    def of(
        cls, regressions: Regressions, compared: Reference, design: FeatureDesign,
        weights: Array | None,
        family: str, totals: Array,
    ) -> Tests:  # fmt: skip
        """Return the tests of regressions; features without counts have z = 0."""
        log_ratios = log_ratios_of(regressions.frequencies, regressions.others, weights)
        errors, ratios, least = regressions.errors, regressions.ratios, regressions.least
        if compared.kind == "mean":
            # log f_k - log(mean): what topic k adds to the mean of all takes part of the change
            counts = regressions.frequencies * design.totals
            share = counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(float).tiny)
            mean = counts.sum(axis=1) / design.totals.sum()
            log_ratios = _log_of(regressions.frequencies) - _log_of(mean)[:, None]
            errors = errors * (1 - share)
        if family == "quasi-poisson":
            factor = np.maximum(regressions.dispersion, 1.0)[:, None]
            ratios, least, errors = ratios / factor, least / factor, errors * np.sqrt(factor)
        tested = (totals > 0)[:, None] & ~np.isin(np.arange(errors.shape[1]), compared.own)
        log_ratios, errors, ratios, least = (
            np.where(tested, values, 0.0) for values in (log_ratios, errors, ratios, least)
        )
        return cls(log_ratios, errors, np.sign(log_ratios) * np.sqrt(ratios), least)


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


@dataclass(frozen=True)
class Prior:
    """Pseudo-counts, expected sizes of topics (K,), and mean frequencies of features (m,)."""

    pseudocount: float
    totals: Array
    means: Array

    def added_to(self, frequencies: Array) -> Array:
        """Return frequencies (..., m, K) with pseudo-counts added."""
        a, means = self.pseudocount, np.where(self.means > 0, self.means, 1.0)[:, None]
        out: Array = (self.totals * frequencies + a) / (self.totals + a / means)
        return out


def bootstrap_errors(
    replicates: Array,
    regressions: Regressions,
    compared: Reference,
    weights: Array | None,
    prior: Prior,
) -> Array:
    """Return the standard deviations (m, K) of log ratios over the replicates (R, K, m)."""
    out = np.zeros(regressions.frequencies.shape)
    for first in range(0, len(out), _FEATURES):
        part = slice(first, first + _FEATURES)
        frequencies = np.asarray(replicates[:, :, part], np.float64).transpose(0, 2, 1)
        local = Prior(prior.pseudocount, prior.totals, prior.means[part])
        with_prior = local.added_to(frequencies)
        if compared.kind == "mean":
            mean = (with_prior * prior.totals).sum(axis=-1) / prior.totals.sum()
            logs = log(with_prior) - log(mean)[..., None]
        else:
            others = np.broadcast_to(regressions.others[part], with_prior.shape)
            logs = log_ratios_of(with_prior, others, weights)
        out[part] = logs.std(axis=0, ddof=1) if len(logs) > 1 else 0.0
    return out
