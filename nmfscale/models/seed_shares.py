"""How much of the counts of seeds their topics explain, and a warning if that is little."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..counts.names import shown
from ..counts.warn import LeftSeedsWarning, warn_caller
from .arguments.seeds import seed_features
from .topics.topics import topic_names_of

Array = NDArray[Any]
# A topic with a smaller share of the counts of its seeds has left them: others explain most.
LEAST_SHARE = 0.5
# Topics in the warning; samples whose loadings are weighted at a time.
_NAMED, _PIECE = 5, 65_536


class ExplainedSeeds(NamedTuple):
    """Seeds of all topics: numbers of topics and features (S,), and shares (S, K) of topics."""

    topics: Array
    features: Array
    shares: Array

    def means(self) -> tuple[Array, Array]:
        """Return the topics (T,) with seeds, and the mean shares (T, K) over the seeds of each."""
        topics = np.unique(self.topics)
        means = [self.shares[self.topics == topic].mean(axis=0) for topic in topics]
        return topics, np.array(means).reshape(len(topics), self.shares.shape[1])


def explained_seeds(model: Any) -> ExplainedSeeds:
    """Return the shares of all topics of a fit in the expected counts of each seed.

    Seeds without expected counts are left out.
    """
    pairs = [(k, j) for k, features in enumerate(seed_features(model)) for j in features]
    topics, features = np.array(pairs, np.intp).reshape(-1, 2).T
    expected = _expected(model, features)
    there = expected.sum(axis=1) > 0
    expected = expected[there]
    shares = expected / expected.sum(axis=1, keepdims=True)
    return ExplainedSeeds(topics[there], features[there], shares)


def _expected(model: Any, features: Array) -> Array:
    """Return numbers (S, K) in proportion to the expected counts of topics in features."""
    loadings = getattr(model, "loadings_", None)
    for name in ("topic_word_posterior_", *(("mean_counts_",) if loadings is None else ())):
        if getattr(model, name, None) is not None:  # the second after batches
            return np.asarray(getattr(model, name)[:, features].T, np.float64)
    if loadings is None:
        raise ValueError(
            f"this {type(model).__name__} has no loadings_, from which the counts of topics "
            "follow: call fit or partial_fit."
        )
    of_topics = np.zeros(len(model.components_))
    for first in range(0, len(loadings), _PIECE):
        here = slice(first, first + _PIECE)
        rows = np.asarray(loadings[here], np.float64)
        if model.loadings_are_proportions:
            rows = rows * model.sample_totals_[here, None]
        of_topics += rows.sum(axis=0)
    expected: Array = np.asarray(model.components_[:, features].T, np.float64) * of_topics
    return expected


def warn_of_left_seeds(model: Any) -> None:
    """Warn of topics of a fit that explain less than half of the counts of their seeds."""
    if getattr(model, "seeds", None) is None:
        return
    topics, means = explained_seeds(model).means()
    own = means[np.arange(len(topics)), topics]
    left = np.flatnonzero(own < LEAST_SHARE)
    if not len(left):
        return
    names = topic_names_of(model, means.shape[1])
    shown_shares = []
    for i in left[:_NAMED]:
        others = np.where(np.arange(len(names)) == topics[i], -1.0, means[i])
        other = int(others.argmax())
        shown_shares.append(
            f"{shown(names[topics[i]])} {own[i]:.0%} ({shown(names[other])} {others[other]:.0%})"
        )
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    such = ", such as to 1" if model.seed_weight < 1 else ""
    warn_caller(
        f"seeds: {len(left)} of {len(topics)} topics explain less than half of the counts of their "
        f"seeds, and may have other themes than their names: {', '.join(shown_shares)}{more}. Set "
        f"seed_weight above {model.seed_weight:g}{such}, or n_components above {len(names)}, or "
        "leave out seeds that many themes have. nmfscale.seed_shares(model) returns these shares.",
        LeftSeedsWarning,
    )
