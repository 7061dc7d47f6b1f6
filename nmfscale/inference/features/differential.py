"""Features that make a topic: Poisson regression of each feature on the topics of the samples."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike, Topics, check_option, positive_number
from ...counts.base import CountMatrix
from ...counts.names import names_of, places_of
from ...counts.warn import warn_caller
from ...engine.memory import check_columns
from ...engine.threads import resolve_threads, single_blas_thread
from ...engine.workers import resolve_client
from ...methods.topics.differential import (
    FeatureDesign,
    RegressFeatures,
    Regressions,
    regression_needs,
)
from ...methods.weights.measured import Measured, SampleGroups
from ...models.arguments.batches import has_efficiencies
from ...models.arguments.measured_entries import (
    efficiencies_in,
    measured_in,
    n_measured,
    refuse_missing_entries,
)
from ...models.arguments.names import feature_names_of
from ...models.arguments.validation import sizes_of
from ...models.pipelines import FittedModel, model_and_input
from ...readers.open import as_counts
from ..design.groups import (
    Labels,
    check_resampled,
    checked_design,
    checked_labels,
)
from ..design.loadings import SampleTopics, topics_of_samples
from ..intervals import check_interval
from ..job import JobOptions, job_options
from ..results.origin import Origin
from .differential_result import DifferentialFeatures
from .differential_run import run_regressions
from .differential_split import counts_to_test
from .differential_summary import differential_result
from .differential_tests import LEAST_EXTREME, Reference, ReferenceName, Tests
from .differential_units import warn_of_topics_of_units, warn_of_units
from .other_features import efficiencies_of_all

Array = NDArray[Any]
Family: TypeAlias = Literal["quasi-poisson", "poisson"]
# Relative difference of totals of samples that is no rounding.
_OTHER = 1e-6


@job_options
def differential_features(
    model: FittedModel | ArrayLike,
    X: CountsLike,
    *,
    reference: ReferenceName | Topics = LEAST_EXTREME,
    pseudocount: float = 1.0,
    family: Family = "quasi-poisson",
    units: ArrayLike | None = None,
    level: float = 0.95,
    split: Literal["auto"] | float | None = "auto",
    size_factors: ArrayLike | None = None,
    topic_names: ArrayLike | None = None,
    memory_limit: int | float | str | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[JobOptions],
) -> DifferentialFeatures:
    """Find the features that make each topic, with log2-fold changes and tests.

    Grade-of-membership differential expression [1]_: expected counts of a feature are
    ``sum_k s_i l_ik f_jk`` with held proportions l of the topics and sizes s of the samples.
    Frequencies f are estimated feature by feature, and compared between topics. Samples need not
    belong to one topic each, as clusters would require.

    A fit chooses the topics for which features differ most, so that tests in the same counts are
    wrong: of features without any difference, half may have p < 0.05. By default, counts to which
    the model was fitted are therefore split at random: topics are fitted again to one half, and
    features tested in the other. Samples of one patient or document source resemble each other: see
    `units`.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, n_components)
        A model, or proportions or amounts of topics in each sample: rows are divided by their sums.
    X : counts of shape (n_samples, n_features)
        Counts of these samples, as in :meth:`nmfscale.PoissonNMF.fit`. Features need not be those
        of the fit: a model of selected genes can be asked about all genes. Samples are matched with
        those of the model, or the index of a DataFrame, by name if both have names.
    reference : {"least-extreme", "mean"}, topic or list of topics, default="least-extreme"
        What the frequency in a topic is compared with. "least-extreme": the other topic whose
        frequency is closest to it on the log scale, so that a large change holds against every
        other topic. "mean": the mean frequency over all samples. A topic (by name or number), or
        the mean of several topics, weighted by their expected counts.
    pseudocount : float, default=1.0
        Counts that are added to each topic, at the mean frequency of the feature, for frequencies
        and log-fold changes. They shrink changes of rare features towards 0, and keep those of
        perfect markers finite. Tests use at most 0.02.
    family : {"quasi-poisson", "poisson"}, default="quasi-poisson"
        How much counts vary. "quasi-poisson" divides z by the square root of the dispersion of the
        feature, if that is above 1: counts of genes and words vary more than Poisson counts. No
        part of errors between units.
    units : array-like of shape (n_samples,), optional
        Sampling unit of each sample, such as its donor. Errors are then those between units, for
        samples that depend on each other within units, moderated over the features, and p-values
        are those of a t distribution. A Series is matched by name. Units may have samples with any
        topics.
    level : float, default=0.95
        Level of the intervals of log-fold changes.
    split : "auto", float or None, default="auto"
        "auto": if `model` was fitted to these counts, fit it again to half of them, and test in the
        other half. Where counts cannot be split (fractional counts; the median sample has fewer
        than 20, or there are fewer than 5 samples for each topic; models whose fits cannot start at
        another one, such as :class:`AnchorNMF`), there are effects without p-values, and the result
        says why. An array of proportions, and a model of other features, are tested in all counts.
        A number is the share of the counts for the fit. None: test in all counts, and take the
        topics as known; right for proportions from elsewhere, such as those of held-out counts.
        Each count is split by binomial thinning, features that vary more than Poisson counts with
        random shares [2]_, so that the parts are independent. The fit starts from the factors of
        the model, so that topics keep their order.
    size_factors : array-like of shape (n_samples,), optional
        Sizes s of the samples; by default their total counts in `X`.
    topic_names : sequence of str, optional
        Names of topics; by default those of the model, the columns of a DataFrame, or numbers.
    memory_limit : int, float or str, optional
        As in :class:`nmfscale.PoissonNMF`. With a limit, files are read in pieces.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`. The seed is that of the split; a resumed job has the one of
        its checkpoint. Panels of features are the
        tasks of a cluster, and finished features are saved. Results are the same to the bit
        everywhere.

    Returns
    -------
    DifferentialFeatures
        Arrays (n_components, n_features) of log2-fold changes with intervals, z, p and further
        numbers; tables by ``to_frame()`` and ``rank_genes_groups()``. After Ctrl-C, it has the
        features that were finished.

    Raises
    ------
    ValueError
        If an argument is not valid, or samples of `X` are not those of the model.
    MemoryLimitError, CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Warns
    -----
    UserWarning
        If samples are too many to be sampling units and `units` is not given; if there are fewer
        than ten units, one unit has almost all of a topic, or a fitted topic hardly varies within
        units; if topics of a fit to half of the counts are not those of the model; if Ctrl-C ended
        the work, some samples have counts but no topics, or minima of some features were not found.

    Notes
    -----
    With u the column sums of ``s_i l_ik`` and f0 the mean frequency of a feature, its frequencies
    minimise ``sum_k (u_k + a / f0) f_k - sum_i x_i log(sum_k s_i l_ik f_k) - a sum_k log f_k``. The
    z-score is the signed root of the likelihood ratio of equality with the reference: standard
    errors on the log scale would fail for the best markers, whose other frequencies are almost 0.
    For "least-extreme" it is the least of the comparisons with all other topics
    (intersection-union test), so that its p-value needs no correction for the choice; q is
    Benjamini and Hochberg's over the features of a topic. Both minima of a likelihood ratio have at
    most 0.02 pseudo-counts, because pseudo-counts favour equality: with 1, tests of two topics at
    5% rejected in only 2% of the features with 20 to 100 counts and without differences. With 0.02
    they reject in 5%, at any number of counts above 20 (``benchmarks/differential.py``). The
    dispersion is ``sum_i (x_i - mu_i)^2 / sum_i mu_i n / (n - K)``: 1 for Poisson counts. z then
    has n - K degrees of freedom.

    If the model was fitted with ``batch=``, expected counts of a sample are those above times the
    efficiencies of its batch, and u are the sums over the samples of ``e_bj s_i l_ik``. Errors and
    likelihood ratios allow for the errors of these efficiencies, which matter where topics differ
    between batches; errors between units do not. Efficiencies of features that the fit did not have
    are estimated in the counts that are tested.

    With units, z is the difference of the two frequencies divided by its standard error, the
    jackknife that leaves out one unit after the other, with one Newton step each (CR3 of [3]_).
    Unlike a sandwich with the factor n / (n - 1), it keeps its level where units have very
    different shares of a topic (``benchmarks/calibration_features.py``). Squares of the errors are
    moderated over the features [5]_: their ratios to a trend, that of Poisson counts and of units
    that differ alike in all features, have a prior, whose degrees of freedom are added to those of
    the units. At least 20 features with 10 counts are needed for that. After a split, both halves
    of a unit share what is particular to it: if topics are nothing but differences between eight
    units, tests reject about 10% in place of 5%. A warning names topics that may be such.

    Intervals are the log-fold change plus and minus its standard error times the quantile of z. An
    end that contradicts the test is moved: intervals include 0 if and only if p is above
    1 - `level`. Pseudo-counts shrink log-fold changes, and the intervals are those of the shrunken
    change: for features with few counts, choose a smaller `pseudocount`.

    Shrunken log-fold changes and local false sign rates (lfsr) are those of a mixture of normal
    distributions and a point mass at 0 [4]_, which is fitted to all features of a topic, with
    ``|lfc / z|`` as standard error (z of the same p-value, if it is a t statistic). So lfsr is at
    least the probability that a change is 0. That of fastTopics comes from a Markov chain with
    0.01 pseudo-counts, and its mixture is fitted to the features of all topics: numbers differ, and
    those here are shrunk more, with 1 pseudo-count.

    References
    ----------
    .. [1] Carbonetto et al. (2023). GoM DE: interpreting structure in sequence count data with
       differential expression analysis allowing for grades of membership. Genome Biology.
    .. [2] Neufeld, Popp, Gao, Battle, Witten (2023). Negative binomial count splitting for
       single-cell RNA sequencing data. arXiv:2307.12985.
    .. [3] MacKinnon, White (1985). Some heteroskedasticity-consistent covariance matrix estimators
       with improved finite sample properties. Journal of Econometrics.
    .. [4] Stephens (2017). False discovery rates: a new deal. Biostatistics.
    .. [5] Smyth (2004). Linear models and empirical Bayes methods for assessing differential
       expression in microarray experiments. Statistical Applications in Genetics and Molecular
       Biology.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import TopicModel, differential_features
    >>> rng = np.random.default_rng(0)
    >>> frequencies = np.full((2, 30), 10.0)
    >>> frequencies[0, 4], frequencies[1, 7] = 80, 60  # each topic has one leading feature
    >>> X = rng.poisson(rng.dirichlet([0.3, 0.3], 80) @ frequencies)
    >>> model = TopicModel(n_components=2, random_state=0).fit(X)
    >>> found = differential_features(model, X, random_state=0)
    >>> found.to_frame().groupby("topic").head(1)[["topic", "feature", "lfc"]].round(1)
        topic  feature  lfc
    0       0        7  3.8
    30      1        4  4.1
    """
    pseudocount = positive_number("pseudocount", pseudocount)
    check_option("family", family, Family)
    check_interval(level, "percentile")
    job["client"] = resolve_client(job["client"])
    model, X = model_and_input(model, X)
    counts = as_counts(
        X, integer="allow", subject="X", layer=layer, raw=raw,
        in_memory=memory_limit is None and job["client"] is None, memory_limit=memory_limit,
    )  # fmt: skip
    refuse_missing_entries(model, counts)
    labels = _checked_units(units, counts)
    names = topics_of_samples(model, "proportions", topic_names, warn=False).topic_names
    if len(names) < 2:
        raise ValueError(
            f"there is {len(names)} topic: features are compared between at least two."
        )
    compared = Reference.of(reference, names)
    _refuse_other_counts(counts, model)
    tested = counts_to_test(model, X, counts, split, job)
    feature_names = feature_names_of(model, tested.counts)
    model, counts = tested.model, tested.counts
    topics = topics_of_samples(model, "proportions", topic_names, warn=False)
    topics = _in_order_of(counts, topics, model)
    proportions, among = _proportions(counts, topics), efficiencies_in(model, counts)
    sizes, K = _sizes(size_factors, counts, topics, among), len(names)
    sizes = np.where(proportions.any(axis=1), sizes, 0.0)
    among = efficiencies_of_all(
        model, counts, proportions * sizes[:, None], n_threads=job["n_threads"],
        client=job["client"],
    )  # fmt: skip
    threads = resolve_threads(job["n_threads"], counts.nnz * K)
    needs = regression_needs(
        counts, K, threads, 0 if labels is None else len(labels.names),
        1 if among is None else len(among.values),
    )  # fmt: skip
    check_columns(counts, needs, memory_limit, n_threads=threads)
    with single_blas_thread():
        design = FeatureDesign.of(
            proportions, sizes, counts.shape[1], among,
            None if labels is None else labels.codes,
        )  # fmt: skip
        if tested.no_pvalues is None:
            warn_of_units(design, labels, topics.topic_names)
            if labels is not None and tested.share is not None:
                warn_of_topics_of_units(proportions[sizes > 0], labels.at(sizes > 0), names)
        weights = compared.weights(design.whole)
        step = RegressFeatures.of(
            counts, design, pseudocount, weights, *_errors_of_efficiencies(model, tested.share)
        )
        arrays, done = run_regressions(counts, step, design, needs, tested.seed, job)
        features = np.flatnonzero(done)
        totals = np.asarray(counts.column_totals, np.float64)[features]
        regressions = Regressions.of(
            arrays["regressions"][features], arrays["squares"][features], totals, design, features
        )
        _warn_of_unsolved(regressions, features)
        covariances = arrays["covariances"][features] if labels is not None else None
        tests = Tests.of(
            regressions, compared, design, weights, family, totals, covariances, features
        )
        return differential_result(
            regressions, tests, tested, compared, topics, features, feature_names,
            level=float(level), pseudocount=pseudocount, family=family,
            n_units=None if labels is None else design.n_units,
            base_mean=totals / n_measured(measured_in(model, counts), counts)[features],
            origin=Origin.of(topics.words, units=units),
        )  # fmt: skip


# Arguments -----------------------------------------------------------------------------------


def _checked_units(units: Any, counts: CountMatrix) -> Labels | None:
    """Return the units of the samples, None if samples are units."""
    if units is None:
        return None
    labels = checked_labels(units, counts.shape[0], "units", counts.sample_names, "X")
    check_resampled(checked_design(labels, units=labels.codes, nested=False))
    return labels


def _refuse_other_counts(counts: CountMatrix, model: Any) -> None:
    """Refuse counts with the features of a fit whose totals are not those of its samples."""
    of_fit, names = getattr(model, "sample_totals_", None), names_of(model)
    n_features = getattr(model, "n_features_in_", None)
    if of_fit is None or n_features != counts.shape[1]:
        return
    if names is not None and counts.sample_names is not None:
        places = places_of(names, counts.sample_names, "model")
        of_fit = of_fit if places is None else of_fit[places]
    if len(of_fit) != counts.shape[0]:
        return
    apart = np.abs(of_fit - counts.row_totals) > _OTHER * np.maximum(of_fit, 1)
    if apart.any():
        i = int(np.flatnonzero(apart)[0])
        raise ValueError(
            f"X is not what the model was fitted to: totals of {int(apart.sum()):,} samples "
            f"differ, the first that of sample {i}, {counts.row_totals[i]:g} in place of "
            f"{of_fit[i]:g}. Pass the same counts, in the same order where they have no names; "
            "for other counts of these samples, pass model.loadings_."
        )


def _in_order_of(counts: CountMatrix, topics: SampleTopics, model: Any) -> SampleTopics:
    """Return the topics of the samples of the counts."""
    names = names_of(model) if topics.sample_names is None else topics.sample_names
    if names is not None and counts.sample_names is not None:
        places = places_of(names, counts.sample_names, "model")
        topics = topics if places is None else topics.of(places)
    if len(topics) != counts.shape[0]:
        raise ValueError(
            f"X has {counts.shape[0]:,} samples and the model {len(topics):,}: pass the counts of "
            "the same samples, in the same order where they have no names."
        )
    return topics


def _proportions(counts: CountMatrix, topics: SampleTopics) -> Array:
    """Return proportions (n, K); samples with counts but without topics have mean ones."""
    rows = topics.rows
    lost = ~rows.any(axis=1) & (np.asarray(counts.row_totals) > 0)
    if lost.any():
        warn_caller(
            f"{int(lost.sum()):,} samples of X have counts but no topics, the first is sample "
            f"{int(np.flatnonzero(lost)[0])}: they have the mean proportions of the other samples."
        )
        mean = rows.sum(axis=0)
        if not mean.any():
            raise ValueError("no sample with counts has topics.")
        rows = np.where(lost[:, None], mean / mean.sum(), rows)
    return rows


def _sizes(
    sizes: Any, counts: CountMatrix, topics: SampleTopics, among: SampleGroups | None
) -> Array:
    """Return sizes of samples: by default totals, as if everything had been measured.

    They are those with efficiencies of 1.
    """
    if not np.asarray(counts.row_totals).any():
        raise ValueError("X has no counts.")
    if sizes is not None:
        return np.asarray(sizes_of(sizes, counts), np.float64)
    if among is None:
        return np.asarray(counts.row_totals, np.float64)
    if topics.whole_totals is None:
        measured = Measured.of(counts)
        assert measured is not None
        raise ValueError(
            f"X has {measured.n_missing:,} entries that were not measured, so that totals of "
            "samples cannot be compared: pass size_factors=, or the model in place of its loadings."
        )
    return topics.whole_totals


def _errors_of_efficiencies(model: Any, share: Fraction | None) -> tuple[float | None, float]:
    """Return the shape of the prior of efficiencies, and counts of the fit for each one tested."""
    if not has_efficiencies(model):
        return None, 1.0
    return float(model.batch_shape_), 1.0 if share is None else float(share / (1 - share))


def _warn_of_unsolved(regressions: Regressions, features: Array) -> None:
    """Warn of features whose minima were not found."""
    unsolved = np.flatnonzero(regressions.unsolved)
    if unsolved.size:
        warn_caller(
            f"likelihood ratios of {unsolved.size:,} features are not exact: their minima were not "
            f"found, the first that of feature {features[unsolved[0]]}."
        )
