"""The result of cluster_samples: clusters of samples with similar proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.tables import Columns
from ...terminal import visible_name
from ..results.files import Result

Array = NDArray[Any]
# Number of topics that the text shows for a cluster.
_SHOWN = 3


@dataclass(frozen=True, repr=False)
class SampleClusters(Result):
    """Clusters of samples, in an order in which neighbouring clusters are similar.

    Attributes
    ----------
    labels : ndarray of shape (n_samples,), int
        Cluster of each sample, from 0; -1 for samples without counts.
    centers : ndarray of shape (n_clusters, K), float64
        Mean proportions of the samples of each cluster.
    distances : ndarray of shape (n_samples,), float64
        Distance of the square roots of the proportions from the center of the cluster; 0 for
        samples without counts.
    silhouettes : dict of int to float
        Mean silhouette for each compared number of clusters; empty if the number was given.
    topic_names : tuple
        Names of the topics.
    sample_names : ndarray or None
        Names of the samples.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each sample: ``sample``, its
    name or number; ``cluster``, with missing values for samples without counts; and ``distance``.
    """

    labels: Array
    centers: Array
    distances: Array
    silhouettes: dict[int, float]
    topic_names: tuple[Any, ...]
    sample_names: Array | None

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.centers)

    @property
    def sizes(self) -> Array:
        """Number of samples of each cluster."""
        sizes: Array = np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)
        return sizes

    @property
    def groups(self) -> Array:
        """Clusters as `groups` of a plot or test, (n_samples,), None for samples without counts."""
        return np.array([None if label < 0 else label for label in self.labels.tolist()], object)

    def _columns(self) -> Columns:
        numbers = np.arange(len(self.labels))
        names = numbers if self.sample_names is None else name_array(self.sample_names)
        return {"sample": names, "cluster": self.groups, "distance": self.distances}

    def _name(self, topic: int) -> str:
        name = self.topic_names[topic]
        return visible_name(name) if isinstance(name, str) else f"topic {name}"

    def __repr__(self) -> str:
        """Sizes and largest topics of the clusters."""
        lines = []
        for cluster, (size, center) in enumerate(zip(self.sizes, self.centers, strict=True)):
            largest = np.argsort(-center, kind="stable")[:_SHOWN]
            topics = ", ".join(f"{self._name(k)} {center[k]:.0%}" for k in largest)
            lines.append(f"cluster {cluster}: {size:,} samples, {topics}")
        if self.silhouettes:
            best = self.silhouettes[self.n_clusters]
            numbers = f"{min(self.silhouettes)} to {max(self.silhouettes)}"
            lines.append(
                f"{self.n_clusters} clusters have the largest mean silhouette of {numbers}, "
                f"{best:.2f}"
            )
        return "\n".join(lines)
