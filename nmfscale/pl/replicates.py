"""bootstrap_plot: densities or histograms of the replicates of a bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike, WeightKind
from ..models.topics.topic_labels import shortened
from .canvas import (
    FigureOptions,
    IntervalTool,
    ReplicateStyle,
    axes_or_new,
    legend_of_names,
    plot,
    topic_colors,
)
from .objects import result_in
from .panels import Grid, Table, chosen_panels, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
# Points of a density, and how far it goes beyond the replicates, in their standard deviations.
_POINTS, _BEYOND = 256, 1.0
# Height of a panel in peaks of the curve that has the median peak.
_MOST_ABOVE = 4.0
# Panels by default.
_PANELS = 8


@plot
def bootstrap_plot(
    result: AnnDataLike | ResultLike,
    kind: WeightKind = "RwT",
    *,
    style: ReplicateStyle = "density",
    groupby: str | None = None,
    tool: IntervalTool = "bootstrap_weights",
    key: str = KEY,
    panels: Sequence[Any] | None = None,
    curves: Sequence[Any] | None = None,
    max_panels: int = _PANELS,
    max_curves: int = 8,
    bins: int = 40,
    topic_names: Sequence[str] | None = None,
    group_names: Sequence[str] | None = None,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the bootstrap distribution of weights or means: a density or histogram of replicates.

    Densities are Gaussian kernel estimates with the bandwidth of Scott's rule. A dashed line marks
    the neutral weight, which all topics would have in all groups if there were no difference.

    Parameters
    ----------
    result : AnnData, BootstrapWeights, BootstrapFit or GroupEffects
        One of the following: an AnnData object with a result of `tool`; the result of
        :func:`nmfscale.bootstrap_weights`, as in figures 5.2 and 5.3 of [1]_; or, to draw mean
        proportions, the result of :func:`nmfscale.bootstrap_fit` with groups, or of
        :func:`nmfscale.group_effects` with ``interval="percentile"`` or "bca".
    kind : {"RwT", "TwR"}, default="RwT"
        "RwT" (regions within topics) draws a panel with curves of groups for each topic; "TwR" a
        panel with curves of topics for each group.
    style : {"density", "histogram"}, default="density"
        What is drawn. Histograms have an area of one, as densities have.
    groupby, key, panels, topic_names, group_names
        As in :func:`forest_plot`.
    tool : {"bootstrap_weights", "group_effects"}, default="bootstrap_weights"
        For an AnnData object, the tool of ``nmfscale.tl`` whose result is drawn.
    curves : sequence, default=None
        Names of the groups ("RwT") or topics ("TwR") to draw. By default those whose estimates are
        farthest from the mean of a panel.
    max_panels : int, default=8
        Largest number of panels if `panels` is None.
    max_curves : int, default=8
        Largest number of curves in a panel if `curves` is None.
    bins : int, default=40
        Number of bars of each histogram.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The panels are ``child_axes`` of the Axes; all have the same
        horizontal scale. Replicates that lack a topic are left out; values that are the same in all
        replicates are drawn as a vertical line.

    Raises
    ------
    ValueError
        If the result has no replicates, or as :func:`forest_plot`.

    References
    ----------
    .. [1] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import bootstrap_weights
    >>> from nmfscale.pl import bootstrap_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=120)
    >>> found = bootstrap_weights(shares, np.repeat(["a", "b"], 60), random_state=0)
    >>> ax = bootstrap_plot(found, panels=["topic 1"])
    >>> ax.child_axes[0].get_title(), len(ax.child_axes[0].lines)
    ('topic 1', 3)
    """
    result = result_in(result, key, tool, groupby)
    replicates = _replicates_of(result)
    whole = table_of(result, kind, topic_names, group_names)
    chosen = chosen_panels(whole, panels, max_panels)
    values = replicates if kind == "RwT" else replicates.transpose(0, 2, 1)
    drawn = _chosen_curves(whole, chosen, curves, max_curves)
    neutral = getattr(result, "neutral", None)
    what = "mean proportion" if neutral is None else "balanced weight"
    caption = [what, f"{len(values):,} replicates"]
    if neutral is not None:
        caption.append(f"dashed: neutral, {neutral:.3g}")
    for some, among, name in ((chosen, whole.panels, "panels"), (drawn, whole.rows, "curves")):
        if len(some) < len(among):
            caption.append(f"{len(some)} of {len(among)} {name}")
    grid = _grid(len(chosen))
    host = axes_or_new(ax, *grid.size)
    colors = topic_colors(len(whole.rows))
    low, high = _limits(values[:, chosen][:, :, drawn], neutral)
    edges, handles = np.linspace(low, high, bins + 1), list[Any]()
    for i, panel in zip(chosen, grid.draw(host, "; ".join(caption)), strict=True):
        handles_and_peaks = [_draw(panel, values[:, i, j], colors[j], style, edges) for j in drawn]
        handles = [handle for handle, _ in handles_and_peaks]
        if neutral is not None:
            panel.axvline(neutral, color="0.4", linewidth=0.9, linestyle="--", zorder=0)
        title = shortened(whole.panel_labels[i], 28)
        panel.set_title(title, size=8, weight="bold", parse_math=False)
        panel.set(xlim=(low, high), yticks=[])
        panel.set_ylim(0, _height([peak for _, peak in handles_and_peaks]))
    names = [shortened(whole.row_labels[j], 26) for j in drawn]
    legend_of_names(
        host, handles, names, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=7,
        ncols=min(len(names), 5), handlelength=1.2,
    )  # fmt: skip
    return host


def size_of_replicates(result: Any, kind: str) -> tuple[float, float]:
    """Return width and height in inches of a figure for the panels drawn by default."""
    return _grid(min(_PANELS, len(table_of(result, kind, None, None).panels))).size


def _grid(n_panels: int) -> Grid:
    return Grid(n_panels, 2.4, 1.3)


def _replicates_of(result: Any) -> Array:
    """Return the replicates (n, n_components, n_groups) of a result."""
    means = getattr(result, "group_means", None)
    replicates = getattr(result if means is None else means, "replicates", None)
    if replicates is None:
        raise ValueError(
            f"result is a {type(result).__name__} without replicates: pass the result of "
            "bootstrap_weights, of bootstrap_fit with groups=, or of group_effects with "
            "interval='percentile'."
        )
    return np.asarray(replicates, float)


def _chosen_curves(
    table: Table, panels: list[int], curves: Sequence[Any] | None, most: int
) -> list[int]:
    """Return the numbers of the curves of every panel."""
    if curves is not None:
        return chosen_panels(table.turned, curves, most, "curves")
    there = table.estimate[panels]
    away = np.abs(there - there.mean(axis=1, keepdims=True)).max(axis=0)
    return sorted(np.argsort(-away, kind="stable")[:most].tolist())


def _limits(values: Array, neutral: float | None) -> tuple[float, float]:
    """Return the limits of a common scale, which leave room for the tails of densities."""
    finite = np.append(values[np.isfinite(values)], [] if neutral is None else [neutral])
    low, high = finite.min(), finite.max()
    margin = 0.04 * (high - low) or 0.05
    return float(low - margin), float(high + margin)


def _height(peaks: list[float]) -> float:
    """Return the upper limit of the y axis, at most `_MOST_ABOVE` times the median peak.

    So one narrow peak does not flatten all others.
    """
    heights = [peak for peak in peaks if peak > 0]
    if not heights:
        return 1.0
    return 1.05 * min(max(heights), _MOST_ABOVE * float(np.median(heights)))


def _draw(panel: Axes, values: Array, color: str, style: str, edges: Array) -> tuple[Any, float]:
    """Draw the distribution of one number; return the handle for a legend, and the peak."""
    values = values[np.isfinite(values)]
    if values.size < 2 or np.ptp(values) <= 1e-9 * np.abs(values).max(initial=1e-300):
        at = values.mean() if values.size else np.nan
        return panel.axvline(at, color=color, linewidth=1.6), 0.0
    if style == "histogram":
        heights, _, bars = panel.hist(
            values, bins=edges.tolist(), density=True, color=color, alpha=0.5, linewidth=0
        )
        return cast("Any", bars)[0], float(np.max(heights))
    from scipy.stats import gaussian_kde

    tail = _BEYOND * values.std()
    at = np.linspace(values.min() - tail, values.max() + tail, _POINTS)
    density = gaussian_kde(values)(at)
    panel.fill_between(at, density, color=color, alpha=0.2, linewidth=0)
    return panel.plot(at, density, color=color, linewidth=1.3)[0], float(density.max())
