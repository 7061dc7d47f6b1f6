"""Permutation tests of whether groups of samples differ in their topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import check_option
from ...counts.names import shown
from ...models.pipelines import FittedModel, refuse_swapped
from ..design.depth import Compared, halves_of, warn_of_depth
from ..design.groups import scores_of
from ..design.labellings import warn_few_labellings
from ..design.loadings import Scale, TopicSums, topics_of_samples
from ..design.units import Units
from ..groups.dispersion import LOG_VARIANCES, Dispersion
from ..groups.labelling import check_pairs
from ..groups.permutation import (
    Scope,
    dispersions_of,
    group_tests,
    labelled_sets,
    null_distributions,
    observed_statistics,
    of_pair,
    smallest_pvalues,
    warn_of_spread,
    warn_of_unbalanced,
    with_dispersions,
)
from ..groups.permutation_result import PermutationTest
from ..groups.statistics import Alternative, Statistic, StatisticName, Trend, checked_statistic
from ..job import JobOptions, job_options, part_of_job
from ..results.origin import Origin
from .adjusted import adjusted_nulls, adjusted_sets, covariates_of_units
from .covariates import DesignMatrix, design_matrix

Array = NDArray[Any]
Covariates: TypeAlias = Mapping[Any, Any] | ArrayLike
# Statistics of means, which spread does not affect.
_OF_MEANS = "welch", "trend"


@job_options
def permutation_test(
    model: FittedModel | ArrayLike,
    groups: ArrayLike,
    *,
    scale: Scale = "proportions",
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    covariates: Covariates | None = None,
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
    covariates : DataFrame, dict or array-like of shape (n_samples, n_covariates), optional
        What groups are compared beside, such as age or batch, with a value for each sample, the
        same for all samples of a unit: see :func:`regress_proportions`. Residuals of a regression
        on the covariates are permuted [7]_. For statistic="welch" and "trend", and scope="pair".
    statistic : {"welch", "trend", "hellinger", "cosine", "balanced"} or callable, default="welch"
        "welch": the distance between mean proportions of groups, in which each unit counts once,
        relative to the variances within the groups [3]_, [4]_, as a normal score. It compares means
        whatever the spread and size of groups. "trend": the same for a trend over groups in an
        order, which finds a steady change with fewer units. Groups are numbers, such as doses, or
        an ordered Categorical, whose categories are 0, 1, 2 ... "hellinger": the share of the sum
        of squares of square-root proportions that lies between groups. "cosine": the mean cosine
        between the sums of all pairs of groups, small if groups differ [1]_ (Algorithms 3, 4).
        "balanced": the sum of squared deviations of the balanced table (:func:`nmfscale.balance`)
        from the neutral 1/sqrt(T), large if groups differ [1]_ (section 4.4). A function takes
        tables of sums over groups, (n_tables, n_groups, n_components), and returns a number for
        each. All but "welch" and "trend" test whether groups have the same distribution, spread
        included: see Notes.
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
        "hellinger"; groups of samples of a model differ in depth by more than a factor of two, so
        that a test rejects in more than 10% of the studies without a difference, or 45% of the
        variance in the shallow group is noise (Notes); or there are so many pairs of groups that
        their tests take long.

    Notes
    -----
    In simulations with equal means (``benchmarks/calibration.py``), tests at the 5% level by
    "welch", "hellinger", "cosine" and "balanced" rejected in 4%, 98%, 58% and 72% of the sets with
    8 units of wide spread beside 40 of narrow spread, in 5%, 1%, 0% and 0% of the reverse, in 6%,
    100%, 7% and 6% with units of 1 sample beside units of 30, and in 7%, 35%, 6% and 7% with a
    topic model's documents of 20 words beside documents of 200. With topics that share 80% of their
    words, and documents of 8 words beside documents of 200, all reject in 39% or more.

    A warning of depth comes from a simulation: samples of the deepest group are drawn again from
    the fit with as many counts as those of each group, and their proportions are fitted with the
    topics held fixed. What their means differ by is bias. The warning gives the level that a test
    then has. Topics also adapt to deep samples, which is warned of where noise is more than 45% of
    the variance between units of the shallow group: in the simulations above tests held their level
    where it was 15% to 43%, and lost it where it was 44% or more.

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
    .. [7] Freedman, Lane (1983). A nonstochastic interpretation of reported significance levels.
       Journal of Business & Economic Statistics.

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
    _check_covariates(covariates, statistic, scope)
    refuse_swapped(model, groups, "the groups")
    topics = topics_of_samples(model, scale, topic_sums=topic_sums, warn=False)
    matrix = None
    if covariates is not None:
        matrix = design_matrix(covariates, len(topics), None, False, topics.sample_names)
    is_trend = isinstance(statistic, str) and statistic == "trend"
    design = Units.of(topics, groups, units, strata, scale, amounts=is_trend).compared()
    labels = design.groups
    check_pairs(labels, design.rows.shape[1] + 1, n_permutations, scope)
    members = [tuple(range(len(labels.names)))]
    if len(labels.names) > 2:
        members += combinations(range(len(labels.names)), 2)
    if is_trend:
        chosen = Trend.of_groups(scores_of(labels))
    plan = (
        _Plan.of_labels(chosen, design, members, scope)
        if matrix is None
        else _Plan.of_residuals(chosen, design, covariates_of_units(matrix, design), members)
    )
    names = [" - ".join(str(labels.names[g]) for g in test) for test in members]
    whole = "units" if units is not None else "samples"
    warn_few_labellings(plan.smallest, alpha, ["all groups", *names[1:]], whole)
    of_depth = halves_of(labels) if is_trend else labels
    warn_of_depth(topics, Compared.of_units(design, of_depth, jointly=True))
    if statistic == "hellinger":
        design.warn_of_roots(statistic)
    nulls, exact, interrupted = plan.run(n_permutations, batch_size=batch_size, **job)
    n = len(members)
    tests = group_tests(
        chosen, members, labels, plan.observed, nulls[:n], exact[:n], plan.smallest, scope
    )
    tests = with_dispersions(tests, members, plan.spread, nulls[n:], exact[n:])
    warn_of_unbalanced(tests)
    if isinstance(statistic, str) and statistic not in _OF_MEANS:
        warn_of_spread(chosen.name, tests[0], alpha)
    return PermutationTest(
        chosen.name, chosen.alternative, scope, tests[0], tuple(tests[1:]), interrupted,
        design.n_crossed, () if matrix is None else tuple(dict.fromkeys(matrix.covariates)),
        Origin.of(topics.words, groups=groups, units=units, strata=strata),
    )  # fmt: skip


def _check(scope: Any, n_permutations: Any, alpha: Any) -> None:
    check_option("scope", scope, Scope)
    if isinstance(n_permutations, bool) or not isinstance(n_permutations, (int, np.integer)):
        raise ValueError(f"n_permutations={shown(n_permutations)}; a positive integer is needed.")
    if n_permutations < 1:
        raise ValueError(f"n_permutations={n_permutations}; a positive integer is needed.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={shown(alpha)}; a number between 0 and 1 is needed.")


def _check_covariates(covariates: Any, statistic: Any, scope: str) -> None:
    """Refuse what cannot be adjusted for covariates."""
    if covariates is None:
        return
    if not (isinstance(statistic, str) and statistic in _OF_MEANS):
        raise ValueError(
            f"statistic={shown(statistic)} cannot be adjusted for covariates: pass 'welch' or "
            "'trend', or strata= in place of covariates=."
        )
    if scope != "pair":
        raise ValueError(
            f"scope={shown(scope)} is not for covariates=: pass scope='pair', with which the units "
            "of a pair alone are permuted."
        )


@dataclass(frozen=True)
class _Plan:
    """What the tests of all groups and of pairs compute: statistics of the data, and what to run.

    `run` returns null distributions of means and then of spread, whether each has all labellings,
    and whether it was interrupted.
    """

    observed: list[float]
    smallest: list[float]
    spread: list[Dispersion]
    run: Callable[..., tuple[list[Array], list[bool], bool]]

    @classmethod
    def of_labels(
        cls, statistic: Statistic, units: Units, members: list[tuple[int, ...]], scope: str
    ) -> _Plan:
        """Permute labels of units."""
        pairs = [of_pair(units, pair) for pair in members[1:] if scope == "pair"]
        of_all = members if scope == "all" else members[:1]
        sets = labelled_sets(statistic, units, of_all, pairs)
        spread = dispersions_of(units, of_all, pairs)
        beside = [(LOG_VARIANCES, dispersion.labelled) for dispersion in spread]

        def run(n: int, **options: Any) -> tuple[list[Array], list[bool], bool]:
            return null_distributions(statistic, sets, n, beside, **options)

        smallest = smallest_pvalues(sets, statistic, members, scope)
        observed = observed_statistics(statistic, sets, members, units.groups.names)
        return cls(observed, smallest, spread, run)

    @classmethod
    def of_residuals(
        cls, statistic: Statistic, units: Units, matrix: DesignMatrix,
        members: list[tuple[int, ...]],
    ) -> _Plan:  # fmt: skip
        """Permute residuals of the covariates of units."""
        scores = np.array(statistic.scores) if isinstance(statistic, Trend) else None
        sets = adjusted_sets(units, matrix, scores, members)
        spread = [of_set.dispersion for of_set in sets]
        labelled = [dispersion.labelled for dispersion in spread]

        def run(
            n: int, batch_size: int | None = None, **job: Unpack[JobOptions]
        ) -> tuple[list[Array], list[bool], bool]:
            of_means = part_of_job(job, "permutations")
            nulls, exact, stopped = adjusted_nulls(sets, n, batch_size=batch_size, **of_means)
            of_spread, exact_spread, stopped_too = null_distributions(
                LOG_VARIANCES, labelled, n, batch_size=batch_size, **part_of_job(job, "spread")
            )
            return nulls + of_spread, exact + exact_spread, stopped or stopped_too

        return cls(
            [of_set.observed for of_set in sets], [of_set.smallest_pvalue for of_set in sets],
            spread, run,
        )  # fmt: skip
