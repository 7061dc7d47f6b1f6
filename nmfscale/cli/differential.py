"""The command `differential`: which features make a topic."""

from __future__ import annotations

import argparse
from typing import Any

from ..terminal import visible_name
from .files import TEXT_TABLES, input_files, read_input
from .groups import topic_of
from .job import ARRAYS, PAGE, PICTURES, Job, Outcome, drawn
from .labels import file_and_column, units_of
from .symbols import symbols_of


def differential(arguments: argparse.Namespace) -> int:
    """Find the features that make each topic."""
    split = None if arguments.split == "none" else arguments.split
    if arguments.seed is not None and split is None:
        arguments.usage("--seed is for a split: leave out --split none")
    files, endings = input_files(arguments), (*TEXT_TABLES, *ARRAYS, *PICTURES, PAGE)
    inputs = [arguments.model, *files]
    if arguments.units is not None:
        inputs.append(file_and_column(arguments.units)[0])
    job = Job(arguments, inputs, endings, draws=split is not None)
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
            pseudocount=arguments.pseudocount, family=arguments.family, split=split,
            units=units_of(arguments, counts), memory_limit=arguments.memory_limit, **how,
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


def split_of(text: str) -> float | str:
    """Return the value of --split: a share, or one of two words."""
    return text if text in ("auto", "none") else float(text)


def _checked_topics(arguments: argparse.Namespace, model: Any) -> tuple[Any, int]:
    """Return the reference and the number of the topic of the plot, checked before any work."""
    from ..inference.design.loadings import number_of_topic, topics_of_samples
    from ..inference.features.differential_tests import Reference
    from ..models.from_components import why_no_loadings

    if getattr(model, "loadings_", None) is None:
        raise ValueError(f"{arguments.model} has no loadings: {why_no_loadings(model)}.")
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
    reference, labels = visible_name(result.reference), result.feature_labels
    lines = [f"features        {len(result.features):,}, relative to {reference}"]
    if result.n_units is not None:
        lines.append(f"errors          between {result.n_units:,} units")
    lines.append(f"tests           {result.tested_in}\n")
    for k in result.compared:
        leading = [
            f"{visible_name(labels[j])} ({result.z[k, j]:.1f})" for j in result.order(k)[:n_top]
        ]
        lines.append(f"topic {visible_name(result.topic_names[k]):<9} {', '.join(leading)}")
    return "\n".join([*lines, ""])
