"""The statistic of each topic: the variance between groups over its null expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..design.units import within_strata
from ..groups.statistics import Statistic, as_they_are

Array = NDArray[Any]
# Sums of squares are accurate to about 2^-31 of all squares, times the units of a group.
_ROUNDED = 2.0**-29


def rows_of_topics(values: Array, weights: Array, strata: Array) -> Array:
    """Return the columns to sum over groups: s = w y, s^2, s w of each topic; w, w^2.

    The mean of the stratum is subtracted from proportions y: differences between strata are no
    evidence. If all weights are 1, the last columns hold no information and are left out.
    """
    away = within_strata(values, strata, weights)
    # a topic that is the same in all units up to rounding
    away[:, (away**2).sum(axis=0) <= 1e-24 * (values**2).sum(axis=0)] = 0
    s = away * weights[:, None]
    if (weights == weights[0]).all():
        return np.hstack([s, s * s])
    return np.column_stack([s, s * s, s * weights[:, None], weights, weights**2])


@dataclass(frozen=True)
class EachTopic(Statistic):
    """Statistics B / (B + D) of topics; the `members` of a test name a topic, not groups.

    B is the sum of squares between groups, D its expectation if means are equal and each group has
    its own variance (Brown and Forsythe), estimated by the jackknife, like HC3. `n_units` is the
    number of units of each group.
    """

    n_units: tuple[int, ...] = ()
    n_topics: int = 0

    @classmethod
    def of_topics(cls, n_units: Array, n_topics: int) -> EachTopic:
        """Return the statistics of `n_topics` topics in groups of `n_units` units."""
        return cls(
            "Brown-Forsythe of each topic", "greater", as_they_are, np.take,
            n_units=tuple(n_units.tolist()), n_topics=n_topics,
        )  # fmt: skip

    def summary(self, tables: Array) -> Array:
        """Return the statistics (n_tables, n_topics)."""
        T, n = self.n_topics, np.array(self.n_units, float)[:, None]
        s, squares = tables[:, :, :T], tables[:, :, T : 2 * T]
        if tables.shape[2] == 2 * T:
            cross, w, w2 = s, np.broadcast_to(n, (1, *n.shape)), np.broadcast_to(n, (1, *n.shape))
        else:
            cross, w, w2 = tables[:, :, 2 * T : 3 * T], tables[:, :, -2:-1], tables[:, :, -1:]
        mean, whole = s / w, w.sum(axis=1, keepdims=True)
        # sum_u (s_u - w_u mean)^2
        within = squares - mean * (2 * cross - mean * w2)
        least = squares.sum(axis=1, keepdims=True) * n * _ROUNDED
        variance = self._variances(np.where(within > least, within, 0.0), n)
        between = (w * (mean - s.sum(axis=1, keepdims=True) / whole) ** 2).sum(axis=1)
        expected = ((1 - w / whole) * variance * n / w).sum(axis=1)
        both = between + expected
        shares: Array = np.divide(between, both, out=np.zeros_like(both), where=both > 0)
        return shares

    def _variances(self, within: Array, n: Array) -> Array:
        """Return variances of units in groups (n_tables, R, T), times n / (n - 1)."""
        spare = np.maximum(n - 1, 1)
        # a group with a single unit gets the pooled spread of all groups
        pooled = within.sum(axis=1, keepdims=True) / max(1.0, float((n - 1).sum()))
        variances: Array = np.where(n == 1, pooled, within / spare * (n / spare))
        return variances

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the statistic of a topic, one for each table."""
        return summary[:, members[0]]
