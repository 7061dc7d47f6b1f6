"""The arguments of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import __version__
from . import commands
from .batches import add_batch_options, batch_effects
from .cluster import cluster
from .cluster_topics import add_cluster_topics_options, cluster_topics
from .coherence import add_coherence_options, coherence
from .completion import SHELLS, completion
from .conditions import add_conditions_options, add_pseudobulk_options, conditions, pseudobulk
from .correspondence import add_correspondence_options, correspondence
from .differential import differential, split_of
from .enrichment import add_enrichment_options, enrichment
from .examples import EXAMPLES
from .export import export
from .features_by_group import add_features_by_group_options, features_by_group
from .fit_each import add_fit_each_options, fit_each
from .hierarchy import add_hierarchy_options, hierarchy
from .in_file import add_restore_options, restore
from .inference import bootstrap, test
from .messages import unknown_command
from .option_groups import (
    COUNT,
    PATH,
    PORT,
    READ_FROM_FILE,
    RESULT,
    TABLE,
    add_batch,
    add_cluster_options,
    add_data_weights,
    add_features,
    add_gene_symbols,
    add_input,
    add_job_options,
    add_labels,
    add_model,
    add_outputs,
    add_results,
    add_run_options,
    add_seed,
    at_least,
    explain,
    size,
)
from .parameters import add_parameter, add_parameters, check_options
from .quality import add_quality_options, models_of_stability, stability, topic_quality
from .report import add_report_options, report
from .score_modalities import add_score_modalities_options, score_modalities
from .search import add_nearest_options, add_search_options, nearest, search
from .selection import add_selection_options, select_k
from .text import add_text_options, text


def make_parser(words: Sequence[str], *, all_options: bool = False) -> argparse.ArgumentParser:
    """Build the parser of all commands.

    Options of slow commands are added only if `words` name them, or with `all_options`, which adds
    the options of all models to `fit` and `fit-each`.
    """
    parser = argparse.ArgumentParser(
        prog="nmfscale", description="Poisson NMF and topic models for count matrices of any size.",
        epilog=EXAMPLES[""], formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    version = f"nmfscale {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print it and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (run, summary, add_options) in _COMMANDS.items():
        command = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=EXAMPLES[name], formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.set_defaults(run=run, usage=command.error, command=name)
        # options that are derived from the library need its import, which is slow
        if all_options or name not in _SLOW or words[:1] == [name]:
            add_options(command)
            command.add_argument("--debug", action="store_true", help="show an error's traceback")
        if name in ("fit", "fit-each") and (all_options or words[:1] == [name]):
            add_parameters(command, words, every_model=all_options)
        if words[:1] == [name]:
            check_options(command, words[1:])
    if words and words[0] not in _COMMANDS and not words[0].startswith("-"):
        parser.error(unknown_command(words[0], [*_COMMANDS]))
    return parser


def _demo(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    what = "default: %(default)s"
    add("-o", "--output", type=PATH, metavar="DIR", default="nmfscale-demo", help=what)
    add_run_options(command)


def _fit(command: argparse.ArgumentParser) -> None:
    add_input(command, several=True)
    add = command.add_argument
    add("-k", type=COUNT, required=True, help="number of topics")
    what = "default: %(default)s"
    add("-o", "--output", type=PATH, metavar="MODEL.h5", default="model.h5", help=what)
    add_seed(command)
    what = (
        "for --model ssnmf: on each line a label, or name TAB label (comma in a .csv), empty if "
        "there is none; or a column of a table with a header, or of obs of an .h5ad (COLUMN alone: "
        "of INPUT)"
    )
    add("--labels", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    add_batch(command, "")
    add_data_weights(command)
    what = (
        "also add the fit to INPUT, an .h5ad or .h5mu file, with this key, such as topics: obsm, "
        "varm and uns get entries as by nmfscale.tl.topics; counts are not rewritten"
    )
    add("--write-h5ad", metavar="KEY", help=what)
    add(
        "--checkpoint-every", type=at_least(float, 0), metavar="SECONDS", default=60.0,
        help="time between two checkpoints; 0 saves every iteration (default: %(default)g)",
    )  # fmt: skip
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    what = "print what the fit would cost, here and with --workers, and do not run it"
    add("--plan", action="store_true", help=what)
    what = "with --plan: plan so many nonzero counts, of samples like those of INPUT"
    add("--plan-nonzeros", type=at_least(float, 1, 1e13), metavar="N", help=what)
    add_job_options(command, "the fit", "MODEL.h5")
    add_run_options(command)


def _store(command: argparse.ArgumentParser) -> None:
    add_input(command, packed=False, several=True)
    add = command.add_argument
    add("output", type=PATH, metavar="OUT.nmf", help="the packed store to write")
    what = "such as 2GB: text files that need more than a quarter of it are sorted on disk"
    add("--memory-limit", type=size, metavar="SIZE", help=what)
    thinning = command.add_mutually_exclusive_group()
    what = "keep so many counts of each sample, drawn at random; samples with fewer keep all"
    thinning.add_argument("--thin-total", type=at_least(int, 1), metavar="N", help=what)
    what = "keep each count with this probability"
    thinning.add_argument("--thin-fraction", type=float, metavar="P", help=what)
    add_seed(command, "for --thin-total and --thin-fraction (default: a new seed)")
    add_run_options(command)


def _transform(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    what = (
        "file written by fit; or a table of programs (.csv, .tsv or .txt, also with .gz): weights "
        "of features, with the names of those of INPUT, for each program"
    )
    add("model", type=PATH, metavar="MODEL", help=what)
    add_input(command, several=True)
    what = ".npy, written during the work; .npz; .csv or .tsv, also with .gz"
    add("-o", "--output", required=True, type=PATH, metavar="OUT", help=what)
    what = (
        "features of the model that INPUT lacks: raise an error; ignore them, as they were not "
        "measured (restrict); or set their counts to 0, as for words that do not occur (zero); "
        "zero by default for counts of texts, otherwise error"
    )
    add("--missing", choices=("error", "restrict", "zero"), help=what)
    add_batch(command, "; those of new batches are estimated")
    what = "with --batch and a table: shape of the prior of efficiencies, such as 10"
    add("--batch-shape", type=at_least(float, 0), metavar="X", help=what)
    add_data_weights(command)
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_cluster_options(command, "the work")
    add_run_options(command)


def _info(command: argparse.ArgumentParser) -> None:
    add_input(command, nargs="?")
    what = "versions, instruction sets, threads"
    command.add_argument("--build", action="store_true", help=what)
    add_gene_symbols(command)


def _plot(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    what = "files written by fit; several for --kind progress"
    add("models", type=PATH, metavar="MODEL", nargs="+", help=what)
    add("-o", "--output", required=True, type=PATH, metavar="OUT", help=".png, .pdf or .svg")
    add(
        "--kind", choices=("structure", "progress", "top", "scree"), default="structure",
        help="topic proportions of the samples, progress of the fit, leading features, or "
        "distances of the anchors of an AnchorNMF (default: %(default)s)",
    )  # fmt: skip
    what = (
        "for structure: on each line a label, or name TAB label (comma in a .csv); or a column of "
        "obs of a .h5ad, .zarr or .nmf, or of a table with a header whose first column names the "
        "samples; or a COLUMN of obs that the model has"
    )
    add("--groups", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    add_features(command, "for top: number of features of each topic")
    add_gene_symbols(command)
    what = "for progress: the horizontal axis (default: %(default)s)"
    add("--x", choices=("seconds", "iteration"), default="seconds", help=what)
    add("--force", action="store_true", help="replace existing files")


def _test(command: argparse.ArgumentParser) -> None:
    from ..inference.regression.permutation import permutation_test

    explain(command, _UNITS)
    add_labels(command)
    add = partial(add_parameter, command, permutation_test)
    add("scale")
    add("statistic", text="test statistic: a distance of the groups")
    add("scope")
    what = (
        "numbers or labels beside which groups are compared, such as age; same formats as "
        "--groups; repeat for several"
    )
    form = "FILE[:COLUMN]|COLUMN"
    command.add_argument("--covariates", type=PATH, metavar=form, action="append", help=what)
    what = "topics to add up, such as 'T cells=1,4'; repeat for several"
    command.add_argument("--topic-sum", metavar="NAME=TOPICS", action="append", help=what)
    what = "random labellings; all labellings if there are not more"
    add("n_permutations", "--permutations", what)
    add_results(command, "the tests")


def _bootstrap(command: argparse.ArgumentParser) -> None:
    explain(
        command,
        f"{_UNITS}\n\n"
        "weights: balanced weights, which depend neither on the size of a group nor on the\n"
        "frequency of a topic. They need only the model, and little time. fit: mean proportions\n"
        "of models fitted to bootstrap samples, which takes about as long as that many fits.",
    )
    from ..inference.groups.bootstrap import bootstrap_weights

    add_labels(command)
    add, add_of = command.add_argument, partial(add_parameter, command, bootstrap_weights)
    what = "weights of topics in groups, or mean proportions (default: %(default)s)"
    add("--kind", choices=("weights", "fit"), default="weights", help=what)
    add_input(command, option="--counts", when="for fit: ")
    add_of("scale", when="for weights", unset=True)
    add_of("equal_weights")
    for name in ("zeros", "within", "interval"):
        add_of(name, when="for weights", unset=True)
    add("--replicates", type=COUNT, metavar="N", help="default: 1000 for weights, 200 for fits")
    add_of("level", type=at_least(float, 0.5, 0.999))
    what = "print at most N heaviest and N lightest topics (default: %(default)s)"
    add("--n-top", type=COUNT, default=10, metavar="N", help=what)
    what = "in plots: groups within topics, or topics within groups (default: %(default)s)"
    add("--draw", choices=("RwT", "TwR"), default="RwT", help=what)
    what = "in plots: intervals, or the distribution of the replicates (default: %(default)s)"
    add("--style", choices=("intervals", "density", "histogram"), default="intervals", help=what)
    add_results(command, "the bootstrap")


def _stability(command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "The likelihood has many local optima. Topics of all fits are matched with those of the\n"
        "best fit. Consensus topics are made as by cNMF: topics far from all others are left out,\n"
        "the rest are clustered, and a topic is the median of its cluster.",
    )
    from ..inference.choice.stability import stability as fit_from_starts

    add_input(command, several=True)
    add, add_of = command.add_argument, partial(add_parameter, command, fit_from_starts)
    add("-k", type=COUNT, help="number of topics")
    what = "in place of -k and --model: a fit of INPUT, to be compared with the starts"
    add("--of", type=PATH, metavar="MODEL", help=what)
    add_of("n_starts", "--starts")
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    what = "a .h5 to write, a model with the consensus topics"
    add("--consensus", type=PATH, metavar="OUT", help=what)
    what = (
        "table to write: a row for each start, or for each topic of the best start or of --of "
        "(default: %(default)s)"
    )
    add("--table", choices=("starts", "topics", "fit"), default="starts", help=what)
    add("--model", choices=models_of_stability(), help="default: topic")
    what = (
        "leave topics out of the consensus whose mean distance from their neighbours, 0 to 2, is "
        "larger"
    )
    add_batch(command, "")
    add_of("density_threshold", text=what, type=at_least(float, 1e-6, 2))
    add_seed(command)
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_job_options(command, "the fits", "OUT")
    add_run_options(command)


def _differential(command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Counts of each feature are regressed on the topics of the samples. INPUT has the samples\n"
        "of the fit, and the same or other features.",
    )
    from ..inference.features.differential import differential_features

    add, add_of = command.add_argument, partial(add_parameter, command, differential_features)
    add_model(command)
    add_input(command, several=True)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot of --topic, .png, .pdf, .svg, .html")
    add_gene_symbols(command, with_counts=True)
    what = "least-extreme, mean, a topic, or topics as 0,3"
    add_of("reference", text=what, choices=None, metavar="TOPICS")
    add_of("pseudocount", metavar="A")
    add_of("family")
    what = "sampling units, such as donors, as for the command test: errors are those between units"
    add("--units", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    what = (
        "share of the counts to which topics are fitted again, such as 0.5; features are tested in "
        "the others. auto: half, if the counts are those of the fit and can be split; without a "
        "split there are no p-values. none: the topics were not fitted to these counts "
        "(default: auto)"
    )
    add("--split", default="auto", type=split_of, metavar="SHARE|auto|none", help=what)
    add_seed(command, "for the split (default: a new seed)")
    what = "features to print for each topic (default: %(default)s)"
    add("--n-top", type=COUNT, default=8, metavar="N", help=what)
    what = "topic of the plot (default: the first that is compared)"
    add("--topic", metavar="TOPIC", help=what)
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_job_options(command, "the work", "OUT")
    add_run_options(command)


def _export(command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "loadings: a row for each sample, a column for each topic. components: a row for each\n"
        "feature. top: the features that distinguish a topic best, with their value in the\n"
        "components and their lift: their share of the topic divided by their share of all\n"
        "expected counts (1: no difference). Topics are numbered from 0.",
    )
    add = command.add_argument
    add_model(command)
    what = "a table: .csv or .tsv, also with .gz; or a folder for all tables"
    add("-o", "--output", required=True, type=PATH, metavar="OUT", help=what)
    what = "the table to write (default: loadings; all tables for a folder)"
    add("--table", choices=("loadings", "components", "top"), help=what)
    add_gene_symbols(command)
    what = "format of the tables in a folder (default: csv)"
    add("--format", choices=("csv", "tsv", "csv.gz", "tsv.gz"), help=what)
    add_features(command, "for top: number of features of each topic")
    add("--force", action="store_true", help="replace existing files")


def _cluster(command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Anyone who can connect to a cluster can run code as you: without --tls, every user of\n"
        "this machine; with --tls, only those who have the key in the folder.",
    )
    add = command.add_argument
    what = "number of processes, each runs one task at a time (default: one for every 4 CPUs)"
    add("--workers", type=COUNT, metavar="N", help=what)
    what = "address to listen on; all but loopback addresses need --tls (default: %(default)s)"
    add("--host", metavar="ADDRESS", default="127.0.0.1", help=what)
    what = "port of the scheduler; 0: any free port (default: %(default)s)"
    add("--port", type=PORT, default=8786, metavar="N", help=what)
    what = "always on 127.0.0.1; another port if this one is taken (default: %(default)s)"
    add("--dashboard-port", type=PORT, default=8787, metavar="N", help=what)
    what = "use TLS, and accept only the certificates in this folder; created if missing"
    add("--tls", type=PATH, metavar="DIR", help=what)
    what = "limit of each worker, such as 8GB (default: an equal share of the machine's memory)"
    add("--memory-limit", type=size, metavar="SIZE", help=what)
    what = "folder for temporary files of the workers (default: the system's)"
    add("--local-directory", type=PATH, metavar="DIR", help=what)


def _completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELLS, help="the shell to complete in")


_UNITS = """First identify the sampling unit. Beers of a brewery, posts of a blog, or cells of a
patient resemble each other: pass the breweries, blogs or patients as --units. Without --units,
samples are the units, and the test may find differences that do not exist."""
# Commands whose options are derived from the library.
_SLOW = (
    "fit", "fit-each", "test", "bootstrap", "correspondence", "select-k", "stability",
    "differential", "conditions", "nearest", "cluster-topics", "hierarchy",
)  # fmt: skip
# The function of each command, its summary, and the function that adds its options.
_COMMANDS: dict[str, tuple[Any, str, Callable[[argparse.ArgumentParser], None]]] = {
    "demo": (commands.demo, "fit the docstrings of the installed packages", _demo),
    "fit": (commands.fit, "fit a model and write it to a file", _fit),
    "fit-each": (fit_each, "fit a model to each of several files", add_fit_each_options),
    "store": (commands.store, "pack counts for fits larger than memory", _store),
    "text": (text, "count the words of texts, for a fit", add_text_options),
    "transform": (commands.transform, "loadings of new samples", _transform),
    "info": (commands.info, "describe counts, a model, a result or this installation", _info),
    "plot": (commands.plot, "draw a model", _plot),
    "test": (test, "test whether groups of samples differ in their topics", _test),
    "bootstrap": (bootstrap, "how heavy topics are in groups, with intervals", _bootstrap),
    "correspondence": (
        correspondence,
        "place topics and groups on a map (may change in any release)",
        add_correspondence_options,
    ),
    "select-k": (
        select_k,
        "compare numbers of topics by held-out counts",
        add_selection_options,
    ),
    "stability": (stability, "topics that fits from many random starts have in common", _stability),
    "topic-quality": (
        topic_quality,
        "coherence, exclusivity and size of topics",
        add_quality_options,
    ),
    "score-modalities": (
        score_modalities,
        "held-out scores of each of several modalities",
        add_score_modalities_options,
    ),
    "coherence": (coherence, "how well the words of topics belong together", add_coherence_options),
    "search": (search, "samples of a fit that are about some words", add_search_options),
    "nearest": (nearest, "samples of a fit with topics like those of others", add_nearest_options),
    "cluster-topics": (cluster_topics, "topics that many fits share", add_cluster_topics_options),
    "hierarchy": (hierarchy, "topics of topics, as a tree", add_hierarchy_options),
    "enrichment": (enrichment, "gene sets that are enriched in topics", add_enrichment_options),
    "batch-effects": (batch_effects, "how batches of samples differ", add_batch_options),
    "differential": (differential, "which features make each topic, with tests", _differential),
    "pseudobulk": (
        pseudobulk,
        "counts of units, such as donors, topic by topic",
        add_pseudobulk_options,
    ),
    "conditions": (
        conditions,
        "which features differ between groups within topics",
        add_conditions_options,
    ),
    "features-by-group": (
        features_by_group,
        "features of topics over time, or by source",
        add_features_by_group_options,
    ),
    "export": (export, "write tables of a model", _export),
    "report": (report, "write a page about a model, one HTML file", add_report_options),
    "restore": (restore, "restore a file that --write-h5ad left half written", add_restore_options),
    "completion": (completion, "print a script that completes commands and options", _completion),
    "cluster": (cluster, "run a Dask cluster on this machine until Ctrl-C", _cluster),
}
