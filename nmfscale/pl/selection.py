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
        As in :func:`structure_plot`. The Axes are divided into three panels (``child_axes``). Bars
        of the held-out score are standard errors of the difference from the highest score. Grey
        dots are topics; lines are their mean and smallest similarity. Bars of the score of fitted
        counts extend from the lowest to the highest score of a fold. The vertical line is the
        recommended number, if there is one.

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
    ['held-out counts', 'topics of independent fits', 'fitted counts']
    """
    selection = result_in(result, key)
    if not hasattr(selection, "score_error") or not hasattr(selection, "similarities"):
        raise ValueError(f"result is a {type(selection).__name__}: pass the result of select_k.")
    host = axes_or_new(ax, *_GRID.size)
    scores, topics, fitted = _GRID.draw(host, selection.advice)
    host.xaxis.labelpad = 16
    numbers = np.asarray(selection.n_components)
    scores.errorbar(
        numbers, selection.score, selection.score_error, color=_SCORE, marker="o", markersize=3,
        linewidth=1.2, capsize=2,
    )  # fmt: skip
    scores.set_title("held-out counts", size=8)
    scores.set_ylabel("log-probability of a count", size=7)
    for number, values in zip(numbers, selection.similarities, strict=True):
        topics.plot(np.full(values.size, number), values.ravel(), ".", color=_TOPIC, markersize=3)
    for values, name, style in (
        (selection.stability, "mean", "-"), (selection.least_stability, "smallest", "--")
    ):  # fmt: skip
        topics.plot(numbers, values, style, color=_SCORE, linewidth=1.2, label=name)
    topics.set(ylim=(-0.05, 1.05))
    topics.legend(fontsize=7, frameon=False, loc="lower left")
    topics.set_title("topics of independent fits", size=8)
    topics.set_ylabel("similarity of matched topics", size=7)
    folds = np.asarray(selection.fold_scores_in_sample)
    ends = np.stack(
        [selection.in_sample - folds.min(axis=1), folds.max(axis=1) - selection.in_sample]
    )
    fitted.errorbar(
        numbers, selection.in_sample, np.maximum(ends, 0), color=_SCORE, marker="o", markersize=3,
        linewidth=1.2, capsize=2,
    )  # fmt: skip
    fitted.set_title("fitted counts", size=8)
    for panel in (scores, topics, fitted):
        if selection.best is not None:
            panel.axvline(selection.best, color=_BEST, linewidth=1, zorder=0)
        panel.spines["left"].set_visible(True)
        panel.locator_params(axis="x", nbins=6, integer=True)
        panel.set_xlabel("number of topics", size=7)
    return host


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
        objective of each fit is below the best, sorted; similarities of the topics of all fits to
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


def size_of_selection() -> tuple[float, float]:
    """Return width and height in inches of a figure for the panels."""
    return _GRID.size
