"""enrichment_plot: gene sets that are enriched in topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike
from ..models.topics.topic_labels import shortened, topic_labels
from .canvas import FigureOptions, axes_or_new, plot
from .objects import result_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Smallest q-value that colours tell apart, as -log10; area of the largest dot, in points squared.
_MOST_EVIDENCE, _AREA = 10.0, 160.0
# Shares of a set in the legend.
_LEGEND = 0.1, 0.25, 0.5, 1.0


@plot
def enrichment_plot(
    result: AnnDataLike | ResultLike,
    *,
    n_top: int = 3,
    level: float = 0.05,
    key: str = KEY,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the gene sets that are enriched in topics, as dots.

    Columns are topics, rows the sets of each topic with the smallest p-values. The area of a dot is
    the share of the set that is among the leading features of the topic, its colour the q-value;
    dots with a q-value above `level` are grey.

    Parameters
    ----------
    result : AnnData or Enrichment
        Object with a result of :func:`nmfscale.tl.enrichment`, or the result of
        :func:`nmfscale.enrichment`.
    n_top : int, default=3
        Number of sets of each topic.
    level : float, default=0.05
        Largest q-value of coloured dots. Sets with a larger one in all topics are left out, unless
        there is no other.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. Dots are ``ax.collections[0]``.

    Raises
    ------
    ValueError
        If `result` is no result of enrichment.

    Examples
    --------
    >>> import nmfscale
    >>> counts = nmfscale.datasets.docstrings()
    >>> model = nmfscale.TopicModel(6, random_state=1).fit(counts)
    >>> words = {"files": ["file", "path", "directory", "open", "read", "write"]}
    >>> ax = nmfscale.pl.enrichment_plot(nmfscale.enrichment(model, words))
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['files']
    """
    found: Any = result_in(result, key, "enrichment")
    if not hasattr(found, "gene_sets"):
        raise ValueError(f"result is a {type(found).__name__}: pass the result of enrichment.")
    rows = _rows_of(found, n_top, level)
    K, shares = len(found.topic_names), found.overlap / found.sizes
    ax = axes_or_new(ax, *size_of_plot(found, n_top, level))
    topic, row = (places.ravel() for places in np.indices((K, len(rows))))
    of_set = np.array(rows)[row]
    q = np.maximum(found.qvalue[topic, of_set], 1e-300)
    evidence = np.minimum(-np.log10(q), _MOST_EVIDENCE)
    colors = np.where(q <= level, evidence, np.nan)
    most = max(float(shares[:, rows].max()), 1e-9)
    dots = ax.scatter(
        topic, row, s=_AREA * shares[topic, of_set] / most, c=colors, cmap="viridis_r",
        vmin=0, vmax=max(2.0, float(np.nanmax(evidence))), plotnonfinite=True, linewidths=0,
    )  # fmt: skip
    dots.cmap = dots.cmap.with_extremes(bad="0.8")
    for axis, names in (
        (ax.xaxis, topic_labels(found.topic_names, found.words)),
        (ax.yaxis, [found.gene_sets[s] for s in rows]),
    ):
        shown = [shortened(str(name), 40) for name in names]
        axis.set_ticks(range(len(shown)), shown, size=8, parse_math=False)
    ax.tick_params(axis="x", rotation=90)
    ax.set_xlim(-0.6, K - 0.4)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_axisbelow(True)
    ax.grid(color="0.93")
    _legends(ax, dots, most, K)
    return ax


def size_of_plot(found: Any, n_top: int = 3, level: float = 0.05) -> tuple[float, float]:
    """Return the size of the plot in inches."""
    n_rows = len(_rows_of(found, n_top, level))
    return 4.4 + 0.3 * len(found.topic_names), max(3.6, 2.3 + 0.24 * n_rows)


def _rows_of(found: Any, n_top: int, level: float) -> list[int]:
    """Return the sets to draw: the first of each topic, those that are enriched in one."""
    leading = [found.order(k)[:n_top].tolist() for k in range(len(found.topic_names))]
    enriched = [[s for s in sets if found.qvalue[k, s] <= level] for k, sets in enumerate(leading)]
    return list(dict.fromkeys(sum(enriched if any(enriched) else leading, [])))


def _legends(ax: Axes, dots: Any, most: float, K: int) -> None:
    """Draw the scale of the colours, and some dots with the shares that they are."""
    width = 0.3 / max(0.3 * K, 1.2)
    scale = ax.inset_axes((1 + width / 3, 0, width / 3, 0.4))
    ax.figure.colorbar(dots, cax=scale, label="-log10 q")
    shares = [share for share in _LEGEND if share <= 1.2 * most] or [most]
    handles = [
        ax.scatter([], [], s=_AREA * share / most, color="0.4", label=f"{share:.0%}")
        for share in shares
    ]
    ax.legend(
        handles=handles, title="of the set", loc="upper left", frameon=False, fontsize=8,
        title_fontsize=8, bbox_to_anchor=(1, 1.02), labelspacing=0.9,
    )  # fmt: skip
