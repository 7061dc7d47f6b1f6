"""Plots of differences of features between topics, with labels that do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..annotated.places import symbols_of
from ..counts.argument_types import AnnDataLike, ResultLike, Topic
from ..counts.matched_frames import index_of, matched_by_name
from ..models.topics.topic_labels import leading_words, topic_labels
from .canvas import (
    PALETTE,
    FigureOptions,
    axes_or_new,
    plot,
)
from .fonts import complete_figure
from .interactive import feature_chart, need_bokeh
from .objects import result_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLAIN, _FOUND = "0.75", PALETTE[5]
_SIZE = 4.6, 3.8
# Distances of labels from their points, in points, and directions that are tried one after another.
_DISTANCES = 3, 9, 16, 24, 34
_DIRECTIONS = (1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1)
_FONT = 7


@plot
def volcano_plot(
    result: AnnDataLike | ResultLike,
    topic: Topic,
    *,
    level: float = 0.05,
    n_labels: int = 15,
    gene_symbols: str | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    interactive: bool = False,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the evidence for a difference of each feature against its log-fold change.

    Parameters
    ----------
    result : AnnData or DifferentialFeatures
        Object with differential features by :func:`nmfscale.tl.differential_features`, or the
        result of :func:`nmfscale.differential_features`. Also the result of
        :func:`nmfscale.condition_features`: its ``contrast(group)`` if there are several groups.
    topic : str or int
        The topic, by name or number.
    level : float, default=0.05
        Features whose q-value is at most this are coloured; none if the result has no p-values.
    n_labels : int, default=15
        Number of leading features to name. Labels do not overlap; one without room is left out.
    gene_symbols : str, default=None
        For an AnnData object, the column of ``var`` with the names of the features.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.
    interactive : bool, default=False
        Draw with Bokeh (``pip install "nmfscale[interactive]"``): the plot can be enlarged, and the
        pointer shows the name and the numbers of a feature. `save` then writes an HTML file that
        needs no network.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure, bokeh.plotting.figure or None
        As in :func:`structure_plot`; with `interactive`, the figure of Bokeh. The horizontal axis
        is the log2-fold change against what the topics were compared with; by default that is the
        other topic in which the frequency of the feature is closest ("least-extreme"). The vertical
        axis is the evidence for a difference: the absolute value of z. p-values of leading features
        would be too small to tell apart.

    Raises
    ------
    ValueError
        If `result` is not a result of differential_features or has no such topic.
    ImportError
        If Bokeh is needed and not installed.

    Examples
    --------
    >>> from nmfscale import TopicModel, differential_features, pl
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(100, 60, 3, random_state=0)
    >>> model = TopicModel(3, random_state=0).fit(X)
    >>> ax = pl.volcano_plot(differential_features(model, X, random_state=0), 0)
    >>> ax.get_xlabel()
    'log2 fold change against the closest other topic'
    """
    return _features_plot(
        _evidence, result, topic, level, n_labels, gene_symbols, key, ax, interactive
    )


@plot
def ma_plot(
    result: AnnDataLike | ResultLike,
    topic: Topic,
    *,
    level: float = 0.05,
    n_labels: int = 15,
    gene_symbols: str | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    interactive: bool = False,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the log-fold change of each feature against its mean count.

    Parameters
    ----------
    result, topic, level, n_labels, gene_symbols, key, ax, show, save, return_fig, interactive
        As in :func:`volcano_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure, bokeh.plotting.figure or None
        As in :func:`volcano_plot`. Features without counts are left out.

    Raises
    ------
    ValueError
        As in :func:`volcano_plot`.

    Examples
    --------
    >>> from nmfscale import TopicModel, differential_features, pl
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(100, 60, 3, random_state=0)
    >>> model = TopicModel(3, random_state=0).fit(X)
    >>> found = differential_features(model, X, reference="mean", random_state=0)
    >>> ax = pl.ma_plot(found, 0)
    >>> ax.get_ylabel()
    'log2 fold change against the mean of all samples'
    """
    return _features_plot(
        _changes, result, topic, level, n_labels, gene_symbols, key, ax, interactive
    )


@plot
def topic_scatter(
    result: AnnDataLike | ResultLike,
    topic: Topic,
    *,
    level: float = 0.05,
    n_labels: int = 15,
    gene_symbols: str | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    interactive: bool = False,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the frequency of each feature in a topic against its highest frequency in the others.

    Features above the diagonal are more frequent in this topic than in any other.

    Parameters
    ----------
    result, topic, level, n_labels, gene_symbols, key, ax, show, save, return_fig, interactive
        As in :func:`volcano_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure, bokeh.plotting.figure or None
        As in :func:`volcano_plot`. Both scales are logarithmic. Features without counts are left
        out.

    Raises
    ------
    ValueError
        As in :func:`volcano_plot`.

    Examples
    --------
    >>> from nmfscale import TopicModel, differential_features, pl
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(100, 60, 3, random_state=0)
    >>> model = TopicModel(3, random_state=0).fit(X)
    >>> ax = pl.topic_scatter(differential_features(model, X, random_state=0), 0)
    >>> ax.get_ylabel()
    'frequency in this topic'
    """
    return _features_plot(
        _frequencies, result, topic, level, n_labels, gene_symbols, key, ax, interactive
    )


class Places(NamedTuple):
    """Where features are: coordinates (m,) and labels of both axes, which are logarithmic.

    `line` is a vertical line at 0 ("x"), a horizontal one ("y"), or the ends of a diagonal.
    """

    points: tuple[np.ndarray, np.ndarray]
    labels: tuple[str, str]
    line: str | np.ndarray
    x_log: bool = False
    y_log: bool = False


def _evidence(result: Any, k: int) -> Places:
    evidence = "evidence, |z|" if result.n_units is None else "evidence, |t| between units"
    return Places((result.lfc[k], np.abs(result.z[k])), (_change(result), evidence), "x")


def _changes(result: Any, k: int) -> Places:
    mean = np.where(result.base_mean > 0, result.base_mean, np.nan)
    return Places((mean, result.lfc[k]), ("mean count", _change(result)), "y", x_log=True)


def _frequencies(result: Any, k: int) -> Places:
    frequencies = np.where(result.frequencies > 0, result.frequencies, np.nan)
    labels = "highest frequency in other topics", "frequency in this topic"
    ends = np.array([np.nanmin(frequencies), np.nanmax(frequencies)])
    points = np.delete(frequencies, k, axis=0).max(axis=0), frequencies[k]
    return Places(points, labels, ends, x_log=True, y_log=True)


def _features_plot(
    places_of: Callable[[Any, int], Places], result: Any, topic: Topic, level: float, n_labels: int,
    gene_symbols: str | None, key: str, ax: Axes | None, interactive: bool,
) -> Any:  # fmt: skip
    """Draw features at the places that a function finds for a topic; return the Axes or chart."""
    result, k = _checked(result, topic, ax, gene_symbols, key, interactive)
    places = places_of(result, k)
    if interactive:
        return _chart(result, k, places, level, n_labels)
    ax = axes_or_new(ax, *_SIZE)
    _draw(ax, result, k, places, level, n_labels)
    return ax


def _checked(
    result: Any, topic: Topic, ax: Axes | None, gene_symbols: str | None, key: str,
    interactive: bool,
) -> tuple[Any, int]:  # fmt: skip
    """Check the arguments; return the result, with chosen names of features, and the topic."""
    if interactive:
        need_bokeh()
        if ax is not None:
            raise ValueError("ax is for plots by matplotlib; with interactive=True there is none.")
    symbols = symbols_of(result, gene_symbols)
    result = result_in(result, key, "differential_features")
    if hasattr(result, "contrast"):
        result = result.contrast()
    if not hasattr(result, "lfc") or not hasattr(result, "topic_number"):
        raise ValueError(
            f"result is a {type(result).__name__}: pass the result of differential_features."
        )
    if symbols is not None:
        names = matched_by_name(symbols, index_of(result.feature_labels), "gene_symbols", "result")
        names = np.asarray(names, object)
        origin = replace(result.origin, topic_words=leading_words(result.frequencies, names))
        result = replace(result, feature_names=names, origin=origin)
    return result, int(result.topic_number(topic))


def _title(result: Any, k: int) -> str:
    """Return the label of a topic."""
    return topic_labels(result.topic_names, result.origin.topic_words)[k]


def _change(result: Any) -> str:
    """Return the label of an axis with log-fold changes."""
    what = {"least-extreme": "the closest other topic", "mean": "the mean of all samples"}
    return f"log2 fold change against {what.get(result.reference, result.reference)}"


def _chart(result: Any, k: int, places: Places, level: float, n_labels: int) -> Any:
    """Return the plot by Bokeh."""
    texts = {"title": _title(result, k), "x": places.labels[0], "y": places.labels[1]}
    logs = {"x_log": places.x_log, "y_log": places.y_log}
    chart = feature_chart(result, k, places.points, level, n_labels, texts, **logs)
    if not isinstance(places.line, str):
        chart.line(places.line, places.line, color="#999999")
    return chart


def _draw(ax: Axes, result: Any, k: int, places: Places, level: float, n_labels: int) -> None:
    """Draw the features as points, those with small q-values in colour, and name the leading."""
    x, y = places.points
    different = result.significant(k, level)
    for these, color, label in ((~different, _PLAIN, None), (different, _FOUND, f"q <= {level:g}")):
        ax.scatter(x[these], y[these], s=5, color=color, linewidths=0, label=label, rasterized=True)
    if places.x_log:
        ax.set_xscale("log")
    if places.y_log:
        ax.set_yscale("log")
    ax.set(xlabel=places.labels[0], ylabel=places.labels[1])
    ax.set_title(_title(result, k), size=9, parse_math=False)
    if result.qvalue is not None:
        ax.legend(fontsize=7, frameon=False, loc="upper left")
    leading = result.order(k)[:n_labels]
    names = [str(name) for name in np.asarray(result.feature_labels)[leading]]
    label_points(ax, x[leading], y[leading], names)
    grey: Any = {"color": "0.6", "linewidth": 0.6, "zorder": 0}
    if not isinstance(places.line, str):
        ax.plot(places.line, places.line, **grey)
    elif places.line == "x":
        ax.axvline(0, **grey)
    else:
        ax.axhline(0, **grey)


def label_points(
    ax: Axes, x: np.ndarray, y: np.ndarray, names: Sequence[str], sizes: Any = 9.0
) -> None:
    """Name points, the first one first, where labels overlap neither each other nor these points.

    A label without room is left out. `sizes` are those of the points, as in ``Axes.scatter``.
    """
    from matplotlib.text import Text

    root: Any = ax.figure.canvas.figure
    labels = [
        ax.annotate(
            name, at, (0, 0), textcoords="offset points", size=_FONT, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5, "shrinkA": 0},
        )
        for name, at in zip(names, zip(x, y, strict=True), strict=True)
    ]  # fmt: skip
    for label in labels:
        label.set_in_layout(False)
    complete_figure(root)
    root.draw_without_rendering()  # the layout decides where points are
    places = ax.transData.transform(np.column_stack([x, y]))
    radii = np.broadcast_to(np.sqrt(sizes) / 2 * root.dpi / 72, len(places))
    taken: list[tuple[float, ...]] = [
        (px - r, py - r, px + r, py + r) for (px, py), r in zip(places, radii, strict=True)
    ]
    inside = ax.get_window_extent().padded(-2).extents  # clear of the frame
    for (px, py), label in zip(places, labels, strict=True):
        offsets = _offsets() if np.isfinite([px, py]).all() else ()
        for offset, alignment in offsets:
            label.set(position=offset, **alignment)
            label.get_window_extent()  # moves the text to its new position
            extent = tuple(Text.get_window_extent(label).extents)  # without the line to its point
            if _contains(inside, extent) and not any(_overlap(extent, other) for other in taken):
                # a margin: pixels of text are rounded when it is drawn
                taken.append((extent[0] - 2, extent[1] - 2, extent[2] + 2, extent[3] + 2))
                label.set_in_layout(True)
                break
        else:
            label.remove()


def _offsets() -> Iterator[tuple[tuple[float, float], dict[str, str]]]:
    """Yield offsets of labels from their points, the nearest first, and their alignments."""
    for distance, (right, up) in product(_DISTANCES, _DIRECTIONS):
        yield (
            (right * distance, up * distance),
            {
                "horizontalalignment": ("center", "left", "right")[right],
                "verticalalignment": ("center", "bottom", "top")[up],
            },
        )


def _contains(outer: Any, inner: Any) -> bool:
    return bool(
        outer[0] <= inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2]
        and inner[3] <= outer[3]
    )  # fmt: skip


def _overlap(one: Any, other: Any) -> bool:
    return bool(one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3])
