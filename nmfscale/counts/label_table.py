"""What is known of samples and features: labels as in obs and var, which were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .names import is_missing

Array = NDArray[Any]


class Coded(NamedTuple):
    """Text as the numbers of its categories; -1 is a missing label."""

    codes: Array
    categories: Array

    def labels(self) -> Array:
        """Return the labels as an object array, with None for missing ones."""
        labels: Array = np.append(self.categories.astype(object), np.array([None]))[self.codes]
        return labels


class LabelTable(Mapping[str, Array]):
    """Named columns of equal length (n,): numbers, or labels, with None for missing ones.

    `columns` maps names to arrays or to `Coded` text. Text is kept as codes and categories: a
    column of patients takes one byte for each sample.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns: dict[str, Array | Coded] = {
            str(name): values if isinstance(values, Coded) else _compact(np.asarray(values))
            for name, values in columns.items()
        }

    def __getitem__(self, name: str) -> Array:
        """Return a column: numbers, or an object array of labels."""
        column = self.columns[name]
        return column.labels() if isinstance(column, Coded) else column

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the columns."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        """Whether both tables have the same columns, in any order, with equal values."""
        if not isinstance(other, LabelTable) or self.keys() != other.keys():
            return False
        return all(_equal(values, other[name]) for name, values in self.items())

    def __repr__(self) -> str:
        """Names of the columns."""
        return f"<LabelTable of {', '.join(map(repr, self)) or 'no columns'}>"

    @property
    def size(self) -> int | None:
        """Number of values of each column; None if there are no columns."""
        for column in self.columns.values():
            return len(column.codes if isinstance(column, Coded) else column)
        return None

    def take(self, rows: Array) -> LabelTable:
        """Return the table of some rows (n_rows,)."""
        return LabelTable({
            name: column._replace(codes=column.codes[rows])
            if isinstance(column, Coded)
            else column[rows]
            for name, column in self.columns.items()
        })  # fmt: skip


def rows_of(table: Any, rows: Array) -> LabelTable:
    """Return some rows of a table, or of the table that a function without arguments returns."""
    labels: LabelTable = table() if callable(table) else table
    return labels.take(rows)


def joined(tables: Sequence[LabelTable], sizes: Sequence[int]) -> LabelTable:
    """Return the tables one below the other; values of columns that a table lacks are missing."""
    names = list(dict.fromkeys(name for table in tables for name in table))
    return LabelTable({
        name: _joined([table.columns.get(name) for table in tables], sizes) for name in names
    })  # fmt: skip


def _joined(parts: Sequence[Any], sizes: Sequence[int]) -> Array | Coded:
    if not any(isinstance(part, Coded) for part in parts):
        if all(part is not None for part in parts):
            return np.concatenate(parts)
        filled = [
            np.full(size, np.nan) if part is None else part.astype(np.float64)
            for part, size in zip(parts, sizes, strict=True)
        ]
        return np.concatenate(filled)
    coded = [
        Coded(np.full(size, -1, np.int8), np.zeros(0, object)) if part is None else as_text(part)
        for part, size in zip(parts, sizes, strict=True)
    ]
    categories = list(dict.fromkeys(name for part in coded for name in part.categories.tolist()))
    place = {name: at for at, name in enumerate(categories)}
    narrow = np.min_scalar_type(-max(1, len(categories)))
    codes = [
        np.array([*(place[name] for name in part.categories.tolist()), -1], narrow)[part.codes]
        for part in coded
    ]
    return Coded(np.concatenate(codes), np.array(categories, object))


def as_text(column: Array | Coded) -> Coded:
    """Return a column with its values as text."""
    if isinstance(column, Coded):
        return column
    values = column.tolist()
    labels = [None if is_missing(value) else str(value) for value in values]
    categories = sorted({label for label in labels if label is not None})
    place: dict[str | None, int] = {name: at for at, name in enumerate(categories)} | {None: -1}
    narrow = np.min_scalar_type(-max(1, len(categories)))
    codes = np.fromiter((place[label] for label in labels), narrow, len(labels))
    return Coded(codes, np.array(categories, object))


def _equal(one: Array, other: Array) -> bool:
    kinds = one.dtype.kind, other.dtype.kind
    return bool(np.array_equal(one, other, equal_nan="f" in kinds and "O" not in kinds))


def _compact(values: Array) -> Array | Coded:
    """Return numbers as they are, and anything else as coded text."""
    if values.dtype.kind in "biuf":
        return values
    if values.dtype.kind == "O":
        there = [value for value in values.tolist() if not is_missing(value)]
        if there and all(isinstance(value, bool | int | float) for value in there):
            return np.array([np.nan if is_missing(v) else v for v in values.tolist()], np.float64)
    return as_text(values)


def part_of_measured(
    measured: tuple[Array, Array] | None, rows: Array | None, columns: Array | None
) -> tuple[Array, Array] | None:
    """Return which of some features were measured; columns -1 are features of known counts 0."""
    if measured is None:
        return None
    features, panel = measured
    kept, panel = np.unique(taken(panel, rows), return_inverse=True)
    features = features[kept]
    if columns is not None:
        features = features[:, columns] | (np.asarray(columns) < 0)
    return None if features.all() else (features, panel)


class MeasuredOfSamples:
    """The attribute `measured` of counts, checked where it is set; see `CountMatrix`."""

    def __get__(self, counts: Any, owner: Any = None) -> Any:
        """Return the mask (n_panels, m) and the panel (n,) of each sample, or None."""
        return self if counts is None else counts.__dict__["_measured"]

    def __set__(self, counts: Any, measured: Any) -> None:
        """Check the mask and the panels; panels are numbers of rows of the mask."""
        if measured is not None:
            features, panel = (np.asarray(values) for values in measured)
            n, m = counts.shape
            if features.dtype != bool or features.ndim != 2 or features.shape[1] != m:
                raise ValueError(
                    f"measured: the mask is {features.dtype} of shape {features.shape}: booleans "
                    f"of shape (n_panels, {m:,}) are needed, a row for each panel."
                )
            numbers = panel.dtype.kind in "iu" and panel.shape == (n,)
            if not numbers or (n and not 0 <= panel.min() <= panel.max() < len(features)):
                raise ValueError(
                    f"measured: panels are {panel.dtype} of shape {panel.shape}: for each of the "
                    f"{n:,} samples, the number of its row of the mask, 0 to {len(features) - 1}, "
                    "is needed."
                )
            measured = features, panel
        counts.__dict__["_measured"] = measured


def taken(values: Any, places: Array | None) -> Any:
    """Return the values at some places, by default all; None stays None."""
    return values if values is None or places is None else values[places]
