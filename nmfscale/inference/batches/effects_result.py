"""The result of batch_effects: topics, features and clusters of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...kernels.functions import log
from ...models.tables import Columns, Tables, tidy_columns
from ...terminal import table_lines, visible_name
from ..design.confounding import cramers_v
from ..results.files import Result
from ..results.origin import Origin
from .advice import warnings_of

Array = NDArray[Any]
# Batches and topics that the text shows; batches whose shares of topics it shows; features.
_MOST, _MOST_COLUMNS, _FEATURES = 30, 8, 8
# Counts added to the expected and to the posterior counts of a feature, so that ranks are finite.
_PSEUDOCOUNT = 0.5
# Relative rounding of counts, which are computed from the efficiencies.
_ROUNDING = 1e-6


@dataclass(frozen=True, repr=False)
class BatchEffects(Result):
    """How B batches differ, in K topics, in clusters of samples, and in m features.

    What a fit without batches does not have is None.

    Attributes
    ----------
    shares : ndarray of shape (B, K), float64
        Mean proportion of each topic in the samples of each batch.
    n_samples : ndarray of shape (B,), int
        Number of samples with counts.
    homes : ndarray of shape (K,), int
        Number of the batch in which each topic is heaviest.
    concentration : ndarray of shape (K,), float64
        Share of the topic there: of its counts, or of its mean proportions, whichever is less.
    auc : ndarray of shape (P,), float64
        Area under the ROC curve of each of P pairs of a cluster and a batch.
    auc_before : ndarray of shape (P,), float64, or None
        The same with efficiencies of 1; None if `X` was not given.
    pair_clusters, pair_batches : ndarray of shape (P,), int
        Numbers of the cluster and of the batch of each pair.
    pair_samples, pair_others : ndarray of shape (P,), int
        Samples of the batch, and of other batches, in the cluster.
    batches, topic_names : tuple
        Names.
    efficiencies : ndarray of shape (B, m), float64, or None
        Posterior means of the efficiencies of features; 0 for features that were not measured.
    expected : ndarray of shape (B, m), float64, or None
        Counts of features that the topics expect in the batch, if its efficiencies were 1.
    shape : float or None
        Shape a of the prior of the efficiencies; infinite if there are no effects.
    spread : ndarray of shape (B,), float64, or None
        Root mean square of the logarithms of the efficiencies, weighted by `expected`.
    of_prior : ndarray of shape (B,), float64, or None
        Mean weight of the prior in the efficiencies, 0 to 1; 1 if there are no effects.
    uncertainty : ndarray of shape (K,), float64, or None
        Standard error of the log efficiencies of a topic's features in the batch of `homes`, as far
        as the fit can separate them from the topic's frequencies.
    feature_names : ndarray or None
        Names of the features.
    clusters : tuple or None
        Names of the clusters; None if these are the leading topics of the samples.
    conditions : tuple or None
        Names of the conditions.
    condition_sizes : ndarray of shape (B, n_conditions), int, or None
        Number of samples of each batch and condition.
    origin : Origin
        What it was made from: `groups` is the name of the column of batches.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - "batches" (default): ``batch``, ``n_samples``, ``auc``, the mean over clusters, NaN where no
      cluster has enough samples to measure it, and, if there are any, ``auc_before``, ``spread``
      and ``of_prior``.
    - "topics": ``topic``, ``batch``, in which it is heaviest, ``concentration`` and, of a fit with
      batches, ``uncertainty``.
    - "shares": ``topic``, ``batch`` and ``share``, the mean proportion.
    - "clusters": ``cluster``, ``batch``, ``n_samples``, ``n_others``, ``auc`` and, if there is
      one, ``auc_before``.
    - "features", of a fit with batches, those that differ most first: ``feature``, ``batch``,
      ``efficiency``, ``std_error``, of the posterior, ``expected``, and ``count``, weighted as in
      the fit. For a PoissonNMF with ``size_factors=``, and without effects, it is what the fit
      expects. Features that were not measured in a batch are left out.
    - "conditions", if there are any: ``condition``, ``batch`` and ``n_samples``.
    """

    shares: Array
    n_samples: Array
    homes: Array
    concentration: Array
    auc: Array
    auc_before: Array | None
    pair_clusters: Array
    pair_batches: Array
    pair_samples: Array
    pair_others: Array
    batches: tuple[Any, ...]
    topic_names: tuple[Any, ...]
    efficiencies: Array | None = None
    expected: Array | None = None
    shape: float | None = None
    spread: Array | None = None
    of_prior: Array | None = None
    uncertainty: Array | None = None
    feature_names: Array | None = None
    clusters: tuple[Any, ...] | None = None
    conditions: tuple[Any, ...] | None = None
    condition_sizes: Array | None = None
    origin: Origin = Origin()

    @property
    def mean_auc(self) -> float | None:
        """Mean of `auc`, weighted as in the table of batches; None if there is no pair."""
        return self._mean(self.auc)

    @property
    def mean_auc_before(self) -> float | None:
        """The same of `auc_before`."""
        return None if self.auc_before is None else self._mean(self.auc_before)

    @property
    def cramers_v(self) -> float | None:
        """Cramér's V of batches and conditions, 0 to 1; None without conditions."""
        return None if self.condition_sizes is None else cramers_v(self.condition_sizes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the batches: see the notes of :func:`nmfscale.batch_effects`."""
        return tuple(warnings_of(self))

    @property
    def _clusters(self) -> tuple[Any, ...]:
        return self.topic_names if self.clusters is None else self.clusters

    def _mean(self, areas: Array) -> float | None:
        if not areas.size:
            return None
        return float((areas * self._weights).sum() / self._weights.sum())

    @property
    def _weights(self) -> Array:
        """Weights (P,) of areas, which are about the inverse of their variances."""
        n, others = self.pair_samples.astype(np.float64), self.pair_others
        weights: Array = n * others / (n + others)
        return weights

    def _means_of_batches(self, areas: Array) -> Array:
        """Return the means (B,) of areas (P,) over clusters; NaN for a batch without a pair."""
        sums, weights = np.zeros((2, len(self.batches)))
        np.add.at(sums, self.pair_batches, areas * self._weights)
        np.add.at(weights, self.pair_batches, self._weights)
        return np.divide(sums, weights, out=np.full(len(sums), np.nan), where=weights > 0)

    # Tables ------------------------------------------------------------------------------------

    def _tables(self) -> Tables:
        tables = {
            "batches": self._of_batches, "topics": self._of_topics, "shares": self._shares,
            "clusters": self._of_clusters,
        }  # fmt: skip
        if self.efficiencies is not None:
            tables["features"] = self._of_features
        if self.conditions is not None:
            tables["conditions"] = self._of_conditions
        return tables

    def _of_batches(self) -> Columns:
        before = None if self.auc_before is None else self._means_of_batches(self.auc_before)
        return {"batch": name_array(self.batches), "n_samples": self.n_samples} | _present(
            auc_before=before, auc=self._means_of_batches(self.auc), spread=self.spread,
            of_prior=self.of_prior,
        )  # fmt: skip

    def _of_topics(self) -> Columns:
        names = name_array(self.topic_names), name_array(self.batches)[self.homes]
        return dict(zip(("topic", "batch"), names, strict=True)) | _present(
            concentration=self.concentration, uncertainty=self.uncertainty
        )

    def _shares(self) -> Columns:
        return tidy_columns(
            {"topic": self.topic_names}, {"batch": self.batches}, {"share": self.shares.T}
        )

    def _of_clusters(self) -> Columns:
        return {
            "cluster": name_array(self._clusters)[self.pair_clusters],
            "batch": name_array(self.batches)[self.pair_batches],
            "n_samples": self.pair_samples, "n_others": self.pair_others,
        } | _present(auc_before=self.auc_before, auc=self.auc)  # fmt: skip

    def _of_features(self) -> Columns:
        assert self.efficiencies is not None and self.expected is not None
        assert self.shape is not None
        batch, feature = np.nonzero(self.efficiencies > 0)
        at = batch, feature
        e, M = self.efficiencies[at], self.expected[at]
        if np.isinf(self.shape):
            error, count, change = np.zeros(len(e)), M, np.zeros(len(e))
        else:
            total, rate = e * (self.shape + M), self.shape + M
            error, count = np.sqrt(total) / rate, np.maximum(total - self.shape, 0.0)
            whole = np.rint(count)
            count = np.where(np.abs(count - whole) <= _ROUNDING * rate, whole, count)
            change = np.abs(log((total + _PSEUDOCOUNT) / (rate + _PSEUDOCOUNT)))
        order = np.lexsort((batch, feature, -change))
        m = self.efficiencies.shape[1]
        names = np.arange(m) if self.feature_names is None else name_array(self.feature_names)
        columns = {
            "feature": names[feature], "batch": name_array(self.batches)[batch], "efficiency": e,
            "std_error": error, "expected": M, "count": count,
        }  # fmt: skip
        return {name: values[order] for name, values in columns.items()}

    def _of_conditions(self) -> Columns:
        assert self.conditions is not None and self.condition_sizes is not None
        return tidy_columns(
            {"condition": self.conditions}, {"batch": self.batches},
            {"n_samples": self.condition_sizes.T},
        )  # fmt: skip

    # Text --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return batches, topics, leading features and warnings as text."""
        measured = {
            name: values for name, values in self._of_batches().items()
            if values.dtype.kind != "f" or not np.isnan(values).all()
        }  # fmt: skip
        lines = _text_table(measured, _MOST)
        if len(self.batches) <= _MOST_COLUMNS:
            rows = [("topic", *map(visible_name, self.batches))]
            rows += [
                (visible_name(name), *(f"{share:.1%}" for share in shares))
                for name, shares in zip(self.topic_names[:_MOST], self.shares.T, strict=False)
            ]
            lines += ["", *table_lines(rows)]
        if self.shape is not None and np.isfinite(self.shape):
            leading = {name: values[:_FEATURES] for name, values in self._of_features().items()}
            lines += ["", *_text_table(leading, _FEATURES)]
        lines += ["", *self._sentences()]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _sentences(self) -> list[str]:
        """Return what the numbers say in a line or two."""
        before, after = self.mean_auc_before, self.mean_auc
        within = (
            f"within {len(np.unique(self.pair_clusters)):,} of {len(self._clusters):,} clusters"
        )
        lines = ["no cluster has 20 samples of a batch and 20 of others"]
        if after is not None:
            was = "" if before is None else f", {before:.2f} without efficiencies"
            lines = [f"AUC {after:.2f}{was}: batches {within} (0.5: mixed, 1: apart)"]
        if self.shape is not None:
            prior = "no effects" if np.isinf(self.shape) else f"shape {self.shape:.3g} of the prior"
            lines.append(f"efficiencies: {prior}")
        if self.cramers_v is not None:
            lines.append(f"Cramér's V of batches and conditions {self.cramers_v:.2f}")
        return lines


def _present(**columns: Array | None) -> Columns:
    """Return the columns that are not None."""
    return {name: values for name, values in columns.items() if values is not None}


def _text_table(columns: Columns, most: int) -> list[str]:
    """Return the first rows of a table as lines of text."""
    cells = [[_cell(value) for value in values[:most].tolist()] for values in columns.values()]
    lines = list(table_lines([tuple(columns), *zip(*cells, strict=True)]))
    n = len(next(iter(columns.values())))
    return lines if n <= most else [*lines, f"... and {n - most:,} more: see to_frame()"]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else visible_name(value)
