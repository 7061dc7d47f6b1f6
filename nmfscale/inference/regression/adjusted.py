"""Tests of groups beside covariates, all topics together: Freedman and Lane (1983).

Proportions are regressed on the covariates, and the residuals permuted within blocks of units. The
statistic is that of `FreedmanLane` with both parts of the ratio summed over topics: without
covariates, for two groups, Welch's distance with variances of HC3. Means of blocks are subtracted
from proportions, covariates and groups alike, as by a term for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.names import shown
from ...methods.factors import proportions
from ..design.groups import Labels
from ..design.labellings import log10_labellings, n_labellings, smallest_pvalue
from ..design.units import Units, within_strata
from ..groups.bootstrap import in_parts
from ..groups.dispersion import Dispersion
from ..groups.labelling import labellings
from ..replicates.replicates import ReplicateTask, run_replicates
from ..replicates.seeds import child, child_states
from .coefficient_tests import FreedmanLane
from .covariates import DesignMatrix
from .least_squares import LeastSquares

Array = NDArray[Any]
# Length of a covariate, relative to before, from which it varies within blocks.
_VARIES = 1e-9


@dataclass(frozen=True)
class AllTopics(FreedmanLane):
    """The same tests, of all topics together."""

    def _of_topics(self, between: Array, left: Array, squares: Array) -> Array:
        """Return B / (B + D) (n_orders, 1), which orders as the ratio B / D does and is finite."""
        B, D = (part.sum(axis=1, keepdims=True) for part in (between, left))
        return np.divide(B, B + D, out=np.zeros_like(B), where=B + D > 0)

    def drawn_values(self, numbers: range, seed: SeedSequence, n_threads: int) -> Array:
        """Return the statistics of these random permutations, drawn from children of the seed."""
        states = child_states(seed, numbers)
        return self._values(len(states), lambda part: self._orders(states[part]), n_threads)

    def all_values(self, sizes: Array, first: Array) -> Array:
        """Return the statistics of all permutations of kinds of units: see `all_as_extreme`."""
        return self._values(
            n_labellings(sizes),
            lambda part: first[labellings(sizes, np.arange(part.start, part.stop))], 1,
        )  # fmt: skip

    def _values(self, n: int, orders: Callable[[slice], Array], n_threads: int) -> Array:
        values = np.empty(n)

        def work(part: slice) -> None:
            values[part] = self.statistics(orders(part))[:, 0, 0]

        in_parts(n, self._at_once, work, n_threads)
        return values


@dataclass(frozen=True)
class AdjustedGroups:
    """A set of units whose groups are compared beside covariates.

    Units are in the order of their blocks. A kind is all units with the same terms: `sizes`
    (n_blocks, n_kinds) counts them in each block, `first` (n_kinds,) is one unit of each.
    `dispersion` is the test of spread around the model with groups.
    """

    task: AllTopics
    sizes: Array
    first: Array
    dispersion: Dispersion

    @classmethod
    def of(cls, units: Units, matrix: DesignMatrix, scores: Array | None) -> AdjustedGroups:
        """Build the set from covariates of units.

        `scores` (n_groups,) make the alternative a trend over groups.
        """
        blocks, codes = units.blocks, units.groups.codes
        names = units.groups.names
        if scores is None:
            columns = (codes[:, None] == np.arange(1, len(names))).astype(np.float64)
            terms = [f"group {shown(name)}" for name in names[1:]]
        else:
            columns, terms = scores[codes][:, None], ["trend of groups"]
        Z = within_strata(matrix.values, blocks)
        lengths = np.sqrt((Z**2).sum(axis=0))
        # what blocks explain, such as the age of donors that are blocks, is adjusted for already
        varies = lengths > _VARIES * np.sqrt((matrix.values**2).sum(axis=0))
        X = np.column_stack([Z[:, varies], within_strata(columns, blocks)])
        of_covariates = [term for term, kept in zip(matrix.terms, varies, strict=True) if kept]
        DesignMatrix(X, (*of_covariates, *terms)).check_rank(np.ones(len(X), bool), "units")
        values = proportions(units.rows)
        Y = within_strata(values, blocks)
        # the part of spread that belongs to subjects, which are blocks
        of_subjects = within_strata(values - Y, units.strata)
        if units.weights is not None:
            root = np.sqrt(units.weights)[:, None]
            X, Y = X * root, Y * root
        order = np.argsort(blocks, kind="stable")
        X, Y, blocks = X[order], Y[order], blocks[order]
        fit = LeastSquares.of(X, Y)
        tested = tuple(range(X.shape[1] - columns.shape[1], X.shape[1]))
        task = AllTopics(fit, (tested,), np.bincount(blocks))
        _, first, kind = np.unique(X, axis=0, return_index=True, return_inverse=True)
        sizes = np.zeros((int(blocks.max()) + 1, len(first)), np.int64)
        np.add.at(sizes, (blocks, kind.reshape(-1)), 1)
        dispersion = Dispersion.of_residuals(
            fit.residuals + of_subjects[order], Labels(codes[order], names), blocks,
            [tuple(range(len(names)))],
        )  # fmt: skip
        return cls(task, sizes, first, dispersion)

    @property
    def observed(self) -> float:
        """The statistic of the data."""
        return float(self.task.observed[0, 0])

    @property
    def smallest_pvalue(self) -> float:
        """The smallest p-value that all permutations can give."""
        return smallest_pvalue(self.sizes, symmetric=False)

    def has_few(self, n: int) -> bool:
        """Return whether there are no more than `n` permutations that differ."""
        return log10_labellings(self.sizes) < 15 and n_labellings(self.sizes) <= n


def adjusted_sets(
    units: Units, matrix: DesignMatrix, scores: Array | None, members: Sequence[tuple[int, ...]]
) -> list[AdjustedGroups]:
    """Return the sets of all units and of those of each pair, with the covariates of units."""
    sets = []
    for test in members:
        kept = np.isin(units.groups.codes, test)
        names = " - ".join(str(units.groups.names[g]) for g in test)
        part = DesignMatrix(matrix.values[kept], matrix.terms)
        of_test = None if scores is None else scores[list(test)]
        try:
            sets.append(AdjustedGroups.of(units.at(kept), part, of_test))
        except ValueError as error:
            raise ValueError(f"groups {names} beside covariates: {error}") from None
    return sets


class AdjustedPermutations(ReplicateTask):
    """Random permutations of several sets of units, drawn independently, and their statistics."""

    name = "permutations"

    def __init__(self, sets: Sequence[AllTopics]):
        self.sets = tuple(sets)

    def about(self) -> Iterable[Any]:
        """Yield what determines the statistics of each set."""
        for task in self.sets:
            yield from task.about()

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the statistics (n, n_sets) of these permutations."""
        columns = [
            task.drawn_values(numbers, child(seed, i), n_threads)
            for i, task in enumerate(self.sets)
        ]
        return {"statistic": np.stack(columns, axis=1)}


def adjusted_nulls(
    sets: Sequence[AdjustedGroups], n: int, **options: Any
) -> tuple[list[Array], list[bool], bool]:
    """Return the null distribution of each set, whether it has all permutations; interrupted."""
    few = [of_set.has_few(n) for of_set in sets]
    drawn = [of_set.task for of_set, is_few in zip(sets, few, strict=True) if not is_few]
    columns, interrupted = iter(()), False
    if drawn:
        job = run_replicates(AdjustedPermutations(drawn), n, **options)
        interrupted = job.interrupted
        if not len(job):
            raise KeyboardInterrupt
        columns = iter(np.ascontiguousarray(job["statistic"].T))
    nulls = [
        of_set.task.all_values(of_set.sizes, of_set.first) if is_few else next(columns)
        for of_set, is_few in zip(sets, few, strict=True)
    ]
    return nulls, few, interrupted


def covariates_of_units(matrix: DesignMatrix, units: Units) -> DesignMatrix:
    """Return the covariates of units, given those of samples; refuse what differs within a unit."""
    has = np.flatnonzero(units.unit_of_sample >= 0)
    _, first = np.unique(units.unit_of_sample[has], return_index=True)
    values = matrix.values[has[first]]
    differ = (values[units.unit_of_sample[has]] != matrix.values[has]).any(axis=0)
    if differ.any():
        raise ValueError(
            f"covariates: {shown(matrix.terms[int(differ.argmax())])} differs between samples of a "
            "unit: pass one value for each unit, such as the mean over its samples, or use "
            "regress_proportions."
        )
    return DesignMatrix(values, matrix.terms)
