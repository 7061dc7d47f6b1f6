"""The charts of a report, drawn by Bokeh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.topics.topic_labels import shortened, topic_labels
from ..pl import interactive
from ..pl.canvas import PALETTE
from ..pl.progress import label, objective, residuals

Array = NDArray[Any]
_TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
_BLUE, _RED, _GREY = PALETTE[0], PALETTE[5], "#999999"
# Width of the map and of a number in it, in pixels; height of a line and of the space between two
# topics in a chart of intervals; letters of a label, which leave half of a phone's screen.
_MAP, _NUMBER, _LINE, _BETWEEN_BANDS, _LONGEST = 290, (17, 15), 13, 12, 20


def need_bokeh() -> None:
    """Raise an error that says how to install Bokeh, if it is missing."""
    interactive.need_bokeh("reports", "report")


def _figure(height: int, **options: Any) -> Any:
    from bokeh.plotting import figure

    chart = figure(
        height=height, sizing_mode="stretch_width", tools=_TOOLS, active_drag=None,
        toolbar_location="above", output_backend="canvas", **options,
    )  # fmt: skip
    chart.toolbar.logo = None
    chart.toolbar.autohide = True
    chart.grid.grid_line_color = "#e5e5e5"
    chart.outline_line_color = None
    return chart


def structure_chart(colors: Sequence[str]) -> Any:
    """Return the Structure plot, whose columns the page fills: x, y0, ..., yK, middle and texts."""
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool

    # Bokeh's areas never end the drawing of a source without rows
    columns = {f"y{k}": [0.0, 0.0] for k in range(len(colors) + 1)}
    texts = {"name": ["", ""], "text": ["", ""]}
    source = ColumnDataSource({"x": [0.0, 1.0], "middle": [0.5, 1.5]} | texts | columns)
    chart = _figure(320, y_range=(0, 1), x_range=(0, 1), name="structure chart")
    for k, color in enumerate(colors):
        chart.varea_step(
            "x", f"y{k}", f"y{k + 1}", step_mode="after", fill_color=color, source=source
        )
    bars = chart.vbar("middle", width=1, top=1, fill_alpha=0, line_alpha=0, source=source)
    chart.add_tools(HoverTool(renderers=[bars], tooltips=[("", "@name"), ("", "@text")]))
    chart.xaxis.ticker = FixedTicker(ticks=[])
    chart.xaxis.major_label_orientation = 0.6
    chart.xaxis.axis_line_color = chart.xaxis.major_tick_line_color = None
    chart.yaxis.axis_label, chart.yaxis.minor_tick_line_color = "topic proportion", None
    chart.grid.visible = False
    return chart


def map_chart(
    places: Array, shares: Array | None, names: Sequence[str], colors: Sequence[str],
    words: Sequence[str],
) -> Any:  # fmt: skip
    """Return the map of topics; the area of a circle is the topic's share of the counts."""
    from bokeh.models import ColumnDataSource, HoverTool

    even = np.full(len(names), 1 / len(names))
    areas = even if shares is None else shares
    middle = (places.min(axis=0) + places.max(axis=0)) / 2
    extent = float(np.ptp(places, axis=0).max()) * 0.62 or 1.0
    right, down = _apart(places * (_MAP / 2 / extent), areas).T
    source = ColumnDataSource(
        {
            "x": places[:, 0], "y": places[:, 1], "size": 12 + 70 * np.sqrt(areas),
            "name": list(names), "color": list(colors), "words": list(words),
            "number": [str(k) for k in range(len(names))], "right": right, "down": down,
            "share": [f"{area:.1%}" for area in areas],
        },
    )  # fmt: skip
    chart = _figure(400, match_aspect=True, name="map chart")
    circles = chart.scatter("x", "y", size="size", color="color", fill_alpha=0.75, source=source)
    chart.text(
        "x", "y", "number", x_offset="right", y_offset="down", source=source, text_font_size="12px",
        text_align="center", text_baseline="middle", background_fill_color="white",
        background_fill_alpha=0.75,
    )  # fmt: skip
    tooltips = [("", "@name, @share of all counts"), ("", "@words")]
    chart.add_tools(HoverTool(renderers=[circles], tooltips=tooltips))
    for axis, centre in (chart.x_range, middle[0]), (chart.y_range, middle[1]):
        axis.start, axis.end = centre - extent, centre + extent
    chart.axis.visible = False
    return chart


def _apart(pixels: Array, areas: Array) -> Array:
    """Return offsets (K, 2) in pixels, right and down, at which numbers of topics do not overlap.

    Numbers of large topics stay at their centres.
    """
    turns = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    circle = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    offsets = np.concatenate([np.zeros((1, 2)), *(radius * circle for radius in (15, 24, 34, 46))])
    centres, chosen, placed = pixels * [1, -1], np.zeros(pixels.shape), list[Any]()
    for k in np.argsort(-areas, kind="stable"):
        places = centres[k] + offsets
        free = [
            all((np.abs(place - other) >= _NUMBER).any() for other in placed) for place in places
        ]
        best = int(np.argmax(free))
        chosen[k] = offsets[best]
        placed.append(places[best])
    return chosen


def similarity_chart(match: Any) -> Any:
    """Return a heat map of the similarities of the topics of two fits, matched topics first."""
    of_a, of_b = (
        [*pairs, *np.setdiff1d(np.arange(size), pairs)]
        for pairs, size in zip(match.pairs.T, match.similarities.shape, strict=True)
    )
    labels = topic_labels(match.names_a, match.words_a), topic_labels(match.names_b, match.words_b)
    chart = _heat_chart(
        match.similarities[np.ix_(of_a, of_b)], [labels[0][k] for k in of_a],
        [labels[1][k] for k in of_b], ("this fit", "the other fit"), "similarity chart",
    )  # fmt: skip
    chart.xaxis.axis_label, chart.yaxis.axis_label = "the other fit", "this fit"
    return chart


def topic_clusters_chart(result: Any) -> Any:
    """Return a heat map of the similarities of the topics of many fits, in order of clusters."""
    order = np.argsort(result.labels, kind="stable")
    labels = [f"{result.fit_names[result.fits[t]]}: {result.topic_names[t]}" for t in order]
    values = result.similarities[np.ix_(order, order)]
    return _heat_chart(values, labels, labels, ("topic", "other topic"), "topic clusters chart")


def joins_chart(tree: Any) -> Any:
    """Return the tree of the topics of a fit, with joins at their similarity."""
    K = len(tree.topic_names)
    similarity = np.concatenate([np.ones(K), 1 - tree.linkage[:, 2]])
    columns = tree.columns()
    lines: list[list[Any]] = [[], []]
    for node, (one, other) in enumerate(tree.linkage[:, :2].astype(int).tolist(), K):
        ends = similarity[[one, node, node, other]], tree.heights[[one, one, other, other]]
        for into, values in zip(lines, ends, strict=True):
            into.append(values.tolist())
    texts = {"name": columns["name"].tolist(), "n": columns["n_topics"], "similarity": similarity}
    tooltips = [("", "@name"), ("topics", "@n"), ("mean similarity", "@similarity{0.00}")]
    chart = _tree_chart(K, lines, similarity, tree.heights, texts, tooltips)
    chart.xaxis.axis_label = "mean similarity of joined topics"
    _label(chart.yaxis, [tree.labels[k] for k in tree.order])
    return chart


def levels_chart(tree: Any) -> Any:
    """Return the tree of the topics of several fits, with a column for each fit."""
    from bokeh.models import FixedTicker

    there = np.flatnonzero(tree.parents >= 0)
    lines = [
        np.stack([values[tree.parents[there]], values[there]], axis=1).tolist()
        for values in (tree.levels.astype(float), tree.heights)
    ]
    columns = {
        "name": tree.labels, "similarity": tree.similarity, "share": 100 * tree.shares,
        "size": 4 + 40 * np.sqrt(tree.shares),
    }  # fmt: skip
    tooltips = [("", "@name"), ("share", "@share{0.0} %"), ("similarity", "@similarity{0.00}")]
    n_places = float(tree.heights.max()) + 1
    chart = _tree_chart(n_places, lines, tree.levels, tree.heights, columns, tooltips)
    chart.xaxis.ticker = FixedTicker(ticks=list(range(len(tree.fit_names))))
    chart.xaxis.major_label_overrides = {
        i: shortened(name, _LONGEST) for i, name in enumerate(tree.fit_names)
    }
    chart.yaxis.visible = False
    return chart


def _tree_chart(
    n_places: float, lines: list[list[Any]], x: Array, y: Array, columns: dict[str, Any],
    tooltips: list[tuple[str, str]],
) -> Any:  # fmt: skip
    """Return lines, and nodes with texts."""
    from bokeh.models import ColumnDataSource, HoverTool

    chart = _figure(int(90 + 20 * n_places), y_range=(n_places - 0.3, -0.7), name="tree chart")
    chart.multi_line(*lines, line_color=_GREY)
    source = ColumnDataSource({"x": x, "y": y, "size": np.full(len(x), 7.0)} | columns)
    nodes = chart.scatter("x", "y", size="size", color=_BLUE, source=source)
    chart.add_tools(HoverTool(renderers=[nodes], tooltips=tooltips))
    chart.grid.visible = False
    return chart


def _heat_chart(
    values: Array, a: Sequence[str], b: Sequence[str], axes: tuple[str, str], name: str
) -> Any:
    """Return a heat map of similarities, with labels of rows and columns."""
    from bokeh.models import ColumnDataSource, HoverTool, LinearColorMapper
    from bokeh.palettes import Blues256

    row, column = (indices.ravel().tolist() for indices in np.indices(values.shape))
    source = ColumnDataSource(
        {
            "row": row, "column": column, "a": [a[i] for i in row], "b": [b[j] for j in column],
            "value": values.ravel(),
        }
    )  # fmt: skip
    chart = _figure(
        190 + 22 * len(a), x_range=(-0.5, len(b) - 0.5), y_range=(len(a) - 0.5, -0.5), name=name
    )
    colors = LinearColorMapper(palette=Blues256[::-1], low=0, high=1)
    chart.rect(
        "column", "row", width=1, height=1, line_color="white", source=source,
        fill_color={"field": "value", "transform": colors},
    )  # fmt: skip
    tooltips = [(axes[0], "@a"), (axes[1], "@b"), ("similarity", "@value{0.00}")]
    chart.add_tools(HoverTool(tooltips=tooltips))
    chart.grid.visible = False
    _label(chart.xaxis, b)
    _label(chart.yaxis, a)
    chart.xaxis.major_label_orientation = "vertical"
    return chart


def convergence_charts(history: Any) -> list[Any]:
    """Return the distance to the final objective, and the largest KKT residual, by iteration."""
    field, numbers = objective(history), np.arange(1, len(history) + 1)
    final = np.asarray(history[field], np.float64)
    # a logarithmic scale cannot show the end itself
    lines = [(f"{label(field)} below its end", np.maximum(np.nanmax(final) - final, 0.01))]
    if residuals(history):
        all_of_them = [np.asarray(history[name], np.float64) for name in residuals(history)]
        lines.append(("largest KKT residual", np.max(all_of_them, axis=0)))
    charts = []
    for text, values in lines:
        kept = np.isfinite(values) & (values > 0)
        chart = _figure(220, y_axis_type="log", name=f"{text} chart")
        chart.line(numbers[kept], values[kept], line_color=_BLUE, line_width=2)
        chart.xaxis.axis_label, chart.yaxis.axis_label = "iteration", text
        charts.append(chart)
    return charts


def select_k_charts(result: Any) -> list[Any]:
    """Return held-out scores, stability, scores of the fitted counts and choices, by number."""
    numbers = np.asarray(result.n_components)
    of_errors = (result.score - result.score_error, result.score + result.score_error)
    least = result.least_of_splits
    panels = [
        ("held-out log-probability of a count", result.score, of_errors),
        ("smallest similarity of matched topics", result.least_stability,
         (least.min(axis=1), least.max(axis=1))),
        ("log-probability of a fitted count", result.in_sample, None),
        (f"of {result.n_splits} splits, those that choose it", result.n_chosen, None),
    ]  # fmt: skip
    charts = []
    for text, values, ends in panels[: 4 if result.n_splits > 1 else 3]:
        chart = _figure(220, name=f"{text} chart")
        chart.line(numbers, values, line_color=_BLUE, line_width=2)
        chart.scatter(numbers, values, color=_BLUE, size=6)
        if ends is not None:
            chart.segment(numbers, ends[0], numbers, ends[1], line_color=_BLUE)
        if result.best is not None:
            chart.vspan([result.best], line_color=_RED)
        chart.xaxis.axis_label, chart.yaxis.axis_label = "number of topics", text
        chart.xaxis.ticker.min_interval = 1
        charts.append(chart)
    return charts


def stability_charts(result: Any) -> list[Any]:
    """Return how far each start ends below the best one, sorted, with a line for the fit."""
    text = "below the best start"
    chart = _figure(220, name=f"{text} chart")
    numbers, gaps = np.arange(1, len(result.gaps) + 1), np.sort(result.gaps)
    chart.line(numbers, gaps, line_color=_BLUE, line_width=2)
    chart.scatter(numbers, gaps, color=_BLUE, size=6)
    if result.fit_gap is not None:
        chart.hspan([result.fit_gap], line_color=_RED, legend_label="this fit")
    chart.xaxis.axis_label, chart.yaxis.axis_label = "fits", text
    chart.xaxis.ticker.min_interval = 1
    return [chart]


def interval_chart(
    names: Sequence[str], groups: Sequence[str], values: Array, lower: Array, upper: Array,
    text: str, neutral: float | None = None,
) -> Any:  # fmt: skip
    """Return intervals (T, R) of topics in groups, a band for each topic with a line a group."""
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.models.annotations import BoxAnnotation

    rows, columns = np.indices(values.shape)
    band = _LINE * len(groups) + _BETWEEN_BANDS
    shift = (columns - (len(groups) - 1) / 2) * _LINE / band
    colors = colors_of_groups(len(groups))
    source = ColumnDataSource(
        {
            "y": (rows + shift).ravel(), "value": values.ravel(),
            "lower": lower.ravel(), "upper": upper.ravel(),
            "topic": [name for name in names for _ in groups], "group": [*groups] * len(names),
            "color": colors * len(names),
        }
    )  # fmt: skip
    height = 90 + band * len(names)
    chart = _figure(height, y_range=(len(names) - 0.5, -0.5), name=f"{text} chart")
    for row in range(0, len(names), 2):
        box = BoxAnnotation(top=row - 0.5, bottom=row + 0.5, fill_color="#f0f0f0", level="image")
        box.line_color = None
        chart.add_layout(box)
    chart.segment("lower", "y", "upper", "y", line_color="color", line_width=2, source=source)
    dots = chart.scatter("value", "y", color="color", size=7, source=source)
    tip = "@value{0.000} (@lower{0.000} to @upper{0.000})"
    tooltips = [("", "@topic, @group"), (text, tip)]
    chart.add_tools(HoverTool(renderers=[dots], tooltips=tooltips))
    if neutral is not None:
        chart.vspan([neutral], line_color=_GREY)
    _label(chart.yaxis, names)
    chart.ygrid.visible = False
    chart.xaxis.axis_label = text
    return chart


def shares_chart(
    batches: Sequence[str], names: Sequence[str], shares: Array, colors: Sequence[str]
) -> Any:
    """Return stacked bars of the mean proportions (B, K) of topics in batches."""
    from bokeh.models import ColumnDataSource, HoverTool

    right = np.cumsum(shares, axis=1)
    rows, columns = (places.ravel().tolist() for places in np.indices(shares.shape))
    source = ColumnDataSource(
        {
            "y": rows, "left": (right - shares).ravel(), "right": right.ravel(),
            "share": shares.ravel(), "color": [colors[k] for k in columns],
            "topic": [names[k] for k in columns], "batch": [batches[b] for b in rows],
        }
    )  # fmt: skip
    chart = _figure(
        90 + 2 * _LINE * len(batches), y_range=(len(batches) - 0.5, -0.5), x_range=(0, 1),
        name="batches chart",
    )  # fmt: skip
    chart.hbar("y", left="left", right="right", height=0.8, color="color", source=source)
    tooltips = [("", "@topic, @batch"), ("mean proportion", "@share{0.0%}")]
    chart.add_tools(HoverTool(tooltips=tooltips))
    _label(chart.yaxis, batches)
    chart.grid.visible = False
    chart.xaxis.axis_label = "mean proportion"
    return chart


def colors_of_groups(n_groups: int) -> list[str]:
    """Return colours of groups in charts of intervals."""
    return [PALETTE[g % len(PALETTE)] for g in range(n_groups)]


def _label(axis: Any, names: Sequence[str]) -> None:
    """Write names at the positions 0, 1, ... of an axis."""
    from bokeh.models import FixedTicker, PlainText

    axis.ticker = FixedTicker(ticks=list(range(len(names))))
    # as plain text: Bokeh would typeset what is between two $$
    axis.major_label_overrides = {
        i: PlainText(text=shortened(name, _LONGEST)) for i, name in enumerate(names)
    }
    axis.major_label_text_font_size = "11px"
