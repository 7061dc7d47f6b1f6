"""Permutation tests of whether groups of samples differ in their topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from ...counts.argument_types import check_option
from ...counts.names import shown
from ...counts.warn import warn_caller
from ...models.pipelines import FittedModel
from ..design.groups import (
    Labels,
    log10_labellings,
    n_labellings,
    smallest_pvalue,
    warn_few_labellings,
)
from ..design.loadings import Scale, TopicSums
from ..design.units import Units
from ..job import JobOptions, job_options
from ..replicates.replicates import run_replicates
from ..results.origin import Origin
from .dispersion import LOG_VARIANCES, Dispersion
from .labelling import Labelled, Part, Permutations, check_pairs
from .permutation_result import GroupTest, PermutationTest
from .pvalues import (
    independent_max_t,
    intervals,
    joint_max_t,
    n_as_extreme,
    pvalue,
    standardized,
)
from .statistics import Alternative, Statistic, StatisticName, checked_statistic

Array = NDArray[Any]
Scope: TypeAlias = Literal["pair", "all"]


@job_options
def permutation_test(
    model: FittedModel | ArrayLike,
    groups: ArrayLike,
    *,
    scale: Scale = "proportions",
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    statistic: StatisticName | Callable[[Array], Array] = "welch",
    alternative: Alternative | None = None,
    scope: Scope = "pair",
    topic_sums: TopicSums | None = None,
    n_permutations: int = 9999,
    alpha: float = 0.05,
    batch_size: int | None = None,
    **job: Unpack[JobOptions],
) -> PermutationTest:
    """Test whether groups of samples differ in their topics, all groups together and in pairs.

    First identify the sampling unit. If samples come in clusters (beers of a brewery, posts of a
    blog, cells of a patient), the clusters are the units: pass them as `units=`. Labels of whole
    units are then permuted; or, where units have samples in several groups, such as a patient
    before and after treatment, labels within units. A test that permutes samples instead reports
    differences that do not exist in a large share of studies.

    Each test of means comes with a test of spread, `dispersion_pvalue`: whether units of some
    groups are further from their group mean than units of other groups [5]_, [6]_.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, n_components)
        A model, or non-negative amounts of topics in each sample. The fit must not have used the
        labels: otherwise the test is not valid.
    groups : array-like of shape (n_samples,)
        Labels of any type: a list, a Series, a column of ``adata.obs``, a dict of labels by name.
        If labels and samples both have names, they are matched by name, in any order; a sample
        without a label is an error. Consecutive numbers, the default index of pandas, do not count
        as names.
    scale : {"proportions", "amounts"}, default="proportions"
        What is compared: proportions of topics in each sample, whose mean does not depend on the
        counts of a sample; or amounts, as in [1]_, which for a model are the expected counts of
        each topic. Proportions of a unit are the mean over its samples, amounts the sum.
    units : array-like of shape (n_samples,), optional
        Sampling unit of each sample, such as its donor. By default each sample is a unit. If units
        have samples in several groups (pairs, time points), these are compared within each such
        unit: a group of a unit counts as a unit, and its labels are permuted among its groups.
        Units that are in one group only are then compared with each other.
    strata : array-like of shape (n_samples,), optional
        Units are permuted only within strata: differences between strata are no evidence. A unit
        lies in one stratum. Where strata are donors, pass these as `units` alone.
    statistic : {"welch", "hellinger", "cosine", "balanced"} or callable, default="welch"
        "welch": the distance between mean proportions of groups, in which each unit counts once,
        relative to the variances within the groups [3]_, [4]_, as a normal score. It compares means
        whatever the spread and size of groups. "hellinger": the share of the sum of squares of
        square-root proportions that lies between groups. "cosine": the mean cosine between the sums
        of all pairs of groups, small if groups differ [1]_ (Algorithms 3, 4). "balanced": the sum
        of squared deviations of the balanced table (:func:`nmfscale.balance`) from the neutral
        1/sqrt(T), large if groups differ [1]_ (section 4.4). A function takes tables of sums over
        groups, (n_tables, n_groups, n_components), and returns a number for each. All but "welch"
        test whether groups have the same distribution, spread included: see Notes.
    alternative : {"greater", "less", "two-sided"}, optional
        Which values of a function are evidence of a difference; by default "greater".
    scope : {"pair", "all"}, default="pair"
        Whether a pair is tested by permuting its own units, or the units of all groups, as in [1]_.
        With "all" the test of a pair depends on the variance of the other groups, unless the
        statistic is "welch".
    topic_sums : dict, optional
        Sums of topics that take the place of their parts, such as ``{"T cells": [1, 4]}``: a name
        for each, and its topics by name or number. Other topics stay as they are.
    n_permutations : int, default=9999
        Number of random labellings. If there are no more than this many labellings in all, each is
        taken once, and p is exact.
    alpha : float, default=0.05
        Level of significance: a test with too few units to reach it gives a warning.
    batch_size : int, optional
        Permutations in a batch; by default about a second's worth. Results do not depend on it, nor
        on the number of threads or workers.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`.

    Returns
    -------
    PermutationTest
        Observed values, p-values and null distributions.

    Raises
    ------
    ValueError
        If an argument is not valid, a unit lies in several strata, fewer than two groups are left,
        no label can be moved within strata, or statistic="balanced" and the table of all groups or
        of a pair has no balance.
    MemoryLimitError
        If there are so many pairs of groups that their tests do not fit in free memory.

    Warns
    -----
    UserWarning
        If samples without counts (of an array: rows of zeros) are left out, and with them units or
        groups; more than 1,000 samples of a group are each treated as a unit, or several samples of
        a group in each stratum; units of one group only have no counterpart beside units in several
        groups, and are left out; units are too few;
        labellings have no balance; groups differ in spread, and the statistic reacts to spread; or
        units of groups differ in their numbers of samples or counts, and the statistic is
        "hellinger"; samples of a model have fewer than 50 counts for each topic in one group, and
        more than twice as many in another; or there are so many pairs of groups that their tests
        take long.

    Notes
    -----
    In simulations with equal means (``benchmarks/calibration.py``), tests at the 5% level by
    "welch", "hellinger", "cosine" and "balanced" rejected in 4%, 98%, 58% and 72% of the sets with
    8 units of wide spread beside 40 of narrow spread, in 5%, 1%, 0% and 0% of the reverse, in 6%,
    100%, 7% and 6% with units of 1 sample beside units of 30, and in 7%, 35%, 6% and 7% with a
    topic model's documents of 20 words beside documents of 200. With topics that share 80% of their
    words, and documents of 8 words beside documents of 200, all reject in 39% or more; a warning
    then advises to thin counts.

    In sets of 200 samples in four groups (``benchmarks/permutation.py``) they found a shift of one
    frequent topic in 94%, 80%, 92% and 8%, of one rare topic in 9%, 86%, 8% and 81%, and a slight
    one of all topics in 56%, 66%, 56% and 12%. If a rare topic may differ, use
    :func:`group_effects`, which tests each topic, or "hellinger" if groups have equal spread.

    References
    ----------
    .. [1] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.
    .. [2] Westfall, Young (1993). Resampling-based multiple testing. Wiley.
    .. [3] Alekseyenko (2016). Multivariate Welch t-test on distances. Bioinformatics.
    .. [4] Chung, Romano (2013). Exact and asymptotically robust permutation tests. Annals of
       Statistics.
    .. [5] Anderson (2006). Distance-based tests for homogeneity of multivariate dispersions.
       Biometrics.
    .. [6] Boos, Brownie (1989). Bootstrap methods for testing homogeneity of variances.
       Technometrics.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import permutation_test
    >>> rng = np.random.default_rng(6)
    >>> breweries = np.repeat(np.arange(12), 20)  # 20 beers each
    >>> tastes = rng.dirichlet([2, 2, 2], 12)[breweries]
    >>> beers = np.array([rng.dirichlet(20 * taste) for taste in tastes])
    >>> regions = np.array(["East", "West"])[breweries % 2]
    >>> permutation_test(beers, regions, random_state=0).overall.pvalue < 0.001  # beers: wrong
    True
    >>> permutation_test(beers, regions, units=breweries).overall.pvalue > 0.05
    True
    """
    chosen = checked_statistic(statistic, alternative)
    _check(scope, n_permutations, alpha)
    design = Units.of(model, groups, units, strata, scale, topic_sums).compared()
    labels = design.groups
    check_pairs(labels, design.rows.shape[1] + 1, n_permutations, scope)
    members = [tuple(range(len(labels.names)))]
    if len(labels.names) > 2:
        members += combinations(range(len(labels.names)), 2)
    of_pairs = [_pair(design, pair) for pair in members[1:] if scope == "pair"]
    sets = labelled_sets(chosen, design, members if scope == "all" else members[:1], of_pairs)
    spread = _dispersions(design, members if scope == "all" else members[:1], of_pairs)
    of_spread = [(LOG_VARIANCES, members_of_test.labelled) for members_of_test in spread]
    smallest = _smallest(sets, chosen, members, scope)
    names = [
        " - ".join(str(labels.names[g]) for g in members_of_test) for members_of_test in members
    ]
    whole = "units" if units is not None else "samples"
    warn_few_labellings(smallest, alpha, ["all groups", *names[1:]], whole)
    observed = _observed(chosen, sets, members, labels.names)
    design.warn_of_depth()
    if statistic == "hellinger":
        design.warn_of_roots(statistic)
    nulls, exact, interrupted = null_distributions(
        chosen, sets, n_permutations, of_spread, batch_size=batch_size, **job
    )
    n = len(members)
    tests = _tests(chosen, members, labels, observed, nulls[:n], exact[:n], smallest, scope)
    tests = _with_dispersions(tests, members, spread, nulls[n:], exact[n:])
    _warn_of_unbalanced(tests)
    if isinstance(statistic, str) and statistic != "welch":
        _warn_of_spread(chosen.name, tests[0], alpha)
    return PermutationTest(
        chosen.name, chosen.alternative, scope, tests[0], tuple(tests[1:]), interrupted,
        design.n_crossed, Origin.of(groups=groups, units=units, strata=strata),
    )  # fmt: skip


def _check(scope: Any, n_permutations: Any, alpha: Any) -> None:
    check_option("scope", scope, Scope)
    if isinstance(n_permutations, bool) or not isinstance(n_permutations, (int, np.integer)):
        raise ValueError(f"n_permutations={shown(n_permutations)}; a positive integer is needed.")
    if n_permutations < 1:
        raise ValueError(f"n_permutations={n_permutations}; a positive integer is needed.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={shown(alpha)}; a number between 0 and 1 is needed.")


def _pair(units: Units, pair: tuple[int, ...]) -> Units:
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


def _smallest(
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


def _observed(
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


def _dispersions(
    units: Units, members: Sequence[tuple[int, ...]], of_pairs: Sequence[Units]
) -> list[Dispersion]:
    """Return the tests of spread, for the same sets of units as the tests of means."""
    return [
        Dispersion.of(part.rows, part.groups, part.strata, part.blocks, tests)
        for part, tests in [(units, members), *((pair, [(0, 1)]) for pair in of_pairs)]
    ]


def _with_dispersions(
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


def _tests(
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


def _warn_of_spread(statistic: str, test: GroupTest, alpha: float) -> None:
    if test.dispersion_pvalue <= alpha:
        warn_caller(
            f"groups differ in spread (p = {test.dispersion_pvalue:.2g}), which "
            f"statistic={statistic!r} may mistake for a difference between means, or which may "
            "hide one. statistic='welch' compares means."
        )


def _warn_of_unbalanced(tests: list[GroupTest]) -> None:
    worst = max(tests, key=lambda test: test.n_unbalanced)
    if worst.n_unbalanced:
        warn_caller(
            f"{worst.n_unbalanced:,} of {worst.null.size:,} labellings of groups "
            f"{' - '.join(map(str, worst.groups))} have no balance, as topics are left without "
            "weight where they are rare: they count as at least as extreme as the data, and p may "
            "be too large. Leave rare topics out, or join groups."
        )
