"""The topics of a fitted model in a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..counts.names import names_of
from ..markup import paragraph, table
from ..methods.feature_scores import best_features, feature_scores
from .topics import topic_names_of

# Topics, and leading features of each, that a notebook shows.
_MOST_TOPICS, _N_TOP = 30, 10


def topics_html(model: Any) -> str:
    """Return a table of the topics of a fitted model with their leading features."""
    components = np.asarray(model.components_[:_MOST_TOPICS], np.float64)
    sums = components.sum(axis=1, keepdims=True)
    frequencies = np.divide(components, sums, out=np.zeros(components.shape), where=sums > 0)
    scores = feature_scores(frequencies, "divergence")
    names = names_of(model, 1)
    leading = [
        ", ".join(
            str(j if names is None else names[j])
            for j in best_features(scores[k], frequencies[k], _N_TOP)
        )
        for k in range(len(frequencies))
    ]
    K = len(model.components_)
    of_topics = topic_names_of(model, K)[:_MOST_TOPICS]
    found = table({"topic": of_topics, "leading features": leading})
    if K > _MOST_TOPICS:
        found += paragraph(f"The first {_MOST_TOPICS} of {K:,} topics.")
    return found
