"""Parts of permutation tests: sets of units to permute, null distributions, results of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ...counts.warn import warn_caller
from ..design.groups import Labels
from ..design.labellings import log10_labellings, n_labellings, smallest_pvalue
from ..design.units import Units
from ..job import JobOptions
from ..replicates.replicates import run_replicates
from .dispersion import Dispersion
from .labelling import Labelled, Part, Permutations
from .permutation_result import GroupTest
from .pvalues import (
    independent_max_t,
    intervals,
    joint_max_t,
    n_as_extreme,
    pvalue,
    standardized,
)
from .statistics import Statistic

Array = NDArray[Any]
Scope: TypeAlias = Literal["pair", "all"]


def of_pair(units: Units, pair: tuple[int, ...]) -> Units:
    """Return the units of two groups."""
    return units.at(np.isin(units.groups.codes, pair))


def labelled_sets(
    statistic: Statistic, units: Units, members: Sequence[tuple[int, ...]],
    of_pairs: Sequence[Units] = (),
) -> list[Labelled]:  # fmt: skip
    """Return the sets to permute: all units, for the tests of `members`, and those of each pair."""
    sets = [
        Labelled.of(statistic, of.rows, of.groups.codes, of.blocks, tests, of.weights)
        for of, tests in [(units, members), *((pair, [(0, 1)]) for pair in of_pairs)]
    ]
    if log10_labellings(sets[0].sizes) == 0:
        raise ValueError(
            "no label can be moved: every stratum has units of one group only. Pass coarser strata."
        )
    return sets


def smallest_pvalues(
    sets: list[Labelled], statistic: Statistic, members: list[tuple[int, ...]], scope: str
) -> list[float]:
    """Return the smallest p-value that all labellings can give, for each test."""
    if scope == "pair":
        return [smallest_pvalue(labelled.sizes, symmetric=statistic.symmetric) for labelled in sets]
    sizes, out = sets[0].sizes, []
    for test in members:
        others = np.delete(sizes, test, axis=1).sum(axis=1, keepdims=True)
        same = smallest_pvalue(sizes[:, list(test)]) / smallest_pvalue(
            sizes[:, list(test)], symmetric=False
        )
        part = np.hstack([sizes[:, list(test)], others])
        p = smallest_pvalue(part, symmetric=False)
        out.append(min(1.0, p * (same if statistic.symmetric else 1.0)))
    return out


def observed_statistics(
    statistic: Statistic, sets: list[Labelled], members: list[tuple[int, ...]],
    names: tuple[Any, ...],
) -> list[float]:  # fmt: skip
    """Return the statistic of the data for each test."""
    if statistic.check is not None:
        tables = (labelled.table()[list(test)] for labelled in sets for test in labelled.tests)
        for table, test in zip(tables, members, strict=True):
            statistic.check(table, [names[g] for g in test])
    statistics: list[float] = np.concatenate(
        [labelled.observed(statistic) for labelled in sets]
    ).tolist()
    for value, test in zip(statistics, members, strict=True):
        if not np.isfinite(value):
            raise ValueError(
                f"statistic={statistic.name!r} of groups {' - '.join(str(names[g]) for g in test)} "
                "is not a finite number: amounts of their units differ too much. Pass "
                "scale='proportions', or rescale what is given."
            )
    return statistics


def null_distributions(
    statistic: Statistic, sets: list[Labelled], n: int, beside: Sequence[Part] = (), *,
    batch_size: int | None = None, **job: Unpack[JobOptions],
) -> tuple[list[Array], list[bool], bool]:  # fmt: skip
    """Return the null distribution of each test, and whether it has all labellings.

    `beside` has one more part for each set, with the same labellings; its tests come last.
    """
    of_sets: list[list[Part]] = [[(statistic, labelled)] for labelled in sets]
    for parts, other in zip(of_sets, beside, strict=False):
        parts.append(other)
    few = [log10_labellings(of.sizes) < 15 and n_labellings(of.sizes) <= n for of in sets]
    drawn = [parts for parts, is_few in zip(of_sets, few, strict=True) if not is_few]
    columns, interrupted = [], False
    if drawn:
        replicates = run_replicates(Permutations(drawn), n, batch_size=batch_size, **job)
        interrupted = replicates.interrupted
        if not len(replicates):
            raise KeyboardInterrupt
        columns = list(replicates["statistic"].T)
    nulls: list[list[Array]] = [[], []]
    exact: list[list[bool]] = [[], []]
    for parts, is_few in zip(of_sets, few, strict=True):
        for place, (of, labelled) in enumerate(parts):
            if is_few:
                of_tests = list(labelled.all_values(of).T)
            else:
                of_tests, columns = columns[: len(labelled.tests)], columns[len(labelled.tests) :]
            nulls[place] += [np.ascontiguousarray(null) for null in of_tests]
            exact[place] += [is_few] * len(labelled.tests)
    return sum(nulls, []), sum(exact, []), interrupted


def dispersions_of(
    units: Units, members: Sequence[tuple[int, ...]], of_pairs: Sequence[Units]
) -> list[Dispersion]:
    """Return the tests of spread, for the same sets of units as the tests of means."""
    return [
        Dispersion.of(part.rows, part.groups, part.strata, part.blocks, tests)
        for part, tests in [(units, members), *((pair, [(0, 1)]) for pair in of_pairs)]
    ]


def with_dispersions(
    tests: list[GroupTest], members: list[tuple[int, ...]], spread: list[Dispersion],
    nulls: list[Array], exact: list[bool],
) -> list[GroupTest]:  # fmt: skip
    """Return the tests with the results of the tests of spread added."""
    observed = [value for dispersion in spread for value in dispersion.observed]
    tests_of_spread = []
    for test, groups, value, null, is_exact in zip(
        tests, members, observed, nulls, exact, strict=True
    ):
        p = pvalue(n_as_extreme(null, value, "greater"), null.size, "", is_exact)
        roots = tuple(spread[0].spread[list(groups)].tolist())
        tests_of_spread.append(replace(test, dispersions=roots, dispersion_pvalue=p))
    return tests_of_spread


def group_tests(
    statistic: Statistic, members: list[tuple[int, ...]], labels: Labels, observed: list[float],
    nulls: list[Array], exact: list[bool], smallest: list[float], scope: str,
) -> list[GroupTest]:  # fmt: skip
    """Return the result of each test."""
    side = statistic.alternative
    n_extreme = [
        n_as_extreme(*null_and_observed, side)
        for null_and_observed in zip(nulls, observed, strict=True)
    ]
    z = [
        standardized(*null_and_observed, side)
        for null_and_observed in zip(nulls, observed, strict=True)
    ]
    p = [
        pvalue(b, null.size, side, all_of_them)
        for b, null, all_of_them in zip(n_extreme, nulls, exact, strict=True)
    ]
    maxt, bh = np.array(p), np.array(p)
    if len(members) > 1:
        spread, at = [null for null, _ in z[1:]], [value for _, value in z[1:]]
        maxt[1:] = (
            joint_max_t(spread, at, exact[0])
            if scope == "all"
            else independent_max_t(spread, at, exact[1:])
        )
        bh[1:] = false_discovery_control(p[1:])
    # standardised values rank labellings of both sides together, p-values rank each side by itself
    maxt, bh, n_units = np.maximum(maxt, p), np.maximum(bh, p), labels.sizes
    ends = intervals(n_extreme, [null.size for null in nulls], side, exact)
    return [
        GroupTest(
            groups=tuple(labels.names[g] for g in test),
            n_units=tuple(int(n_units[g]) for g in test),
            observed=observed[i],
            zscore=float(z[i][1]),
            pvalue=p[i],
            fraction=n_extreme[i] / nulls[i].size,
            interval=ends[i],
            pvalue_maxt=float(maxt[i]),
            qvalue=float(bh[i]),
            smallest_pvalue=smallest[i] if exact[i] else max(smallest[i], 1 / (nulls[i].size + 1)),
            exact=exact[i],
            null=statistic.finite(nulls[i], len(test)),
            n_unbalanced=int(np.isinf(nulls[i]).sum()),
        )
        for i, test in enumerate(members)
    ]


def warn_of_spread(statistic: str, test: GroupTest, alpha: float) -> None:
    """Warn of a statistic that reacts to spread, if groups differ in spread."""
    if test.dispersion_pvalue <= alpha:
        warn_caller(
            f"groups differ in spread (p = {test.dispersion_pvalue:.2g}), which "
            f"statistic={statistic!r} may mistake for a difference between means, or which may "
            "hide one. statistic='welch' compares means."
        )


def warn_of_unbalanced(tests: list[GroupTest]) -> None:
    """Warn of labellings whose tables have no balance."""
    worst = max(tests, key=lambda test: test.n_unbalanced)
    if worst.n_unbalanced:
        warn_caller(
            f"{worst.n_unbalanced:,} of {worst.null.size:,} labellings of groups "
            f"{' - '.join(map(str, worst.groups))} have no balance, as topics are left without "
            "weight where they are rare: they count as at least as extreme as the data, and p may "
            "be too large. Leave rare topics out, or join groups."
        )
