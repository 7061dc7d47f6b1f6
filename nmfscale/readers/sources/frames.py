"""Columns of DataFrames as labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.label_table import Coded, LabelTable


def table_of_frame(frame: Any) -> LabelTable:
    """Return the columns of a DataFrame."""
    columns: dict[str, Any] = {}
    for at, name in enumerate(frame.columns):
        column = frame.iloc[:, at]
        if type(column.dtype).__name__ == "CategoricalDtype":
            categories = column.cat.categories.astype(str).to_numpy(object)
            columns[str(name)] = Coded(column.cat.codes.to_numpy(), categories)
        elif getattr(column.dtype, "kind", "O") in "biuf" and isinstance(column.dtype, np.dtype):
            columns[str(name)] = column.to_numpy(copy=True)
        else:
            codes, values = column.factorize()
            if all(isinstance(value, bool | int | float | np.number) for value in values):
                columns[str(name)] = np.append(np.asarray(values, np.float64), np.nan)[codes]
            else:
                columns[str(name)] = Coded(
                    codes, np.array([str(value) for value in values], object)
                )
    return LabelTable(columns)


def labels_in(obs: Any, column: str) -> NDArray[Any]:
    """Return a column of obs, with the label "missing" where a value is missing."""
    if column not in obs.columns:
        columns = ", ".join(map(repr, obs.columns)) or "none"
        raise ValueError(f"No column {column!r} in obs; its columns: {columns}.")
    labels = obs[column].astype(object).to_numpy(copy=True)
    labels[obs[column].isna().to_numpy()] = "missing"
    return labels
