"""The result of permutation_test: a test of all groups, and one of each pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.tables import Columns
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]


@dataclass(frozen=True)
class GroupTest:
    """One test of whether groups differ.

    Attributes
    ----------
    groups : tuple
        Labels of the groups that were compared.
    n_units : tuple of int
        Units in each of them.
    observed, zscore : float
        The statistic, and how many standard deviations it is from its mean over permutations, in
        the direction of groups that differ.
    pvalue : float
        (b + 1) / (s + 1), where b of s random labellings are at least as extreme; b / s where
        these are all labellings (`exact`).
    fraction : float
        b / s.
    interval : tuple of float
        95% confidence interval of the p-value of all labellings (Clopper and Pearson).
    pvalue_maxt, qvalue : float
        p-value adjusted for all pairs: by the maximum of standardised statistics, step down, and
        by Benjamini and Hochberg. For the test of all groups both are `pvalue`.
    smallest_pvalue : float
        The smallest p-value that was possible.
    exact : bool
        Whether all labellings were taken.
    null : ndarray of shape (n_labellings,)
        The statistic of each labelling.
    n_unbalanced : int
        With statistic="balanced", labellings whose table has no balance. They count as at least as
        extreme as the data in every p-value, and have the largest possible value in `null`.
    dispersions : tuple of float
        Spread of each group: the root of the variances of its units' proportions, summed over
        topics.
    dispersion_pvalue : float
        p-value of a test whether these differ: sum of squares of log variances between groups, with
        permuted residuals.
    """

    groups: tuple[Any, ...]
    n_units: tuple[int, ...]
    observed: float
    zscore: float
    pvalue: float
    fraction: float
    interval: tuple[float, float]
    pvalue_maxt: float
    qvalue: float
    smallest_pvalue: float
    exact: bool
    null: Array = field(repr=False)
    n_unbalanced: int = 0
    dispersions: tuple[float, ...] = ()
    dispersion_pvalue: float = 1.0

    @property
    def shown_units(self) -> str:
        """The numbers of units as text: of up to four groups, or of all groups together."""
        if len(self.n_units) > 4:
            return f"{sum(self.n_units):,}"
        return " + ".join(f"{n:,}" for n in self.n_units)


@dataclass(frozen=True, repr=False)
class PermutationTest(Result):
    """Result of :func:`nmfscale.permutation_test`: of all groups, and of each pair of them.

    Attributes
    ----------
    statistic, alternative, scope : str
        As they were chosen.
    overall : GroupTest
        All groups at once.
    pairs : tuple of GroupTest
        Each pair; empty if there are two groups only, which `overall` compares.
    interrupted : bool
        Whether Ctrl-C ended it early; p-values are based on the finished permutations.
    n_crossed : int
        Number of units, as they were passed, that have samples in several groups. Each of them
        counts as a unit in each of its groups, and labels were permuted within it.
    covariates : tuple of str
        Names of the covariates beside which groups were compared.
    origin : Origin
        Names of the columns of labels that were compared: `groups`, `units` and `strata`.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each test, that of all groups
    first: ``groups``, "all" or the names of a pair; as in :class:`GroupTest` ``observed``,
    ``zscore``, ``pvalue``, ``fraction``, ``pvalue_maxt``, ``qvalue``, ``smallest_pvalue``,
    ``exact`` and ``dispersion_pvalue``; ``pvalue_lower`` and ``pvalue_upper``, the ends of its
    `interval`; and ``n_units``, their sum.
    """

    statistic: str
    alternative: str
    scope: str
    overall: GroupTest
    pairs: tuple[GroupTest, ...]
    interrupted: bool
    n_crossed: int = 0
    covariates: tuple[Any, ...] = ()
    origin: Origin = Origin()

    def __repr__(self) -> str:
        """Return a table of the tests as text."""
        test = self.overall
        least = min((pair.pvalue_maxt for pair in self.pairs), default=None)
        of_pairs = (
            "" if least is None else f"; {len(self.pairs)} pairs, smallest max-T p = {least:.3g}"
        )
        return (
            f"<PermutationTest: {self.statistic}{self.beside}, {len(test.groups)} groups of "
            f"{sum(test.n_units):,} units{self.crossed}, {test.null.size:,} labellings, "
            f"p = {test.pvalue:.3g}{of_pairs}>"
        )

    @property
    def crossed(self) -> str:
        """Words on units with samples in several groups, empty if there are none."""
        return f", {self.n_crossed:,} of them in several groups" if self.n_crossed else ""

    @property
    def beside(self) -> str:
        """Words on the covariates, empty if there are none."""
        return f" beside {', '.join(map(str, self.covariates))}" if self.covariates else ""

    @property
    def tests(self) -> tuple[GroupTest, ...]:
        """The test of all groups, and those of the pairs."""
        return self.overall, *self.pairs

    @property
    def names(self) -> list[str]:
        """Names of the tests: "all", and the groups of each pair."""
        return ["all", *(" - ".join(map(str, test.groups)) for test in self.pairs)]

    def _columns(self) -> Columns:
        tests = self.tests
        columns = {name: np.array([getattr(test, name) for test in tests]) for name in _COLUMNS}
        lower, upper = np.array([test.interval for test in tests]).T
        return {"groups": np.array(self.names, object), **columns} | {
            "pvalue_lower": lower, "pvalue_upper": upper,
            "n_units": np.array([sum(test.n_units) for test in tests]),
        }  # fmt: skip


_COLUMNS = (
    "observed", "zscore", "pvalue", "fraction", "pvalue_maxt", "qvalue", "smallest_pvalue", "exact",
    "dispersion_pvalue",
)  # fmt: skip
