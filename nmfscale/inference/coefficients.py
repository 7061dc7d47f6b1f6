"""The result of a regression of topic proportions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import shown
from .frames import tidy_frame
from .intervals import percentile, spread

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class ProportionRegression:
    """Coefficients of T topics on P terms, with intervals and tests.

    Attributes
    ----------
    coefficients, lower, upper : ndarray of shape (T, P)
        Coefficients by least squares, and the ends of their intervals.
    pvalues, qvalues : ndarray of shape (T, P) or None
        Permutation p-value of each topic and term, and that adjusted for all topics of a term by
        Benjamini and Hochberg. NaN for the intercept, and for every term without which no constant
        is left in the model: permutations say nothing of these. None with n_permutations=0.
    topic_names, terms : tuple
        Names.
    n_units : int
        How many units were drawn again.
    units : str
        "units", or "samples" where these are the units.
    rows : str
        What was regressed: "units", their proportions, or "samples", where covariates differ within
        units or samples are the units.
    replicates : ndarray of shape (n_replicates, T, P)
        Coefficients of every bootstrap replicate that determines them.
    n_failures : int
        Replicates that do not, which are left out: a level was not drawn.
    n_labellings : int
        Permutations that p-values stand on.
    exact : bool
        Whether these are all ways to give units the terms of others, each once.
    smallest_pvalue : float
        The least p-value that could have come out.
    level, interval : float and str
        As they were given.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.
    interrupted : bool
        Whether Ctrl-C ended it early; p-values are those of the permutations that were done.
    """

    coefficients: Array
    lower: Array
    upper: Array
    pvalues: Array | None
    qvalues: Array | None
    topic_names: tuple[Any, ...]
    terms: tuple[Any, ...]
    n_units: int
    units: str
    rows: str
    replicates: Array
    n_failures: int
    level: float
    interval: str
    random_state: Any
    n_labellings: int
    exact: bool
    smallest_pvalue: float
    interrupted: bool

    @property
    def standard_errors(self) -> Array:
        """Standard deviation of the replicates, (T, P)."""
        return spread(self.replicates)

    def to_frame(self, term: Any = None) -> Any:
        """Return a DataFrame with a row for each topic and term.

        Parameters
        ----------
        term : name of a term, default=None
            Only the rows of this one, without its name, topics with the smallest p-values first, or
            with the largest coefficients where there are none.

        Returns
        -------
        pandas.DataFrame
            Columns ``topic``, ``term``, ``coefficient``, ``lower``, ``upper``, ``std_error`` and,
            where terms were tested, ``pvalue`` and ``qvalue``.

        Raises
        ------
        ValueError
            If there is no such term.
        """
        values = {
            "coefficient": self.coefficients, "lower": self.lower, "upper": self.upper,
            "std_error": self.standard_errors,
        }  # fmt: skip
        if self.pvalues is not None and self.qvalues is not None:
            values |= {"pvalue": self.pvalues, "qvalue": self.qvalues}
        frame = tidy_frame({"topic": self.topic_names}, {"term": self.terms}, values)
        if term is None:
            return frame
        self._refuse_unknown(term)
        j, T = self.terms.index(term), len(self.topic_names)
        p = np.zeros(T) if self.pvalues is None else self.pvalues[:, j]
        order = np.lexsort((-np.abs(self.coefficients[:, j]), p))
        of_term = frame.iloc[order * len(self.terms) + j].drop(columns="term")
        return of_term.reset_index(drop=True)

    def combine(self, weights: Mapping[Any, float]) -> Any:
        """Return a weighted sum of coefficients of each topic, with intervals.

        Such are differences between two levels, ``{"region[T.West]": 1, "region[T.North]": -1}``,
        and mean proportions at given values, ``{"Intercept": 1, "age": 40}``.

        Parameters
        ----------
        weights : mapping of names of terms to numbers
            Terms that are not named weigh 0.

        Returns
        -------
        pandas.DataFrame
            A row for each topic: ``topic``, ``value``, ``lower``, ``upper`` and ``std_error``.
            Intervals are of `level`, from percentiles of the replicates whatever `interval` is.

        Raises
        ------
        ValueError
            If there is no such term, or a weight is no finite number.
        """
        import pandas as pd

        along = np.zeros(len(self.terms))
        for term, weight in weights.items():
            self._refuse_unknown(term)
            if not isinstance(weight, Real) or not np.isfinite(float(weight)):
                given = f"weights[{shown(term)}] is {shown(weight)}"
                raise ValueError(f"{given}; a finite number is needed.")
            along[self.terms.index(term)] = weight
        replicates = self.replicates @ along
        lower, upper = percentile(replicates, self.level)
        return pd.DataFrame({
            "topic": list(self.topic_names), "value": self.coefficients @ along, "lower": lower,
            "upper": upper, "std_error": spread(replicates),
        })  # fmt: skip

    def _refuse_unknown(self, term: Any) -> None:
        if term not in self.terms:
            names = ", ".join(map(repr, self.terms))
            raise ValueError(f"term={shown(term)} is not one of the terms: {names}.")

    def __repr__(self) -> str:
        """Sizes, and how many coefficients were found."""
        T, P = self.coefficients.shape
        size = f"{T} topics x {P} terms, {self.n_units:,} {self.units}"
        if self.qvalues is None:
            return f"<ProportionRegression: {size}, {len(self.replicates):,} replicates>"
        tested = np.isfinite(self.qvalues)
        found = np.count_nonzero(self.qvalues[tested] <= 0.05)
        return (
            f"<ProportionRegression: {size}, {found} of {np.count_nonzero(tested)} coefficients "
            "with q <= 0.05>"
        )
