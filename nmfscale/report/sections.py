"""The sections of a report: their text, tables and charts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inference.design.loadings import SampleTopics
from ..models.tables import first_rows
from ..models.topics.topic_labels import shortened, topic_labels
from ..pl.canvas import topic_colors
from ..pl.sample_order import grouping, order_within, thinned
from . import charts
from .features_by_group import features_by_group_section
from .hierarchy import hierarchy_section, levels_section
from .modalities import modality_scores_section
from .section import Section, Words, titled

Array = NDArray[Any]
# Rows of a result that has no section of its own; groups in a chart of intervals.
_MOST_ROWS, _MOST_GROUPS = 500, 8
# Features of each topic and group in the table of changes; q-values up to which they are counted.
_N_CHANGES, _LEVEL = 10, 0.05
# Topics of many fits in a chart.
_MOST_TOPICS = 60
# Gene sets of each topic in the table.
_N_SETS = 10
# Features of batches in the text.
_FEATURES = 10
# Columns of numbers that come first in a table: on a phone, others are off screen.
_RANKS = {"pvalue": 1, "pvalue_maxt": 1, "qvalue": 1, "lfsr": 1}


def numbered(sections: list[Section]) -> list[Section]:
    """Return sections with different titles and different names in links."""
    for name, text in ("title", "{} ({})"), ("kind", "{}-{}"):
        seen = Counter[str]()
        for section in sections:
            value = getattr(section, name)
            seen[value] += 1
            if seen[value] > 1:
                setattr(section, name, text.format(value, seen[value]))
    return sections


def structure_data(
    samples: SampleTopics, groups: Sequence[tuple[str, Any]], topic_names: Sequence[str],
    max_samples: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return what the page needs to draw the Structure plot by each of several groupings.

    ``shares`` (n_drawn, K) in thousandths, ``names``, and for each grouping its name, the samples
    in their order, with -1 between groups, and labels of groups with their centres and sizes.
    """
    rng = np.random.RandomState(seed)
    kinds = [(name, *grouping(labels, len(samples))) for name, labels in groups]
    kinds.append(("no groups", [""], np.zeros(len(samples), np.intp)))
    _, labels, number = kinds[0]
    members = [np.flatnonzero(number == group) for group in range(len(labels))]
    drawn = np.sort(np.concatenate(thinned(members, max_samples, rng)))
    shares = samples.rows[drawn]
    orders = [
        {"name": name} | _order(shares, labels, number[drawn]) for name, labels, number in kinds
    ]
    names = samples.sample_names
    return {
        "shares": np.rint(1000 * shares).astype(int).tolist(),
        "names": [f"sample {i}" if names is None else str(names[i]) for i in drawn],
        "topics": list(topic_names),
        "orders": orders,
    }


def _order(shares: Array, labels: list[str], number: Array) -> dict[str, Any]:
    """Return samples by groups, -1 between groups, and labels, centres and sizes of groups."""
    gap = max(1, round(min(0.015, 0.25 / len(labels)) * len(shares)))
    order: list[int] = []
    ticks: list[tuple[str, float, int]] = []
    for group, text in enumerate(labels):
        members = np.flatnonzero(number == group)
        if not len(members):
            continue
        if order:
            order += [-1] * gap
        ticks.append((shortened(text, 20), len(order) + len(members) / 2, len(members)))
        order += members[order_within(shares[members])].tolist()
    return {"order": order, "labels": [] if labels == [""] else ticks}


def similarity_section(match: Any) -> Section:
    """Return the similarity of the topics to those of another fit."""
    text = (
        f"Topics of this fit are matched with the {len(match.names_b)} topics of another fit, so "
        "that the sum of the similarities of the pairs is largest: they range from "
        f"{match.similarity.min():.2f} to {match.similarity.max():.2f}, and 1 is the same topic."
    )
    return Section("similarity", "Similarity", [text], [charts.similarity_chart(match)])


def topic_clusters_section(result: Any, words: Words) -> Section:
    """Return the topics that many fits have in common."""
    n, columns = len(result.fit_names), result.columns()
    n_samples = len(set(result.samples))
    table: dict[str, Sequence[Any]] = {
        "cluster": columns["cluster"].tolist(),
        f"fits, of {n}": result.n_fits.tolist(),
        f"samples, of {n_samples}": result.n_samples.tolist(),
        **{
            f"{group}, of {size}": numbers.tolist()
            for group, size, numbers in zip(
                result.group_names, result.group_sizes, result.n_samples_of_groups.T, strict=True
            )
        },
        "similarity": ["" if np.isnan(value) else f"{value:.2f}" for value in result.within],
        "to the next cluster": [
            "" if np.isnan(value) else f"{value:.2f}" for value in result.to_nearest
        ],
    }
    if result.feature_names is not None:
        table["leading features"] = columns["features"].tolist()
    text = (
        f"Topics of {n} fits, clustered by similarity, with at most one topic of a fit in each "
        f"cluster: {int((result.n_fits > 1).sum())} clusters are of several fits, "
        f"{int((result.n_fits == 1).sum())} topics of one fit only."
    )
    few = len(result.labels) <= _MOST_TOPICS
    charts_of = [charts.topic_clusters_chart(result)] if few else []
    return Section("topic-clusters", "Topics of many fits", [text], charts_of, table)


def select_k_section(result: Any, words: Words) -> Section:
    """Return the choice of the number of topics."""
    table = {
        "topics": result.n_components.tolist(),
        "held-out score": [f"{value:.4f}" for value in result.score],
        "standard error": [f"{value:.4f}" for value in result.score_error],
        "smallest similarity": [f"{value:.2f}" for value in result.least_stability],
        "lowest and highest of a split": [
            f"{least.min():.2f} to {least.max():.2f}" for least in result.least_of_splits
        ],
        f"chosen by splits, of {result.n_splits}": result.n_chosen.tolist(),
    }
    charts_of = charts.select_k_charts(result)
    return Section("number-of-topics", "Number of topics", [result.advice], charts_of, table)


def stability_section(result: Any, words: Words) -> Section:
    """Return how far fits from other starts end from the best, and the topics that they find."""
    n, K = result.topics.shape[:2]
    text = (
        f"{result.n_best} of {n} fits from other starts end within 1 of the best of them; the "
        f"largest difference is {result.gaps.max():,.1f}."
    )
    columns, topics = result.columns("topics"), [str(k) for k in range(K)]
    if result.fit_summary:
        text = f"This fit {result.fit_summary}. {text}"
        columns = result.columns("fit")
        topics = topic_labels(tuple(range(K)), words)
    table = {
        "topic of this fit" if result.fit_summary else "topic of the best start": topics,
        "mean similarity in the starts": [f"{value:.2f}" for value in columns["similarity"]],
        "smallest similarity": [f"{value:.2f}" for value in columns["least_similarity"]],
    }
    return Section("starts", "Other starts", [text], charts.stability_charts(result), table)


def permutation_section(result: Any, words: Words) -> Section:
    """Return tests of whether groups differ."""
    tests = result.tests
    table = {
        "groups": [f"all {len(result.overall.groups)} groups", *result.names[1:]],
        "p": [f"{test.pvalue:.3g}" for test in tests],
        "p, all pairs": ["", *(f"{test.pvalue_maxt:.3g}" for test in result.pairs)],
        "p of spread": [f"{test.dispersion_pvalue:.3g}" for test in tests],
        "units": [test.shown_units for test in tests],
    }
    if not result.pairs:
        table["groups"] = [_pair(result.overall)]
        del table["p, all pairs"]
    text = (
        f"Permutation test of whether the topics of groups differ (statistic: {result.statistic}; "
        f"{result.overall.null.size:,} labellings). The smallest possible p is "
        f"{result.overall.smallest_pvalue:.2g}."
    )
    return Section("test", titled("Permutation test", result), [text], [], table)


def _pair(test: Any) -> str:
    return " - ".join(map(str, test.groups))


def effects_section(result: Any, words: Words) -> Section:
    """Return the means of groups, and which topics differ."""
    names, groups = topic_labels(result.topic_names, words), list(map(str, result.groups))
    table: dict[str, Sequence[Any]] = {"topic": names}
    shown = {"p": result.pvalue, "q": result.qvalue}
    tests, within = "t-tests" if len(groups) == 2 else "F-tests", result.compared_within
    if result.pvalue is None:
        shown = {"p": result.pvalue_permutation, "p, all topics": result.pvalue_maxt}
        tests = "permutation tests"
    for name, values in shown.items():
        table[name] = [f"{value:.3g}" for value in values]
    for g, group in enumerate(groups):
        table[f"mean in {group}"] = [f"{value:.3f}" for value in result.means[:, g]]
    text = (
        f"Mean proportions of topics in groups of {int(result.n_units.sum()):,} "
        f"{result.units}, with intervals of {result.level:.0%}, and {tests} of each topic"
        + (f", which compare groups within {within}." if within else ".")
    )
    return _with_intervals(
        Section("groups", titled("Groups", result), [text], [], table), names, groups,
        (result.means, result.lower, result.upper), "mean proportion",
    )  # fmt: skip


def weights_section(result: Any, words: Words) -> Section:
    """Return balanced weights of topics in groups."""
    names, groups = topic_labels(result.topics, words), list(map(str, result.groups))
    table: dict[str, Sequence[Any]] = {"topic": names}
    for g, group in enumerate(groups):
        table[group] = [
            f"{result.weights[t, g]:.2f} ({result.lower[t, g]:.2f} to {result.upper[t, g]:.2f})"
            for t in range(len(names))
        ]
    text = (
        f"Balanced weights of topics in groups, with intervals of {result.level:.0%}. Without "
        f"differences between groups all weights are {result.neutral:.2f}."
    )
    return _with_intervals(
        Section("weights", titled("Weights in groups", result), [text], [], table), names, groups,
        (result.weights, result.lower, result.upper), "balanced weight", result.neutral,
    )  # fmt: skip


def _with_intervals(
    section: Section, names: list[str], groups: list[str], arrays: tuple[Array, ...], what: str,
    neutral: float | None = None,
) -> Section:  # fmt: skip
    """Return a section with a chart of intervals; of many groups, of those that differ most."""
    values, lower, upper = arrays
    away = np.abs(values - values.mean(axis=1, keepdims=True)).max(axis=0)
    drawn = np.sort(np.argsort(-away, kind="stable")[:_MOST_GROUPS])
    if len(drawn) < len(groups):
        section.text.append(
            f"The chart shows {len(drawn)} of {len(groups):,} groups, those farthest from the mean "
            "of a topic; the table has all."
        )
    shown = [groups[g] for g in drawn]
    chart = charts.interval_chart(
        names, shown, values[:, drawn], lower[:, drawn], upper[:, drawn], what, neutral
    )
    section.charts.append(chart)
    section.legend = list(zip(charts.colors_of_groups(len(shown)), shown, strict=True))
    return section


def conditions_section(result: Any, words: Words) -> Section:
    """Return the leading changes of features between groups, within each topic."""
    names = topic_labels(result.topic_names, words)
    rows = [
        (k, c, j)
        for k in range(len(names))
        for c, group in enumerate(result.compared)
        for j in result.contrast(group).order(k)[:_N_CHANGES].tolist()
    ]

    def of_rows(values: Array, form: str) -> list[str]:
        return [format(values[c, k, j], form) for k, c, j in rows]

    ends = zip(of_rows(result.lower, ".2f"), of_rows(result.upper, ".2f"), strict=True)
    table: dict[str, Sequence[Any]] = {
        "topic": [names[k] for k, _, _ in rows],
        "feature": [str(result.feature_labels[j]) for _, _, j in rows],
        "q": of_rows(result.qvalue, ".3g"),
        "log2 change": of_rows(result.lfc, ".2f"),
        f"{result.level:.0%} interval": [f"{lower} to {upper}" for lower, upper in ends],
        "p": of_rows(result.pvalue, ".3g"),
        "group": [str(result.compared[c]) for _, c, _ in rows],
    }
    n_found = int(((result.qvalue <= _LEVEL) & result.tested).sum())
    text = (
        f"Features whose frequency within a topic differs between groups of {result.units}, "
        f"relative to {result.reference}"
        f"{', compared within units' if result.paired else ''}: {n_found:,} of "
        f"{int(result.tested.sum()):,} tests have q <= {_LEVEL:g}. The table has the "
        f"{_N_CHANGES} features of each topic and group with the smallest p."
    )
    return Section("conditions", titled("Changes within topics", result), [text], [], table)


def enrichment_section(result: Any, words: Words) -> Section:
    """Return the leading gene sets of each topic."""
    names = topic_labels(result.topic_names, words)
    rows = [
        (k, s) for k in range(len(names)) for s in result.order(k)[:_N_SETS].tolist()
        if result.qvalue[k, s] <= _LEVEL
    ]  # fmt: skip
    table: dict[str, Sequence[Any]] = {
        "topic": [names[k] for k, _ in rows],
        "gene set": [result.gene_sets[s] for _, s in rows],
        "q": [f"{result.qvalue[k, s]:.3g}" for k, s in rows],
        "leading features in the set": [int(result.overlap[k, s]) for k, s in rows],
        "size": [int(result.sizes[s]) for _, s in rows],
        "AUC": [f"{result.auc[k, s]:.2f}" for k, s in rows],
        "p": [f"{result.pvalue[k, s]:.3g}" for k, s in rows],
        "features": [", ".join(result.features_of(k, s)[:_N_CHANGES]) for k, s in rows],
    }
    n_found = int((result.qvalue <= _LEVEL).sum())
    text = (
        f"Gene sets that are enriched in topics, by the {result.test} test of "
        f"{len(result.gene_sets):,} sets: {n_found:,} of {result.qvalue.size:,} tests have q <= "
        f"{_LEVEL:g}. The table has at most {_N_SETS} of each topic, with the smallest p. Genes of "
        "a set vary together, so that p-values are too small: they order the sets."
    )
    return Section("enrichment", "Enrichment", [text], [], table)


def quality_section(result: Any, words: Words) -> Section:
    """Return measures of the topics."""
    table = {
        "topic": topic_labels(result.topic_names, words),
        "share": [f"{value:.1%}" for value in result.share],
        "NPMI": [f"{value:.3f}" for value in result.npmi],
        "UMass": [f"{value:.2f}" for value in result.umass],
        "exclusivity": [f"{value:.2f}" for value in result.exclusivity],
        "effective features": [f"{value:,.0f}" for value in result.effective_features],
        "effective samples": [f"{value:,.0f}" for value in result.effective_samples],
    }
    text = (
        f"The fit explains {result.deviance_explained:.1%} of the Poisson deviance of a single "
        "topic. "
        f"NPMI and UMass measure how often the {result.n_top} leading features of a topic occur "
        "together; exclusivity is 1 for features that other topics do not have."
    )
    return Section("quality", "Quality", [text], [], table)


def coherence_section(result: Any, words: Words) -> Section:
    """Return how well the words of each topic, or of each list of words, belong together."""
    of_model = words is not None and len(words) == len(result.topic_names)
    table: dict[str, Sequence[Any]] = {
        "topic": topic_labels(result.topic_names, words if of_model else None),
        result.measure: [f"{value:.3f}" for value in result.coherence],
        "words": [
            ", ".join(f"{word} {value:.2f}" for word, value in zip(of, values, strict=True))
            for of, values in zip(result.words, result.of_words, strict=True)
        ],
    }
    where = f"{result.n_windows:,} {'windows of texts' if result.of_texts else 'samples'}"
    text = (
        f"How well the leading words of each topic belong together, by {result.measure} in "
        f"{where}; mean {result.coherence.mean():.3f}. Beside each word is its coherence with the "
        "others: a word that does not belong to a topic has a low one."
    )
    return Section("coherence", "Coherence", [text], [], table)


def batches_section(result: Any, words: Words) -> Section:
    """Return what differs between batches."""
    columns = result.columns("batches")
    table: dict[str, Sequence[Any]] = {
        "batch": list(map(str, result.batches)),
        "samples": [f"{n:,}" for n in result.n_samples],
    }
    headings = {
        "auc_before": "AUC without efficiencies", "auc": "AUC", "spread": "spread of efficiencies",
    }  # fmt: skip
    for name, heading in headings.items():
        if name in columns:
            table[heading] = ["" if np.isnan(x) else f"{x:.2f}" for x in columns[name]]
    text = [
        "Mean proportions of topics in batches. The AUC says how well topics tell the batch of a "
        "sample within a cluster: 0.5 if batches are mixed, 1 if they are apart.",
        *(f"Warning: {warning}" for warning in result.warnings),
    ]
    if result.shape is not None and np.isfinite(result.shape):
        leading = {name: values[:_FEATURES] for name, values in result.columns("features").items()}
        features = zip(leading["feature"], leading["batch"], leading["efficiency"], strict=True)
        most = ", ".join(f"{name} in {batch} ({e:.2f})" for name, batch, e in features)
        text.append(f"Efficiencies farthest from 1: {most}.")
    names, colors = topic_labels(result.topic_names, words), topic_colors(result.shares.shape[1])
    chart = charts.shares_chart(table["batch"], names, result.shares, colors)
    legend = list(zip(colors, names, strict=True))
    return Section("batches", titled("Batches", result), text, [chart], table, legend)


def table_section(result: Any) -> Section:
    """Return a result of any kind as a table."""
    table, more = first_rows(result, _MOST_ROWS)
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(result).__name__)
    title = titled(kind.capitalize(), result) if hasattr(result, "origin") else kind.capitalize()
    text = [repr(result).strip("<>")]
    in_order = sorted(table, key=lambda name: _RANKS.get(name, 3 if _is_number(table[name]) else 0))
    return Section(
        kind.lower().replace(" ", "-"), title, [*text, more] if more else text, [],
        {name: table[name] for name in in_order},
    )  # fmt: skip


def _is_number(cells: Sequence[Any]) -> bool:
    return all(isinstance(cell, float) for cell in cells)


def convergence_section(model: Any) -> Section | None:
    """Return the course of the fit; None for a fit in batches."""
    history = getattr(model, "history_", None)
    if history is None or not len(history):
        return None
    text = f"{len(history):,} iterations in {history[-1]['seconds']:.2f} seconds."
    return Section("convergence", "Convergence", [text], charts.convergence_charts(history))


# The class of a result, by name: its module is not imported only to recognise it.
OF_RESULTS: dict[str, Callable[[Any, Words], Section]] = {
    "SelectK": select_k_section,
    "Stability": stability_section,
    "PermutationTest": permutation_section,
    "GroupEffects": effects_section,
    "BootstrapWeights": weights_section,
    "TopicQuality": quality_section,
    "TopicCoherence": coherence_section,
    "ConditionFeatures": conditions_section,
    "BatchEffects": batches_section,
    "Enrichment": enrichment_section,
    "TopicClusters": topic_clusters_section,
    "FeaturesByGroup": features_by_group_section,
    "TopicHierarchy": hierarchy_section,
    "TopicLevels": levels_section,
    "ModalityScores": modality_scores_section,
}
