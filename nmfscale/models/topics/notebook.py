"""The topics of a fitted model in a notebook."""

from __future__ import annotations

from typing import Any

from ...counts.names import names_of
from ...markup import paragraph, table
from ...methods.topics.feature_scores import ranked_features
from .topics import topic_names_of

# Topics, and leading features of each, that a notebook shows.
_MOST_TOPICS, _N_TOP = 30, 10


def topics_html(model: Any) -> str:
    """Return a table of the topics of a fitted model with their leading features."""
    names = names_of(model, 1)
    _, ranked = ranked_features(model.components_, _N_TOP)
    leading = [
        ", ".join(str(j if names is None else names[j]) for j in order)
        for order in ranked[:_MOST_TOPICS]
    ]
    K = len(model.components_)
    of_topics = topic_names_of(model, K)[:_MOST_TOPICS]
    html = table({"topic": of_topics, "leading features": leading})
    if K > _MOST_TOPICS:
        html += paragraph(f"The first {_MOST_TOPICS} of {K:,} topics.")
    return html
