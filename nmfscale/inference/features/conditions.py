"""Features that differ between groups of units, such as conditions, within each topic."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike, check_option
from ...counts.names import shown
from ...counts.warn import warn_caller
from ...engine.threads import single_blas_thread
from ...models.pipelines import FittedModel
from ..design.confounding import confounded
from ..design.groups import Design, Labels, warn_of_samples_as_units
from ..intervals import RobustInterval, check_interval
from ..job import RunOptions, run_options
from ..regression.covariates import design_matrix
from .conditions_result import ConditionFeatures
from .conditions_tests import TopicCounts, compare_within
from .pseudobulk import counts_of_units, units_of_pseudobulk
from .pseudobulk_result import Pseudobulk
from .unmixing import Unmixing

Array = NDArray[Any]
Normalization: TypeAlias = Literal["median-ratio", "total"]
# Fewer units of a group than these are warned of.
_FEW = 4


@run_options
def condition_features(
    model: FittedModel,
    X: CountsLike | Pseudobulk,
    groups: ArrayLike | None = None,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    covariates: ArrayLike | None = None,
    reference: Any = None,
    normalize: Normalization = "median-ratio",
    min_count: float = 10.0,
    level: float = 0.95,
    topic_names: ArrayLike | None = None,
    memory_limit: int | float | str | None = None,
    n_threads: int | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> ConditionFeatures:
    """Test which features differ between groups, such as conditions, within each topic.

    The counts of each unit, such as a donor, are split among the topics and added up, as by
    :func:`pseudobulk`, and corrected for what is split to the wrong topic. For each topic, the
    counts of a feature in the units are then compared between groups by quasi-likelihood, as bulk
    counts are by edgeR. So the proportions of topics
    may differ between groups, as :func:`group_effects` tests; here frequencies within a topic do.

    Parameters
    ----------
    model
        As in :func:`pseudobulk`.
    X : counts of shape (n_samples, n_features), or Pseudobulk
        Counts, as in :func:`pseudobulk`; or its result for `model`, also from a file, so that
        counts are read only once. The units of that result then take the place of samples: they
        have the labels and covariates.
    groups : array-like of shape (n_samples,), optional
        Label of the group of each sample, such as its condition; by default those of a Pseudobulk.
    units : array-like of shape (n_samples,), optional
        Label of the sampling unit of each sample, such as its donor; by default samples are units,
        and a Pseudobulk keeps its units. If units have samples in several groups, groups are
        compared within units, as in a paired test: then units with samples in a single group do not
        contribute.
    strata : array-like of shape (n_samples,), optional
        Label of the stratum of each sample, such as its batch: groups are compared within strata.
    covariates : DataFrame, dict or array-like of shape (n_samples, n_covariates), optional
        Numbers, or labels, by which units differ, such as age and sex, as in
        :func:`regress_proportions`. Their means over the samples of a unit are used.
    reference : label, optional
        The group that all others are compared with; by default the first: the smallest label, or
        the first category of a pandas Categorical.
    normalize : {"median-ratio", "total"}, default="median-ratio"
        What frequencies are relative to. "median-ratio": most features of a topic do not differ, as
        in DESeq2 [3]_. "total": all counts of the topic, so that few frequent features that rise
        make all others fall. The first needs 20 features with 5 counts in a unit on average.
    min_count : float, default=10.0
        Units whose expected counts of a topic are fewer, and features whose effective counts in a
        topic over all units are fewer, are left out of the comparisons within that topic. Counts of
        samples with several topics are worth less than they are many.
    level : float, default=0.95
        Nominal coverage of the intervals.
    topic_names : sequence of str, optional
        Names of topics; by default those of the model, or numbers.
    memory_limit, n_threads, layer, raw, client, verbose
        As in :func:`pseudobulk`.

    Returns
    -------
    ConditionFeatures
        Log2-fold changes with intervals, p and q; tables by ``to_frame()``, plots by
        :func:`nmfscale.pl.volcano_plot`.

    Raises
    ------
    ValueError
        If an argument is not valid, there are fewer than two groups, or strata and covariates
        explain the groups.
    MemoryLimitError, ClusterError
        As in :func:`pseudobulk`.

    Warns
    -----
    UserWarning
        If groups have fewer than four units, units with samples in a single group do not
        contribute to comparisons within units, comparisons within a topic are left out because
        too few units have the topic, or very many samples serve as units; or if groups cannot be
        told from the batches of a fit with ``batch=``.

    Notes
    -----
    The split uses the same frequencies in all groups. If a feature changes in one topic, a part of
    the change is split to other topics of the same samples, and Fisher's information says how much
    is expected. So the counts are corrected by one step of scoring, which is unbiased for changes
    of any size, as counts are linear in frequencies. It increases the variance of Poisson counts by
    a factor c; counts are divided by it, which gives the effective counts. Sizes of units have the
    efficiencies of the batches of a fit with ``batch=``, so that the batches of units do not appear
    as changes. These efficiencies are taken as known.

    With y the effective counts of a feature and s the expected counts of the topic in the units,
    normalized, ``log E[y] = log s + X beta``, and the variance is ``phi (mu + alpha mu^2)``. The
    features of a topic have a common alpha, by Pearson's statistic; phi belongs to the feature. It
    is the sum of its squared residuals, divided by what is expected with phi = 1, and is moderated
    over the features by empirical Bayes, with a trend over their mean counts [1]_. Outliers of phi
    are not moderated. ``t^2`` is the difference of the deviances without and with the group,
    divided by phi; its degrees of freedom are those of the residuals plus those of the prior [2]_.
    Each unit has 0.125 pseudo-counts, so that changes are finite.

    The factors of "median-ratio" are computed twice, the second time without the features that
    differ with p <= 0.1 by the first tests [4]_. Features whose counts come from fewer units than
    half of the smaller group are not tested: these counts may be those of a few samples.

    In simulations (``benchmarks/conditions.py``) with 4 to 20 donors in a group, tests at 5%
    rejected about 5% of the features that did not differ, and 95% intervals covered the true change
    in about 90% to 95%. Proportions are taken as known. In simulations, their errors moved about a
    tenth of a change to other topics, with the opposite sign. Topics that were fitted to the same
    counts do not make p too small as long as no topic is a condition itself: look at
    :func:`group_effects` first.

    References
    ----------
    .. [1] Smyth (2004). Linear models and empirical Bayes methods for assessing differential
       expression in microarray experiments. Statistical Applications in Genetics and Molecular
       Biology.
    .. [2] Lund, Nettleton, McCarthy, Smyth (2012). Detecting differential expression in
       RNA-sequence data using quasi-likelihood with shrunken dispersion estimates. Statistical
       Applications in Genetics and Molecular Biology.
    .. [3] Anders, Huber (2010). Differential expression analysis for sequence count data. Genome
       Biology.
    .. [4] Kadota, Nishiyama, Shimizu (2012). A normalization strategy for comparing tag count data.
       Algorithms for Molecular Biology.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> rng = np.random.default_rng(0)
    >>> donors = np.repeat(np.arange(12), 20)
    >>> treated = donors % 2 == 1
    >>> frequencies = np.full((2, 40), 5.0)
    >>> frequencies[0, :20], frequencies[1, 20:] = 15, 15
    >>> shares = rng.dirichlet([0.2, 0.2], 240)
    >>> means = shares @ frequencies
    >>> means[treated, 3] += 15 * shares[treated, 0]  # twice as frequent in a topic
    >>> X = rng.poisson(means * rng.gamma(20, 1 / 20, (12, 40))[donors])
    >>> model = nmfscale.TopicModel(2, random_state=0).fit(X)
    >>> changes = nmfscale.condition_features(model, X, treated, units=donors)
    >>> changes.to_frame().query("qvalue < 0.05")[["topic", "feature", "group", "lfc"]].round(1)
        topic  feature  group  lfc
    34      1        3   True  1.0
    """
    check_interval(level, "t", RobustInterval)
    check_option("normalize", normalize, Normalization)
    if not np.isfinite(min_count) or min_count <= 0:
        raise ValueError(f"min_count={shown(min_count)}: a positive number is needed.")
    choice = units, groups, strata, topic_names
    if isinstance(X, Pseudobulk):
        bulk, design, names = units_of_pseudobulk(model, X, *choice)
    elif groups is None:
        raise ValueError("groups is needed: a label for each sample, such as its condition.")
    else:
        bulk, design, names = counts_of_units(
            model, X, *choice, job, memory_limit=memory_limit, n_threads=n_threads, layer=layer,
            raw=raw,
        )  # fmt: skip
    labels = design.groups
    assert labels is not None
    of_reference = _number_of_reference(reference, labels)
    warn_of_samples_as_units(design)
    _warn_of_batches(bulk, labels)
    fixed = _fixed_columns(design, covariates, names)
    with single_blas_thread():
        return _compared(
            bulk, design, labels, fixed, of_reference, normalize, float(min_count), float(level)
        )


# Designs ---------------------------------------------------------------------------------------


def _number_of_reference(reference: Any, labels: Labels) -> int:
    names = ", ".join(map(shown, labels.names))
    if len(labels.names) < 2:
        raise ValueError(f"groups has only {names}: two groups at least are needed.")
    if len(labels.names) == len(labels) > 2:
        raise ValueError(
            f"groups has a different label for each of {len(labels):,} units: groups of several "
            "units are needed. Was the right column given?"
        )
    if reference is None:
        return 0
    if reference not in labels.names:
        raise ValueError(f"reference={shown(reference)} is not one of the groups: {names}.")
    return labels.names.index(reference)


def _warn_of_batches(bulk: Pseudobulk, labels: Labels) -> None:
    """Warn of groups that cannot be told from the batches of a fit."""
    if bulk.batches is None:
        return
    batches, of_row = np.unique(np.array(bulk.batches), return_inverse=True)
    there = np.zeros((len(batches), bulk.sizes.shape[1]), bool)  # samples of units in batches
    np.logical_or.at(there, of_row.reshape(-1), bulk.sizes.any(axis=2))
    table = np.zeros((len(batches), len(labels.names)), np.int64)
    np.add.at(table.T, labels.codes, there.T)
    text = confounded(table, labels.names)
    if text is not None:
        warn_caller(f"the model was fitted with batch=, and {text}")


def _fixed_columns(design: Design, covariates: Any, sample_names: Any) -> Array:
    """Return the columns (U, q) of the design beside the groups, the first one the intercept."""
    columns = [np.ones(design.n_units)]
    columns += [design.strata.codes == s for s in range(1, len(design.strata.names))]
    subjects = design.subjects
    if subjects is not None:
        columns += [subjects.codes == s for s in range(1, len(subjects.names))]
        n_single = int(np.count_nonzero(np.bincount(subjects.codes) == 1))
        if n_single:
            warn_caller(
                f"{n_single:,} of {len(subjects.names):,} units have samples in one group only: "
                "groups are compared within units, so that these units do not contribute."
            )
    if covariates is not None:
        n = len(design.of_sample)
        matrix = design_matrix(covariates, n, intercept=False, sample_names=sample_names)
        sums = np.zeros((design.n_units, matrix.values.shape[1]))
        np.add.at(sums, design.of_sample, matrix.values - matrix.values.mean(axis=0))
        means = sums / np.bincount(design.of_sample)[:, None]
        lengths = np.sqrt((means * means).sum(axis=0))
        columns += list((means / np.where(lengths > 0, lengths, 1.0)).T)
    return np.column_stack(columns).astype(np.float64)


# Tests -----------------------------------------------------------------------------------------


def _compared(
    bulk: Pseudobulk, design: Design, labels: Labels, fixed: Array, reference: int,
    normalize: str, min_count: float, level: float,
) -> ConditionFeatures:  # fmt: skip
    """Return the comparisons of all groups with the reference, within all topics."""
    _, K, m = bulk.counts.shape
    others = [g for g in range(len(labels.names)) if g != reference]
    out = {name: np.zeros((len(others), K, m)) for name in _ARRAYS}
    out["pvalue"][:], out["qvalue"][:], out["freedom"][:], out["dispersion"][:] = 1, 1, 1, 1
    tested = np.zeros((len(others), K, m), bool)
    base_mean, alpha, n_units = np.zeros((K, m)), np.zeros(K), []
    left_out: list[tuple[Any, Any, str]] = []
    whole = bulk.sizes.sum(axis=0)
    unmixing = Unmixing.of(bulk)
    for k in range(K):
        counts = unmixing.counts(bulk, k)
        topic = TopicCounts(bulk, k, counts, unmixing.inflation[k])
        units = np.flatnonzero(whole[:, k] >= min_count)
        n_units.append(np.bincount(labels.codes[units], minlength=len(labels.names)))
        base_mean[k] = np.maximum(counts[units].sum(axis=0), 0.0) / max(len(units), 1)
        for c, group in enumerate(others):
            tests = compare_within(
                topic, units, fixed, labels, reference, group, min_count, normalize
            )
            if isinstance(tests, str):
                left_out.append((bulk.topic_names[k], labels.names[group], tests))
                continue
            alpha[k], at = tests.alpha, (c, k, tests.features)
            tested[at] = True
            for name, values in tests.numbers(level).items():
                out[name][at] = values
    _warn(left_out, np.array(n_units), labels, bulk, reference)
    return ConditionFeatures(
        **out, tested=tested, base_mean=base_mean, alpha=alpha, n_units=np.array(n_units),
        left_out=tuple(left_out), groups=labels.names, reference=labels.names[reference],
        feature_names=bulk.feature_names, topic_names=bulk.topic_names,
        units="samples" if design.unit_names is None else "units",
        paired=design.subjects is not None, normalize=normalize, min_count=min_count,
        level=level, origin=bulk.origin,
    )  # fmt: skip


_ARRAYS = (
    "lfc", "std_error", "lower", "upper", "t", "freedom", "pvalue", "qvalue", "dispersion"
)  # fmt: skip


def _warn(
    left_out: list[tuple[Any, Any, str]], n_units: Array, labels: Labels, bulk: Pseudobulk,
    reference: int,
) -> None:  # fmt: skip
    """Warn of comparisons that are left out, and of groups with few units."""
    if left_out:
        topic, group, why = left_out[0]
        n = len(bulk.topic_names) * (len(labels.names) - 1)
        warn_caller(
            f"{len(left_out):,} of {n:,} comparisons are left out, the first that of group "
            f"{shown(group)} within topic {shown(topic)}: {why}. See left_out of the result."
        )
    few = (n_units > 0) & (n_units < _FEW)
    if few.any():
        k, g = map(int, np.argwhere(few)[0])
        warn_caller(
            f"{int(few.sum()):,} groups have fewer than {_FEW} units with a topic, the first is "
            f"group {shown(labels.names[g])}, with {int(n_units[k, g])} for topic "
            f"{shown(bulk.topic_names[k])}: p-values then rest on the assumption that features "
            "vary alike."
        )
