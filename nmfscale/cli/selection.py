"""The command `select-k`: how many topics."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from .files import input_files, read_input
from .job import Job, Outcome, check_resume, drawn
from .labels import batch_of, check_batch, file_and_column, units_of
from .option_groups import (
    PATH,
    READ_FROM_FILE,
    RESULT,
    TABLE,
    add_batch,
    add_input,
    add_job_options,
    add_outputs,
    add_run_options,
    add_seed,
    at_least,
    explain,
    size,
)
from .parameters import add_parameter


def add_selection_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `select-k`."""
    explain(
        command,
        "Counts are split at random in two halves: topics are fitted to one half and scored on\n"
        "the other one. If counts vary more than Poisson counts, samples are held out instead;\n"
        "with --units, those of whole units. Topics that are not found again in the other half,\n"
        "or in other samples, are not a property of the data. Several splits are compared.",
    )
    from ..inference.choice.select_k import select_k as search

    add_input(command, several=True)
    add, add_of = command.add_argument, partial(add_parameter, command, search)
    what = "numbers of topics, as 2-20 or 5,10,20 (default: 2-20)"
    add("-k", type=numbers, default=list(range(2, 21)), metavar="NUMBERS", help=what)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    what = "default: %(default)s"
    add("--model", choices=models_to_select(), default="topic", help=what)
    what = "prior of the topics of --model topic and poisson, 1 for none (default: 1.1)"
    add("--prior", type=at_least(float, 1), metavar="A", help=what)
    what = (
        "hold out units, such as patients: on each line a label, or name TAB label (comma in a "
        ".csv); or a column of obs of a .h5ad, or of a table with a header; or a COLUMN of obs"
    )
    add("--units", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    add_batch(command, "")
    add_of("held_out", text="without --units: hold out halves of counts, or samples")
    add_of("n_splits", "--splits", type=at_least(int, 1))
    add_of("n_folds", "--folds", type=at_least(int, 2))
    add_of("n_init", "--starts")
    add_seed(command)
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_job_options(command, "the fits", "OUT")
    add_run_options(command)


def select_k(arguments: argparse.Namespace) -> int:
    """Compare numbers of topics."""
    check_resume(arguments)
    from ..inference.choice.select_k import checkpoints_of_selection
    from ..inference.choice.select_k import select_k as search
    from ..models.registry import model_named

    kind = model_named(arguments.model)
    if arguments.prior is not None and "prior_factors" not in kind._parameter_constraints:
        arguments.usage("--prior is for --model topic and poisson")
    check_batch(arguments, kind)
    files = input_files(arguments)
    if arguments.units is not None:
        files = [*files, file_and_column(arguments.units)[0]]
    job = Job(arguments, files, checkpoints=lambda path: checkpoints_of_selection(Path(path)))
    with job.running() as how:
        counts = read_input(arguments, streamed=how["client"] is not None)
        result = search(
            _estimator(arguments, kind), counts, arguments.k,
            units=units_of(arguments, counts), held_out=arguments.held_out,
            n_splits=arguments.splits, n_folds=arguments.folds, n_init=arguments.starts,
            **batch_of(arguments, counts), **how,
        )  # fmt: skip
    text = str(result)
    if result.excess_variance is not None:
        error = "dispersion      {:.3f}, standard error {:.3f}".format(*result.excess_variance)
        text = f"{text}\n{error}"
    done = f"the result is that of K = {', '.join(map(str, result.n_components))}"
    return job.end(Outcome(
        result, text, result.columns, lambda: _draw(result),
        done=done if result.interrupted else None,
    ))  # fmt: skip


def _draw(result: Any) -> Any:
    from ..pl import select_k_plot
    from ..pl.selection import n_panels_of, size_of_panels

    return drawn(select_k_plot, result, size=size_of_panels(n_panels_of(result)))


def _estimator(arguments: argparse.Namespace, kind: Any) -> Any:
    options: dict[str, Any] = {"memory_limit": arguments.memory_limit, "integer": "allow"}
    if "prior_factors" in kind._parameter_constraints:
        options |= {"prior_factors": arguments.prior or 1.1, "tol": 1e-3}
    return kind(**options)


def models_to_select() -> list[str]:
    """Return the models that `select_k` can score, and all models of other packages."""
    from ..inference.replicates.selection_fits import is_scored
    from ..models import MODELS
    from ..models.registry import model_names

    return [name for name in model_names() if name not in MODELS or is_scored(MODELS[name]())]


def numbers(text: str) -> list[int]:
    """Return the numbers in a text such as 2-12 or 5,10,20."""
    wanted: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError:
            low, high = 0, 0
        if not 1 <= low <= high:
            raise argparse.ArgumentTypeError(f"{text!r} are not numbers such as 2-12 or 5,10,20")
        wanted |= set(range(low, high + 1))
    return sorted(wanted)
