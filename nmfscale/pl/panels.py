"""Panels of plots, one for each topic or group: their places, and the arrays to draw in them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..models.topics.topic_labels import topic_labels
from .canvas import names_of_topics, size_in_inches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In inches: the space between panels, above and below each panel, for the caption, and the largest
# width of a figure that the plot creates.
_BETWEEN, _TITLE, _TICKS, _CAPTION, _WIDEST = 0.25, 0.36, 0.26, 0.5, 10.0


class Grid(NamedTuple):
    """Panels of at least this size in inches, each with space for labels to its left."""

    n_panels: int
    width: float
    height: float
    labels: float = 0.0

    def _shape(self, room: float) -> tuple[int, int]:
        """Return the numbers of rows and columns of panels in this width in inches."""
        n_columns = min(self.n_panels, max(1, round(room / self._wide)))
        return -(-self.n_panels // n_columns), n_columns

    @property
    def _wide(self) -> float:
        return self.labels + self.width + _BETWEEN

    @property
    def _high(self) -> float:
        return _TICKS + self.height + _TITLE

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches of a figure for all panels."""
        n_rows, n_columns = self._shape(_WIDEST)
        return n_columns * self._wide + 0.3, n_rows * self._high + _CAPTION

    def draw(self, ax: Axes, caption: str) -> list[Axes]:
        """Divide Axes into panels, and write a caption below them."""
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        figure: Any = ax.figure.figure  # the whole figure, if the Axes are in a subfigure
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)  # determines the size of the Axes
        across, down = size_in_inches(ax)
        # an inch holds about fourteen letters of this size
        ax.set_xlabel(fill(caption, max(20, int(14 * across))), size=8, parse_math=False)
        n_rows, n_columns = self._shape(across)
        wide, high = across / n_columns, down / n_rows
        width = max(0.3 * wide, wide - self.labels - _BETWEEN)
        height = max(0.3 * high, high - _TICKS - _TITLE)
        panels = []
        for i in range(self.n_panels):
            row, column = divmod(i, n_columns)
            left = (column + 1) * wide - _BETWEEN / 2 - width
            low = (n_rows - 1 - row) * high + _TICKS
            place = left / across, low / down, width / across, height / down
            panel = ax.inset_axes(place)
            panel.locator_params(axis="x", nbins=3)
            panel.tick_params(labelsize=7, length=2)
            panel.spines[["top", "right", "left"]].set_visible(False)
            panels.append(panel)
        return panels


class Table(NamedTuple):
    """Arrays (n_panels, n_rows) to draw, with names of panels and rows, and labels for them."""

    estimate: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    panels: list[Any]
    rows: list[Any]
    panel_labels: list[str]
    row_labels: list[str]

    def of(self, chosen: list[int]) -> Table:
        """Return a table with some of the panels."""
        arrays = (self.estimate[chosen], self.lower[chosen], self.upper[chosen])
        names, labels = ([texts[i] for i in chosen] for texts in (self.panels, self.panel_labels))
        return Table(*arrays, names, self.rows, labels, self.row_labels)

    @property
    def turned(self) -> Table:
        """The same table with rows as panels."""
        arrays = (self.estimate.T, self.lower.T, self.upper.T)
        return Table(*arrays, self.rows, self.panels, self.row_labels, self.panel_labels)


def table_of(
    result: Any, kind: str, topic_names: Sequence[Any] | None, group_names: Sequence[Any] | None
) -> Table:
    """Return the table of all panels, before a selection."""
    arrays, topics, groups = _arrays_of(result)
    T, R = arrays[0].shape
    named = [
        _names(topic_names if topic_names is not None else topics, names_of_topics(T), "topic"),
        _names(
            group_names if group_names is not None else groups,
            [f"group {r}" for r in range(R)],
            "group",
        ),
    ]
    words = getattr(getattr(result, "origin", None), "topic_words", None)
    table = Table(
        arrays[0], arrays[1], arrays[2], named[0], named[1], topic_labels(named[0], words),
        [str(name) for name in named[1]],
    )  # fmt: skip
    return table if kind == "RwT" else table.turned


def _arrays_of(result: Any) -> tuple[list[np.ndarray], Any, Any]:
    """Return estimates and limits of intervals (n_components, n_groups), and names or None."""
    source: Any = result
    groups: Any = getattr(result, "groups", getattr(result, "terms", None))
    if hasattr(result, "group_means"):
        source = result.group_means
        if source is None:
            raise ValueError("result has no means of groups: pass groups= to bootstrap_fit.")
    attributes = ("weights", "means", "differences", "coefficients", "estimate")
    middle = next((name for name in attributes if hasattr(source, name)), None)
    if middle is None or not (hasattr(source, "lower") and hasattr(source, "upper")):
        raise ValueError(
            f"result is a {type(result).__name__}: pass the result of bootstrap_weights, "
            "group_effects or its differences, regress_proportions or bootstrap_fit, or an object "
            "with arrays estimate, lower and upper."
        )
    arrays = [np.asarray(getattr(source, name), float) for name in (middle, "lower", "upper")]
    if middle == "coefficients" and "Intercept" in groups and len(groups) > 1:
        # the intercept is not a difference, and its scale would hide the other terms
        kept = [j for j, name in enumerate(groups) if name != "Intercept"]
        arrays, groups = [matrix[:, kept] for matrix in arrays], [groups[j] for j in kept]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 2 or not arrays[0].size:
        raise ValueError(
            f"{middle}, lower and upper have shapes {', '.join(str(a.shape) for a in arrays)}; "
            "all need the shape (topics, groups)."
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(f"{middle}, lower and upper must be finite: leave out unknown values.")
    topics = next((t for n in ("topic_names", "topics") if (t := getattr(result, n, None))), None)
    return arrays, topics, groups


def _names(names: Any, default: list[str], what: str) -> list[Any]:
    if names is None:
        return list(default)
    if len(names) != len(default):
        raise ValueError(f"{what}_names has {len(names)} entries for {len(default)} {what}s.")
    # replace topics' numbers, which are not names, by the default names
    return [default[i] if name == i and what == "topic" else name for i, name in enumerate(names)]


def chosen_panels(
    table: Table, panels: Sequence[Any] | None, most: int, argument: str = "panels"
) -> list[int]:
    """Return the panels with these names; by default those where two intervals are farthest apart.

    By default there are at most `most`.
    """
    if panels is not None:
        number = {label: i for i, label in enumerate(table.panel_labels)}
        number |= {str(name): i for i, name in enumerate(table.panels)}
        number |= {str(i): i for i, name in enumerate(table.panels) if name == f"topic {i}"}
        unknown = [str(name) for name in panels if str(name) not in number]
        if unknown or not len(panels):
            choices = ", ".join(map(str, table.panels[:6])) + (", ..." * (len(table.panels) > 6))
            raise ValueError(
                f"{argument} has {', '.join(unknown) or 'no names'}: choose from {choices}."
            )
        return [number[str(name)] for name in panels]
    apart = table.lower.max(axis=1) - table.upper.min(axis=1)
    return sorted(np.argsort(-apart, kind="stable")[:most].tolist())
