"""Names of samples and features, and subsets of them, that the caller of a reader chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...counts.label_table import LabelTable
from ...counts.names import (
    checked_names,
    matched,
    name_array,
    same_kind,
    shown,
    such_as,
)

Array = NDArray[Any]

NAMES = "names", "feature_names", "sample_names"
MASKS = "mask_var", "mask_obs"
# A table with a row for each sample or feature, read when a column is needed; None if there is none
Table = Callable[[], LabelTable] | None


class Described(NamedTuple):
    """Names of all samples and features of a matrix, and the chosen ones, or None for all.

    `rows` and `columns` are positions in rising order.
    """

    sample_names: Any
    feature_names: Any
    rows: Array | None = None
    columns: Array | None = None

    def of_rows(self, values: Any) -> Any:
        """Return the entries of the chosen samples."""
        return values if values is None or self.rows is None else values[self.rows]

    def of_columns(self, values: Any) -> Any:
        """Return the entries of the chosen features."""
        return values if values is None or self.columns is None else values[self.columns]

    def about(self) -> dict[str, Any]:
        """Return the names of the chosen samples and features, as arguments of `CountMatrix`."""
        return {
            "sample_names": self.of_rows(self.sample_names),
            "feature_names": self.of_columns(self.feature_names),
        }


def described(
    options: dict[str, Any], shape: tuple[int, int], holder: str, *, sample_names: Any = None,
    feature_names: Any = None, obs: Table = None, var: Table = None,
) -> Described:  # fmt: skip
    """Return the names and subsets that the options NAMES and MASKS choose.

    `holder` is the name of the source in messages, `obs` and `var` are its tables.
    """
    both = {"names", "feature_names"} & options.keys()
    if len(both) == 2:
        raise ValueError("names and feature_names exclude each other: both name the features.")
    if "names" in options:
        feature_names = _names_in(var, options["names"], shape[1], holder)
    if "feature_names" in options:
        feature_names = options["feature_names"]
        if len(feature_names) == shape[0] != shape[1]:
            raise ValueError(
                f"feature_names has {len(feature_names):,} entries, and {holder} has {shape[0]:,} "
                f"rows and {shape[1]:,} columns: pass its transpose, samples x features."
            )
        feature_names = checked_names(feature_names, shape[1], "feature_names", "column")
    if "sample_names" in options:
        sample_names = checked_names(options["sample_names"], shape[0], "sample_names", "row")
    rows = _positions(options, "mask_obs", shape[0], sample_names, obs, holder)
    columns = _positions(options, "mask_var", shape[1], feature_names, var, holder)
    return Described(sample_names, feature_names, rows, columns)


def _names_in(var: Table, column: Any, size: int, holder: str) -> Array:
    names = table_column(var, column, "names", "var", holder)
    missing = sum(name is None or name != name for name in names.tolist())
    if len(names) != size or missing:
        fault = f"has no name for {missing:,} of the {size:,} features"
        raise ValueError(f"{holder}: the column {column!r} of var {fault}: choose another one.")
    return name_array(names)


def table_column(table: Table, column: Any, argument: str, of: str, holder: str) -> Array:
    """Return the column of obs or var that an argument names."""
    if table is None:
        remedy = " pass the names as feature_names=." if argument == "names" else " pass an array."
        raise ValueError(
            f"{argument}={shown(column)} is the name of a column of {of}, but {holder} has no "
            f"{of}:{remedy}"
        )
    columns = table()
    if column not in columns:
        names = ", ".join(map(repr, columns)) or "none"
        raise ValueError(
            f"{holder} has no column {shown(column)} in {of} ({argument}); its columns: {names}."
        )
    return columns[column]


def _positions(
    options: dict[str, Any], argument: str, size: int, names: Any, table: Table, holder: str
) -> Array | None:
    """Return the positions that a mask selects, in rising order; None if there is no mask."""
    mask = options.get(argument)
    if mask is None:
        return None
    of, frame = ("samples", "obs") if argument == "mask_obs" else ("features", "var")
    if isinstance(mask, str):
        mask = _flags(table_column(table, mask, argument, frame, holder), argument, mask)
    elif isinstance(mask, dict) or _kind(mask) == "b":
        mask = matched(mask, None if names is None else name_array(names), argument, of=of)
    kind, array = _kind(mask), np.asarray(mask)
    if array.ndim != 1:
        raise ValueError(f"{argument} has shape {array.shape}: a mask ({size:,},) is needed.")
    if kind == "b":
        if len(array) != size:
            raise ValueError(
                f"{argument} has {len(array):,} entries, but {holder} has {size:,} {of}."
            )
        positions = np.flatnonzero(array.astype(bool))
    elif kind in "iu" and array.size:
        positions = _from_numbers(array, argument, size, of, holder)
    elif kind == "f" and array.size:
        raise ValueError(f"{argument} holds fractions such as {shown(array[0])}: {_FORMS}")
    else:
        positions = _from_names(name_array(array), names, argument, of, holder)
    if not positions.size:
        raise ValueError(f"{argument} selects none of the {size:,} {of} of {holder}.")
    return positions


_FORMS = "a mask is an array of True and False, of positions or of names, or the name of a column."


def _kind(mask: Any) -> str:
    """Return the kind of the entries of a mask, as NumPy's dtypes have it; "O" also for text."""
    kind = np.asarray(mask).dtype.kind
    if kind == "O":  # nullable types of pandas, lists of lists
        values = np.asarray(mask).ravel().tolist()
        kind = "b" if values and all(isinstance(value, bool) for value in values) else "O"
    return kind


def _flags(values: Array, argument: str, column: str) -> Array:
    """Return a column of True and False, or of 0 and 1, as a mask."""
    plain = set(np.unique(values).tolist()) if values.dtype.kind in "biuf" else {None}
    if not plain <= {0, 1}:
        raise ValueError(
            f"{argument}={column!r} is a column of {values.dtype}: one of True and False is "
            f"needed. Make a mask of it, such as obs[{column!r}] == value."
        )
    return values.astype(bool)


def _from_numbers(numbers: Array, argument: str, size: int, of: str, holder: str) -> Array:
    positions, times = np.unique(np.where(numbers < 0, numbers + size, numbers), return_counts=True)
    if positions[0] < 0 or positions[-1] >= size:
        wrong = numbers[(numbers < -size) | (numbers >= size)][0]
        raise ValueError(f"{argument} holds the position {wrong}, but {holder} has {size:,} {of}.")
    if times.max() > 1:
        raise ValueError(
            f"{argument} holds the position {positions[times.argmax()]} more than once."
        )
    return positions


def _from_names(wanted: Array, names: Any, argument: str, of: str, holder: str) -> Array:
    if names is None:
        raise ValueError(
            f"{argument} holds names, but the {of} of {holder} have none: pass {of[:-1]}_names=, "
            "or an array of True and False."
        )
    wanted, available = same_kind(wanted, name_array(names))
    chosen, there = set(wanted.tolist()), set(available.tolist())
    if lacking := [name for name in dict.fromkeys(wanted.tolist()) if name not in there]:
        raise ValueError(
            f"{argument} holds names that no {of[:-1]} of {holder} has, {len(lacking):,} of "
            f"{len(chosen):,}, such as {such_as(lacking)}; it has {such_as(available.tolist())}."
        )
    return np.flatnonzero([name in chosen for name in available.tolist()])
