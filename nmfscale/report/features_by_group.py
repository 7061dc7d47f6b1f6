"""The section of a report on features in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.topics.topic_labels import topic_labels
from .section import Section, Words, titled

# Features of each topic in the table; groups with a column.
_N_FEATURES, _MOST_GROUPS = 10, 12


def features_by_group_section(result: Any, words: Words) -> Section:
    """Return the features of each topic that change most between groups."""
    names = topic_labels(result.topic_names, words)
    rows = [
        (k, j, int(abs(result.lfc[:, k, j]).argmax()))
        for k in range(len(names))
        for j in result.leading(k, _N_FEATURES).tolist()
    ]
    table: dict[str, Sequence[Any]] = {
        "topic": [names[k] for k, _, _ in rows],
        "feature": [str(result.feature_labels[j]) for _, j, _ in rows],
        "group": [str(result.groups[g]) for _, _, g in rows],
        "log2 change": [f"{result.lfc[g, k, j]:.2f}" for k, j, g in rows],
        f"{result.level:.0%} interval": [
            f"{result.lfc_lower[g, k, j]:.2f} to {result.lfc_upper[g, k, j]:.2f}"
            for k, j, g in rows
        ],
    }
    for g, group in enumerate(result.groups[:_MOST_GROUPS]):
        table[f"% in {group}"] = [
            f"{100 * result.frequencies[g, k, j]:.3g}" for k, j, _ in rows
        ]  # fmt: skip
    against = "all other groups" if result.reference is None else str(result.reference)
    text = (
        f"Features whose frequency within a topic differs between {len(result.groups)} groups, "
        f"relative to {against}. The table has at most {_N_FEATURES} of each topic, which change "
        "most, and the group in which the change is largest. How frequent topics are in the groups "
        "has no part in these frequencies."
    )
    return Section("features-by-group", titled("Features by group", result), [text], [], table)
