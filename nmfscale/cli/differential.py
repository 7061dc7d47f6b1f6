"""The command `differential`: which features make a topic."""

from __future__ import annotations

import argparse
from typing import Any

from ..terminal import visible_name
from .files import TEXT_TABLES, input_files, read_input
from .groups import topic_of
from .job import ARRAYS, PAGE, PICTURES, Job, Outcome, drawn
from .symbols import symbols_of


def differential(arguments: argparse.Namespace) -> int:
    """Find the features that make each topic."""
    if arguments.seed is not None and arguments.split is None:
        arguments.usage("--seed is for --split")
    files, endings = input_files(arguments), (*TEXT_TABLES, *ARRAYS, *PICTURES, PAGE)
    job = Job(arguments, [arguments.model, *files], endings, draws=arguments.split is not None)
    if job.drawn and job.random_state is None:  # checkpoints of this job do not hold the seed
        arguments.usage("--resume with --split needs --seed N, the seed of the job to resume")
    from ..inference.features.differential import differential_features
    from ..models.persistence import load_model
    from ..models.topics.symbols import with_symbols

    model = load_model(arguments.model)
    reference, topic = _checked_topics(arguments, model)
    symbols = symbols_of(arguments, model, files)
    with job.running() as how:
        counts = read_input(arguments, streamed=how["client"] is not None)
        result = differential_features(
            model, counts, reference=reference,
            pseudocount=arguments.pseudocount, family=arguments.family, split=arguments.split,
            memory_limit=arguments.memory_limit, **how,
        )  # fmt: skip
    if symbols is not None:
        result = with_symbols(result, symbols, with_symbols(model, symbols))
    from ..pl import volcano_plot

    done = f"results are those of the {len(result.features):,} that were done"
    return job.end(Outcome(
        result, _text(result, arguments.n_top), result.columns,
        lambda: drawn(volcano_plot, result, topic, size=(4.6, 3.8)),
        page=lambda path: volcano_plot(result, topic, interactive=True, save=path),
        names={"topics": result.topic_names, "features": result.feature_labels},
        done=done if result.interrupted else None,
    ))  # fmt: skip


def _checked_topics(arguments: argparse.Namespace, model: Any) -> tuple[Any, int]:
    """Return the reference and the number of the topic of the plot, checked before any work."""
    from ..inference.design.loadings import number_of_topic, topics_of_samples
    from ..inference.features.differential_tests import Reference

    if getattr(model, "loadings_", None) is None:
        raise ValueError(f"{arguments.model} has no loadings: it was fitted in batches.")
    names = topics_of_samples(model, warn=False).topic_names
    reference: Any = [topic_of(part, names) for part in arguments.reference.split(",")]
    if len(reference) == 1 or arguments.reference in names:
        reference = topic_of(arguments.reference, names)
    own = Reference.of(reference, names).own
    if arguments.topic is None:
        return reference, next(k for k in range(len(names)) if k not in own)
    number = number_of_topic(topic_of(arguments.topic, names), names, "--topic")
    if number in own:
        arguments.usage(f"--topic {arguments.topic} is the reference, without differences")
    return reference, number


def _text(result: Any, n_top: int) -> str:
    """Return the leading features of each topic."""
    used = "fitted to the same counts make p too small: z ranks features"
    if result.split is not None:
        used = f"fitted to {result.split:.0%} of the counts, tested in the others"
    reference, labels = visible_name(result.reference), result.feature_labels
    lines = [
        f"features        {len(result.features):,}, relative to {reference}",
        f"                topics {used}\n",
    ]
    for k in result.compared:
        leading = [
            f"{visible_name(labels[j])} ({result.z[k, j]:.1f})" for j in result.order(k)[:n_top]
        ]
        lines.append(f"topic {visible_name(result.topic_names[k]):<9} {', '.join(leading)}")
    return "\n".join([*lines, ""])
