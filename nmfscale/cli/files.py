"""Files of the commands: inputs, labels of samples, tables, and checks of outputs."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..storage.atomic import target_of
from .messages import log, one_line

TEXT_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TABLES = (".npz", *TEXT_TABLES)


def read_input(arguments: argparse.Namespace, streamed: bool = False) -> Any:
    """Open a command's counts, with the names of samples and features in its options.

    A packed store is read in pieces when it is needed; so are other files if `streamed` is true, or
    with a memory limit.
    """
    from ..counts.names import NumberOfNamesError
    from ..readers.open import open_counts

    limit = getattr(arguments, "memory_limit", None)
    options = (
        "layer",
        "raw",
        "names",
        "genome",
        "feature_type",
        "transpose",
        "modality",
        "samples_in",
    )
    column = getattr(arguments, "labels", None)
    if column is not None and os.path.exists(file_and_column(column)[0]):
        column = None  # labels_of reads the file
    given = {name: getattr(arguments, name) for name in options} | {"groups": column}
    if getattr(arguments, "join", None) is not None:
        given["join"] = arguments.join
    given |= {
        mask: _names_or_column(getattr(arguments, of))
        for mask, of in (("mask_var", "features"), ("mask_obs", "samples"))
    }
    lines = {name: _lines_of_option(arguments, name) for name in ("feature_names", "sample_names")}

    def opened(**names: Any) -> Any:
        return open_counts(
            arguments.input, integer="allow", in_memory=not streamed and limit is None,
            memory_limit=limit, **given, **names,
        )  # fmt: skip

    try:
        counts = opened(**lines)
    except NumberOfNamesError as error:
        name, of = error.argument, f"{error.argument.removesuffix('_names')}s"
        path = getattr(arguments, name)
        lines[name] = _as_many(path, lines[name], error.size, "names", of)
        counts = opened(**lines)
    if not counts.is_integer:
        source = ", ".join(input_files(arguments))
        log(
            f"warning: {source} holds counts that are not whole numbers: "
            f"{counts.first_fraction}. They are used as they are; better pass the raw counts"
            f"{_of_other_matrices(arguments)}."
        )
    return counts


def input_files(arguments: argparse.Namespace) -> list[str]:
    """Return the files of counts of a command."""
    given = arguments.input
    return given if isinstance(given, list) else [given]


def _lines_of_option(arguments: argparse.Namespace, name: str) -> Any:
    """Return the lines of the file of names that an option gives; None without the option."""
    path = getattr(arguments, name)
    return None if path is None else _lines(_text(path))


def _names_or_column(given: str | None) -> Any:
    """Return the names in a file, one on each line, or else the name of a column."""
    if given is None or not os.path.exists(given):
        return given
    names = [line for line in _lines(_text(given)) if line]
    if not names:
        raise ValueError(f"{given} has no names: one on each line is needed.")
    return names


def _of_other_matrices(arguments: argparse.Namespace) -> str:
    """Return the options that choose another matrix of an AnnData file, as text."""
    from ..readers.h5ad import matrix_names

    files = input_files(arguments)
    if len(files) > 1 or not files[0].lower().endswith(".h5ad"):
        return ""
    options = {
        name: f"--layer {shlex.quote(name.removeprefix('layers/'))}"
        if name.startswith("layers/")
        else "--raw"
        for name in matrix_names(Path(files[0]))
        if name != "X"
    }
    options = {name: each for name, each in options.items() if name != f"layers/{arguments.layer}"}
    if arguments.raw:
        options = {name: each for name, each in options.items() if each != "--raw"}
    return f"; the file also has {', '.join(options.values())}" if options else ""


def _as_many(path: str, lines: list[str], wanted: int, what: str, of: str) -> list[str]:
    """Check the number of lines, and return them without blank lines at the end."""
    while len(lines) > wanted and not lines[-1]:
        lines.pop()
    if len(lines) == wanted:
        return lines
    complaint = f"{path} has {len(lines):,} {what} for {wanted:,} {of}"
    if len(lines) == wanted + 1:
        complaint += f": its first line, {lines[0]!r}, looks like a header; remove it if it is one"
    raise ValueError(f"{complaint}.")


def _text(path: str) -> str:
    """Read a text file, plain or gzip."""
    from ..readers.name_files import text_of_file

    if not os.path.exists(path):  # reading would retry for some time if the file is missing
        raise FileNotFoundError(f"No such file: {path}")
    return text_of_file(Path(path))


def _lines(text: str) -> list[str]:
    """Split text at line ends only: names may contain other characters where Python splits."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def file_and_column(given: str) -> tuple[str, str | None]:
    """Split FILE:COLUMN; the name of an existing file has no column."""
    if os.path.exists(given):
        return given, None
    parts = given.split(":")
    splits = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    splits = [split for split in splits if split[0]]
    there = [split for split in splits if os.path.exists(split[0])]  # columns may have colons
    return next(iter(there + splits), (given, None))


def read_groups(given: str, n_samples: int, sample_names: Any, obs: Any = None) -> list[str | None]:
    """Read labels of samples: one on each line, names and labels, or a column of a table or obs.

    `obs` is the table of the model or of the counts; it has the column if there is no such file.
    """
    path, column = file_and_column(given)
    if obs is not None and not os.path.exists(path):
        if given in obs:
            return _labels_in(obs[given])
        known = ", ".join(map(repr, obs))
        raise ValueError(f"{given} is neither a file nor a column of obs; columns: {known}.")
    if path.lower().endswith(".h5ad"):
        from ..readers.h5ad import read_obs

        return _matched(path, *read_obs(Path(path), column), n_samples, sample_names)
    if os.path.isdir(path):
        from ..readers.zarr_store import read_zarr_obs

        return _matched(path, *read_zarr_obs(Path(path), column), n_samples, sample_names)
    rows = _table(path)
    if column is not None:
        return _matched(path, *_names_and_column(path, rows, column), n_samples, sample_names)
    widths = {len(row) for row in rows if row != [""]}
    if widths == {1}:
        _check_separator(path, [row[0] for row in rows if row != [""]], sample_names)
        labels = _as_many(path, [row[0] for row in rows], n_samples, "labels", "samples")
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


def _labels_in(column: Any) -> list[str | None]:
    """Return a column of obs as labels: numbers as text, None where a value is missing."""
    values = [None if value is None or value != value else value for value in column.tolist()]
    return [
        None if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        for value in values
    ]


def _check_separator(path: str, lines: list[str], sample_names: Any) -> None:
    """Refuse lines that hold a name and a label with a separator that is not supported."""
    from ..counts.names import as_text

    known = set() if sample_names is None else set(as_text(sample_names).tolist())
    for mark in ";,| ":
        # the first line may be a header
        if lines[1:] and all(mark in line and line.split(mark)[0] in known for line in lines[1:]):
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


def unit_columns(given: str, obs: Any = None) -> list[str]:
    """Return the other columns of a table of labels, or of obs, whose names suggest units."""
    path, column = file_and_column(given)
    if obs is not None and not os.path.exists(path):
        names, column = list(obs), given
    elif column is None:
        return []
    elif path.lower().endswith(".h5ad"):
        from ..readers.h5ad import obs_columns

        names = obs_columns(Path(path))
    else:
        names = next((row for row in _table(path) if row != [""]), [""])[1:]
    return [name for name in names if name != column and _UNITS.search(name)]


def warn_of_order(given: Iterable[str | None], sample_names: Any) -> None:
    """Warn that labels are matched by position if a table has names and the model has none."""
    named = [each for each in given if each is not None and file_and_column(each)[1] is not None]
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
        known = ", ".join(map(repr, header))
        raise ValueError(
            f"{path} has no column {column!r} in its first line: {known or 'nothing'}."
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

    found, wanted = as_text(names).tolist(), as_text(sample_names).tolist()
    if found == wanted:
        return labels
    label_of: dict[str, str | None] = {}
    for name, label in zip(found, labels, strict=True):
        if label_of.setdefault(name, label) != label:
            raise ValueError(
                f"{path} names samples twice, such as {name!r} with the labels "
                f"{label_of[name] or 'none'!r} and {label or 'none'!r}: make their names unique."
            )
    missing = [name for name in wanted if name not in label_of]
    if missing:
        beside = f"; it has {found[0]!r}" if len(missing) == len(wanted) and found else ""
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


def labels_of(given: str, counts: Any) -> Any:
    """Return the labels of samples from a file or a column of obs; None for missing labels."""
    import numpy as np

    if os.path.exists(file_and_column(given)[0]):
        return np.array(read_groups(given, counts.shape[0], counts.sample_names), object)
    return np.array([None if each == "missing" else each for each in counts.groups], object)


def _table(path: str) -> list[list[str]]:
    """Read the cells of each line; a blank line has one empty cell."""
    text, is_csv = _text(path), path.lower().removesuffix(".gz").endswith(".csv")
    if not is_csv and "\t" not in text:
        # R writes quotation marks around each label; a single one is part of the label.
        return [[re.sub(r'^"([^"]*)"$', r"\1", line)] for line in _lines(text)]
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


def columns_of_topics(model: Any) -> list[str]:
    """Return the headers of topics in tables: their names if they have any, else numbered ones."""
    from ..models.topics import topic_names_of

    names = topic_names_of(model, len(model.components_))
    return names if hasattr(model, "topic_names_") else [name.replace(" ", "_") for name in names]


def table_of_topics(
    what: str, names: Any, matrix: Any, model: Any
) -> tuple[list[str], Iterable[list[Any]]]:
    """Return the header and rows of a matrix with row names or numbers, in full precision."""
    from ..counts.names import as_text

    names = range(len(matrix)) if names is None else as_text(names).tolist()
    rows = ([name, *row.astype(str)] for name, row in zip(names, matrix, strict=True))
    return [what, *columns_of_topics(model)], rows


def write_table(path: Path, loadings: Any, sample_names: Any, model: Any) -> None:
    """Write loadings as .npz, or as text in full precision."""
    import numpy as np

    from ..counts.names import as_text

    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"loadings": loadings}
        if sample_names is not None:
            arrays["sample_names"] = as_text(sample_names).astype(str)
        with path.open("wb") as archive:  # given the path, NumPy would append .npz to .NPZ
            np.savez_compressed(archive, **arrays)
        return
    write_rows(path, path.name, *table_of_topics("sample", sample_names, loadings, model))


def write_rows(path: Path, name: str, header: list[str], rows: Iterable[list[Any]]) -> None:
    """Write a text table, in the format of the suffix of `name`."""
    name = name.lower()
    opener: Callable[..., Any] = gzip.open if name.endswith(".gz") else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        delimiter = "," if name.endswith((".csv", ".csv.gz")) else "\t"
        table = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def write_or_rescue(target: Path, what: str, write: Callable[[Path], None]) -> None:
    """Write the result of long work; if that fails, write it to a temporary folder instead.

    The error names that folder.
    """
    try:
        write(target)
        return
    except OSError as error:
        why = one_line(error)
    folder = Path(tempfile.mkdtemp(prefix="nmfscale-"))
    rescued = folder / target.name
    try:
        write(rescued)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(
            f"cannot write {what} to {target} ({why}), nor to {rescued} ({one_line(error)}): the "
            "result is lost. Free disk space, or set TMPDIR to a folder with more space."
        ) from error
    raise OSError(f"cannot write {what} to {target} ({why}): the result is in {rescued}.")


def check_inputs(*paths: str | None) -> None:
    """Refuse pipes, sockets and devices, which cannot be read twice, before reading blocks."""
    for path in paths:
        if path is not None and os.path.exists(path):
            given = Path(path)
            if not given.is_file() and not given.is_dir():
                raise ValueError(f"{path} is a pipe, a socket or a device: pass a file.")


def output(
    arguments: argparse.Namespace, suffixes: Sequence[str], inputs: Sequence[str | None] = (),
    replaces: bool = False, given: str | None = None,
) -> Path:  # fmt: skip
    """Check, before any work, that the output can be written and is not one of the inputs.

    `replaces` allows to replace an existing file without --force. `given` is the output to check,
    if the command has several.
    """
    given = arguments.output if given is None else given
    target = writable(given, arguments.force or replaces, inputs)
    if not target.name.lower().endswith(tuple(filter(None, suffixes))) and (
        target.suffix or "" not in suffixes
    ):
        endings = ", ".join(suffix for suffix in suffixes if suffix)
        arguments.usage(f"{given} must end with one of {endings}.")
    return target


def writable(path: str | Path, force: bool, inputs: Sequence[str | None] = ()) -> Path:
    """Return the path of an output after checking that it can be written and is not an input."""
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
    """Whether a path is an input file, or a table in an input folder with counts."""
    tables = r"\.mtx(\.gz)?$|barcodes|features|genes|peaks|cell_metadata|quants_mat"
    if given.is_dir() and re.search(tables, target.name):
        given /= target.name
    return target.exists() and given.exists() and target.samefile(given)
