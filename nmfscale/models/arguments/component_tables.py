"""Tables of components: which axis has the features, names, and checks of the weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.names import as_text, names_of, repeated_names, shown, such_as
from ...methods.starts.initialize import LARGEST
from ...readers.formats.text_tables import read_text_table
from ...storage.atomic import user_path

Array = NDArray[Any]
FeaturesIn: TypeAlias = Literal["rows", "columns"]
# How many times as long an axis must be to have the features, if names do not tell.
_TIMES = 2
_REMEDY = (
    "give features_in='rows' if each row is a feature, such as a gene or a word, or "
    "features_in='columns' if each column is one."
)


@dataclass(frozen=True)
class ComponentTable:
    """Weights (K, m) of features in components, with names if there are any; `source` names it."""

    values: Array
    feature_names: Array | None
    topic_names: Array | None
    source: str

    @classmethod
    def of(
        cls, components: Any, *, feature_names: Any = None, features_in: FeaturesIn | None = None,
        of_counts: Any = None,
    ) -> ComponentTable:  # fmt: skip
        """Read and check a table; `of_counts` are names of features that its features may have."""
        if features_in is not None and features_in not in get_args(FeaturesIn):
            raise ValueError(f"features_in={shown(features_in)} is neither 'rows' nor 'columns'.")
        values, names, source = _read(components)
        if feature_names is not None:
            if features_in is None and len(feature_names) != values.shape[1]:
                features_in = "rows"
            at = 0 if features_in == "rows" else 1
            if len(feature_names) != values.shape[at]:
                raise ValueError(
                    f"feature_names has {len(feature_names):,} names, and components has shape "
                    f"{values.shape}: one name for each feature is needed."
                )
            names[at] = as_text(feature_names)
        if features_in is None:
            features_in = _direction(values.shape, names, of_counts, source)
        if features_in == "rows":
            values, names = values.T, names[::-1]
        if names[0] is not None and names[0].tolist() == [str(k) for k in range(len(values))]:
            names[0] = None  # the numbers of rows that pandas writes
        table = cls(np.ascontiguousarray(values), names[1], names[0], source)
        table._check()
        return table

    def _check(self) -> None:
        """Refuse weights that are no amounts of features in components."""
        values = self.values
        bad = ~np.isfinite(values) | (values < 0) | (values >= LARGEST)
        if bad.any():
            k, j = map(int, np.argwhere(bad)[0])
            remedy = f"numbers from 0 to {LARGEST:g} are needed."
            if np.isnan(values[k, j]):
                remedy = "fill in what is missing, such as by table.fillna(0)."
            elif values[k, j] < 0:
                remedy = (
                    "weights are amounts of features, and scores such as z-scores are none. Give "
                    "frequencies or mean counts of the features, as in gene_spectra_tpm or "
                    "spectra.consensus of cNMF; or keep positive scores by table.clip(lower=0)."
                )
            where = f"{self._name(self.topic_names, k)}, {self._name(self.feature_names, j)}"
            raise ValueError(f"components: the weight of {where} is {values[k, j]:g}: {remedy}")
        empty = np.flatnonzero(~values.any(axis=1))
        if empty.size:
            raise ValueError(
                f"components: all weights of {self._name(self.topic_names, int(empty[0]))} are 0: "
                "leave this component out."
            )
        for of, names in (("features", self.feature_names), ("components", self.topic_names)):
            if names is not None and (repeated := repeated_names(names.tolist())):
                raise ValueError(
                    f"components has several {of} of the same name, such as {such_as(repeated)}: "
                    "make names unique."
                )

    @staticmethod
    def _name(names: Array | None, at: int) -> str:
        return str(at) if names is None else shown(names[at])


def _read(components: Any) -> tuple[Array, list[Array | None], str]:
    """Return the values of a table in float64, names of its rows and columns, and its source."""
    if isinstance(components, str | os.PathLike):
        path = user_path(components)
        values, *names = read_text_table(path)
        return values, [None if one is None else as_text(one) for one in names], path.name
    kind = type(components).__name__
    try:
        values = np.array(components, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"components is a {kind}: a DataFrame, an array or the path of a table is needed, of "
            f"numbers apart from the names ({error})."
        ) from None
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"components has shape {values.shape}: a table of components by features is needed."
        )
    names = [names_of(components, axis) if hasattr(components, "iloc") else None for axis in (0, 1)]
    return values, [None if one is None else as_text(one) for one in names], kind


def _direction(
    shape: tuple[int, ...], names: list[Array | None], of_counts: Any, source: str
) -> FeaturesIn:
    """Return which axis of a table has the features, by its names or else by its lengths."""
    axes: tuple[FeaturesIn, FeaturesIn] = ("rows", "columns")
    if of_counts is not None:
        wanted = set(as_text(of_counts).tolist())
        shared = [0 if one is None else len(wanted & set(one.tolist())) for one in names]
        if shared[0] == shared[1]:
            where = "no names of X" if not shared[0] else f"{shared[0]:,} names of X in each"
            raise ValueError(
                f"{source} has {where} among its rows ({_shown(names[0])}) and columns "
                f"({_shown(names[1])}): its features need the names of those of X, such as "
                f"{such_as(wanted)}."
            )
        return axes[int(shared[1] > shared[0])]
    if names[0] is None and names[1] is None:  # an array, as `components_`
        return "columns"
    of_text = [one is not None and not _are_numbers(one) for one in names]
    if of_text[0] != of_text[1]:
        return axes[int(of_text[1])]
    longer = int(shape[1] > shape[0])
    if max(shape) < _TIMES * min(shape):
        raise ValueError(
            f"{source} has {shape[0]:,} rows and {shape[1]:,} columns, and nothing says which are "
            f"features: {_REMEDY}"
        )
    return axes[longer]


def _are_numbers(names: Iterable[str]) -> bool:
    """Whether names number components, as 1 and 2.0 do, or are no names."""
    is_number: Callable[[str], bool] = str.isdecimal
    return all(is_number(name.removesuffix(".0")) for name in names)


def _shown(names: Array | None) -> str:
    return "without names" if names is None else f"such as {such_as(names[:2])}"
