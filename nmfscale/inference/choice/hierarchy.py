"""topic_hierarchy: topics of topics, a tree in which similar topics of a fit are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.names import names_of
from ...methods.factors import proportions
from ...models.comparison import Metric, match_topics
from ...models.pipelines import FittedModel, model_and_input, refuse_swapped
from ...models.topics.topic_labels import leading_words
from ..design.loadings import shares_of_topics, topics_of_samples
from .hierarchy_result import TopicHierarchy
from .topic_levels import fits_in, levels_of
from .topic_levels_result import TopicLevels

Array = NDArray[Any]


@overload
def topic_hierarchy(
    model: Sequence[FittedModel] | Mapping[str, FittedModel | ArrayLike], *, metric: Metric = ...
) -> TopicLevels: ...


@overload
def topic_hierarchy(model: FittedModel | ArrayLike, *, metric: Metric = ...) -> TopicHierarchy: ...


def topic_hierarchy(
    model: Any, *, metric: Metric = "bhattacharyya"
) -> TopicHierarchy | TopicLevels:
    """Join similar topics of a fit step by step: a tree of topics of topics.

    The two groups of topics with the largest mean similarity are joined, until all topics are in
    one group. The tree can be cut at any number of groups, which have names of their leading
    features, and whose topics can be merged.

    Several fits with rising numbers of topics are the levels of a tree: the parent of a topic is
    the most similar topic of the fit before it.

    Parameters
    ----------
    model : fitted model, or array-like or DataFrame of shape (K, n_features)
        A model, a pipeline that ends with one, or components. For a tree of several fits, a list of
        them, or a dict by name, in the order of their numbers of topics.
    metric : {"lift", "cosine", "bhattacharyya"}, default="bhattacharyya"
        Similarity of two topics, as in :func:`match_topics`. Lifts of the topics of one fit are
        hardly correlated, so that "lift" finds few joins.

    Returns
    -------
    TopicHierarchy or TopicLevels
        The tree of one fit, or of several; ``cut(n_groups)`` returns groups, ``to_frame()`` its
        nodes, and :func:`nmfscale.pl.hierarchy_plot` draws it.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError
        If there are fewer than two topics, numbers of topics do not rise from fit to fit, or as
        :func:`match_topics`.

    Warns
    -----
    UserWarning
        As :func:`match_topics`.

    Notes
    -----
    The tree of one fit is average linkage of ``1 - similarity``. The words of a node are the
    leading features of the mean of its topics, weighted by their shares in the counts of the fit,
    by relevance relative to all nodes.

    Examples
    --------
    >>> import nmfscale
    >>> components = [[8, 1, 0, 0, 1], [7, 3, 0, 0, 0], [0, 0, 5, 4, 1], [0, 0, 4, 5, 1]]
    >>> tree = nmfscale.topic_hierarchy(components)
    >>> tree.cut(2)
    {'group 0': [0, 1], 'group 1': [2, 3]}

    A tree of two fits; the second one has twice as many topics:

    >>> import numpy as np
    >>> coarse = np.array([[15, 4, 0, 0, 1], [0, 0, 9, 9, 2]])
    >>> print(nmfscale.topic_hierarchy({"two": coarse, "four": np.array(components)}))
    topic 0 (50.0%)
      0.99  topic 0 (25.0%)
      0.97  topic 1 (25.0%)
    topic 1 (50.0%)
      1.00  topic 2 (25.0%)
      1.00  topic 3 (25.0%)
    """
    refuse_swapped(model, metric, "the metric")
    if (fits := fits_in(model)) is not None:
        return levels_of(fits, metric)
    fitted, _ = model_and_input(model, None)
    match = match_topics(fitted, fitted, metric=metric)
    K = len(match.names_a)
    if K < 2:
        raise ValueError("model has one topic: a hierarchy needs two at least.")
    linkage = _average_linkage(match.similarities)
    frequencies = proportions(np.asarray(getattr(fitted, "components_", fitted), dtype=np.float64))
    weights = np.full(K, 1 / K)
    if getattr(fitted, "loadings_", None) is not None:
        weights = shares_of_topics(topics_of_samples(fitted, "amounts", warn=False).rows)
    tree = TopicHierarchy(linkage, match.names_a, None)
    names = names_of(fitted, 1)
    if names is None:
        return tree
    nodes = np.array([_mean(frequencies, weights, topics) for topics in tree.members])
    return replace(tree, words=leading_words(nodes, names))


def _average_linkage(similarities: Array) -> Array:
    """Return the joins of K topics (K - 1, 4), in the form of SciPy."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = np.clip(1 - (similarities + similarities.T) / 2, 0.0, 1.0)
    np.fill_diagonal(distances, 0.0)
    joins: Array = linkage(squareform(distances), "average", optimal_ordering=True)
    return joins


def _mean(frequencies: Array, weights: Array, topics: list[int]) -> Array:
    """Return the weighted mean of some topics; of topics without weight, the plain mean."""
    own = weights[topics] if weights[topics].any() else np.ones(len(topics))
    mean: Array = (own[:, None] * frequencies[topics]).sum(axis=0) / own.sum()
    return mean
