"""Tables of labels in HDF5 files: the columns of obs in packed stores and model files.

``about`` is a JSON object: ``columns``, the names.  Column number i is the dataset ``i`` of numbers
(n,), or a group ``i`` of text: ``codes`` (n,), -1 where a label is missing, and ``categories``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..counts.label_table import Coded, LabelTable
from ..counts.names import name_array
from .arrays import damaged, put, put_json, put_names, read_checked, read_json, read_names
from .hdf5 import is_group, need


def put_table(file: Any, name: str, table: LabelTable) -> None:
    """Write a table."""
    put_json(file, f"{name}/about", {"columns": list(table)})
    for i, column in enumerate(table.columns.values()):
        if isinstance(column, Coded):
            put(file, f"{name}/{i}/codes", column.codes)
            put_names(file, f"{name}/{i}/categories", name_array(column.categories))
        else:
            put(file, f"{name}/{i}", column)


def read_table(file: Any, name: str, size: int | None = None) -> LabelTable:
    """Read a table, whose columns have `size` values, or as many as the first column."""
    names = read_json(file, f"{name}/about").get("columns")
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        raise damaged(file, f"{name}/about does not list columns")
    columns: dict[str, Any] = {}
    for i, column in enumerate(names):
        place = f"{name}/{i}"
        is_text = is_group(need(file, place))
        where, kinds = (f"{place}/codes", ("i",)) if is_text else (place, ("b", "i", "u", "f"))
        values = read_checked(file, where, (size,), kinds)
        size = len(values)
        if is_text:
            categories = read_names(file, f"{place}/categories", (None,))
            if values.size and not -1 <= values.min() <= values.max() < len(categories):
                raise damaged(file, f"{where} has numbers of categories that do not exist")
            values = Coded(values, np.asarray(categories, object))
        columns[str(column)] = values
    return LabelTable(columns)
