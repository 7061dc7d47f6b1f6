"""The result of group_effects: mean proportions, their differences, and tests of topics."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.foreign import imported_pandas
from ...counts.names import shown
from ...models.tables import Columns, tidy_columns
from ..design.equal_weights import counted_once
from ..intervals import arcsine_interval, interval_ends, spread
from ..results.files import Result
from ..results.origin import Origin
from .robust import OneWay, RobustErrors

Array = NDArray[Any]
# Entries of replicates of differences that are in memory at a time.
_REPLICATES = 1 << 25


@dataclass(frozen=True, repr=False)
class GroupDifferences(Result):
    """Differences between groups in the mean proportion of T topics, with intervals.

    Attributes
    ----------
    differences, lower, upper, std_error : ndarray of shape (T, n_pairs)
        Mean of a pair's first group less that of its second, its interval and standard error.
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
    ``group``, ``other``, ``difference``, ``lower``, ``upper`` and ``std_error``.
    """

    differences: Array
    lower: Array
    upper: Array
    std_error: Array
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
            },
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
    pvalue, pvalue_maxt, qvalue : ndarray of shape (T,)
        Permutation p-value of each topic; adjusted for all topics by the maximum of standardised
        statistics, step down; and adjusted by Benjamini and Hochberg.
    statistics : ndarray of shape (T,)
        ``B / (B + D)``, from 0 to 1: B is the sum of squares of proportions between groups, D its
        expectation if the means are equal and each group has its own spread (Brown and Forsythe).
        For two groups it is ``t^2 / (1 + t^2)`` with Welch's t.
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
        The smallest p-value that was possible for a topic.
    level, interval : float and str
        As they were given.
    units : str
        What was resampled: "units" or "samples".
    equal_weights : str
        What has weight one in a mean: "units" or "samples".
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.
    interrupted : bool
        Whether Ctrl-C ended it early; p-values are based on the finished labellings.
    origin : Origin
        What it was made from: names of the columns of labels, `groups`, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic and group:
    ``topic``, ``group``, ``mean``, ``lower``, ``upper``, ``std_error`` and, the same for all
    groups of a topic, ``pvalue``, ``pvalue_maxt`` and ``qvalue``.
    """

    means: Array
    pvalue: Array
    pvalue_maxt: Array
    qvalue: Array
    statistics: Array
    topic_names: tuple[Any, ...]
    groups: tuple[Any, ...]
    n_units: Array
    replicates: Array | None
    null: Array
    exact: bool
    smallest_pvalue: float
    errors: RobustErrors | OneWay
    parts: Array
    level: float
    interval: str
    units: str
    equal_weights: str
    random_state: int | Sequence[int] | None
    interrupted: bool
    origin: Origin = Origin()
    lower: Array = field(init=False)
    upper: Array = field(init=False)
    std_error: Array = field(init=False)

    def __post_init__(self) -> None:
        """Set the intervals."""
        if self.replicates is None:
            margins, errors = self.errors.of_sums(self.parts, self.level)
            lower, upper = arcsine_interval(self.means, margins)
        else:
            lower, upper = self._of_replicates(self.replicates, self.means, self.parts)
            errors = spread(self.replicates)
        for name, values in ("lower", lower), ("upper", upper), ("std_error", errors):
            object.__setattr__(self, name, values)

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
        differences, lower, upper, errors = map(np.hstack, zip(*parts, strict=True))
        return GroupDifferences(
            differences,
            lower,
            upper,
            errors,
            tuple((self.groups[g], self.groups[h]) for g, h in pairs),
            self.topic_names,
            self.level,
            self.interval,
            self.origin,
        )

    def _of_pairs(self, one: Array, other: Array) -> tuple[Array, Array, Array, Array]:
        """Return differences (T, n) of pairs of groups, both ends, and standard errors."""
        along = self.parts[:, one] - self.parts[:, other]
        differences = self.means[:, one] - self.means[:, other]
        if self.replicates is None:
            margins, errors = self.errors.of_sums(along, self.level)
            return differences, differences - margins, differences + margins, errors
        replicates = self.replicates[:, :, one] - self.replicates[:, :, other]
        ends = self._of_replicates(replicates, differences, along)
        return differences, *ends, spread(replicates)

    def _columns(self) -> Columns:
        of_topics = {
            "pvalue": self.pvalue, "pvalue_maxt": self.pvalue_maxt, "qvalue": self.qvalue,
        }  # fmt: skip
        return tidy_columns(
            {"topic": self.topic_names}, {"group": self.groups},
            {
                "mean": self.means, "lower": self.lower, "upper": self.upper,
                "std_error": self.std_error,
            }
            | {
                name: np.broadcast_to(pvalues[:, None], self.means.shape)
                for name, pvalues in of_topics.items()
            },
        )  # fmt: skip

    def summary(self) -> Any:
        """Return a DataFrame with a row for each topic, sorted by p-value.

        Columns are ``topic``, the means in the groups, named after the groups, ``pvalue`` and
        ``qvalue``.
        """
        pd = imported_pandas()

        frame = pd.DataFrame(self.means, columns=list(self.groups))
        frame.insert(0, "topic", list(self.topic_names))
        frame["pvalue"], frame["qvalue"] = self.pvalue, self.qvalue
        order = np.lexsort((-self.statistics, self.pvalue))
        return frame.iloc[order].reset_index(drop=True)

    def __repr__(self) -> str:
        """Sizes, and the number of topics that differ."""
        T, R = self.means.shape
        n_significant = np.count_nonzero(self.qvalue <= 0.05)
        once = counted_once(self.equal_weights, self.units)
        return (
            f"<GroupEffects: {T} topics x {R} groups of {self.n_units.sum():,} {self.units}{once}, "
            f"{n_significant} topics with q <= 0.05 of {len(self.null):,} labellings>"
        )
