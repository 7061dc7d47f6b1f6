"""Results as tables: columns of arrays by name, and the same as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.foreign import imported_pandas
from ..counts.names import name_array, shown

Array = NDArray[Any]
Columns = dict[str, Array]
Tables = Mapping[str, Callable[[], Columns]]


class Tabular:
    """A result whose numbers are one or several tables.

    A class defines one of three methods: `_columns`, if it has one table; `_tables`, if it has
    several; or `_table`, if what a caller asks for is no name of a table.
    """

    # What follows the names of the tables in an error, such as options that add tables.
    _hint = ""

    def _columns(self) -> Columns:
        """Return the only table."""
        raise NotImplementedError

    def _tables(self) -> Tables:
        """Return functions that make the tables, by name; the first table is the default."""
        return {"table": self._columns}

    def _table(self, what: Any) -> Columns:
        """Return a table, given what a caller has asked for; None is the default."""
        tables = self._tables()
        if what is None:
            what = next(iter(tables))
        make = tables.get(what) if isinstance(what, str) else None
        if make is None:
            names = ", ".join(map(repr, tables))
            raise ValueError(f"what={shown(what)} is not one of {names}{self._hint}.")
        return make()

    def columns(self, what: int | str | None = None) -> Columns:
        """Return a table as arrays, without pandas.

        Parameters
        ----------
        what : str or int, default=None
            Which table to return. The notes on the class name its tables, and say if a topic or
            term can be given, whose rows are returned. By default it is the first table.

        Returns
        -------
        dict of str to ndarray
            Columns of one length, by name.

        Raises
        ------
        ValueError
            If there is no such table, topic or term.
        """
        return self._table(what)

    def to_frame(self, what: int | str | None = None) -> Any:
        """Return a table as a DataFrame.

        Parameters
        ----------
        what : str or int, default=None
            As in :meth:`columns`.

        Returns
        -------
        pandas.DataFrame
            The columns of :meth:`columns`, with the default index.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            As in :meth:`columns`.
        """
        return frame_of(self._table(what))


def frame_of(columns: Columns) -> Any:
    """Return columns as a DataFrame.

    Labels that are all numbers get a type of numbers; whole numbers of which some are missing get
    the type Int64.
    """
    pd = imported_pandas()

    frame = pd.DataFrame(columns)
    for name, column in frame.items():
        of_integers = pd.api.types.infer_dtype(column, skipna=True) == "integer"
        if of_integers and column.isna().any():
            frame[name] = column.astype("Int64")
    return frame.infer_objects()


def tidy_columns(
    rows: Mapping[str, Any], columns: Mapping[str, Any], values: Mapping[str, Array]
) -> Columns:
    """Return the columns of a table with a row for each entry of arrays (n_rows, n_columns).

    `rows` and `columns` map the name of a new column to the labels of the axis.
    """
    places = [place.ravel() for place in np.indices(next(iter(values.values())).shape)]
    labels = {
        name: name_array(names)[at]
        for at, axis in zip(places, (rows, columns), strict=True)
        for name, names in axis.items()
    }
    return labels | {name: array.ravel() for name, array in values.items()}


def first_rows(result: Tabular, n_rows: int) -> tuple[dict[str, list[Any]], str]:
    """Return the first rows of the table of a result, and a sentence if there are more."""
    columns = result.columns()
    n = len(next(iter(columns.values())))
    more = f"The first {n_rows:,} of {n:,} rows." if n > n_rows else ""
    return {name: cells[:n_rows].tolist() for name, cells in columns.items()}, more
