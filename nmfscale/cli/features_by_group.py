"""The command `features-by-group`: features of topics over time, or by source."""

from __future__ import annotations

import argparse
from typing import Any

from ..terminal import visible_name
from .cluster import cluster_client
from .conditions import FORM, FORMATS, add_run, how_of, inputs_of, model_and_topic
from .files import TEXT_TABLES, read_input
from .groups import as_numbers, labels_of_samples
from .job import ARRAYS, PICTURES, Job, Outcome, drawn
from .option_groups import (
    COUNT,
    PATH,
    RESULT,
    TABLE,
    add_input,
    add_model,
    add_outputs,
    at_least,
    explain,
)


def add_features_by_group_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    explain(
        command,
        "The topics of each sample are those of the model; what the topics consist of is\n"
        "estimated in each group, such as a year or a newspaper, and shrunk to the model.",
    )
    add = command.add_argument
    add_model(command)
    add_input(command, several=True)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot of --topic, .png, .pdf or .svg")
    what = f"groups: periods or sources, {FORMATS}"
    add("--groups", type=PATH, metavar=FORM, required=True, help=what)
    what = "sampling units, such as authors; same formats (default: samples)"
    add("--units", type=PATH, metavar=FORM, help=what)
    what = "what groups are compared with (default: the first of periods, all others of sources)"
    add("--against", choices=("auto", "first", "others"), default="auto", help=what)
    what = "counts of each feature that the prior is worth, or auto (default: %(default)s)"
    add("--shape", type=_shape, default=10.0, metavar="A", help=what)
    what = "nominal coverage of the intervals (default: %(default)s)"
    add("--level", type=at_least(float, 0.5, 0.999), default=0.95, metavar="LEVEL", help=what)
    what = "features to print for each topic, and to draw (default: %(default)s)"
    add("--n-top", type=COUNT, default=8, metavar="N", help=what)
    add("--topic", metavar="TOPIC", help="topic of the plot (default: the first)")
    add_run(command)


def _shape(text: str) -> Any:
    return text if text == "auto" else at_least(float, 1e-3)(text)


def features_by_group(arguments: argparse.Namespace) -> int:
    """Estimate the features of topics in groups."""
    endings = (*TEXT_TABLES, *ARRAYS, *PICTURES)
    job = Job(arguments, inputs_of(arguments), endings, draws=False)
    from ..inference.features.features_by_group import features_by_group as of_groups
    from ..pl.features_by_group import features_by_group_plot, size_of_features

    model, topic = model_and_topic(arguments)
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        labels = labels_of_samples(arguments, counts.shape[0], counts.sample_names, counts.obs)
        labels["groups"] = as_numbers(labels["groups"])
        result = of_groups(
            model, counts, **labels, against=arguments.against, shape=arguments.shape,
            level=arguments.level, **how_of(arguments, client),
        )  # fmt: skip
    return job.end(Outcome(
        result, _text(result, arguments.n_top), result.columns,
        lambda: drawn(
            features_by_group_plot, result, topic or 0, n_top=arguments.n_top,
            size=size_of_features(result, topic or 0, arguments.n_top),
        ),
        names={"topics": result.topic_names, "features": result.feature_labels},
    ))  # fmt: skip


def _text(result: Any, n_top: int) -> str:
    """Return the groups, and the features of each topic that change most."""
    units = zip(result.groups, result.n_units.tolist(), strict=True)
    sizes = ", ".join(f"{visible_name(group)} {n:,}" for group, n in units)
    against = "all others" if result.reference is None else visible_name(result.reference)
    lines = [f"units           {sizes}", f"log2 changes    relative to {against}\n"]
    for k, topic in enumerate(result.topic_names):
        leading = []
        for j in result.leading(k, n_top).tolist():
            most = int(abs(result.lfc[:, k, j]).argmax())
            where = visible_name(result.groups[most])
            name = visible_name(result.feature_labels[j])
            leading.append(f"{name} ({result.lfc[most, k, j]:+.1f} in {where})")
        lines.append(f"topic {visible_name(topic):<9} {', '.join(leading) or 'no changes'}")
    return "\n".join([*lines, ""])
