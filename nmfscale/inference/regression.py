"""Regression of topic proportions on covariates: bootstrap intervals, and tests of each term.

Least squares, as in `estimateEffect` of the R package stm. Uncertainty comes from units alone: they
are drawn again for intervals, and the test of a term permutes the residuals of the model without it
among units (Freedman and Lane 1983).
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control

from ..counts.names import names_of, shown
from ..counts.warn import warn_caller
from .bootstrap import warn_of_few_units
from .coefficients import ProportionRegression
from .covariates import DesignMatrix, design_matrix
from .effects import bootstrap_part
from .groups import (
    Design,
    Labels,
    checked_design,
    log10_labellings,
    n_labellings,
    smallest_pvalue,
    warn_few_labellings,
)
from .intervals import acceleration_of, check_interval, interval_ends
from .least_squares import CoefficientsTask, FreedmanLane, LeastSquares
from .loadings import amounts_of_topics, checked_loadings, proportions
from .replicates import check_positive, run_replicates

Array = NDArray[Any]
# How often intervals of differences between two groups held the truth in simulations.
_COVERED = "76% of the cases with 3 a group, 90% with 10, 92% with 20 to 40, 94% with 100"


def regress_proportions(
    loadings: Any,
    covariates: Any,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    names: Any = None,
    intercept: bool = True,
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
) -> ProportionRegression:
    """Regress the proportion of each topic on covariates, by least squares.

    First ask what was drawn: documents are rarely the unit. Where samples come in clusters (beers
    of a brewery, posts of a blog, cells of a patient), pass these as `units=`. Samples of a unit
    resemble each other; taken for units, they give intervals that are too narrow and p-values that
    are too small.

    Where covariates are the same in all samples of each unit, the proportions of units are
    regressed, each unit counting once; they are those of :func:`group_effects`, whose differences
    the coefficients of a single label are. Where a covariate differs within units, the proportions
    of samples are regressed. Whole units are drawn again in both cases.

    Parameters
    ----------
    loadings : fitted model, or array-like of shape (n_samples, n_topics)
        A model's topic proportions, or non-negative amounts of topics, which are divided by their
        sum in each unit or sample. Columns of a DataFrame name the topics.
    covariates : DataFrame, dict of columns, or array-like of shape (n_samples, n_terms)
        Numbers and booleans stay. Texts and categories become indicators of their levels but for
        the first, named ``region[T.West]``: the first in sorted order, or of a pandas Categorical
        in its own. A matrix of patsy or formulaic is taken with its names, with intercept=False.
        Rows are matched with samples by name, where both sides have names.
    units, strata : array-like of shape (n_samples,), optional
        As in :func:`permutation_test`; a unit may have several values of a covariate. Units are
        drawn and permuted within strata. Strata are not in the model: where proportions differ
        between them, make them a covariate, too.
    names : sequence of str, default=None
        Names of the columns of an array.
    intercept : bool, default=True
        Add a constant term, ``Intercept``.
    n_replicates : int, default=1000
        Bootstrap replicates, for standard errors and intervals.
    n_permutations : int, default=9999
        Random permutations, for the p-values; where all of them are no more, each is taken once.
        With 0 nothing is tested.
    level, interval, topic_names, random_state, n_threads, client, verbose
        As in :func:`group_effects`.
    checkpoint, resume
        A folder for what is done, and whether to go on from it.

    Returns
    -------
    ProportionRegression
        Coefficients with intervals and p-values (T, P).

    Raises
    ------
    ValueError
        If an argument is not valid, a value is missing, terms are constant or collinear or no fewer
        than units, levels are in too few units, a covariate differs within units that are to be
        permuted, or no term can be tested.

    Warns
    -----
    UserWarning
        If units without any topic are left out, a term stands on fewer than 50 units, units are so
        few that no coefficient can be found to differ from 0, or replicates lack a level.

    Notes
    -----
    The test of a term takes residuals of the model without it, permutes them among units within
    strata, and compares the absolute t-value of the term with those of the data so made [1]_. With
    no other term but the intercept units are permuted, and the test is exact; else it is close
    [2]_. Of all levels of one label together :func:`group_effects` tells.

    Coefficients are shares: 0.1 means that the topic has a tenth of the whole more for one unit of
    the covariate. Those of a term add up to 0 over topics, those of the intercept to 1.

    References
    ----------
    .. [1] Freedman, Lane (1983). A nonstochastic interpretation of reported significance levels.
       J. Business and Economic Statistics.
    .. [2] Winkler et al. (2014). Permutation inference for the general linear model. NeuroImage.

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
    >>> found
    <ProportionRegression: 3 topics x 3 terms, 120 units, 3 of 6 coefficients with q <= 0.05>
    >>> found.to_frame("region[T.west]").round(2)[["topic", "coefficient", "lower", "upper"]]
       topic  coefficient  lower  upper
    0      2         0.17   0.10   0.25
    1      0        -0.09  -0.16  -0.02
    2      1        -0.08  -0.16  -0.01
    """
    check_interval(level, interval)
    check_positive("n_replicates", n_replicates)
    if n_permutations != 0:
        check_positive("n_permutations", n_permutations)
    _, topics = checked_loadings(loadings, topic_names)
    amounts = amounts_of_topics(loadings)
    sample_names = names_of(loadings)
    if sample_names is None:  # RangeIndex counts as no names
        _refuse_other_order(loadings, covariates)
    matrix = design_matrix(covariates, len(amounts), names, intercept, sample_names)
    one = Labels(np.zeros(len(amounts), np.int64), (None,))
    design = checked_design(one, units, strata, nested=False, sample_names=sample_names)
    rows = Rows.of(amounts, matrix, design, permuted=n_permutations > 0)
    drawn = "samples" if units is None else "units"
    _check_levels(matrix, design, drawn)
    fit = LeastSquares.of(rows.X, rows.Y)
    test = _Test(rows, fit, n_permutations, level, drawn) if n_permutations else None
    options = {"n_threads": n_threads, "client": client, "resume": resume, "verbose": verbose}
    job = bootstrap_part(
        CoefficientsTask(fit, rows.unit, rows.strata), n_replicates, random_state, checkpoint,
        options,
    )  # fmt: skip
    kept = job["coefficients"][~job["singular"]]
    _warn_of_failures(len(job), len(kept))
    coefficients = np.ascontiguousarray(fit.coefficients.T)
    ends = interval_ends(
        interval, kept, coefficients, level, lambda: acceleration_of(*rows.moments(fit))
    )
    place = None if checkpoint is None else Path(checkpoint, "permutations")
    p = q = None
    if test is not None:
        p, q = test.run(random_state=job.seed, checkpoint=place, **options)
    return ProportionRegression(
        coefficients, *ends, p, q, topics, matrix.terms, int(rows.strata[-1]), drawn, rows.what,
        kept, len(job) - len(kept), level, interval, job.seed.entropy,
        **(_UNTESTED if test is None else test.about()),
    )  # fmt: skip


_UNTESTED = {"n_labellings": 0, "exact": False, "smallest_pvalue": 1.0, "interrupted": False}


@dataclass(frozen=True)
class Rows:
    """What is regressed: Y (n, T) on X (n, P), rows of units or of their samples.

    `unit` (n,) is the unit of each row; units stand stratum after stratum, from `strata`, and where
    rows are units, they stand in that order.
    """

    X: Array
    Y: Array
    unit: Array
    strata: Array
    what: str

    @classmethod
    def of(cls, amounts: Array, matrix: DesignMatrix, design: Design, permuted: bool) -> Rows:
        """Take samples, or units where these have one value of each covariate."""
        X, unit, what = matrix.values, design.of_sample, "samples"
        _, first = np.unique(unit, return_index=True)
        differs = X != X[first[unit]]
        if design.unit_names is not None and not differs.any():
            amounts, X, what = design.sum_over_units(amounts), X[first], "units"
            unit = np.arange(design.n_units)
        elif permuted and differs.any():
            _refuse_permuting(matrix, design, differs, first)
        kept = amounts.sum(axis=1) > 0
        if not kept.all():
            warn_caller(f"{int((~kept).sum()):,} {what} are left out: their loadings are all 0.")
        matrix = DesignMatrix(X, matrix.terms)
        matrix.check_rank(kept, what)
        left = np.unique(unit[kept])
        of_left = design.strata.codes[left]
        place = np.empty(design.n_units, np.int64)
        place[left[np.argsort(of_left, kind="stable")]] = np.arange(left.size)
        unit, sizes = place[unit[kept]], np.bincount(of_left)
        order = np.argsort(unit, kind="stable")
        return cls(
            X[kept][order], proportions(amounts[kept][order]), unit[order],
            np.concatenate([[0], np.cumsum(sizes[sizes > 0])]), what,
        )  # fmt: skip

    def kinds(self) -> tuple[Array, Array]:
        """Return units of each stratum with the same terms (n_strata, n_kinds), and one of each."""
        _, first, kind = np.unique(self.X, axis=0, return_index=True, return_inverse=True)
        sizes = np.zeros((len(self.strata) - 1, len(first)), np.int64)
        stratum = np.repeat(np.arange(len(sizes)), np.diff(self.strata))
        np.add.at(sizes, (stratum, kind.reshape(-1)), 1)
        return sizes, first

    def moments(self, fit: LeastSquares) -> Array:
        """Return second and third moments (2, T, P) of what a unit adds to coefficients."""
        out = np.zeros((2, self.Y.shape[1], self.X.shape[1]))
        for j in range(self.X.shape[1]):
            of_units = np.zeros((self.strata[-1], self.Y.shape[1]))
            np.add.at(of_units, self.unit, fit.influences(j))
            for first, last in zip(self.strata[:-1], self.strata[1:], strict=True):
                of_units[first:last] -= of_units[first:last].mean(axis=0)
            out[0, :, j], out[1, :, j] = (of_units**2).sum(axis=0), (of_units**3).sum(axis=0)
        return out


class _Test:
    """The tests of terms: checked first, run when the bootstrap is done."""

    def __init__(self, rows: Rows, fit: LeastSquares, n: int, level: float, drawn: str):
        tested = fit.tested()
        if not tested.any():
            raise ValueError(
                "no term can be tested, as none leaves a constant in the model: pass "
                "intercept=True, or n_permutations=0 for coefficients without p-values."
            )
        self.n, self.sizes, self.first = n, *rows.kinds()
        if log10_labellings(self.sizes) == 0:
            raise ValueError(
                f"no {drawn} can be permuted: those of each stratum have the same covariates. Pass "
                "coarser strata, or n_permutations=0."
            )
        self.task = FreedmanLane(fit, np.diff(rows.strata), np.flatnonzero(tested))
        self.exact = log10_labellings(self.sizes) < 15 and n_labellings(self.sizes) <= n
        self.smallest = smallest_pvalue(self.sizes, symmetric=self.sizes.shape[1] == 2)
        warn_few_labellings([self.smallest], 1 - level, ["a coefficient of 0"], drawn)
        self.interrupted = False

    def run(self, **options: Any) -> tuple[Array, Array]:
        """Return p-values and q-values (T, P), NaN where a term is not tested."""
        task = self.task
        if self.exact:
            self.n = n_labellings(self.sizes)
            p = task.all_as_extreme(self.sizes, self.first) / self.n
        else:
            job = run_replicates(task, self.n, **options)
            self.n, self.interrupted = len(job), job.interrupted
            p = (job["as_extreme"].sum(axis=0) + 1) / (self.n + 1)
        out = np.full((2, p.shape[1], len(task.fit.coefficients)), np.nan)
        out[0][:, task.tested] = p.T
        out[1][:, task.tested] = false_discovery_control(p.T, axis=0)
        return out[0], out[1]

    def about(self) -> dict[str, Any]:
        """Return what the result says of them."""
        smallest = self.smallest if self.exact else max(self.smallest, 1 / (self.n + 1))
        return {
            "n_labellings": self.n, "exact": self.exact, "smallest_pvalue": smallest,
            "interrupted": self.interrupted,
        }  # fmt: skip


def _check_levels(matrix: DesignMatrix, design: Design, drawn: str) -> None:
    """Warn of levels in few units, and refuse those that most replicates would lack.

    Of terms with two values the one in fewer units counts. Other terms stand on all units.
    """
    stratum, found = design.strata.codes, {}
    size, kept = design.strata.sizes, 1.0
    for name, column in [
        *zip(matrix.terms, matrix.values.T, strict=True),
        *matrix.references.items(),
    ]:
        values = np.unique(column)
        if values.size > 2:
            found[name] = design.n_units
        for value in values[: 2 * (values.size == 2)]:
            has = np.zeros(design.n_units, bool)
            has[design.of_sample[column == value]] = True
            found[name] = min(found.get(name, design.n_units), int(has.sum()))
            n_having = np.bincount(stratum[has], minlength=size.size)
            kept *= float(1 - np.prod((1 - n_having / size) ** size))
    names, n_units = tuple(found), np.array(list(found.values()), np.int64)
    if kept < 0.5:
        least = int(n_units.argmin())
        raise ValueError(
            f"levels are in so few {drawn}, the fewest {shown(names[least])} with "
            f"{n_units[least]}, that {1 - kept:.0%} of the replicates would not determine the "
            "coefficients: join levels, or leave covariates out."
        )
    warn_of_few_units(n_units, names, drawn, _COVERED, "terms and references")


def _refuse_permuting(matrix: DesignMatrix, design: Design, differs: Array, first: Array) -> None:
    """Refuse to permute whole units that have several values of a covariate."""
    i, j = map(int, np.argwhere(differs)[0])
    unit = design.of_sample[i]
    assert design.unit_names is not None
    values = matrix.values[first[unit], j], matrix.values[i, j]
    raise ValueError(
        f"term {shown(matrix.terms[j])} is {values[0]:g} and {values[1]:g} within unit "
        f"{shown(design.unit_names[unit])}, so that whole units cannot be permuted: pass "
        "n_permutations=0 for intervals without p-values, strata= in place of units= to compare "
        "samples within units, or finer units."
    )


def _refuse_other_order(loadings: Any, covariates: Any) -> None:
    """Refuse tables whose rows have the same default numbers of pandas in another order."""
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
