"""The command `enrichment`: gene sets that are enriched in topics."""

from __future__ import annotations

import argparse
from typing import Any

from .files import TEXT_TABLES
from .job import ARRAYS, PICTURES, Job, Outcome, drawn
from .option_groups import (
    COUNT,
    PATH,
    RESULT,
    TABLE,
    add_gene_symbols,
    add_model,
    add_outputs,
    explain,
)
from .symbols import symbols_of


def add_enrichment_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `enrichment`."""
    from ..methods.topics.score_names import SCORES

    explain(
        command,
        "Tests whether features of a set are among those that lead a topic. size: features of\n"
        "the set in the model; overlap: those among the leading ones; AUC: how often a feature\n"
        "of the set has a higher score than another one.",
    )
    add = command.add_argument
    add_model(command)
    what = "gene sets in the format GMT, also with .gz"
    add("--gene-sets", required=True, type=PATH, metavar="FILE", help=what)
    what = "hypergeometric: number of leading features; rank: Mann-Whitney (default: %(default)s)"
    add("--test", choices=("hypergeometric", "rank"), default="hypergeometric", help=what)
    what = "number of leading features of each topic (default: %(default)s)"
    add("--n-top", type=COUNT, default=100, metavar="N", help=what)
    ranking = command.add_mutually_exclusive_group().add_argument
    what = "what ranks features: see get.top_features (default: %(default)s)"
    ranking("--score", choices=SCORES, default="divergence", help=what)
    what = "rank features by a result of the command differential for this model, .h5"
    ranking("--differential", type=PATH, metavar="FILE", help=what)
    what = "leave out sets with fewer features of the model (default: %(default)s)"
    add("--min-size", type=COUNT, default=5, metavar="N", help=what)
    add("--max-size", type=COUNT, metavar="N", help="leave out sets with more")
    add_gene_symbols(command)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    add("--force", action="store_true", help="replace existing files")


def enrichment(arguments: argparse.Namespace) -> int:
    """Test gene sets."""
    files = [arguments.model, arguments.gene_sets, arguments.differential]
    inputs = [path for path in files if path is not None]
    job = Job(arguments, inputs, (*TEXT_TABLES, *ARRAYS, *PICTURES), draws=False)
    from ..inference.features.enrichment import enrichment as test_sets
    from ..inference.results.files import load_result
    from ..models.persistence import load_model

    model, score = load_model(arguments.model), arguments.score
    if arguments.differential is not None:
        score = load_result(arguments.differential)
    result = test_sets(
        model, arguments.gene_sets, test=arguments.test, n_top=arguments.n_top, score=score,
        min_size=arguments.min_size, max_size=arguments.max_size,
        gene_symbols=symbols_of(arguments, model),
    )  # fmt: skip
    return job.end(Outcome(result, str(result), result.columns, lambda: _draw(result)))


def _draw(result: Any) -> Any:
    from ..pl import enrichment_plot
    from ..pl.enrichment import size_of_plot

    return drawn(enrichment_plot, result, size=size_of_plot(result))
