"""embedding: topics on an embedding of the observations, drawn by scanpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike
from .canvas import plot
from .objects import observations_with_topics

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot
def embedding(
    adata: AnnDataLike,
    basis: str,
    *,
    color: str | Sequence[str] | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    **options: Any,
) -> Any:
    """Draw the topics of each observation on an embedding, by ``sc.pl.embedding``.

    Parameters
    ----------
    adata : AnnData
        Object with a fit by :func:`nmfscale.tl.topics` or loadings by
        :func:`nmfscale.tl.transform`, and an embedding. It is not changed.
    basis : str
        Name of the embedding in ``obsm``, such as "umap", "pca" or "spatial".
    color : str or sequence of str, default=None
        Names of topics, columns of ``obs`` or genes, each for a panel; by default all topics.
    key : str, default="topics"
        Key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on, for a single colour; by default new Axes.
    show, save, return_fig
        As in :func:`structure_plot`.
    **options
        Further arguments of ``sc.pl.embedding``, such as ``ncols=3`` or ``cmap="magma"``. By
        default, colours begin at 0 (``vmin=0``), and titles of topics are labels as in
        :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, list of Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`; a list if there are several panels.

    Raises
    ------
    ImportError
        If scanpy is not installed.
    ValueError
        If there is no such fit or embedding.

    Examples
    --------
    >>> from nmfscale import pl, tl  # doctest: +SKIP
    >>> tl.topics(adata, 10)  # doctest: +SKIP
    >>> axes = pl.embedding(adata, "umap")  # doctest: +SKIP
    """
    try:
        import scanpy
    except ImportError as error:
        raise ImportError(
            "embeddings are drawn by scanpy, which is not installed: pip install "
            "'nmfscale[scanpy]', or pip install scanpy"
        ) from error
    drawn, labels = observations_with_topics(adata, basis, key)
    shown = list(labels) if color is None else [color] if isinstance(color, str) else list(color)
    defaults = {"vmin": 0, "title": [labels.get(name, name) for name in shown]}
    drawn = scanpy.pl.embedding(drawn, basis, color=shown, ax=ax, show=False, **defaults | options)
    return ax if drawn is None else drawn
