"""Do groups of samples differ in their topics: permutation tests, of all groups and of pairs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from ..counts.warn import warn_caller
from .group_tests import GroupTest, PermutationTest
from .groups import (
    Labels,
    checked_design,
    checked_labels,
    log10_labellings,
    n_labellings,
    smallest_pvalue,
    warn_few_labellings,
    warn_of_samples_as_units,
)
from .labelling import Labelled, Permutations
from .loadings import proportions, topics_of_samples
from .pvalues import (
    independent_max_t,
    interval,
    joint_max_t,
    n_as_extreme,
    pvalue,
    standardized,
)
from .replicates import run_replicates
from .statistics import Statistic, checked_statistic

Array = NDArray[Any]


def permutation_test(
    model: Any,
    groups: ArrayLike,
    *,
    loadings: str = "proportions",
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    statistic: str | Callable[[Array], Array] = "hellinger",
    alternative: str | None = None,
    scope: str = "pair",
    n_permutations: int = 9999,
    alpha: float = 0.05,
    batch_size: int | None = None,
    n_threads: int | None = None,
    client: Any = None,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    verbose: int = 0,
) -> PermutationTest:
    """Test whether groups of samples differ in their topics, all at once and in pairs.

    First ask what was drawn. Where samples come in clusters that lie within a group (beers of a
    brewery, posts of a blog, cells of a patient), clusters are the units, and samples are not:
    pass `units=`. A test that permutes samples instead finds differences that are not there in a
    large part of all studies. A unit's samples are added up, and whole units change their group.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, n_topics)
        A model, or non-negative amounts of topics in each sample. Labels had no part in the fit:
        else the test is not valid.
    groups : array-like of shape (n_samples,)
        Labels of any type: a list, a Series, a column of ``adata.obs``.
    loadings : {"proportions", "amounts"}, default="proportions"
        What is taken of each sample: its proportions of topics, whose mean does not depend on how
        many counts a sample has, or amounts, of a model the expected counts of each topic, as in
        [1]_. The proportions of a unit are the mean of those of its samples, its amounts their sum.
    units : array-like of shape (n_samples,), optional
        What was drawn: each lies in one group and one stratum. By default each sample.
    strata : array-like of shape (n_samples,), optional
        Units are permuted within these only: what differs between them is no evidence.
    statistic : {"hellinger", "cosine", "balanced"} or callable, default="hellinger"
        "hellinger": the share of the sum of squares of root proportions that lies between groups,
        sensitive to frequent and to rare topics. "cosine": of the sums over groups, the mean of all
        pairs, small where groups differ [1]_ (Algorithms 3, 4). "balanced": of the balanced table
        (:func:`nmfscale.balance`), the sum of squared deviations from the neutral 1/sqrt(T), large
        where groups differ [1]_ (section 4.4). A function takes tables of sums,
        (n_tables, n_groups, n_topics), and returns a number for each. See Notes for their power.
    alternative : {"greater", "less", "two-sided"}, optional
        Values of a function that tell against equal groups; by default "greater".
    scope : {"pair", "all"}, default="pair"
        A pair is tested by permuting its own units, or those of all groups as in [1]_. With "all"
        the test of a pair depends on how much the other groups vary.
    n_permutations : int, default=9999
        Random labellings; where all of them are no more, each is taken once, and p is exact.
    alpha : float, default=0.05
        A test that cannot reach this level, for want of units, is warned of.
    batch_size : int, optional
        Permutations at a time; by default about a second's. No result depends on it, on the number
        of threads or on workers.
    n_threads, client, random_state, verbose
        As in :class:`PoissonNMF` and its `fit`.
    checkpoint, resume
        A folder for permutations that are done, and whether to go on from it.

    Returns
    -------
    PermutationTest
        Observed values, p-values and null distributions.

    Raises
    ------
    ValueError
        If an argument is not valid, a unit lies in several groups, fewer than two groups are left,
        no label can be moved within strata, or statistic="balanced" and the table of all groups or
        of a pair has no balance.

    Warns
    -----
    UserWarning
        If samples without counts (of an array: rows of zeros) are left out, and with them units or
        groups; more than 1,000 samples of a group are each taken for a unit; units are too few; or
        labellings have no balance.

    Notes
    -----
    In simulations with 200 samples in four groups (``benchmarks/permutation.py``), tests at the 5%
    level by "hellinger", "cosine" and "balanced" found a shift of one frequent topic in 79%, 90%
    and 9% of the sets, of one rare topic in 86%, 8% and 81%, a smaller one of it in 33%, 6% and
    55%, and a slight one of all topics in 62%, 54% and 12%. Balance weighs all topics alike: it
    sees rare topics, and little else.

    References
    ----------
    .. [1] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.
    .. [2] Westfall, Young (1993). Resampling-based multiple testing. Wiley.

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
    amounts, labels, strata_of = units_with_topics(model, groups, units, strata, loadings)
    members = [tuple(range(len(labels.names)))]
    if len(labels.names) > 2:
        members += combinations(range(len(labels.names)), 2)
    sets = labelled_sets(chosen, amounts, labels, strata_of, members, scope)
    smallest = _smallest(sets, chosen, members, scope)
    names = [" - ".join(str(labels.names[g]) for g in each) for each in members]
    whole = "units" if units is not None else "samples"
    warn_few_labellings(smallest, alpha, ["all groups", *names[1:]], whole)
    observed = _observed(chosen, sets, members, labels.names)
    nulls, exact, interrupted = null_distributions(
        chosen, sets, n_permutations, random_state=random_state, batch_size=batch_size,
        n_threads=n_threads, client=client, checkpoint=checkpoint, resume=resume, verbose=verbose,
    )  # fmt: skip
    tests = _tests(chosen, members, labels, observed, nulls, exact, smallest, scope)
    _warn_of_unbalanced(tests)
    return PermutationTest(
        chosen.name, chosen.alternative, scope, tests[0], tuple(tests[1:]), interrupted
    )


def _check(scope: Any, n_permutations: Any, alpha: Any) -> None:
    if scope not in ("pair", "all"):
        raise ValueError(f"scope={scope!r} is not one of 'pair', 'all'.")
    if isinstance(n_permutations, bool) or not isinstance(n_permutations, (int, np.integer)):
        raise ValueError(f"n_permutations={n_permutations!r}; a positive integer is needed.")
    if n_permutations < 1:
        raise ValueError(f"n_permutations={n_permutations}; a positive integer is needed.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha!r}; a number between 0 and 1 is needed.")


def units_with_topics(
    model: Any, groups: Any, units: Any, strata: Any, loadings: str = "proportions"
) -> tuple[Array, Labels, NDArray[np.int64]]:
    """Return the topics of each unit, their groups and strata, without empty ones.

    The proportions of a unit are the mean of those of its samples, its amounts their sum.
    """
    topics = topics_of_samples(model, loadings, warn=False)
    names = topics.sample_names
    labels = checked_labels(groups, len(topics), "groups", names)
    design = checked_design(labels, units, strata, sample_names=names)
    assert design.groups is not None
    warn_of_samples_as_units(design)
    rows, labels = design.sum_over_units(topics.rows), design.groups
    if loadings == "proportions":
        rows = proportions(rows)
    kept = np.asarray(rows.any(axis=1))
    left = labels.of(kept)
    gone = [str(each) for each in labels.names if each not in left.names]
    of_units = f", {int((~kept).sum()):,} units" if units is not None and not kept.all() else ""
    of_groups = f", groups {', '.join(gone)}" if gone else ""
    with_them = f"; with them{(of_units + of_groups)[1:]}" if of_units or of_groups else ""
    topics.warn_of_empty(with_them)
    labels = left
    if len(labels.names) == kept.sum() > 2:
        raise ValueError(
            f"groups has another label for each of {len(labels.names):,} units: groups of several "
            "units are needed. Was the right column given?"
        )
    if len(labels.names) < 2:
        raise ValueError(
            f"groups has only {', '.join(map(repr, labels.names)) or 'no labels'} among units that "
            "have topics: two groups at least are needed."
        )
    return rows[kept], labels, design.strata.codes[kept]


def labelled_sets(
    statistic: Statistic, amounts: Array, labels: Labels, strata: Array,
    members: list[tuple[int, ...]], scope: str,
) -> list[Labelled]:  # fmt: skip
    """Return what is permuted: all units, and with scope="pair" those of each pair as well."""
    tests = members if scope == "all" else members[:1]
    sets = [Labelled.of(statistic, amounts, labels.codes, strata, tests)]
    if log10_labellings(sets[0].sizes) == 0:
        raise ValueError(
            "no label can be moved: every stratum has units of one group only. Pass coarser strata."
        )
    for pair in members[1:] if scope == "pair" else ():
        of = np.isin(labels.codes, pair)
        codes = (labels.codes[of] == pair[1]).astype(np.int64)
        sets.append(Labelled.of(statistic, amounts[of], codes, strata[of], [(0, 1)]))
    return sets


def _smallest(
    sets: list[Labelled], statistic: Statistic, members: list[tuple[int, ...]], scope: str
) -> list[float]:
    """Return the least p-value of all labellings for each test."""
    if scope == "pair":
        return [smallest_pvalue(each.sizes, symmetric=statistic.symmetric) for each in sets]
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
        tables = (each.table()[list(test)] for each in sets for test in each.tests)
        for table, test in zip(tables, members, strict=True):
            statistic.check(table, [names[g] for g in test])
    found: list[float] = np.concatenate([each.observed(statistic) for each in sets]).tolist()
    return found


def null_distributions(
    statistic: Statistic, sets: list[Labelled], n: int, **options: Any
) -> tuple[list[Array], list[bool], bool]:
    """Return the statistics of labellings for each test, and whether these are all."""
    few = [log10_labellings(each.sizes) < 15 and n_labellings(each.sizes) <= n for each in sets]
    drawn = [each for each, is_few in zip(sets, few, strict=True) if not is_few]
    columns, interrupted = [], False
    if drawn:
        found = run_replicates(Permutations(statistic, drawn), n, **options)
        interrupted = found.interrupted
        if not len(found):
            raise KeyboardInterrupt
        columns = list(found["statistic"].T)
    nulls: list[Array] = []
    exact: list[bool] = []
    for each, is_few in zip(sets, few, strict=True):
        of_tests = list(each.all_values(statistic).T) if is_few else columns[: len(each.tests)]
        columns = columns if is_few else columns[len(each.tests) :]
        nulls += [np.ascontiguousarray(null) for null in of_tests]
        exact += [is_few] * len(each.tests)
    return nulls, exact, interrupted


def _tests(
    statistic: Statistic, members: list[tuple[int, ...]], labels: Labels, observed: list[float],
    nulls: list[Array], exact: list[bool], smallest: list[float], scope: str,
) -> list[GroupTest]:  # fmt: skip
    """Return what comes out of every test."""
    side = statistic.alternative
    n_extreme = [n_as_extreme(*each, side) for each in zip(nulls, observed, strict=True)]
    z = [standardized(*each, side) for each in zip(nulls, observed, strict=True)]
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
    n_units = labels.sizes
    return [
        GroupTest(
            groups=tuple(labels.names[g] for g in test),
            n_units=tuple(int(n_units[g]) for g in test),
            observed=observed[i],
            zscore=float(z[i][1]),
            pvalue=p[i],
            fraction=n_extreme[i] / nulls[i].size,
            interval=interval(n_extreme[i], nulls[i].size, side, exact[i]),
            pvalue_maxt=float(maxt[i]),
            pvalue_bh=float(bh[i]),
            smallest_pvalue=smallest[i] if exact[i] else max(smallest[i], 1 / (nulls[i].size + 1)),
            exact=exact[i],
            null=statistic.finite(nulls[i], len(test)),
            n_unbalanced=int(np.isinf(nulls[i]).sum()),
        )
        for i, test in enumerate(members)
    ]


def _warn_of_unbalanced(tests: list[GroupTest]) -> None:
    worst = max(tests, key=lambda test: test.n_unbalanced)
    if worst.n_unbalanced:
        warn_caller(
            f"{worst.n_unbalanced:,} of {worst.null.size:,} labellings of groups "
            f"{' - '.join(map(str, worst.groups))} have no balance, as topics are left without "
            "weight where they are rare: they count as at least as extreme as the data, and p may "
            "be too large. Leave rare topics out, or join groups."
        )
