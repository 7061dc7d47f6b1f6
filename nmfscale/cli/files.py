"""Reading and writing what the commands are given."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..storage.atomic import target_of
from .messages import log

TABLES = (".npz", ".csv", ".tsv", ".csv.gz", ".tsv.gz")


def read_input(arguments: argparse.Namespace, streamed: bool = False) -> Any:
    """Open the counts that a command was given, with the feature names that it was given.

    A packed store is read piece by piece when it is needed; so is every other file if it should
    be `streamed`, or there is a memory limit.
    """
    from ..readers.open import open_counts

    limit = getattr(arguments, "memory_limit", None)
    names = ("layer", "raw", "genome", "feature_type", "transpose")
    column = getattr(arguments, "labels", None)
    counts = open_counts(
        arguments.input, integer="allow", in_memory=not streamed and limit is None,
        memory_limit=limit, groups=None if column is None or os.path.exists(column) else column,
        **{name: getattr(arguments, name) for name in names},
    )  # fmt: skip
    if not counts.is_integer:
        log(
            f"warning: {arguments.input} holds counts that are not whole numbers: "
            f"{counts.first_fraction}. They are taken as they are; better give the raw counts "
            "(.h5ad: perhaps --layer or --raw)."
        )
    if arguments.feature_names is not None:
        import numpy as np

        path = arguments.feature_names
        found = _as_many(path, _text(path).splitlines(), counts.shape[1], "names", "features")
        counts.feature_names = np.array(found, object)
    return counts


def _as_many(path: str, lines: list[str], wanted: int, what: str, of: str) -> list[str]:
    """Return as many lines as wanted; there may be blank ones below them."""
    while len(lines) > wanted and not lines[-1]:
        lines.pop()
    if len(lines) == wanted:
        return lines
    complaint = f"{path} has {len(lines):,} {what} for {wanted:,} {of}"
    if len(lines) == wanted + 1:
        complaint += f": its first line, {lines[0]!r}, looks like a header; remove it if it is one"
    raise ValueError(f"{complaint}.")


def _text(path: str) -> str:
    """Read text as UTF-8, with or without the mark that Excel begins it with."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error


def read_groups(path: str, n_samples: int, sample_names: Any) -> list[str | None]:
    """Read one label per line, in the order of the samples, or names and labels."""
    rows = _table(path)
    widths = {len(row) for row in rows if row != [""]}
    if widths == {1}:
        labels = _as_many(path, [row[0] for row in rows], n_samples, "labels", "samples")
        return [label or None for label in labels]
    if widths != {2}:
        raise ValueError(f"{path} must hold a label, or a sample name and a label, on each line.")
    if sample_names is None:
        raise ValueError(f"{path} names samples, but the model has no names: give labels alone.")
    label_of = dict(row for row in rows if row != [""])
    missing = [str(name) for name in sample_names if str(name) not in label_of]
    if missing:
        raise ValueError(
            f"{path} has no label for {len(missing):,} samples such as {missing[0]!r}."
        )
    return [label_of[str(name)] or None for name in sample_names]


def labels_of(given: str, counts: Any) -> Any:
    """Return the labels of samples, from a file or a column of obs, None where there is none."""
    import numpy as np

    if os.path.exists(given):
        return np.array(read_groups(given, counts.shape[0], counts.sample_names), object)
    return np.array([None if each == "missing" else each for each in counts.groups], object)


def _table(path: str) -> list[list[str]]:
    """Read the cells of each line; a line that is blank has an empty one."""
    text, is_csv = _text(path), path.lower().endswith(".csv")
    if not is_csv and "\t" not in text:
        # R puts quotation marks around each label; a single one is part of it.
        return [[re.sub(r'^"([^"]*)"$', r"\1", line)] for line in text.splitlines()]
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter="," if is_csv else "\t", strict=True
    )
    try:
        return [row or [""] for row in lines]
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {lines.line_num}: {error}; write a quotation mark in a cell twice, and "
            "one before and after the cell."
        ) from error


def write_table(path: Path, loadings: Any, sample_names: Any) -> None:
    """Write loadings as .npz, or as text with every digit that counts."""
    import numpy as np

    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"loadings": loadings}
        if sample_names is not None:
            arrays["sample_names"] = np.asarray(sample_names, dtype=str)
        with path.open("wb") as archive:  # to a path, NumPy would add a suffix of its own to .NPZ
            np.savez_compressed(archive, **arrays)
        return
    names = range(len(loadings)) if sample_names is None else sample_names
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        delimiter = "," if path.name.lower().endswith((".csv", ".csv.gz")) else "\t"
        table = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        table.writerow(["sample", *(f"topic_{k + 1}" for k in range(loadings.shape[1]))])
        table.writerows([name, *row.astype(str)] for name, row in zip(names, loadings, strict=True))


def check_inputs(*paths: str | None) -> None:
    """Refuse, before anything waits for it, what is no file or folder: it cannot be read twice."""
    for path in paths:
        if path is not None and os.path.exists(path):
            given = Path(path)
            if not given.is_file() and not given.is_dir():
                raise ValueError(f"{path} is a pipe, a socket or a device: give a file.")


def output(
    arguments: argparse.Namespace, suffixes: Sequence[str], inputs: Sequence[str | None] = (),
    replaces: bool = False,
) -> Path:  # fmt: skip
    """Check, before any work, that the output can be written and is none of the inputs.

    `replaces`: whether an existing file is replaced without --force.
    """
    target = writable(arguments.output, arguments.force or replaces, inputs)
    if not target.name.lower().endswith(tuple(filter(None, suffixes))) and (
        target.suffix or "" not in suffixes
    ):
        endings = ", ".join(suffix for suffix in suffixes if suffix)
        arguments.usage(f"{arguments.output} must end with one of {endings}.")
    return target


def writable(path: str | Path, force: bool, inputs: Sequence[str | None] = ()) -> Path:
    """Return a path to which a file can be written, and that is none of `inputs`."""
    if not str(path):
        raise ValueError("the name of the file to write is empty; give it one.")
    target = Path(path)
    for given in inputs:
        if given is not None and _is_part(target, Path(given)):
            raise ValueError(f"{path} would replace the input {given}; choose another name.")
    target_of(path)
    if target.exists() and not force:
        raise FileExistsError(f"{path} exists; choose another name, or replace it with --force.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {path}: the folder {target.parent} is read-only.")
    return target


def _is_part(target: Path, given: Path) -> bool:
    """Tell whether a path leads to a given file, or to one of the tables in a 10x folder."""
    tables = ("matrix.", "barcodes.", "features.", "genes.")
    if given.is_dir() and target.name.startswith(tables):
        given /= target.name
    return target.exists() and given.exists() and target.samefile(given)
