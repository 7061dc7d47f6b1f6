"""The commands `topic-quality` and `stability`: measures of topics, and fits from many starts."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import Any

from .cluster import cluster_client
from .commands import save_figure
from .files import TEXT_TABLES, check_inputs, input_files, read_input
from .inference import ARRAYS, PICTURES, end, targets_of, write_all, write_columns, write_result
from .messages import log, say

# Endings of model files.
MODEL_FILES = (".h5", ".hdf5")


def topic_quality(arguments: argparse.Namespace) -> int:
    """Measure the quality of topics."""
    files = [arguments.model, *input_files(arguments)]
    check_inputs(*files)
    targets = targets_of(arguments, (*TEXT_TABLES, *ARRAYS), files, replaces=False)
    from ..inference.choice.topic_quality import topic_quality as measure_quality
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    if arguments.memory_limit is not None:
        model.set_params(memory_limit=arguments.memory_limit)
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        found = measure_quality(
            model, counts, n_top=arguments.n_top, score=arguments.score, client=client,
            verbose=int(not arguments.quiet),
        )  # fmt: skip
    say(str(found))

    def write(target: Path) -> None:
        if target.suffix.lower() in ARRAYS:
            write_result(arguments, target, found)
        else:
            write_columns(target, found.columns(arguments.table))

    write_all(targets, write)
    return end(arguments, len(found.npmi), False)


def stability(arguments: argparse.Namespace) -> int:
    """Fit from many starts."""
    if arguments.resume and arguments.checkpoint is None:
        arguments.usage("--resume needs --checkpoint DIR, the folder to resume from")
    files = input_files(arguments)
    check_inputs(*files)
    endings = (*TEXT_TABLES, *PICTURES, *MODEL_FILES)
    targets = targets_of(arguments, endings, files, replaces=arguments.resume)
    from ..engine.checkpoint import checkpoints_in
    from ..inference.choice.stability import stability as fit_from_starts
    from ..models.registry import model_named

    goes_on = arguments.resume and bool(checkpoints_in(arguments.checkpoint))
    seed = arguments.seed
    if seed is None and not goes_on:
        seed = secrets.randbelow(2**32)
    kind = model_named(arguments.model)
    options = {"init": "random"} if "init" in kind._parameter_constraints else {}
    estimator = kind(arguments.k, memory_limit=arguments.memory_limit, integer="allow", **options)
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        found = fit_from_starts(
            estimator, counts, arguments.starts,
            density_threshold=arguments.density_threshold, random_state=seed,
            n_threads=arguments.threads, client=client, checkpoint=arguments.checkpoint,
            resume=arguments.resume, verbose=int(not arguments.quiet),
        )  # fmt: skip
    _say_stability(found)
    if arguments.seed is None:
        say(f"seed            {found.random_state}")
    if found.model is None and any(target.suffix.lower() in MODEL_FILES for target in targets):
        why = "there is no consensus" if found.consensus is None else "this model holds no topics"
        log(f"{why}, and no model is written")
        targets = [each for each in targets if each.suffix.lower() not in MODEL_FILES]

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            from ..pl import stability_plot
            from ..pl.canvas import detached_axes
            from ..pl.selection import size_of_selection

            axes = detached_axes(*size_of_selection())[0]
            save_figure(stability_plot(found, ax=axes), target)
        elif target.suffix.lower() in MODEL_FILES:
            found.model.save(target)
        else:
            write_columns(target, found.columns(arguments.table))

    write_all(targets, write)
    return end(arguments, len(found.objective), found.interrupted)


def models_of_stability() -> list[str]:
    """Return the models that `stability` can fit, and all models of other packages."""
    from ..models import MODELS
    from ..models.arguments.starts import has_random_starts
    from ..models.registry import model_names

    names = model_names()
    return [name for name in names if name not in MODELS or has_random_starts(MODELS[name]())]


def _say_stability(found: Any) -> None:
    """Print the spread of the optima, and the similarity of each topic."""
    n, K = found.similarities.shape
    say(f"optima          {found.n_best} of {n} fits end within 1 of the best objective, "
        f"{found.objective[found.best]:,.1f}")  # fmt: skip
    say(f"largest gap     {found.gaps.max():,.1f}")
    say(f"best start      seed {found.seeds[found.best]}")
    columns = found.columns("topics")
    say("\ntopic  similarity  smallest")
    for k in range(K):
        say(f"{k:>5}  {columns['similarity'][k]:>10.2f}  {columns['least_similarity'][k]:>8.2f}")
    if found.consensus is not None:
        shares = " ".join(f"{share:.0%}" for share in found.consensus.shares)
        say(f"\nconsensus       {found.consensus.n_left_out} of {n * K} topics are left out; "
            f"silhouette {found.consensus.silhouette:.2f}")  # fmt: skip
        say(f"found by        {shares} of the fits")
    say("")
