"""What `group_effects` compares: means of groups, their differences within blocks, and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...counts.warn import warn_caller
from ...kernels.functions import power
from ..design.groups import Labels
from ..design.units import PRESENT, Units
from ..quantiles import f_tail
from .moderation import Moderation, shares_of
from .one_way import OneWay, pvalues
from .within_blocks import WithinBlocks, unlinked

Array = NDArray[Any]
# Ratio of variances of a topic in two groups from which to warn.
_UNEQUAL = 4.0
# Variance of proportions that are equal up to rounding.
_ROUNDING = 1e-24
# A variance of fewer units that have a topic says little. With few units, unequal spread makes
# t-intervals too narrow, too.
_LEAST_UNITS, _ENOUGH_UNITS = 5, 20


@dataclass(frozen=True)
class Comparison:
    """Means (T, R) of groups, and the variances of means and of differences between groups.

    `errors` are those of cells, which have `parts` (n_cells, R) in the means. `within` compares
    groups within blocks; None if there is one block, so that differences are those of the means.
    `what` is "units" or "strata" if these are blocks, else "".
    """

    means: Array
    errors: OneWay
    parts: Array
    within: WithinBlocks | None
    moderation: Moderation | None
    what: str

    @classmethod
    def of(cls, design: Units, values: Array, weights: Array, moderated: bool) -> Comparison:
        """Compare values (n, T) of units, which count by `weights` (n,) in means."""
        groups, blocks, within, what = design.groups, design.blocks, None, ""
        n_blocks = int(blocks.max()) + 1
        _check_known_spread(groups, blocks)
        if n_blocks > 1:
            what = "units" if design.subjects is not None else "strata"
            _refuse_unlinked(groups, blocks, what)
            within = WithinBlocks.of(
                values, weights * design.relative_weights, groups.codes, blocks
            )
        errors, parts = _errors_of_means(values, weights, groups, design.strata)
        sums = np.zeros((len(groups.names), values.shape[1]))
        np.add.at(sums, groups.codes, weights[:, None] * values)
        means = (sums / np.bincount(groups.codes, weights)[:, None]).T
        comparison = cls(means, errors, parts, within, None, what)
        if not moderated:
            return comparison
        _, expected, _, freedom = comparison._between()
        moderation = Moderation.of(expected, freedom, shares_of(values, weights))
        return cls(means, errors, parts, within, moderation, what)

    def _between(self) -> tuple[Array, Array, Array, float]:
        """Return what a test of equal groups compares: see `WithinBlocks.between`."""
        return self.errors.between(self.means) if self.within is None else self.within.between()

    def pvalues(self) -> Array:
        """Return the p-value of each topic: groups are equal."""
        squares, expected, between, freedom = self._between()
        within = np.full(len(expected), freedom)
        if self.moderation is not None:
            variances, degrees = self.moderation(expected[:, None], np.array([freedom]))
            expected, within = variances[:, 0], degrees[:, 0]
        return pvalues(squares, expected, between, within)


def _errors_of_means(
    values: Array, weights: Array, groups: Labels, strata: Array
) -> tuple[OneWay, Array]:
    """Return variances of means by stratum, and the weight (n, R) of each stratum.

    Strata have no part in them where one has a single unit of a group, whose spread is not known.
    """
    R = len(groups.names)
    cell = strata * R + groups.codes
    if (np.bincount(cell)[cell] == 1).any():
        cell = groups.codes
    cells, cell = np.unique(cell, return_inverse=True)
    cell = cell.reshape(-1)
    parts = np.zeros((cells.size, R))
    parts[np.arange(cells.size), cells % R] = np.bincount(cell, weights)
    return OneWay.of(cell, values, weights), parts / parts.sum(axis=0)


def _check_known_spread(groups: Labels, blocks: Array) -> None:
    """Refuse a design in which nothing varies beside what is compared."""
    n_groups, n_blocks = len(groups.names), int(blocks.max()) + 1
    if len(groups) <= n_groups + n_blocks - 1:
        raise ValueError(
            f"{len(groups):,} units in {n_groups:,} groups"
            + (f" and {n_blocks:,} strata" if n_blocks > 1 else "")
            + ": each has one of its own, so that it is not known how far units of a group differ. "
            "More units are needed."
        )


def _refuse_unlinked(groups: Labels, blocks: Array, what: str) -> None:
    """Refuse groups that no block has in common, so that they cannot be compared."""
    parts = unlinked(groups.codes, blocks)
    if len(parts) > 1:
        one, other = (", ".join(shown(groups.names[g]) for g in part[:4]) for part in parts[:2])
        raise ValueError(
            f"groups {one} have no {what} in common with {other}, so that they cannot be compared "
            f"within {what}: leave one of them out, or pass "
            + ("a different unit for each group." if what == "units" else "coarser strata.")
        )


def refuse_replicates(interval: str, within: str) -> None:
    """Refuse bootstrap intervals of comparisons within strata or units, "" if there are none."""
    if interval != "t" and within:
        remedy = ", or leave strata= out" if within == "strata" else ""
        raise ValueError(
            f"interval={interval!r} with comparisons within {within}: bootstrap intervals are not "
            f"adjusted for these. Pass interval='t'{remedy}."
        )


def upper_if_absent(values: Array, weights: Array, groups: Labels, level: float) -> Array:
    """Return the upper end (T, R) of the mean of a group without a topic, and 0 elsewhere.

    If a share s of units had the topic, none of n would have it with probability (1 - s)^n: s is at
    most ``1 - (1 - level)^(1/n)`` (for 95% the rule of three, 3 / n). The mean is s times that of
    the units of other groups that have it.
    """
    has = values > 0
    size = (weights[:, None] * values).sum(axis=0)
    size = size / np.where(has.any(axis=0), (weights[:, None] * has).sum(axis=0), 1.0)
    anywhere = np.zeros((len(groups.names), values.shape[1]), np.int64)
    np.add.at(anywhere, groups.codes, has)
    share = 1 - power(np.full(len(groups.names), 1 - level), 1 / groups.sizes)
    upper: Array = np.where(anywhere.T == 0, size[:, None] * share, 0.0)
    return upper


def warn_of_unequal_spread(values: Array, groups: Labels, names: tuple[Any, ...]) -> None:
    """Warn of topics whose units in one group vary far more than those of another.

    Groups in which hardly any unit has a topic have a warning of their own.
    """
    R, T = len(groups.names), values.shape[1]
    n, first, second = np.zeros((R, T)), np.zeros((R, T)), np.zeros((R, T))
    np.add.at(n, groups.codes, values > PRESENT)
    np.add.at(first, groups.codes, values)
    sizes = groups.sizes[:, None]
    np.add.at(second, groups.codes, (values - (first / sizes)[groups.codes]) ** 2)
    variance = np.where(n >= _LEAST_UNITS, second / np.maximum(sizes - 1, 1), np.nan)
    there = (~np.isnan(variance)).sum(axis=0) > 1
    if not there.any():
        return
    most, least = np.nanargmax(variance[:, there], axis=0), np.nanargmin(variance[:, there], axis=0)
    topics = np.flatnonzero(there)
    ratio = variance[most, topics] / np.maximum(variance[least, topics], 1e-300)
    chance = f_tail(ratio, groups.sizes[most] - 1, groups.sizes[least] - 1)
    # what varies by rounding alone does not vary
    ratio = np.where(variance[most, topics] > _ROUNDING, ratio, 1.0)
    unequal = np.flatnonzero((ratio > _UNEQUAL) & (chance < 0.01 / (T * R * R)))
    if not unequal.size:
        return
    worst = int(unequal[ratio[unequal].argmax()])
    more = f", and of {unequal.size - 1:,} more topics" if unequal.size > 1 else ""
    wide, narrow = (shown(groups.names[int(of[worst])]) for of in (most, least))
    advice = (
        "rely on the intervals and their p-values, and on permutation_test for all topics together."
    )
    if groups.sizes[most[worst]] < _ENOUGH_UNITS:
        advice = (
            "rely on permutation_test for all topics together; as the group has few units, "
            "intervals are somewhat too narrow, too."
        )
    warn_caller(
        f"the proportion of topic {shown(names[int(topics[worst])])} varies more in group {wide} "
        f"than in group {narrow} (variance {ratio[worst]:.2g} times as large){more}. p-values of "
        "permutations of a topic may then be too small, those of all topics after max-T far too "
        f"small: {advice}"
    )
