"""The model of a command, and the groups, units and strata of its samples."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from .files import columns_of_topics
from .labels import file_and_column, read_groups, unit_columns, warn_of_order
from .messages import log


def label_files(arguments: argparse.Namespace) -> list[str]:
    """Return the files of labels and covariates, or the columns of obs."""
    specs = [*_given(arguments).values(), *(getattr(arguments, "covariates", None) or ())]
    return [file_and_column(spec)[0] for spec in specs]


def labelled_model(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the model, labels of its samples that have a group, and a mask of these samples."""
    from ..models.from_components import why_no_loadings
    from ..models.persistence import load_model

    specs = _given(arguments)
    model = load_model(arguments.model)
    if getattr(model, "loadings_", None) is None:
        raise ValueError(f"{arguments.model} has no loadings: {why_no_loadings(model)}.")
    names_of_samples = getattr(model, "sample_names_", None)
    obs = getattr(model, "obs_", None)
    labels = _labels(specs, len(model.loadings_), names_of_samples, obs)
    warn_of_order(specs.values(), names_of_samples)
    left_out = _unlabelled(arguments.groups, ~labels["kept"], names_of_samples)
    if left_out and getattr(arguments, "kind", None) == "fit":
        raise ValueError(f"{left_out}: fits use all samples, so each needs a label.")
    if left_out:
        log(f"warning: {left_out}: they are left out.")
    _say_that_groups_are_amounts(arguments, labels["groups"])
    if covariates := getattr(arguments, "covariates", None):
        labels["covariates"] = _covariates(covariates, labels["kept"], names_of_samples, obs)
    if set(specs) == {"groups"}:
        _say_what_may_be_units(arguments, labels, obs)
    return model, labels


def labels_of_samples(
    arguments: argparse.Namespace, n_samples: int, names: Any, obs: Any
) -> dict[str, Any]:
    """Return the labels and covariates of samples of counts, all of which need them."""
    specs = _given(arguments)
    labels = _labels(specs, n_samples, names, obs)
    left_out = _unlabelled(f"--groups {arguments.groups}", ~labels["kept"], names)
    if left_out:
        raise ValueError(f"{left_out}: add labels, or leave these samples out by --samples.")
    if arguments.groups is not None:
        _say_that_groups_are_amounts(arguments, labels["groups"])
    if covariates := getattr(arguments, "covariates", None):
        labels["covariates"] = _covariates(covariates, labels["kept"], names, obs)
    del labels["kept"]
    return labels


def labelled_topics(arguments: argparse.Namespace, model: Any, labels: dict[str, Any]) -> Any:
    """Return topics of the samples that have a label."""
    from ..inference.design.loadings import topics_of_samples

    topics = topics_of_samples(model, arguments.scale, warn=False)
    return topics.of(labels.pop("kept"))


def names_of_topics(model: Any) -> list[str]:
    """Return the names of topics: their own, their anchors, or those of other tables."""
    anchors = getattr(model, "anchor_names_", None)
    if anchors is None or hasattr(model, "topic_names_"):
        return columns_of_topics(model)
    return [*map(str, anchors)]


def topic_of(text: str, names: Any) -> Any:
    """Return a topic as functions take it: a name, or a number."""
    return int(text) if text.isdecimal() and text not in names else text


def as_numbers(values: Any) -> Any:
    """Return texts as numbers if all are numbers, and as they are if not."""
    import numpy as np

    try:
        numbers = np.array([float(value) for value in values])
    except ValueError:
        return values
    whole = (numbers == np.rint(numbers)) & (np.abs(numbers) < 2**53)
    return numbers.astype(np.int64) if whole.all() else numbers


def _covariates(specs: list[str], kept: Any, names: Any, obs: Any) -> dict[str, Any]:
    """Return the covariates of samples that have a group, by the names of columns or files."""
    import numpy as np

    covariates = {}
    for spec in specs:
        values = np.array([*read_groups(spec, len(kept), names, obs), None], object)[:-1]
        missing = kept & np.array([value is None for value in values])
        if complaint := _unlabelled(f"--covariates {spec}", missing, names):
            raise ValueError(
                f"{complaint} that have a group: add the values, or remove the labels of these "
                "samples in --groups, which leaves the samples out."
            )
        path, column = file_and_column(spec)
        covariates[column or PurePath(path).stem] = as_numbers(values[kept])
    return covariates


def _given(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of labels that are set."""
    specs = {name: getattr(arguments, name, None) for name in ("groups", "units", "strata")}
    return {name: spec for name, spec in specs.items() if spec is not None}


def with_origin(arguments: argparse.Namespace, result: Any) -> Any:
    """Return a result that has the names of the columns or files of labels, if it has groups."""
    if not hasattr(result, "origin"):
        return result
    parts = {name: file_and_column(spec) for name, spec in _given(arguments).items()}
    names = {name: column or path for name, (path, column) in parts.items()}
    return replace(result, origin=replace(result.origin, **names))


def _say_what_may_be_units(arguments: argparse.Namespace, labels: dict[str, Any], obs: Any) -> None:
    """Suggest columns of the table of groups as units, if groups have very many samples."""
    from collections import Counter

    from ..inference.design.groups import MANY_SAMPLES

    columns = unit_columns(arguments.groups, obs)
    if columns and max(Counter(labels["groups"]).values()) > MANY_SAMPLES:
        path, column = file_and_column(arguments.groups)
        of, where = ("obs", "") if column is None else (path, f"{path}:")
        log(f"columns of {of} that may be units: {', '.join(columns)}; --units {where}COLUMN")


def _say_that_groups_are_amounts(arguments: argparse.Namespace, groups: Any) -> None:
    """Warn of numbers, such as ages, each of which is taken for a group of its own."""
    import numpy as np

    from ..inference.design.groups import numbers_that_are_amounts

    amounts = numbers_that_are_amounts(np.unique(as_numbers(groups)).tolist())
    periods = arguments.command == "features-by-group"
    if amounts and not periods and getattr(arguments, "statistic", None) != "trend":
        log(
            f"warning: {arguments.groups} has {amounts}: each is taken for a group of its own. If "
            "they are amounts, bin them, or test a trend by nmfscale test --statistic trend."
        )


def _unlabelled(source: Any, missing: Any, names: Any) -> str:
    """Return a message with the number of samples without a label, and the first; or ""."""
    places = missing.nonzero()[0]
    if not places.size:
        return ""
    first = int(places[0]) if names is None else repr(str(names[places[0]]))
    return f"{source} has no label for {places.size:,} samples (the first is {first})"


def _labels(specs: dict[str, str], n_samples: int, names: Any, obs: Any) -> dict[str, Any]:
    """Return the labels of the samples that have a group, and a mask of these samples."""
    import numpy as np

    read = {
        name: np.array([*read_groups(spec, n_samples, names, obs), None], object)[:-1]
        for name, spec in specs.items()
    }
    kept = np.ones(n_samples, bool)
    if "groups" in read:
        kept = np.array([label is not None for label in read["groups"]])
    for name, labels in read.items():
        missing = kept & np.array([label is None for label in labels])
        if complaint := _unlabelled(f"--{name} {specs[name]}", missing, names):
            raise ValueError(
                f"{complaint} that have a group: add the labels, or remove the labels of these "
                "samples in --groups, which leaves the samples out."
            )
    return {name: labels[kept] for name, labels in read.items()} | {"kept": kept}
