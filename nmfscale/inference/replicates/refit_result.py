"""The result of a bootstrap of whole fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.tables import Columns, Tables, tidy_columns
from ..design.equal_weights import counted_once
from ..intervals import percentile
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]


@dataclass(frozen=True)
class Estimates:
    """Estimates of a fit and their intervals: arrays of one shape.

    Attributes
    ----------
    estimate : ndarray
        Estimate of the fit.
    replicates : ndarray of shape (n_replicates, ...), float32
        Estimates of the replicates.
    lower, upper : ndarray
        Ends of the intervals.
    """

    estimate: Array
    replicates: Array
    lower: Array
    upper: Array

    @classmethod
    def of(cls, estimate: Array, replicates: Array, level: float) -> Estimates:
        """Return percentile intervals with this nominal coverage; NaN are left out."""
        if not np.isnan(replicates).any():
            return cls(estimate, replicates, *percentile(replicates, level))
        # topics and groups are missing as a whole, so few patterns of missing entries occur
        values, ends = replicates.reshape(len(replicates), -1), np.full((2, estimate.size), np.nan)
        lost = np.isnan(values)
        _, which = np.unique(np.packbits(lost, axis=0), axis=1, return_inverse=True)
        for pattern in range(which.max() + 1):
            alike = np.flatnonzero(which.ravel() == pattern)
            observed = ~lost[:, alike[0]]
            if observed.any():
                ends[:, alike] = percentile(values[np.ix_(observed, alike)], level)
        lower, upper = ends.reshape(2, *estimate.shape)
        return cls(estimate, replicates, lower, upper)

    @property
    def std_error(self) -> Array:
        """Standard deviation of the replicates, ignoring NaN."""
        observed = ~np.isnan(self.replicates)
        n = observed.sum(axis=0)
        mean = np.sum(self.replicates, axis=0, dtype=float, where=observed) / np.maximum(n, 1)
        squares = np.sum((self.replicates - mean) ** 2, axis=0, dtype=float, where=observed)
        return np.where(n > 0, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)


def numbers_or_names(fitted: Any) -> tuple[Any, ...]:
    """Return the names of the topics of a fit; by default their numbers."""
    names = getattr(fitted, "topic_names_", None)
    return tuple(range(len(fitted.components_)) if names is None else np.asarray(names).tolist())


@dataclass(frozen=True)
class BootstrapFit(Result):
    """Frequencies and proportions of a fit, with bootstrap intervals.

    Attributes
    ----------
    components : Estimates of shape (K, n_features)
        Frequencies of the features in each topic; over all features they sum to one. NaN in
        replicates that lack the topic.
    group_means : Estimates of shape (K, n_groups) or None
        Mean proportions of the samples of each group, if groups were given. NaN in replicates
        without units of a group, or without the topic. Intervals leave out NaN, and are NaN if no
        replicate has a number.
    proportions : Estimates of shape (n_samples, K) or None
        Proportions of the requested samples.
    cosines : ndarray of shape (n_replicates, K)
        Cosines between topics of the fit and the matched topics of each replicate; NaN if the
        replicate lacks the topic (AnchorNMF only).
    matches : ndarray of shape (n_replicates, K)
        Which topics of the replicate were matched.
    n_iter, converged : ndarray of shape (n_replicates,)
        ``n_iter_`` and ``converged_`` of each fit.
    features, samples : ndarray of int
        Numbers of the requested features and samples.
    feature_names, groups : ndarray or tuple, or None
        Names.
    level : float
        Nominal coverage of the intervals.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same replicates again.
    topic_names : tuple
        Names of the topics.
    units : str
        What was resampled: "units" or "samples".
    equal_weights : str
        What has weight one in a group mean: "units" or "samples".
    origin : Origin
        What it was made from: names of the columns of labels, `groups`, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`, of which a result has those it was asked for:

    - "components" (default), a row for each topic and feature: ``topic``, ``feature``,
      ``estimate``, ``lower``, ``upper`` and ``std_error``.
    - "group_means", a row for each topic and group: the same with ``group`` for ``feature``.
    - "proportions", a row for each sample and topic: the same with ``sample`` for ``feature``.
    """

    components: Estimates
    group_means: Estimates | None
    proportions: Estimates | None
    cosines: Array
    matches: Array
    n_iter: Array
    converged: Array
    features: Array
    samples: Array
    feature_names: NDArray[Any] | None
    groups: tuple[Any, ...] | None
    level: float
    random_state: int | Sequence[int] | None
    topic_names: tuple[Any, ...]
    units: str = "samples"
    equal_weights: str = "units"
    origin: Origin = Origin()

    @property
    def n_replicates(self) -> int:
        """Number of replicates."""
        return len(self.cosines)

    @property
    def n_reordered(self) -> int:
        """Number of replicates whose topics were reordered to match the fit."""
        return int((self.matches != np.arange(self.matches.shape[1])).any(axis=1).sum())

    @property
    def missing(self) -> Array:
        """Share of the replicates that lack each topic, (K,)."""
        missing: Array = np.isnan(self.cosines).mean(axis=0)
        return missing

    _hint = "; group_means need groups=, proportions samples= in bootstrap_fit"

    def _tables(self) -> Tables:
        labels = {
            "components": ("feature", self._feature_labels()),
            "group_means": ("group", self.groups),
            "proportions": ("sample", self.samples),
        }
        return {
            what: partial(self._of, what, *axis)
            for what, axis in labels.items()
            if getattr(self, what) is not None
        }

    def _of(self, what: str, name: str, labels: Any) -> Columns:
        """Return one kind of estimates, given the name and labels of their second axis."""
        numbers = ("estimate", "lower", "upper", "std_error")
        rows, columns = {"topic": self.topic_names}, {name: labels}
        if what == "proportions":  # whose rows are samples
            rows, columns = columns, rows
        estimates = getattr(self, what)
        table = tidy_columns(
            rows, columns, {number: getattr(estimates, number) for number in numbers}
        )
        return {column: table[column] for column in ("topic", name, *numbers)}

    def _feature_labels(self) -> Any:
        return self.features if self.feature_names is None else self.feature_names[self.features]

    def __repr__(self) -> str:
        """Sizes, and the similarity of matched topics."""
        K = self.cosines.shape[1]
        return (
            f"<BootstrapFit: {K} topics, {self.n_replicates} replicates, {self.n_reordered} put in "
            f"another order, smallest cosine {np.nanmin(self.cosines, initial=1):.3f}"
            f"{counted_once(self.equal_weights, self.units)}>"
        )
