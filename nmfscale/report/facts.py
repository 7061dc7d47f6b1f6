"""What a report shows of a fit: its topics, their leading features and samples, and its making."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import names_of
from ..engine.monitor import ENDS
from ..inference.design.loadings import (
    SampleTopics,
    leading_samples,
    shares_of_topics,
    topics_of_samples,
)
from ..kernels import decompositions
from ..kernels.functions import xlogy
from ..models.leading_features import leading_features
from ..pl.progress import ends_of_starts, final_objectives, label, objective, residuals
from ..storage.version import package_version

Array = NDArray[Any]

# Scores of features, with what a reader is told of each.
SCORES = {
    "relevance": "log frequency and log lift, weighted 0.6 and 0.4 (Sievert and Shirley 2014)",
    "probability": "frequent in this topic",
    "divergence": "frequent in this topic, and more than in any other",
    "frex": "frequent and exclusive: mean of both ranks (Bischof and Airoldi 2012)",
    "lift": "share in this topic divided by the mean share in all topics",
}
Z_SCORE = "z of the differential features: log-likelihood ratio against the other topics"
# Total counts that a feature needs to lead a topic by lift: a single count has the largest lift.
_LIFT_FLOOR = 10


def samples_of(model: Any) -> SampleTopics | None:
    """Return the proportions of the samples of a fit; None for a fit in batches."""
    if getattr(model, "loadings_", None) is None:
        return None
    return topics_of_samples(model, warn=False)


def keywords(model: Any, n_top: int, differential: Any = None) -> dict[str, Any]:
    """Return the leading features of each topic by each score: names, and values of the score."""
    by_score: dict[str, Any] = {}
    has_totals = getattr(model, "feature_totals_", None) is not None
    for score in SCORES:
        floor = _LIFT_FLOOR if score == "lift" and has_totals else 0
        frequencies, names, leading = leading_features(model, None, n_top, score, min_count=floor)
        by_score[score] = [
            [(names[j], float(frequencies[k, j])) for j in numbers]
            for k, numbers in enumerate(leading)
        ]
    if differential is not None:
        labels = differential.feature_labels
        by_score["z"] = [
            [(str(labels[j]), float(differential.z[k, j])) for j in differential.order(k)[:n_top]]
            if k not in differential.own_reference
            else []
            for k in range(len(differential.topic_names))
        ]
    return by_score


def shares_and_samples(
    samples: SampleTopics, n_top: int
) -> tuple[Array, list[list[tuple[str, float, float]]]]:
    """Return the share (K,) of each topic in all counts, and its leading samples.

    A sample is its name, its share and its total count.
    """
    totals = np.ones(len(samples)) if samples.whole_totals is None else samples.whole_totals
    amounts = samples.rows * totals[:, None]
    names = range(len(samples)) if samples.sample_names is None else samples.sample_names
    leading_of_topics = [
        [(str(names[i]), float(shares[i]), float(totals[i])) for i in leading]
        for shares, leading in zip(
            samples.rows.T, leading_samples(samples.rows, amounts, n_top), strict=True
        )
    ]
    return shares_of_topics(amounts), leading_of_topics


def topic_map(frequencies: Array) -> Array:
    """Return places (K, 2) of topics, such that distances resemble those of the topics.

    Distances are square roots of Jensen-Shannon divergences, and places are principal coordinates
    (Sievert and Shirley 2014).
    """
    K = len(frequencies)
    squares = np.zeros((K, K))
    for k in range(K):
        mean = (frequencies[k] + frequencies) / 2
        entropies = [
            -xlogy(distribution, distribution).sum(axis=-1) for distribution in (frequencies, mean)
        ]
        squares[k] = entropies[1] - (entropies[0][k] + entropies[0]) / 2
    squares = np.maximum((squares + squares.T) / 2, 0)
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = decompositions.eigh(-centred / 2)
    places = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0))
    out = np.zeros((K, 2))
    out[:, : min(K, 2)] = places[:, :2]
    return out


def fit_facts(model: Any) -> list[tuple[str, str]]:
    """Return what is known of a fit: names and values, as text."""
    n_topics, n_features = model.components_.shape
    facts = [("model", " ".join(repr(model).split()))]
    if getattr(model, "loadings_", None) is not None:
        facts.append(("counts", f"{len(model.loadings_):,} samples x {n_features:,} features"))
    if hasattr(model, "from_table_"):
        facts.append(("components from", model.from_table_))
    totals = getattr(model, "sample_totals_", None)
    if totals is not None:
        facts.append(("total count", f"{totals.sum():,.0f}"))
    facts.append(("topics", str(n_topics)))
    history = getattr(model, "history_", None)
    if history is None:
        return facts
    what = label(objective(history))
    facts += [(f"{kind} {what}".strip(), f"{at:,.2f}") for kind, at in final_objectives(history)]
    if ends := ends_of_starts(model):
        facts.append(("starts", ends))
    if residuals(history):
        largest = max(history[-1][name] for name in residuals(history))
        facts.append(("largest KKT residual", f"{largest:.1e}"))
    end = ENDS.get(getattr(model, "stop_reason_", ""), "")
    facts.append(("iterations", f"{model.n_iter_}{end and f' ({end})'}"))
    facts.append(("seconds", f"{history[-1]['seconds']:.2f}"))
    if getattr(model, "seed_", None) is not None:
        facts.append(("random seed", str(model.seed_)))
    if hasattr(model, "command_"):  # fitted in the shell
        facts.append(("command of the fit", model.command_))
    return facts


def making_facts(about: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what made the report: facts of the caller, versions and the date."""
    packages = ("numpy", "scipy", "scikit-learn", "bokeh")
    versions = [f"nmfscale {package_version()}", f"Python {platform.python_version()}"]
    versions += [f"{package} {version(package)}" for package in packages]
    return [
        *((str(name), str(text)) for name, text in about.items()),
        ("versions", ", ".join(versions)),
        ("machine", f"{platform.system()} {platform.machine()}"),
        ("written", datetime.now().astimezone().isoformat(timespec="minutes")),
    ]


def warnings_of(model: Any) -> list[str]:
    """Return what a reader should know before the topics are interpreted."""
    messages = [str(message) for message in getattr(model, "warnings_", ())]
    unseen = getattr(model, "unseen_features_", None)
    if unseen is not None and unseen.any():
        n_unseen = int(unseen.sum())
        messages.append(f"{n_unseen:,} features had no counts; their frequencies have no meaning.")
    totals = getattr(model, "sample_totals_", None)
    if totals is not None and (totals == 0).any():
        messages.append(f"{int((totals == 0).sum()):,} samples had no counts, and have no topics.")
    if names_of(model, 1) is None:
        messages.append("The features have no names: they are numbered from 0.")
    return messages
