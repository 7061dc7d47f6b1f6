"""Result arrays as tables with a row for each entry, with and without pandas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Columns = dict[str, Array]


def tidy_columns(
    rows: Mapping[str, Any], columns: Mapping[str, Any], values: Mapping[str, Array]
) -> Columns:
    """Return the columns of a table with a row for each entry of arrays (n_rows, n_columns).

    `rows` and `columns` map the name of a new column to the labels of the axis.
    """
    places = [each.ravel() for each in np.indices(next(iter(values.values())).shape)]
    labels = {
        # the last entry keeps NumPy from turning names that are tuples into rows
        name: np.array([*names, None], object)[at]
        for at, axis in zip(places, (rows, columns), strict=True)
        for name, names in axis.items()
    }
    return labels | {name: each.ravel() for name, each in values.items()}


def frame_of(columns: Columns) -> Any:
    """Return columns as a DataFrame; labels that are all numbers get a type of numbers."""
    import pandas as pd

    return pd.DataFrame(columns).infer_objects()


def tidy_frame(
    rows: Mapping[str, Any], columns: Mapping[str, Any], values: Mapping[str, Array]
) -> Any:
    """Return the columns of `tidy_columns` as a DataFrame."""
    return frame_of(tidy_columns(rows, columns, values))
