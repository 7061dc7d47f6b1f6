"""The command `correspondence`: a map of topics and groups."""

from __future__ import annotations

import argparse
from typing import Any

from .groups import label_files, labelled_model, labelled_topics, names_of_topics
from .inference import table_text
from .job import PICTURES, Job, Outcome, drawn
from .option_groups import (
    COUNT,
    RESULT,
    TABLE,
    add_labels,
    add_outputs,
    explain,
)
from .parameters import add_parameter


def add_correspondence_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `correspondence`."""
    explain(
        command,
        "A correspondence analysis of the weights of topics in groups: topics are near each other\n"
        "if they have the same shares of groups, and groups if they have the same shares of\n"
        "topics. It is a description; nmfscale test tests whether groups differ.",
    )
    from ..inference.groups.correspondence import correspondence_analysis
    from ..inference.regression.permutation import permutation_test

    add_labels(command, strata=False)
    add = command.add_argument
    add_parameter(command, permutation_test, "scale")
    add_parameter(command, correspondence_analysis, "equal_weights")
    what = "print the N topics and the N groups that differ most (default: %(default)s)"
    add("--n-top", type=COUNT, default=10, metavar="N", help=what)
    what = "axes to print and to draw, by number (default: 1,2)"
    add("--axes", type=_axes, default=[1, 2], metavar="A,B", help=what)
    what = (
        "in plots: chi-square distances of topics and of groups (symmetric, default), or of one of "
        "them, with the other ones at its weighted means"
    )
    scalings = ("symmetric", "topics", "groups")
    add("--scaling", choices=scalings, default="symmetric", help=what)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    add("--force", action="store_true", help="replace existing files")


def correspondence(arguments: argparse.Namespace) -> int:
    """Place topics and groups on a map."""
    job = Job(arguments, [arguments.model, *label_files(arguments)], draws=False)
    from ..inference.groups.correspondence import correspondence_analysis

    model, labels = labelled_model(arguments)
    topics = labelled_topics(arguments, model, labels)
    result = correspondence_analysis(
        topics, **labels, scale=arguments.scale, equal_weights=arguments.equal_weights,
        topic_names=names_of_topics(model),
    )  # fmt: skip
    # before anything is written: there may be no such axes
    figure = _draw(arguments, result) if job.writes(*PICTURES) else None
    text = _text(result, arguments.axes, arguments.n_top)
    return job.end(Outcome(result, text, result.columns, lambda: figure))


def _axes(text: str) -> list[int]:
    """Return the numbers of two axes."""
    numbers = [int(part) for part in text.split(",") if part.isdecimal()]
    if len(numbers) != 2 or numbers[0] == numbers[1] or f"{numbers[0]},{numbers[1]}" != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers of axes, such as 1,2")
    return numbers


def _draw(arguments: argparse.Namespace, result: Any) -> Any:
    from ..pl import biplot
    from ..pl.biplots import SIZE

    return drawn(biplot, result, size=SIZE, axes=arguments.axes, scaling=arguments.scaling)


def _text(result: Any, axes: list[int], n_top: int) -> str:
    """Return the inertia of the axes, and the topics and groups with the largest parts of it."""
    explained = ", ".join(f"{share:.1%}" for share in result.explained[:10])
    parts = [
        f"inertia         {result.total_inertia:.4g}, the chi-square statistic over its total\n"
        f"axes            {explained or 'none: all groups have the same shares of topics'}\n"
    ]
    axes = [a for a in axes if a <= len(result.inertias)]
    columns = result.columns()
    for kind in ("topic", "group"):
        places = (columns["kind"] == kind).nonzero()[0]
        places = places[(-columns["inertia"][places]).argsort(kind="stable")][:n_top]
        rows = [[kind, "mass", "inertia", *(f"axis {a}" for a in axes)]]
        for i in places.tolist():
            share = columns["inertia"][i] / (result.total_inertia or 1.0)
            row = [str(columns["name"][i]), f"{columns['mass'][i]:.1%}", f"{share:.1%}"]
            rows.append([*row, *(f"{columns[f'axis_{a}'][i]:.3f}" for a in axes)])
        parts.append(f"{table_text(rows)}\n")
    return "\n".join(parts)
