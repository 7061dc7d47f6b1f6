"""The result of enrichment: sets of features that are enriched in topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import Topic
from ...models.tables import Columns
from ...terminal import table_lines
from ..design.loadings import number_of_topic
from ..results.files import Result

Array = NDArray[Any]
# Sets of each topic in the text, and features of a set.
_SHOWN, _FEATURES = 3, 5


@dataclass(frozen=True, repr=False)
class Enrichment(Result):
    """Tests of S sets of features in K topics.

    Attributes
    ----------
    pvalue : ndarray of shape (K, S)
        One-sided p-value of each set in each topic.
    qvalue : ndarray of shape (K, S)
        The same, adjusted by Benjamini and Hochberg over the sets of a topic.
    auc : ndarray of shape (K, S)
        Probability that a feature of the set has a higher score than another one: 0.5 by chance.
    overlap : ndarray of shape (K, S), int
        Number of features of the set among the leading features of the topic.
    sizes : ndarray of shape (S,), int
        Number of features of the model in each set.
    members : tuple of ndarray
        These features, as positions in the model.
    leading : tuple of ndarray
        Leading features of each topic, best first.
    gene_sets : tuple of str
        Names of the sets.
    topic_names : tuple of str
        Names of the topics.
    feature_names : ndarray of shape (n_features,)
        Names of the features as in the sets.
    test : {"hypergeometric", "rank"}
        The test of the p-values.
    n_top : int
        Largest number of leading features.
    untested : tuple of str
        Names of sets that have too few or too many features of the model.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic and set, for each
    topic in the order of the p-values: ``topic``, ``gene_set``, ``size``, ``overlap``, ``fold``
    (the overlap divided by what is expected by chance), ``auc``, ``pvalue``, ``qvalue`` and
    ``features``, those of the overlap, best first. The rows of one topic can be asked for by its
    name or number.
    """

    pvalue: Array
    qvalue: Array
    auc: Array
    overlap: Array
    sizes: Array
    members: tuple[Array, ...]
    leading: tuple[Array, ...]
    gene_sets: tuple[str, ...]
    topic_names: tuple[str, ...]
    feature_names: Array
    test: str
    n_top: int
    untested: tuple[str, ...]

    @property
    def fold(self) -> Array:
        """Overlap divided by the overlap that is expected by chance, (K, S)."""
        drawn = np.array([[len(top)] for top in self.leading])
        expected = drawn * self.sizes / len(self.feature_names)
        return np.divide(self.overlap, expected, out=np.zeros(expected.shape), where=expected > 0)

    @property
    def words(self) -> tuple[str, ...]:
        """Two leading features of each topic, such as "file, files", for labels."""
        return tuple(", ".join(str(self.feature_names[j]) for j in top[:2]) for top in self.leading)

    def order(self, topic: Topic) -> Array:
        """Return the sets of a topic in the order of the p-values.

        Parameters
        ----------
        topic : str or int
            The topic, by name or number.

        Returns
        -------
        ndarray of shape (S,), int
            Positions in `gene_sets`; of equal p-values, the larger AUC comes first.
        """
        k = number_of_topic(topic, self.topic_names, "topic")
        order: Array = np.lexsort((-self.auc[k], self.pvalue[k]))
        return order

    def features_of(self, topic: Topic, gene_set: int) -> list[str]:
        """Return the leading features of a topic that are in a set, best first.

        Parameters
        ----------
        topic : str or int
            The topic, by name or number.
        gene_set : int
            Position of the set in `gene_sets`.

        Returns
        -------
        list of str
            Names of features.
        """
        top = self.leading[number_of_topic(topic, self.topic_names, "topic")]
        inside = top[np.isin(top, self.members[gene_set])]
        return [str(self.feature_names[j]) for j in inside]

    def _table(self, what: Any) -> Columns:
        """Return the rows of a topic, by default those of all topics."""
        topics = [*range(len(self.topic_names))]
        if what is not None:
            topics = [number_of_topic(what, self.topic_names, "topic")]
        rows = [(k, int(s)) for k in topics for s in self.order(k)]
        k, s = np.array(rows).T
        names = np.array(self.topic_names, object), np.array(self.gene_sets, object)
        return {
            "topic": names[0][k], "gene_set": names[1][s], "size": self.sizes[s],
            "overlap": self.overlap[k, s], "fold": self.fold[k, s], "auc": self.auc[k, s],
            "pvalue": self.pvalue[k, s], "qvalue": self.qvalue[k, s],
            "features": np.array([", ".join(self.features_of(*row)) for row in rows], object),
        }  # fmt: skip

    def __repr__(self) -> str:
        """Return the first sets of each topic as text."""
        rows = [("topic", "gene set", "overlap", "size", "AUC", "p", "q", "")]
        for k, name in enumerate(self.topic_names):
            for s in self.order(k)[:_SHOWN]:
                rows.append((
                    name, self.gene_sets[s], str(self.overlap[k, s]), str(self.sizes[s]),
                    f"{self.auc[k, s]:.2f}", f"{self.pvalue[k, s]:.2g}",
                    f"{self.qvalue[k, s]:.2g}",
                    " ".join(self.features_of(k, s)[:_FEATURES]),
                ))  # fmt: skip
        lines = table_lines(rows, leading=True)
        left = f"; {len(self.untested):,} too small or too large" if self.untested else ""
        lines.append(
            f"{self.test} test of {len(self.gene_sets):,} gene sets{left}; "
            f"{len(self.feature_names):,} features, {self.n_top} leading ones of each topic"
        )
        return "\n".join(lines)
