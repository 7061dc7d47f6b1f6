"""Labels of samples that commands read: from text, tables, or columns of obs."""

from __future__ import annotations

import argparse
import csv
import inspect
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .messages import log


def as_many(path: str, lines: list[str], wanted: int, what: str, of: str) -> list[str]:
    """Check the number of lines, and return them without blank lines at the end."""
    while len(lines) > wanted and not lines[-1]:
        lines.pop()
    if len(lines) == wanted:
        return lines
    complaint = f"{path} has {len(lines):,} {what} for {wanted:,} {of}"
    if len(lines) == wanted + 1:
        complaint += f": its first line, {lines[0]!r}, looks like a header; remove it if it is one"
    raise ValueError(f"{complaint}.")


def text_of(path: str) -> str:
    """Read a text file, plain or gzip."""
    from ..readers.sources.name_files import text_of_file

    if not os.path.exists(path):  # reading would retry for some time if the file is missing
        raise FileNotFoundError(f"No such file: {path}")
    return text_of_file(Path(path))


def split_lines(text: str) -> list[str]:
    """Split text at line ends only: names may contain other characters where Python splits."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def file_and_column(spec: str) -> tuple[str, str | None]:
    """Split FILE:COLUMN; the name of an existing file has no column."""
    if os.path.exists(spec):
        return spec, None
    parts = spec.split(":")
    splits = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    splits = [split for split in splits if split[0]]
    there = [split for split in splits if os.path.exists(split[0])]  # columns may have colons
    return next(iter(there + splits), (spec, None))


def read_groups(spec: str, n_samples: int, sample_names: Any, obs: Any = None) -> list[str | None]:
    """Read labels of samples: one on each line, names and labels, or a column of a table or obs.

    `obs` is the table of the model or of the counts; it has the column if there is no such file.
    """
    path, column = file_and_column(spec)
    if obs is not None and not os.path.exists(path):
        if spec in obs:
            return _labels_in(obs[spec])
        column_names = ", ".join(map(repr, obs))
        raise ValueError(f"{spec} is neither a file nor a column of obs; columns: {column_names}.")
    if path.lower().endswith((".h5ad", ".h5mu")):
        from ..readers.formats.h5ad import read_obs

        return _matched(path, *read_obs(Path(path), column), n_samples, sample_names)
    if (named_table := _named_obs(path)) is not None:
        names, table = named_table
        if column is None or column not in table:
            asked = "add a column" if column is None else f"there is no column {column!r}"
            column_names = ", ".join(table) or "none"
            raise ValueError(
                f"{path}: {asked}, as {path}:COLUMN; columns of samples: {column_names}."
            )
        return _matched(path, names, _labels_in(table[column]), n_samples, sample_names)
    rows = _table(path)
    if column is not None:
        return _matched(path, *_names_and_column(path, rows, column), n_samples, sample_names)
    widths = {len(row) for row in rows if row != [""]}
    if widths == {1}:
        _check_separator(path, [row[0] for row in rows if row != [""]], sample_names)
        labels = as_many(path, [row[0] for row in rows], n_samples, "labels", "samples")
        return [_label(label) for label in labels]
    if widths != {2}:
        columns = [name for name in rows[0][1:] if name] if rows else []
        choose = f"; or add a column, as {path}:COLUMN, of: {', '.join(columns)}"
        raise ValueError(
            f"{path} must hold a label, or a sample name and a label, on each line"
            f"{choose if len(columns) > 1 else ''}."
        )
    if sample_names is None:
        raise ValueError(f"{path} names samples, but the model has no names: pass only labels.")
    pairs = [row for row in rows if row != [""]]
    names, labels_of_names = [row[0] for row in pairs], [_label(row[1]) for row in pairs]
    return _by_name(path, names, labels_of_names, sample_names)


def _named_obs(path: str) -> tuple[Any, Any] | None:
    """Return names and columns of samples in a zarr store, packed store or model, else None."""
    from ..models.persistence import is_model_file, load_model
    from ..readers.formats.zarr_store import read_zarr_obs
    from ..storage.store import open_store

    if os.path.isdir(path):
        return read_zarr_obs(Path(path))
    if not os.path.isfile(path):
        return None
    if is_model_file(path):
        model = load_model(path)
        return model.sample_names_, model.obs_ or {}
    stored = open_store(path)
    return None if stored is None else (stored.sample_names, stored.obs or {})


def _labels_in(column: Any) -> list[str | None]:
    """Return a column of obs as labels: numbers as text, None where a value is missing."""
    from ..counts.names import is_missing

    return [
        None if is_missing(value) else str(value).removesuffix(".0" * isinstance(value, float))
        for value in column.tolist()
    ]


def _check_separator(path: str, lines: list[str], sample_names: Any) -> None:
    """Refuse lines that hold a name and a label with a separator that is not supported."""
    from ..counts.names import as_text

    names = set() if sample_names is None else set(as_text(sample_names).tolist())
    for mark in ";,| ":
        # the first line may be a header
        if lines[1:] and all(mark in line and line.split(mark)[0] in names for line in lines[1:]):
            end = "or" if path.lower().removesuffix(".gz").endswith(".csv") else "or, in a .csv,"
            raise ValueError(
                f"{path} has names and labels separated by {mark!r}, as in {lines[1]!r}: separate "
                f"them by a TAB (.tsv) {end} by a comma."
            )


# What R and pandas write for a missing label.
_MISSING = {"", "NA", "<NA>", "NaN", "nan"}


def _label(cell: str) -> str | None:
    return None if cell in _MISSING else cell


_UNITS = re.compile(
    r"donor|patient|subject|individual|participant|person|mouse|animal|embryo|sample|batch|library|"
    r"channel|author|user|blog|source|speaker|replicate",
    re.IGNORECASE,
)


def unit_columns(spec: str, obs: Any = None) -> list[str]:
    """Return the other columns of a table of labels, or of obs, whose names suggest units."""
    path, column = file_and_column(spec)
    if obs is not None and not os.path.exists(path):
        names, column = list(obs), spec
    elif column is None:
        return []
    elif path.lower().endswith((".h5ad", ".h5mu")):
        from ..readers.formats.h5ad import obs_columns

        names = obs_columns(Path(path))
    elif (named_table := _named_obs(path)) is not None:
        names = list(named_table[1])
    else:
        names = next((row for row in _table(path) if row != [""]), [""])[1:]
    return [name for name in names if name != column and _UNITS.search(name)]


def warn_of_order(specs: Iterable[str | None], sample_names: Any) -> None:
    """Warn that labels are matched by position if a table has names and the model has none."""
    named = [spec for spec in specs if spec is not None and file_and_column(spec)[1] is not None]
    if named and sample_names is None:
        log(
            f"warning: the model has no names of samples, so labels of {named[0]} are matched by "
            "position. Fit with --sample-names to match them by name."
        )


def _names_and_column(
    path: str, rows: list[list[str]], column: str
) -> tuple[list[str], list[str | None]]:
    """Return the first column of a table, and the column with a header."""
    header, *body = [row for row in rows if row != [""]] or [[]]
    if column not in header:
        columns = ", ".join(map(repr, header))
        raise ValueError(
            f"{path} has no column {column!r} in its first line: {columns or 'nothing'}."
        )
    if header.count(column) > 1:
        raise ValueError(f"{path} has {header.count(column)} columns {column!r}: rename them.")
    at = header.index(column)
    # R writes no header for row names
    shift = 1 if body and all(len(row) == len(header) + 1 for row in body) else 0
    for number, row in enumerate(body, 2):
        if len(row) != len(header) + shift:
            raise ValueError(f"{path}, row {number}: {len(row)} cells, not {len(header) + shift}.")
    return [row[0] for row in body], [_label(row[at + shift]) for row in body]


def _matched(
    path: str, names: Any, labels: Any, n_samples: int, sample_names: Any
) -> list[str | None]:
    """Return labels in the order of the samples, matched by name if the model has names."""
    labels = [None if label is None else _label(str(label)) for label in labels]
    if sample_names is None:
        if len(labels) != n_samples:
            raise ValueError(
                f"{path} has {len(labels):,} labels for {n_samples:,} samples, and the model has "
                "no names of samples."
            )
        return labels
    return _by_name(path, names, labels, sample_names)


def _by_name(
    path: str, names: Iterable[Any], labels: list[str | None], sample_names: Any
) -> list[str | None]:
    """Return the labels of the samples, matched by name; each sample needs a label."""
    from ..counts.names import as_text, repeated_names, such_as

    names_in_file, wanted = as_text(names).tolist(), as_text(sample_names).tolist()
    if names_in_file == wanted:
        return labels
    label_of: dict[str, str | None] = {}
    for name, label in zip(names_in_file, labels, strict=True):
        if label_of.setdefault(name, label) != label:
            raise ValueError(
                f"{path} names samples twice, such as {name!r} with the labels "
                f"{label_of[name] or 'none'!r} and {label or 'none'!r}: make their names unique."
            )
    missing = [name for name in wanted if name not in label_of]
    if missing:
        beside = (
            f"; it has {names_in_file[0]!r}"
            if len(missing) == len(wanted) and names_in_file
            else ""
        )
        raise ValueError(
            f"{path} has no label for {len(missing):,} of {len(wanted):,} samples, such as "
            f"{missing[0]!r}{beside}."
        )
    if repeated := repeated_names(wanted):
        raise ValueError(
            f"several samples of the model have the same name, such as {such_as(repeated)}, so "
            f"{path} cannot be matched by name: make names unique before the fit."
        )
    return [label_of[name] for name in wanted]


def labels_of(spec: str, counts: Any) -> Any:
    """Return the labels of samples from a file or a column of obs; None for missing labels."""
    import numpy as np

    if os.path.exists(file_and_column(spec)[0]):
        return np.array(read_groups(spec, counts.shape[0], counts.sample_names), object)
    return np.array([None if label == "missing" else label for label in counts.groups], object)


def _table(path: str) -> list[list[str]]:
    """Read the cells of each line; a blank line has one empty cell."""
    text, is_csv = text_of(path), path.lower().removesuffix(".gz").endswith(".csv")
    if not is_csv and "\t" not in text:
        # R writes quotation marks around each label; a single one is part of the label.
        return [[re.sub(r'^"([^"]*)"$', r"\1", line)] for line in split_lines(text)]
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter="," if is_csv else "\t", strict=True
    )
    try:
        return [row or [""] for row in lines]
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {lines.line_num}: {error}; double a quotation mark inside a cell, and "
            "put quotation marks around the cell."
        ) from error


def units_of(arguments: argparse.Namespace, counts: Any) -> list[str] | None:
    """Return the units of the samples of counts by the option; every sample needs one."""
    if arguments.units is None:
        return None
    units = read_groups(arguments.units, counts.shape[0], counts.sample_names, counts.obs)
    missing = [i for i, unit in enumerate(units) if unit is None]
    if missing:
        raise ValueError(
            f"--units {arguments.units} has no label for {len(missing):,} samples (the first is "
            f"{missing[0]}): add the labels, such as names of their own."
        )
    return [str(unit) for unit in units]


def check_batch(arguments: argparse.Namespace, kind: Any) -> None:
    """Refuse batches for models whose fit does not take them."""
    if arguments.batch is not None and "batch" not in inspect.signature(kind.fit).parameters:
        named = arguments.model or kind.__name__
        arguments.usage(f"--batch is for --model topic, poisson and gamma-poisson, not {named}")


def _is_single_file(source: Any, counts: Any) -> bool:
    """Whether counts are of one file, so that they have no column with the names of files."""
    there = os.path.exists("file") or "file" in (counts.obs or {})
    return isinstance(source, str) and not there


def batch_of(arguments: argparse.Namespace, counts: Any) -> dict[str, Any]:
    """Return the argument `batch` of `fit` and `transform`, if the option is given."""
    import numpy as np

    if arguments.batch is None:
        return {}
    if arguments.batch == "file" and _is_single_file(arguments.input, counts):
        from ..readers.streams.joined import labels_of_files

        return {"batch": labels_of_files([arguments.input]) * counts.shape[0]}
    batch = read_groups(arguments.batch, counts.shape[0], counts.sample_names, counts.obs)
    return {"batch": np.array(batch, object)}
