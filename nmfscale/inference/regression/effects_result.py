"""The result of group_effects: mean proportions, their differences, and tests of topics."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ...counts.foreign import imported_pandas
from ...counts.names import name_array, shown
from ...kernels import dense
from ...models.tables import Columns, Tables, tidy_columns
from ..design.equal_weights import counted_once
from ..intervals import arcsine_interval, interval_ends, spread
from ..results.files import Result
from ..results.origin import Origin
from .moderation import Moderation, moderated
from .one_way import OneWay, pvalues, t_quantiles
from .within_blocks import WithinBlocks

Array = NDArray[Any]
# Entries of replicates of differences that are in memory at a time.
_REPLICATES = 1 << 25


@dataclass(frozen=True, repr=False)
class GroupDifferences(Result):
    """Differences between groups in the mean proportion of T topics, with intervals.

    Attributes
    ----------
    differences, lower, upper, std_error : ndarray of shape (T, n_pairs)
        Mean of a pair's first group less that of its second, its interval and standard error. If
        groups are compared within strata, or within units that have samples in several groups, the
        difference is adjusted for these, and may differ from that of the means.
    pvalue : ndarray of shape (T, n_pairs) or None
        p-values of the t-tests of the same differences with the same errors: below 1 - `level` if
        and only if the interval excludes 0. None with bootstrap intervals.
    qvalue : ndarray of shape (T, n_pairs) or None
        The same, adjusted for all of these topics and pairs by Benjamini and Hochberg.
    pairs : tuple of (group, group)
        Groups that are compared.
    topic_names : tuple
        Names of the topics.
    level, interval : float and str
        As they were given.
    origin : Origin
        What it was made from: names of the columns of labels, `groups`, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic and pair: ``topic``,
    ``group``, ``other``, ``difference``, ``lower``, ``upper``, ``std_error``, ``pvalue`` and
    ``qvalue``; the last two only if there are p-values.
    """

    differences: Array
    lower: Array
    upper: Array
    std_error: Array
    pvalue: Array | None
    qvalue: Array | None
    pairs: tuple[tuple[Any, Any], ...]
    topic_names: tuple[Any, ...]
    level: float
    interval: str
    origin: Origin = Origin()

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the pairs of groups."""
        return tuple(" - ".join(map(str, pair)) for pair in self.pairs)

    @property
    def neutral(self) -> float:
        """Difference under equality of groups: 0."""
        return 0.0

    def _columns(self) -> Columns:
        groups, others = zip(*self.pairs, strict=True)
        return tidy_columns(
            {"topic": self.topic_names}, {"group": groups, "other": others},
            {
                "difference": self.differences, "lower": self.lower, "upper": self.upper,
                "std_error": self.std_error,
            }
            | _known({"pvalue": self.pvalue, "qvalue": self.qvalue}),
        )  # fmt: skip

    def __repr__(self) -> str:
        """Sizes, and the number of intervals that exclude 0."""
        away = np.count_nonzero((self.lower > 0) | (self.upper < 0))
        return (
            f"<GroupDifferences: {len(self.topic_names)} topics x {len(self.pairs)} pairs of "
            f"groups, {self.interval} intervals of {self.level:.0%}, {away} of "
            f"{self.differences.size} without 0>"
        )


@dataclass(frozen=True, repr=False)
class GroupEffects(Result):
    """Mean proportions of T topics in R groups: intervals, and tests of topics.

    Attributes
    ----------
    means, lower, upper : ndarray of shape (T, R)
        Mean over the units (or samples, see `equal_weights`) of each group, and the ends of its
        interval.
    std_error : ndarray of shape (T, R)
        Standard errors that are robust to unequal spread of units; with bootstrap intervals,
        standard deviations of the replicates.
    pvalue : ndarray of shape (T,) or None
        p-value of the test that the groups of a topic have equal means: of the t-test of the
        difference of two groups, with the error of its interval, so that it is at most 1 - `level`
        if and only if that interval excludes 0; of an F-test with the same errors for more groups.
        None with bootstrap intervals.
    qvalue : ndarray of shape (T,) or None
        The same, adjusted for all topics by Benjamini and Hochberg.
    pvalue_permutation, pvalue_maxt : ndarray of shape (T,)
        p-value of each topic by permutation of labels, which needs no assumption on the form of
        distributions; and adjusted for all topics by the maximum of statistics, step down. They may
        differ from `pvalue`, and contradict intervals.
    prior_freedom : float
        Degrees of freedom that moderation adds to the variance of a topic, at most: how close
        variances of topics are to what is expected. 0 without moderation.
    statistics : ndarray of shape (T,)
        Statistic of the permutations, ``B / (B + D)``, from 0 to 1: B is the sum of squares of
        proportions between groups, D its expectation if the means are equal and each group has its
        own spread (Brown and Forsythe). For two groups it is ``t^2 / (1 + t^2)`` with Welch's t.
    topic_names, groups : tuple
        Names.
    n_units : ndarray of shape (R,)
        Units of each group.
    replicates : ndarray of shape (n_replicates, T, R) or None
        Means of every bootstrap replicate; None with intervals of kind "t".
    null : ndarray of shape (n_labellings, T)
        Statistics of every labelling.
    exact : bool
        Whether these are all labellings, each once.
    smallest_pvalue : float
        The smallest p-value of permutations that was possible for a topic.
    level, interval : float and str
        As they were given.
    units : str
        What was resampled: "units" or "samples".
    equal_weights : str
        What has weight one in a mean: "units" or "samples".
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.
    interrupted : bool
        Whether Ctrl-C ended it early; `null` is then of the finished labellings.
    compared_within : str
        What groups are compared within: "units" that have samples in several groups, "strata", or
        "" if all units of the groups are compared.
    scores : tuple of float
        Groups as numbers: numbers themselves, or 0, 1, 2 ... of an ordered Categorical. Empty if
        the order of groups is not known.
    origin : Origin
        What it was made from: names of the columns of labels, `groups`, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - "means", the default, has a row for each topic and group: ``topic``, ``group``, ``mean``,
      ``lower``, ``upper``, ``std_error`` and, the same for all groups of a topic, ``pvalue`` and
      ``qvalue`` (not with bootstrap intervals), ``pvalue_permutation`` and ``pvalue_maxt``.
    - "trend", if there are `scores`, has a row for each topic, with the slope of a line through the
      means of groups at their scores, by least squares with the numbers of units as weights:
      ``topic``, ``slope``, the change for a step of 1, ``lower``, ``upper``, ``std_error``,
      ``pvalue`` and ``qvalue``. Intervals and p-values are those of the same contrast, as of
      differences; within strata or units, means are adjusted for these.
    """

    _hint = '. "trend" is for groups that are numbers, such as doses, or an ordered Categorical'

    means: Array
    pvalue: Array | None
    qvalue: Array | None
    pvalue_permutation: Array
    pvalue_maxt: Array
    statistics: Array
    topic_names: tuple[Any, ...]
    groups: tuple[Any, ...]
    n_units: Array
    replicates: Array | None
    null: Array
    exact: bool
    smallest_pvalue: float
    errors: OneWay
    parts: Array
    within: WithinBlocks | None
    moderation: Moderation | None
    upper_if_absent: Array
    level: float
    interval: str
    units: str
    equal_weights: str
    random_state: int | Sequence[int] | None
    interrupted: bool
    compared_within: str = ""
    scores: tuple[float, ...] = ()
    origin: Origin = Origin()
    lower: Array = field(init=False)
    upper: Array = field(init=False)
    std_error: Array = field(init=False)

    def __post_init__(self) -> None:
        """Set the intervals."""
        variances, freedom = moderated(self.moderation, *self.errors.variances(self.parts))
        errors = np.sqrt(variances)
        if self.replicates is None:
            lower, upper = arcsine_interval(self.means, errors * t_quantiles(freedom, self.level))
        else:
            lower, upper = self._of_replicates(self.replicates, self.means, self.parts)
            errors = spread(self.replicates)
        upper = np.maximum(upper, self.upper_if_absent)
        for name, values in ("lower", lower), ("upper", upper), ("std_error", errors):
            object.__setattr__(self, name, values)

    @property
    def prior_freedom(self) -> float:
        """Prior degrees of freedom of moderated variances, 0 without moderation."""
        return 0.0 if self.moderation is None else self.moderation.freedom

    def _of_replicates(
        self, replicates: Array, estimate: Array, along: Array
    ) -> tuple[Array, Array]:
        return interval_ends(
            self.interval, replicates, estimate, self.level,
            lambda: self.errors.acceleration(along),
        )  # fmt: skip

    def differences(self, reference: Hashable = None) -> GroupDifferences:
        """Return differences between groups in mean proportions, with intervals.

        Parameters
        ----------
        reference : label of a group, default=None
            Compare all other groups with this one; by default all pairs are compared.

        Returns
        -------
        GroupDifferences
            Differences with their intervals, each at `level`: there is no adjustment for multiple
            comparisons.

        Raises
        ------
        ValueError
            If there is no group `reference`.
        """
        R = len(self.groups)
        pairs = list(combinations(range(R), 2))
        if reference is not None:
            if reference not in self.groups:
                names = ", ".join(map(repr, self.groups))
                raise ValueError(f"reference={shown(reference)} is not one of the groups: {names}.")
            of = self.groups.index(reference)
            pairs = [(g, of) for g in range(R) if g != of]
        one, other = (np.array(groups) for groups in zip(*pairs, strict=True))
        size = len(pairs)
        if self.replicates is not None:
            size = max(1, _REPLICATES // (len(self.replicates) * len(self.means)))
        parts = [
            self._of_pairs(one[first : first + size], other[first : first + size])
            for first in range(0, len(pairs), size)
        ]
        differences, lower, upper, errors, p = map(np.hstack, zip(*parts, strict=True))
        tested = self.replicates is None
        return GroupDifferences(
            differences, lower, upper, errors, p if tested else None,
            false_discovery_control(p, axis=None).reshape(p.shape) if tested else None,
            tuple((self.groups[g], self.groups[h]) for g, h in pairs), self.topic_names,
            self.level, self.interval, self.origin,
        )  # fmt: skip

    def _of_pairs(self, one: Array, other: Array) -> tuple[Array, ...]:
        """Return differences (T, n) of pairs of groups, both ends, standard errors and p-values."""
        along = np.zeros((len(self.groups), len(one)))
        pair = np.arange(len(one))
        along[one, pair], along[other, pair] = 1.0, -1.0
        if self.replicates is None:
            return self._by_t(along)
        differences = self.means[:, one] - self.means[:, other]
        replicates = self.replicates[:, :, one] - self.replicates[:, :, other]
        cells = dense.product(self.parts, along)
        ends = self._of_replicates(replicates, differences, cells)
        return differences, *ends, spread(replicates), np.ones(differences.shape)

    def _by_t(self, along: Array) -> tuple[Array, ...]:
        """Return the same of contrasts: weights of groups (R, n) that add up to 0."""
        if self.within is None:
            differences = dense.product(self.means, along)
            variances = self.errors.variances(dense.product(self.parts, along))
        else:
            differences, variances = self.within.differences(along), self.within.variances(along)
        variance, freedom = moderated(self.moderation, *variances)
        errors, p = np.sqrt(variance), pvalues(differences**2, variance, np.array(1.0), freedom)
        margins = errors * t_quantiles(freedom, self.level)
        return differences, differences - margins, differences + margins, errors, p

    def _tables(self) -> Tables:
        return {"means": self._columns} | ({"trend": self._trend} if self.scores else {})

    def _trend(self) -> Columns:
        """Return slopes of topics over groups at their scores."""
        scores, weights = np.array(self.scores), self.n_units
        away = scores - (weights * scores).sum() / weights.sum()
        along = (weights * away / (weights * away**2).sum())[:, None]
        if self.replicates is None:
            slope, lower, upper, errors, p = self._by_t(along)
        else:
            slope, p = dense.product(self.means, along), None
            replicates = dense.products(self.replicates, along)
            cells = dense.product(self.parts, along)
            lower, upper = self._of_replicates(replicates, slope, cells)
            errors = spread(replicates)
        values = {"slope": slope, "lower": lower, "upper": upper, "std_error": errors}
        if p is not None:
            values |= {"pvalue": p, "qvalue": false_discovery_control(p, axis=0)}
        columns = {name: column[:, 0] for name, column in values.items()}
        return {"topic": name_array(self.topic_names), **columns}

    def _columns(self) -> Columns:
        of_topics = _known({
            "pvalue": self.pvalue, "qvalue": self.qvalue,
            "pvalue_permutation": self.pvalue_permutation, "pvalue_maxt": self.pvalue_maxt,
        })  # fmt: skip
        return tidy_columns(
            {"topic": self.topic_names}, {"group": self.groups},
            {
                "mean": self.means, "lower": self.lower, "upper": self.upper,
                "std_error": self.std_error,
            }
            | {
                name: np.broadcast_to(values[:, None], self.means.shape)
                for name, values in of_topics.items()
            },
        )  # fmt: skip

    def summary(self) -> Any:
        """Return a DataFrame with a row for each topic, sorted by p-value.

        Columns are ``topic``, the means in the groups, named after the groups, ``pvalue`` and
        ``qvalue``; with bootstrap intervals ``pvalue_permutation`` and ``pvalue_maxt`` instead.
        """
        pd = imported_pandas()

        frame = pd.DataFrame(self.means, columns=list(self.groups))
        frame.insert(0, "topic", list(self.topic_names))
        names = (
            ("pvalue_permutation", "pvalue_maxt") if self.pvalue is None else ("pvalue", "qvalue")
        )
        for name in names:
            frame[name] = getattr(self, name)
        order = np.lexsort((-self.statistics, getattr(self, names[0])))
        return frame.iloc[order].reset_index(drop=True)

    def __repr__(self) -> str:
        """Sizes, and the number of topics that differ."""
        T, R = self.means.shape
        once = counted_once(self.equal_weights, self.units)
        within = f", compared within {self.compared_within}" if self.compared_within else ""
        p, what = self.qvalue, "q <= 0.05"
        if p is None:
            p, what = self.pvalue_maxt, "max-T p <= 0.05"
        return (
            f"<GroupEffects: {T} topics x {R} groups of {self.n_units.sum():,} {self.units}{once}"
            f"{within}, {np.count_nonzero(p <= 0.05)} topics with {what}; {len(self.null):,} "
            "labellings>"
        )


def _known(columns: dict[str, Array | None]) -> dict[str, Array]:
    """Return the columns that there are."""
    return {name: column for name, column in columns.items() if column is not None}
