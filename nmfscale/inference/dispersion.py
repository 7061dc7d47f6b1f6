"""Do groups differ in how widely their units spread: distances to the mean of the group.

The test of Anderson (2006), "PERMDISP": the F statistic of the distances, whose null distribution
is that of permuted residuals. It is reported beside tests of means: some of these answer to spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .groups import Labels
from .labelling import Labelled
from .loadings import proportions
from .statistics import Statistic, as_they_are, within_strata

Array = NDArray[Any]


class _FOfDistances(Statistic):
    """Sum of squares between groups over that within, of sums of distances and their squares."""

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the statistic of some of the groups, one for each table."""
        return self.values(summary[:, members], sizes[members])


def _f_of_distances(tables: Array, sizes: Array) -> Array:
    sums, squares = tables[:, :, 0], tables[:, :, 1].sum(axis=1)
    of_groups = (sums**2 / sizes).sum(axis=1)
    between = of_groups - sums.sum(axis=1) ** 2 / sizes.sum()
    within = np.maximum(squares - of_groups, 0.0)
    return between / (within + _LEAST * squares + np.finfo(float).tiny)


# Rounding would rule where all distances of a group are equal.
_LEAST = 1e-9
F_OF_DISTANCES = _FOfDistances("dispersion", "greater", as_they_are, _f_of_distances)


@dataclass(frozen=True)
class Dispersion:
    """Distances of units (n,) to the mean of their group, and what is permuted for their test.

    `mean` (n_groups,) are mean distances, and `observed` the statistic of each test.
    """

    mean: Array
    observed: list[float]
    labelled: Labelled

    @classmethod
    def of(
        cls, amounts: Array, labels: Labels, strata: Array, tests: Iterable[tuple[int, ...]]
    ) -> Dispersion:
        """Take units with these amounts of topics; groups and strata are numbers from 0."""
        codes, sizes = labels.codes, labels.sizes
        rows = within_strata(proportions(amounts), strata)
        away = rows - _means(rows, codes, sizes)[codes]
        # the mean of n units is nearer to each of them than that of their group is
        nearer = np.sqrt(sizes / np.maximum(sizes - 1, 1))
        distances = np.sqrt((away**2).sum(axis=1, keepdims=True)) * nearer[codes, None]
        mean = _means(distances, codes, sizes)[:, 0]
        distances = within_strata(distances, strata)
        residuals = distances - _means(distances, codes, sizes)[codes]
        unit = float(np.sqrt((residuals**2).mean())) or 1.0
        distances, residuals = distances / unit, residuals / unit
        columns = np.column_stack([residuals, residuals**2])
        labelled = Labelled.of(F_OF_DISTANCES, columns, codes, strata, tests)
        sums = np.zeros((1, sizes.size, 2))
        np.add.at(sums[0], codes, np.column_stack([distances, distances**2]))
        found = [F_OF_DISTANCES.of(sums, sizes, list(test)) for test in labelled.tests]
        return cls(mean, np.concatenate(found).tolist(), labelled)


def _means(rows: Array, codes: Array, sizes: Array) -> Array:
    sums = np.zeros((sizes.size, rows.shape[1]))
    np.add.at(sums, codes, rows)
    found: Array = sums / sizes[:, None]
    return found
