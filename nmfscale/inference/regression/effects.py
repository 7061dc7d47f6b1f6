"""Mean proportions of topics in groups, with robust intervals and a permutation test of each topic.

Labels of whole units are permuted. The statistic is the sum of squares between groups divided by
its expectation if each group has its own spread. Proportions are compared, not their square roots:
the mean of a proportion does not depend on the number of samples in a unit or of counts in a
sample; the mean of its root does.
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
from ...counts.names import shown
from ...counts.warn import warn_caller
from ...engine.checkpoint import checkpoints_in, recorded_seed
from ...methods.factors import proportions
from ...models.pipelines import FittedModel, refuse_swapped
from ..design.equal_weights import EqualWeights
from ..design.groups import Labels, checked_design, smallest_pvalue, warn_few_labellings
from ..design.loadings import Scale, topics_of_samples
from ..design.units import units_with_topics
from ..groups.bootstrap import Cells, draw_in_parts, warn_of_few_units
from ..groups.permutation import labelled_sets, null_distributions
from ..groups.pvalues import joint_max_t, n_as_extreme, pvalue
from ..intervals import RobustInterval, check_interval
from ..job import JobOptions, job_options, part_of_job
from ..replicates.replicates import Replicates, ReplicateTask, check_positive, run_replicates
from ..replicates.seeds import child_states, seed_of
from ..results.origin import Origin
from .brown_forsythe import EachTopic, rows_of_topics
from .effects_result import GroupEffects
from .robust import OneWay, shares_of

Array = NDArray[Any]
# With fewer units in a group, intervals of this kind are too narrow.
FEW = {"t": 20, "percentile": 50, "bca": 50}
# Number of units from which the spread of a group is reliable, and ratio of variances to warn of.
_ENOUGH_FOR_SPREAD, _UNEQUAL = 8, 4.0
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
    **job: Unpack[JobOptions],
) -> GroupEffects:
    """Estimate the mean proportion of each topic in each group, and test which topics differ.

    First identify the sampling unit: documents are rarely the unit. If samples come in clusters
    that lie within a group (beers of a brewery, posts of a blog, cells of a patient), pass these as
    `units=`. Samples of a unit resemble each other; if they are treated as units, intervals are too
    narrow and p-values too small.

    The proportions of a unit are the mean over its samples. The mean of a group is the mean over
    its units, each of which counts once however many samples it has: a study estimates the mean
    over units. With ``equal_weights="samples"`` each sample counts once. Proportions have the same
    mean whatever the depth of a sample and the number of samples in a unit.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, n_components)
        A model, or non-negative amounts of topics. Columns of a DataFrame name the topics.
    groups, units, strata
        As in :func:`permutation_test`. Labels are permuted, and units drawn, within strata.
        Differences between strata are part of the means, but not of the tests.
    scale : {"proportions", "amounts"}, default="proportions"
        What is added up over the samples of a unit: proportions, or amounts (expected counts),
        which are larger in samples with more counts.
    equal_weights : {"units", "samples"}, default="units"
        Whether each unit counts once in a mean, or each sample (with scale="amounts", each
        count). Without `units` samples are units.
    moderated : bool, default=True
        Shrink the variance of a topic in a group of few units towards the value expected from the
        variance of all topics, as if the group had 5 more units (Notes).
    n_replicates : int, default=1000
        Bootstrap replicates, for intervals of the kinds "percentile" and "bca".
    n_permutations : int, default=9999
        Number of random labellings for the p-values. If there are no more than this many labellings
        in all, each is taken once.
    level : float, default=0.95
        Nominal coverage of the intervals.
    interval : {"t", "percentile", "bca"}, default="t"
        "t": by Student's t and a standard error that allows groups to differ in spread (HC3).
        Intervals of means are symmetric after the arcsine square-root transform, intervals of
        differences are symmetric. "percentile" and "bca": from bootstrap replicates, as in
        :func:`bootstrap_weights`.
    topic_names : sequence of str, default=None
        Names of topics; by default those of a model, the columns of a DataFrame, or numbers.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`, of replicates and of permutations.

    Returns
    -------
    GroupEffects
        Means with intervals (T, R), p-values (T,), unadjusted and adjusted for all topics, and
        `differences` between groups.

    Raises
    ------
    ValueError
        If an argument is not valid, a unit lies in several groups, fewer than two groups are left,
        or no label can be moved within strata.

    Warns
    -----
    UserWarning
        If samples without any topic are left out, a group has fewer than 20 units (50 for bootstrap
        intervals), groups differ in spread, or there are too few units for any topic to be
        significant.

    Notes
    -----
    For each topic the null hypothesis is that groups have the same mean. The statistic is the sum
    of squares between groups over its expectation under this hypothesis, with a separate variance
    for each group: for two groups the square of Welch's t, for more groups the statistic of Brown
    and Forsythe [1]_. Labels of units are permuted. The test is exact if groups have the same
    distribution, and approximately valid if they differ in spread [2]_; statistics that assume
    equal spread are not. `pvalue_maxt` compare each topic with the maximum over topics [3]_.

    In simulations at the 5% level (``benchmarks/calibration.py``) with equal spread, tests of a
    topic rejected in 3% to 6% of the cases, and `pvalue_maxt` of any topic in 3% to 6%. If the
    variance of one group was three to fifteen times that of another, they rejected in 4% to 10% and
    in 10% to 21%; a warning is given.

    References
    ----------
    .. [1] Brown, Forsythe (1974). The small sample behavior of some statistics which test the
       equality of several means. Technometrics.
    .. [2] Chung, Romano (2013). Exact and asymptotically robust permutation tests. Annals of
       Statistics.
    .. [3] Westfall, Young (1993). Resampling-based multiple testing. Wiley.

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
     3 topics with q <= 0.05 of 9,999 labellings>
    >>> found.summary().round(2)
       topic  east  west  pvalue  qvalue
    0      2  0.30  0.46    0.00    0.00
    1      0  0.35  0.26    0.01    0.02
    2      1  0.35  0.27    0.04    0.04
    >>> of_topic = found.differences("east").to_frame().query("topic == 2")
    >>> of_topic.round(2)[["group", "other", "difference", "lower", "upper"]]
      group other  difference  lower  upper
    2  west  east        0.17   0.09   0.24
    """
    check_interval(level, interval, RobustInterval)
    check_option("equal_weights", equal_weights, EqualWeights)
    check_positive("n_replicates", n_replicates)
    check_positive("n_permutations", n_permutations)
    refuse_swapped(model, groups, "the groups")
    topics = topics_of_samples(model, scale, topic_names, warn=False)
    design = units_with_topics(topics, groups, units, strata, "amounts")
    sums, labels, strata_of = design.rows, design.groups, design.blocks
    names, values = topics.topic_names, proportions(sums)
    weights = sums.sum(axis=1) if equal_weights == "samples" else np.ones(len(sums))
    shares = shares_of(values, weights) if moderated else None
    statistic = EachTopic.of_topics(labels.sizes, len(names), shares)
    labelled = labelled_sets(
        statistic, replace(
            design, rows=rows_of_topics(values, weights, strata_of), strata=strata_of,
            subjects=None,
        ),
        [(t,) for t in range(len(names))],
    )  # fmt: skip
    drawn = "samples" if units is None else "units"
    warn_of_few_units(labels.sizes, labels.names, drawn, COVERED[interval], enough=FEW[interval])
    _warn_of_unequal_spread(values, labels)
    smallest = smallest_pvalue(labelled[0].sizes)
    warn_few_labellings([smallest], 1 - level, ["groups equal in any topic"], drawn)
    job["random_state"] = seed = job_seed(job)
    replicates = None
    cells = Cells.of(
        np.column_stack([values * weights[:, None], weights]), labels,
        checked_design(labels, design.subjects, design.strata, nested=False), "groups",
    )  # fmt: skip
    if interval != "t":
        replicates = bootstrap_part(MeansTask(cells), n_replicates, job)["means"]
    nulls, exact, interrupted = null_distributions(
        statistic, labelled, n_permutations, **part_of_job(job, "permutations")
    )
    observed = labelled[0].observed(statistic)
    p, maxt = _pvalues(nulls, observed, exact[0])
    errors, parts = _errors(values, weights, labels, strata_of, shares)
    table = cells.observed()
    return GroupEffects(
        table[:-1] / table[-1], p, maxt, false_discovery_control(p), observed, names, labels.names,
        labels.sizes, replicates, np.stack(nulls, axis=1), exact[0],
        smallest if exact[0] else max(smallest, 1 / (len(nulls[0]) + 1)),
        errors, parts, level, interval, drawn, equal_weights, seed.entropy, interrupted,
        Origin.of(topics.words, groups=groups, units=units, strata=strata),
    )  # fmt: skip


def _warn_of_unequal_spread(values: Array, labels: Labels) -> None:
    """Warn if the units of one group vary far more than those of another."""
    large = np.flatnonzero(labels.sizes >= _ENOUGH_FOR_SPREAD)
    if large.size < 2:
        return
    spread = np.array([values[labels.codes == r].var(axis=0, ddof=1).sum() for r in large])
    wide, narrow = int(spread.argmax()), int(spread.argmin())
    if spread[wide] > _UNEQUAL * spread[narrow]:
        names = [shown(labels.names[large[r]]) for r in (wide, narrow)]
        warn_caller(
            f"proportions vary more in group {names[0]} (variance {spread[wide]:.2g}) than in "
            f"group {names[1]} ({spread[narrow]:.2g}). In simulations with unequal spread and "
            "equal means, tests of a topic at 5% rejected in 4% to 10% of the cases, and any topic "
            "after max-T in 10% to 21%: rely on the intervals, and on permutation_test for all "
            "topics together."
        )


# p-values and intervals ----------------------------------------------------------------------


def _pvalues(nulls: list[Array], observed: Array, exact: bool) -> tuple[Array, Array]:
    """Return p-values of topics: unadjusted, and adjusted by the maximum over topics."""
    both = list(zip(nulls, observed.tolist(), strict=True))
    p = [
        pvalue(n_as_extreme(*null_and_observed, "greater"), null_and_observed[0].size, "", exact)
        for null_and_observed in both
    ]
    maxt = joint_max_t(nulls, observed.tolist(), exact)
    return np.array(p), np.maximum(maxt, p)


def _errors(
    values: Array, weights: Array, groups: Labels, strata: Array, shares: Array | None
) -> tuple[OneWay, Array]:
    """Return standard errors of means by stratum, and the weight (n, R) of each stratum.

    Strata have no part in them where one has a single unit of a group, whose spread is not known.
    """
    R = len(groups.names)
    cell = strata * R + groups.codes
    if (np.bincount(cell)[cell] == 1).any():
        cell = groups.codes
    cells, cell = np.unique(cell, return_inverse=True)
    cell = cell.reshape(-1)
    parts = np.zeros((cells.size, R))
    parts[np.arange(cells.size), cells % R] = np.bincount(cell, weights)
    return OneWay.of(cell, values, weights, shares), parts / parts.sum(axis=0)


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
