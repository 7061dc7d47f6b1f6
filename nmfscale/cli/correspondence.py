"""The command `correspondence`: a map of topics and groups."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .commands import save_figure
from .files import TEXT_TABLES, check_inputs
from .groups import label_files, labelled_model
from .inference import (
    ARRAYS,
    PICTURES,
    end,
    labelled_topics,
    names_of_topics,
    say_columns,
    targets_of,
    write_all,
    write_columns,
    write_result,
)
from .messages import say
from .option_groups import (
    COUNT,
    RESULT,
    SCALES,
    TABLE,
    TAKEN,
    add_labels,
    add_outputs,
    explain,
)


def add_correspondence_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `correspondence`."""
    explain(
        command,
        "A correspondence analysis of the weights of topics in groups: topics are near each other\n"
        "if they have the same shares of groups, and groups if they have the same shares of\n"
        "topics. It is a description; nmfscale test tests whether groups differ.",
    )
    add_labels(command, strata=False)
    add = command.add_argument
    what = f"{TAKEN} (default: %(default)s)"
    add("--scale", choices=SCALES, default="proportions", help=what)
    what = "give equal weight to units, or to samples (default: %(default)s)"
    add("--equal-weights", choices=("units", "samples"), default="units", help=what)
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
    files = [arguments.model, *label_files(arguments)]
    check_inputs(*files)
    endings = (*TEXT_TABLES, *ARRAYS, *PICTURES)
    targets = targets_of(arguments, endings, files, replaces=False)
    from ..inference.groups.correspondence import correspondence_analysis

    model, labels = labelled_model(arguments)
    topics = labelled_topics(arguments, model, labels)
    found = correspondence_analysis(
        topics, **labels, scale=arguments.scale, equal_weights=arguments.equal_weights,
        topic_names=names_of_topics(model),
    )  # fmt: skip
    is_picture = [target.suffix.lower() in PICTURES for target in targets]
    # before anything is written: there may be no such axes
    figure = _draw(arguments, found) if any(is_picture) else None
    _say(arguments, found)

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            save_figure(figure, target)
        elif target.suffix.lower() in ARRAYS:
            write_result(arguments, target, found)
        else:
            write_columns(target, found.columns())

    write_all(targets, write)
    return end(arguments, 1, False)


def _axes(text: str) -> list[int]:
    """Return the numbers of two axes."""
    numbers = [int(each) for each in text.split(",") if each.isdecimal()]
    if len(numbers) != 2 or numbers[0] == numbers[1] or f"{numbers[0]},{numbers[1]}" != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers of axes, such as 1,2")
    return numbers


def _draw(arguments: argparse.Namespace, found: Any) -> Any:
    from ..pl import biplot
    from ..pl.biplots import SIZE
    from ..pl.canvas import detached_axes

    ax = detached_axes(*SIZE)[0]
    return biplot(found, axes=arguments.axes, scaling=arguments.scaling, ax=ax)


def _say(arguments: argparse.Namespace, found: Any) -> None:
    """Print the inertia of the axes, and the topics and groups with the largest parts of it."""
    say(f"inertia         {found.total_inertia:.4g}, the chi-square statistic over its total")
    explained = ", ".join(f"{share:.1%}" for share in found.explained[:10])
    say(f"axes            {explained or 'none: all groups have the same shares of topics'}\n")
    shown = [a for a in arguments.axes if a <= len(found.inertias)]
    columns = found.columns()
    for kind in ("topic", "group"):
        at = (columns["kind"] == kind).nonzero()[0]
        at = at[(-columns["inertia"][at]).argsort(kind="stable")][: arguments.n_top]
        rows = [[kind, "mass", "inertia", *(f"axis {a}" for a in shown)]]
        for i in at.tolist():
            share = columns["inertia"][i] / (found.total_inertia or 1.0)
            row = [str(columns["name"][i]), f"{columns['mass'][i]:.1%}", f"{share:.1%}"]
            rows.append([*row, *(f"{columns[f'axis_{a}'][i]:.3f}" for a in shown)])
        say_columns(rows)
        say("")
