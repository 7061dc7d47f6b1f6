"""The result of topic_hierarchy for several fits: levels of topics, and their parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array, shown
from ...models.tables import Columns
from ...models.topics.topic_labels import topic_labels
from ...terminal import visible_name
from ..results.files import Result

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class TopicLevels(Result):
    """A tree of the topics of several fits: a fit is a level, and each topic has a parent above it.

    Attributes
    ----------
    fit_names : tuple of str
        Names of the fits, from the fewest topics to the most.
    levels : ndarray of shape (N,), int
        The fit of each of the N topics.
    topics : ndarray of shape (N,), int
        The number of each topic in its fit.
    parents : ndarray of shape (N,), int
        The most similar topic of the fit before, as a number from 0 to N - 1; -1 in the first fit.
    similarity, next_similarity : ndarray of shape (N,), float64
        Similarity to the parent, and to the next best topic of that fit: where both are nearly
        equal, a topic mixes two of the fit before. They are 1 and 0 in the first fit.
    shares : ndarray of shape (N,), float64
        Shares of the topics in the counts of their fit, which sum to 1 for each fit; equal ones for
        components.
    topic_names : tuple of str
        Names of the topics.
    words : tuple of str or None
        Leading features of each topic, such as "file, files"; None if features have no names.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic: ``node``, ``fit``,
    ``topic``, ``name``, ``parent``, ``n_children`` (both missing where there is no such fit),
    ``similarity``, ``next_similarity`` and ``share``.
    """

    fit_names: tuple[str, ...]
    levels: Array
    topics: Array
    parents: Array
    similarity: Array
    next_similarity: Array
    shares: Array
    topic_names: tuple[str, ...]
    words: tuple[str, ...] | None

    @property
    def labels(self) -> list[str]:
        """Labels of all topics: their names, or numbers and leading features."""
        labels = []
        for level in range(len(self.fit_names)):
            here = np.flatnonzero(self.levels == level).tolist()
            words = None if self.words is None else [self.words[i] for i in here]
            labels += topic_labels([self.topic_names[i] for i in here], words)
        return labels

    @property
    def children(self) -> list[list[int]]:
        """Topics whose parent is each topic."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                children[parent].append(node)
        return children

    @property
    def heights(self) -> Array:
        """Places (N,) of the topics in drawings, from 0: topics without children are 1 apart."""
        children, heights, n_places = self.children, np.zeros(len(self.parents)), 0
        waiting = np.flatnonzero(self.parents < 0)[::-1].tolist()
        order = []
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += children[node][::-1]
            if not children[node]:
                heights[node], n_places = n_places, n_places + 1
        for node in order[::-1]:
            if children[node]:
                heights[node] = heights[children[node]].mean()
        return heights

    def cut(self, n_groups: int) -> dict[str, list[int]]:
        """Return groups of the topics of the last fit, by their ancestors in another fit.

        Parameters
        ----------
        n_groups : int
            Number of topics of one of the fits.

        Returns
        -------
        dict of str to list of int
            Topics of the last fit, by the label of their ancestor. Ancestors without topics in the
            last fit are left out. ``model.merge_topics(groups)`` merges them.

        Raises
        ------
        ValueError
            If no fit has so many topics.
        """
        sizes = np.bincount(self.levels).tolist()
        if n_groups not in sizes:
            raise ValueError(
                f"n_groups is {shown(n_groups)}: a number of topics of the fits is needed, "
                f"{', '.join(map(str, sizes))}."
            )
        level, labels = sizes.index(n_groups), self.labels
        groups: dict[str, list[int]] = {}
        ancestors = np.arange(len(self.levels))
        for _ in range(len(sizes) - 1 - level):
            ancestors = np.where(self.levels[ancestors] > level, self.parents[ancestors], ancestors)
        last = self.levels == len(sizes) - 1
        for ancestor in np.flatnonzero(self.levels == level).tolist():
            members = self.topics[last & (ancestors == ancestor)].tolist()
            if members:
                name = labels[ancestor]
                groups[name if name not in groups else f"{name} ({ancestor})"] = members
        return groups

    def _columns(self) -> Columns:
        last, n = len(self.fit_names) - 1, len(self.levels)
        children = [
            None if self.levels[node] == last else len(below)
            for node, below in enumerate(self.children)
        ]
        return {
            "node": np.arange(n), "fit": name_array(self.fit_names)[self.levels],
            "topic": self.topics, "name": name_array(self.labels),
            "parent": np.array([None if p < 0 else p for p in self.parents.tolist()], object),
            "n_children": np.array(children, object), "similarity": self.similarity,
            "next_similarity": self.next_similarity, "share": self.shares,
        }  # fmt: skip

    def __repr__(self) -> str:
        """Draw the tree as text: similarities to parents, labels, and shares in counts."""
        labels, children, lines = self.labels, self.children, []
        waiting = np.flatnonzero(self.parents < 0)[::-1].tolist()
        while waiting:
            node = waiting.pop()
            indent = "  " * int(self.levels[node])
            similarity = "" if self.parents[node] < 0 else f"{self.similarity[node]:.2f}  "
            name = visible_name(labels[node])
            lines.append(f"{indent}{similarity}{name} ({self.shares[node]:.1%})")
            waiting += children[node][::-1]
        return "\n".join(lines)
