"""The command `score-modalities`: held-out scores of each modality of a fit."""

from __future__ import annotations

import argparse

from .cluster import cluster_client
from .files import TEXT_TABLES, input_files, read_input
from .job import ARRAYS, Job, Outcome
from .option_groups import (
    PATH,
    READ_FROM_FILE,
    RESULT,
    TABLE,
    add_cluster_options,
    add_input,
    add_model,
    add_outputs,
    add_run_options,
    add_seed,
    explain,
    size,
)


def add_score_modalities_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    explain(
        command,
        "Topics explain a modality if the gain over a single topic is well above its error.\n"
        "Loadings are estimated from INPUT, and the counts of --held-out are scored. Without\n"
        "it INPUT is split: of the counts of the fit, scores are then too high.",
    )
    add_model(command)
    add_input(command)
    add_outputs(command, f"{TABLE}; {RESULT}")
    what = "counts to score, of the same samples as INPUT and read with the same options"
    command.add_argument("--held-out", type=PATH, metavar="FILE", help=what)
    command.add_argument("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_seed(command, "how INPUT is split; default: a new seed")
    add_cluster_options(command, "the work")
    add_run_options(command)


def score_modalities(arguments: argparse.Namespace) -> int:
    """Score held-out counts of each modality."""
    held_out, files = arguments.held_out, [arguments.model, *input_files(arguments)]
    if held_out is not None:
        files.append(held_out)
    job = Job(arguments, files, (*TEXT_TABLES, *ARRAYS), draws=held_out is None)
    from ..inference.choice import modality_scores
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    if arguments.memory_limit is not None:
        model.set_params(memory_limit=arguments.memory_limit)
    with cluster_client(arguments) as client:
        streamed = client is not None
        counts, scored = read_input(arguments, streamed), None
        if held_out is not None:
            others = argparse.Namespace(**vars(arguments) | {"input": held_out})
            scored = read_input(others, streamed)
        result = modality_scores.score_modalities(
            model, counts, scored, random_state=job.random_state, client=client,
            verbose=int(not arguments.quiet),
        )  # fmt: skip
    return job.end(Outcome(result, f"{result}\n", result.columns))
