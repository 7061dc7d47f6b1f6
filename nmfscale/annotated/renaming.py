"""New names of topics in what an AnnData object, or its file, keeps of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..inference.results.files import result_classes
from ..models.topics.topics import new_topic_names
from ..storage.plain import JSON, from_plain, to_plain
from .scheme import OF_A_FIT, OF_GROUPS

# Fields of results that have a name for each topic.
_FIELDS = "topic_names", "topics"
Place = tuple[str, ...]


def renamed_entries(entry: Mapping[str, Any], names: Sequence[str]) -> dict[Place, Any]:
    """Return the new values of those entries of ``uns[key]`` that hold names of topics.

    They are the names themselves, and the text of each result, whose arrays stay as they are.
    """
    new = dict(zip(map(str, entry["topic_names"]), names, strict=True))
    changed: dict[Place, Any] = {("topic_names",): np.array(names, object)}
    for tool in OF_A_FIT:
        if tool not in entry:
            continue
        results: dict[Place, Any] = {(tool,): entry[tool]}
        if tool in OF_GROUPS:
            results = {(tool, groups): result for groups, result in entry[tool].items()}
        for place, result in results.items():
            renamed = _renamed(from_plain(result, result_classes()), new)
            changed[*place, JSON] = to_plain(renamed)[JSON]
    return changed


def _renamed(result: Any, new: Mapping[str, str]) -> Any:
    """Return a result with new names of topics, by position: it may have had names of its own."""
    changes: dict[str, Any] = {
        name: tuple(new.values()) for name in _FIELDS
        if len(getattr(result, name, ())) == len(new)
    }  # fmt: skip
    if "topic_names" in changes and isinstance(getattr(result, "reference", None), str):
        own = dict(zip(map(str, result.topic_names), new.values(), strict=True))
        changes["reference"] = _relabelled(result.reference, own)
    return replace(result, **changes)


def _relabelled(label: str, new: Mapping[str, str]) -> str:
    """Return the label of the topics that others are compared with, such as "topics A and B"."""
    kind, _, members = label.partition(" ")
    topics = [members] if kind == "topic" else members.split(" and ") if kind == "topics" else []
    if not topics or not all(topic in new for topic in topics):
        return label
    return f"{kind} {' and '.join(new[topic] for topic in topics)}"


def new_names(entry: Mapping[str, Any], names: Any) -> list[str]:
    """Return the new names of all topics, given by position, or in a dict by number or old name."""
    old = np.array(list(map(str, entry["topic_names"])), object)
    fit = SimpleNamespace(components_=old, topic_names_=old)
    return [str(name) for name in new_topic_names(fit, names)]


def renamed_column(values: Any, entry: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return a column of obs with new names of topics, as a categorical."""
    import pandas as pd

    new = dict(zip(map(str, entry["topic_names"]), names, strict=True))
    return pd.Categorical(values).rename_categories(new)
