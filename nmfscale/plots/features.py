"""top_features and top_features_plot: the leading features of every topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .canvas import (
    axes_or_new,
    check_arguments,
    matched_by_name,
    names_and_colors,
    nonnegative_matrix,
    rows_to_one,
    shortened,
    size_in_inches,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Number of panels in a row, if the plot creates the figure.
_ACROSS = 5


def leading_features(
    components: Any, feature_names: Any, n_top: int, distinctive: bool
) -> tuple[np.ndarray, list[str], list[np.ndarray]]:
    """Return frequencies, names, and the indices of each topic's leading features, best first."""
    matrix = nonnegative_matrix(
        components, "components", "topics x features", "the components_ of a fitted model"
    )
    frequencies = rows_to_one(matrix)
    n_topics, n_features = frequencies.shape
    columns = getattr(components, "columns", None)
    if feature_names is None and type(columns).__name__ != "RangeIndex":
        feature_names = columns
    feature_names = matched_by_name(feature_names, columns, "feature_names", "components")
    if feature_names is None:
        names = [f"feature {feature}" for feature in range(n_features)]
    elif len(feature_names) == n_features:
        names = [str(name) for name in feature_names]
    else:
        turned = ": pass its transpose, topics x features" * (len(feature_names) == n_topics)
        raise ValueError(
            f"feature_names has {len(feature_names)} entries, and components, of shape "
            f"{matrix.shape}, have {n_features} features{turned}."
        )
    scores = frequencies
    if distinctive and n_topics > 1:
        # Poisson divergence from the largest other frequency g, f log(f/g) - (f - g), if f > g;
        # the lower bound of g keeps features of a single topic comparable with others.
        rivals = np.maximum(_largest_elsewhere(frequencies), 0.01 / n_features)
        ratio = np.maximum(frequencies / rivals, 1)
        scores = rivals * (ratio * np.log(ratio) - ratio + 1)
    leading = [_best(scores[k], frequencies[k], n_top) for k in range(n_topics)]
    return frequencies, names, leading


def _best(scores: np.ndarray, frequencies: np.ndarray, n_top: int) -> np.ndarray:
    """Return the indices of a topic's features with the highest scores, best first.

    Features with a score of 0 follow, ordered by frequency.
    """
    some = np.flatnonzero(frequencies)
    if len(some) > n_top:  # sorting a million features would take long
        least = np.partition(scores[some], -n_top)[-n_top]
        some = some[scores[some] >= least]
    return some[np.lexsort((-frequencies[some], -scores[some]))[:n_top]]


def _largest_elsewhere(frequencies: np.ndarray) -> np.ndarray:
    """Return, for each topic and feature, the largest frequency in any other topic."""
    first, second = -np.partition(-frequencies, 1, axis=0)[:2]
    holder = frequencies.argmax(axis=0) == np.arange(len(frequencies))[:, None]
    return np.where(holder, second, first)


def top_features(
    components: Any,
    feature_names: Any = None,
    *,
    n_top: int = 10,
    distinctive: bool = True,
) -> list[list[str]]:
    """Return the names of the leading features of each topic.

    Parameters
    ----------
    components : array-like of shape (n_topics, n_features)
        Non-negative components; every row is divided by its sum.
    feature_names : array-like of str, default=None
        Names of the features; by default the columns of a DataFrame, or "feature 0",
        "feature 1", ...
    n_top : int, default=10
        Number of features for each topic.
    distinctive : bool, default=True
        True ranks features by the Poisson divergence ``f log(f / g) - f + g`` of their frequency f
        in the topic from the largest frequency g in another topic.  False ranks them by frequency.

    Returns
    -------
    list of list of str
        One list for each topic, best first; shorter than `n_top` if a topic has fewer features.

    Raises
    ------
    ValueError
        If the components are not a finite non-negative matrix, the names do not match them, or
        another argument is of the wrong kind.

    Examples
    --------
    >>> from nmfscale.plots import top_features
    >>> components = [[5, 4, 1, 0], [5, 0, 1, 4]]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2)
    [['gene', 'the'], ['word', 'the']]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2, distinctive=False)
    [['the', 'gene'], ['the', 'word']]
    """
    check_arguments("top_features", **locals())
    _, names, leading = leading_features(components, feature_names, n_top, distinctive)
    return [[names[feature] for feature in order] for order in leading]


def top_features_plot(
    components: Any,
    feature_names: Any = None,
    *,
    n_top: int = 10,
    distinctive: bool = True,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the leading features of each topic as panels of horizontal bars.

    A bar is the feature's share of the topic (also written beside it, in percent); a grey mark is
    its largest share in another topic.  Each panel has its own scale, and orders its features by
    share, even if they were selected for being distinctive.

    Parameters
    ----------
    components, feature_names, n_top, distinctive
        As in :func:`top_features`: the features, how many to draw, and how to select them.
    topic_names : sequence of str, default=None
        Titles of the panels; "topic 0", "topic 1", ... by default.
    colors : sequence of colors, default=None
        One for each topic; :func:`topic_colors` by default.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure with five panels in a row.

    Returns
    -------
    matplotlib.axes.Axes
        All panels share these Axes.

    Raises
    ------
    ValueError
        As :func:`top_features`.

    Examples
    --------
    >>> from nmfscale.plots import top_features_plot
    >>> ax = top_features_plot([[5, 4, 1, 0], [5, 0, 1, 4]], ["the", "gene", "of", "word"])
    """
    check_arguments("top_features_plot", **locals())
    frequencies, names, leading = leading_features(components, feature_names, n_top, distinctive)
    n_topics = len(frequencies)
    titles, fills = names_and_colors(topic_names, colors, n_topics)
    elsewhere = _largest_elsewhere(frequencies) if n_topics > 1 else None

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
