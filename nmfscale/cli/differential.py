"""The command `differential`: which features make a topic."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .cluster import cluster_client
from .commands import save_figure, terminated_as_interrupted
from .files import TEXT_TABLES, check_inputs, output, read_input
from .inference import ARRAYS, PICTURES, _end, _in_rows, _write_all, _write_arrays, _write_text
from .messages import say


def differential(arguments: argparse.Namespace) -> int:
    """Find the features that make each topic."""
    if arguments.resume and arguments.checkpoint is None:
        arguments.usage("--resume needs --checkpoint DIR, the folder to resume from")
    check_inputs(arguments.model, arguments.input)
    kinds, files = (*TEXT_TABLES, *ARRAYS, *PICTURES), [arguments.model, arguments.input]
    targets = [
        output(arguments, kinds, files, replaces=arguments.resume, given=each)
        for each in arguments.output
    ]
    if any(target.suffix.lower() in PICTURES for target in targets):
        from ..plots import detached_axes

        detached_axes(1.0, 1.0)  # raises an error before any work if matplotlib is missing
    from ..inference.differential import differential_features
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    with terminated_as_interrupted(), cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        found = differential_features(
            model, counts, reference=_reference(arguments.reference),
            pseudocount=arguments.pseudocount, family=arguments.family,
            memory_limit=arguments.memory_limit, n_threads=arguments.threads, client=client,
            checkpoint=arguments.checkpoint, resume=arguments.resume,
            verbose=int(not arguments.quiet),
        )  # fmt: skip
    _say(found, arguments.n_top)

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            from ..plots import detached_axes, volcano_plot

            topic = found.topic_number(_number(arguments.topic))
            save_figure(volcano_plot(found, topic, ax=detached_axes(4.6, 3.8)[0]), target)
        elif target.suffix.lower() in ARRAYS:
            names = {"topics": found.topic_names, "features": found.feature_labels}
            _write_arrays(arguments, target, _arrays(found), names)
        else:
            frame = found.to_frame()
            columns = {name: frame[name].tolist() for name in frame.columns}
            _write_text(target, list(columns), _in_rows(columns))

    _write_all(targets, write)
    return _end(arguments, len(found.features), found.interrupted)


def _arrays(found: Any) -> dict[str, Any]:
    """Return the arrays of a result by name."""
    names = (
        "lfc", "std_error", "z", "pvalues", "qvalues", "lfsr", "lfc_shrunken", "frequencies",
        "least_extreme", "base_mean", "dispersion",
    )  # fmt: skip
    arrays = {name: getattr(found, name) for name in names}
    return {name: array for name, array in arrays.items() if array is not None}


def _number(text: str) -> Any:
    return int(text) if text.isdecimal() else text


def _reference(text: str) -> Any:
    """Return the reference for the text of the option: a word, a topic, or several topics."""
    parts = [_number(part) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else parts


def _say(found: Any, n_top: int) -> None:
    """Print the leading features of each topic."""
    say(f"features        {len(found.features):,}, relative to {found.reference}")
    say("                topics fitted to the same counts make p too small: z ranks features\n")
    labels = found.feature_labels
    for k, topic in enumerate(found.topic_names):
        if k in found.own_reference:
            continue
        leading = [f"{labels[j]} ({found.z[k, j]:.1f})" for j in found.order(k)[:n_top]]
        say(f"topic {topic!s:<9} {', '.join(leading)}")
    say("")
