"""correlation_plot: which topics occur together in samples, as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.keys import KEY
from ..annotated.scheme import model_in
from ..counts.argument_types import AnnDataLike
from ..counts.names import names_of
from ..counts.structure import nonnegative_matrix
from ..methods.factors import proportions
from ..models.leading_features import leading_names
from ..models.pipelines import FittedModel, model_of
from ..models.topics.topic_labels import shortened
from .canvas import (
    FigureOptions,
    axes_or_new,
    names_and_colors,
    plot,
)
from .objects import colors_of
from .structure import loadings_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Radius of the circle of labels; that of the topics is 1.
_LABELS = 1.17
# Area of a topic with the mean share, and width of a line for a correlation of 1, in points.
_AREA, _WIDTH = 160.0, 12.0
# With more topics, names are written along the radius.
_MOST_HORIZONTAL = 24


@plot
def correlation_plot(
    model: AnnDataLike | FittedModel | ArrayLike,
    *,
    threshold: float = 0.05,
    n_words: int = 3,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw a graph of the topics that occur together in samples.

    Topics are arranged in a circle, related ones side by side; their areas are their mean
    proportions. A line joins two topics that share samples more often than independent topics of
    these sizes: the correlation of their proportions is larger.

    Parameters
    ----------
    model : fitted model, AnnData, or array-like of shape (n_samples, n_components)
        A model, a pipeline that ends with one, an object with a fit of ``nmfscale.tl.topics``, or
        non-negative loadings. Samples without counts are left out.
    threshold : float, default=0.05
        Smallest difference of correlations that is drawn, above 0 and below 1.
    n_words : int, default=3
        Number of leading features below the names of topics, if the model has names of features;
        0 for none.
    topic_names : sequence of str, default=None
        Names; by default those of the model, or "topic 0", "topic 1", ...
    colors : sequence of colors, default=None
        One for each topic; :func:`topic_colors` by default.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The lines are ``ax.patches``, the weakest first.

    Raises
    ------
    ValueError
        If there are fewer than three topics, the loadings are not a finite non-negative matrix, or
        another argument has a wrong type, value or shape.

    Notes
    -----
    Proportions sum to one, so that even independent topics are negatively correlated. With the
    means m_i and m_j the correlation is ``-sqrt(m_i m_j / ((1 - m_i) (1 - m_j)))`` in a Dirichlet
    distribution, whose topics depend on each other only by this sum. What is drawn is the
    correlation over the samples less this number.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.pl import correlation_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1, 1], size=200)
    >>> shares[:, 1] += shares[:, 0]  # wherever topic 0 is, topic 1 is, too
    >>> ax = correlation_plot(shares, threshold=0.2)
    >>> len(ax.patches), len(ax.texts)
    (1, 4)
    """
    colors = colors_of(model, key, colors)
    model = model_of(model_in(model, key))
    loadings = loadings_of(model, None)[0]
    shares = proportions(nonnegative_matrix(
        loadings, "loadings", "samples x topics", "the loadings_ of a fitted model"
    ))  # fmt: skip
    totals = getattr(model, "sample_totals_", None)
    shares = shares[shares.any(axis=1) if totals is None else totals > 0]
    n_topics = shares.shape[1]
    if n_topics < 3:
        raise ValueError(f"there are {n_topics} topics: a graph needs three at least.")
    if topic_names is None:
        topic_names = getattr(model, "topic_names_", None)
    names, fills = names_and_colors(topic_names, colors, n_topics)
    if n_words and names_of(model, 1) is not None:
        words = leading_names(model, n_top=n_words)
        names = [
            f"{name}\n{', '.join(features)}" for name, features in zip(names, words, strict=True)
        ]
    related = _excess_correlations(shares)
    order = _order_on_circle(related)
    angles = np.empty(n_topics)
    angles[order] = np.pi / 2 - 2 * np.pi * np.arange(n_topics) / n_topics
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    radial = n_topics > _MOST_HORIZONTAL
    size = 3.0 + 0.14 * min(n_topics, _MOST_HORIZONTAL) + 0.05 * n_topics * radial
    ax = axes_or_new(ax, size + 2.6 * (not radial), size)
    drawn = _draw_lines(ax, places, related, threshold)
    means = shares.mean(axis=0)
    areas = np.maximum(_AREA * means / means.mean(), 12)
    ax.scatter(
        places[:, 0], places[:, 1], s=areas, c=fills, edgecolors="white", linewidths=1.2, zorder=3
    )
    _label(ax, places, angles, names, radial)
    # below the circle, the lines of a label need room above the caption
    reach = 2.0 if radial else 1.2 + 0.1 * (1 + max(name.count("\n") for name in names))
    wide = reach if radial else 1.75 * reach
    ax.set(xlim=(-wide, wide), ylim=(-reach, reach), xticks=[], yticks=[])
    ax.set_aspect("equal")
    ax.spines[:].set_visible(False)
    caption = f"lines: correlations of proportions above chance by more than {threshold:g}"
    caption += f", up to {drawn:.2f}" if drawn else " (none)"
    ax.set_xlabel(f"{caption}; areas: mean proportions", size=8)
    return ax


def _excess_correlations(shares: np.ndarray) -> np.ndarray:
    """Return correlations of columns less those of a Dirichlet (K, K), 0 for constant columns."""
    centred = shares - shares.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    centred /= np.where(norms > 0, norms, 1)
    means = shares.mean(axis=0)
    roots = np.sqrt(np.divide(means, 1 - means, out=np.zeros_like(means), where=means < 1))
    correlations = centred.T @ centred + np.outer(roots, roots) * np.outer(norms > 0, norms > 0)
    return np.clip(correlations, -1, 1)


def _order_on_circle(related: np.ndarray) -> np.ndarray:
    """Return the topics in the order of a clustering in which neighbours are correlated."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    distances = squareform(1 - (related + related.T) / 2, checks=False).clip(0)
    tree = linkage(distances, "average")
    order: np.ndarray = leaves_list(optimal_leaf_ordering(tree, distances))
    return order


def _draw_lines(ax: Axes, places: np.ndarray, related: np.ndarray, threshold: float) -> float:
    """Draw a curve for each correlation above the threshold; return the largest one, or 0."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    pairs = np.argwhere(np.triu(related > threshold, 1))
    values = related[tuple(pairs.T)]
    for at in np.argsort(values, kind="stable"):
        ends = places[pairs[at]]
        # curves are bent towards the centre, so that they do not run along the circle
        bend = 1 - 0.35 * float(np.hypot(*(ends[0] - ends[1])))
        curve = Path([ends[0], bend * ends.mean(axis=0), ends[1]], [1, 3, 3])
        r = float(values[at])
        ax.add_patch(
            PathPatch(
                curve, fill=False, linewidth=0.6 + _WIDTH * r, edgecolor="0.35",
                alpha=0.25 + 0.6 * r, capstyle="round",
            )
        )  # fmt: skip
    return float(values.max(initial=0))


def _label(
    ax: Axes, places: np.ndarray, angles: np.ndarray, names: list[str], radial: bool
) -> None:
    """Write names around the circle, horizontally or along its radius."""
    for (x, y), angle, name in zip(places, angles, names, strict=True):
        parts = [shortened(part, 26 if radial else 36) for part in name.split("\n")]
        right = x > -1e-9
        how: dict[str, Any] = {"ha": "left" if right else "right", "va": "center", "size": 7.5}
        if abs(x) < 0.2 and not radial:
            how |= {"ha": "center", "va": "bottom" if y > 0 else "top"}
        if radial:
            degrees = np.degrees(angle)
            how |= {
                "rotation": degrees if right else degrees + 180, "rotation_mode": "anchor",
                "size": 6.5,
            }  # fmt: skip
        text = " ".join(parts) if radial else "\n".join(parts)
        ax.text(_LABELS * x, _LABELS * y, text, parse_math=False, **how)
