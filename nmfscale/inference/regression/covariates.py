"""The design matrix of covariates: numbers are used as they are, labels become indicators."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import matched, shown
from ..design.groups import checked_labels
from ..design.loadings import checked_names

Array = NDArray[Any]
INTERCEPT = "Intercept"
# Relative distance from the span of earlier columns below which a column counts as collinear.
_DEPENDENT = 1e-9


@dataclass(frozen=True)
class DesignMatrix:
    """Values (n, P) in float64, and the names of the terms.

    `references` are indicators (n,) of the levels that have no term, by name. `covariates` is the
    covariate of each term.
    """

    values: Array
    terms: tuple[Any, ...]
    references: dict[str, Array] = field(default_factory=dict)
    covariates: tuple[Any, ...] = ()

    def columns(self) -> dict[Any, list[int]]:
        """Return the columns of each covariate, by its name."""
        of: dict[Any, list[int]] = {}
        for j, name in enumerate(self.covariates):
            of.setdefault(name, []).append(j)
        return of

    def several_terms(self) -> dict[Any, list[int]]:
        """Return the columns of each covariate that has several, by its name."""
        return {name: columns for name, columns in self.columns().items() if len(columns) > 1}

    def check_rank(self, kept: Array, what: str) -> None:
        """Refuse terms whose coefficients these rows do not determine."""
        X = self.values[kept]
        n, P = X.shape
        if n <= P:
            raise ValueError(
                f"{n:,} {what} are fewer than {P + 1}, which {P} terms need at least: leave "
                "covariates out, or join levels."
            )
        constant = np.flatnonzero(np.ptp(X, axis=0) == 0)
        for j in constant.tolist():
            name = self.terms[j]
            if X[0, j] == 0:
                raise ValueError(f"term {shown(name)} is 0 in all {what}: leave it out.")
            if j != constant[0]:
                other = self.terms[constant[0]]
                remedy = " or pass intercept=False" if other == INTERCEPT else ""
                raise ValueError(
                    f"term {shown(name)} is {X[0, j]:g} in all {what}, and {shown(other)} is "
                    f"constant already: leave it out{remedy}."
                )
        centred = X.copy()
        if constant.size:  # as in LeastSquares: a mean far larger than the spread does no harm
            centred -= np.where(np.arange(P) == constant[0], 0.0, X.mean(axis=0))
        centred /= np.linalg.norm(centred, axis=0)
        diagonal = np.abs(np.diag(np.linalg.qr(centred, mode="r")))
        if diagonal.min() < _DEPENDENT:
            j = int(np.argmax(diagonal < _DEPENDENT))
            X = X / np.linalg.norm(X, axis=0)
            weights = np.linalg.lstsq(X[:, :j], X[:, j], rcond=None)[0]
            others = [shown(self.terms[k]) for k in np.flatnonzero(np.abs(weights) > 1e-6)]
            raise ValueError(
                f"covariates are collinear: term {shown(self.terms[j])} is a combination of "
                f"{', '.join(others)}. Leave one of them out."
            )


def design_matrix(
    covariates: Any, n_samples: int, names: Any = None, intercept: bool = True,
    sample_names: Any = None,
) -> DesignMatrix:  # fmt: skip
    """Return the design matrix of a table, a mapping or a matrix of covariates.

    Rows of a table, and the columns of a mapping, are matched with `sample_names`.
    """
    if not isinstance(covariates, Mapping):
        covariates = matched(covariates, sample_names, "covariates", subject="loadings")
    columns, terms = [], []
    owners: list[Any] = []
    references: dict[str, Array] = {}
    if intercept:
        columns.append(np.ones(n_samples))
        terms.append(INTERCEPT)
        owners.append(None)
    for name, values in _columns(covariates, names, sample_names):
        for term, column in _encoded(name, values, n_samples, references):
            if term in terms:
                remedy = ": pass intercept=False" if term == INTERCEPT else ""
                raise ValueError(f"two terms are named {shown(term)}{remedy}.")
            columns.append(column)
            terms.append(term)
            owners.append(name)
    if len(columns) == int(intercept):
        raise ValueError("covariates has no columns: one at least is needed.")
    return DesignMatrix(np.column_stack(columns), tuple(terms), references, tuple(owners))


def _columns(covariates: Any, names: Any, sample_names: Any) -> Iterator[tuple[Any, Any]]:
    """Yield names and values of covariates."""
    is_table = hasattr(covariates, "iloc")
    if names is not None and (is_table or isinstance(covariates, Mapping)):
        raise ValueError("names is for an array: columns of covariates have names already.")
    if isinstance(covariates, Mapping):
        for name, values in covariates.items():
            yield (
                name,
                matched(values, sample_names, f"covariates[{shown(name)}]", subject="loadings"),
            )
    elif is_table and covariates.ndim == 2:
        for j, name in enumerate(covariates.columns):
            yield name, covariates.iloc[:, j]
    elif is_table:
        yield "x" if covariates.name is None else covariates.name, covariates
    else:
        array = np.asarray(covariates)
        if array.ndim == 1 and array.dtype.kind != "O":
            array = array[:, None]
        if array.ndim != 2:
            raise ValueError(
                f"covariates={reprlib.repr(covariates)}: a DataFrame, a dict of columns or a dense "
                "array of shape (samples, terms) is needed."
            )
        if names is None:  # a matrix of patsy has column names
            info = getattr(covariates, "design_info", None)
            names = getattr(info, "column_names", [f"x{j}" for j in range(array.shape[1])])
        yield from zip(checked_names(names, array.shape[1], "names"), array.T, strict=True)


def _encoded(
    name: Any, values: Any, n_samples: int, references: dict[str, Array]
) -> Iterator[tuple[Any, Array]]:
    """Yield the terms of a covariate: its values, or indicators of all levels but the first.

    The indicator of the first level is put into `references`.
    """
    what = f"covariate {shown(name)}"
    if not hasattr(getattr(values, "dtype", None), "categories"):
        array = np.asarray(values)
        if array.dtype.kind in "cmM":
            raise ValueError(
                f"{what} is of type {array.dtype}: pass numbers, such as days since the first, or "
                "texts for levels."
            )
        if array.dtype.kind in "biuf" or _are_numbers(array):
            yield name, _checked_numbers(array, n_samples, what)
            return
    labels = checked_labels(values, n_samples, what)
    if len(labels.names) < 2:
        raise ValueError(f"{what} has one level only, {shown(labels.names[0])}: leave it out.")
    references[f"{name}[{labels.names[0]}]"] = (labels.codes == 0).astype(np.float64)
    for code, level in enumerate(labels.names[1:], 1):
        yield f"{name}[T.{level}]", (labels.codes == code).astype(np.float64)


def _are_numbers(array: Array) -> bool:
    return array.dtype.kind == "O" and all(isinstance(x, (Real, np.bool_)) for x in array.flat)


def _checked_numbers(array: Array, n_samples: int, what: str) -> Array:
    if array.shape != (n_samples,):
        raise ValueError(
            f"{what} has shape {array.shape}; one value for each of {n_samples:,} samples is "
            "needed."
        )
    numbers = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise ValueError(
            f"{what} has {bad.size:,} missing or infinite values, the first at sample {bad[0]}: "
            "leave these samples out, or fill them in."
        )
    return numbers
