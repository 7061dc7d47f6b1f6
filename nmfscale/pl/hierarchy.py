"""hierarchy_plot: topics of topics as a dendrogram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..counts.argument_types import ResultLike
from ..counts.names import shown
from ..models.topics.topic_labels import shortened
from .canvas import FigureOptions, axes_or_new, plot, topic_colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches of a topic; letters of a label, and of the words of a join; topics up to which joins have
# words.
_TOPIC, _LETTERS, _WORDS, _MOST = 0.24, 32, 26, 60


@plot
def hierarchy_plot(
    hierarchy: ResultLike,
    n_groups: int | None = None,
    *,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw topics of topics as a tree.

    In the tree of one fit, joins are at the mean similarity of their topics. In the tree of several
    fits, each fit is a column; areas of topics are their shares in the counts, and lines are darker
    the more similar a topic is to its parent.

    Parameters
    ----------
    hierarchy : TopicHierarchy or TopicLevels
        Result of :func:`nmfscale.topic_hierarchy`.
    n_groups : int, default=None
        Draws a line that cuts the tree of one fit into this many groups.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. Joins have their leading features, unless there are more than
        60 topics.

    Raises
    ------
    ValueError
        If `hierarchy` is no such result, or `n_groups` is not from 2 to the number of topics, or is
        given for a tree of several fits.

    Examples
    --------
    >>> from nmfscale import topic_hierarchy
    >>> from nmfscale.pl import hierarchy_plot
    >>> ax = hierarchy_plot(topic_hierarchy([[8, 1, 0], [7, 2, 0], [0, 1, 9]]))
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['topic 2', 'topic 1', 'topic 0']
    """
    tree: Any = hierarchy
    if hasattr(tree, "fit_names") and hasattr(tree, "parents"):
        if n_groups is not None:
            raise ValueError(f"n_groups={n_groups}: it cuts trees of one fit only.")
        return _draw_levels(tree, ax)
    if getattr(tree, "linkage", None) is None:
        raise ValueError(
            f"hierarchy is {shown(hierarchy)}: the result of nmfscale.topic_hierarchy is needed."
        )
    return _draw_joins(tree, n_groups, ax)


def size_of_tree(tree: Any) -> tuple[float, float]:
    """Return width and height in inches of a figure for a tree."""
    width = 2.4 * len(tree.fit_names) + 0.4 if hasattr(tree, "fit_names") else 7.0
    return width, float(np.clip(0.8 + _TOPIC * (tree.heights.max() + 1), 2.0, 14.0))


def _draw_joins(tree: Any, n_groups: int | None, ax: Axes | None) -> Axes:
    """Draw the tree of one fit as a dendrogram."""
    linkage = tree.linkage
    K = len(linkage) + 1
    if n_groups is not None and not 2 <= n_groups <= K:
        raise ValueError(f"n_groups={n_groups}: a number from 2 to {K} is needed.")
    ax = axes_or_new(ax, *size_of_tree(tree))
    height, similarity = tree.heights, np.concatenate([np.ones(K), 1 - linkage[:, 2]])
    for node, children in enumerate(linkage[:, :2].astype(int), K):
        at, ends = similarity[node], similarity[children]
        low, high = height[children]
        ax.plot([ends[0], at, at, ends[1]], [low, low, high, high], color="0.35", linewidth=1.1)
        if tree.words is not None and K <= _MOST:
            ax.text(
                at, height[node], f"{shortened(tree.words[node], _WORDS)} ", size=6,
                color="0.35", ha="right", va="bottom", parse_math=False,
            )  # fmt: skip
    labels = [shortened(tree.labels[k], _LETTERS) for k in tree.order]
    ax.set_yticks(range(K), labels, size=7, parse_math=False)
    ax.yaxis.tick_right()
    if n_groups is not None:
        ends = similarity[::-1][n_groups - 2], similarity[::-1][n_groups - 1]
        ax.axvline(float(np.mean(ends)), color="tab:red", linewidth=0.8, linestyle="--")
    least = float(similarity.min())
    ax.set_xlim(least - 0.35 * (1 - least) - 0.02, 1.0)
    ax.set_ylim(-0.7, K - 0.3)
    ax.set_xlabel("mean similarity of joined topics", size=8)
    ax.tick_params(axis="x", labelsize=7)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "left", "right"]].set_visible(False)
    return ax


def _draw_levels(tree: Any, ax: Axes | None) -> Axes:
    """Draw the tree of several fits, with a column for each of them."""
    height, n_levels = tree.heights, len(tree.fit_names)
    n_places = float(height.max()) + 1
    ax = axes_or_new(ax, *size_of_tree(tree))
    least = float(tree.similarity.min())
    for node in np.flatnonzero(tree.parents >= 0).tolist():
        parent = tree.parents[node]
        ends = [tree.levels[parent], tree.levels[node]]
        shade = 0.85 - 0.7 * (tree.similarity[node] - least) / max(1 - least, 1e-9)
        ax.plot(
            ends, [height[parent], height[node]], color=str(float(shade)), linewidth=1.2, zorder=1
        )
    areas = 1200 * tree.shares / n_levels
    ax.scatter(tree.levels, height, s=areas, color=topic_colors(1)[0], linewidth=0, zorder=2)
    labels = tree.labels
    for node in range(len(labels) if len(labels) <= 2 * _MOST else 0):
        beside = 1.5 + np.sqrt(areas[node] / np.pi)
        ax.annotate(
            shortened(labels[node], _WORDS), (tree.levels[node], height[node]),
            (beside, 0), textcoords="offset points", size=6, va="center", parse_math=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=3,
        )  # fmt: skip
    sizes = np.bincount(tree.levels)
    names = [
        f"{shortened(name, 18)}\n{K} topics" for name, K in zip(tree.fit_names, sizes, strict=True)
    ]
    ax.set_xticks(range(n_levels), names, size=8, parse_math=False)
    ax.set(yticks=[], xlim=(-0.15, n_levels - 0.1), ylim=(n_places - 0.3, -0.7))
    ax.tick_params(axis="x", length=0)
    ax.spines[:].set_visible(False)
    return ax
