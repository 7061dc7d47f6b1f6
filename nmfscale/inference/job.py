"""Options of a job of many replicates, and their check; `bootstrap_weights` documents them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import BoundArguments
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypedDict

from ..counts.argument_types import Client, PathLike, SeedLike
from ..counts.names import shown
from ..counts.signatures import passed_on, takes_options


class RunOptions(TypedDict, total=False):
    """Keyword arguments that say where a function runs, and whether it shows its progress."""

    client: Client | None
    verbose: int


class JobOptions(RunOptions, total=False):
    """The same, with the seed of a job, its threads and its checkpoints."""

    random_state: SeedLike | None
    n_threads: int | None
    checkpoint: PathLike | None
    checkpoint_every: float
    resume: bool


_OF_RUN: RunOptions = {"client": None, "verbose": 0}
_OF_JOB: JobOptions = {
    "random_state": None, "n_threads": None, "client": None, "checkpoint": None,
    "checkpoint_every": 60.0, "resume": False, "verbose": 0,
}  # fmt: skip


def _run_job(function: Callable[..., Any], bound: BoundArguments, options: JobOptions) -> Any:
    """Refuse to resume without a folder, and an invalid number of seconds between checkpoints."""
    if options["resume"] and options["checkpoint"] is None:
        raise ValueError("resume=True needs checkpoint=, the folder to resume from.")
    every = options["checkpoint_every"]
    if not isinstance(every, Real) or not float(every) >= 0:
        raise ValueError(f"checkpoint_every={shown(every)}: seconds, at least 0, are needed.")
    return passed_on(function, bound, options)


# Decorators of functions with ``**job: Unpack[...]``, which then has all options.
run_options = takes_options(RunOptions, _OF_RUN)
job_options = takes_options(JobOptions, _OF_JOB, _run_job)


def numbers_of_topics(n_components: Any, such_as: str) -> list[int]:
    """Return different numbers of topics, in their order; an error ends with an example."""
    numbers = list(n_components) if hasattr(n_components, "__iter__") else []
    wrong = [k for k in numbers if not isinstance(k, Integral) or isinstance(k, bool) or k < 1]
    if wrong or not numbers:
        raise ValueError(
            f"n_components has {shown(wrong[0] if wrong else n_components)}: positive integers are "
            f"needed, {such_as}."
        )
    return list(dict.fromkeys(map(int, numbers)))


def part_of_job(job: JobOptions, name: str) -> JobOptions:
    """Return the options of a part of a job, which has a checkpoint folder of its own."""
    folder = job["checkpoint"]
    return {**job, "checkpoint": None if folder is None else Path(folder, name)}
