"""Groups of options that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

from ..counts.sizes import parse_bytes

# A file or folder; the shell does not expand ~ in --option=~/file and in quotation marks.
PATH = os.path.expanduser
TABLE = "a table, .csv or .tsv, also with .gz"
READ_FROM_FILE = "such as 2GB: data that do not fit are read from the file repeatedly"
RESULT = "the result, .h5, for load_result in Python"
# Tens of thousands of threads would kill the process without a message.
MOST_THREADS = 4096


def at_least(
    kind: Callable[[str], Any], least: float, most: float = math.inf
) -> Callable[[str], Any]:
    """Return a type for argparse: a number within limits."""

    def number(text: str) -> Any:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is above {most}")
        return value

    number.__name__ = kind.__name__  # for argparse's message "invalid int value"
    return number


COUNT, PORT = at_least(int, 1), at_least(int, 0, 65535)


def size(text: str) -> str:
    """Check a number of bytes, and return the text: models store it as it was written."""
    try:
        parse_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; pass bytes or a text such as 2GB or 500MB"
        ) from None
    return text


def explain(command: argparse.ArgumentParser, text: str) -> None:
    """Add paragraphs to the description of a command."""
    command.description = f"{command.description}\n\n{text}"


def add_model(command: argparse.ArgumentParser) -> None:
    """Add the argument for the file of a model."""
    command.add_argument("model", type=PATH, metavar="MODEL", help="file written by fit")


def add_labels(command: argparse.ArgumentParser, *, strata: bool = True) -> None:
    """Add the model and labels of its samples."""
    add_model(command)
    add = command.add_argument
    what = (
        "on each line a label, or name TAB label (comma in a .csv); or a column of obs of a .h5ad, "
        ".zarr or .nmf, or of a table with a header whose first column names the samples; or a "
        "COLUMN of obs that the model has; samples without a label (empty, NA) are left out"
    )
    add("--groups", required=True, type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    what = (
        "sampling units, such as patients, which may be in several groups; same formats (default: "
        "samples)"
    )
    add("--units", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    if not strata:
        return
    what = "units are permuted, or resampled, only within strata; same formats"
    add("--strata", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)


def add_results(command: argparse.ArgumentParser, job: str) -> None:
    """Add options for outputs, the seed and the run."""
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    add_seed(command)
    add_job_options(command, job, "OUT")
    add_run_options(command)


def add_outputs(command: argparse.ArgumentParser, formats: str) -> None:
    """Add an option for output files, which can be repeated."""
    command.add_argument(
        "-o", "--output", type=PATH, metavar="OUT", action="append", default=[],
        help=f"{formats}; repeat for several",
    )  # fmt: skip


def add_gene_symbols(command: argparse.ArgumentParser, with_counts: bool = False) -> None:
    """Add --gene-symbols; the name of a column is enough `with_counts`."""
    what = (
        "show symbols in place of identifiers: a file with both (.h5ad, .h5mu, .zarr, 10x .h5 or "
        "folder, .csv, .tsv), and the column with symbols (default: one with a usual name)"
        f"{'; or a COLUMN of var of INPUT' if with_counts else ''}"
    )
    form = f"FILE[:COLUMN]{'|COLUMN' if with_counts else ''}"
    command.add_argument("--gene-symbols", type=PATH, metavar=form, help=what)


def add_features(command: argparse.ArgumentParser, what: str) -> None:
    """Add --n-top and --score: which features of a topic are shown or measured."""
    from ..methods.topics.score_names import DEFAULT_SCORE, SCORES

    add = command.add_argument
    add("--n-top", type=COUNT, default=10, metavar="N", help=f"{what} (default: %(default)s)")
    what = "what ranks them: see get.top_features (default: %(default)s)"
    add("--score", choices=SCORES, default=DEFAULT_SCORE, help=what)


def add_seed(command: argparse.ArgumentParser, what: str = "default: a new seed") -> None:
    """Add the option for the seed."""
    seed = at_least(int, 0, 2**32 - 1)
    command.add_argument("--seed", type=seed, metavar="N", help=what)


def add_job_options(command: argparse.ArgumentParser, job: str, result: str) -> None:
    """Add options of long jobs: checkpoints and clusters."""
    add = command.add_argument
    add("--checkpoint", type=PATH, metavar="DIR", help=f"folder for the state of {job}")
    what = f"continue from the newest checkpoint, if there is one; then replaces {result}"
    add("--resume", action="store_true", help=what)
    add_cluster_options(command, job)


def add_cluster_options(command: argparse.ArgumentParser, job: str) -> None:
    """Add the options that choose a Dask cluster for a job."""
    add = command.add_argument
    where = command.add_mutually_exclusive_group().add_argument
    where("--scheduler", metavar="ADDRESS", help="a running Dask cluster, as tcp://host:8786")
    where("--workers", type=COUNT, metavar="N", help=f"start N processes of Dask for {job}")
    what = "certificates of the cluster, see nmfscale cluster --help"
    add("--tls", type=PATH, metavar="DIR", help=what)


def add_input(
    command: argparse.ArgumentParser, *, packed: bool = True, option: str | None = None,
    when: str = "", several: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Add the file of counts, as an argument or as `option`, and the options of its format.

    With `several`, the samples of several files are joined.
    """
    add = command.add_argument
    if several:
        options = {"nargs": "+", "action": _OneOrMore} | options
        what = "for several INPUT: features that all have, or that any has (default: inner)"
        add("--join", choices=("inner", "outer"), help=what)
    what = (
        f"{when}counts, samples x features: "
        f"{'a packed .nmf, ' if packed else ''}.npz, .mtx(.gz), docword.*.txt(.gz), .h5ad, .h5mu, "
        ".zarr, .loom, .csv, .tsv, .txt(.gz), 10x .h5 or a 10x folder"
        f"{'; the samples of several files are joined' if several else ''}"
    )
    add(option or "input", type=PATH, metavar="INPUT", help=what, **options)
    what = "names of the features, one on each line"
    add("--feature-names", type=PATH, metavar="FILE", help=what)
    add("--sample-names", type=PATH, metavar="FILE", help="names of the samples, one on each line")
    add("--layer", help=".h5ad: layer to read in place of X")
    add("--raw", action="store_true", help=".h5ad: read raw.X in place of X")
    what = "column of var that names the features; 10x: id or name (default: unique symbols)"
    add("--names", metavar="COLUMN", help=what)
    for of, frame in (("features", "var"), ("samples", "obs")):
        what = f"use only these {of}: a file with a name on each line; or a column of {frame}"
        add(f"--{of}", type=PATH, metavar="FILE|COLUMN", help=f"{what} with True and False")
    what = "tables of text (.csv, .tsv, .txt, also .gz): a line is a sample, or a feature"
    add("--samples-in", choices=("rows", "columns"), help=what)
    what = ".h5mu: modality to read, such as rna; given again, modalities are joined side by side"
    add("--modality", action=_Again, help=what)
    what = (
        "for several modalities: their weights in a fit, information (default: the same from "
        "each), counts (1), or numbers such as 1,0.2"
    )
    add("--modality-weights", type=_weights, metavar="WEIGHTS", help=what)
    add("--genome", help="10x: genome to read")
    what = (
        "10x: such as 'Antibody Capture', or all (default: genes, if there are several types); "
        "given again, types are joined as modalities"
    )
    add("--feature-type", metavar="TYPE", action=_Again, help=what)
    what = ".npz, .mtx: rows are features, or not (default for .mtx: inferred from files of names)"
    add("--transpose", action=argparse.BooleanOptionalAction, default=None, help=what)


def add_data_weights(command: argparse.ArgumentParser) -> None:
    """Add the option for weights of entries."""
    what = (
        "for PoissonNMF, TopicModel and SSNMF: weights of entries in the objective, a .npy with an "
        "array, or a .npz with a sparse matrix: of bool, true where an entry is missing, or of "
        "numbers, 1 elsewhere; or nan: NaN, empty fields and NA in INPUT are missing entries"
    )
    command.add_argument("--data-weights", type=PATH, metavar="FILE|nan", help=what)


def add_batch(command: argparse.ArgumentParser, more: str) -> None:
    """Add the option for batches of samples."""
    what = (
        "for TopicModel, PoissonNMF and GammaPoisson: batch of each sample, such as its donor, in "
        "which features have efficiencies; same formats as --groups of the command test, or file: "
        f"one batch for each INPUT{more}"
    )
    command.add_argument("--batch", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)


class _Again(argparse.Action):
    """An option that holds one value, or a list if it is given again."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Keep the value, after those of the option before."""
        earlier = getattr(namespace, self.dest)
        several = earlier if isinstance(earlier, list) else [earlier]
        setattr(namespace, self.dest, values if earlier is None else [*several, values])


def _weights(text: str) -> Any:
    """Return the weights of modalities: a word, or numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return text


class _OneOrMore(argparse.Action):
    """Stores one value as it is, several as a list; None if there are none."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        values = values or None
        setattr(namespace, self.dest, values[0] if values and len(values) == 1 else values)


def add_run_options(command: argparse.ArgumentParser, *, force: bool = True) -> None:
    """Add the number of threads and what a command prints and, with `force`, replaces."""
    add, threads = command.add_argument, at_least(int, 1, MOST_THREADS)
    add(
        "--threads",
        type=threads,
        metavar="N",
        help="default: NMFSCALE_NUM_THREADS, or all CPUs; one for small fits",
    )
    add("-q", "--quiet", action="store_true", help="no progress on standard error")
    if force:
        add("--force", action="store_true", help="replace existing files")
