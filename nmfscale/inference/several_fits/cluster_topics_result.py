"""The result of cluster_topics: topics that many fits have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.foreign import imported_pandas
from ...counts.names import name_array
from ...methods.topics.feature_scores import ranked_features
from ...models.tables import Columns, Tables
from ...models.topics.topic_labels import leading_words
from ...terminal import table_lines
from ..results.files import Result

Array = NDArray[Any]
# Clusters in the text; leading features in the table.
_MOST, _N_FEATURES = 30, 8


@dataclass(frozen=True, repr=False)
class TopicClusters(Result):
    """Clusters of the topics of many fits, those that most samples have first.

    Topics are in the order of the fits, and of the topics of each fit: T in all.

    Attributes
    ----------
    labels : ndarray of shape (T,), int
        Cluster of each topic, from 0.
    consensus : ndarray of shape (n_clusters, n_features), float64
        Mean frequencies of the features in the topics of each cluster; rows sum to one.
    similarities : ndarray of shape (T, T), float64
        Similarities of all topics, between 0 and 1.
    fits : ndarray of shape (T,), int
        Number of the fit of each topic.
    n_fits : ndarray of shape (n_clusters,), int
        Number of fits that have a topic of each cluster.
    n_samples : ndarray of shape (n_clusters,), int
        Number of different samples of these fits.
    within : ndarray of shape (n_clusters,), float64
        Mean similarity of two topics of a cluster; missing for a cluster of one topic.
    nearest : ndarray of shape (n_clusters,), int
        The next cluster: that with the largest mean similarity of their topics; -1 if there is no
        other.
    to_nearest : ndarray of shape (n_clusters,), float64
        This mean similarity.
    fit_names : tuple of str
        Names of the fits.
    topic_names : tuple of str
        Names of the topics within their fits.
    samples : tuple
        Sample of each fit.
    feature_names : ndarray or None
        Names of the compared features.
    min_similarity : float
        Least mean similarity with which clusters were joined.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - "clusters" (default), a row for each cluster: ``cluster``, ``n_fits``, ``n_samples``,
      ``similarity`` (of its topics), ``next`` and ``similarity_to_next`` (of the next cluster), and
      ``features`` (leading ones).
    - "topics", a row for each topic: ``fit``, ``sample``, ``topic``, ``cluster`` and
      ``similarity`` (mean similarity to the other topics of its cluster).
    - "consensus", a row for each feature: ``feature``, and a column for each cluster.
    """

    labels: Array
    consensus: Array
    similarities: Array
    fits: Array
    n_fits: Array
    n_samples: Array
    within: Array
    nearest: Array
    to_nearest: Array
    fit_names: tuple[str, ...]
    topic_names: tuple[str, ...]
    samples: tuple[Any, ...]
    feature_names: Array | None
    min_similarity: float

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.consensus)

    @property
    def words(self) -> tuple[str, ...] | None:
        """Leading features of each consensus topic, such as "file, files"; None without names."""
        if self.feature_names is None:
            return None
        return leading_words(self.consensus, self.feature_names)

    @property
    def leading(self) -> list[list[str]]:
        """Eight leading features of each consensus topic."""
        _, leading = ranked_features(self.consensus, _N_FEATURES)
        features = self._features()
        return [[str(features[j]) for j in order] for order in leading]

    @property
    def names(self) -> tuple[str, ...]:
        """Number of each cluster and its leading features, such as "0 file, files"."""
        words = self.words
        return tuple(
            f"cluster {c}" if words is None else f"{c} {words[c]}" for c in range(self.n_clusters)
        )

    def components_df(self, min_samples: int = 1) -> Any:
        """Return consensus topics as the components of a model.

        Parameters
        ----------
        min_samples : int, default=1
            Only clusters that at least this many samples have.

        Returns
        -------
        pandas.DataFrame of shape (n_topics, n_features)
            Frequencies, with names of clusters, such as "cluster 0", and features: the components
            of a fit with fixed topics, or topics for new samples.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            If no cluster has so many samples.
        """
        kept = np.flatnonzero(self.n_samples >= min_samples)
        if not len(kept):
            raise ValueError(
                f"min_samples={min_samples}: no cluster has so many samples; the largest number is "
                f"{self.n_samples.max()}."
            )
        names = [f"cluster {cluster}" for cluster in kept]
        pd = imported_pandas()
        return pd.DataFrame(self.consensus[kept], index=names, columns=self._features())

    def _features(self) -> Array:
        if self.feature_names is None:
            return name_array([f"feature {j}" for j in range(self.consensus.shape[1])])
        return name_array(self.feature_names)

    def _tables(self) -> Tables:
        return {
            "clusters": self._of_clusters, "topics": self._of_topics,
            "consensus": self._of_features,
        }  # fmt: skip

    def _of_clusters(self) -> Columns:
        columns = {
            "cluster": np.arange(self.n_clusters), "n_fits": self.n_fits,
            "n_samples": self.n_samples, "similarity": self.within,
            "next": np.array([None if c < 0 else c for c in self.nearest.tolist()], object),
            "similarity_to_next": self.to_nearest,
        }  # fmt: skip
        if self.feature_names is None:
            return columns
        return columns | {"features": name_array([", ".join(of) for of in self.leading])}

    def _of_topics(self) -> Columns:
        same = self.labels[:, None] == self.labels
        np.fill_diagonal(same, False)
        n_others = same.sum(axis=1)
        sums = np.where(same, self.similarities, 0.0).sum(axis=1)
        similarity = np.divide(sums, n_others, out=np.full(len(same), np.nan), where=n_others > 0)
        return {
            "fit": name_array(self.fit_names)[self.fits],
            "sample": name_array(self.samples)[self.fits],
            "topic": name_array(self.topic_names), "cluster": self.labels,
            "similarity": similarity,
        }  # fmt: skip

    def _of_features(self) -> Columns:
        clusters = {f"cluster {c}": values for c, values in enumerate(self.consensus)}
        return {"feature": self._features(), **clusters}

    def __repr__(self) -> str:
        """Return numbers of fits and samples, similarities and features of the clusters as text."""
        several = self.samples != self.fit_names
        rows = [("cluster", "fits", *["samples"] * several, "similarity", "to next", "")]
        words = self.words or [""] * self.n_clusters
        for c in range(min(self.n_clusters, _MOST)):
            numbers = f"{self.within[c]:.2f}", f"{self.to_nearest[c]:.2f}"
            within, to_next = ("-" if text == "nan" else text for text in numbers)
            samples = [str(self.n_samples[c])] * several
            rows.append((str(c), str(self.n_fits[c]), *samples, within, to_next, words[c]))
        lines = table_lines(rows, leading=True)
        if self.n_clusters > _MOST:
            lines.append(f"... and {self.n_clusters - _MOST} more clusters: see to_frame()")
        n_alone = int((self.n_fits == 1).sum())
        lines.append(
            f"{len(self.labels)} topics of {len(self.fit_names)} fits in {self.n_clusters} "
            f"clusters, {n_alone} of a single fit; {self.consensus.shape[1]:,} features"
        )
        return "\n".join(lines)
