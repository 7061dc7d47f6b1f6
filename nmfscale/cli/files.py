"""Files of the commands: inputs, labels of samples, tables, and checks of outputs."""

from __future__ import annotations

import argparse
import csv
import gzip
import inspect
import os
import re
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..storage.atomic import target_of
from .labels import as_many, file_and_column, split_lines, text_of
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
    nan = getattr(arguments, "data_weights", None) == "nan"
    options = (
        "layer",
        "raw",
        "names",
        "genome",
        "feature_type",
        "transpose",
        "modality",
        "modality_weights",
        "samples_in",
    )
    column = getattr(arguments, "labels", None)
    if column is not None and os.path.exists(file_and_column(column)[0]):
        column = None  # labels_of reads the file
    choices = {name: getattr(arguments, name) for name in options} | {"groups": column}
    if getattr(arguments, "join", None) is not None:
        choices["join"] = arguments.join
    choices |= {
        mask: _names_or_column(getattr(arguments, of))
        for mask, of in (("mask_var", "features"), ("mask_obs", "samples"))
    }
    lines = {name: _lines_of_option(arguments, name) for name in ("feature_names", "sample_names")}

    def opened(**names: Any) -> Any:
        return open_counts(
            arguments.input, integer="allow", in_memory=not streamed and limit is None,
            memory_limit=limit, nan=nan, **choices, **names,
        )  # fmt: skip

    try:
        counts = opened(**lines)
    except NumberOfNamesError as error:
        name, of = error.argument, f"{error.argument.removesuffix('_names')}s"
        path = getattr(arguments, name)
        lines[name] = as_many(path, lines[name], error.size, "names", of)
        counts = opened(**lines)
    if not counts.is_integer:
        source = ", ".join(input_files(arguments))
        # counts of a fit are compared with it
        is_new = getattr(arguments, "of", None) is None
        if arguments.command in ("fit", "select-k", "stability") and is_new:
            _refuse_logarithms(arguments, counts, source)
        log(
            f"warning: {source} holds counts that are not whole numbers: "
            f"{counts.first_fraction}. They are used as they are; better pass the raw counts"
            f"{_of_other_matrices(arguments)}."
        )
    return counts


def _refuse_logarithms(arguments: argparse.Namespace, counts: Any, source: str) -> None:
    """Refuse log-normalised values for models that warn of fractions, those of counts."""
    from ..counts.logarithms import refuse_logarithms
    from ..models.registry import model_named

    if model_named(arguments.model).integer == "warn":
        remedy = f"Pass the raw counts{_of_other_matrices(arguments)}."
        as_they_are = "To fit these values as they are: nmfscale fit --model frobenius."
        refuse_logarithms(counts, source, remedy, as_they_are)


def weights_of(arguments: argparse.Namespace, estimator: Any) -> dict[str, Any]:
    """Return the argument `data_weights` of methods of an estimator, if the option is given."""
    data_weights = arguments.data_weights
    if data_weights is None:
        return {}
    if "data_weights" not in inspect.signature(estimator.fit).parameters:
        name = estimator.__name__ if inspect.isclass(estimator) else type(estimator).__name__
        arguments.usage(f"--data-weights is for PoissonNMF, TopicModel and SSNMF, not {name}")
    return {"data_weights": data_weights if data_weights == "nan" else _weights_in(data_weights)}


def _weights_in(path: str) -> Any:
    """Read a matrix of weights."""
    import numpy as np
    import scipy.sparse as sp

    try:
        weights = np.load(path) if path.lower().endswith(".npy") else sp.load_npz(path)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} has no weights of entries: write an array by numpy.save to a .npy file, or a "
            "sparse matrix by scipy.sparse.save_npz to a .npz file."
        ) from error
    return weights


def input_files(arguments: argparse.Namespace) -> list[str]:
    """Return the files of counts of a command."""
    inputs = arguments.input
    return inputs if isinstance(inputs, list) else [inputs]


def _lines_of_option(arguments: argparse.Namespace, name: str) -> Any:
    """Return the lines of the file of names that an option gives; None without the option."""
    path = getattr(arguments, name)
    return None if path is None else split_lines(text_of(path))


def _names_or_column(path_or_column: str | None) -> Any:
    """Return the names in a file, one on each line, or else the name of a column."""
    if path_or_column is None or not os.path.exists(path_or_column):
        return path_or_column
    names = [line for line in split_lines(text_of(path_or_column)) if line]
    if not names:
        raise ValueError(f"{path_or_column} has no names: one on each line is needed.")
    return names


def _of_other_matrices(arguments: argparse.Namespace) -> str:
    """Return the options that choose another matrix of an AnnData file, as text."""
    from ..readers.formats.h5ad import matrix_names

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
    options = {
        name: option for name, option in options.items() if name != f"layers/{arguments.layer}"
    }
    if arguments.raw:
        options = {name: option for name, option in options.items() if option != "--raw"}
    return f"; the file also has {', '.join(options.values())}" if options else ""


def columns_of_topics(model: Any) -> list[str]:
    """Return the headers of topics in tables: their names if they have any, else numbered ones."""
    from ..models.topics.topics import topic_names_of

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
    # names of files may have bytes that are not UTF-8, which are written as they are
    how: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
    with opener(path, "wt", **how) as file:
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
            file = Path(path)
            if not file.is_file() and not file.is_dir():
                raise ValueError(f"{path} is a pipe, a socket or a device: pass a file.")


def output(
    arguments: argparse.Namespace, suffixes: Sequence[str], inputs: Sequence[str | None] = (),
    replaces: bool = False, path: str | None = None,
) -> Path:  # fmt: skip
    """Check, before any work, that the output can be written and is not one of the inputs.

    `replaces` allows to replace an existing file without --force. `path` is the output to check,
    if the command has several.
    """
    path = arguments.output if path is None else path
    target = writable(path, arguments.force or replaces, inputs)
    if not target.name.lower().endswith(tuple(filter(None, suffixes))) and (
        target.suffix or "" not in suffixes
    ):
        endings = ", ".join(suffix for suffix in suffixes if suffix)
        arguments.usage(f"{path} must end with one of {endings}.")
    return target


def writable(path: str | Path, force: bool, inputs: Sequence[str | None] = ()) -> Path:
    """Return the path of an output after checking that it can be written and is not an input."""
    if not str(path):
        raise ValueError("the name of the file to write is empty; give it one.")
    target = Path(path)
    for input_path in inputs:
        if input_path is not None and _is_part(target, Path(input_path)):
            raise ValueError(f"{path} would replace the input {input_path}; choose another name.")
    target_of(path)
    if target.exists() and not force:
        raise FileExistsError(f"{path} exists; choose another name, or replace it with --force.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {path}: the folder {target.parent} is read-only.")
    return target


def _is_part(target: Path, path: Path) -> bool:
    """Whether a path is an input file, or a table in an input folder with counts."""
    tables = r"\.mtx(\.gz)?$|barcodes|features|genes|peaks|cell_metadata|quants_mat"
    if path.is_dir() and re.search(tables, target.name):
        path /= target.name
    return target.exists() and path.exists() and target.samefile(path)
