"""Scores of features in topics: which features are frequent in a topic, or distinguish it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.functions import log
from ..factors import proportions
from .score_names import DEFAULT_SCORE

Array = NDArray[Any]

# Default weights: of exclusivity as in the R package stm; of the logarithm of the frequency as
# Sievert and Shirley (2014) recommend.
_WEIGHTS = {"frex": 0.5, "relevance": 0.6}


def ranked_features(
    components: Array, n_top: int, score: Any = DEFAULT_SCORE, *, weight: float | None = None,
    overall: Array | None = None, among: Array | None = None,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """Return frequencies (K, m) of features, and the indices of each topic's leading ones.

    Parameters
    ----------
    components : array-like of shape (K, m)
        Non-negative; every row is divided by its sum.
    n_top : int
        Largest number of features of a topic, which come in order, the best first.
    score : {"relevance", "probability", "divergence", "frex", "lift"} or ndarray of shape (K, m)
        As in `feature_scores`, or the scores themselves.
    weight, overall
        As in `feature_scores`.
    among : ndarray of shape (m,) or (K, m), bool, default=None
        The features that may lead a topic, or each topic; None means all.
    """
    matrix = np.asarray(components, np.float64)
    frequencies = proportions(matrix)
    if isinstance(score, str):
        score = feature_scores(frequencies, score, overall=overall, weight=weight)
    ranked = frequencies if among is None else np.where(among, frequencies, 0)
    leading = [best_features(score[k], ranked[k], n_top) for k in range(len(ranked))]
    return frequencies, leading


def feature_scores(
    frequencies: Array, score: str, *, overall: Array | None = None, weight: float | None = None
) -> Array:
    """Return the score of each feature in each topic (K, m).

    Parameters
    ----------
    frequencies : ndarray of shape (K, m), float64
        Frequencies of the features in each topic.
    score : {"relevance", "probability", "divergence", "frex", "lift"}
        With frequency f and overall frequency p: "divergence" is ``f log(f / g) - f + g`` with the
        largest frequency g in another topic; "probability" is f; "lift" is f / p; "frex" is as in
        `frex_of`; "relevance" is ``w log f + (1 - w) log(f / p)`` (Sievert and Shirley 2014), and
        the smallest float64 if f is 0.
    overall : ndarray of shape (m,), default=None
        Overall frequencies; None means the mean over the topics.
    weight : float, default=None
        The weight of "frex" (0.5 by default) and "relevance" (0.6 by default).
    """
    weight = _WEIGHTS.get(score, 0.5) if weight is None else weight
    if score == "divergence":
        return _divergences(frequencies)
    if score == "frex":
        return frex_of(frequencies, weight)
    if score == "probability":
        return frequencies
    p = frequencies.mean(axis=0) if overall is None else overall
    lift = np.divide(frequencies, p, out=np.zeros(frequencies.shape), where=p > 0)
    if score == "lift":
        return lift
    some = (frequencies > 0) & (lift > 0)
    safe = np.where(some, frequencies, 1), np.where(some, lift, 1)
    relevance = weight * log(safe[0]) + (1 - weight) * log(safe[1])
    return np.where(some, relevance, np.finfo(np.float64).min)


def frex_of(frequencies: Array, weight: float) -> Array:
    """Return FREX (K, m): the weighted harmonic mean of two ranks, divided by m, of a feature.

    They are the ranks within a topic of its frequency and of its exclusivity, which is its
    frequency divided by the sum over the topics. `weight` is that of exclusivity (Bischof and
    Airoldi 2012, equation 5).
    """
    from scipy.stats import rankdata

    n_features = frequencies.shape[1]
    sums = frequencies.sum(axis=0)
    exclusivity = np.divide(frequencies, sums, out=np.zeros(frequencies.shape), where=sums > 0)
    ranks = (rankdata(values, axis=1) / n_features for values in (exclusivity, frequencies))
    of_exclusivity, of_frequency = ranks
    scores: Array = 1 / (weight / of_exclusivity + (1 - weight) / of_frequency)
    return scores


def _divergences(frequencies: Array) -> Array:
    """Return the Poisson divergence from the largest other frequency g, 0 if f <= g."""
    if len(frequencies) == 1:
        return frequencies
    # the lower bound of g keeps features of a single topic comparable with others
    rivals = np.maximum(largest_elsewhere(frequencies), 0.01 / frequencies.shape[1])
    ratio = np.maximum(frequencies / rivals, 1)
    divergences: Array = rivals * (ratio * log(ratio) - ratio + 1)
    return divergences


def largest_elsewhere(frequencies: Array) -> Array:
    """Return, for each topic and feature, the largest frequency in any other topic."""
    first, second = -np.partition(-frequencies, 1, axis=0)[:2]
    holder = frequencies.argmax(axis=0) == np.arange(len(frequencies))[:, None]
    return np.where(holder, second, first)


def best_features(scores: Array, frequencies: Array, n_top: int) -> Array:
    """Return the indices of a topic's features with the highest scores, best first.

    Ties are ordered by frequency. Features with frequency 0 are left out.
    """
    some = np.flatnonzero(frequencies)
    if len(some) > n_top:  # sorting a million features would take long
        least = np.partition(scores[some], -n_top)[-n_top]
        some = some[scores[some] >= least]
    best: Array = some[np.lexsort((-frequencies[some], -scores[some]))[:n_top]]
    return best
