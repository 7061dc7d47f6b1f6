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
from .comparison import refuse_replicates
from .covariates import INTERCEPT, DesignMatrix, design_matrix
from .effects import bootstrap_part, job_seed
from .least_squares import CoefficientsTask, LeastSquares
from .levels import check_levels, levels_of, warn_of_levels
from .moderation import Moderation, shares_of
from .regression_result import ProportionRegression, adjusted_by_term, t_tests
from .regression_rows import Rows, are_crossed
from .robust import CR3, HC3, factors_of_units, spread_of_groups
from .term_tests import TermTests

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
    trend: Sequence[Any] = (),
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

    What is regressed depends on where covariates differ:

    - Covariates are the same in all samples of each unit: the proportions of units are regressed.
      The coefficients of a single label are the differences of :func:`group_effects`.
    - Covariates are labels (or have two values) that differ within units, such as visits of a
      patient: the proportions of units at each level are compared within units, whose effects are
      in the model. Complete pairs are compared as by the paired t-test.
    - In other cases, for numbers that differ within units, or labels that do beside covariates of
      units, the proportions of samples are regressed, with standard errors clustered by unit.
      Differences between units have a part in the coefficients, unless units are passed as
      `strata`, too.

    In all cases each unit counts once, unless ``equal_weights="samples"``.

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
        As in :func:`permutation_test`; a unit may have several values of a covariate. Effects of
        strata are in the model, as those of a covariate with a level for each stratum are, but are
        not reported: coefficients, intervals and all tests compare units of the same stratum, and
        there is no intercept. A covariate that is the same in all units of each stratum is refused.
    equal_weights : {"units", "samples"}, default="units"
        Whether each unit counts once, or each sample. Without `units` both are the same.
    moderated : bool, default=True
        As in :func:`group_effects`. Permutations compare statistics without moderation.
    names : sequence of str, default=None
        Names of the columns of an array.
    intercept : bool, default=True
        Add a constant term, ``Intercept``. Comparisons within strata or units have none.
    trend : sequence of str, default=()
        Names of labels in an order that become one number in place of indicators: 0, 1, 2 ... for
        the categories of an ordered pandas Categorical, or numbers themselves. The term,
        ``dose[trend]``, is the change from one level to the next.
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
        that belong to them, only those of permutations. They are not for comparisons within strata
        or units.
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
        If an argument is not valid, a value is missing, terms are constant or collinear, or do not
        vary within strata, there are not more units than terms and strata, no term can be tested, a
        single unit determines a coefficient, or levels are in too few units for bootstrap
        intervals.

    Warns
    -----
    UserWarning
        If samples without any topic are left out, a level is in few units, fewer than 10 units (of
        a level, and less than half) have a topic, a topic varies more at one level than at another,
        levels, or low and high values of a covariate, differ in depth so much that proportions
        mislead, as in :func:`permutation_test`, units at one
        level cannot be compared with others, there are too few units for any permutation p-value to
        be small, or replicates lack a level.

    Notes
    -----
    The spread of proportions depends on their mean, so units may differ in spread: standard errors
    are HC3 [1]_, or CR3 for clusters [2]_. Their degrees of freedom are those of Satterthwaite, for
    clusters of equal spread, or for units of a spread that depends on their levels, if covariates
    are labels, and is pooled over topics. Within strata, influences of units are multiplied by
    ``sqrt(1 - w / W)`` for a unit of weight w in a stratum of weight W, as spread within a stratum
    does not involve its mean, and the sum of squares by ``(G - 1) / G`` for G units. Variances are
    moderated as those of :func:`group_effects`. Intervals and `pvalue` are those of one t-test with
    these.

    The test of a term by permutations permutes the residuals of the model without it among
    units within strata [3]_ and compares the squared coefficient over its robust variance with
    those of the permuted data: with pooled variances the test would react to spread [4]_. If the
    intercept, or strata, are all else in the model, units are permuted, and the test is exact where
    units are exchangeable. All levels of a label together are tested by the statistic of Brown and
    Forsythe (``to_frame("covariates")``). If covariates differ within units, or units count by
    their samples, signs of the residuals of whole units are flipped instead (wild cluster bootstrap
    [5]_).

    In simulations at the 5% level (``benchmarks/calibration.py``) permutation tests of a numeric
    covariate without effect rejected in 3% to 6% of the cases, and tests of a label in 4% to 7%,
    but in up to 10% if one group had a far larger spread than the other, and in up to 8% with sign
    flips of few clusters. `pvalue` (``benchmarks/designs.py``) was at most 0.05 in 1% to 5% of the
    topics with 8 units or more in all, half of them at each of two levels, in 4% to 6% within
    strata, or within 6 to 20 donors, and in 10% if 8 units varied far more than 40 others (Welch's
    t-test: 12%); a warning is given.

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
    matrix = design_matrix(covariates, len(topics), names, intercept, sample_names, trend)
    one = Labels(np.zeros(len(topics), np.int64), (None,))
    design = checked_design(one, units, strata, nested=False, sample_names=sample_names)
    in_strata = None if strata is None else next(levels_of(matrix, matrix.values, True), None)
    warn_of_samples_as_units(design, in_strata)
    within = "strata" if len(design.strata.names) > 1 else ""
    if are_crossed(matrix, design, ~topics.empty):
        within = "units"
    if within:
        matrix = matrix.varying()
        refuse_replicates(interval, within)
    rows = Rows.of(topics, matrix, design, equal_weights, within)
    drawn = "samples" if units is None else "units"
    check_levels(matrix, design, drawn, interval)
    warn_of_levels(topics, rows, matrix, design, drawn)
    errors = errors_of(rows, matrix)
    fit, eye = errors.fit, np.eye(len(matrix.terms))
    moderation = moderation_of(rows, errors, matrix.terms) if moderated else None
    test = TermTests(rows, errors, matrix, n_permutations, level, drawn) if n_permutations else None
    coefficients, n_failures = np.ascontiguousarray(fit.coefficients.T), 0
    pvalue: Array | None
    lower, upper, _, pvalue = t_tests(errors, moderation, coefficients, eye, level)
    replicates = None
    job["random_state"] = seed = job_seed(job)
    if interval != "t":
        task = CoefficientsTask(fit, rows.unit, rows.strata)
        drawn_fits = bootstrap_part(task, n_replicates, job)
        replicates, pvalue = drawn_fits["coefficients"][~drawn_fits["singular"]], None
        n_failures = len(drawn_fits) - len(replicates)
        _warn_of_failures(len(drawn_fits), len(replicates))
        lower, upper = interval_ends(
            interval, replicates, coefficients, level, lambda: errors.acceleration(eye)
        )
    tests: dict[str, Any] = {"untested": dict.fromkeys(matrix.terms, "n_permutations is 0")}
    if test is not None:
        tests = test.run(**part_of_job(job, "permutations"))
    return ProportionRegression(
        coefficients, lower, upper, topics.topic_names, matrix.terms, rows.n_units, drawn,
        rows.what, equal_weights, errors, moderation, replicates, n_failures, level, interval,
        seed.entropy, pvalue, adjusted_by_term(pvalue), compared_within=within,
        origin=Origin.of(topics.words, units=units, strata=strata), **tests,
    )  # fmt: skip


def errors_of(rows: Rows, matrix: DesignMatrix) -> HC3 | CR3:
    """Return the errors of coefficients, for independent rows or clusters of rows.

    Levels of `matrix` may differ in spread.
    """
    how = rows.X, rows.Y, rows.weights, rows.blocks
    if rows.are_exchangeable or (rows.are_units and rows.blocks is None):
        fit, levels = LeastSquares.of(*how), rows.X[:, matrix.levels()]
        group = np.unique(levels, axis=0, return_inverse=True)[1].reshape(-1)
        return HC3(fit, spread_of_groups(group, fit.residuals, 1 - fit.leverage))
    several = None
    if rows.blocks is not None:  # a unit that is a block by itself is left out with it
        pairs = np.unique(np.stack([rows.blocks, rows.unit]), axis=1)
        several = np.bincount(pairs[0]) > 1
    fit = LeastSquares.of(*how, in_basis=several)
    factors = factors_of_units(fit, rows.unit, rows.blocks, rows.weights)
    errors = CR3(fit, rows.unit, factors, rows.unit_names)
    errors.check()
    return errors


def moderation_of(rows: Rows, errors: HC3 | CR3, terms: tuple[Any, ...]) -> Moderation:
    """Estimate the moderation from the total variance of all terms but the constant.

    It is that of an orthonormal basis, which does not depend on how terms are coded.
    """
    slopes = [j for j, name in enumerate(terms) if name != INTERCEPT] or [0]
    variances, freedom = errors.total(errors.fit.directions(slopes))
    return Moderation.of(variances, freedom, shares_of(rows.Y, rows.weights))


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
