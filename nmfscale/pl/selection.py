"""Plots of numbers of topics, and of fits from many starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..counts.argument_types import AnnDataLike, ResultLike
from .canvas import PALETTE, FigureOptions, axes_or_new, plot
from .objects import result_in
from .panels import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCORE, _BEST, _TOPIC = PALETTE[0], PALETTE[5], "0.65"
_GRID = Grid(3, 2.1, 2.2, 0.35)


@plot
def select_k_plot(
    result: AnnDataLike | ResultLike,
    *,
    key: str = "select_k",
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw held-out scores, stability and scores of the fitted counts for each number of topics.

    Parameters
    ----------
    result : AnnData or SelectK
        Object with a result of :func:`nmfscale.tl.select_k`, or the result of
        :func:`nmfscale.select_k`.
    key : str, default="select_k"
        For an AnnData object, the key of the result.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The Axes are divided into panels (``child_axes``). Bars of the
        held-out score are standard errors of the difference from the highest score. Grey dots are
        topics of all splits; lines are their mean, and the median over the splits of the smallest
        similarity, with a band from the lowest to the highest of a split. The dotted line is the
        similarity from which a topic is found again. Bars of the score of fitted counts extend from
        the lowest to the highest score of a fold. With several splits, the last panel shows how
        many of them would recommend each number alone. The vertical line is the recommended number,
        if there is one.

    Raises
    ------
    ValueError
        If `result` is not a result of select_k, or `ax` is not Axes.

    Examples
    --------
    >>> from nmfscale import TopicModel, pl, select_k
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(100, 60, 3, random_state=0)
    >>> ax = pl.select_k_plot(select_k(TopicModel(), X, range(2, 6), random_state=0))
    >>> [panel.get_title() for panel in ax.child_axes]
    ['held-out counts', 'topics of independent fits', 'fitted counts', 'choices of single splits']
    """
    selection = result_in(result, key)
    if not hasattr(selection, "score_error") or not hasattr(selection, "similarities"):
        raise ValueError(f"result is a {type(selection).__name__}: pass the result of select_k.")
    grid = _GRID._replace(n_panels=n_panels_of(selection))
    host = axes_or_new(ax, *grid.size)
    panels = grid.draw(host, selection.advice)
    host.xaxis.labelpad = 16
    numbers = np.asarray(selection.n_components)
    bars: dict[str, Any] = {
        "color": _SCORE, "marker": "o", "markersize": 3, "linewidth": 1.2, "capsize": 2
    }  # fmt: skip
    panels[0].errorbar(numbers, selection.score, selection.score_error, **bars)
    panels[0].set_title("held-out counts", size=8)
    panels[0].set_ylabel("log-probability of a count", size=7)
    _draw_similarities(panels[1], numbers, selection)
    folds = selection.fold_scores_in_sample.reshape(len(numbers), -1)
    ends = np.stack(
        [selection.in_sample - folds.min(axis=1), folds.max(axis=1) - selection.in_sample]
    )
    panels[2].errorbar(numbers, selection.in_sample, np.maximum(ends, 0), **bars)
    panels[2].set_title("fitted counts", size=8)
    for panel in panels[3:]:
        panel.bar(numbers, selection.n_chosen, color=_SCORE)
        panel.set_ylim(0, selection.n_splits)
        panel.locator_params(axis="y", integer=True)
        panel.set_title("choices of single splits", size=8)
        panel.set_ylabel(f"of {selection.n_splits} splits", size=7)
    for panel in panels:
        if selection.best is not None:
            panel.axvline(selection.best, color=_BEST, linewidth=1, zorder=0)
        panel.spines["left"].set_visible(True)
        panel.locator_params(axis="x", nbins=6, integer=True)
        panel.set_xlabel("number of topics", size=7)
    return host


def _draw_similarities(panel: Axes, numbers: Any, selection: Any) -> None:
    """Draw the similarities of matched topics, their mean, and the smallest with their spread."""
    for number, values in zip(numbers, selection.similarities, strict=True):
        panel.plot(np.full(values.size, number), values.ravel(), ".", color=_TOPIC, markersize=3)
    least = selection.least_of_splits
    panel.fill_between(
        numbers, least.min(axis=1), least.max(axis=1), color=_SCORE, alpha=0.15, linewidth=0
    )
    panel.plot(numbers, selection.stability, "-", color=_SCORE, linewidth=1.2, label="mean")
    panel.plot(
        numbers, selection.least_stability, "--", color=_SCORE, linewidth=1.2, label="smallest"
    )
    panel.axhline(selection.threshold, color=_TOPIC, linewidth=0.8, linestyle=":", zorder=0)
    panel.set(ylim=(-0.05, 1.05))
    panel.legend(fontsize=7, frameon=False, loc="lower left")
    panel.set_title("topics of independent fits", size=8)
    panel.set_ylabel("similarity of matched topics", size=7)


@plot
def stability_plot(
    result: AnnDataLike | ResultLike,
    *,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw how far fits from many starts end apart, and how well their topics agree.

    Parameters
    ----------
    result : Stability
        Result of :func:`nmfscale.stability`.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The Axes are divided into panels (``child_axes``): how far the
        objective of each fit is below the best, sorted, with a line for the fit that was passed, if
        any; similarities of the topics of all fits to
        those of the best fit, with their means as lines; and, if there is a consensus, the share of
        the fits that have each consensus topic.

    Raises
    ------
    ValueError
        If `result` is not a result of stability, or `ax` is not Axes.

    Examples
    --------
    >>> from nmfscale import TopicModel, pl, stability
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(100, 40, 3, random_state=0)
    >>> ax = pl.stability_plot(stability(TopicModel(3), X, n_starts=5, random_state=0))
    >>> [panel.get_title() for panel in ax.child_axes]
    ['optima', 'topics of the best fit', 'consensus topics']
    """
    fits: Any = result
    if not hasattr(fits, "gaps") or not hasattr(fits, "consensus"):
        raise ValueError(f"result is a {type(fits).__name__}: pass the result of stability.")
    host = axes_or_new(ax, *_GRID.size)
    n, K = fits.similarities.shape
    caption = f"{fits.n_best} of {n} fits end within 1 of the best"
    if fits.consensus is not None:
        caption += f"; {fits.consensus.n_left_out} of {n * K} topics are left out of the consensus"
    panels = _GRID._replace(n_panels=2 + (fits.consensus is not None)).draw(host, caption)
    host.xaxis.labelpad = 16
    panels[0].plot(np.arange(1, n + 1), np.sort(fits.gaps), "o-", color=_SCORE, markersize=3)
    if fits.fit_gap is not None:
        panels[0].axhline(fits.fit_gap, linestyle="--", color=_TOPIC, label="the fit")
        panels[0].legend(fontsize=6, frameon=False)
    panels[0].set_title("optima", size=8)
    panels[0].set_ylabel("below the best objective", size=7)
    panels[0].set_xlabel("fits", size=7)
    topics = np.arange(K)
    panels[1].plot(np.tile(topics, n), fits.similarities.ravel(), ".", color=_TOPIC, markersize=3)
    means = fits.similarities.mean(axis=0)
    panels[1].hlines(means, topics - 0.35, topics + 0.35, color=_SCORE)
    panels[1].set_title("topics of the best fit", size=8)
    panels[1].set_ylabel("similarity of matched topics", size=7)
    if fits.consensus is not None:
        panels[2].bar(topics, fits.consensus.shares, color=_SCORE)
        panels[2].set_title("consensus topics", size=8)
        panels[2].set_ylabel("share of the fits", size=7)
    for panel in panels[1:]:
        panel.set(ylim=(-0.05, 1.05))
        panel.set_xlabel("topic", size=7)
    for panel in panels:
        panel.spines["left"].set_visible(True)
        panel.locator_params(axis="x", nbins=6, integer=True)
    return host


def size_of_panels(n_panels: int) -> tuple[float, float]:
    """Return width and height in inches of a figure for the panels of a plot of this module."""
    return _GRID._replace(n_panels=n_panels).size


def n_panels_of(selection: Any) -> int:
    """Return the number of panels of `select_k_plot`."""
    return 4 if selection.n_splits > 1 else 3
