"""The command `report`: a fit in one HTML file."""

from __future__ import annotations

import argparse
from typing import Any

from .files import check_inputs, input_files, output, read_input
from .labels import file_and_column, read_groups, warn_of_order
from .messages import say
from .option_groups import COUNT, PATH, add_gene_symbols, add_input, add_model, explain
from .symbols import symbols_of


def add_report_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    explain(
        command,
        "The page has the Structure plot, a card for each topic, a map of the topics, a table of\n"
        "features to search, and how the fit was made. It needs no network: send it by mail.",
    )
    add = command.add_argument
    add_model(command)
    add_input(command, several=True, nargs="*")
    add("-o", "--output", required=True, type=PATH, metavar="OUT", help="the page, .html")
    add_gene_symbols(command, with_counts=True)
    what = (
        "labels of the samples for the Structure plot, in the formats of the command test; "
        "repeat for several"
    )
    add("--groups", type=PATH, metavar="FILE[:COLUMN]", action="append", default=[], help=what)
    what = "another model of the same features, to compare topics with"
    add("--other", type=PATH, metavar="MODEL", help=what)
    what = "results that other commands wrote to a .h5, to show on the page; repeat for several"
    add("--results", type=PATH, metavar="FILE", action="append", default=[], help=what)
    add("--title", metavar="TEXT", help="title of the page")
    what = "leading features of each topic (default: %(default)s)"
    add("--n-top", type=COUNT, default=20, metavar="N", help=what)
    what = "samples in the Structure plot, a random subset of more (default: %(default)s)"
    add("--max-samples", type=COUNT, default=2000, metavar="N", help=what)
    add("--force", action="store_true", help="replace an existing file")


def report(arguments: argparse.Namespace) -> int:
    """Write a page about a model."""
    from ..report.charts import need_bokeh

    need_bokeh()
    counts_files = [] if arguments.input is None else input_files(arguments)
    inputs = [arguments.model, arguments.other, *counts_files, *arguments.results]
    paths = [path for path in inputs if path is not None]
    groups_files = [file_and_column(spec)[0] for spec in arguments.groups]
    check_inputs(*paths, *groups_files)
    target = output(arguments, (".html", ".htm"), [*paths, *groups_files])
    from ..inference.results.files import load_result
    from ..models.persistence import load_model, read_header
    from ..report.page import write_report

    model, header = load_model(arguments.model), read_header(arguments.model)
    other = None if arguments.other is None else load_model(arguments.other)
    groups = _groups(arguments, model)
    counts = None if arguments.input is None else read_input(arguments)
    writer = f"nmfscale {header['nmfscale_version']}"
    about = {
        "model file": f"{arguments.model}, written {header['created']} by {writer}",
        "command": arguments.command_line,
    }
    write_report(
        model, target, counts, groups=groups, other=other, title=arguments.title,
        results=[load_result(path) for path in arguments.results],
        about=about, gene_symbols=symbols_of(arguments, model, counts_files),
        n_top=arguments.n_top, max_samples=arguments.max_samples, overwrite=arguments.force,
    )  # fmt: skip
    size = target.stat().st_size
    say(f"report          {target}: {size / 1e6:.1f} MB; open it in a browser")
    return 0


def _groups(arguments: argparse.Namespace, model: Any) -> dict[str, Any]:
    """Return labels of the samples for each --groups, named after its column or file."""
    if not arguments.groups:
        return {}
    if getattr(model, "loadings_", None) is None:
        from ..models.from_components import why_no_loadings

        why = why_no_loadings(model)
        raise ValueError(f"--groups: the model has no samples to group, as {why}.")
    names = getattr(model, "sample_names_", None)
    labels = {}
    for spec in arguments.groups:
        path, column = file_and_column(spec)
        name = path if column is None else column
        labels[spec if name in labels else name] = read_groups(
            spec, len(model.loadings_), names, getattr(model, "obs_", None)
        )
    warn_of_order(arguments.groups, names)
    return labels
