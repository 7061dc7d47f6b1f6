"""features_by_group_plot: the features of a topic over time, or by source, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike, Topic
from ..counts.names import shown, such_as
from ..models.topics.topic_labels import shortened
from .canvas import FigureOptions, axes_or_new, plot, topic_colors
from .objects import result_in
from .panels import Grid
from .trends import label_times, points_of_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot
def features_by_group_plot(
    result: AnnDataLike | ResultLike,
    topic: Topic,
    *,
    features: Sequence[Any] | None = None,
    n_top: int = 8,
    groupby: str | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw frequencies of features within a topic in groups, with their intervals.

    Periods, which have an order, are points of lines; sources are points side by side. The dashed
    line is the frequency of the fit.

    Parameters
    ----------
    result : FeaturesByGroup or AnnData
        Result of :func:`nmfscale.features_by_group`, or an object with one.
    topic : str or int
        Name or number of the topic.
    features : sequence, default=None
        Names of the features to draw; by default those that change most, as in
        :meth:`nmfscale.results.FeaturesByGroup.leading`, or the leading ones if none does.
    n_top : int, default=8
        Largest number of features if `features` is None.
    groupby : str, default=None
        For an AnnData object, the column of ``obs`` with the groups; not needed if there is only
        one result.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The panels are ``child_axes`` of the Axes, one for each
        feature.

    Raises
    ------
    ValueError
        If `result` is no such result, or has no such topic or feature.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(120, 50, 3, random_state=0)
    >>> model = nmfscale.TopicModel(3, random_state=0).fit(X)
    >>> found = nmfscale.features_by_group(model, X, np.repeat([2001, 2002, 2005], 40))
    >>> ax = nmfscale.pl.features_by_group_plot(found, 0, n_top=3)
    >>> ax.child_axes[0].lines[0].get_xdata().tolist()
    [2001.0, 2002.0, 2005.0]
    """
    found: Any = result_in(result, key, "features_by_group", groupby)
    if not hasattr(found, "overall") or not hasattr(found, "lfc_lower"):
        raise ValueError(
            f"result is a {type(result).__name__}: the result of nmfscale.features_by_group is "
            "needed."
        )
    k = found.topic_number(topic)
    chosen = _chosen(found, k, features, n_top)
    ordered = found.reference is not None
    times, labels = points_of_time(found.groups)
    color = topic_colors(len(found.topic_names))[k]
    caption = f"{found.topic_labels[k]}: frequency in %, {found.level:.0%} intervals; dashed: fit"
    grid = _grid(found, len(chosen))
    host = axes_or_new(ax, *grid.size)
    for feature, panel in zip(chosen, grid.draw(host, caption), strict=True):
        low, middle, high = (
            100 * values[:, k, feature] for values in (found.lower, found.frequencies, found.upper)
        )
        fit = 100 * found.overall[k, feature]
        name = shortened(str(found.feature_labels[feature]), 28)
        panel.set_title(name, size=8, weight="bold", parse_math=False)
        if ordered:
            order = np.argsort(times, kind="stable")
            _draw_times(panel, times[order], low[order], middle[order], high[order], color)
            panel.axhline(fit, color="0.5", linewidth=0.7, linestyle="--")
            label_times(panel, times[order], labels, order)
        else:
            _draw_sources(panel, found.groups, low, middle, high, color)
            panel.axvline(fit, color="0.5", linewidth=0.7, linestyle="--")
    return host


def size_of_features(result: Any, topic: Topic, n_top: int) -> tuple[float, float]:
    """Return width and height in inches of a figure for the features that change most."""
    return _grid(result, len(_chosen(result, result.topic_number(topic), None, n_top))).size


def _grid(found: Any, n_panels: int) -> Grid:
    if found.reference is not None:
        return Grid(n_panels, 2.0, 1.1, 0.35)
    longest = max(len(str(group)) for group in found.groups)
    return Grid(n_panels, 2.0, max(0.8, 0.17 * len(found.groups)), 0.1 + 0.06 * min(longest, 20))


def _chosen(found: Any, k: int, features: Sequence[Any] | None, n_top: int) -> list[int]:
    """Return the numbers of the features to draw."""
    if features is None:
        leading = found.leading(k, n_top).tolist()
        return leading or np.argsort(-found.overall[k], kind="stable")[:n_top].tolist()
    if isinstance(features, str) or not len(features):
        raise ValueError(f"features={shown(features)}: a list of names of features is needed.")
    number = {name: j for j, name in enumerate(found.feature_labels.tolist())}
    unknown = [name for name in features if name not in number]
    if unknown:
        raise ValueError(f"features: the result has no {such_as(unknown)}.")
    return [number[name] for name in features]


def _draw_times(
    panel: Axes, at: np.ndarray, low: np.ndarray, middle: np.ndarray, high: np.ndarray, color: Any
) -> None:
    """Draw a line with a band."""
    panel.fill_between(at, low, high, color=color, alpha=0.25, linewidth=0)
    panel.plot(at, middle, color=color, linewidth=1.5, marker="o", markersize=2.5)
    panel.set_ylim(0, 1.08 * high.max())
    panel.spines["left"].set_visible(True)
    panel.locator_params(axis="y", nbins=3)


def _draw_sources(
    panel: Axes, names: Sequence[Any], low: np.ndarray, middle: np.ndarray, high: np.ndarray,
    color: Any,
) -> None:  # fmt: skip
    """Draw a point with an interval for each source, the first one at the top."""
    at = np.arange(len(names))
    panel.hlines(at, low, high, color=color, linewidth=1.5)
    panel.plot(middle, at, color=color, linestyle="", marker="o", markersize=3.5)
    panel.set_yticks(at, [shortened(str(name), 20) for name in names], parse_math=False)
    panel.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.08 * high.max()))
    panel.tick_params(axis="y", length=0)
