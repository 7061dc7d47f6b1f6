"""Result arrays as tables with a row for each entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def tidy_frame(
    rows: Mapping[str, Any], columns: Mapping[str, Any], values: Mapping[str, Array]
) -> Any:
    """Return a DataFrame with a row for each entry of arrays (n_rows, n_columns).

    `rows` and `columns` map the name of a new column to the labels of the axis.
    """
    import pandas as pd

    places = [each.ravel() for each in np.indices(next(iter(values.values())).shape)]
    labels: dict[str, Any] = {
        # the last entry keeps NumPy from turning names that are tuples into rows
        name: np.array([*names, None], object)[at]
        for at, axis in zip(places, (rows, columns), strict=True)
        for name, names in axis.items()
    }
    frame = pd.DataFrame(labels | {name: each.ravel() for name, each in values.items()})
    return frame.infer_objects()
