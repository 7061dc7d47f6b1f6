"""Symbols of genes in a file, by the identifiers that a fit has as names of features."""

from __future__ import annotations

import os
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...counts.names import as_text, such_as
from ...storage.atomic import user_path
from ..sources.name_files import HEADS, SYMBOLS, read_name_file
from ..sources.sources import SLICE, MemoryLimits
from .formats import open_table
from .text_tables import is_text_table

# Columns of the files of 10x Genomics, which have no header.
_COLUMNS = "id", "name", "feature_type"


def symbols_in_file(
    path: str | os.PathLike[str], column: str | None, names: Any, modality: str | None = None
) -> dict[str, Any]:
    """Return the symbol of each feature in a file, by the names that a fit has.

    These may be the names of features in the file or any column of var: the one that has most of
    them is taken. `column` is that of the symbols, by default one with a usual name.
    """
    path = user_path(path)
    columns = _columns_of(path, modality)
    wanted = set(as_text(names))
    shared = {name: len(wanted.intersection(values)) for name, values in columns.items()}
    own = max(shared, key=lambda name: shared[name])
    listed = ", ".join(repr(name) for name in columns if name) or "none"
    if not shared[own]:
        raise ValueError(
            f"{path} has none of the {len(wanted):,} features of the model, such as "
            f"{such_as(wanted)}, among its features and in its columns ({listed})."
        )
    if column is None:
        there = {name.lower(): name for name in columns if name != own}
        column = next((there[usual] for usual in (*SYMBOLS, "") if usual in there), None)
    if column not in columns:
        asked = "add a column with symbols" if column is None else f"there is no column {column!r}"
        raise ValueError(f"{path}: {asked}, as {path}:COLUMN; its columns: {listed}.")
    return dict(zip(columns[own], columns[column], strict=True))


def _columns_of(path: Path, modality: str | None) -> dict[str, list[str]]:
    """Return the columns of text of var by name, and the names of features with the name ""."""
    if is_text_table(path):
        head, *body = read_name_file(path).rows or [[]]
        if HEADS.isdisjoint(field.strip().lower() for field in head):
            head, body = list(_COLUMNS[: len(head)]), [head, *body]
        fields = zip_longest(*body, fillvalue="")
        return {name: list(cells) for name, cells in zip(head, fields, strict=False)}
    table = open_table(
        path, MemoryLimits(SLICE), {} if modality is None else {"modality": modality}
    )
    with closing(table.source):
        columns = {} if table.feature_names is None else {"": list(as_text(table.feature_names))}
        for name, values in () if table.var is None else table.var().items():
            if values.dtype.kind in "OSU":
                columns[name] = ["" if value is None else str(value) for value in values.tolist()]
    return columns
