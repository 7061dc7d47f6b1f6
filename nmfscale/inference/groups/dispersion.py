"""Test whether groups differ in the spread of their units around the group mean.

Residuals from group means are permuted (Boos and Brownie 1989; with distances in place of variances
it is PERMDISP, Anderson 2006). Sums of residuals and of their squared norms give the variance of
each group about its own mean, whatever the labels, so that labellings are added up as for means.
The test is reported beside tests of means because some of these also react to spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.functions import log
from ...methods.factors import proportions
from ..design.groups import Labels
from ..design.units import within_strata
from .labelling import Labelled
from .statistics import Statistic, as_they_are

Array = NDArray[Any]


class _LogVariances(Statistic):
    """Sum of squares of log variances between groups, weighted by degrees of freedom."""

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the statistic of some of the groups, one for each table."""
        return self.values(variances_of(summary[:, members], sizes[members]), sizes[members])


def variances_of(tables: Array, sizes: Array) -> Array:
    """Return variances of groups (n, R), summed over topics; tables end with squared norms."""
    around = tables[:, :, -1] - (tables[:, :, :-1] ** 2).sum(axis=2) / sizes
    variances: Array = np.maximum(around, 0.0) / np.maximum(sizes - 1, 1)
    return variances


def _between_logs(variances: Array, sizes: Array) -> Array:
    logs, weights = log(variances + _LEAST), (sizes - 1) / max(1, (sizes - 1).sum())
    mean = (weights * logs).sum(axis=1, keepdims=True)
    between: Array = (weights * (logs - mean) ** 2).sum(axis=1)
    return between


# Smallest variance of a group relative to all units: below it, rounding would decide.
_LEAST = 1e-9
LOG_VARIANCES = _LogVariances("dispersion", "greater", as_they_are, _between_logs)


@dataclass(frozen=True)
class Dispersion:
    """Spread of units around the mean of their group, and the columns that its test permutes.

    `spread` (n_groups,) are square roots of the variances of proportions, summed over topics;
    `observed` is the statistic of each test.
    """

    spread: Array
    observed: list[float]
    labelled: Labelled

    @classmethod
    def of(
        cls, amounts: Array, labels: Labels, strata: Array, blocks: Array,
        tests: Iterable[tuple[int, ...]],
    ) -> Dispersion:  # fmt: skip
        """Build the test from amounts of topics in units; groups and strata are numbered from 0.

        Means of `strata` are subtracted, and labels permuted within `blocks`. Two measurements of
        a subject, less their mean, would have the same spread: a subject is a block, not a stratum.
        """
        rows = within_strata(proportions(amounts), strata)
        # groups in place of strata: the mean of the group is subtracted
        return cls.of_residuals(within_strata(rows, labels.codes), labels, blocks, tests)

    @classmethod
    def of_residuals(
        cls, residuals: Array, labels: Labels, blocks: Array, tests: Iterable[tuple[int, ...]]
    ) -> Dispersion:
        """Build the test from deviations of units from what their group lets expect, (n, T)."""
        codes, sizes = labels.codes, labels.sizes
        unit = float(np.sqrt((residuals**2).sum(axis=1).mean())) or 1.0
        residuals = residuals / unit
        tables = np.zeros((1, sizes.size, residuals.shape[1] + 1))
        np.add.at(tables[0, :, -1], codes, (residuals**2).sum(axis=1))
        variances = variances_of(tables, sizes)
        # deviations from the units' own mean are smaller than from the mean of the population
        residuals *= np.sqrt(sizes / np.maximum(sizes - 1, 1))[codes, None]
        columns = np.column_stack([residuals, (residuals**2).sum(axis=1)])
        labelled = Labelled.of(LOG_VARIANCES, columns, codes, blocks, tests)
        between = [_between_logs(variances[:, test], sizes[list(test)]) for test in labelled.tests]
        return cls(np.sqrt(variances[0]) * unit, np.concatenate(between).tolist(), labelled)
