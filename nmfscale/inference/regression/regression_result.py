"""The result of a regression of topic proportions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.foreign import imported_pandas
from ...counts.names import shown
from ..design.equal_weights import counted_once
from ..intervals import percentile, spread
from ..results.files import Result
from ..results.frames import tidy_frame
from ..results.origin import Origin
from .robust import RobustErrors
from .term_tests import Tested

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
    pvalue, pvalue_maxt, qvalue : ndarray of shape (T, P) or None
        p-value of each topic and term; adjusted for all topics of a term by the maximum of the
        statistics, step down; and adjusted by Benjamini and Hochberg. NaN for the terms in
        `untested`. None with n_permutations=0.
    untested : dict
        Terms without a p-value, and the reason: the intercept; terms without which the model has no
        constant; and terms that do not vary within strata.
    covariates : tuple
        Covariates of several terms, for example labels of several levels, that were tested as a
        whole.
    covariate_pvalue, covariate_pvalue_maxt, covariate_qvalue : ndarray of shape (T, C) or None
        The same p-values for each of these C covariates.
    topic_names, terms : tuple
        Names.
    n_units : int
        Number of units.
    units : str
        "units", or "samples" where these are the units.
    rows : str
        What was regressed: "units", their proportions; or "samples", where covariates differ within
        units (errors are those of units, clusters of samples) or samples are the units.
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
    """

    coefficients: Array
    lower: Array
    upper: Array
    tested: Tested | None
    topic_names: tuple[Any, ...]
    terms: tuple[Any, ...]
    n_units: int
    units: str
    rows: str
    equal_weights: str
    errors: RobustErrors
    replicates: Array | None
    n_failures: int
    level: float
    interval: str
    random_state: Any
    origin: Origin = Origin()

    @property
    def std_error(self) -> Array:
        """Standard errors (T, P): robust to unequal variances, or from the replicates."""
        if self.replicates is not None:
            return spread(self.replicates)
        along = np.eye(len(self.terms))
        return np.stack([self.errors.standard_errors(each) for each in along], axis=1)

    @property
    def degrees_of_freedom(self) -> Array:
        """Degrees of freedom of the robust standard errors (P,), by Satterthwaite."""
        return np.array([self.errors.freedom(each) for each in np.eye(len(self.terms))])

    @property
    def pvalue(self) -> Array | None:
        """p-value of each topic and term (T, P)."""
        return None if self.tested is None else self.tested.of_terms[0]

    @property
    def pvalue_maxt(self) -> Array | None:
        """p-values adjusted over topics by the maximum of the statistics (max-T)."""
        return None if self.tested is None else self.tested.of_terms[1]

    @property
    def qvalue(self) -> Array | None:
        """p-values adjusted over topics by Benjamini and Hochberg."""
        return None if self.tested is None else self.tested.of_terms[2]

    @property
    def untested(self) -> dict[Any, str]:
        """Terms without a p-value, and the reason."""
        if self.tested is None:
            return dict.fromkeys(self.terms, "n_permutations is 0")
        return self.tested.untested

    @property
    def covariates(self) -> tuple[Any, ...]:
        """Covariates with several terms, which are tested jointly."""
        return () if self.tested is None else self.tested.covariates

    @property
    def covariate_pvalue(self) -> Array | None:
        """p-value of each topic and covariate (T, C)."""
        return None if self.tested is None else self.tested.of_covariates[0]

    @property
    def covariate_pvalue_maxt(self) -> Array | None:
        """p-values adjusted over topics by the maximum of the statistics (max-T)."""
        return None if self.tested is None else self.tested.of_covariates[1]

    @property
    def covariate_qvalue(self) -> Array | None:
        """p-values adjusted over topics by Benjamini and Hochberg."""
        return None if self.tested is None else self.tested.of_covariates[2]

    @property
    def test(self) -> str | None:
        """The method of the tests."""
        return None if self.tested is None else self.tested.how

    @property
    def n_labellings(self) -> int:
        """Number of permutations or sign flips of the tests."""
        return 0 if self.tested is None else self.tested.n_labellings

    @property
    def exact(self) -> bool:
        """Whether these are all permutations or sign flips."""
        return self.tested is not None and self.tested.exact

    @property
    def smallest_pvalue(self) -> float:
        """The smallest p-value that the tests can give."""
        return 1.0 if self.tested is None else self.tested.smallest_pvalue

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it early."""
        return self.tested is not None and self.tested.interrupted

    def to_frame(self, term: Any = None) -> Any:
        """Return a DataFrame with a row for each topic and term.

        Parameters
        ----------
        term : name of a term, default=None
            Return only the rows of this term, without its name, sorted by p-value, or by decreasing
            coefficient if there are no p-values.

        Returns
        -------
        pandas.DataFrame
            Columns ``topic``, ``term``, ``coefficient``, ``lower``, ``upper``, ``std_error`` and,
            where terms were tested, ``pvalue``, ``pvalue_maxt`` and ``qvalue``.

        Raises
        ------
        ValueError
            If there is no such term.
        """
        values = {
            "coefficient": self.coefficients, "lower": self.lower, "upper": self.upper,
            "std_error": self.std_error,
        }  # fmt: skip
        if self.tested is not None:
            of_terms = ("pvalue", "pvalue_maxt", "qvalue")
            values |= dict(zip(of_terms, self.tested.of_terms, strict=True))
        frame = tidy_frame({"topic": self.topic_names}, {"term": self.terms}, values)
        if term is None:
            return frame
        self._refuse_unknown(term)
        j, T = self.terms.index(term), len(self.topic_names)
        p = np.zeros(T) if self.pvalue is None else self.pvalue[:, j]
        order = np.lexsort((-np.abs(self.coefficients[:, j]), p))
        of_term = frame.iloc[order * len(self.terms) + j].drop(columns="term")
        return of_term.reset_index(drop=True)

    def to_frame_of_covariates(self) -> Any:
        """Return a DataFrame with a row for each topic and covariate of several terms.

        Columns are ``topic``, ``covariate``, ``pvalue``, ``pvalue_maxt`` and ``qvalue``: whether
        the topic depends on the covariate at all.

        Raises
        ------
        ValueError
            If no such covariate was tested.
        """
        if self.tested is None or not self.covariates:
            raise ValueError(
                "no covariate of several terms was tested: those are labels of more than two "
                "levels; `to_frame` has the tests of single terms."
            )
        names = ("pvalue", "pvalue_maxt", "qvalue")
        values = dict(zip(names, self.tested.of_covariates, strict=True))
        return tidy_frame({"topic": self.topic_names}, {"covariate": self.covariates}, values)

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
            A row for each topic: ``topic``, ``value``, ``lower``, ``upper`` and ``std_error``.
            Intervals are of `level`: by Student's t, or from percentiles of the replicates.

        Raises
        ------
        ValueError
            If there is no such term, or a weight is not a finite number.
        """
        pd = imported_pandas()

        along = np.zeros(len(self.terms))
        for term, weight in weights.items():
            self._refuse_unknown(term)
            if not isinstance(weight, Real) or not np.isfinite(float(weight)):
                given = f"weights[{shown(term)}] is {shown(weight)}"
                raise ValueError(f"{given}; a finite number is needed.")
            along[self.terms.index(term)] = weight
        values = (self.coefficients * along).sum(axis=-1)
        if self.replicates is None:
            of_sum = self.errors.of_sums(along[:, None], self.level)
            margins, errors = (column[:, 0] for column in of_sum)
            lower, upper = values - margins, values + margins
        else:
            replicates = (self.replicates * along).sum(axis=-1)
            errors, (lower, upper) = spread(replicates), percentile(replicates, self.level)
        return pd.DataFrame({
            "topic": list(self.topic_names), "value": values, "lower": lower, "upper": upper,
            "std_error": errors,
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
        if self.qvalue is None:
            return f"<ProportionRegression: {size}, {self.interval} intervals>"
        tested = np.isfinite(self.qvalue)
        found = np.count_nonzero(self.qvalue[tested] <= 0.05)
        return (
            f"<ProportionRegression: {size}, {found} of {np.count_nonzero(tested)} coefficients "
            f"with q <= 0.05 of {self.n_labellings:,} {self.test}>"
        )
