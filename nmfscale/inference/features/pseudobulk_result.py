"""The result of pseudobulk: expected counts of units and features, topic by topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import Topic
from ...counts.foreign import imported_pandas
from ...counts.names import name_array
from ...kernels import dense
from ...models.tables import Columns, Tables
from ..design.loadings import number_of_topic
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class Pseudobulk(Result):
    """Expected counts of m features in U units and K topics.

    Attributes
    ----------
    counts : ndarray of shape (U, K, m)
        Expected counts. Their sums over the topics are the counts of the units.
    sizes : ndarray of shape (G, U, K)
        Expected counts of all features by the fit, if all efficiencies were 1, separately for
        groups of samples of one batch and one panel: times `efficiencies`, from these a unit has
        its size for a feature.
    efficiencies : ndarray of shape (G, m), or None
        Efficiencies of features in each group of samples, 0 for features that were not measured;
        None if all are 1, so that G is 1.
    frequencies : ndarray of shape (K, m)
        Frequencies of the features in the topics, with which counts were split.
    confusion : ndarray of shape (m, K (K + 1) / 2)
        How many of the counts that come from a topic are expected to be split to another one, or to
        itself: pairs of topics in the order of ``numpy.tril_indices(K)``.
    proportions : ndarray of shape (U, K)
        Sums of the proportions of the topics: the number of samples, split among the topics.
    n_samples : ndarray of shape (U,), int
        Number of samples of each unit.
    unit_names : tuple
        Labels of the units.
    groups : tuple or None
        The group of each unit, if units were split by group.
    group_names : tuple or None
        Labels of the groups, in their order.
    obs : dict of str to ndarray of shape (U,)
        Columns of ``obs`` of the counts that have a single value in each unit.
    topic_names : tuple
        Names of the topics.
    feature_names : ndarray or None
        Names of the features.
    origin : Origin
        Names of the columns of labels.
    batches : tuple or None
        Label of the batch of each group of samples; None without efficiencies of batches.

    Notes
    -----
    The tables of :meth:`columns` and :meth:`to_frame` have a row for each unit and topic, and begin
    with ``unit``, ``group`` (if there are groups) and ``topic``. "units", the default:
    ``n_samples``, ``proportions`` and ``count``, the sum of the counts. "counts": a column for each
    feature.
    """

    counts: Array
    sizes: Array
    efficiencies: Array | None
    frequencies: Array
    confusion: Array
    proportions: Array
    n_samples: Array
    unit_names: tuple[Any, ...]
    groups: tuple[Any, ...] | None
    group_names: tuple[Any, ...] | None
    obs: dict[str, Array]
    topic_names: tuple[Any, ...]
    feature_names: NDArray[Any] | None
    origin: Origin = Origin()
    batches: tuple[Any, ...] | None = None

    @property
    def measured_everywhere(self) -> Array:
        """Mask (m,) of the features that were measured in all samples."""
        if self.efficiencies is None:
            return np.ones(self.counts.shape[2], bool)
        used = self.sizes.any(axis=(1, 2))
        return np.logical_and.reduce(self.efficiencies[used] > 0)

    def sizes_of_features(self, topic: int) -> Array:
        """Return the sizes (U, m) of units for the features of a topic, or (U, 1) if all are equal.

        They are expected counts of the topic if the feature had all of them: times its frequency,
        those of the feature.
        """
        if self.efficiencies is None:
            return self.sizes[0, :, topic, None]
        return dense.product(self.sizes[:, :, topic].T, self.efficiencies)

    @property
    def feature_labels(self) -> Array:
        """Names of the features, or their numbers if they have no names."""
        names = self.feature_names
        return np.arange(self.counts.shape[2]) if names is None else np.asarray(names)

    def _tables(self) -> Tables:
        return {"units": self._units, "counts": self._counts}

    def _labels(self) -> Columns:
        U, K, _ = self.counts.shape
        units = {"unit": name_array(self.unit_names)}
        if self.groups is not None:
            units["group"] = name_array(self.groups)
        labels = {name: np.repeat(values, K) for name, values in units.items()}
        return labels | {"topic": np.tile(name_array(self.topic_names), U)}

    def _units(self) -> Columns:
        return self._labels() | {
            "n_samples": np.repeat(self.n_samples, len(self.topic_names)),
            "proportions": self.proportions.ravel(), "count": self.counts.sum(axis=2).ravel(),
        }  # fmt: skip

    def _counts(self) -> Columns:
        rows = self.counts.reshape(-1, self.counts.shape[2])
        features = {str(name): rows[:, j] for j, name in enumerate(self.feature_labels)}
        return self._labels() | features

    def to_anndata(self, topic: Topic | None = None, *, rounded: bool = False) -> Any:
        """Return an AnnData object with a row for each unit and topic.

        Features that some samples did not measure are left out: their counts are those of the other
        samples.

        Parameters
        ----------
        topic : str or int, optional
            Only the rows of a topic, by name or number.
        rounded : bool, default=False
            Round counts to whole numbers, half to even, as DESeq2 and pydeseq2 need them. edgeR and
            limma take fractions.

        Returns
        -------
        anndata.AnnData
            ``obs`` has the columns ``unit``, ``group`` (if there are groups), ``topic``,
            ``n_samples``, ``proportions``, and those of `obs`. With efficiencies of batches, the
            layer ``efficiencies`` has those of features in the samples of each row: pass them to
            other programs, such as DESeq2 as normalization factors, so that batches are no change.

        Raises
        ------
        ImportError
            If anndata is not installed.
        ValueError
            If there is no such topic.
        """
        import anndata

        pd = imported_pandas()
        K = len(self.topic_names)
        table = self._units()
        del table["count"]
        table |= {
            name: np.repeat(values, K) for name, values in self.obs.items() if name not in table
        }
        obs = pd.DataFrame(table).infer_objects()
        labels = [obs[name].astype(str) for name in ("unit", "group", "topic") if name in obs]
        obs.index = pd.Index([", ".join(parts) for parts in zip(*labels, strict=True)])
        kept = self.measured_everywhere
        values = self.counts[:, :, kept].reshape(-1, int(kept.sum()))
        var = pd.DataFrame(index=pd.Index(self.feature_labels[kept]).astype(str))
        rows: Any = slice(None)
        if topic is not None:
            rows = np.arange(number_of_topic(topic, self.topic_names, "topic"), len(values), K)
        layers = {}
        if self.batches is not None:
            whole = np.maximum(self.sizes.sum(axis=0), np.finfo(float).tiny)
            sizes = np.stack([self.sizes_of_features(k) for k in range(K)], axis=1)
            shares = (sizes / whole[:, :, None])[:, :, kept].reshape(values.shape)
            layers["efficiencies"] = shares[rows]
        return anndata.AnnData(
            np.rint(values[rows]) if rounded else values[rows].copy(), obs.iloc[rows], var,
            layers=layers,
        )  # fmt: skip

    def __repr__(self) -> str:
        """Sizes, and the number of features that were not measured everywhere."""
        U, K, m = self.counts.shape
        n_lacking = int(np.count_nonzero(~self.measured_everywhere))
        what = "units" if self.groups is None else "units in groups"
        lacking = f", {n_lacking:,} not measured in all samples" if n_lacking else ""
        return f"<Pseudobulk: {U:,} {what} x {K} topics x {m:,} features{lacking}>"
