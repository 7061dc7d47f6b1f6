"""biplot: topics and groups on two axes of a correspondence analysis."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike
from ..models.topics.topic_labels import shortened, topic_labels
from .canvas import PALETTE, FigureOptions, Scaling, axes_or_new, legend_of_names, plot
from .differential import label_points
from .objects import result_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Width and height in inches of a new figure.
SIZE = (5.0, 4.4)
# Largest number of groups with names.
_MOST_GROUPS = 30
_COLORS = {"topics": PALETTE[0], "groups": PALETTE[5]}


@plot
def biplot(
    result: AnnDataLike | ResultLike,
    *,
    groupby: str | None = None,
    key: str = KEY,
    axes: Sequence[int] = (1, 2),
    scaling: Scaling = "symmetric",
    n_labels: int = 20,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw topics and groups on two axes of a correspondence analysis.

    Like all of :mod:`nmfscale.experimental`, this function may change in any release.

    The area of a point grows with the mass of its topic or group. The centre is the profile of the
    whole table: a topic or group far from it has a profile of its own.

    Parameters
    ----------
    result : CorrespondenceAnalysis or AnnData
        Result of :func:`nmfscale.experimental.correspondence_analysis`, or an object with a
        result of ``nmfscale.tl.correspondence_analysis``.
    groupby : str, default=None
        For an AnnData object, the column of ``obs`` with the groups; not needed if there is only
        one result.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    axes : sequence of two int, default=(1, 2)
        Numbers of the axes, from 1. If there is only one, the points are drawn on it.
    scaling : {"symmetric", "topics", "groups"}, default="symmetric"
        Coordinates. "symmetric": principal coordinates of both, so that distances between topics
        and distances between groups are chi-square distances, but those between a topic and a group
        have no meaning. "topics" or "groups": principal coordinates of these, and standard
        coordinates of the other ones, at whose weighted means they lie.
    n_labels : int, default=20
        Largest number of names of topics: those with the largest parts of the inertia of both axes.
        Groups have names, at most 30 of them, chosen in the same way.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. Its first collection are the topics, its second the groups.

    Raises
    ------
    ValueError
        If the result has no such axes, or an argument has a wrong type or value.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.experimental import correspondence_analysis
    >>> from nmfscale.pl import biplot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1, 1], size=90)
    >>> found = correspondence_analysis(shares, np.repeat(["a", "b", "c"], 30))
    >>> ax = biplot(found)
    >>> bool(np.allclose(ax.collections[0].get_offsets(), found.topic_coordinates))
    True
    """
    analysis = result_in(result, key, "correspondence_analysis", groupby)
    chosen = _chosen_axes(analysis, axes)
    ax = axes_or_new(ax, *SIZE)
    points, sizes = {}, {}
    for of in ("topics", "groups"):
        masses, coordinates = analysis.masses_and_coordinates(of)
        if scaling not in ("symmetric", of):
            coordinates = coordinates / np.sqrt(analysis.inertias)
        drawn = np.zeros((len(masses), 2))
        drawn[:, : len(chosen)] = coordinates[:, chosen]
        points[of], sizes[of] = drawn, 15 + 120 * masses / masses.max()
        ax.scatter(
            drawn[:, 0], drawn[:, 1], s=sizes[of], color=_COLORS[of],
            marker="o" if of == "topics" else "s", alpha=0.75, linewidth=0,
        )  # fmt: skip
    for side in (ax.axhline, ax.axvline):
        side(0, color="0.8", linewidth=0.8, zorder=0)
    named = _leading(analysis, "topics", chosen, n_labels)
    groups = _leading(analysis, "groups", chosen, _MOST_GROUPS)
    for name, a in zip("xy", chosen, strict=False):
        getattr(ax, f"set_{name}label")(
            f"axis {a + 1} ({analysis.explained[a]:.0%} of the inertia)"
        )
    if scaling == "symmetric" and len(chosen) == 2:
        ax.set_aspect("equal", adjustable="datalim")
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    n = len(analysis.groups)
    some = f"groups, {len(groups)} of {n:,} are named" if len(groups) < n else "groups"
    legend_of_names(ax, ax.collections[:2], ["topics", some], loc="best", fontsize=7)
    names = [*(analysis.groups[g] for g in groups), *_names_of_topics(analysis, named)]
    x, y = np.vstack([points["groups"][groups], points["topics"][named]]).T
    shown = [shortened(str(name), 24) for name in names]
    label_points(ax, x, y, shown, np.append(sizes["groups"][groups], sizes["topics"][named]))
    return ax


def _leading(result: Any, of: str, axes: list[int], most: int) -> np.ndarray:
    """Return the topics or groups, at most so many, with the largest part in the inertia."""
    part = (result.contributions(of) * result.inertias)[:, axes].sum(axis=1)
    return np.sort(np.argsort(-part, kind="stable")[:most])


def _chosen_axes(result: Any, axes: Sequence[int]) -> list[int]:
    """Return the numbers, from 0, of one or two axes."""
    n_axes = len(getattr(result, "inertias", ()))
    if not hasattr(result, "topic_coordinates"):
        raise ValueError(
            f"result is a {type(result).__name__}: pass what correspondence_analysis returns."
        )
    if not n_axes:
        raise ValueError("result has no axes: all groups have the same shares of topics.")
    pair = list(axes)
    if len(pair) != 2 or pair[0] == pair[1] or not all(isinstance(a, Integral) for a in pair):
        raise ValueError(f"axes={pair}: two different whole numbers are needed, such as (1, 2).")
    if n_axes == 1 and sorted(pair) == [1, 2]:
        return [0]
    if not all(1 <= a <= n_axes for a in pair):
        raise ValueError(f"axes={pair}: the result has axes 1 to {n_axes}.")
    return [int(a) - 1 for a in pair]


def _names_of_topics(result: Any, chosen: np.ndarray) -> list[Any]:
    labels = topic_labels(result.topics, result.origin.topic_words)
    return [labels[t] for t in chosen]
