"""The command `hierarchy`: topics of topics, of one fit or of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from .files import TEXT_TABLES
from .job import ARRAYS, PICTURES, Job, Outcome, drawn
from .option_groups import COUNT, PATH, RESULT, TABLE, add_outputs, explain


def add_hierarchy_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    from ..models.comparison import Metric

    explain(
        command,
        "Similar topics of one fit are joined step by step. Several fits with rising numbers of\n"
        "topics are levels of a tree: each topic has its most similar one of the fit before as\n"
        "parent.",
    )
    add = command.add_argument
    what = "a file written by fit, or several, from the fewest topics to the most"
    add("models", type=PATH, metavar="MODEL", nargs="+", help=what)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    what = "similarity of two topics (default: %(default)s)"
    add("--metric", choices=get_args(Metric), default="bhattacharyya", help=what)
    what = "print N groups of topics; of several fits, one of their numbers of topics"
    add("--n-groups", type=COUNT, metavar="N", help=what)
    add("--force", action="store_true", help="replace existing files")


def hierarchy(arguments: argparse.Namespace) -> int:
    """Join similar topics to a tree."""
    job = Job(arguments, arguments.models, (*TEXT_TABLES, *ARRAYS, *PICTURES), draws=False)
    from ..inference.choice.hierarchy import topic_hierarchy
    from ..models.persistence import load_model
    from ..pl.hierarchy import hierarchy_plot, size_of_tree

    paths, several = arguments.models, len(arguments.models) > 1
    stems = [Path(path).stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else paths
    fits: Any = {name: load_model(path) for name, path in zip(names, paths, strict=True)}
    tree: Any = topic_hierarchy(fits if several else fits[names[0]], metric=arguments.metric)
    text, n_groups = f"{tree}\n", arguments.n_groups
    if n_groups is not None:
        groups = tree.cut(n_groups)
        text += "".join(f"\n{name}: {' '.join(map(str, group))}" for name, group in groups.items())
        text += "\n"
    line = None if several or n_groups == 1 else n_groups
    return job.end(Outcome(
        tree, text, tree.columns,
        lambda: drawn(hierarchy_plot, tree, line, size=size_of_tree(tree)),
    ))  # fmt: skip
