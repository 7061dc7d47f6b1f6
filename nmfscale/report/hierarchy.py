"""Sections of a report on trees of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import charts
from .section import Section, Words

# Topics of a tree in a chart.
_MOST_TOPICS = 200


def hierarchy_section(result: Any, words: Words) -> Section:
    """Return the tree of the topics of a fit."""
    K, columns = len(result.topic_names), result.columns()
    joins = range(2 * K - 2, K - 1, -1)  # the root first
    table: dict[str, Sequence[Any]] = {
        "name": [columns["name"][i] for i in joins],
        "topics": [columns["topics"][i] for i in joins],
        "similarity": [f"{columns['similarity'][i]:.2f}" for i in joins],
    }
    text = (
        f"Similar ones of {K} topics are joined step by step. The table has the joins, the last "
        "one first, with their leading features."
    )
    few = [charts.joins_chart(result)] if K <= _MOST_TOPICS else []
    return Section("hierarchy", "Topics of topics", [text], few, table)


def levels_section(result: Any, words: Words) -> Section:
    """Return the tree of the topics of several fits."""
    columns = result.columns()
    names = columns["name"].tolist()
    parents = ["" if p is None else names[p] for p in columns["parent"]]
    table: dict[str, Sequence[Any]] = {
        "fit": columns["fit"].tolist(), "topic": names, "parent": parents,
        "similarity": [
            f"{value:.2f}" if parent else ""
            for value, parent in zip(result.similarity, parents, strict=True)
        ],
        "next similarity": [
            f"{value:.2f}" if parent else ""
            for value, parent in zip(result.next_similarity, parents, strict=True)
        ],
        "share": [f"{value:.1%}" for value in result.shares],
    }  # fmt: skip
    text = (
        f"Topics of {len(result.fit_names)} fits. The parent of a topic is the most similar topic "
        "of the fit before; where the next one is nearly as similar, the topic mixes both."
    )
    few = [charts.levels_chart(result)] if len(names) <= _MOST_TOPICS else []
    return Section("topic-levels", "Topics of several fits", [text], few, table)
