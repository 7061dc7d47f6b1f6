"""The command `cluster-topics`: topics that many fits have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from .files import TEXT_TABLES
from .job import ARRAYS, PICTURES, Job, Outcome, drawn
from .labels import read_groups
from .option_groups import COUNT, PATH, RESULT, TABLE, add_gene_symbols, add_outputs, explain
from .symbols import symbols_by_features


def add_cluster_topics_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `cluster-topics`."""
    from ..inference.several_fits.cluster_topics import ComparedFeatures
    from ..models.comparison import Metric

    explain(
        command,
        "Each cluster has at most one topic of a fit. similarity: that of the topics of a\n"
        "cluster; to next: that to the topics of the next cluster.",
    )
    add = command.add_argument
    add("models", type=PATH, metavar="MODEL", nargs="+", help="two or more files written by fit")
    what = (
        "sample of each model, if several are of one (default: the file that fit-each has fitted): "
        "on each line name TAB label (comma in a .csv), or a column of a table with a header whose "
        "first column has the names, those of the files without folder and ending"
    )
    add("--samples", type=PATH, metavar="FILE[:COLUMN]", help=what)
    what = "group of each model, such as a condition, whose samples are counted; same formats"
    add("--groups", type=PATH, metavar="FILE[:COLUMN]", help=what)
    what = (
        "features that are compared, where models have different ones: those of each two models, "
        "or those of all (default: %(default)s)"
    )
    add("--features", choices=get_args(ComparedFeatures), default="pairwise", help=what)
    what = "least number of features that two models must have in common (default: %(default)s)"
    add("--min-common", type=COUNT, default=20, metavar="N", help=what)
    what = "joins clusters as long as their mean similarity is at least X (default: %(default)s)"
    add("--min-similarity", type=float, default=0.5, metavar="X", help=what)
    what = "similarity of two topics (default: %(default)s)"
    add("--metric", choices=get_args(Metric), default="lift", help=what)
    add_gene_symbols(command)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    tables = "clusters", "topics", "consensus"
    what = "table to write: clusters, topics of all fits, or mean topics (default: %(default)s)"
    add("--table", choices=tables, default="clusters", help=what)
    add("--force", action="store_true", help="replace existing files")


def cluster_topics(arguments: argparse.Namespace) -> int:
    """Cluster the topics of many fits."""
    if len(arguments.models) < 2:
        arguments.usage("two models or more are needed")
    job = Job(arguments, arguments.models, (*TEXT_TABLES, *ARRAYS, *PICTURES), draws=False)
    from ..counts.names import name_array
    from ..inference.several_fits.cluster_topics import cluster_topics as clusters_of
    from ..models.persistence import load_model
    from ..models.topics.symbols import with_symbols

    stems = [Path(path).stem for path in arguments.models]
    names = stems if len(set(stems)) == len(stems) else arguments.models
    fits = {name: load_model(path) for name, path in zip(names, arguments.models, strict=True)}
    samples, groups = (
        None if spec is None else name_array(read_groups(spec, len(fits), name_array([*fits])))
        for spec in (arguments.samples, arguments.groups)
    )
    if samples is None:
        samples = name_array(_sources_of(fits, arguments.models))
    result = clusters_of(
        fits, samples=samples, groups=groups, features=arguments.features,
        min_common=arguments.min_common, metric=arguments.metric,
        min_similarity=arguments.min_similarity,
    )  # fmt: skip
    symbols = symbols_by_features(arguments, result.feature_names)
    if symbols is not None:
        result = with_symbols(result, symbols)
    return job.end(
        Outcome(result, str(result), lambda: result.columns(arguments.table), lambda: _draw(result))
    )


def _sources_of(fits: dict[str, Any], paths: list[str]) -> list[str]:
    """Return the source of each model of `fit-each`, and the names of other models.

    Models in different folders are of different samples.
    """
    sources = {
        name: (Path(path).parent, model.source_name_)
        for (name, model), path in zip(fits.items(), paths, strict=True)
        if hasattr(model, "source_name_")
    }
    short = len({source for _, source in sources.values()}) == len(set(sources.values()))
    texts = {name: source if short else str(at / source) for name, (at, source) in sources.items()}
    return [texts.get(name, name) for name in fits]


def _draw(result: Any) -> Any:
    from ..pl import similarity_plot
    from ..pl.similarity import size_of_clusters

    return drawn(similarity_plot, result, size=size_of_clusters(result))
