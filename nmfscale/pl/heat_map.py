"""Heat maps of numbers between 0 and 1, with names of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..models.topics.topic_labels import shortened
from .canvas import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Cells show numbers if a map has at most this many rows and columns.
_MOST_WRITTEN = 12


def heat_map(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str, ax: Axes | None
) -> Axes:
    """Draw a matrix on `ax` or new Axes, with a color bar, and with numbers in the cells of few."""
    n_rows, n_columns = values.shape
    few = max(values.shape) <= _MOST_WRITTEN
    cell = 0.45 if few else 0.22
    ax = axes_or_new(ax, 2.2 + cell * n_columns, 1.4 + cell * n_rows)
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1)
    for axis, names in ((ax.yaxis, rows), (ax.xaxis, columns)):
        shown = [shortened(name, 24) for name in names]
        axis.set_ticks(range(len(shown)), shown, size=8, parse_math=False)
    ax.tick_params(length=0)
    ax.tick_params(axis="x", rotation=90)
    if few:
        _write(ax, values)
    add_scale(ax, label, 0.3 / max(n_columns, 6))
    return ax


def add_scale(ax: Axes, label: str, width: float) -> None:
    """Draw the color bar of a map to its right; the width is a share of that of the map."""
    scale = ax.inset_axes((1.03, 0, width, 1))
    ax.figure.colorbar(ax.images[-1], cax=scale, label=label)


def _write(ax: Axes, values: np.ndarray) -> None:
    """Write each number into its cell, in dark or light colour for contrast."""
    for (row, column), value in np.ndenumerate(values):
        ax.text(
            column, row, f"{value:.2f}", ha="center", va="center", size=7,
            color="white" if value > 0.6 else "0.25",
        )  # fmt: skip
