"""The sections of a report on several joined modalities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..models.leading_features import leading_names
from .section import Section, Words

# Leading features of a topic in one modality.
_N_WORDS = 8


def modality_sections(model: Any, names: Sequence[str], qualities: Sequence[Any]) -> list[Section]:
    """Return sections on the modalities of a fit: none if it is that of a single one.

    `names` are those of the topics, `qualities` results of `topic_quality` for this fit.
    """
    modalities = getattr(model, "modalities_", None)
    if modalities is None:
        return []
    labels = list(dict.fromkeys(modalities.tolist()))
    return [_of_modalities(model, labels, qualities), _of_topics(model, labels, names)]


def _of_modalities(model: Any, labels: list[str], qualities: Sequence[Any]) -> Section:
    """Return the size, the weight and the explained deviance of each modality."""
    features = [model.modalities_ == label for label in labels]
    weights = getattr(model, "feature_weights_", np.ones(len(model.modalities_)))
    totals, measured = getattr(model, "feature_totals_", None), getattr(model, "measured_", None)
    table: dict[str, Sequence[Any]] = {
        "modality": labels,
        "features": [f"{of.sum():,}" for of in features],
        "weight": [f"{weights[of][0]:g}" for of in features],
    }
    if totals is not None:
        table["counts"] = [f"{totals[of].sum():,.0f}" for of in features]
    if measured is not None and getattr(model, "panel_", None) is not None:
        there = [measured[:, of].any(axis=1)[model.panel_].sum() for of in features]
        table["samples"] = [f"{n:,}" for n in there]
    if qualities:
        columns = qualities[0].columns("modalities")
        explained = dict(zip(columns["modality"], columns["explained"], strict=True))
        table["deviance explained"] = [f"{explained[label]:.1%}" for label in labels]
    text = "Modalities of the same samples share the loadings, and have topics of their own."
    if qualities:
        text += " The deviance is that of their counts, relative to a single topic."
    return Section("modalities", "Modalities", [text], [], table)


def _of_topics(model: Any, labels: list[str], names: Sequence[str]) -> Section:
    """Return the leading features of each topic in each modality."""
    components = np.asarray(model.components_, np.float64)
    sizes = components.sum(axis=1)
    table: dict[str, Sequence[Any]] = {"topic": list(names)}
    for label in labels:
        part = components[:, model.modalities_ == label].sum(axis=1)
        share = np.divide(part, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
        leading = leading_names(model.of_modality(label), None, _N_WORDS)
        table[f"{label}: leading features"] = [", ".join(words) for words in leading]
        table[f"{label}: share"] = [f"{value:.1%}" for value in share]
    text = "Features lead a topic within their modality. Shares are those of the topic's counts."
    return Section("topics-of-modalities", "Topics in each modality", [text], [], table)


def modality_scores_section(result: Any, words: Words) -> Section:
    """Return held-out scores of each modality."""
    table: dict[str, Sequence[Any]] = {
        "modality": list(result.modalities),
        "score": [f"{value:.4f}" for value in result.score],
        "one topic": [f"{value:.4f}" for value in result.one_topic],
        "gain": [f"{value:+.4f}" for value in result.gain],
        "standard error": [f"{value:.4f}" for value in result.gain_error],
        "gain from others": [f"{value:+.4f}" for value in result.gain_from_others],
        "held-out counts": [f"{value:,.0f}" for value in result.total],
        "samples": [f"{value:,}" for value in result.n_samples],
    }
    text = (
        "Mean log-probability of a held-out count of each modality, and that of a single topic. "
        "Topics explain a modality if the gain is well above its standard error; the gain from "
        "others is that with loadings of the other modalities."
    )
    return Section("modality-scores", "Held-out scores of modalities", [text], [], table)
