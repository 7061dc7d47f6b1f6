"""structure_plot: the topic proportions of the samples as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from ..annotated.keys import KEY
from ..annotated.scheme import model_in
from ..counts.argument_types import AnnDataLike, RandomStateLike, ResultLike
from ..counts.matched_frames import index_of, matched_by_name
from ..counts.structure import nonnegative_matrix
from ..methods import factors
from ..models.from_components import why_no_loadings
from ..models.pipelines import FittedModel, model_of
from ..models.topics.topic_labels import labels_of, shortened
from .canvas import (
    FigureOptions,
    axes_or_new,
    legend_of_names,
    names_and_colors,
    plot,
    size_in_inches,
)
from .objects import colors_of, groups_of
from .sample_order import grouping, order_within, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Width and height in inches of a figure that the plot creates.
SIZE = (9.0, 3.6)


def loadings_of(proportions: Any, groups: Any) -> tuple[Any, Any, Any]:
    """Return loadings, and an index of samples and labels of topics, or None."""
    model = model_of(proportions)
    if not hasattr(model, "components_"):
        return proportions, getattr(proportions, "index", None), None
    if not hasattr(model, "loadings_"):
        raise ValueError(
            f"this {type(model).__name__} has no loadings_, as {why_no_loadings(model)}: pass what "
            "its transform returns."
        )
    # the rows of the factors of a Poisson NMF have different sums
    loadings = model.loadings_ * model.components_.sum(axis=1)
    names = getattr(model, "sample_names_", None)
    named = hasattr(groups, "iloc") or isinstance(groups, dict)
    return loadings, index_of(names) if named else None, labels_of(model)


def _staircase(left: float, heights: np.ndarray) -> np.ndarray:
    """Return the outline of adjacent bars of width 1, from the base line, starting at `left`."""
    edges = left + np.arange(len(heights) + 1)
    x = np.concatenate([edges[:1], np.repeat(edges, 2)[1:-1], edges[-1:]])
    y = np.concatenate([[0.0], np.repeat(heights, 2), [0.0]])
    return np.column_stack([x, y])


def _outlines(
    shares: np.ndarray, members: list[np.ndarray], gap: float
) -> tuple[list[list[np.ndarray]], list[float]]:
    """Return the outline of every topic in every group, and the centres of the groups."""
    left, outlines, centres = 0.0, [], []
    for member in members:
        ordered = shares[member[order_within(shares[member])]]
        cumulated = np.cumsum(ordered, axis=1)
        outlines.append([_staircase(left, heights) for heights in cumulated.T])
        centres.append(left + len(member) / 2)
        left += len(member) + gap
    return outlines, centres


def _label_groups(ax: Axes, labels: list[str], centres: list[float], sizes: list[int]) -> int:
    """Write as many group labels below the bars as are readable; return their number."""
    if labels == [""]:
        ax.set_xticks([])
        return 1
    places = size_in_inches(ax)[0] / ax.get_xlim()[1] * np.array(centres)
    lengths = np.array([len(label) for label in labels])
    spaces = np.diff(places)
    # An inch holds about twelve letters of this size.
    if (12 * spaces >= (lengths[:-1] + lengths[1:]) / 2 + 1).all():
        ax.set_xticks(centres, labels, parse_math=False)
        return len(labels)
    turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor", "size": 8}
    named = list(range(len(labels)))
    if spaces.min() < 0.19:  # inches
        turned = {"rotation": 90, "size": 7}
        named = _far_apart(places, sizes, 0.1)
    shown = [shortened(labels[group], 24) for group in named]
    ax.set_xticks([centres[group] for group in named], shown, parse_math=False, **turned)
    return len(named)


def _far_apart(places: np.ndarray, sizes: list[int], least: float) -> list[int]:
    """Select groups at a distance of at least `least`, giving priority to large groups."""
    kept: list[int] = []
    for group in np.argsort(-np.array(sizes), kind="stable").tolist():
        if (np.abs(places[kept] - places[group]) >= least).all():
            kept.append(group)
    return sorted(kept)


@plot
def structure_plot(
    proportions: AnnDataLike | FittedModel | ArrayLike,
    groups: ArrayLike | ResultLike | None = None,
    *,
    groupby: str | None = None,
    key: str = KEY,
    max_samples: int = 2000,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    gap: float | None = None,
    random_state: RandomStateLike = 0,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the topic proportions of each sample as a stacked bar.

    Samples are arranged by groups.  Within a group, they are sorted by their largest topic, with
    similar topics side by side and smooth transitions between them.  The order depends on the
    proportions only.

    Parameters
    ----------
    proportions : AnnData, fitted model, or array-like of shape (n_samples, n_components)
        Non-negative loadings.  Every row is divided by its sum; rows of zeros are drawn blank.
        Those of a model are the expected counts of each topic in the samples of the fit.  An
        AnnData object has a fit by :func:`nmfscale.tl.topics` or loadings by
        :func:`nmfscale.tl.transform`.
    groups : array-like of shape (n_samples,) or SampleClusters, default=None
        Label of each sample, or the result of :func:`nmfscale.cluster_samples` for these samples.
        A Series, or a dict of labels by name, is matched by name with the index of `proportions`,
        if that is a DataFrame, or with the samples of a model.  A pandas categorical keeps the
        order of its categories; other labels are sorted, numbers by size.
        Samples without a label form the group "(no group)".  None draws one group.  If there is no
        space for all labels, those of larger groups are shown.
    groupby : str, default=None
        For an AnnData object, the column of ``obs`` that holds the groups.  If ``uns`` has colours
        of these groups, such as ``uns["cell_type_colors"]``, a strip below the bars shows them.
    key : str, default="topics"
        For an AnnData object, the key of the fit.  Colours of topics are those of
        ``uns["<key>_colors"]``, if there are some.
    max_samples : int, default=2000
        If there are more samples, a random subset of about this size is drawn, by group size.
    topic_names : sequence of str, default=None
        Names for the legend, which lists as many topics as fit. By default those of the model;
        topics without a name have their number and two leading features, such as "0 file, files",
        or are "topic 0", "topic 1", ... if features have no names.
    colors : sequence of colors, default=None
        One for each topic; :func:`topic_colors` by default.
    gap : float, default=None
        Space between groups, in units of samples; by default 1.5% of the drawn samples, or less
        if there are many groups.
    random_state : int, RandomState instance or None, default=0
        Source of randomness for the subset.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show : bool, default=None
        Whether to call ``pyplot.show()``, and return None.
    save : str or path-like, default=None
        File to which the figure is saved, with a suffix such as ".png" or ".pdf".
    return_fig : bool, default=False
        Whether to return the figure in place of the Axes.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        The Axes, unless `show` or `return_fig` is set.

    Raises
    ------
    ValueError
        If the proportions are not a finite non-negative matrix, if another argument has a wrong
        type, value or shape, or if `groups` lacks samples of `proportions`.

    Notes
    -----
    If `proportions` and `groups` are pandas objects with names in their index, groups are matched
    by name, in any order. The bars are one ``PolyCollection``, ``ax.collections[-1]``.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.pl import structure_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=60)
    >>> ax = structure_plot(shares, np.repeat(["young", "old"], 30))
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['old', 'young']
    """
    if hasattr(type(groups), "groups"):  # clusters; a Series may have an entry of this name
        groups = getattr(groups, "groups")  # noqa: B009
    from matplotlib.collections import PolyCollection

    groups, group_colors = groups_of(proportions, groups, groupby)
    colors = colors_of(proportions, key, colors)
    proportions, index, default_names = loadings_of(model_in(proportions, key), groups)
    topic_names = default_names if topic_names is None else topic_names
    groups = matched_by_name(groups, index, "groups", "proportions")
    shares = nonnegative_matrix(
        proportions, "proportions", "samples x topics", "the loadings_ of a fitted model"
    )
    n_samples, n_topics = shares.shape
    names, fills = names_and_colors(topic_names, colors, n_topics)
    shares = factors.proportions(shares)

    labels, number = grouping(groups, n_samples)
    members = [np.flatnonzero(number == group) for group in range(len(labels))]
    members = thinned(members, max_samples, check_random_state(random_state))
    n_drawn = sum(map(len, members))
    if gap is None:  # all gaps together take at most a quarter of the bars' width
        gap = min(0.015, 0.25 / len(members)) * n_drawn

    outlines, centres = _outlines(shares, members, gap)
    ax = axes_or_new(ax, *SIZE)
    # Tallest outlines first, each drawn over the previous: no background shows between the bars.
    stack = [outline[topic] for topic in reversed(range(n_topics)) for outline in outlines]
    paint = [fills[topic] for topic in reversed(range(n_topics)) for _ in outlines]
    ax.add_collection(PolyCollection(stack, facecolors=paint, edgecolors="none", linewidths=0))
    right = centres[-1] + len(members[-1]) / 2
    ax.set(xlim=(0, right), ylim=(0, 1), yticks=[0, 0.5, 1], ylabel="topic proportion")
    n_named = _label_groups(ax, labels, centres, [len(member) for member in members])
    notes = []
    if n_drawn < n_samples:
        notes.append(f"{n_drawn:,} of {n_samples:,} samples")
    elif labels == [""]:
        notes.append(f"{n_samples:,} sample{'s' * (n_samples > 1)}")
    if n_named < len(labels):
        notes.append(f"{n_named:,} of {len(labels):,} groups are named")
    if notes:
        ax.set_xlabel(", ".join(notes))
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.tick_params(axis="x", length=0)
    if group_colors is not None:
        _color_groups(ax, labels, centres, [len(member) for member in members], group_colors)
    _legend_outside(ax, fills, names)
    return ax


def _color_groups(
    ax: Axes, labels: list[str], centres: list[float], sizes: list[int], colors: dict[str, str]
) -> None:
    """Draw a strip below the bars with the colours of the groups."""
    from matplotlib.patches import Rectangle

    low, height = -0.045, 0.03
    for label, centre, size in zip(labels, centres, sizes, strict=True):
        fill = colors.get(label, "0.8")
        place = centre - size / 2, low
        ax.add_patch(Rectangle(place, size, height, facecolor=fill, linewidth=0, clip_on=False))
    ax.tick_params(axis="x", pad=11)


def _legend_outside(ax: Axes, fills: list[Any], names: list[str]) -> None:
    """Add a legend to the right of the Axes, with as many topics as fit."""
    from matplotlib.patches import Patch

    width, height = size_in_inches(ax)
    names = [shortened(name, 30) for name in names]
    # A line is about 0.18 inches high; a letter takes about 0.06, the rest of an entry 0.48.
    size, full, n_lines = 9, 12, max(12, int(height / 0.18))
    if len(names) > 2 * full:
        size = 7
        full = n_lines = max(15, int(height / 0.13))
    entry = size / 9 * (0.48 + 0.062 * max(map(len, names)))
    n_columns = min(max(1, int(0.6 * width / entry)), -(-len(names) // full))
    entries = [(Patch(facecolor=fill), name) for fill, name in zip(fills, names, strict=True)]
    if len(entries) > n_lines * n_columns:
        del entries[n_lines * n_columns - 1 :]
        left = len(names) - len(entries)
        entries.append((Patch(visible=False), f"{left} more"))
    handles, shown = zip(*reversed(entries), strict=True)
    legend_of_names(
        ax, handles, shown, loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=n_columns,
        handlelength=1.0, handleheight=1.0, labelspacing=0.35, columnspacing=1.2, fontsize=size,
    )  # fmt: skip
