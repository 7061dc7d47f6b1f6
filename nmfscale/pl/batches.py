"""batch_plot: topics, efficiencies and separation of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike
from ..models.topics.topic_labels import shortened, topic_labels
from .canvas import PALETTE, FigureOptions, axes_or_new, legend_of_names, plot, topic_colors
from .objects import result_in
from .panels import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AFTER, _BEFORE, _LINE = PALETTE[0], "0.6", 0.2
# Shares of the counts of a batch with smaller efficiencies: ends of the thin and of the thick line.
_SHARES = 0.05, 0.25, 0.5, 0.75, 0.95


@plot
def batch_plot(
    result: AnnDataLike | ResultLike,
    *,
    key: str = KEY,
    max_batches: int = 40,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the topics of batches, their efficiencies, and how well topics tell them apart.

    Parameters
    ----------
    result : AnnData or BatchEffects
        Object with a result of :func:`nmfscale.tl.batch_effects`, or the result of
        :func:`nmfscale.batch_effects`.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    max_batches : int, default=40
        Largest number of batches; of more, those that topics tell apart best.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The Axes are divided into panels (``child_axes``), with a line
        for each batch. "topics": mean proportions. "efficiencies", of a fit with batches: median,
        quartiles, and 5% and 95% quantiles of the efficiencies of features, weighted by counts.
        "separation": the mean area under the ROC curve within clusters, in grey without
        efficiencies; 0.5, the dotted line, if batches are mixed, and 1 if they are apart. The last
        panel has the colours of the topics.

    Raises
    ------
    ValueError
        If `result` is not a result of batch_effects, or `ax` is not Axes.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=200)
    >>> effects = nmfscale.batch_effects(shares, batch=np.repeat(["a", "b"], 100))
    >>> ax = nmfscale.pl.batch_plot(effects)
    >>> [panel.get_title() for panel in ax.child_axes]
    ['topics', 'separation', '']
    """
    effects = result_in(result, key, "batch_effects")
    if not hasattr(effects, "concentration") or not hasattr(effects, "auc"):
        raise ValueError(f"result is a {type(effects).__name__}: pass the result of batch_effects.")
    table = effects.columns("batches")
    chosen = _chosen(table["auc"], max_batches)
    grid = _grid(effects, max_batches)
    host = axes_or_new(ax, *grid.size)
    panels = grid.draw(host, _caption(effects, len(chosen)))
    host.xaxis.labelpad = 16
    legend = _draw_topics(panels[0], effects, chosen)
    if effects.efficiencies is not None:
        _draw_efficiencies(panels[1], effects, chosen)
    legend += _draw_areas(panels[-2], table, chosen)
    panels[-1].axis("off")
    legend_of_names(
        panels[-1], *zip(*legend, strict=True), loc="upper left", fontsize=7, borderaxespad=0,
        ncols=1 + len(legend) // 22,
    )  # fmt: skip
    names = [shortened(str(effects.batches[b]), 16) for b in chosen]
    for panel in panels[:-1]:
        panel.set_ylim(len(chosen) - 0.4, -0.6)
        panel.set_yticks(range(len(chosen)), names, parse_math=False)
        panel.tick_params(axis="y", length=0)
    return host


def size_of_batches(effects: Any) -> tuple[float, float]:
    """Return width and height in inches of a figure for the batches of a result."""
    return _grid(effects, 40).size


def _grid(effects: Any, max_batches: int) -> Grid:
    n_panels = 3 + (effects.efficiencies is not None)
    n_lines = max(min(len(effects.batches), max_batches), (len(effects.topic_names) + 1) // 1.6)
    return Grid(n_panels, 1.7, 0.4 + _LINE * n_lines, 0.9)


def _chosen(areas: np.ndarray, most: int) -> np.ndarray:
    """Return numbers of batches, in their order."""
    if len(areas) <= most:
        return np.arange(len(areas))
    return np.sort(np.argsort(-np.nan_to_num(areas), kind="stable")[:most])


def _caption(effects: Any, n_drawn: int) -> str:
    parts = []
    if effects.origin.groups:
        parts.append(f"batches: {effects.origin.groups}")
    if n_drawn < len(effects.batches):
        parts.append(f"{n_drawn} of {len(effects.batches):,} batches, those farthest apart")
    n_warnings = len(effects.warnings)
    if n_warnings:
        parts.append(f"{n_warnings} warning{'s' * (n_warnings > 1)}: see the text of the result")
    return "; ".join(parts)


def _draw_topics(panel: Axes, effects: Any, chosen: np.ndarray) -> list[tuple[Any, str]]:
    """Draw mean proportions as stacked bars; return entries of a legend."""
    colors, shares = topic_colors(len(effects.topic_names)), effects.shares[chosen]
    left, bars = np.zeros(len(chosen)), []
    for share, color in zip(shares.T, colors, strict=True):
        bars.append(panel.barh(range(len(chosen)), share, left=left, color=color, height=0.8))
        left = left + share
    panel.set_title("topics", size=8)
    panel.set_xlabel("mean proportion", size=7)
    panel.set_xlim(0, 1)
    labels = topic_labels(effects.topic_names, effects.origin.topic_words)
    return [(bar, shortened(label, 24)) for bar, label in zip(bars, labels, strict=True)]


def _draw_efficiencies(panel: Axes, effects: Any, chosen: np.ndarray) -> None:
    """Draw quantiles of efficiencies, weighted by expected counts, on a logarithmic axis."""
    for line, b in enumerate(chosen.tolist()):
        there = effects.efficiencies[b] > 0
        values, weights = effects.efficiencies[b][there], effects.expected[b][there]
        if not weights.sum() > 0:
            continue
        order = np.argsort(values, kind="stable")
        rises = np.cumsum(weights[order]) / weights.sum()
        at = np.searchsorted(rises, _SHARES).clip(max=len(order) - 1)
        low, first, middle, third, high = values[order][at]
        panel.plot([low, high], [line, line], color=_AFTER, linewidth=0.8)
        panel.plot([first, third], [line, line], color=_AFTER, linewidth=3, solid_capstyle="butt")
        panel.plot([middle], [line], "o", color="white", markersize=2.5, markeredgecolor=_AFTER)
    panel.set_xscale("log", base=2)
    panel.axvline(1, color="0.65", linewidth=0.8, linestyle=":", zorder=0)
    panel.margins(x=0.1)
    low, high = panel.get_xlim()
    panel.set_xlim(min(low, 0.48), max(high, 2.1))
    powers = 2.0 ** np.arange(np.ceil(np.log2(panel.get_xlim()[0])), np.log2(panel.get_xlim()[1]))
    panel.set_xticks(powers[:: 1 + len(powers) // 8], minor=False)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set_title("efficiencies", size=8)
    panel.set_xlabel("of features, by counts", size=7)


def _draw_areas(
    panel: Axes, table: dict[str, np.ndarray], chosen: np.ndarray
) -> list[tuple[Any, str]]:
    """Draw areas under ROC curves, before and after; return entries of a legend."""
    after, lines = table["auc"][chosen], np.arange(len(chosen))
    before = table.get("auc_before", table["auc"])[chosen]
    legend = []
    if "auc_before" in table:
        panel.hlines(lines, before, after, color="0.8", linewidth=1, zorder=0)
        dots = panel.plot(before, lines, "o", color=_BEFORE, markersize=4)
        legend = [(dots[0], "without efficiencies")]
    dots = panel.plot(after, lines, "o", color=_AFTER, markersize=4)
    if legend:
        legend.append((dots[0], "with efficiencies"))
    panel.axvline(0.5, color="0.65", linewidth=0.8, linestyle=":", zorder=0)
    least = np.nanmin([0.38, *before, *after])
    panel.set_xlim(least - 0.03, 1.03)
    panel.set_title("separation", size=8)
    panel.set_xlabel("AUC of the batch within clusters", size=7)
    return legend
