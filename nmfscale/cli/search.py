"""The commands `search` and `nearest`: samples about some words, and samples like others."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from .files import TEXT_TABLES
from .job import ARRAYS, Job, Outcome
from .option_groups import COUNT, RESULT, TABLE, add_model, add_outputs, explain


def add_search_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `search`."""
    explain(
        command,
        "Scores are mean log2 ratios of the probabilities of the words in a sample and overall,\n"
        "by its topics: the words themselves need not occur in it.",
    )
    add_model(command)
    add = command.add_argument
    add("words", metavar="WORD", nargs="+", help="features of the fit")
    what = "number of samples (default: %(default)s)"
    add("--n-top", type=COUNT, default=10, metavar="N", help=what)
    _add_outputs(command)


def add_nearest_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `nearest`."""
    from ..methods.topics.nearest import ProportionMetric

    add_model(command)
    add = command.add_argument
    add("samples", metavar="SAMPLE", nargs="+", help="name or number of a sample of the fit")
    what = "number of similar samples of each (default: %(default)s)"
    add("--n-neighbors", type=COUNT, default=10, metavar="N", help=what)
    what = "distance of proportions (default: %(default)s)"
    add("--metric", choices=get_args(ProportionMetric), default="hellinger", help=what)
    _add_outputs(command)


def _add_outputs(command: argparse.ArgumentParser) -> None:
    add_outputs(command, f"{TABLE}; {RESULT}")
    command.add_argument("--force", action="store_true", help="replace existing files")


def search(arguments: argparse.Namespace) -> int:
    """Find the samples that are about some words."""
    job = Job(arguments, [arguments.model], (*TEXT_TABLES, *ARRAYS), draws=False)
    from ..inference.samples.nearest_samples import search_samples
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    return _end(job, search_samples(model, arguments.words, n_top=arguments.n_top))


def nearest(arguments: argparse.Namespace) -> int:
    """Find samples with similar topics."""
    job = Job(arguments, [arguments.model], (*TEXT_TABLES, *ARRAYS), draws=False)
    from ..inference.samples.nearest_samples import nearest_samples
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    names = getattr(model, "sample_names_", None)
    named = set() if names is None else set(map(str, names))
    samples = [
        int(sample) if sample not in named and sample.isdecimal() else sample
        for sample in arguments.samples
    ]
    result = nearest_samples(
        model, samples=samples, n_neighbors=arguments.n_neighbors, metric=arguments.metric
    )
    return _end(job, result)


def _end(job: Job, result: Any) -> int:
    return job.end(Outcome(result, str(result), result.columns))
