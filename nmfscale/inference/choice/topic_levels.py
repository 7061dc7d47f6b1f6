"""The tree over several fits with increasing numbers of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.comparison import Metric, match_topics
from ...models.pipelines import model_of
from ...models.topics.topic_labels import topic_words
from ..design.loadings import shares_of_topics, topics_of_samples
from .topic_levels_result import TopicLevels

Array = NDArray[Any]


def fits_in(models: Any) -> dict[str, Any] | None:
    """Return several fits by name, None if the argument is a single one.

    A list of lists of numbers is one matrix of components.
    """
    if isinstance(models, Mapping) and not hasattr(models, "columns"):
        return {str(name): fit for name, fit in models.items()}
    if not isinstance(models, list | tuple) or not all(map(_is_fit, models)):
        return None
    return {f"fit {i}": fit for i, fit in enumerate(models)}


def _is_fit(fit: Any) -> bool:
    return hasattr(fit, "get_params") or np.ndim(getattr(fit, "values", fit)) == 2


def levels_of(fits: Mapping[str, Any], metric: Metric) -> TopicLevels:
    """Return the tree in which the parent of a topic is the most similar one of the fit before."""
    names, models = list(fits), [model_of(fit) for fit in fits.values()]
    if len(models) < 2:
        raise ValueError(f"model has {len(models)} fits: a tree of fits needs two at least.")
    matches = [
        match_topics(one, other, metric=metric)
        for one, other in zip(models[:-1], models[1:], strict=True)
    ]
    topics = [matches[0].names_a, *(match.names_b for match in matches)]
    sizes = [len(of_fit) for of_fit in topics]
    for i in range(1, len(sizes)):
        if sizes[i] <= sizes[i - 1]:
            raise ValueError(
                f"{names[i - 1]} has {sizes[i - 1]} topics and {names[i]} after it {sizes[i]}: "
                "pass fits in the order of their numbers of topics, which rise."
            )
    ends = np.concatenate([[0], np.cumsum(sizes)])
    parents, similarity = np.full(ends[-1], -1), np.ones(ends[-1])
    nearest = np.zeros(ends[-1])
    for i, match in enumerate(matches):
        of_parents, here = match.similarities, slice(ends[i + 1], ends[i + 2])
        best = of_parents.argmax(axis=0)
        parents[here] = ends[i] + best
        similarity[here] = of_parents.max(axis=0)
        others = of_parents.copy()
        others[best, range(sizes[i + 1])] = 0
        nearest[here] = others.max(axis=0)
    words = [topic_words(model) for model in models]
    all_words = None
    if all(of_fit is not None for of_fit in words):
        all_words = tuple(word for of_fit in words for word in of_fit or ())
    return TopicLevels(
        tuple(names), np.repeat(np.arange(len(sizes)), sizes),
        np.concatenate([np.arange(size) for size in sizes]), parents, similarity, nearest,
        np.concatenate([_shares(model, K) for model, K in zip(models, sizes, strict=True)]),
        tuple(name for of_fit in topics for name in of_fit), all_words,
    )  # fmt: skip


def _shares(model: Any, n_topics: int) -> Array:
    """Return the shares (K,) of topics in the counts of a fit, equal ones for components."""
    if getattr(model, "loadings_", None) is None:
        return np.full(n_topics, 1 / n_topics)
    return shares_of_topics(topics_of_samples(model, "amounts", warn=False).rows)
