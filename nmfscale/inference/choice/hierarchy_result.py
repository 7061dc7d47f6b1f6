"""The result of topic_hierarchy: a tree of topics, its groups and its table."""

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
class TopicHierarchy(Result):
    """A tree of the K topics of a fit: nodes 0 to K - 1 are topics, later ones join two nodes.

    Attributes
    ----------
    linkage : ndarray of shape (K - 1, 4), float64
        The joins in the form of SciPy: two nodes, their distance (one minus mean similarity), and
        the number of topics. Row i makes node K + i.
    topic_names : tuple of str
        Names of the topics.
    words : tuple of str or None
        Leading features of each of the 2 K - 1 nodes, such as "file, files"; None if features have
        no names.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each node: ``node``, ``parent``
    (missing for the root), ``name``, ``n_topics``, ``topics`` (their numbers, as a text) and
    ``similarity`` (the mean similarity at which its parts were joined; 1 for topics).
    """

    linkage: Array
    topic_names: tuple[str, ...]
    words: tuple[str, ...] | None

    @property
    def members(self) -> list[list[int]]:
        """Topics of each node."""
        members = [[k] for k in range(len(self.topic_names))]
        for one, other in self.linkage[:, :2].astype(int):
            members.append(sorted([*members[one], *members[other]]))
        return members

    @property
    def order(self) -> Array:
        """Topics in the order of drawings (K,), so that no lines cross."""
        from scipy.cluster.hierarchy import leaves_list

        order: Array = leaves_list(self.linkage)
        return order

    @property
    def heights(self) -> Array:
        """Places (2 K - 1,) of the nodes in drawings: topics are 1 apart, from 0."""
        K = len(self.topic_names)
        heights = np.zeros(2 * K - 1)
        heights[self.order] = np.arange(K)
        for node, children in enumerate(self.linkage[:, :2].astype(int), K):
            heights[node] = heights[children].mean()
        return heights

    @property
    def labels(self) -> list[str]:
        """Labels of the topics: their names, or numbers and leading features."""
        words = None if self.words is None else self.words[: len(self.topic_names)]
        return topic_labels(self.topic_names, words)

    def cut(self, n_groups: int) -> dict[str, list[int]]:
        """Return groups of topics, the most similar ones together.

        Parameters
        ----------
        n_groups : int
            Number of groups, from 1 to the number of topics.

        Returns
        -------
        dict of str to list of int
            Topics of each group, by the name of the group: leading features, or the label of a
            single topic. ``model.merge_topics(groups)`` merges them.

        Raises
        ------
        ValueError
            If there are not so many topics.
        """
        K = len(self.topic_names)
        if not isinstance(n_groups, int | np.integer) or not 1 <= n_groups <= K:
            raise ValueError(f"n_groups is {shown(n_groups)}: a number from 1 to {K} is needed.")
        there = set(range(K))
        for i, (one, other) in enumerate(self.linkage[: K - int(n_groups), :2].astype(int)):
            there = there - {one, other} | {K + i}
        members = self.members
        groups: dict[str, list[int]] = {}
        for number, node in enumerate(sorted(there, key=lambda node: members[node][0])):
            name = self._name(node, number)
            groups[name if name not in groups else f"{name} ({number})"] = members[node]
        return groups

    def _name(self, node: int, number: int) -> str:
        if node < len(self.topic_names):
            return self.labels[node]
        return f"group {number}" if self.words is None else self.words[node]

    def _columns(self) -> Columns:
        K, members = len(self.topic_names), self.members
        parents: list[int | None] = [None] * len(members)
        for i, (one, other) in enumerate(self.linkage[:, :2].astype(int)):
            parents[one] = parents[other] = K + i
        return {
            "node": np.arange(len(members)),
            "parent": np.array(parents, object),
            "name": name_array([self._name(node, node) for node in range(len(members))]),
            "n_topics": np.array([len(topics) for topics in members]),
            "topics": name_array([" ".join(map(str, topics)) for topics in members]),
            "similarity": np.concatenate([np.ones(K), 1 - self.linkage[:, 2]]),
        }

    def __repr__(self) -> str:
        """Draw the tree as text: similarities of the joins, labels of the topics."""
        K, lines = len(self.topic_names), []
        waiting = [(len(self.members) - 1, 0)]
        while waiting:
            node, depth = waiting.pop()
            name = visible_name(self._name(node, node))
            if node < K:
                lines.append(f"{'  ' * depth}{name}")
                continue
            one, other = self.linkage[node - K, :2].astype(int)
            lines.append(f"{'  ' * depth}{1 - self.linkage[node - K, 2]:.2f}  {name}")
            waiting += [(int(other), depth + 1), (int(one), depth + 1)]
        return "\n".join(lines)
