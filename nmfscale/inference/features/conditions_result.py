"""The result of condition_features: changes of features between groups, within each topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import Topic
from ...counts.names import name_array, shown
from ...models.tables import Columns
from ...terminal import visible_name
from ..design.loadings import number_of_topic
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]
_LEVEL = 0.05


@dataclass(frozen=True, repr=False)
class ConditionFeatures(Result):
    """Changes of m features between C groups and a reference group, within K topics.

    Attributes
    ----------
    lfc, std_error : ndarray of shape (C, K, m)
        Log2-fold change of the frequency of a feature in a topic, relative to the reference, and
        its standard error: the one with which ``lfc / std_error`` is `t`.
    lower, upper : ndarray of shape (C, K, m)
        Ends of the interval at `level`, which excludes 0 if and only if ``pvalue < 1 - level``.
    t, freedom : ndarray of shape (C, K, m)
        Signed root of the quasi-likelihood ratio, and its degrees of freedom.
    pvalue, qvalue : ndarray of shape (C, K, m)
        p-values by Student's t, and adjusted for the tested features of a topic by Benjamini and
        Hochberg.
    tested : ndarray of bool of shape (C, K, m)
        Entries that were tested. The others have too few counts, or counts in too few units; their
        changes are 0 and their p-values are 1. Tables leave them out.
    base_mean : ndarray of shape (K, m)
        Expected count of the feature in the topic, the mean over the units that have the topic.
    dispersion : ndarray of shape (C, K, m)
        Moderated dispersion phi of the feature: the variance of effective counts is ``phi (mu +
        alpha mu^2)``.
    alpha : ndarray of shape (K,)
        The part of the dispersion that all features of a topic have in common.
    n_units : ndarray of shape (K, R), int
        Number of units of each group that have the topic.
    left_out : tuple of (topic, group, str)
        Comparisons that were not made, and why.
    groups : tuple
        Labels of the R groups.
    reference : label
        The group that others are compared with.
    feature_names : ndarray or None
        Names of the features.
    topic_names : tuple
        Names of the topics.
    units : str
        What was compared: "units" or "samples".
    paired : bool
        Whether groups were compared within units that have samples in several of them.
    normalize : str
        What frequencies are relative to: "median-ratio" or "total".
    min_count : float
        Least expected counts of a topic in a unit, and of a feature in a topic.
    level : float
        Nominal coverage of the intervals.
    origin : Origin
        Names of the columns of labels, and leading features of the topics.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each test: ``topic``,
    ``feature``, ``group``, ``lfc``, ``std_error``, ``lower``, ``upper``, ``t``, ``freedom``,
    ``pvalue``, ``qvalue``, ``base_mean`` and ``dispersion``, sorted by rising p-value in each topic
    and group. Given a topic, by name or number, they return its rows.
    """

    lfc: Array
    std_error: Array
    lower: Array
    upper: Array
    t: Array
    freedom: Array
    pvalue: Array
    qvalue: Array
    tested: Array
    base_mean: Array
    dispersion: Array
    alpha: Array
    n_units: Array
    left_out: tuple[tuple[Any, Any, str], ...]
    groups: tuple[Any, ...]
    reference: Any
    feature_names: NDArray[Any] | None
    topic_names: tuple[Any, ...]
    units: str
    paired: bool
    normalize: str
    min_count: float
    level: float
    origin: Origin = Origin()

    @property
    def compared(self) -> tuple[Any, ...]:
        """The groups that are compared with the reference."""
        return tuple(group for group in self.groups if group != self.reference)

    @property
    def feature_labels(self) -> Array:
        """Names of the features, or their numbers if they have no names."""
        names = self.feature_names
        return np.arange(self.lfc.shape[2]) if names is None else np.asarray(names)

    def contrast(self, group: Any = None) -> FeatureContrast:
        """Return the comparison of one group with the reference, for plots such as volcano_plot.

        Parameters
        ----------
        group : label, optional
            One of the groups that are compared; needed if there are several.

        Returns
        -------
        FeatureContrast
            Changes of the features within all topics.

        Raises
        ------
        ValueError
            If there is no such group.
        """
        c = 0
        if group is not None or len(self.compared) > 1:
            if group not in self.compared:
                names = ", ".join(map(shown, self.compared))
                problem = "is needed" if group is None else f"is {shown(group)}"
                raise ValueError(f"group {problem}: the groups compared are {names}.")
            c = self.compared.index(group)
        totals = np.maximum(self.base_mean.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return FeatureContrast(
            self.lfc[c], self.t[c], self.qvalue[c], self.tested[c], self.base_mean.sum(axis=0),
            self.base_mean / totals, self.feature_names, self.topic_names,
            str(self.reference), int(self.n_units.sum(axis=1).max()), self.origin,
        )  # fmt: skip

    def _table(self, what: Topic | None) -> Columns:
        """Return the rows of a topic, by default those of all topics."""
        K = len(self.topic_names)
        topics = range(K) if what is None else [number_of_topic(what, self.topic_names, "topic")]
        cells = [(c, k) for k in topics for c in range(len(self.compared))]
        orders = [
            tested_features(self.tested[cell], self.pvalue[cell], self.t[cell]) for cell in cells
        ]
        sizes = [len(order) for order in orders]
        contrast, topic = (np.repeat([cell[i] for cell in cells], sizes) for i in range(2))
        feature = np.concatenate(orders)
        at = contrast, topic, feature
        return {
            "topic": name_array(self.topic_names)[topic], "feature": self.feature_labels[feature],
            "group": name_array(self.compared)[contrast], "lfc": self.lfc[at],
            "std_error": self.std_error[at], "lower": self.lower[at], "upper": self.upper[at],
            "t": self.t[at], "freedom": self.freedom[at], "pvalue": self.pvalue[at],
            "qvalue": self.qvalue[at], "base_mean": self.base_mean[topic, feature],
            "dispersion": self.dispersion[at],
        }  # fmt: skip

    def __repr__(self) -> str:
        """Sizes, the comparison, the numbers of tests and of features that differ."""
        C, K, m = self.lfc.shape
        n_found = int(((self.qvalue <= _LEVEL) & self.tested).sum())
        against = ", ".join(map(visible_name, self.compared)) if C < 4 else f"{C} groups"
        within = f" within {self.units}" if self.paired else ""
        lacking = f", {len(self.left_out)} comparisons left out" if self.left_out else ""
        return (
            f"<ConditionFeatures: {m:,} features within {K} topics, {against} relative to "
            f"{visible_name(self.reference)}{within}, {int(self.n_units.sum(axis=1).max()):,} "
            f"{self.units}, {int(self.tested.sum()):,} tests, {n_found:,} with q <= {_LEVEL:g}"
            f"{lacking}>"
        )


@dataclass(frozen=True)
class FeatureContrast:
    """Changes of m features between a group and the reference, within K topics.

    `lfc`, `z` (t of the tests), `qvalue` and `tested` are (K, m), `frequencies` (K, m) of the
    features in the topics, `base_mean` (m,) their mean counts in a unit. `n_units` is the number of
    units of all groups.
    """

    lfc: Array
    z: Array
    qvalue: Array
    tested: Array
    base_mean: Array
    frequencies: Array
    feature_names: NDArray[Any] | None
    topic_names: tuple[Any, ...]
    reference: str
    n_units: int
    origin: Origin

    @property
    def feature_labels(self) -> Array:
        """Names of the features, or their numbers if they have no names."""
        names = self.feature_names
        return np.arange(self.lfc.shape[1]) if names is None else np.asarray(names)

    def topic_number(self, topic: Topic) -> int:
        """Return the number of a topic, given by name or number."""
        return number_of_topic(topic, self.topic_names, "topic")

    def significant(self, topic: int, level: float) -> Array:
        """Return the mask (m,) of features with q-values of at most `level`."""
        significant: Array = self.qvalue[topic] <= level
        return significant

    def order(self, topic: int) -> Array:
        """Return the tested features of a topic, most significant first."""
        return tested_features(self.tested[topic], self.qvalue[topic], self.z[topic])


def tested_features(tested: Array, pvalue: Array, t: Array) -> Array:
    """Return the tested features, by rising p-value, then by falling |t|."""
    places = np.flatnonzero(tested)
    ordered: Array = places[np.lexsort((-np.abs(t[places]), pvalue[places]))]
    return ordered
