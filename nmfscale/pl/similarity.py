"""similarity_plot: how well the topics of two fits agree, or those of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.keys import KEY
from ..annotated.scheme import model_in
from ..counts.argument_types import AnnDataLike, ResultLike
from ..counts.structure import nonnegative_matrix
from ..models.comparison import TopicMatch, match_topics
from ..models.pipelines import FittedModel, model_of
from ..models.topics.topic_labels import shortened, topic_labels
from .canvas import (
    FigureOptions,
    axes_or_new,
    names_of_topics,
    plot,
)
from .heat_map import add_scale, heat_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of the map of many fits: inches of a topic, the smallest and largest side, and the least width of
# a cluster with a label; rows that have labels.
_CELL, _LEAST_SIDE, _MOST_SIDE, _LEAST_GAP, _MOST_ROWS = 0.11, 3.0, 9.0, 0.12, 60


@plot
def similarity_plot(
    match: TopicMatch | ResultLike | AnnDataLike | FittedModel | ArrayLike,
    other: AnnDataLike | FittedModel | None = None,
    *,
    key: str = KEY,
    other_key: str | None = None,
    names_a: Sequence[str] | None = None,
    names_b: Sequence[str] | None = None,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the similarities of the topics of two fits, or of many, as a heat map.

    Rows are topics of the first fit, columns those of the second. Matched topics are on the
    diagonal and have a frame: if the fits agree, the diagonal is dark and the rest is light. Topics
    without a partner come last. Of many fits, rows and columns are the topics of all fits in the
    order of their clusters, which have frames: columns name the clusters, with the number of
    samples of each group if groups were given; rows name the topics, if there are not more than 60.

    Parameters
    ----------
    match : TopicMatch, TopicClusters, AnnData, fitted model, or array-like of shape (K_a, K_b)
        Result of :func:`nmfscale.match_topics`; or the first of two fits, which are then matched;
        or similarities between 0 and 1, which are drawn in their own order, without frames; or the
        result of :func:`nmfscale.cluster_topics` for many fits.
    other : AnnData or fitted model, default=None
        The second of two fits. If there is none, `other_key` names another fit of `match`.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    other_key : str, default=None
        Key of the second fit; by default `key`.
    names_a, names_b : sequence of str, default=None
        Names of the topics of each fit, in the order of that fit; by default those in `match`, as
        in :func:`structure_plot`.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The map is ``ax.images[-1]``, its color bar
        ``ax.child_axes[-1]``.

    Raises
    ------
    ValueError
        If the similarities are not a matrix of numbers between 0 and 1, or if the number of names
        differs from the number of topics.

    Examples
    --------
    >>> from nmfscale import match_topics
    >>> from nmfscale.pl import similarity_plot
    >>> match = match_topics([[5, 1, 0], [0, 1, 5]], [[0, 2, 9], [1, 1, 1], [9, 2, 0]])
    >>> ax = similarity_plot(match)
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['topic 2', 'topic 0', 'topic 1']
    """
    if hasattr(match, "min_similarity"):
        return _clusters(match, ax)
    if other is not None or other_key is not None:
        fits = (match, key), (match if other is None else other, other_key or key)
        match = match_topics(*(model_of(model_in(fit, of)) for fit, of in fits))
    values = nonnegative_matrix(
        getattr(match, "similarities", match), "similarities", "topics x topics",
        "the result of match_topics",
    )  # fmt: skip
    if values.max() > 1:
        raise ValueError(f"similarities must be at most 1; the largest is {values.max()}.")
    K_a, K_b = values.shape
    pairs = getattr(match, "pairs", np.empty((0, 2), int))
    at_a, at_b = _partners_first(pairs[:, 0], K_a), _partners_first(pairs[:, 1], K_b)
    rows = _names(names_a, match, "a", K_a)
    columns = _names(names_b, match, "b", K_b)

    ax = heat_map(
        values[np.ix_(at_a, at_b)], [rows[k] for k in at_a], [columns[k] for k in at_b],
        "similarity", ax,
    )  # fmt: skip
    _frame(ax, len(pairs))
    return ax


def _clusters(found: Any, ax: Axes | None) -> Axes:
    """Draw the similarities of the topics of many fits, in the order of their clusters."""
    order = np.argsort(found.labels, kind="stable")
    starts = np.searchsorted(found.labels[order], np.arange(found.n_clusters + 1))
    n_topics, side = len(order), _side_of(found)
    ax = axes_or_new(ax, *size_of_clusters(found))
    ax.imshow(found.similarities[np.ix_(order, order)], cmap="Blues", vmin=0, vmax=1)
    several = [c for c in range(found.n_clusters) if found.n_fits[c] > 1]
    for c in several:
        _frame_of(ax, starts[c], starts[c + 1] - starts[c])
    several = [c for c in several if found.n_fits[c] * side / n_topics > _LEAST_GAP]
    middles = [(starts[c] + starts[c + 1] - 1) / 2 for c in several]
    names = [_name_of_cluster(found, c) for c in several]
    ax.xaxis.set_ticks(middles, names, size=8, rotation=90, parse_math=False)
    topics = [f"{found.fit_names[found.fits[t]]}: {found.topic_names[t]}" for t in order]
    rows = range(n_topics) if n_topics <= _MOST_ROWS else []
    shown = [shortened(topics[row], 24) for row in rows]
    ax.yaxis.set_ticks(rows, shown, size=6, parse_math=False)
    ax.tick_params(length=0)
    add_scale(ax, "similarity", 0.3 / 6)
    return ax


def _name_of_cluster(found: Any, c: int) -> str:
    """Return the name of a cluster, and in a second line how many samples of each group have it."""
    name = shortened(found.names[c], 24)
    numbers = found.n_samples_of_groups[c]
    of_groups = [
        f"{shortened(str(group), 12)} {n}/{size}"
        for group, n, size in zip(found.group_names, numbers, found.group_sizes, strict=True)
    ]
    return "\n".join([name, ", ".join(of_groups)]) if of_groups else name


def size_of_clusters(found: Any) -> tuple[float, float]:
    """Return the size in inches of the map of many fits."""
    return 2.2 + _side_of(found), 1.4 + _side_of(found)


def _side_of(found: Any) -> float:
    return min(max(_LEAST_SIDE, _CELL * len(found.labels)), _MOST_SIDE)


def _names(names: Any, match: Any, side: str, n_topics: int) -> list[str]:
    """Return names as text; for None, the labels of the topics of one fit."""
    if names is None:
        names = getattr(match, f"names_{side}", names_of_topics(n_topics))
        return topic_labels(names, getattr(match, f"words_{side}", None))
    if len(names) != n_topics:
        raise ValueError(f"names_{side} has {len(names)} entries for {n_topics} topics.")
    return [str(name) for name in names]


def _partners_first(partners: np.ndarray, n_topics: int) -> np.ndarray:
    return np.concatenate([partners, np.setdiff1d(np.arange(n_topics), partners)])


def _frame(ax: Axes, n_pairs: int) -> None:
    """Draw a frame around the first cells of the diagonal."""
    for at in range(n_pairs):
        _frame_of(ax, at, 1)


def _frame_of(ax: Axes, first: int, size: int) -> None:
    """Draw a frame around the cells of some rows and columns in sequence."""
    from matplotlib.patches import Rectangle

    place = first - 0.5, first - 0.5
    ax.add_patch(Rectangle(place, size, size, fill=False, edgecolor="#D55E00", lw=1.4))
