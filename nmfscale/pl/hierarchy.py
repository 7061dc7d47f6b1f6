"""hierarchy_plot: topics of topics as a dendrogram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..counts.argument_types import ResultLike
from ..counts.names import shown
from ..models.topics.topic_labels import shortened
from .canvas import FigureOptions, axes_or_new, plot

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
    """Draw topics of topics as a tree: joins are at the mean similarity of their topics.

    Parameters
    ----------
    hierarchy : TopicHierarchy
        Result of :func:`nmfscale.topic_hierarchy`.
    n_groups : int, default=None
        Draws a line that cuts the tree into this many groups.
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
        If `hierarchy` is no such result, or `n_groups` is not from 2 to the number of topics.

    Examples
    --------
    >>> from nmfscale import topic_hierarchy
    >>> from nmfscale.pl import hierarchy_plot
    >>> ax = hierarchy_plot(topic_hierarchy([[8, 1, 0], [7, 2, 0], [0, 1, 9]]))
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['topic 2', 'topic 1', 'topic 0']
    """
    tree: Any = hierarchy
    linkage = getattr(tree, "linkage", None)
    if linkage is None:
        raise ValueError(
            f"hierarchy is {shown(hierarchy)}: the result of nmfscale.topic_hierarchy is needed."
        )
    from scipy.cluster.hierarchy import leaves_list

    K = len(linkage) + 1
    if n_groups is not None and not 2 <= n_groups <= K:
        raise ValueError(f"n_groups={n_groups}: a number from 2 to {K} is needed.")
    ax = axes_or_new(ax, 7.0, float(np.clip(0.8 + _TOPIC * K, 2.0, 14.0)))
    order = leaves_list(linkage)
    height = np.zeros(2 * K - 1)
    height[order] = np.arange(K)
    similarity = np.concatenate([np.ones(K), 1 - linkage[:, 2]])
    for node, children in enumerate(linkage[:, :2].astype(int), K):
        at, ends = similarity[node], similarity[children]
        low, high = height[children]
        height[node] = (low + high) / 2
        ax.plot([ends[0], at, at, ends[1]], [low, low, high, high], color="0.35", linewidth=1.1)
        if tree.words is not None and K <= _MOST:
            ax.text(
                at, height[node], f"{shortened(tree.words[node], _WORDS)} ", size=6,
                color="0.35", ha="right", va="bottom", parse_math=False,
            )  # fmt: skip
    labels = [shortened(tree.labels[k], _LETTERS) for k in order]
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
