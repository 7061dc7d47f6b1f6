"""class_heatmap: which classes each topic of a semi-supervised fit predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..counts.structure import nonnegative_matrix
from ..methods.factors import proportions
from ..models.pipelines import FittedModel, model_of
from ..models.topics.topic_labels import labels_of
from .canvas import FigureOptions, plot
from .heat_map import heat_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot
def class_heatmap(
    weights: FittedModel | ArrayLike,
    *,
    class_names: Sequence[str] | None = None,
    topic_names: Sequence[str] | None = None,
    sort: bool = True,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the distribution of each topic over the classes as a heat map.

    A row is a class or target, a column a topic. A column is the column of B, the weights of a
    topic in the classes, divided by its sum, as in figures 2 to 4 of Haddock et al.: a topic whose
    column has one dark cell belongs to one class, others are shared. Columns of topics without
    weights are empty.

    Parameters
    ----------
    weights : fitted SSNMF, pipeline that ends with one, or array-like of shape (n_classes, K)
        The model, or non-negative weights, such as its ``target_components_`` or the positive
        coefficients of a linear classifier of loadings.
    class_names : sequence of str, default=None
        Names of the rows; by default ``classes_`` of the model, or "class 0", "class 1", ...
    topic_names : sequence of str, default=None
        Names of the topics in the order of the model; by default as in :func:`structure_plot`.
    sort : bool, default=True
        Whether topics are arranged by the class in which they have the largest share, then by this
        share; otherwise they are in the order of the model.
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
        If the weights are not a matrix of non-negative numbers, the model was fitted without
        labels, or the number of names is wrong.

    Examples
    --------
    >>> from nmfscale import SSNMF
    >>> from nmfscale.pl import class_heatmap
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [0, 1, 0, 2]]
    >>> model = SSNMF(n_components=2, random_state=0).fit(X, ["fruit", "tools", None, None])
    >>> ax = class_heatmap(model)
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['fruit', 'tools']
    """
    model = model_of(weights)
    matrix: Any = getattr(model, "target_components_", weights)
    if len(matrix) == 0:
        raise ValueError("the model was fitted without labels: its topics have no classes.")
    B = nonnegative_matrix(matrix, "weights", "classes x topics", "a fitted SSNMF")
    shares = proportions(B.T).T
    classes = _names(class_names, getattr(model, "classes_", None), "class", "classes", len(B))
    labels = labels_of(model) if hasattr(model, "components_") else None
    topics = _names(topic_names, labels, "topic", "topics", B.shape[1])
    order = np.arange(B.shape[1])
    if sort:
        order = np.lexsort((-shares.max(axis=0), shares.argmax(axis=0)))
    ax = heat_map(shares[:, order], classes, [topics[k] for k in order], "share of the topic", ax)
    return ax


def _names(requested: Any, model_names: Any, one: str, several: str, size: int) -> list[str]:
    """Return the names that are given, those of the model, or numbered ones."""
    names = model_names if requested is None else requested
    if names is None:
        names = [f"{one} {i}" for i in range(size)]
    if len(names) != size:
        raise ValueError(f"{one}_names has {len(names)} entries for {size} {several}.")
    return [str(name) for name in names]
