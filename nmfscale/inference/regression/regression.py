"""Regression of topic proportions on covariates, with robust intervals and tests of each term.

Least squares, as in `estimateEffect` of the R package stm. Units are the only source of
uncertainty, and their spread may differ: standard errors are HC3, or CR3 if units have several
rows. Intervals and p-values divide coefficients by these, and compare with Student's t. Beside them
stand p-values of permutations of the same ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import check_option
from ...counts.warn import warn_caller
from ...models.pipelines import FittedModel, refuse_swapped
from ..design.equal_weights import EqualWeights
from ..design.groups import Labels, checked_design, warn_of_samples_as_units
from ..design.loadings import Scale, TopicSums, topics_of_samples
from ..intervals import RobustInterval, check_interval, interval_ends
from ..job import JobOptions, job_options, part_of_job
from ..replicates.replicates import check_positive
from ..results.origin import Origin
from .covariates import design_matrix
from .effects import bootstrap_part, job_seed
from .least_squares import CoefficientsTask, LeastSquares
from .levels import check_levels, levels_of, warn_of_levels
from .moderation import shares_of
from .regression_result import ProportionRegression, adjusted_by_term, t_tests
from .regression_rows import Rows
from .robust import CR3, HC3
from .term_tests import TermTests, same_in_strata, warn_of_same_in_strata

Array = NDArray[Any]


@job_options
def regress_proportions(
    model: FittedModel | ArrayLike,
    covariates: ArrayLike | Mapping[str, ArrayLike],
    *,
    scale: Scale = "proportions",
    units: ArrayLike | None = None,
    equal_weights: EqualWeights = "units",
    moderated: bool = True,
    strata: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    intercept: bool = True,
    n_replicates: int = 1000,
    n_permutations: int = 9999,
    level: float = 0.95,
    interval: RobustInterval = "t",
    topic_names: ArrayLike | None = None,
    topic_sums: TopicSums | None = None,
    **job: Unpack[JobOptions],
) -> ProportionRegression:
    """Regress the proportion of each topic on covariates, by least squares.

    First identify the sampling unit: documents are rarely the unit. If samples come in clusters
    (beers of a brewery, posts of a blog, cells of a patient), pass these as `units=`. Samples of a
    unit resemble each other; if they are treated as units, intervals are too narrow and p-values
    too small.

    If covariates are the same in all samples of each unit, the proportions of units are regressed;
    the coefficients of a single label are then the differences of :func:`group_effects`. If a
    covariate differs within units, the proportions of samples are regressed, with standard errors
    clustered by unit. In both cases each unit counts once, unless ``equal_weights="samples"``.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, n_components)
        A model, or non-negative amounts of topics. Columns of a DataFrame name the topics.
    covariates : DataFrame, dict of columns, or array-like of shape (n_samples, n_terms)
        Numbers and booleans are used as they are. Texts and categories become indicators of all
        levels but the first, named ``region[T.West]``; the first level is the first in sorted
        order, or in the order of a pandas Categorical. A matrix of patsy or formulaic keeps its
        column names; pass it with intercept=False. Rows are matched with samples by name if both
        have names.
    scale : {"proportions", "amounts"}, default="proportions"
        As in :func:`group_effects`.
    units, strata : array-like of shape (n_samples,), optional
        As in :func:`permutation_test`; a unit may have several values of a covariate. Units are
        drawn and permuted within strata. Strata are not in the model: if proportions differ between
        them, make them a covariate, too. A covariate that is the same in all units of each stratum
        has no p-value.
    equal_weights : {"units", "samples"}, default="units"
        Whether each unit counts once, or each sample. Without `units` both are the same.
    moderated : bool, default=True
        As in :func:`group_effects`; with False standard errors are HC3, without moderation.
    names : sequence of str, default=None
        Names of the columns of an array.
    intercept : bool, default=True
        Add a constant term, ``Intercept``.
    n_replicates : int, default=1000
        Bootstrap replicates, for intervals of the kinds "percentile" and "bca".
    n_permutations : int, default=9999
        Number of random permutations for `pvalue_permutation` and `pvalue_maxt`. If there are no
        more than this many permutations in all, each is taken once. With 0 there are none.
    level : float, default=0.95
        Nominal coverage of the intervals.
    interval : {"t", "percentile", "bca"}, default="t"
        "t": coefficients plus and minus robust standard errors times a quantile of Student's t; the
        others: from bootstrap replicates, as in :func:`bootstrap_weights`; there are no p-values
        that belong to them, only those of permutations.
    topic_names
        As in :func:`group_effects`.
    topic_sums : dict, default=None
        As in :func:`permutation_test`.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`, of replicates and of permutations.

    Returns
    -------
    ProportionRegression
        Coefficients with intervals and p-values (T, P).

    Raises
    ------
    ValueError
        If an argument is not valid, a value is missing, terms are constant or collinear, there are
        not more units than terms, no term can be tested, a single unit determines a coefficient, or
        levels are in too few units for bootstrap intervals.

    Warns
    -----
    UserWarning
        If samples without any topic are left out, a level is in few units, fewer than 10 units (of
        a level, and less than half) have a topic, a topic varies more at one level than at another,
        samples have few counts at low values of a covariate and more at high values, terms do not
        vary within strata, there are too few units for any permutation p-value to be small, or
        replicates lack a level.

    Notes
    -----
    The spread of proportions depends on their mean, so units may differ in spread: standard errors
    are HC3 [1]_, or CR3 for clusters [2]_, with degrees of freedom that would be right for equal
    spread (Satterthwaite). Intervals and `pvalue` are those of one t-test with these. The test of a
    term by permutations permutes the residuals of the model without it among
    units within strata [3]_ and compares the squared coefficient over its robust variance with
    those of the permuted data: with pooled variances the test would react to spread [4]_. If the
    intercept is the only other term, units are permuted, and the test is exact where units are
    exchangeable. All levels of a label together are tested by the statistic of Brown and Forsythe
    (``to_frame("covariates")``). If covariates differ within units, or units count by their
    samples, signs of the residuals of whole units are flipped instead (wild cluster bootstrap
    [5]_).

    In simulations at the 5% level (``benchmarks/calibration.py``) permutation tests of a numeric
    covariate without effect rejected in 3% to 6% of the cases, and tests of a label in 4% to 7%,
    but in up to 10% if one group had a far larger spread than the other, and in up to 8% with sign
    flips of few clusters. Coverage of 95% intervals was 95% or more, so that `pvalue` was at most
    0.05 in 5% or fewer: in 2% to 5% with 8 units or more in each of two groups, in 1% with 5.

    The time of tests grows with the square of the number of terms. For a single label of many
    levels, use :func:`group_effects`, or ``n_permutations=0``.

    Coefficients are differences of proportions: 0.1 means that the proportion of the topic
    increases by 0.1 for each unit of the covariate. Over topics, coefficients of a term add up to
    0, those of the intercept to 1.

    References
    ----------
    .. [1] MacKinnon, White (1985). Some heteroskedasticity-consistent covariance matrix estimators
       with improved finite sample properties. J. Econometrics.
    .. [2] Bell, McCaffrey (2002). Bias reduction in standard errors for linear regression with
       multi-stage samples. Survey Methodology.
    .. [3] Freedman, Lane (1983). A nonstochastic interpretation of reported significance levels.
       J. Business and Economic Statistics.
    .. [4] DiCiccio, Romano (2017). Robust permutation tests for correlation and regression
       coefficients. JASA.
    .. [5] Cameron, Gelbach, Miller (2008). Bootstrap-based improvements for inference with
       clustered errors. Review of Economics and Statistics.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import regress_proportions
    >>> rng = np.random.default_rng(0)
    >>> breweries = np.repeat(np.arange(120), 3)  # three beers each
    >>> covariates = {"region": np.array(["east", "west"])[breweries % 2], "age": breweries // 4}
    >>> loadings = rng.gamma(1.0, size=(120, 3))[breweries] + rng.gamma(0.2, size=(360, 3))
    >>> loadings[breweries % 2 == 1, 2] *= 2
    >>> found = regress_proportions(loadings, covariates, units=breweries, random_state=0)
    >>> found  # doctest: +NORMALIZE_WHITESPACE
    <ProportionRegression: 3 topics x 3 terms, 120 units, each unit counts once,
     t intervals, 3 of 6 coefficients with q <= 0.05; 9,999 permutations>
    >>> of_region = found.to_frame("region[T.west]").round(2)
    >>> of_region[["topic", "coefficient", "lower", "upper", "pvalue"]]
       topic  coefficient  lower  upper  pvalue
    0      2         0.17   0.09   0.24    0.00
    1      0        -0.09  -0.16  -0.02    0.02
    2      1        -0.08  -0.16  -0.00    0.04
    """
    check_interval(level, interval, RobustInterval)
    check_option("equal_weights", equal_weights, EqualWeights)
    check_positive("n_replicates", n_replicates)
    if n_permutations != 0:
        check_positive("n_permutations", n_permutations)
    refuse_swapped(model, covariates, "the covariates")
    topics = topics_of_samples(model, scale, topic_names, topic_sums=topic_sums, warn=False)
    sample_names = topics.sample_names
    if sample_names is None:  # as for the default index of pandas
        _refuse_other_order(model, covariates)
    matrix = design_matrix(covariates, len(topics), names, intercept, sample_names)
    one = Labels(np.zeros(len(topics), np.int64), (None,))
    design = checked_design(one, units, strata, nested=False, sample_names=sample_names)
    in_strata = None if strata is None else next(levels_of(matrix, matrix.values, True), None)
    warn_of_samples_as_units(design, in_strata)
    rows = Rows.of(topics, matrix, design, equal_weights)
    drawn = "samples" if units is None else "units"
    check_levels(matrix, design, drawn, interval)
    warn_of_levels(topics, rows, matrix, drawn)
    fit = LeastSquares.of(rows.X, rows.Y, rows.weights)
    errors = errors_of(rows, fit, moderated)
    test = TermTests(rows, errors, matrix, n_permutations, level, drawn) if n_permutations else None
    same = same_in_strata(rows, matrix.terms)
    if test is not None or interval == "t":
        warn_of_same_in_strata(rows, matrix.terms, same)
    coefficients, n_failures = np.ascontiguousarray(fit.coefficients.T), 0
    lower, upper, _, p = t_tests(errors, coefficients, np.eye(len(matrix.terms)), level)
    pvalue: Array | None = np.where(same, np.nan, p)
    replicates = None
    job["random_state"] = seed = job_seed(job)
    if interval != "t":
        task = CoefficientsTask(fit, rows.unit, rows.strata)
        drawn_fits = bootstrap_part(task, n_replicates, job)
        replicates, pvalue = drawn_fits["coefficients"][~drawn_fits["singular"]], None
        n_failures = len(drawn_fits) - len(replicates)
        _warn_of_failures(len(drawn_fits), len(replicates))
        lower, upper = interval_ends(
            interval, replicates, coefficients, level,
            lambda: errors.acceleration(np.eye(len(matrix.terms))),
        )  # fmt: skip
    tests: dict[str, Any] = {"untested": dict.fromkeys(matrix.terms, "n_permutations is 0")}
    if test is not None:
        tests = test.run(**part_of_job(job, "permutations"))
    return ProportionRegression(
        coefficients, lower, upper, topics.topic_names, matrix.terms, rows.n_units, drawn,
        rows.what, equal_weights, errors, replicates, n_failures, level, interval, seed.entropy,
        pvalue, adjusted_by_term(pvalue),
        origin=Origin.of(topics.words, units=units, strata=strata), **tests,
    )  # fmt: skip


def errors_of(rows: Rows, fit: LeastSquares, moderated: bool) -> HC3 | CR3:
    """Return the standard errors of coefficients, for independent rows or clusters of rows."""
    shares = shares_of(rows.Y, rows.weights) if moderated else None
    if rows.are_units:
        return HC3(fit, rows.strata, shares)
    errors = CR3(fit, rows.unit, rows.strata, rows.unit_names, shares)
    errors.check()
    return errors


def _refuse_other_order(loadings: Any, covariates: Any) -> None:
    """Refuse tables with the default index of pandas in a different order."""
    if hasattr(loadings, "iloc") and hasattr(covariates, "iloc"):
        one, other = loadings.index, covariates.index
        if not one.equals(other) and one.sort_values().equals(other.sort_values()):
            raise ValueError(
                "loadings and covariates have the same rows in another order: pass "
                "covariates.loc[loadings.index]."
            )


def _warn_of_failures(n: int, n_kept: int) -> None:
    if not n_kept:
        raise ValueError(
            f"none of {n} replicates determines the coefficients: levels are in too few units. "
            "Join levels, or leave covariates out."
        )
    if n_kept < n:
        warn_caller(
            f"{n - n_kept} of {n} replicates do not determine the coefficients, as a rare level "
            "was not drawn; they are left out of the intervals. Join levels that are rare."
        )
