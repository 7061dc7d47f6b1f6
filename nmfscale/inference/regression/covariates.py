"""The design matrix of covariates: numbers are used as they are, labels become indicators."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import matched, shown
from ..design.groups import checked_labels, scores_of
from ..design.loadings import checked_names

Array = NDArray[Any]
INTERCEPT = "Intercept"
# Relative distance from the span of earlier columns below which a column counts as collinear.
_DEPENDENT = 1e-9


@dataclass(frozen=True)
class DesignMatrix:
    """Values (n, P) in float64, and the names of the terms.

    `references` are indicators (n,) of the levels that have no term, by name. `covariates` is the
    covariate of each term, `labels` are those that are labels.
    """

    values: Array
    terms: tuple[Any, ...]
    references: dict[str, Array] = field(default_factory=dict)
    covariates: tuple[Any, ...] = ()
    labels: frozenset[Any] = frozenset()

    def columns(self) -> dict[Any, list[int]]:
        """Return the columns of each covariate, by its name."""
        of: dict[Any, list[int]] = {}
        for j, name in enumerate(self.covariates):
            of.setdefault(name, []).append(j)
        return of

    def several_terms(self) -> dict[Any, list[int]]:
        """Return the columns of each covariate that has several, by its name."""
        return {name: columns for name, columns in self.columns().items() if len(columns) > 1}

    def levels(self) -> list[int]:
        """Return the columns that are levels, of labels or of numbers that have two values."""
        return [
            j
            for j, name in enumerate(self.covariates)
            if name in self.labels or np.unique(self.values[:, j]).size <= 2
        ]

    def varying(self) -> DesignMatrix:
        """Return the matrix without constants, which effects of strata contain."""
        kept = np.ptp(self.values, axis=0) > 0
        if not kept.any():
            raise ValueError("no covariate varies: one at least that does is needed.")
        terms, covariates = (
            tuple(name for name, stays in zip(names, kept, strict=True) if stays)
            for names in (self.terms, self.covariates)
        )
        return replace(self, values=self.values[:, kept], terms=terms, covariates=covariates)

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
        self._refuse_dependent(centred, X, "")

    def check_within(self, centred: Array, n_strata: int, within: str) -> None:
        """Refuse terms whose coefficients rows do not determine within strata.

        `centred` (n, P) is less the means of `n_strata` strata, which are called `within`.
        """
        n, P = centred.shape
        if n <= P + n_strata:
            raise ValueError(
                f"{n:,} rows in {n_strata:,} {within} are too few to compare within {within}: "
                f"{P} terms need at least {P + n_strata + 1:,}. Pass coarser {within}, or leave "
                "covariates out."
            )
        same = ~self.vary(centred)
        if same.any():
            name = shown(self.terms[int(same.argmax())])
            raise ValueError(
                f"term {name} is the same in all samples of each of the {within}, whose effects "
                "are in the model, so that its own effect cannot be told from these. Leave "
                f"{name} out, as {within} adjust for it already; or, to estimate it, leave "
                "strata= out."
            )
        self._refuse_dependent(centred, centred, f" within {within}")

    def vary(self, centred: Array) -> Array:
        """Return a mask of terms that vary within strata, given values less means of strata."""
        lengths = np.linalg.norm(self.values, axis=0)
        varies: Array = np.linalg.norm(centred, axis=0) > _DEPENDENT * lengths
        return varies

    def _refuse_dependent(self, centred: Array, X: Array, within: str) -> None:
        """Refuse columns of `centred` that earlier ones explain; X is shown in their place."""
        j = first_dependent(centred)
        if j is not None:
            X = X / np.linalg.norm(X, axis=0)
            weights = np.linalg.lstsq(X[:, :j], X[:, j], rcond=None)[0]
            others = [shown(self.terms[k]) for k in np.flatnonzero(np.abs(weights) > 1e-6)]
            raise ValueError(
                f"covariates are collinear{within}: term {shown(self.terms[j])} is a combination "
                f"of {', '.join(others)}. Leave one of them out."
            )


def first_dependent(X: Array) -> int | None:
    """Return the first column (of none that is 0) that earlier ones explain, None if none is."""
    diagonal = np.abs(np.diag(np.linalg.qr(X / np.linalg.norm(X, axis=0), mode="r")))
    return int(np.argmax(diagonal < _DEPENDENT)) if diagonal.min() < _DEPENDENT else None


def design_matrix(
    covariates: Any, n_samples: int, names: Any = None, intercept: bool = True,
    sample_names: Any = None, trend: Iterable[Any] = (),
) -> DesignMatrix:  # fmt: skip
    """Return the design matrix of a table, a mapping or a matrix of covariates.

    Rows of a table, and the columns of a mapping, are matched with `sample_names`. `trend` names
    ordered labels that are one term.
    """
    if not isinstance(covariates, Mapping):
        covariates = matched(covariates, sample_names, "covariates", subject="loadings")
    columns, terms = [], []
    owners: list[Any] = []
    references: dict[str, Array] = {}
    labels: set[Any] = set()
    if isinstance(trend, str):
        raise ValueError(f"trend={shown(trend)}: a list is needed, such as trend=[{shown(trend)}].")
    left = list(trend)
    if intercept:
        columns.append(np.ones(n_samples))
        terms.append(INTERCEPT)
        owners.append(None)
    for name, values in _columns(covariates, names, sample_names):
        ordered = name in left
        if ordered:
            left.remove(name)
        encoded = _scored if ordered else _encoded
        for term, column in encoded(name, values, n_samples, references):
            if term != name:
                labels.add(name)
            if term in terms:
                remedy = ": pass intercept=False" if term == INTERCEPT else ""
                raise ValueError(f"two terms are named {shown(term)}{remedy}.")
            columns.append(column)
            terms.append(term)
            owners.append(name)
    if len(columns) == int(intercept):
        raise ValueError("covariates has no columns: one at least is needed.")
    if left:
        such = ", ".join(shown(name) for name in dict.fromkeys(owners) if name is not None)
        raise ValueError(f"trend: {shown(left[0])} is not one of the covariates, {such}.")
    return DesignMatrix(
        np.column_stack(columns), tuple(terms), references, tuple(owners), frozenset(labels)
    )


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


def _scored(
    name: Any, values: Any, n_samples: int, references: dict[str, Array]
) -> Iterator[tuple[Any, Array]]:
    """Yield the term of an ordered label, whose levels are 0, 1, 2 ..., or numbers themselves."""
    labels = checked_labels(values, n_samples, f"covariate {shown(name)}")
    yield f"{name}[trend]", scores_of(labels, f"trend={shown(name)}")[labels.codes]


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
