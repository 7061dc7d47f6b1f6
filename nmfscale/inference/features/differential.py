"""Features that make a topic: Poisson regression of each feature on the topics of the samples."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from ...counts.argument_types import CountsLike, Topics, check_option
from ...counts.base import CountMatrix
from ...counts.names import names_of, places_of, shown
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
from ...models.arguments.names import feature_names_of
from ...models.arguments.validation import sizes_of
from ...models.pipelines import FittedModel, model_and_input
from ...readers.open import as_counts
from ..design.loadings import SampleTopics, topics_of_samples
from ..job import JobOptions, job_options
from ..quantiles import normal_tail
from ..replicates.refit_result import BootstrapFit
from ..results.origin import Origin
from .differential_result import DifferentialFeatures
from .differential_run import run_regressions
from .differential_split import fitted_to_part
from .differential_tests import (
    LEAST_EXTREME,
    Prior,
    Reference,
    ReferenceName,
    Tests,
    bootstrap_errors,
)
from .shrinkage import shrink

Array = NDArray[Any]
Family: TypeAlias = Literal["poisson", "quasi-poisson"]
# Relative difference of totals of samples that is no rounding.
_OTHER = 1e-6
# z below which a standard error of the log ratio is that of the curvature, not the one of z.
_SMALL_Z = 0.1
_LOG_2 = 0.6931471805599453


@job_options
def differential_features(
    model: FittedModel | ArrayLike,
    X: CountsLike,
    *,
    reference: ReferenceName | Topics = LEAST_EXTREME,
    pseudocount: float = 1.0,
    family: Family = "poisson",
    bootstrap: BootstrapFit | None = None,
    split: float | None = None,
    size_factors: ArrayLike | None = None,
    topic_names: ArrayLike | None = None,
    memory_limit: int | float | str | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[JobOptions],
) -> DifferentialFeatures:
    """Find the features that make each topic, with log2-fold changes and tests.

    Grade-of-membership differential expression [1]_: counts of a feature are
    ``x_ij ~ Poisson(sum_k s_i l_ik f_jk)`` with held proportions l of the topics and sizes s of the
    samples. Frequencies f are estimated feature by feature, and compared between topics. Samples
    need not belong to one topic each, as clusters would require.

    The counts are used twice if the topics were fitted to the same counts: topics are what explains
    these counts best, so that features differ between topics more than in new counts, and p is too
    small. Read z as a ranking, or use `split`. Samples of one patient or document source also
    resemble each other, which a Poisson model ignores: see `bootstrap`.

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
    family : {"poisson", "quasi-poisson"}, default="poisson"
        "quasi-poisson" divides z by the square root of the dispersion of the feature, if that is
        above 1.
    bootstrap : BootstrapFit, optional
        Result of :func:`bootstrap_fit` for this model and all of its features. It gives standard
        errors that include the uncertainty of the loadings and, with `units=` there, the variance
        between units. They are reported beside those of the curvature. p, q and lfsr then come from
        z divided by the ratio of the two standard errors, if that is above 1, as in [2]_.
    split : float, optional
        Share of the counts for another fit, such as 0.5; features are tested in the other counts.
        Each count is split at random (binomial thinning), so that parts of Poisson counts are
        independent, and p is valid. The fit starts from the factors of the model, so that topics
        keep their order. For a :class:`PoissonNMF` or :class:`TopicModel` and the counts of its
        fit.
    size_factors : array-like of shape (n_samples,), optional
        Sizes s of the samples; by default their total counts in `X`.
    topic_names : sequence of str, optional
        Names of topics; by default those of the model, the columns of a DataFrame, or numbers.
    memory_limit : int, float or str, optional
        As in :class:`nmfscale.PoissonNMF`. With a limit, files are read in pieces.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`. The seed is that of the split. Panels of features are the
        tasks of a cluster, and finished features are saved. Results are the same to the bit
        everywhere.

    Returns
    -------
    DifferentialFeatures
        Arrays (n_components, n_features) of log2-fold changes, z, p and further numbers; tables by
        ``to_frame()`` and ``rank_genes_groups()``. After Ctrl-C, it has the features that were
        finished.

    Raises
    ------
    ValueError
        If an argument is not valid, or samples of `X` are not those of the model.
    MemoryLimitError, CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Warns
    -----
    UserWarning
        If Ctrl-C ended the work, some samples have counts but no topics, or minima of some features
        were not found.

    Notes
    -----
    With u the column sums of ``s_i l_ik`` and f0 the mean frequency of a feature, its frequencies
    minimise ``sum_k (u_k + a / f0) f_k - sum_i x_i log(sum_k s_i l_ik f_k) - a sum_k log f_k``. The
    z-score is the signed root of the likelihood ratio of equality with the reference: standard
    errors on the log scale would fail for the best markers, whose other frequencies are almost 0.
    The p-value of
    "least-extreme" is the largest of the comparisons with all other topics (intersection-union
    test), so that it needs no correction for the choice; q is Benjamini and Hochberg's over the
    features of a topic. Both minima of a likelihood ratio have at most 0.02 pseudo-counts, because
    pseudo-counts favour equality: with 1, tests of two topics at 5% rejected in only 2% of the
    features with 20 to 100 counts and without differences. With 0.02 they reject in 5%, at any
    number of counts above 20 (``benchmarks/differential.py``).

    Shrunken log-fold changes and local false sign rates (lfsr) are those of a normal mixture [3]_
    with ``|lfc / z|`` as standard error. The dispersion is
    ``sum_i (x_i - mu_i)^2 / sum_i mu_i n / (n - K)``: 1 for Poisson counts.

    References
    ----------
    .. [1] Carbonetto et al. (2023). GoM DE: interpreting structure in sequence count data with
       differential expression analysis allowing for grades of membership. Genome Biology.
    .. [2] Rao, Scott (1984). On chi-squared tests for multiway contingency tables with cell
       proportions estimated from survey data. Annals of Statistics.
    .. [3] Stephens (2017). False discovery rates: a new deal. Biostatistics.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import TopicModel, differential_features
    >>> rng = np.random.default_rng(0)
    >>> frequencies = np.full((2, 30), 10.0)
    >>> frequencies[0, 4], frequencies[1, 7] = 80, 60  # each topic has one leading feature
    >>> X = rng.poisson(rng.dirichlet([0.3, 0.3], 80) @ frequencies)
    >>> model = TopicModel(n_components=2, random_state=0).fit(X)
    >>> found = differential_features(model, X)
    >>> found.to_frame().groupby("topic").head(1)[["topic", "feature", "lfc"]].round(1)
        topic  feature  lfc
    0       0        4  6.8
    30      1        7  6.6
    """
    pseudocount = _checked_pseudocount(pseudocount)
    check_option("family", family, Family)
    job["client"] = resolve_client(job["client"])
    model, X = model_and_input(model, X)
    counts = as_counts(
        X, integer="allow", subject="X", layer=layer, raw=raw,
        in_memory=memory_limit is None and job["client"] is None, memory_limit=memory_limit,
    )  # fmt: skip
    if split is not None:
        model, counts = fitted_to_part(model, X, counts, split, job)
    topics = topics_of_samples(model, "proportions", topic_names, warn=False)
    K = topics.rows.shape[1]
    if K < 2:
        raise ValueError(f"there is {K} topic: features are compared between at least two.")
    compared = Reference.of(reference, topics.topic_names)
    proportions = _in_order_of(counts, topics, model)
    sizes = _sizes(size_factors, counts, proportions)
    replicates = None
    if bootstrap is not None:
        replicates = _checked_replicates(bootstrap, counts, K)
    threads = resolve_threads(job["n_threads"], counts.nnz * K)
    needs = regression_needs(counts, K, threads)
    check_columns(counts, needs, memory_limit, n_threads=threads)
    with single_blas_thread():
        design = FeatureDesign.of(proportions, sizes)
        weights = compared.weights(design.totals)
        step = RegressFeatures.of(counts, design, pseudocount, weights)
        arrays, done = run_regressions(counts, step, design, needs, job)
        features = np.flatnonzero(done)
        totals = np.asarray(counts.column_totals, np.float64)[features]
        regressions = Regressions.of(
            arrays["regressions"][features], arrays["squares"][features], totals, design,
            int(np.count_nonzero(sizes)),
        )  # fmt: skip
        if regressions.unsolved.any():
            warn_caller(
                f"likelihood ratios of {int(regressions.unsolved.sum()):,} features are not "
                "exact: their "
                f"minima were not found, the first that of feature {_first(features, regressions)}."
            )
        tests = Tests.of(regressions, compared, design, weights, family, totals)
        errors = None
        if replicates is not None:
            prior = Prior(pseudocount, design.totals, totals / design.totals.sum())
            errors = bootstrap_errors(
                replicates[:, :, features], regressions, compared, weights, prior
            )
        return _result(
            regressions, tests, errors, compared, topics, counts, feature_names_of(model, counts),
            features, pseudocount, family, None if bootstrap is None else bootstrap.units, split,
        )  # fmt: skip


def _first(features: Array, regressions: Regressions) -> int:
    return int(features[np.flatnonzero(regressions.unsolved)[0]])


# Arguments -----------------------------------------------------------------------------------


def _checked_pseudocount(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if isinstance(value, bool) or not 0 < number < np.inf:
        raise ValueError(f"pseudocount={shown(value)}: a positive number is needed.")
    return number


def _in_order_of(counts: CountMatrix, topics: SampleTopics, model: Any) -> Array:
    """Return the proportions (n, K) of the samples of the counts."""
    rows, of_fit = topics.rows, topics.totals
    names = names_of(model) if topics.sample_names is None else topics.sample_names
    if names is not None and counts.sample_names is not None:
        places = places_of(names, counts.sample_names, "model")
        if places is not None:
            rows, of_fit = rows[places], None if of_fit is None else of_fit[places]
    if len(rows) != counts.shape[0]:
        raise ValueError(
            f"X has {counts.shape[0]:,} samples and the model {len(rows):,}: pass the counts of "
            "the same samples, in the same order where they have no names."
        )
    n_features = getattr(model, "n_features_in_", None)
    if of_fit is not None and n_features == counts.shape[1]:
        apart = np.abs(of_fit - counts.row_totals) > _OTHER * np.maximum(of_fit, 1)
        if apart.any():
            i = int(np.flatnonzero(apart)[0])
            raise ValueError(
                f"X is not what the model was fitted to: totals of {int(apart.sum()):,} samples "
                f"differ, the first that of sample {i}, {counts.row_totals[i]:g} in place of "
                f"{of_fit[i]:g}. Pass the same counts, in the same order where they have no names; "
                "for other counts of these samples, pass model.loadings_."
            )
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


def _sizes(sizes: Any, counts: CountMatrix, proportions: Array) -> Array:
    totals = np.asarray(counts.row_totals, np.float64)
    if not totals.any():
        raise ValueError("X has no counts.")
    totals_of_samples: Any = totals if sizes is None else sizes_of(sizes, counts)
    return np.where(proportions.any(axis=1), totals_of_samples, 0.0)


def _checked_replicates(replicates: Any, counts: CountMatrix, n_topics: int) -> Array:
    """Return the frequencies of all features of the counts in the replicates, (R, K, m)."""
    if not isinstance(replicates, BootstrapFit):
        raise ValueError(
            f"bootstrap is a {type(replicates).__name__}: what bootstrap_fit returns is needed."
        )
    values = replicates.components.replicates
    if values.shape[1] != n_topics:
        raise ValueError(f"bootstrap has {values.shape[1]} topics, and the model {n_topics}.")
    names = (
        None
        if replicates.feature_names is None
        else np.asarray(replicates.feature_names)[replicates.features]
    )
    if names is not None and counts.feature_names is not None:
        places = places_of(names, counts.feature_names, "bootstrap", of="features")
        return values if places is None else values[:, :, places]
    if values.shape[2] != counts.shape[1]:
        raise ValueError(
            f"bootstrap has {values.shape[2]:,} features, and X {counts.shape[1]:,}: run "
            "bootstrap_fit with features=None, for all features."
        )
    return values


# Result ---------------------------------------------------------------------------------------


def _result(
    regressions: Regressions, tests: Tests, bootstrap_error: Array | None, compared: Reference,
    topics: SampleTopics, counts: CountMatrix, names: Array | None, features: Array,
    pseudocount: float, family: str, units: str | None, split: float | None,
) -> DifferentialFeatures:  # fmt: skip
    """Return the result: p, q and shrunken changes of the tests."""
    z, least = tests.z, tests.least
    if bootstrap_error is not None:
        # the design effect, as for surveys: at least 1
        effect = np.where(tests.errors > 0, bootstrap_error / np.maximum(tests.errors, 1e-300), 1.0)
        effect = np.maximum(effect, 1.0)
        z, least = z / effect, least / effect**2
    p = np.minimum(2 * normal_tail(np.sqrt(least)), 1.0)
    lfc, tested = tests.log_ratios / _LOG_2, tests.errors.any(axis=1)
    q, lfsr, shrunken = np.ones_like(p), np.ones_like(p), np.zeros_like(p)
    for k in range(p.shape[1]):
        if k in compared.own or not tested.any():
            continue
        q[tested, k] = false_discovery_control(p[tested, k])
        errors = np.where(
            np.abs(z[:, k]) > _SMALL_Z, np.abs(lfc[:, k]) / np.maximum(np.abs(z[:, k]), _SMALL_Z),
            tests.errors[:, k] / _LOG_2,
        )  # fmt: skip
        found_here = shrink(lfc[tested, k], errors[tested])
        lfsr[tested, k], shrunken[tested, k] = found_here.lfsr, found_here.means
    least_extreme = regressions.others if compared.kind == LEAST_EXTREME else None
    return DifferentialFeatures(
        lfc.T, (tests.errors / _LOG_2).T, tests.z.T, p.T, q.T, lfsr.T, shrunken.T,
        regressions.frequencies.T, None if least_extreme is None else least_extreme.T,
        counts.column_totals[features] / counts.shape[0], regressions.dispersion,
        None if bootstrap_error is None else (bootstrap_error / _LOG_2).T, features,
        None if names is None else names[features],
        topics.topic_names, compared.label, compared.own, pseudocount, family, counts.shape[1],
        units, None if split is None else float(split), Origin.of(topics.words),
    )  # fmt: skip
