"""top_features_plot: the leading features of every topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.keys import KEY
from ..annotated.places import symbols_of
from ..annotated.scheme import model_in
from ..counts.argument_types import AnnDataLike, ResultLike
from ..methods.topics.feature_scores import largest_elsewhere
from ..methods.topics.score_names import DEFAULT_SCORE, Score
from ..models.leading_features import leading_features
from ..models.pipelines import FittedModel, model_of
from ..models.topics.topic_labels import shortened
from .canvas import (
    FigureOptions,
    axes_or_new,
    names_and_colors,
    plot,
    size_in_inches,
)
from .objects import colors_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Number of panels in a row, if the plot creates the figure.
_ACROSS = 5


@plot
def top_features_plot(
    components: AnnDataLike | FittedModel | ArrayLike,
    feature_names: ArrayLike | None = None,
    *,
    n_top: int = 10,
    score: Score | ResultLike | ArrayLike = DEFAULT_SCORE,
    weight: float | None = None,
    feature_totals: ArrayLike | None = None,
    min_count: float = 0,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    gene_symbols: str | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the leading features of each topic as panels of horizontal bars.

    A bar is the feature's share of the topic (also written beside it, in percent); a grey mark is
    its largest share in another topic.  Each panel has its own scale, and orders its features by
    share, even if they were selected for being distinctive.

    Parameters
    ----------
    components, feature_names, n_top, score, weight, feature_totals, min_count, gene_symbols, key
        As in :func:`nmfscale.get.top_features`: the features, how many to draw, and how to select
        them.
    topic_names : sequence of str, default=None
        Titles of the panels; by default those of the model, or "topic 0", "topic 1", ...
    colors : sequence of colors, default=None
        One for each topic; :func:`topic_colors` by default.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure with five panels in a row.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. All panels share the Axes.

    Raises
    ------
    ValueError
        As in :func:`nmfscale.get.top_features`.

    Examples
    --------
    >>> from nmfscale.pl import top_features_plot
    >>> ax = top_features_plot([[5, 4, 1, 0], [5, 0, 1, 4]], ["the", "gene", "of", "word"])
    """
    if gene_symbols is not None:
        feature_names = symbols_of(components, gene_symbols)
    colors = colors_of(components, key, colors)
    components = model_in(components, key)
    frequencies, names, leading = leading_features(
        components, feature_names, n_top, score, weight, feature_totals, min_count
    )
    if topic_names is None:
        topic_names = getattr(model_of(components), "topic_names_", None)
    n_topics = len(frequencies)
    titles, fills = names_and_colors(topic_names, colors, n_topics)
    elsewhere = largest_elsewhere(frequencies) if n_topics > 1 else None

    n_rows = -(-n_topics // (_ACROSS if ax is None else max(1, int(size_in_inches(ax)[0] // 1.8))))
    n_columns, height = -(-n_topics // n_rows), _height(frequencies, n_top)
    ax = axes_or_new(ax, *size_of_panels(frequencies, n_top))
    # An inch holds about eleven bold letters: long titles use the whole panel.
    most = max(5, int(11 * size_in_inches(ax)[0] / n_columns))
    indent = 0.5 if 2 * max(map(len, titles)) <= most else 0.03
    for topic, order in enumerate(leading):
        row, column = divmod(topic, n_columns)
        order = order[np.argsort(-frequencies[topic, order], kind="stable")]
        rivals = None if elsewhere is None else elsewhere[topic, order]
        panel = frequencies[topic, order], rivals, [names[j] for j in order]
        ax.text(
            column + indent, row * height - 0.95, shortened(titles[topic], most),
            va="center", weight="bold", parse_math=False,
        )  # fmt: skip
        if len(order):
            _bars(ax, column + 0.5, row * height + np.arange(len(order)), *panel, fills[topic])
    ax.set(xlim=(0, n_columns), ylim=(n_rows * height - 1.5, -1.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    caption = ["bar: share of the topic in %"]
    if elsewhere is not None:
        caption.append("mark: largest share in another topic")
    # On one line the captions are almost four inches long.
    ax.set_xlabel(("    " if size_in_inches(ax)[0] > 3.5 else "\n").join(caption), size=8)
    return ax


def size_of_panels(components: np.ndarray, n_top: int) -> tuple[float, float]:
    """Return width and height in inches of a figure for the panels of these components."""
    n_rows = -(-len(components) // _ACROSS)
    n_columns = -(-len(components) // n_rows)
    return 2.4 * n_columns, 0.4 + 0.165 * n_rows * _height(components, n_top)


def _height(components: np.ndarray, n_top: int) -> float:
    """Return the height of a panel in bars: of the fullest topic, plus title and spacing."""
    return min(n_top, np.count_nonzero(components, axis=1).max()) + 2.2


def _bars(
    ax: Axes, left: float, y: np.ndarray, shares: Any, rivals: Any, names: list[str], color: Any
) -> None:
    """Draw one panel: bars up to a third of its width, names to the left, percentages right."""
    longest = shares if rivals is None else np.maximum(shares, rivals)
    scale = 0.33 / longest.max()
    ax.barh(y, scale * shares, left=left, height=0.78, color=color)
    if rivals is not None:
        for shade, width in (("white", 3.0), ("0.2", 1.4)):  # readable on dark bars too
            ax.vlines(left + scale * rivals, y - 0.39, y + 0.39, color=shade, linewidth=width)
    for height, name, share, end in zip(y, names, shares, scale * longest, strict=True):
        percent = f"{100 * share:.1f}" if share >= 0.01 else f"{100 * share:#.2g}"
        ax.text(
            left - 0.015, height, shortened(name, 18),
            ha="right", va="center", size=7.5, parse_math=False,
        )  # fmt: skip
        ax.text(left + end + 0.015, height, percent, va="center", size=6, color="0.3")
