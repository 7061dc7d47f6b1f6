"""Mean proportions of topics in groups, their differences, and tests of each topic.

Proportions are compared, not their square roots: the mean of a proportion does not depend on the
number of samples in a unit or of counts in a sample; the mean of its root does. Intervals and
p-values are those of one statistic, by Student's t. Beside them stand p-values of permutations of
the labels of whole units, of the sum of squares between groups divided by its expectation if each
group has its own spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from ...counts.argument_types import check_option
from ...engine.checkpoint import checkpoints_in, recorded_seed
from ...methods.factors import proportions
from ...models.pipelines import FittedModel, refuse_swapped
from ..design.depth import Compared, warn_of_depth
from ..design.equal_weights import EqualWeights
from ..design.groups import checked_design, known_scores
from ..design.labellings import smallest_pvalue, warn_few_labellings
from ..design.loadings import Scale, TopicSums, topics_of_samples
from ..design.units import Units, warn_of_rare_topics
from ..groups.bootstrap import Cells, draw_in_parts, warn_of_few_units
from ..groups.permutation import labelled_sets, null_distributions
from ..groups.pvalues import joint_max_t, n_as_extreme, pvalue
from ..intervals import RobustInterval, check_interval
from ..job import JobOptions, job_options, part_of_job
from ..replicates.replicates import Replicates, ReplicateTask, check_positive, run_replicates
from ..replicates.seeds import child_states, seed_of
from ..results.origin import Origin
from .brown_forsythe import EachTopic, rows_of_topics
from .comparison import (
    Comparison,
    refuse_replicates,
    upper_if_absent,
    warn_of_unequal_spread,
)
from .effects_result import GroupEffects

Array = NDArray[Any]
# With fewer units in a group, intervals of this kind are too narrow.
FEW = {"t": 20, "percentile": 50, "bca": 50}
# Coverage of the intervals of means in simulations.
COVERED = {
    "t": "93% of the cases or more, but of topics that few units have in 80% to 92%",
    "percentile": "65% of the cases with 3 a group, 84% with 10, 90% with 20 to 40, 94% with 100",
}
COVERED["bca"] = COVERED["percentile"]


@job_options
def group_effects(
    model: FittedModel | ArrayLike,
    groups: ArrayLike,
    *,
    scale: Scale = "proportions",
    units: ArrayLike | None = None,
    equal_weights: EqualWeights = "units",
    moderated: bool = True,
    strata: ArrayLike | None = None,
    n_replicates: int = 1000,
    n_permutations: int = 9999,
    level: float = 0.95,
    interval: RobustInterval = "t",
    topic_names: ArrayLike | None = None,
    topic_sums: TopicSums | None = None,
    **job: Unpack[JobOptions],
) -> GroupEffects:
    """Estimate the mean proportion of each topic in each group, and test which topics differ.

    First identify the sampling unit: documents are rarely the unit. If samples come in clusters
    (beers of a brewery, posts of a blog, cells of a patient), pass these as `units=`. Samples of a
    unit resemble each other; if they are treated as units, intervals are too narrow and p-values
    too small. Where units have samples in several groups, such as a patient before and after
    treatment, groups are compared within units, as by the paired t-test.

    The proportions of a unit are the mean over its samples. The mean of a group is the mean over
    its units, each of which counts once however many samples it has: a study estimates the mean
    over units. With ``equal_weights="samples"`` each sample counts once. Proportions have the same
    mean whatever the depth of a sample and the number of samples in a unit.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, n_components)
        A model, or non-negative amounts of topics. Columns of a DataFrame name the topics.
    groups, units, strata
        As in :func:`permutation_test`. Differences between groups, their intervals and all tests
        are within strata, and within units that have samples in several groups. Means of groups are
        not adjusted.
    scale : {"proportions", "amounts"}, default="proportions"
        What is added up over the samples of a unit: proportions, or amounts (expected counts),
        which are larger in samples with more counts.
    equal_weights : {"units", "samples"}, default="units"
        Whether each unit counts once in a mean, or each sample (with scale="amounts", each
        count). Without `units` samples are units.
    moderated : bool, default=True
        Draw the variance of each topic towards the value expected from all topics, by as many
        degrees of freedom as these agree with it (Notes). With fewer than four topics, or for a
        topic whose variance is unlike those of the others, it has no effect.
    n_replicates : int, default=1000
        Bootstrap replicates, for intervals of the kinds "percentile" and "bca".
    n_permutations : int, default=9999
        Number of random labellings for the p-values. If there are no more than this many labellings
        in all, each is taken once.
    level : float, default=0.95
        Nominal coverage of the intervals.
    interval : {"t", "percentile", "bca"}, default="t"
        "t": by Student's t and a standard error that allows groups to differ in spread. Intervals
        of means are symmetric after the arcsine square-root transform, intervals of differences are
        symmetric. "percentile" and "bca": from bootstrap replicates, as in
        :func:`bootstrap_weights`; there are no p-values that belong to them, only those of
        permutations. They are not for strata, or units that have samples in several groups.
    topic_names : sequence of str, default=None
        Names of topics; by default those of a model, the columns of a DataFrame, or numbers.
    topic_sums : dict, default=None
        As in :func:`permutation_test`.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`, of replicates and of permutations.

    Returns
    -------
    GroupEffects
        Means with intervals (T, R); p-values (T,), unadjusted and adjusted for all topics; and
        `differences` between groups, with intervals and p-values.

    Raises
    ------
    ValueError
        If an argument is not valid, fewer than two groups are left, groups have no stratum in
        common, no label can be moved within strata, or there are no more units than groups and
        strata.

    Warns
    -----
    UserWarning
        If samples without any topic are left out, a group has fewer than 20 units (50 for bootstrap
        intervals), fewer than 10 units of a group (and less than half) have a topic, a topic varies
        more in one group than in another, groups differ in depth so much that proportions mislead,
        as in :func:`permutation_test`, or there are too few units for any permutation p-value to be
        small.

    Notes
    -----
    For each topic the null hypothesis is that groups have the same mean. Differences between two
    groups, their intervals and `pvalue` are those of one t-test. Its error is that of the jackknife
    (HC3 [1]_), and its degrees of freedom are those of Welch, with variances of groups that are
    pooled over topics. More groups are compared by the F-test of Brown and Forsythe [2]_ with the
    degrees of freedom of Box. Within strata, effects of groups are additive, by least squares;
    a stratum with one unit in each of its groups (a pair, a donor under several conditions) is left
    out as a whole (CR3 [3]_). Of complete pairs this is the paired t-test. If other units are in
    one group only, comparisons within and between units are weighted by their variances.

    A moderated variance is that of Smyth [4]_, with topics in the place of genes: expected
    variances are proportional to ``m (1 - m)`` for a mean proportion m, and the prior degrees of
    freedom (`prior_freedom`) come from the spread of the logarithms of variances between topics,
    shrunk as by James and Stein. Outliers keep their own variance [5]_. A group in which no unit
    has the topic has an interval up to ``1 - (1 - level)^(1/n)`` times the mean of units that have
    it (the rule of three).

    `pvalue_permutation` is exact if groups have the same distribution, and approximately valid if
    they differ in spread [6]_. `pvalue_maxt` compare each topic with the maximum over topics [7]_.

    In simulations at the 5% level (``benchmarks/designs.py``), `pvalue` was at most 0.05 in 3% to
    6% of the topics with 10 units or more in each of two groups, with equal or unequal spread; in
    1% to 6% with 3 to 5 units, fewest with 20 topics; in 2% to 3% with three groups of 5 or 10
    units; in 3% to 5% with donors under two or three conditions, or in strata that differ. It was
    in 15% to 27% if 8 units varied far more than 40 others, because the distribution of proportions
    is skewed, and in 9% to 16% for a topic that few units have: warnings are given.

    References
    ----------
    .. [1] MacKinnon, White (1985). Some heteroskedasticity-consistent covariance matrix estimators
       with improved finite sample properties. J. Econometrics.
    .. [2] Brown, Forsythe (1974). The small sample behavior of some statistics which test the
       equality of several means. Technometrics.
    .. [3] Bell, McCaffrey (2002). Bias reduction in standard errors for linear regression with
       multi-stage samples. Survey Methodology.
    .. [4] Smyth (2004). Linear models and empirical Bayes methods for assessing differential
       expression in microarray experiments. Statistical Applications in Genetics and Molecular
       Biology.
    .. [5] Phipson et al. (2016). Robust hyperparameter estimation protects against hypervariable
       genes and improves power to detect differential expression. Annals of Applied Statistics.
    .. [6] Chung, Romano (2013). Exact and asymptotically robust permutation tests. Annals of
       Statistics.
    .. [7] Westfall, Young (1993). Resampling-based multiple testing. Wiley.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import group_effects
    >>> rng = np.random.default_rng(0)
    >>> breweries = np.repeat(np.arange(120), 3)  # three beers each
    >>> regions = np.array(["east", "west"])[breweries % 2]
    >>> loadings = rng.gamma(1.0, size=(120, 3))[breweries] + rng.gamma(0.2, size=(360, 3))
    >>> loadings[regions == "west", 2] *= 2
    >>> found = group_effects(loadings, regions, units=breweries, random_state=0)
    >>> found  # doctest: +NORMALIZE_WHITESPACE
    <GroupEffects: 3 topics x 2 groups of 120 units, each unit counts once,
     3 topics with q <= 0.05; 9,999 labellings>
    >>> found.summary().round(2)
       topic  east  west  pvalue  qvalue
    0      2  0.30  0.46    0.00    0.00
    1      0  0.35  0.26    0.01    0.02
    2      1  0.35  0.27    0.04    0.04
    >>> of_topic = found.differences("east").to_frame().query("topic == 2")
    >>> of_topic.round(2)[["group", "other", "difference", "lower", "upper", "pvalue"]]
      group other  difference  lower  upper  pvalue
    2  west  east        0.17   0.09   0.24     0.0
    """
    check_interval(level, interval, RobustInterval)
    check_option("equal_weights", equal_weights, EqualWeights)
    check_positive("n_replicates", n_replicates)
    check_positive("n_permutations", n_permutations)
    refuse_swapped(model, groups, "the groups")
    topics = topics_of_samples(model, scale, topic_names, topic_sums=topic_sums, warn=False)
    design = Units.of(topics, groups, units, strata, "amounts").compared()
    warn_of_depth(topics, Compared.of_units(design, design.groups))
    labels, names, values = design.groups, topics.topic_names, proportions(design.rows)
    drawn = "samples" if units is None else "units"
    weights = design.rows.sum(axis=1) if equal_weights == "samples" else np.ones(len(values))
    comparison = Comparison.of(design, values, weights, moderated)
    refuse_replicates(interval, comparison.what)
    statistic = EachTopic.of_topics(labels.sizes, len(names))
    rows = rows_of_topics(values, weights * design.relative_weights, design.blocks)
    labelled = labelled_sets(
        statistic, replace(design, rows=rows, strata=design.blocks, subjects=None),
        [(t,) for t in range(len(names))],
    )  # fmt: skip
    warn_of_few_units(labels.sizes, labels.names, drawn, COVERED[interval], enough=FEW[interval])
    warn_of_rare_topics(values, labels, names, drawn)
    warn_of_unequal_spread(values, labels, names)
    smallest = smallest_pvalue(labelled[0].sizes)
    warn_few_labellings([smallest], 1 - level, ["permutations of any topic"], drawn)
    job["random_state"] = seed = job_seed(job)
    cells = Cells.of(
        np.column_stack([values * weights[:, None], weights]), labels,
        checked_design(labels), "groups",
    )  # fmt: skip
    replicates = None
    if interval != "t":
        replicates = bootstrap_part(MeansTask(cells), n_replicates, job)["means"]
    nulls, exact, interrupted = null_distributions(
        statistic, labelled, n_permutations, **part_of_job(job, "permutations")
    )
    observed = labelled[0].observed(statistic)
    p = comparison.pvalues() if replicates is None else None
    return GroupEffects(
        comparison.means, p, None if p is None else false_discovery_control(p),
        *_pvalues(nulls, observed, exact[0]), observed, names, labels.names, labels.sizes,
        replicates, np.stack(nulls, axis=1), exact[0],
        smallest if exact[0] else max(smallest, 1 / (len(nulls[0]) + 1)),
        comparison.errors, comparison.parts, comparison.within, comparison.moderation,
        upper_if_absent(values, weights, labels, level), level, interval, drawn, equal_weights,
        seed.entropy, interrupted, comparison.what, known_scores(labels),
        Origin.of(topics.words, groups=groups, units=units, strata=strata),
    )  # fmt: skip


def _pvalues(nulls: list[Array], observed: Array, exact: bool) -> tuple[Array, Array]:
    """Return p-values of topics: unadjusted, and adjusted by the maximum over topics."""
    both = list(zip(nulls, observed.tolist(), strict=True))
    p = [
        pvalue(n_as_extreme(*null_and_observed, "greater"), null_and_observed[0].size, "", exact)
        for null_and_observed in both
    ]
    maxt = joint_max_t(nulls, observed.tolist(), exact)
    return np.array(p), np.maximum(maxt, p)


@dataclass(frozen=True)
class MeansTask(ReplicateTask):
    """Means of groups of resampled units; the last column of `cells` holds weights."""

    cells: Cells
    name = "bootstrap replicates"

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        cells = self.cells
        return cells.sums, cells.starts, cells.scale, cells.strata

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return ``means`` (n, T, R)."""
        cells, states = self.cells, child_states(seed, numbers)
        means = np.empty((len(states), cells.sums.shape[1] - 1, len(cells.n_units)))

        def keep(part: slice, counts: Array) -> None:
            tables = cells.tables(counts)
            means[part] = tables[:, :-1] / tables[:, -1:]

        draw_in_parts(states, cells.strata, keep, n_threads)
        return {"means": means}


def bootstrap_part(task: ReplicateTask, n: int, job: JobOptions) -> Replicates:
    """Run the bootstrap of a job that also permutes, with a checkpoint folder of its own."""
    replicates = run_replicates(task, n, **part_of_job(job, "bootstrap"))
    if replicates.interrupted:
        raise KeyboardInterrupt
    return replicates


def job_seed(job: JobOptions) -> SeedSequence:
    """Return the seed of a job of several parts; for None, the seed of the job that is resumed."""
    if job["random_state"] is None and job["resume"] and job["checkpoint"] is not None:
        for part in ("permutations", "bootstrap"):
            place = Path(job["checkpoint"], part)
            if place.exists() and checkpoints_in(place):
                return SeedSequence(recorded_seed(place))
    return seed_of(job["random_state"])
