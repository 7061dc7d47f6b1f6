"""trend_plot: mean proportions of topics over time, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike
from ..models.topics.topic_labels import shortened
from .canvas import FigureOptions, axes_or_new, plot, topic_colors
from .objects import result_in
from .panels import Grid, chosen_panels, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot
def trend_plot(
    result: AnnDataLike | ResultLike,
    *,
    groupby: str | None = None,
    key: str = KEY,
    panels: Sequence[Any] | None = None,
    max_panels: int = 12,
    topic_names: Sequence[Any] | None = None,
    group_names: Sequence[Any] | None = None,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw means of topics in groups that are points of time, with their intervals.

    Parameters
    ----------
    result : GroupEffects, BootstrapWeights, AnnData, or any object with arrays
        As in :func:`forest_plot`, such as ``group_effects(model, years)``. Groups are years or
        other numbers, or dates such as "2001-03" or "2001-03-17"; others are drawn side by side in
        their order.
    groupby : str, default=None
        For an AnnData object, the column of ``obs`` with the groups; not needed if there is only
        one result.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    panels : sequence, default=None
        Names of the topics to draw. By default those that change most: in which two intervals are
        farthest apart.
    max_panels : int, default=12
        Largest number of topics if `panels` is None.
    topic_names, group_names : sequence of str, default=None
        Names; by default those of the result. `group_names` are then the points of time.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The panels are ``child_axes`` of the Axes; all have the same
        horizontal scale, and each has a vertical scale from 0.

    Raises
    ------
    ValueError
        As in :func:`forest_plot`; also if there is only one group.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import group_effects
    >>> from nmfscale.pl import trend_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=90)
    >>> found = group_effects(shares, np.repeat([2001, 2002, 2005], 30), random_state=0)
    >>> ax = trend_plot(found)
    >>> ax.child_axes[0].lines[0].get_xdata().tolist()
    [2001.0, 2002.0, 2005.0]
    """
    result = result_in(result, key, "group_effects", groupby)
    whole = table_of(result, "RwT", topic_names, group_names)
    if len(whole.rows) < 2:
        raise ValueError("there is one group: a trend needs two points of time at least.")
    chosen = chosen_panels(whole, panels, max_panels)
    colors = topic_colors(len(whole.panels))
    times, labels = points_of_time(whole.rows)
    order = np.argsort(times, kind="stable")
    level = getattr(result, "level", None)
    caption = ["means", "intervals" if level is None else f"{level:.0%} intervals"]
    if panels is None and len(chosen) < len(whole.panels):
        caption.append(f"{len(chosen)} of {len(whole.panels)} topics")
    grid = Grid(len(chosen), 2.0, 1.1, 0.35)
    host = axes_or_new(ax, *grid.size)
    for topic, panel in zip(chosen, grid.draw(host, "; ".join(caption)), strict=True):
        low, middle, high = (
            matrix[topic][order] for matrix in (whole.lower, whole.estimate, whole.upper)
        )
        at = times[order]
        panel.fill_between(at, low, high, color=colors[topic], alpha=0.25, linewidth=0)
        panel.plot(at, middle, color=colors[topic], linewidth=1.5, marker="o", markersize=2.5)
        panel.set_title(
            shortened(whole.panel_labels[topic], 28), size=8, weight="bold", parse_math=False
        )
        panel.set_ylim(0, 1.08 * high.max() or 1)
        panel.spines["left"].set_visible(True)
        panel.locator_params(axis="y", nbins=3)
        label_times(panel, at, labels, order)
    return host


def points_of_time(names: Sequence[Any]) -> tuple[np.ndarray, list[str] | None]:
    """Return positions on the time axis, and labels for them; None for a numeric axis."""
    labels = [str(name) for name in names]
    try:
        return np.array([float(label) for label in labels]), None
    except ValueError:
        pass
    try:
        days = np.array(labels, "datetime64[D]")
        if np.isnat(days).any():
            raise ValueError
        return days.astype(np.int64).astype(np.float64), labels
    except ValueError:
        return np.arange(len(labels), dtype=np.float64), labels


def label_times(
    panel: Axes, times: np.ndarray, labels: list[str] | None, order: np.ndarray
) -> None:
    """Write labels of some points of time, the first and the last among them."""
    if labels is None:
        panel.locator_params(axis="x", nbins=4, integer=bool((times % 1 == 0).all()))
        return
    # names of months and days fit three times below a panel, longer ones twice
    n = min(len(times), 3 if max(map(len, labels)) <= 8 else 2)
    chosen = np.unique(np.linspace(0, len(times) - 1, n).round().astype(int))
    panel.set_xticks(times[chosen], [shortened(labels[order[at]], 12) for at in chosen])
    for text in panel.get_xticklabels():
        text.set(parse_math=False)
