"""Reading and writing what the commands are given."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .messages import log

TABLES = (".npz", ".csv", ".tsv", ".csv.gz", ".tsv.gz")


def read_input(arguments: argparse.Namespace, streamed: bool = False) -> Any:
    """Open the counts that a command was given.

    A packed store is read piece by piece when it is needed; so is every other file if it should
    be `streamed`, or there is a memory limit.
    """
    from ..data.store import StoredCounts, is_store
    from ..data.stored import read_counts

    choices = _choices(arguments)
    counts: Any
    if Path(arguments.input).is_file() and is_store(arguments.input):
        if choices:
            option = next(iter(choices)).replace("_", "-")
            raise ValueError(f"--{option} does not apply to a packed store.")
        counts = StoredCounts(arguments.input)
    elif not streamed and getattr(arguments, "memory_limit", None) is None:
        counts = read_counts(arguments.input, integer="allow", **choices)
    else:
        return stream_input(arguments)
    return _looked_over(counts, arguments)


def stream_input(arguments: argparse.Namespace) -> Any:
    """Open a file of counts to be read piece by piece, within the memory limit."""
    from ..data.streamed import stream_counts

    counts = stream_counts(
        arguments.input, memory_limit=arguments.memory_limit, **_choices(arguments)
    )
    return _looked_over(counts, arguments)


def _choices(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("layer", "raw", "genome", "feature_type", "transpose")
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name)}


def _looked_over(counts: Any, arguments: argparse.Namespace) -> Any:
    """Warn of fractions, and give features the names of the file that was given for them."""
    if not counts.is_integer:
        log(
            f"warning: {arguments.input} holds counts that are not whole numbers: "
            f"{counts.first_fraction}. They are taken as they are; better give the raw counts "
            "(.h5ad: perhaps --layer or --raw)."
        )
    if arguments.feature_names is not None:
        counts.feature_names = _read_names(arguments.feature_names, counts.shape[1])
    return counts


def _read_names(path: str, n_features: int) -> Any:
    """Read one name per line, in the order of the features."""
    import numpy as np

    names = np.array(_text(path).splitlines(), dtype=object)
    if len(names) != n_features:
        raise ValueError(f"{path} has {len(names):,} names for {n_features:,} features.")
    return names


def _text(path: str) -> str:
    """Read text as UTF-8, with or without the mark that Excel begins it with."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error


def read_groups(path: str, n_samples: int, sample_names: Any) -> list[str]:
    """Read one label per line, in the order of the samples, or names and labels."""
    delimiter = "," if path.lower().endswith(".csv") else "\t"
    rows = list(csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter))
    if {len(row) for row in rows} == {1}:
        if len(rows) != n_samples:
            raise ValueError(f"{path} has {len(rows):,} labels for {n_samples:,} samples.")
        return [row[0] for row in rows]
    if {len(row) for row in rows} != {2}:
        raise ValueError(f"{path} must hold a label, or a sample name and a label, on each line.")
    if sample_names is None:
        raise ValueError(f"{path} names samples, but the model has no names: give labels alone.")
    label_of = {name: label for name, label in rows}
    missing = [str(name) for name in sample_names if str(name) not in label_of]
    if missing:
        raise ValueError(
            f"{path} has no label for {len(missing):,} samples such as {missing[0]!r}."
        )
    return [label_of[str(name)] for name in sample_names]


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


def output(
    path: str | Path, force: bool, suffixes: Sequence[str] = (), inputs: Sequence[str | None] = ()
) -> Path:
    """Check, before any work, that a file can be written to this path and none of `inputs` is."""
    if not str(path):
        raise ValueError("the name of the file to write is empty; give it one.")
    target = Path(path)
    for given in inputs:
        if given is not None and _is_part(target, Path(given)):
            raise ValueError(f"{path} would replace the input {given}; choose another name.")
    if suffixes and not target.name.lower().endswith(tuple(suffixes)):
        raise ValueError(f"{path} must end with one of {', '.join(suffixes)}.")
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it.")
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is a device, a pipe or a socket; name a file.")
    if target.exists() and not force:
        raise FileExistsError(f"{path} exists; choose another name, or replace it with --force.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {target.parent}.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {path}: the folder {target.parent} is read-only.")
    return target


def _is_part(target: Path, given: Path) -> bool:
    """Tell whether a path leads to a given file, or to one of the tables in a 10x folder."""
    tables = ("matrix.", "barcodes.", "features.", "genes.")
    if given.is_dir() and target.name.startswith(tables):
        given /= target.name
    return target.exists() and given.exists() and target.samefile(given)
