"""Mean proportions of topics in groups: bootstrap intervals, and a permutation test of each topic.

The test is that of `permutation_test` topic by topic: whole units change their groups, and the
statistic is the share of the sum of squares of root proportions that lies between groups. Roots
find differences in frequent topics as often as proportions do, and in rare topics more often: their
spread does not grow with the mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from .bootstrap import Cells, draw_in_parts, warn_of_few_units
from .groups import Labels, checked_design, smallest_pvalue, warn_few_labellings
from .intervals import check_interval
from .loadings import checked_loadings, proportions
from .means import GroupEffects
from .permutation import labelled_sets, null_distributions
from .pvalues import joint_max_t, n_as_extreme, pvalue, standardized
from .replicates import Replicates, ReplicateTask, check_positive, run_replicates
from .seeds import child_states
from .statistics import Statistic
from .units import units_with_topics

Array = NDArray[Any]


def group_effects(
    loadings: Any,
    groups: ArrayLike,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    n_replicates: int = 1000,
    n_permutations: int = 9999,
    level: float = 0.95,
    interval: str = "percentile",
    topic_names: Any = None,
    random_state: Any = None,
    n_threads: int | None = None,
    client: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    verbose: int = 0,
) -> GroupEffects:
    """Find the mean proportion of each topic in each group, and which topics differ.

    First ask what was drawn: documents are rarely the unit. Where samples come in clusters that lie
    within a group (beers of a brewery, posts of a blog, cells of a patient), pass these as
    `units=`. Samples of a unit resemble each other; taken for units, they give intervals that are
    too narrow and p-values that are too small.

    Amounts of topics are added up over the samples of a unit, as in :func:`permutation_test`, and
    its proportions are those of the sum. Of a fitted model, or of proportions, that is the mean of
    the proportions of its samples; of other amounts, samples with more of them weigh more. The mean
    of a group is that over its units, each of which counts once however many samples it has: it is
    units whose mean a study can tell.

    Parameters
    ----------
    loadings : fitted model, or array-like of shape (n_samples, n_topics)
        A model's topic proportions, or non-negative amounts of topics. Columns of a DataFrame name
        the topics.
    groups, units, strata
        As in :func:`permutation_test`. As many units are drawn from each group and stratum as it
        has, and labels are permuted within strata.
    n_replicates : int, default=1000
        Bootstrap replicates, for the intervals.
    n_permutations : int, default=9999
        Random labellings, for the p-values; where all of them are no more, each is taken once.
    level : float, default=0.95
        Nominal coverage of the intervals.
    interval : {"percentile", "bca"}, default="percentile"
        As in :func:`bootstrap_weights`.
    topic_names : sequence of str, default=None
        Names of topics; by default those of a model, the columns of a DataFrame, or numbers.
    random_state, n_threads, client, verbose
        As in :func:`bootstrap_weights`.
    checkpoint, resume
        A folder for what is done, and whether to go on from it.

    Returns
    -------
    GroupEffects
        Means with intervals (T, R), p-values (T,), alone and adjusted for all topics, and
        `differences` between groups.

    Raises
    ------
    ValueError
        If an argument is not valid, a unit lies in several groups, fewer than two groups are left,
        or no label can be moved within strata.

    Warns
    -----
    UserWarning
        If units without any topic are left out, a group has fewer than 50 units, or units are so
        few that no topic can be found to differ.

    Notes
    -----
    For each topic the null hypothesis is that labels of units could have been others. The statistic
    is the share of the sum of squares of the units' root proportions that lies between groups, so
    that topics together make the "hellinger" statistic of :func:`permutation_test`. Where groups
    have the same mean and another spread, a small p-value may tell of the spread.

    References
    ----------
    .. [1] Efron (1987). Better bootstrap confidence intervals. JASA.
    .. [2] Westfall, Young (1993). Resampling-based multiple testing. Wiley.

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
    >>> found
    <GroupEffects: 3 topics x 2 groups of 120 units, 2 topics with q <= 0.05 of 9,999 labellings>
    >>> found.summary().rename_axis(None).round(3)
        east   west  pvalue  qvalue
    2  0.297  0.468   0.000   0.000
    0  0.349  0.263   0.026   0.039
    1  0.354  0.269   0.076   0.076
    >>> of_topic = found.differences("east").to_frame().query("topic == 2")
    >>> of_topic.round(2)[["group", "other", "difference", "lower", "upper"]]
      group other  difference  lower  upper
    2  west  east        0.17    0.1   0.25
    """
    check_interval(level, interval)
    check_positive("n_replicates", n_replicates)
    check_positive("n_permutations", n_permutations)
    _, names = checked_loadings(loadings, topic_names)
    amounts, labels, strata_of = units_with_topics(
        loadings,
        groups,
        units,
        strata,
        "proportions" if hasattr(loadings, "components_") else "amounts",
    )
    labelled = labelled_sets(
        EACH_TOPIC, amounts, labels, strata_of, [(t,) for t in range(len(names))], "all"
    )
    cells = Cells.of(
        proportions(amounts), labels, checked_design(labels, strata=strata_of), "groups"
    )
    drawn = "samples" if units is None else "units"
    warn_of_few_units(cells.n_units, labels.names, drawn, COVERED)
    smallest = smallest_pvalue(labelled[0].sizes)
    warn_few_labellings([smallest], 1 - level, ["groups equal in any topic"], drawn)
    options = {"n_threads": n_threads, "client": client, "resume": resume, "verbose": verbose}
    job = bootstrap_part(MeansTask(cells), n_replicates, random_state, checkpoint, options)
    nulls, exact, interrupted = null_distributions(
        EACH_TOPIC, labelled, n_permutations, random_state=job.seed, batch_size=None,
        checkpoint=None if checkpoint is None else Path(checkpoint, "permutations"), **options,
    )  # fmt: skip
    observed = labelled[0].observed(EACH_TOPIC)
    p, maxt = _pvalues(nulls, observed, exact[0])
    return GroupEffects(
        cells.observed() / cells.n_units, p, maxt, false_discovery_control(p), observed, names,
        labels.names, cells.n_units, job["means"], np.stack(nulls, axis=1), exact[0],
        smallest if exact[0] else max(smallest, 1 / (len(nulls[0]) + 1)),
        _moments(proportions(amounts), labels, strata_of), level, interval, drawn,
        job.seed.entropy, interrupted,
    )  # fmt: skip


# How often intervals of means held the truth in simulations.
COVERED = "65% of the cases with 3 a group, 84% with 10, 90% with 20 to 40, 94% with 100"


class _EachTopic(Statistic):
    """A statistic of one topic: the `members` of its tests are topics, not groups."""

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the values of a topic, one for each table."""
        return self.values(summary[:, :, members[0]], sizes)


def _roots(amounts: Array) -> Array:
    """Square roots of proportions, less their mean; the squares of a topic add up to one."""
    rows = np.sqrt(proportions(amounts))
    least = 1e-24 * (rows * rows).sum(axis=0)
    rows -= rows.mean(axis=0)
    total = (rows * rows).sum(axis=0)
    # of a topic that is the same in all units but for rounding, 0
    return np.where(total > least, rows / np.sqrt(np.where(total > least, total, 1.0)), 0.0)


def _between(sums: Array, sizes: Array) -> Array:
    """Sum of squares between groups, of sums (n, R): sum_g s_g^2 / n_g - (sum_g s_g)^2 / n."""
    found: Array = (sums**2 / sizes).sum(axis=1) - sums.sum(axis=1) ** 2 / sizes.sum()
    return found


EACH_TOPIC = _EachTopic("hellinger of each topic", "greater", _roots, _between)


@dataclass(frozen=True)
class MeansTask(ReplicateTask):
    """Means over groups of units that are drawn again."""

    cells: Cells
    name = "bootstrap replicates"

    def about(self) -> Iterable[Any]:
        """Return what the replicates stand on."""
        cells = self.cells
        return cells.sums, cells.starts, cells.scale, cells.strata

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return ``means`` (n, T, R)."""
        cells, states = self.cells, child_states(seed, numbers)
        means = np.empty((len(states), cells.sums.shape[1], len(cells.n_units)))

        def keep(part: slice, counts: Array) -> None:
            # each group has as many units in every replicate
            means[part] = cells.tables(counts) / cells.n_units

        draw_in_parts(states, cells.strata, keep, n_threads)
        return {"means": means}


def bootstrap_part(
    task: ReplicateTask, n: int, random_state: Any, checkpoint: Any, options: dict[str, Any]
) -> Replicates:
    """Do the bootstrap of a job that permutes, too: in a folder of its own."""
    place = None if checkpoint is None else Path(checkpoint, "bootstrap")
    job = run_replicates(task, n, random_state=random_state, checkpoint=place, **options)
    if job.interrupted:
        raise KeyboardInterrupt
    return job


def _pvalues(nulls: list[Array], observed: Array, exact: bool) -> tuple[Array, Array]:
    """Return p-values of topics, alone and by the maximum of standardised statistics."""
    both = list(zip(nulls, observed.tolist(), strict=True))
    p = [pvalue(n_as_extreme(*each, "greater"), each[0].size, "", exact) for each in both]
    z = [standardized(*each, "greater") for each in both]
    maxt = joint_max_t([null for null, _ in z], [value for _, value in z], exact)
    return np.array(p), np.maximum(maxt, p)


def _moments(values: Array, groups: Labels, strata: Array) -> Array:
    """Return second and third moments (2, T, R) of what a unit adds to the mean of its group."""
    R = len(groups.names)
    _, cell = np.unique(strata * R + groups.codes, return_inverse=True)
    cell = cell.reshape(-1)
    sums = np.zeros((cell.max() + 1, values.shape[1]))
    np.add.at(sums, cell, values)
    away = (values - (sums / np.bincount(cell)[:, None])[cell]) / groups.sizes[groups.codes, None]
    out = np.zeros((2, R, values.shape[1]))
    for power, into in zip((2, 3), out, strict=True):
        np.add.at(into, groups.codes, away**power)
    return out.transpose(0, 2, 1)
