"""The result of cluster_topics: topics that many fits have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.foreign import imported_pandas
from ...counts.names import name_array
from ...methods.factors import proportions
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
    measured : ndarray of bool of shape (n_clusters, n_features)
        Whether a fit of the cluster has the feature. The others are 0 in the consensus.
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
    groups : tuple or None
        Group of each fit, if groups were given.
    feature_names : ndarray or None
        Names of the compared features.
    n_common : ndarray of shape (n_fits, n_fits), int
        Number of features that two fits were compared on.
    min_similarity : float
        Least mean similarity with which clusters were joined.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - "clusters" (default), a row for each cluster: ``cluster``, ``n_fits``, ``n_samples``, for each
      group the number of its samples, such as ``n_samples_control``, ``similarity`` (of its
      topics), ``next`` and ``similarity_to_next`` (of the next cluster), and ``features`` (leading
      ones).
    - "topics", a row for each topic: ``fit``, ``sample``, ``group`` (if given), ``topic``,
      ``cluster`` and ``similarity`` (mean similarity to the other topics of its cluster).
    - "consensus", a row for each feature: ``feature``, and a column for each cluster, which is
      missing where no fit of the cluster has the feature.
    """

    labels: Array
    consensus: Array
    measured: Array
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
    groups: tuple[Any, ...] | None
    feature_names: Array | None
    n_common: Array
    min_similarity: float

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.consensus)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups, sorted; none if groups were not given."""
        return tuple(sorted({str(group) for group in self.groups or ()}))

    @property
    def group_sizes(self) -> Array:
        """Number of different samples in each group, (n_groups,)."""
        return self._samples_of_groups(np.ones((1, len(self.fit_names)), bool))[0]

    @property
    def n_samples_of_groups(self) -> Array:
        """Number of different samples of each group that have each cluster, (n_clusters, n_groups).

        A sample with fits in several groups counts in each of them.
        """
        has = np.zeros((self.n_clusters, len(self.fit_names)), bool)
        has[self.labels, self.fits] = True
        return self._samples_of_groups(has)

    def _samples_of_groups(self, fits: Array) -> Array:
        """Return the number of samples of each group among some fits, given by rows of a mask."""
        labels = [*zip(map(str, self.samples), map(str, self.groups or ()), strict=False)]
        numbers = [
            [len({labels[i] for i in np.flatnonzero(row) if labels[i][1] == group})
             for group in self.group_names]
            for row in fits
        ]  # fmt: skip
        return np.array(numbers, np.int64).reshape(len(fits), len(self.group_names))

    @property
    def words(self) -> tuple[str, ...] | None:
        """Leading features of each consensus topic, such as "file, files"; None without names."""
        if self.feature_names is None:
            return None
        return leading_words(self._comparable(), self.feature_names, self.measured)

    @property
    def leading(self) -> list[list[str]]:
        """Eight leading features of each consensus topic."""
        _, leading = ranked_features(self._comparable(), _N_FEATURES, among=self.measured)
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
            Frequencies, with names of clusters, such as "cluster 0", and features, those that fits
            of each of these clusters have: the components of a fit with fixed topics, or topics for
            new samples.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            If no cluster has so many samples, or these clusters have no feature in common.
        """
        kept = np.flatnonzero(self.n_samples >= min_samples)
        if not len(kept):
            raise ValueError(
                f"min_samples={min_samples}: no cluster has so many samples; the largest number is "
                f"{self.n_samples.max()}."
            )
        names = [f"cluster {cluster}" for cluster in kept]
        common = self.measured[kept].all(axis=0)
        if not common.any():
            raise ValueError(
                f"min_samples={min_samples}: no feature is in fits of all {len(kept)} clusters; a "
                "larger number selects fewer clusters."
            )
        pd = imported_pandas()
        frequencies = proportions(self.consensus[kept][:, common])
        return pd.DataFrame(frequencies, index=names, columns=self._features()[common])

    def _comparable(self) -> Array:
        """Return the consensus, with the mean of the other clusters where a frequency is unknown.

        So panels that differ do not make a feature distinctive.
        """
        n_known = self.measured.sum(axis=0)
        mean = np.where(self.measured, self.consensus, 0.0).sum(axis=0) / np.maximum(n_known, 1)
        return np.where(self.measured, self.consensus, mean)

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
            "n_samples": self.n_samples,
            **{
                f"n_samples_{group}": numbers
                for group, numbers in zip(
                    self.group_names, self.n_samples_of_groups.T, strict=True
                )
            },
            "similarity": self.within,
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
            **({} if self.groups is None else {"group": name_array(self.groups)[self.fits]}),
            "topic": name_array(self.topic_names), "cluster": self.labels,
            "similarity": similarity,
        }  # fmt: skip

    def _of_features(self) -> Columns:
        known = np.where(self.measured, self.consensus, np.nan)
        clusters = {f"cluster {c}": values for c, values in enumerate(known)}
        return {"feature": self._features(), **clusters}

    def __repr__(self) -> str:
        """Return numbers of fits and samples, similarities and features of the clusters as text."""
        several = self.samples != self.fit_names
        counted = [
            f"{name} ({size})"
            for name, size in zip(self.group_names, self.group_sizes, strict=True)
        ]
        rows = [("cluster", "fits", *["samples"] * several, *counted, "similarity", "to next", "")]
        words = self.words or [""] * self.n_clusters
        of_groups = self.n_samples_of_groups
        for c in range(min(self.n_clusters, _MOST)):
            numbers = f"{self.within[c]:.2f}", f"{self.to_nearest[c]:.2f}"
            within, to_next = ("-" if text == "nan" else text for text in numbers)
            samples = [str(self.n_samples[c])] * several + [*map(str, of_groups[c])]
            rows.append((str(c), str(self.n_fits[c]), *samples, within, to_next, words[c]))
        lines = table_lines(rows, leading=True)
        if self.n_clusters > _MOST:
            lines.append(f"... and {self.n_clusters - _MOST} more clusters: see to_frame()")
        n_alone, n_features = int((self.n_samples == 1).sum()), self.consensus.shape[1]
        of = "sample" if several else "fit"
        least = self.n_common.min()
        common = f", at least {least:,} of them in common" if least < n_features else ""
        lines.append(
            f"{len(self.labels)} topics of {len(self.fit_names)} fits in {self.n_clusters} "
            f"clusters, {n_alone} of a single {of}; {n_features:,} features{common}"
        )
        return "\n".join(lines)
