"""The charts of a report, drawn by Bokeh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plots import interactive
from ..plots.canvas import PALETTE
from ..plots.progress import label, objective, residuals

Array = NDArray[Any]
_TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
_BLUE, _RED, _GREY = PALETTE[0], PALETTE[5], "#999999"


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
    source = ColumnDataSource(
        {
            "x": places[:, 0], "y": places[:, 1], "size": 12 + 90 * np.sqrt(areas),
            "name": list(names), "color": list(colors), "words": list(words),
            "share": [f"{area:.1%}" for area in areas],
        },
    )  # fmt: skip
    chart = _figure(340, match_aspect=True, name="map chart")
    circles = chart.scatter("x", "y", size="size", color="color", fill_alpha=0.75, source=source)
    chart.text(
        "x", "y", "name", source=source, text_font_size="12px", text_align="center",
        text_baseline="middle", background_fill_color="white", background_fill_alpha=0.75,
    )  # fmt: skip
    tooltips = [("", "@name, @share of all counts"), ("", "@words")]
    chart.add_tools(HoverTool(renderers=[circles], tooltips=tooltips))
    extent = float(np.abs(places).max()) * 1.35 or 1.0
    chart.x_range.start, chart.x_range.end = -extent, extent
    chart.y_range.start, chart.y_range.end = -extent, extent
    chart.axis.visible = False
    return chart


def similarity_chart(match: Any) -> Any:
    """Return a heat map of the similarities of the topics of two fits, matched topics first."""
    from bokeh.models import ColumnDataSource, HoverTool, LinearColorMapper
    from bokeh.palettes import Blues256

    of_a, of_b = (
        [*pairs, *np.setdiff1d(np.arange(size), pairs)]
        for pairs, size in zip(match.pairs.T, match.similarities.shape, strict=True)
    )
    a, b = [match.names_a[k] for k in of_a], [match.names_b[k] for k in of_b]
    values = match.similarities[np.ix_(of_a, of_b)]
    source = ColumnDataSource(
        {
            "a": [name for name in a for _ in b], "b": b * len(a), "value": values.ravel(),
        }
    )  # fmt: skip
    chart = _figure(120 + 26 * len(a), x_range=b, y_range=a[::-1], name="similarity chart")
    colors = LinearColorMapper(palette=Blues256[::-1], low=0, high=1)
    chart.rect(
        "b", "a", width=1, height=1, line_color="white", source=source,
        fill_color={"field": "value", "transform": colors},
    )  # fmt: skip
    tooltips = [("this fit", "@a"), ("the other fit", "@b"), ("similarity", "@value{0.00}")]
    chart.add_tools(HoverTool(tooltips=tooltips))
    chart.grid.visible = False
    chart.xaxis.major_label_orientation = 0.8
    chart.xaxis.axis_label, chart.yaxis.axis_label = "the other fit", "this fit"
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


def select_k_charts(found: Any) -> list[Any]:
    """Return held-out scores, stability and scores of the fitted counts by number of topics."""
    numbers = np.asarray(found.n_components)
    panels = [
        ("held-out log-probability of a count", found.score, found.score_error),
        ("smallest similarity of matched topics", found.least_stability, None),
        ("log-probability of a fitted count", found.in_sample, None),
    ]
    charts = []
    for text, values, errors in panels:
        chart = _figure(220, name=f"{text} chart")
        chart.line(numbers, values, line_color=_BLUE, line_width=2)
        chart.scatter(numbers, values, color=_BLUE, size=6)
        if errors is not None:
            chart.segment(numbers, values - errors, numbers, values + errors, line_color=_BLUE)
        if found.best is not None:
            chart.vspan([found.best], line_color=_RED)
        chart.xaxis.axis_label, chart.yaxis.axis_label = "number of topics", text
        chart.xaxis.ticker.min_interval = 1
        charts.append(chart)
    return charts


def interval_chart(
    names: Sequence[str], groups: Sequence[str], values: Array, lower: Array, upper: Array,
    text: str, neutral: float | None = None,
) -> Any:  # fmt: skip
    """Return intervals (T, R) of topics in groups, a row for each topic."""
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.transform import factor_mark

    rows, columns = np.indices(values.shape)
    # the groups of a topic are side by side within its row
    shift = (columns - (len(groups) - 1) / 2) * (0.8 / len(groups))
    colors = [PALETTE[g % len(PALETTE)] for g in range(len(groups))]
    marks = ("circle", "square", "triangle", "diamond", "inverted_triangle", "star")
    source = ColumnDataSource(
        {
            "y": (len(names) - 1 - rows - shift).ravel(), "value": values.ravel(),
            "lower": lower.ravel(), "upper": upper.ravel(),
            "topic": [name for name in names for _ in groups], "group": [*groups] * len(names),
            "color": colors * len(names),
        }
    )  # fmt: skip
    height = 110 + max(18, 9 * len(groups)) * len(names)
    chart = _figure(height, y_range=(-0.6, len(names) - 0.4), name=f"{text} chart")
    chart.segment("lower", "y", "upper", "y", line_color="color", line_width=2, source=source)
    mark = factor_mark("group", [marks[g % len(marks)] for g in range(len(groups))], list(groups))
    dots = chart.scatter(
        "value", "y", marker=mark, color="color", size=8, source=source, legend_group="group"
    )
    tip = "@value{0.000} (@lower{0.000} to @upper{0.000})"
    tooltips = [("", "@topic, @group"), (text, tip)]
    chart.add_tools(HoverTool(renderers=[dots], tooltips=tooltips))
    if neutral is not None:
        chart.vspan([neutral], line_color=_GREY)
    ticks = list(range(len(names)))
    chart.yaxis.ticker = ticks
    chart.yaxis.major_label_overrides = {len(names) - 1 - i: names[i] for i in ticks}
    chart.xaxis.axis_label = text
    chart.legend.location, chart.legend.orientation = "top_left", "horizontal"
    chart.add_layout(chart.legend[0], "above")
    return chart
