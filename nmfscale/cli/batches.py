"""The command `batch-effects`: what differs between batches, and whether topics do."""

from __future__ import annotations

import argparse
from typing import Any

from .files import TEXT_TABLES, input_files, read_input
from .groups import names_of_topics
from .job import ARRAYS, PICTURES, Job, Outcome, drawn
from .labels import file_and_column, read_groups, warn_of_order
from .option_groups import (
    PATH,
    RESULT,
    TABLE,
    add_input,
    add_model,
    add_outputs,
    explain,
    size,
)

# Options of labels of samples.
_LABELS = "batch", "conditions", "clusters"


def add_batch_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `batch-effects`."""
    explain(
        command,
        "AUC: how well topics tell the batch of a sample within a cluster. 0.5: batches are\n"
        "mixed; 1: they are apart. Of a model that was fitted with --batch, efficiencies are\n"
        "the counts of a feature in a batch relative to those that the topics expect. With\n"
        "INPUT, the counts of the fit, the AUC without efficiencies is shown, too.",
    )
    add = command.add_argument
    add_model(command)
    add_input(command, several=True, nargs="*")
    what = (
        "batches of the samples, such as donors, in the formats of the command test (default: "
        "those of the fit)"
    )
    add("--batch", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    what = "conditions, such as treated and control: warn if batches are confounded with them"
    add("--conditions", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    what = "clusters within which batches are compared, such as cell types (default: leading topic)"
    add("--clusters", type=PATH, metavar="FILE[:COLUMN]|COLUMN", help=what)
    add_outputs(command, f"{TABLE}; {RESULT}; a plot, .png, .pdf or .svg")
    tables = "batches", "topics", "shares", "clusters", "features", "conditions"
    what = "table to write (default: %(default)s)"
    add("--table", choices=tables, default="batches", help=what)
    add("--memory-limit", type=size, metavar="SIZE", help="such as 2GB, for INPUT")
    add("--force", action="store_true", help="replace existing files")


def batch_effects(arguments: argparse.Namespace) -> int:
    """Show how batches differ."""
    if arguments.table == "conditions" and arguments.conditions is None:
        arguments.usage("--table conditions needs --conditions")
    specs = {name: getattr(arguments, name) for name in _LABELS if getattr(arguments, name)}
    files = [] if arguments.input is None else input_files(arguments)
    inputs = [arguments.model, *files, *(file_and_column(spec)[0] for spec in specs.values())]
    job = Job(arguments, inputs, (*TEXT_TABLES, *ARRAYS, *PICTURES), draws=False)
    from ..inference.batches.effects import batch_effects as effects
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    if getattr(model, "loadings_", None) is None:
        raise ValueError(f"{arguments.model} has no loadings: it was fitted in parts.")
    if arguments.table == "features" and getattr(model, "batches_", None) is None:
        arguments.usage("--table features is for models that were fitted with batches")
    if arguments.memory_limit is not None:
        model.set_params(memory_limit=arguments.memory_limit)
    labels = _labels(specs, model)
    counts = read_input(arguments) if files else None
    result = effects(model, counts, **labels, topic_names=names_of_topics(model))
    return job.end(
        Outcome(result, str(result), lambda: result.columns(arguments.table), lambda: _draw(result))
    )


def _draw(result: Any) -> Any:
    from ..pl import batch_plot
    from ..pl.batches import size_of_batches

    return drawn(batch_plot, result, size=size_of_batches(result))


def _labels(specs: dict[str, str], model: Any) -> dict[str, Any]:
    """Return the labels of the samples of the fit, as Series with the names of columns."""
    import pandas as pd

    names = getattr(model, "sample_names_", None)
    warn_of_order(specs.values(), names)
    labels = {}
    for option, spec in specs.items():
        values = read_groups(spec, len(model.loadings_), names, getattr(model, "obs_", None))
        missing = [i for i, label in enumerate(values) if label is None]
        if missing:
            raise ValueError(
                f"--{option} {spec} has no label for {len(missing):,} samples (the first is "
                f"{missing[0] if names is None else repr(str(names[missing[0]]))}): add the "
                "labels, such as one of their own."
            )
        path, column = file_and_column(spec)
        labels[option] = pd.Series(values, name=column or path, index=names)
    return labels
