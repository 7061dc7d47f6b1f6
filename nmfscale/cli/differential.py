"""The command `differential`: which features make a topic."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import Any

from ..storage.atomic import atomic_write
from ..terminal import visible_name
from .cluster import cluster_client
from .commands import save_figure
from .files import TEXT_TABLES, check_inputs, input_files, read_input
from .inference import ARRAYS, PICTURES, end, targets_of, write_all, write_columns, write_result
from .messages import say
from .symbols import symbols_of

PAGE = ".html"


def differential(arguments: argparse.Namespace) -> int:
    """Find the features that make each topic."""
    if arguments.resume and arguments.checkpoint is None:
        arguments.usage("--resume needs --checkpoint DIR, the folder to resume from")
    files = [arguments.model, *input_files(arguments)]
    check_inputs(*files)
    if arguments.seed is not None and arguments.split is None:
        arguments.usage("--seed is for --split")
    kinds = (*TEXT_TABLES, *ARRAYS, *PICTURES, PAGE)
    targets = targets_of(arguments, kinds, files, replaces=arguments.resume)
    if any(target.suffix.lower() == PAGE for target in targets):
        from ..pl.interactive import need_bokeh

        need_bokeh()
    from ..inference.features.differential import differential_features
    from ..models.persistence import load_model
    from ..models.topics.symbols import with_symbols

    model = load_model(arguments.model)
    reference, topic = _checked_topics(arguments, model)
    symbols = symbols_of(arguments, model, input_files(arguments))
    seed = arguments.seed
    if seed is None and arguments.split is not None:
        seed = secrets.randbelow(2**32)
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        found = differential_features(
            model, counts, reference=reference,
            pseudocount=arguments.pseudocount, family=arguments.family,
            split=arguments.split, random_state=seed,
            memory_limit=arguments.memory_limit, n_threads=arguments.threads, client=client,
            checkpoint=arguments.checkpoint, resume=arguments.resume,
            verbose=int(not arguments.quiet),
        )  # fmt: skip
    if symbols is not None:
        found = with_symbols(found, symbols, with_symbols(model, symbols))
    _say(found, arguments.n_top)
    if seed != arguments.seed:
        say(f"seed            {seed}")

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            from ..pl import volcano_plot
            from ..pl.canvas import detached_axes

            save_figure(volcano_plot(found, topic, ax=detached_axes(4.6, 3.8)[0]), target)
        elif target.suffix.lower() == PAGE:
            from ..pl import volcano_plot

            with atomic_write(target) as part:
                volcano_plot(found, topic, interactive=True, save=part)
        elif target.suffix.lower() in ARRAYS:
            names = {"topics": found.topic_names, "features": found.feature_labels}
            write_result(arguments, target, found, names=names)
        else:
            write_columns(target, found.columns())

    write_all(targets, write)
    return end(arguments, len(found.features), found.interrupted)


def _checked_topics(arguments: argparse.Namespace, model: Any) -> tuple[Any, int]:
    """Return the reference and the number of the topic of the plot, checked before any work."""
    from ..inference.design.loadings import number_of_topic, topics_of_samples
    from ..inference.features.differential_tests import Reference

    if getattr(model, "loadings_", None) is None:
        raise ValueError(f"{arguments.model} has no loadings: it was fitted in batches.")
    names = topics_of_samples(model, warn=False).topic_names
    given: Any = [_topic(part, names) for part in arguments.reference.split(",")]
    if len(given) == 1 or arguments.reference in names:
        given = _topic(arguments.reference, names)
    own = Reference.of(given, names).own
    if arguments.topic is None:
        return given, next(k for k in range(len(names)) if k not in own)
    number = number_of_topic(_topic(arguments.topic, names), names, "--topic")
    if number in own:
        arguments.usage(f"--topic {arguments.topic} is the reference, without differences")
    return given, number


def _topic(text: str, names: tuple[Any, ...]) -> Any:
    return int(text) if text.isdecimal() and text not in names else text


def _say(found: Any, n_top: int) -> None:
    """Print the leading features of each topic."""
    say(f"features        {len(found.features):,}, relative to {visible_name(found.reference)}")
    used = "fitted to the same counts make p too small: z ranks features"
    if found.split is not None:
        used = f"fitted to {found.split:.0%} of the counts, tested in the others"
    say(f"                topics {used}\n")
    labels = found.feature_labels
    for k in found.compared:
        leading = [
            f"{visible_name(labels[j])} ({found.z[k, j]:.1f})" for j in found.order(k)[:n_top]
        ]
        say(f"topic {visible_name(found.topic_names[k]):<9} {', '.join(leading)}")
    say("")
