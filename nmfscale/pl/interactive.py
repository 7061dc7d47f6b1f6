"""Plots of many features by Bokeh, whose HTML files need no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .canvas import PALETTE

Array = NDArray[Any]
_PLAIN, _FOUND = "#bfbfbf", PALETTE[5]
_WIDTH, _HEIGHT, _POINT = 720, 560, 5
# Width and height between the axes in pixels, and those of a letter, both about.
_INSIDE, _LETTER = (630, 490), (7, 13)
_ROOM = 0.25


def need_bokeh(what: str = "interactive plots", extra: str = "interactive") -> None:
    """Raise an error that says how to install Bokeh, which `what` needs, if it is missing."""
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{what} need the package bokeh: pip install 'nmfscale[{extra}]', or pip install bokeh"
        ) from error


def feature_chart(
    result: Any, k: int, points: tuple[Array, Array], level: float, n_labels: int,
    texts: dict[str, str], *, x_log: bool = False, y_log: bool = False,
) -> Any:  # fmt: skip
    """Return a chart of features as points, whose numbers the pointer shows.

    `texts` are the title and the labels of both axes. Features without a place are left out.
    """
    from bokeh.models import HoverTool
    from bokeh.plotting import ColumnDataSource, figure

    x, y = points
    chart: Any = figure(
        width=_WIDTH, height=_HEIGHT, tools="pan,box_zoom,wheel_zoom,reset,save",
        title=texts["title"], x_axis_label=texts["x"], y_axis_label=texts["y"],
        x_axis_type="log" if x_log else "linear", y_axis_type="log" if y_log else "linear",
    )  # fmt: skip
    chart.toolbar.logo = None
    numbers = {
        "x": x, "y": y, "lfc": result.lfc[k], "z": result.z[k], "mean": result.base_mean
    }  # fmt: skip
    if result.qvalue is not None:
        numbers["q"] = result.qvalue[k]
    columns: dict[str, Any] = {name: values.astype(np.float32) for name, values in numbers.items()}
    columns["name"] = np.array([str(name) for name in result.feature_labels])
    finite, significant = np.isfinite(x) & np.isfinite(y), result.significant(k, level)
    drawn: list[Any] = []
    others = "no p-values" if result.qvalue is None else f"q > {level:g}"
    for these, color, name in (
        (finite & ~significant, _PLAIN, others),
        (finite & significant, _FOUND, f"q <= {level:g}"),
    ):
        source = ColumnDataSource({key: values[these] for key, values in columns.items()})
        drawn.append(
            chart.scatter(
                "x", "y", source=source, size=_POINT, color=color, line_color=None,
                legend_label=name,
            )
        )  # fmt: skip
    leading = [j for j in result.order(k)[:n_labels].tolist() if finite[j]]
    across, up = (
        _pixels(values, finite, log, size)
        for values, log, size in zip(points, (x_log, y_log), _INSIDE, strict=True)
    )
    leading = _without_overlap(leading, across, up, columns["name"])
    chart.x_range.range_padding = _ROOM  # for the label of the last point
    chart.text(
        x[leading], y[leading], columns["name"][leading], x_offset=4, y_offset=-2,
        text_font_size="11px",
    )  # fmt: skip
    tips = [("feature", "@name"), ("log2-fold change", "@lfc{0.00}"), ("z", "@z{0.0}"),
            ("q", "@q{0.0e+0}"), ("mean count", "@mean{0.000a}")]  # fmt: skip
    tips = [(label, field) for label, field in tips if "q" in numbers or label != "q"]
    chart.add_tools(HoverTool(renderers=drawn, tooltips=tips))
    chart.legend.click_policy, chart.legend.location = "hide", "top_left"
    return chart


def _pixels(values: Array, finite: Array, log: bool, size: int) -> Array:
    """Return about where values are on an axis of this size in pixels."""
    places = np.log(np.where(finite, values, 1.0)) if log else values
    low, high = places[finite].min(), places[finite].max()
    pixels: Array = (places - low) * (size / max(high - low, 1e-300))
    return pixels


def _without_overlap(leading: list[int], x: Array, y: Array, names: Array) -> list[int]:
    """Return the features whose labels overlap no label of an earlier one."""
    kept: list[int] = []
    for j in leading:
        beside = [i for i in kept if abs(y[i] - y[j]) < _LETTER[1]]
        first = [(i, j) if x[i] <= x[j] else (j, i) for i in beside]
        if all(x[left] + _LETTER[0] * len(names[left]) < x[right] for left, right in first):
            kept.append(j)
    return kept


def finished_chart(chart: Any, show: bool | None, save: str | os.PathLike[str] | None) -> Any:
    """Save a chart as HTML and show it in a browser, as asked for; return it unless it is shown."""
    if save is not None:
        from bokeh.embed import file_html
        from bokeh.resources import INLINE

        page = file_html(chart, INLINE, title=chart.title.text)
        Path(save).write_text(page, encoding="utf-8", errors="backslashreplace")
    if show:
        from bokeh.io import show as show_chart

        show_chart(chart)
        return None
    return chart
