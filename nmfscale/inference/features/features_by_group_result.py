"""The result of features_by_group: frequencies of features in topics and groups, and changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import Topic
from ...counts.names import name_array
from ...models.tables import Columns
from ...models.topics.topic_labels import topic_labels
from ...terminal import visible_name
from ..design.loadings import number_of_topic
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class FeaturesByGroup(Result):
    """Frequencies of m features within K topics, in G groups of samples.

    Attributes
    ----------
    frequencies, lower, upper : ndarray of shape (G, K, m)
        Frequency of a feature in a topic in the samples of a group, and its interval at `level`.
        Frequencies of a topic and group sum to 1.
    lfc, lfc_lower, lfc_upper : ndarray of shape (G, K, m)
        Log2 ratio of the frequency to that in the group `reference`, or in all other groups, and
        its interval. It is 0 for the reference itself.
    counts : ndarray of shape (G, K, m)
        Counts of the feature in the samples of the group that are split to the topic.
    overall : ndarray of shape (K, m)
        Frequencies of the fit, to which those of groups are shrunk.
    shapes : ndarray of shape (K,)
        Shape of the prior of each topic: large if its features hardly differ between groups.
    dispersions : ndarray of shape (m,)
        Variance of the scores of a feature between units in relation to that of Poisson counts; at
        least 1.
    n_samples, n_units : ndarray of shape (G,), int
        Number of samples and units of each group.
    groups : tuple
        Labels of the groups.
    reference : label or None
        The group that others are compared with; None if each one is compared with all others.
    level : float
        Nominal coverage of the intervals.
    feature_names : ndarray or None
        Names of the features.
    topic_names : tuple
        Names of the topics.
    origin : Origin
        Names of the columns of labels, and leading features of the topics.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic, group and feature:
    ``topic``, ``group``, ``feature``, ``frequency``, ``lower``, ``upper``, ``lfc``, ``lfc_lower``,
    ``lfc_upper`` and ``count``. Given a topic, by name or number, they return its rows.
    """

    frequencies: Array
    lower: Array
    upper: Array
    lfc: Array
    lfc_lower: Array
    lfc_upper: Array
    counts: Array
    overall: Array
    shapes: Array
    dispersions: Array
    n_samples: Array
    n_units: Array
    groups: tuple[Any, ...]
    reference: Any
    level: float
    feature_names: NDArray[Any] | None
    topic_names: tuple[Any, ...]
    origin: Origin = Origin()

    @property
    def feature_labels(self) -> Array:
        """Names of the features, or their numbers if they have no names."""
        names = self.feature_names
        return np.arange(self.overall.shape[1]) if names is None else np.asarray(names)

    @property
    def topic_labels(self) -> list[str]:
        """Names of the topics, or numbers and leading features."""
        return topic_labels(self.topic_names, self.origin.topic_words)

    def topic_number(self, topic: Topic) -> int:
        """Return the number of a topic, given by name or number."""
        return number_of_topic(topic, self.topic_names, "topic")

    def leading(self, topic: Topic, n_top: int = 10) -> Array:
        """Return the features that change most within a topic.

        Parameters
        ----------
        topic : str or int
            Name or number of the topic.
        n_top : int, default=10
            Largest number of features.

        Returns
        -------
        ndarray of int
            Features with an interval of a change that excludes 0, by the largest difference of
            frequency between two groups, that of intervals: from the end of one interval to the
            start of the other. None are left out if all groups agree.
        """
        k = self.topic_number(topic)
        apart = self.lower[:, k].max(axis=0) - self.upper[:, k].min(axis=0)
        differs = (self.lfc_lower[:, k] > 0) | (self.lfc_upper[:, k] < 0)
        kept = np.asarray(differs.any(axis=0))
        order = np.argsort(-apart, kind="stable")
        leading: Array = order[kept[order]][:n_top]
        return leading

    def _table(self, what: Topic | None) -> Columns:
        """Return the rows of a topic, by default those of all topics."""
        G, K, m = self.frequencies.shape
        topics = np.arange(K) if what is None else np.array([self.topic_number(what)])

        def rows(values: Array) -> Array:
            return values[:, topics].transpose(1, 0, 2).ravel()

        return {
            "topic": np.repeat(name_array(self.topic_names)[topics], G * m),
            "group": np.tile(np.repeat(name_array(self.groups), m), len(topics)),
            "feature": np.tile(self.feature_labels, G * len(topics)),
            "frequency": rows(self.frequencies), "lower": rows(self.lower),
            "upper": rows(self.upper), "lfc": rows(self.lfc), "lfc_lower": rows(self.lfc_lower),
            "lfc_upper": rows(self.lfc_upper), "count": rows(self.counts),
        }  # fmt: skip

    def __repr__(self) -> str:
        """Sizes, what groups are compared with, and how many features change."""
        G, K, m = self.frequencies.shape
        n_found = int(((self.lfc_lower > 0) | (self.lfc_upper < 0)).any(axis=0).sum())
        against = "all others" if self.reference is None else visible_name(self.reference)
        return (
            f"<FeaturesByGroup: {m:,} features within {K} topics in {G} groups, relative to "
            f"{against}, {n_found:,} pairs of a topic and a feature with an interval without 0>"
        )
