"""Common parts of the plots: colours, Axes, and checks of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_scalar
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_parameter_constraints,
)

from ..counts.foreign import imported_pandas
from ..methods.score_names import SCORES
from .fonts import complete_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The seven colours of Okabe and Ito, then colours that are far from these and from each other in
# CIELAB for normal, protan, deutan and tritan vision (greedy search, moderate chroma).
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442",
    "#4B2D4B", "#A5D278", "#691E00", "#D2B4D2", "#2D2D78", "#69783C", "#F0B4A5",
    "#A5F0D2", "#874B78", "#A5964B", "#0F5A2D", "#963C5A", "#999999",
)  # fmt: skip

_CONSTRAINTS: dict[str, list[Any]] = {
    "groups": ["array-like", None],
    "feature_names": ["array-like", None],
    "topic_names": ["array-like", None],
    "group_names": ["array-like", None],
    "panels": ["array-like", None],
    "curves": ["array-like", None],
    "class_names": ["array-like", None],
    "sort": ["boolean"],
    "names_a": ["array-like", None],
    "names_b": ["array-like", None],
    "colors": ["array-like", None],
    "max_samples": [Interval(Integral, 1, None, closed="left")],
    "n_top": [Interval(Integral, 1, None, closed="left")],
    "n_words": [Interval(Integral, 0, None, closed="left")],
    "threshold": [Interval(Real, 0, 1, closed="neither")],
    "log": ["boolean"],
    "axes": ["array-like"],
    "scaling": [StrOptions({"symmetric", "topics", "groups"})],
    "n_labels": [Interval(Integral, 0, None, closed="left")],
    "bins": [Interval(Integral, 1, None, closed="left")],
    "max_pairs": [Interval(Integral, 1, None, closed="left")],
    "max_panels": [Interval(Integral, 1, None, closed="left")],
    "max_curves": [Interval(Integral, 1, None, closed="left")],
    "style": [StrOptions({"density", "histogram"})],
    "kind": [StrOptions({"TwR", "RwT"})],
    "tool": [StrOptions({"group_effects", "bootstrap_weights"})],
    "which": [StrOptions({"all", "overall", "pairs"})],
    "gap": [Interval(Real, 0, None, closed="left"), None],
    "score": [StrOptions(set(SCORES)), "array-like", HasMethods(["topic_number"])],
    "weight": [Interval(Real, 0, 1, closed="both"), None],
    "feature_totals": ["array-like", None],
    "min_count": [Interval(Real, 0, None, closed="left")],
    "random_state": ["random_state"],
    "x": [StrOptions({"seconds", "iteration"})],
    "y": [StrOptions({"loglik", "kkt"})],
    "groupby": [str, None],
    "key": [str],
    "gene_symbols": [str, None],
    "show": [bool, None],
    "save": [str, PathLike, None],
    "return_fig": [bool],
}


def check_arguments(function: str, **arguments: Any) -> None:
    """Check the types and ranges of a plot's arguments before any work."""
    constraints = dict(_CONSTRAINTS)
    if "ax" in arguments:
        _need_matplotlib()
        from matplotlib.axes import Axes

        constraints["ax"] = [Axes, None]
    validate_parameter_constraints(constraints, arguments, function)


def _need_matplotlib() -> None:
    """Raise an error that says how to install matplotlib, if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "plots need the package matplotlib: pip install 'nmfscale[plot]', "
            "or pip install matplotlib"
        ) from error


def topic_colors(n_topics: int) -> list[str]:
    """Return colours of topics, the same in every plot.

    Parameters
    ----------
    n_topics : int
        Number of colours, not negative.

    Returns
    -------
    list of str
        Hexadecimal colours.  The first twenty can be distinguished by colour-blind readers.
        Lighter and darker versions of them follow; after sixty the list repeats.

    Examples
    --------
    >>> from nmfscale.pl import topic_colors
    >>> topic_colors(3)
    ['#0072B2', '#E69F00', '#009E73']
    """
    check_scalar(n_topics, "n_topics", Integral, min_val=0)
    colors = []
    for topic in range(n_topics):
        turn, place = divmod(topic, len(PALETTE))
        toward, share = ((0, 0.0), (255, 0.5), (0, 0.4))[turn % 3]
        code = PALETTE[place]
        channels = [int(code[start : start + 2], 16) for start in (1, 3, 5)]
        mixed = [round((1 - share) * value + share * toward) for value in channels]
        colors.append("#" + "".join(f"{value:02X}" for value in mixed))
    return colors


def detached_axes(width: float, height: float, n_axes: int = 1) -> list[Axes]:
    """Create Axes side by side on a figure without pyplot, which needs no display.

    Parameters
    ----------
    width, height : float
        Size of the figure in inches.
    n_axes : int, default=1
        Number of Axes.

    Returns
    -------
    list of matplotlib.axes.Axes
        The Axes. Save the figure with ``axes[0].figure.savefig(path)``.

    Examples
    --------
    >>> from nmfscale.pl import detached_axes
    >>> ax = detached_axes(4.0, 3.0)[0]
    >>> ax.figure.get_size_inches().tolist()
    [4.0, 3.0]
    """
    _need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return list(figure.subplots(1, n_axes, squeeze=False)[0])


def finished(
    drawn: Any, show: bool | None = None, save: Any = None, return_fig: bool = False
) -> Any:
    """End a plot: save and show its figure as asked for; return the Axes, the figure or None."""
    first: Any = drawn[0] if isinstance(drawn, list) else drawn
    figure = first.figure.figure  # the whole figure, if the Axes are in a subfigure
    complete_figure(figure)
    if save is not None:
        figure.savefig(save, dpi=150, bbox_inches="tight")
    if show:
        import matplotlib.pyplot as plt

        plt.show()
    if return_fig:
        return figure
    return None if show else drawn


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """Return `ax`, or the Axes of a new pyplot figure of this size in inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def size_in_inches(ax: Axes) -> tuple[float, float]:
    """Return the width and height of Axes in inches."""
    extent = ax.get_window_extent()
    return extent.width / ax.figure.dpi, extent.height / ax.figure.dpi


def legend_of_names(ax: Axes, handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Add a legend that shows names literally: matplotlib would interpret "_" and "$" in them."""
    legend = ax.legend(handles, [""] * len(names), frameon=False, **options)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, parse_math=False)


def nonnegative_matrix(values: Any, name: str, axes: str, example: str) -> np.ndarray:
    """Return `values` as a non-empty, finite, non-negative float64 matrix."""
    try:
        if hasattr(type(values), "obs_names"):  # NumPy would convert an AnnData object row by row
            raise TypeError
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        remedy = "call its toarray()" if hasattr(values, "toarray") else f"pass {example}"
        raise ValueError(
            f"{name} must be a dense matrix of numbers ({axes}); got {type(values).__name__}: "
            f"{remedy}."
        ) from error
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must be a non-empty matrix ({axes}); got shape {matrix.shape}.")
    bad = ~(np.isfinite(matrix) & (matrix >= 0))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must be finite and non-negative; row {row}, column {column} holds "
            f"{matrix[row, column]}."
        )
    return matrix


def holds_names(index: Any) -> bool:
    """Return whether an index of pandas holds names: consecutive numbers, its default, are none."""
    # pandas 3 makes a RangeIndex of rows or columns selected in steps, such as in reverse order
    return hasattr(index, "isin") and (type(index).__name__ != "RangeIndex" or index.step != 1)


def index_of(names: Any) -> Any:
    """Return names of a model as an index of pandas; None stays None."""
    if names is None:
        return None
    pd = imported_pandas("names of samples in plots")

    return pd.Index(names, tupleize_cols=False)


def matched_by_name(values: Any, names: Any, argument: str, subject: str) -> Any:
    """Return a pandas object or dict with its entries in the order of an index.

    This is the rule of `nmfscale.counts.names`, implemented with pandas. Entries stay as they are
    if one side has no names (see `holds_names`).
    """
    if isinstance(values, dict):
        if not holds_names(names):
            raise ValueError(
                f"{argument} is a dict, but {subject} has no names to look up in it: pass a "
                f"DataFrame with names, or {argument} as a list."
            )
        pandas = imported_pandas("labels by name")
        values = pandas.Series(list(values.values()), pandas.Index(list(values)), dtype=object)
    own: Any = getattr(values, "index", None) if hasattr(values, "iloc") else None
    if not holds_names(own) or not holds_names(names):
        return values
    if "string" in (own.inferred_type, names.inferred_type):  # numbers match their text
        own, names = own.map(str), names.map(str)
    if own.equals(names):
        return values
    lacking = names[~names.isin(own)].tolist()
    if lacking:
        raise ValueError(
            f"{argument} has no entry for {len(lacking):,} names in {subject}, such as "
            f"{', '.join(map(repr, lacking[:3]))}: add them, or pass "
            f"{argument}.reset_index(drop=True) to match entries by position."
        )
    for index, whose in ((names, subject), (own[own.isin(names)], argument)):
        repeated = index[index.duplicated()].tolist()
        if repeated:
            raise ValueError(
                f"{whose} has a name twice, {repeated[0]!r}, so {argument} cannot be matched by "
                "name: make names unique."
            )
    return values.iloc[own.get_indexer_for(names)]


def names_of_topics(n_topics: int) -> list[str]:
    """Return default names of topics, numbered from 0 like the rows of ``components_``."""
    return [f"topic {topic}" for topic in range(n_topics)]


def names_and_colors(
    names: Sequence[str] | None, colors: Sequence[Any] | None, n_topics: int
) -> tuple[list[str], list[Any]]:
    """Return names and colours of topics: those passed, or the defaults."""
    if names is None:
        names = names_of_topics(n_topics)
    elif len(names) != n_topics:
        raise ValueError(f"topic_names has {len(names)} entries for {n_topics} topics.")
    if colors is None:
        colors = topic_colors(n_topics)
    elif len(colors) < n_topics:
        raise ValueError(f"colors has {len(colors)} entries for {n_topics} topics.")
    return [str(name) for name in names], list(colors[:n_topics])
