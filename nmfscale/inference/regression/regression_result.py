"""The result of a regression of topic proportions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ...counts.names import name_array, shown
from ...models.tables import Columns, frame_of, tidy_columns
from ..design.equal_weights import counted_once
from ..intervals import percentile, spread
from ..results.files import Result
from ..results.origin import Origin
from .covariates import INTERCEPT
from .moderation import Moderation, moderated
from .one_way import pvalues, t_quantiles
from .robust import RobustErrors

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class ProportionRegression(Result):
    """Coefficients of T topics on P terms, with intervals and tests.

    Attributes
    ----------
    coefficients, lower, upper : ndarray of shape (T, P)
        Coefficients by least squares, and the ends of their intervals.
    std_error : ndarray of shape (T, P)
        Robust standard errors, HC3, or CR3 by units; with bootstrap intervals, those of the
        replicates.
    pvalue : ndarray of shape (T, P) or None
        p-value of the t-test that a coefficient is 0, with the error of its interval: at most
        1 - `level` if and only if the interval excludes 0. None with bootstrap intervals.
    qvalue : ndarray of shape (T, P) or None
        The same, adjusted for all topics of a term by Benjamini and Hochberg.
    pvalue_permutation, pvalue_maxt : ndarray of shape (T, P) or None
        p-value of each topic and term by permutations or sign flips, which needs no assumption on
        the form of distributions; and adjusted for all topics of a term by the maximum of the
        statistics, step down. They may differ from `pvalue`, and contradict intervals. NaN for the
        terms in `untested`. None with n_permutations=0.
    prior_freedom, degrees_of_freedom : float and ndarray of shape (T, P)
        Degrees of freedom that moderation adds to a variance, at most, as in
        :class:`~nmfscale.results.GroupEffects`; and those of standard errors.
    untested : dict
        Terms that permutations do not test, and the reason: the intercept; and terms without which
        the model has no constant.
    covariates : tuple
        Covariates of several terms, for example labels of several levels, that were tested as a
        whole.
    covariate_pvalue_permutation, covariate_pvalue_maxt : ndarray of shape (T, C) or None
        The same p-values of permutations for each of these C covariates.
    covariate_qvalue : ndarray of shape (T, C) or None
        The former adjusted for all topics by Benjamini and Hochberg.
    topic_names, terms : tuple
        Names.
    n_units : int
        Number of units.
    units : str
        "units", or "samples" where these are the units.
    rows : str
        What was regressed: "units", their proportions; "levels", those of units at each of their
        levels; or "samples", where covariates differ within units (errors are those of units,
        clusters of samples) or samples are the units.
    compared_within : str
        "units" or "strata", whose effects are in the model, or "" if there are none.
    equal_weights : str
        What has weight one: "units" or "samples".
    test : str or None
        What p-values come from: "permutations" of units, or "sign flips" of their residuals.
    replicates : ndarray of shape (n_replicates, T, P) or None
        Coefficients of every bootstrap replicate that determines them; None with intervals of kind
        "t".
    n_failures : int
        Number of replicates that lack a level and do not determine the coefficients; they are left
        out.
    n_labellings : int
        Number of permutations or sign flips behind the p-values.
    exact : bool
        Whether all of them were taken, each once.
    smallest_pvalue : float
        The smallest p-value that was possible.
    level, interval : float and str
        As they were given.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.
    interrupted : bool
        Whether Ctrl-C ended it early; p-values are based on the finished permutations.
    origin : Origin
        What it was made from: names of the columns of labels, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - By default a row for each topic and term: ``topic``, ``term``, ``coefficient``, ``lower``,
      ``upper``, ``std_error``, ``pvalue`` and ``qvalue`` (not with bootstrap intervals), and
      ``pvalue_permutation`` and ``pvalue_maxt`` (not with n_permutations=0).
    - Given the name of a term, its rows without ``term``, sorted by the first of these p-values, or
      by decreasing size of the coefficient if there are none.
    - "covariates", a row for each topic and covariate of several terms, with tests of whether the
      topic depends on the covariate at all: ``topic``, ``covariate``, ``pvalue_permutation``,
      ``pvalue_maxt`` and ``qvalue``.
    """

    coefficients: Array
    lower: Array
    upper: Array
    topic_names: tuple[Any, ...]
    terms: tuple[Any, ...]
    n_units: int
    units: str
    rows: str
    equal_weights: str
    errors: RobustErrors
    moderation: Moderation | None
    replicates: Array | None
    n_failures: int
    level: float
    interval: str
    random_state: int | Sequence[int] | None
    pvalue: Array | None = None
    qvalue: Array | None = None
    pvalue_permutation: Array | None = None
    pvalue_maxt: Array | None = None
    untested: dict[Any, str] = field(default_factory=dict)
    covariates: tuple[Any, ...] = ()
    covariate_pvalue_permutation: Array | None = None
    covariate_pvalue_maxt: Array | None = None
    covariate_qvalue: Array | None = None
    test: str | None = None
    n_labellings: int = 0
    exact: bool = False
    smallest_pvalue: float = 1.0
    interrupted: bool = False
    compared_within: str = ""
    origin: Origin = Origin()

    @property
    def std_error(self) -> Array:
        """Standard errors (T, P): robust to unequal variances, or from the replicates."""
        if self.replicates is not None:
            return spread(self.replicates)
        return np.sqrt(self._variances[0])

    @property
    def degrees_of_freedom(self) -> Array:
        """Degrees of freedom (T, P) of the robust standard errors, by Satterthwaite; moderated."""
        return self._variances[1]

    @property
    def prior_freedom(self) -> float:
        """Prior degrees of freedom of moderated variances, 0 without moderation."""
        return 0.0 if self.moderation is None else self.moderation.freedom

    @property
    def _variances(self) -> tuple[Array, Array]:
        return moderated(self.moderation, *self.errors.variances(np.eye(len(self.terms))))

    def _table(self, what: Any) -> Columns:
        """Return the coefficients, by default of all terms, or the tests of covariates."""
        if what == "covariates":
            return self._of_covariates()
        columns = tidy_columns(
            {"topic": self.topic_names}, {"term": self.terms},
            {
                "coefficient": self.coefficients, "lower": self.lower, "upper": self.upper,
                "std_error": self.std_error,
                **self._there("pvalue", "qvalue", "pvalue_permutation", "pvalue_maxt"),
            },
        )  # fmt: skip
        if what is None:
            return columns
        self._refuse_unknown(what)
        j, T = self.terms.index(what), len(self.topic_names)
        tests = list(self._there("pvalue", "pvalue_permutation").values())
        p = tests[0][:, j] if tests else np.zeros(T)
        places = np.lexsort((-np.abs(self.coefficients[:, j]), p)) * len(self.terms) + j
        del columns["term"]
        return {name: column[places] for name, column in columns.items()}

    def _of_covariates(self) -> Columns:
        if not self.covariates:
            raise ValueError(
                "no covariate of several terms was tested: those are labels of more than two "
                "levels; the tests of single terms are in the table of all terms."
            )
        values = {
            name: getattr(self, f"covariate_{name}")
            for name in ("pvalue_permutation", "pvalue_maxt", "qvalue")
        }
        return tidy_columns({"topic": self.topic_names}, {"covariate": self.covariates}, values)

    def _there(self, *names: str) -> dict[str, Array]:
        """Return these p-values, without those that were not computed."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def combine(self, weights: Mapping[Any, float]) -> Any:
        """Return a weighted sum of coefficients of each topic, with intervals.

        Examples are differences between two levels, ``{"region[T.West]": 1, "region[T.North]":
        -1}``, and mean proportions at given values, ``{"Intercept": 1, "age": 40}``.

        Parameters
        ----------
        weights : mapping of names of terms to numbers
            Weights of terms; other terms have weight 0.

        Returns
        -------
        pandas.DataFrame
            A row for each topic: ``topic``, ``value``, ``lower``, ``upper``, ``std_error`` and
            ``pvalue``, of the test that the sum is 0. Intervals are of `level`, by Student's t; or
            from percentiles of the replicates, without p-value.

        Raises
        ------
        ValueError
            If there is no such term, or a weight is not a finite number.
        """
        along = np.zeros(len(self.terms))
        for term, weight in weights.items():
            self._refuse_unknown(term)
            if not isinstance(weight, Real) or not np.isfinite(float(weight)):
                raise ValueError(
                    f"weights[{shown(term)}] is {shown(weight)}; a finite number is needed."
                )
            along[self.terms.index(term)] = weight
        values = (self.coefficients * along).sum(axis=-1)
        if self.replicates is None:
            tested = t_tests(
                self.errors, self.moderation, values[:, None], along[:, None], self.level
            )
            lower, upper, errors, p = (column[:, 0] for column in tested)
        else:
            replicates = (self.replicates * along).sum(axis=-1)
            errors, (lower, upper) = spread(replicates), percentile(replicates, self.level)
            p = None
        return frame_of({
            "topic": name_array(self.topic_names), "value": values, "lower": lower,
            "upper": upper, "std_error": errors, **({} if p is None else {"pvalue": p}),
        })  # fmt: skip

    def _refuse_unknown(self, term: Any) -> None:
        if term not in self.terms:
            names = ", ".join(map(repr, self.terms))
            raise ValueError(f"term={shown(term)} is not one of the terms: {names}.")

    @property
    def neutral(self) -> float:
        """Coefficient of a term without effect: 0."""
        return 0.0

    def __repr__(self) -> str:
        """Sizes, what counts once, and the number of coefficients that differ from 0."""
        T, P = self.coefficients.shape
        size = f"{T} topics x {P} terms, {self.n_units:,} {self.units}"
        if self.units == "units":
            size += " by their samples" if self.rows == "samples" else ""
            size += counted_once(self.equal_weights, self.units)
        if self.compared_within:
            size += f", compared within {self.compared_within}"
        tests, p, what = "", self.qvalue, "q <= 0.05"
        if p is None:
            p, what = self.pvalue_maxt, "max-T p <= 0.05"
        if p is not None:
            slopes = p[:, [name != INTERCEPT for name in self.terms]]
            n_tested = np.count_nonzero(np.isfinite(slopes))
            tests = f", {np.count_nonzero(slopes <= 0.05)} of {n_tested} coefficients with {what}"
        if self.test is not None:
            tests += f"; {self.n_labellings:,} {self.test}"
        return f"<ProportionRegression: {size}, {self.interval} intervals{tests}>"


def t_tests(
    errors: RobustErrors, moderation: Moderation | None, values: Array, along: Array, level: float
) -> tuple[Array, Array, Array, Array]:
    """Return ends of intervals, standard errors and p-values (T, k) of sums of coefficients.

    `values` (T, k) are the sums, `along` (P, k) their weights. p is at most 1 - level if and only
    if the interval excludes 0.
    """
    variances, freedom = moderated(moderation, *errors.variances(along))
    of_sums, p = np.sqrt(variances), pvalues(values**2, variances, np.array(1.0), freedom)
    margins = of_sums * t_quantiles(freedom, level)
    return values - margins, values + margins, of_sums, p


def adjusted_by_term(p: Array | None) -> Array | None:
    """Return p-values (T, P) adjusted for all topics of each term, by Benjamini and Hochberg."""
    if p is None:
        return None
    adjusted, tested = np.full(p.shape, np.nan), np.isfinite(p).all(axis=0)
    if tested.any():
        adjusted[:, tested] = false_discovery_control(p[:, tested], axis=0)
    return adjusted
