"""The sections of a report: their text, tables and charts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import markup
from ..inference.loadings import SampleTopics
from ..inference.results.frames import first_rows
from ..plots.canvas import shortened
from ..plots.sample_order import grouping, order_within, thinned
from . import charts

Array = NDArray[Any]
# Rows of a result that has no section of its own.
_MOST_ROWS = 500


@dataclass
class Section:
    """A part of the page with a heading.

    `table` maps headings of columns to their cells, one for each row; `charts` are drawn side by
    side.
    """

    title: str
    text: list[str] = field(default_factory=list)
    charts: list[Any] = field(default_factory=list)
    table: Mapping[str, Sequence[Any]] | None = None

    @property
    def anchor(self) -> str:
        """Return the name of the section in a link."""
        return self.title.lower().replace(" ", "-")

    @property
    def markup(self) -> str:
        """Return the table as HTML."""
        return "" if self.table is None else markup.table(self.table, sortable=True)


def structure_data(
    samples: SampleTopics, groups: Mapping[str, Any], topic_names: Sequence[str],
    max_samples: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return what the page needs to draw the Structure plot by each of several groupings.

    ``shares`` (n_drawn, K) in thousandths, ``names``, and for each grouping the samples in their
    order, with -1 between groups, and the labels at their centres.
    """
    rng = np.random.RandomState(seed)
    kinds = {name: grouping(labels, len(samples)) for name, labels in groups.items()}
    kinds.setdefault("none", ([""], np.zeros(len(samples), np.intp)))
    labels, number = next(iter(kinds.values()))
    members = [np.flatnonzero(number == group) for group in range(len(labels))]
    drawn = np.sort(np.concatenate(thinned(members, max_samples, rng)))
    shares = samples.rows[drawn]
    orders = {}
    for name, (labels, number) in kinds.items():
        orders[name] = _order(shares, labels, number[drawn])
    names = samples.sample_names
    return {
        "shares": np.rint(1000 * shares).astype(int).tolist(),
        "names": [f"sample {i}" if names is None else str(names[i]) for i in drawn],
        "topics": list(topic_names),
        "orders": orders,
    }


def _order(shares: Array, labels: list[str], number: Array) -> dict[str, Any]:
    """Return samples by groups, with a gap of -1 between groups, and the centres of the groups."""
    gap = max(1, round(min(0.015, 0.25 / len(labels)) * len(shares)))
    order: list[int] = []
    ticks: dict[str, float] = {}
    for group, text in enumerate(labels):
        members = np.flatnonzero(number == group)
        if not len(members):
            continue
        if order:
            order += [-1] * gap
        ticks[shortened(text, 24)] = len(order) + len(members) / 2
        order += members[order_within(shares[members])].tolist()
    return {"order": order, "labels": {} if labels == [""] else ticks}


def similarity_section(match: Any) -> Section:
    """Return the similarity of the topics to those of another fit."""
    text = (
        f"Topics of this fit are matched with the {len(match.names_b)} topics of another fit, so "
        "that the sum of the similarities of the pairs is largest: they range from "
        f"{match.similarity.min():.2f} to {match.similarity.max():.2f}, and 1 is the same topic."
    )
    return Section("Similarity", [text], [charts.similarity_chart(match)])


def select_k_section(found: Any) -> Section:
    """Return the choice of the number of topics."""
    table = {
        "topics": found.n_components.tolist(),
        "held-out score": [f"{each:.4f}" for each in found.score],
        "standard error": [f"{each:.4f}" for each in found.score_error],
        "smallest similarity": [f"{each:.2f}" for each in found.least_stability],
    }
    return Section("Number of topics", [found.advice], charts.select_k_charts(found), table)


def permutation_section(found: Any) -> Section:
    """Return tests of whether groups differ."""
    tests = (found.overall, *found.pairs)
    table = {
        "groups": ["all", *(" - ".join(map(str, test.groups)) for test in found.pairs)],
        "units": [f"{sum(test.n_units):,}" for test in tests],
        "p": [f"{test.pvalue:.3g}" for test in tests],
        "p, all pairs": [f"{test.pvalue_maxt:.3g}" for test in tests],
        "p of spread": [f"{test.dispersion_pvalue:.3g}" for test in tests],
    }
    text = (
        f"Permutation test of whether the topics of groups differ (statistic: {found.statistic}; "
        f"{found.overall.null.size:,} labellings). The smallest possible p is "
        f"{found.overall.smallest_pvalue:.2g}."
    )
    return Section("Tests of groups", [text], [], table)


def effects_section(found: Any) -> Section:
    """Return the means of groups, and which topics differ."""
    names, groups = list(map(str, found.topic_names)), list(map(str, found.groups))
    table: dict[str, Sequence[Any]] = {"topic": names}
    for g, group in enumerate(groups):
        table[f"mean in {group}"] = [f"{each:.3f}" for each in found.means[:, g]]
    table["p"] = [f"{each:.3g}" for each in found.pvalues]
    table["p, all topics"] = [f"{each:.3g}" for each in found.pvalues_maxt]
    text = (
        f"Mean proportions of topics in groups of {int(found.n_units.sum()):,} {found.units}, with "
        f"intervals of {found.level:.0%}, and permutation tests of each topic."
    )
    chart = charts.interval_chart(
        names, groups, found.means, found.lower, found.upper, "mean proportion"
    )
    return Section("Groups", [text], [chart], table)


def weights_section(found: Any) -> Section:
    """Return balanced weights of topics in groups."""
    names, groups = list(map(str, found.topics)), list(map(str, found.groups))
    table: dict[str, Sequence[Any]] = {"topic": names}
    for g, group in enumerate(groups):
        table[group] = [
            f"{found.weights[t, g]:.2f} ({found.lower[t, g]:.2f} to {found.upper[t, g]:.2f})"
            for t in range(len(names))
        ]
    text = (
        f"Balanced weights of topics in groups, with intervals of {found.level:.0%}. Without "
        f"differences between groups all weights are {found.neutral:.2f}."
    )
    chart = charts.interval_chart(
        names, groups, found.weights, found.lower, found.upper, "balanced weight", found.neutral
    )
    return Section("Weights in groups", [text], [chart], table)


def quality_section(found: Any) -> Section:
    """Return measures of the topics."""
    table = {
        "topic": list(found.topic_names),
        "share": [f"{each:.1%}" for each in found.share],
        "NPMI": [f"{each:.3f}" for each in found.npmi],
        "UMass": [f"{each:.2f}" for each in found.umass],
        "exclusivity": [f"{each:.2f}" for each in found.exclusivity],
        "effective features": [f"{each:,.0f}" for each in found.effective_features],
        "effective samples": [f"{each:,.0f}" for each in found.effective_samples],
    }
    text = (
        f"The fit explains {found.deviance_explained:.1%} of the deviance of a single topic. "
        f"NPMI and UMass measure how often the {found.n_top} leading features of a topic occur "
        "together; exclusivity is 1 for features that other topics do not have."
    )
    return Section("Quality", [text], [], table)


def table_section(found: Any) -> Section:
    """Return a result of any kind as a table."""
    table, more = first_rows(found, _MOST_ROWS)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(found).__name__).capitalize()
    text = [repr(found).strip("<>")]
    return Section(words, [*text, more] if more else text, [], table)


def convergence_section(model: Any) -> Section | None:
    """Return the course of the fit; None for a fit in batches."""
    history = getattr(model, "history_", None)
    if history is None or not len(history):
        return None
    text = f"{len(history):,} iterations in {history[-1]['seconds']:.2f} seconds."
    return Section("Convergence", [text], charts.convergence_charts(history))


# The class of a result, by name: its module is not imported only to recognise it.
OF_RESULTS: dict[str, Callable[[Any], Section]] = {
    "SelectK": select_k_section,
    "PermutationTest": permutation_section,
    "GroupEffects": effects_section,
    "BootstrapWeights": weights_section,
    "TopicQuality": quality_section,
}
