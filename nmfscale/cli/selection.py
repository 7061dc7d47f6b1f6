"""The command `select-k`: how many topics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .files import input_files, read_input
from .job import Job, Outcome, check_resume, drawn
from .labels import batch_of, check_batch, file_and_column, units_of


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
