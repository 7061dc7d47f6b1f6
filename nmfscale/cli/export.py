"""The command `export`: tables of a model, for spreadsheets and other programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..storage.atomic import atomic_write
from .files import (
    TEXT_TABLES,
    check_inputs,
    columns_of_topics,
    table_of_topics,
    writable,
    write_rows,
)
from .messages import log, say
from .symbols import shown_model

Rows = tuple[list[str], Iterable[list[Any]]]


def export(arguments: argparse.Namespace) -> int:
    """Write a model's tables: one file, or all of them into a folder."""
    check_inputs(arguments.model)
    chosen = _targets(arguments)
    from ..models.from_components import why_no_loadings
    from ..models.persistence import load_model

    model = shown_model(arguments, load_model(arguments.model))
    if getattr(model, "loadings_", None) is None and "loadings" in chosen:
        why = f"has no loadings: {why_no_loadings(model)}"
        if len(chosen) == 1:
            raise ValueError(f"{arguments.model} {why}; nmfscale transform computes loadings.")
        log(f"{arguments.model} {why}; there will be no table of them")
        del chosen["loadings"]
    folder = next(iter(chosen.values())).parent
    made = [directory for directory in (folder, *folder.parents) if not directory.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, target in chosen.items():
            header, rows = TABLES[name](model, arguments)
            with atomic_write(target) as part:
                write_rows(part, target.name, header, rows)
            say(f"{name:<15} {target}")
    finally:
        with suppress(OSError):  # removes new folders only if they are empty
            for directory in made:
                directory.rmdir()
    return 0


def _targets(arguments: argparse.Namespace) -> dict[str, Path]:
    """Return the file for each table, checked before any work."""
    path, one = Path(arguments.output), arguments.table
    if path.name.lower().endswith(TEXT_TABLES):
        if arguments.format is not None:
            arguments.usage(f"--format is for a folder; the name {path} determines the format")
        return {one or "loadings": writable(path, arguments.force, [arguments.model])}
    if path.suffix and not path.is_dir():
        endings = ", ".join(TEXT_TABLES)
        arguments.usage(f"{path} must end with one of {endings}, or be a folder for all tables.")
    if path.exists() and not path.is_dir():
        arguments.usage(f"{path} is a file; pass a folder, or a name with suffix .csv or .tsv")
    names = [one] if one else list(TABLES)
    targets = {name: path / f"{name}.{arguments.format or 'csv'}" for name in names}
    if path.is_dir():
        for target in targets.values():
            writable(target, arguments.force, [arguments.model])
    return targets


def _loadings(model: Any, arguments: argparse.Namespace) -> Rows:
    return table_of_topics("sample", getattr(model, "sample_names_", None), model.loadings_, model)


def _components(model: Any, arguments: argparse.Namespace) -> Rows:
    return table_of_topics("feature", _features_of(model), model.components_.T, model)


def _top_features(model: Any, arguments: argparse.Namespace) -> Rows:
    """Return rows with the leading features of each topic: by default those that `info` shows."""
    import numpy as np

    from ..models.leading_features import leading_features

    values, expected = model.components_, _expected_shares(model)
    there = expected > np.finfo(np.float64).tiny  # other features have no lift
    shares, _, leading = leading_features(values * there, None, arguments.n_top, arguments.score)
    names = _features_of(model)
    rows = []
    for k, (topic, order) in enumerate(zip(columns_of_topics(model), leading, strict=True)):
        lift = np.asarray(shares[k, order], np.float64) / expected[order]
        for rank, (j, times) in enumerate(zip(order.tolist(), lift, strict=True), 1):
            rows.append([topic, rank, names[j], str(values[k, j]), str(times)])
    return ["topic", "rank", "feature", "value", "lift"], rows


def _expected_shares(model: Any) -> Any:
    """Return the share of every feature in the expected counts of the model's samples."""
    import numpy as np

    F, L = np.asarray(model.components_, np.float64), getattr(model, "loadings_", None)
    if L is not None:
        weights = (np.asarray(L, np.float64) * _sizes_of_samples(model)[:, None]).sum(axis=0)
    elif hasattr(model, "from_table_"):
        weights = np.ones(len(F))
    else:  # fitted in batches: a topic's posterior minus its prior is its counts
        counts = np.asarray(model.topic_word_posterior_, np.float64) - model.topic_word_prior_
        weights = np.maximum(counts, 0).sum(axis=1)
    expected = (weights[:, None] * F).sum(axis=0)
    return expected / max(expected.sum(), np.finfo(np.float64).tiny)


def _sizes_of_samples(model: Any) -> Any:
    """Return the factor of each sample that scales loadings times components to expected counts."""
    import numpy as np

    sizes = getattr(model, "size_factors_", None)
    if sizes is not None:
        return sizes
    if not model.loadings_are_proportions:
        return np.ones(len(model.loadings_))
    totals = getattr(model, "sample_totals_", None)
    if totals is not None:
        return totals
    # files of earlier versions: a posterior is the prior plus the counts of its sample
    return model.doc_topic_posterior_.sum(axis=1) - np.sum(model.doc_topic_prior_)


def _features_of(model: Any) -> Any:
    from ..counts.names import names_of

    names = names_of(model, 1)
    return range(model.components_.shape[1]) if names is None else names


# Names of the tables, and the functions that return their header and rows.
TABLES: dict[str, Callable[[Any, argparse.Namespace], Rows]] = {
    "loadings": _loadings,
    "components": _components,
    "top": _top_features,
}
