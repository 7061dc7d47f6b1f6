"""scree_plot: distances of anchors in the order of their choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..annotated.scheme import model_in
from ..counts.argument_types import AnnDataLike
from ..models.pipelines import FittedModel, model_of
from ..models.topics.topic_labels import shortened
from .canvas import PALETTE, FigureOptions, axes_or_new, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Width in inches of a point, and the largest number of points that are labelled.
_POINT, _MOST_LABELS = 0.22, 40


@plot
def scree_plot(
    model: AnnDataLike | FittedModel,
    *,
    log: bool = False,
    key: str = KEY,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the distances of anchors in the order of their choice: the diagonal of R.

    Each distance is that of an anchor from all combinations of earlier anchors. Where the curve
    becomes flat, further topics add little.

    Parameters
    ----------
    model : AnchorNMF or AnnData
        Fitted model, or an object with its fit.
    log : bool, default=False
        Whether the vertical axis is logarithmic; otherwise it begins at 0.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. Anchors have their names, unless there are more than 40.

    Raises
    ------
    ValueError
        If the model has no distances of anchors, or an argument has a wrong type.

    Examples
    --------
    >>> from nmfscale import AnchorNMF
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> from nmfscale.pl import scree_plot
    >>> X, _ = simulate_topic_counts(200, 50, 4, random_state=0)
    >>> model = AnchorNMF(n_components=8).fit(X)
    >>> ax = scree_plot(model)
    >>> bool((ax.lines[0].get_ydata() == model.distances_).all())
    True
    """
    model = model_of(model_in(model, key))
    distances = getattr(model, "distances_", None)
    if distances is None:
        raise ValueError(
            f"model is a {type(model).__name__} without distances_: pass a fitted AnchorNMF."
        )
    heights, numbers = np.asarray(distances, float), np.arange(1, len(distances) + 1)
    ax = axes_or_new(ax, float(np.clip(1.2 + _POINT * len(heights), 4.0, 10.0)), 3.2)
    ax.plot(numbers, heights, color=PALETTE[0], marker="o", markersize=3.5, linewidth=1.2)
    names = getattr(model, "anchor_names_", None)
    if names is not None and len(heights) <= _MOST_LABELS:
        labels = [shortened(str(name), 18) for name in names]
        ax.set_xticks(numbers, labels, rotation=90, size=7, parse_math=False)
    else:
        ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("anchors in the order of their choice", size=8)
    ax.set_ylabel("distance from earlier anchors", size=8)
    ax.tick_params(labelsize=7)
    if log:
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
