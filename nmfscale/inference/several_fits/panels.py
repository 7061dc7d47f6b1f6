"""Features that only some fits have: similarities and consensus of topics of different panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...methods.factors import proportions
from ...methods.topics.matching import lift_correlations_among
from ...models.comparison import METRICS, Metric, lists_of_features, with_common_features

Array = NDArray[Any]
# Smallest share of a panel.
_LEAST = 1e-30
# The consensus of topics of different panels ends at this relative change of a panel's share.
_SMALL, _MOST_STEPS = 1e-8, 300


@dataclass(frozen=True)
class Panels:
    """Topics of several fits on the features of all of them.

    Attributes
    ----------
    topics : list of ndarray of shape (K, m)
        Frequencies in the topics of each fit, 0 for a feature that the fit lacks.
    measured : ndarray of bool of shape (n_fits, m)
        Whether a fit has a feature.
    feature_names : ndarray or None
        Names of the m features: those of the first fit, then those that others add.
    """

    topics: list[Array]
    measured: Array
    feature_names: Any


def panels_of(
    topics: Sequence[Array], names: Sequence[Any], fits: Sequence[str], pairwise: bool
) -> Panels:
    """Return topics on the features that some fit has, or, if not `pairwise`, that all have.

    Arguments are as in `with_common_features`.
    """
    lists = lists_of_features(topics, names, fits) if pairwise else None
    if lists is None:
        kept, feature_names = with_common_features(topics, names, fits)
        return Panels(kept, np.ones((len(kept), kept[0].shape[1]), bool), feature_names)
    place = {name: j for j, name in enumerate(dict.fromkeys(sum(lists, [])))}
    measured, whole = np.zeros((len(lists), len(place)), bool), []
    for i, (values, names_here) in enumerate(zip(topics, lists, strict=True)):
        at = [place[name] for name in names_here]
        measured[i, at] = True
        whole.append(np.zeros((len(values), len(place))))
        whole[i][:, at] = values
    return Panels(whole, measured, name_array(list(place)))


def check_overlap(panels: Panels, fits: Sequence[str], least: int) -> Array:
    """Return the number of features that two fits have in common (n_fits, n_fits).

    If there are different panels, fewer than `least` features are refused.
    """
    kinds, kind_of = np.unique(panels.measured, axis=0, return_inverse=True)
    n_common = np.array([[(one & other).sum() for other in kinds] for one in kinds])
    numbers: Array = n_common[np.ix_(kind_of, kind_of)]
    if len(kinds) > 1 and numbers.min() < least:
        one, other = sorted(divmod(int(numbers.argmin()), len(numbers)))
        have = f"{numbers[one, one]:,} and {numbers[other, other]:,}"
        raise ValueError(
            f"{fits[one]} and {fits[other]} have {numbers[one, other]:,} features in common, of "
            f"{have}, and min_common={least} are needed to compare their topics: leave out one of "
            "the fits, or give a smaller number."
        )
    return numbers


def similarities_of(panels: Panels, metric: Metric) -> Array:
    """Return similarities (T, T) among the topics of all fits, symmetric to the bit.

    Two fits are compared on the features that both have, with the mean of all fits that have them.
    """
    sizes = [len(values) for values in panels.topics]
    ends = np.cumsum([0, *sizes])
    kinds, kind_of = np.unique(panels.measured, axis=0, return_inverse=True)
    similarities = np.zeros((ends[-1], ends[-1]))
    for one, other in combinations_with_replacement(range(len(kinds)), 2):
        features = np.flatnonzero(kinds[one] & kinds[other])
        having = np.flatnonzero(panels.measured[:, features].all(axis=1))
        rows, columns = (np.flatnonzero(kind_of[having] == kind).tolist() for kind in (one, other))
        topics = [panels.topics[i][:, features].T for i in having]
        here, there = (
            np.concatenate([np.arange(ends[having[i]], ends[having[i] + 1]) for i in fits])
            for fits in (rows, columns)
        )
        block = _between(topics, rows, columns, metric)
        similarities[np.ix_(here, there)] = block
        similarities[np.ix_(there, here)] = block.T
    lower = np.tril(similarities.clip(0, 1), -1)
    np.fill_diagonal(symmetric := lower + lower.T, 1.0)
    return symmetric


def _between(
    topics: Sequence[Array], rows: Sequence[int], columns: Sequence[int], metric: Metric
) -> Array:
    """Return similarities between the topics of some fits (m, K) and others."""
    if metric == "lift":
        return lift_correlations_among(topics, rows, columns)
    here, there = (np.concatenate([topics[i] for i in fits], axis=1) for fits in (rows, columns))
    return METRICS[metric](here, there)


def consensus_of(topics: Array, measured: Array) -> Array:
    """Return the mean (m,) of topics (n, m), each known for its `measured` features only.

    A topic of a panel A has the frequencies ``q_j / q(A)`` of the whole topic q, where q(A) is the
    sum over A. With as many counts for each topic, the likelihood of q is largest where ``q_j =
    sum_t f_tj / sum_t 1 / q(A_t)``, with sums over the topics that have j, which is solved by
    iteration. The mean of topics with the same features is a special case.
    """
    if measured.all():
        return topics.mean(axis=0)
    sums, shares = topics.sum(axis=0), np.ones(len(topics))
    for _ in range(_MOST_STEPS):
        weights = (measured / shares[:, None]).sum(axis=0)
        whole = np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)
        whole /= whole.sum()
        before, shares = shares, np.maximum((measured * whole).sum(axis=1), _LEAST)
        if (np.abs(shares - before) <= _SMALL * before).all():
            break
    return proportions(whole[None])[0]
