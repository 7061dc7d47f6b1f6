"""The commands `pseudobulk` and `conditions`: counts of units by topic, and their changes."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ..terminal import visible_name
from .cluster import cluster_client
from .files import TEXT_TABLES, input_files, read_input
from .groups import label_files, labels_of_samples, topic_of
from .job import ANNDATA, ARRAYS, PAGE, PICTURES, Job, Outcome, drawn
from .option_groups import (
    COUNT,
    PATH,
    RESULT,
    TABLE,
    add_cluster_options,
    add_gene_symbols,
    add_input,
    add_model,
    add_outputs,
    add_run_options,
    at_least,
    explain,
    size,
)
from .parameters import add_parameter
from .symbols import symbols_of

FORM, FORMATS = "FILE[:COLUMN]|COLUMN", "in the formats of the command test"
_LEVEL = 0.05


def add_pseudobulk_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `pseudobulk`."""
    explain(
        command,
        "Each count is split among the topics by the probability that it comes from them, and\n"
        "the parts are added up over the samples of a unit. Programs for bulk counts, such as\n"
        "edgeR and DESeq2, take these tables; nmfscale conditions takes the .h5 as INPUT.",
    )
    add = command.add_argument
    add_model(command)
    add_input(command, several=True)
    add_outputs(command, f"{TABLE}; {RESULT} and for nmfscale conditions; AnnData, .h5ad")
    what = f"sampling units, such as donors, {FORMATS} (default: samples)"
    add("--units", type=PATH, metavar=FORM, help=what)
    what = "groups, such as conditions: units are split by group; same formats"
    add("--groups", type=PATH, metavar=FORM, help=what)
    add("--topic", metavar="TOPIC", help="write only the rows of a topic to tables and .h5ad")
    what = "in .h5ad: round counts to whole numbers, as DESeq2 and pydeseq2 need them"
    add("--rounded", action="store_true", help=what)
    add_run(command)


def add_conditions_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `conditions`."""
    explain(
        command,
        "Counts of units, such as donors, are split among the topics as by nmfscale pseudobulk,\n"
        "and compared between groups, such as conditions, topic by topic. INPUT has counts of\n"
        "samples, or is an .h5 of nmfscale pseudobulk: then labels are those of its units.",
    )
    from ..inference.features.conditions import condition_features

    add, add_of = command.add_argument, partial(add_parameter, command, condition_features)
    add_model(command)
    add_input(command, several=True)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot of --topic, .png, .pdf, .svg, .html")
    add_gene_symbols(command, with_counts=True)
    what = f"groups to compare, {FORMATS} (default: those of the .h5)"
    add("--groups", type=PATH, metavar=FORM, help=what)
    what = (
        "sampling units, such as donors; of units in several groups, groups are compared within "
        "units; same formats (default: samples, or the units of the .h5)"
    )
    add("--units", type=PATH, metavar=FORM, help=what)
    what = "groups are compared within strata, such as batches; same formats"
    add("--strata", type=PATH, metavar=FORM, help=what)
    what = "numbers or labels by which units differ, such as age; same formats; repeat for several"
    add("--covariates", type=PATH, metavar=FORM, action="append", help=what)
    what = "group that the others are compared with (default: the first in the alphabet)"
    add("--reference", metavar="GROUP", help=what)
    add_of("normalize")
    add_of("min_count", text="least counts of a topic in a unit, and of a feature in a topic")
    add_of("level", type=at_least(float, 0.5, 0.999))
    what = "features to print for each topic (default: %(default)s)"
    add("--n-top", type=COUNT, default=8, metavar="N", help=what)
    add("--topic", metavar="TOPIC", help="topic of the plot (default: the first)")
    what = "group of the plot (default: the first that is compared)"
    add("--group", metavar="GROUP", help=what)
    add_run(command)


def add_run(command: argparse.ArgumentParser) -> None:
    """Add options that say where the work is done."""
    what = "such as 2GB: data that do not fit are read from the file in pieces"
    command.add_argument("--memory-limit", type=size, metavar="SIZE", help=what)
    add_cluster_options(command, "the work")
    add_run_options(command)


def pseudobulk(arguments: argparse.Namespace) -> int:
    """Sum the counts of units, topic by topic."""
    endings = (*TEXT_TABLES, *ARRAYS, ANNDATA)
    job = Job(arguments, inputs_of(arguments), endings, draws=False)
    from ..inference.features.pseudobulk import pseudobulk as sum_units

    model, topic = model_and_topic(arguments)
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        labels = labels_of_samples(arguments, counts.shape[0], counts.sample_names, counts.obs)
        result = sum_units(model, counts, **labels, **how_of(arguments, client))

    def columns() -> dict[str, Any]:
        table = result.columns("counts")
        rows = slice(None) if topic is None else table["topic"] == result.topic_names[topic]
        return {name: values[rows] for name, values in table.items()}

    text = f"{str(result).strip('<>')}\n"
    return job.end(Outcome(
        result, text, columns,
        anndata=lambda: result.to_anndata(topic, rounded=arguments.rounded),
    ))  # fmt: skip


def conditions(arguments: argparse.Namespace) -> int:
    """Test which features differ between groups, topic by topic."""
    endings = (*TEXT_TABLES, *ARRAYS, *PICTURES, PAGE)
    job = Job(arguments, inputs_of(arguments), endings, draws=False)
    from ..inference.features.conditions import condition_features
    from ..models.topics.symbols import with_symbols

    model, topic = model_and_topic(arguments)
    files = input_files(arguments)
    symbols = symbols_of(arguments, model, files)
    with cluster_client(arguments) as client:
        counts, labels = _counts_of_samples_or_units(arguments, client is not None)
        reference, group = _compared(arguments, counts, labels)
        result = condition_features(
            model, counts, **labels, reference=reference, normalize=arguments.normalize,
            min_count=arguments.min_count, level=arguments.level, **how_of(arguments, client),
        )  # fmt: skip
    if symbols is not None:
        result = with_symbols(result, symbols, with_symbols(model, symbols))
    from ..pl import volcano_plot

    contrast: Any = result.contrast(result.compared[0] if group is None else group)
    return job.end(Outcome(
        result, _text(result, arguments.n_top), result.columns,
        lambda: drawn(volcano_plot, contrast, topic or 0, size=(4.6, 3.8)),
        page=lambda path: volcano_plot(contrast, topic or 0, interactive=True, save=path),
        names={"topics": result.topic_names, "features": result.feature_labels},
    ))  # fmt: skip


def inputs_of(arguments: argparse.Namespace) -> list[str]:
    """Return the files that the command reads."""
    return [arguments.model, *input_files(arguments), *label_files(arguments)]


def model_and_topic(arguments: argparse.Namespace) -> tuple[Any, int | None]:
    """Return the model, and the number of the topic of the option, checked before any work."""
    from ..inference.design.loadings import number_of_topic
    from ..models.persistence import load_model
    from ..models.topics.topics import topic_names_of

    model = load_model(arguments.model)
    if arguments.topic is None:
        return model, None
    names = topic_names_of(model, len(model.components_))
    known = names if hasattr(model, "topic_names_") else range(len(names))
    return model, number_of_topic(topic_of(arguments.topic, names), tuple(known), "--topic")


def how_of(arguments: argparse.Namespace, client: Any) -> dict[str, Any]:
    """Return where the work is done, as options of functions."""
    return {
        "memory_limit": arguments.memory_limit, "n_threads": arguments.threads, "client": client,
        "verbose": int(not arguments.quiet),
    }  # fmt: skip


def _counts_of_samples_or_units(
    arguments: argparse.Namespace, streamed: bool
) -> tuple[Any, dict[str, Any]]:
    """Return counts of samples or a Pseudobulk, and the labels of these samples or units."""
    from ..inference.features.pseudobulk import unique_names
    from ..inference.features.pseudobulk_result import Pseudobulk
    from ..inference.results.files import is_result_file, load_result

    files = input_files(arguments)
    if not any(map(is_result_file, files)):
        if arguments.groups is None:
            arguments.usage("the following arguments are required: --groups")
        counts = read_input(arguments, streamed=streamed)
        return counts, labels_of_samples(
            arguments, counts.shape[0], counts.sample_names, counts.obs
        )
    bulk = load_result(files[0])
    if not isinstance(bulk, Pseudobulk) or len(files) > 1:
        raise ValueError(
            f"{', '.join(files)}: counts of samples, or one file that nmfscale pseudobulk has "
            "written, are needed."
        )
    names = unique_names(bulk.unit_names)
    obs = {name: bulk.obs[name] for name in bulk.obs}
    return bulk, labels_of_samples(arguments, len(bulk.counts), names, obs)


def _compared(
    arguments: argparse.Namespace, counts: Any, labels: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the reference and the group of the plot, None by default, checked before any work."""
    names: list[Any] = sorted(set(labels["groups"])) if "groups" in labels else []
    if not names:
        names = list(counts.group_names or ())
    of_texts = {str(name): name for name in names}
    for option, text in (("reference", arguments.reference), ("group", arguments.group)):
        if text is not None and text not in of_texts:
            raise ValueError(f"--{option} {text} is not a group: groups are {', '.join(of_texts)}.")
    if arguments.group is not None and arguments.group == (arguments.reference or str(names[0])):
        raise ValueError(f"--group {arguments.group} is the reference, without changes.")
    return of_texts.get(arguments.reference), of_texts.get(arguments.group)


def _text(result: Any, n_top: int) -> str:
    """Return the design, and the leading features of each topic and group."""
    reference, labels = visible_name(result.reference), result.feature_labels
    most = result.n_units.max(axis=0).tolist()
    sizes = ", ".join(
        f"{visible_name(group)} {n:,}" for group, n in zip(result.groups, most, strict=True)
    )
    within = ", groups compared within units" if result.paired else ""
    lines = [f"{result.units:<15} {sizes}{within}", f"changes         relative to {reference}\n"]
    for k, topic in enumerate(result.topic_names):
        for c, group in enumerate(result.compared):
            contrast, tested = result.contrast(group), result.tested[c, k]
            leading = ", ".join(
                f"{visible_name(labels[j])} ({result.lfc[c, k, j]:+.1f})"
                for j in contrast.order(k)[:n_top]
            )
            n_found = int((contrast.significant(k, _LEVEL) & tested).sum())
            of = f"{visible_name(group)}, " if len(result.compared) > 1 else ""
            lines.append(
                f"topic {visible_name(topic):<9} {of}{n_found:,} of {int(tested.sum()):,} features "
                f"with q <= {_LEVEL:g}{': ' if leading else ''}{leading}"
            )
    return "\n".join([*lines, ""])
