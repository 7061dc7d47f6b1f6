"""Common parts of the plots: colours, Axes, and checks of arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import BoundArguments
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from sklearn.utils import check_scalar
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_parameter_constraints,
)

from ..counts.argument_types import PathLike, WeightKind
from ..counts.signatures import takes_options
from ..models.leading_features import OF_LEADING_FEATURES
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

# Options of plots.
Scaling: TypeAlias = Literal["symmetric", "topics", "groups"]
ReplicateStyle: TypeAlias = Literal["density", "histogram"]
IntervalTool: TypeAlias = Literal["group_effects", "bootstrap_weights"]
WhichTests: TypeAlias = Literal["all", "overall", "pairs"]
ProgressX: TypeAlias = Literal["seconds", "iteration"]
ProgressY: TypeAlias = Literal["loglik", "kkt"]

_CONSTRAINTS: dict[str, list[Any]] = OF_LEADING_FEATURES | {
    "groups": ["array-like", HasMethods(["to_frame"]), None],
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
    "n_words": [Interval(Integral, 0, None, closed="left")],
    "threshold": [Interval(Real, 0, 1, closed="neither")],
    "log": ["boolean"],
    "axes": ["array-like"],
    "scaling": [StrOptions(set(get_args(Scaling)))],
    "n_labels": [Interval(Integral, 0, None, closed="left")],
    "bins": [Interval(Integral, 1, None, closed="left")],
    "max_pairs": [Interval(Integral, 1, None, closed="left")],
    "max_batches": [Interval(Integral, 1, None, closed="left")],
    "max_panels": [Interval(Integral, 1, None, closed="left")],
    "max_curves": [Interval(Integral, 1, None, closed="left")],
    "style": [StrOptions(set(get_args(ReplicateStyle)))],
    "kind": [StrOptions(set(get_args(WeightKind)))],
    "tool": [StrOptions(set(get_args(IntervalTool)))],
    "which": [StrOptions(set(get_args(WhichTests)))],
    "gap": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
    "x": [StrOptions(set(get_args(ProgressX)))],
    "y": [StrOptions(set(get_args(ProgressY)))],
    "groupby": [str, None],
    "key": [str],
    "gene_symbols": [str, None],
    "show": [bool, None],
    "save": [str, os.PathLike, None],
    "return_fig": [bool],
}


class FigureOptions(TypedDict, total=False):
    """What every plot can do with its figure; :func:`structure_plot` documents it."""

    show: bool | None
    save: PathLike | None
    return_fig: bool


_OUTPUT: FigureOptions = {"show": None, "save": None, "return_fig": False}


def _draw(draw: Callable[..., Any], bound: BoundArguments, output: FigureOptions) -> Any:
    """Make a plot of a function that draws on Axes and returns them, or returns a chart of Bokeh.

    The types and ranges of its arguments are checked before any work. It does not get `output`.
    """
    _check_arguments(draw.__name__, **bound.arguments, **output)
    return finished(draw(*bound.args, **bound.kwargs), **output)


# Decorator of functions with ``**output: Unpack[FigureOptions]``.
plot = takes_options(FigureOptions, _OUTPUT, _draw)


def _check_arguments(function: str, **arguments: Any) -> None:
    """Check the types and ranges of a plot's arguments."""
    _need_matplotlib()
    from matplotlib.axes import Axes

    constraints = _CONSTRAINTS | {"ax": [Axes, None]}
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


def topic_colors(n_components: int) -> list[str]:
    """Return colours of topics, the same in every plot.

    Parameters
    ----------
    n_components : int
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
    check_scalar(n_components, "n_components", Integral, min_val=0)
    colors = []
    for topic in range(n_components):
        turn, place = divmod(topic, len(PALETTE))
        toward, share = ((0, 0.0), (255, 0.5), (0, 0.4))[turn % 3]
        code = PALETTE[place]
        channels = [int(code[start : start + 2], 16) for start in (1, 3, 5)]
        mixed = [round((1 - share) * value + share * toward) for value in channels]
        colors.append("#" + "".join(f"{value:02X}" for value in mixed))
    return colors


def detached_axes(width: float, height: float, n_axes: int = 1) -> list[Axes]:
    """Return Axes side by side on a figure of this size in inches, without pyplot."""
    _need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return list(figure.subplots(1, n_axes, squeeze=False)[0])


def finished(
    drawn: Any, show: bool | None = None, save: Any = None, return_fig: bool = False
) -> Any:
    """End a plot: save and show its figure as asked for; return the Axes, the figure or None."""
    if type(drawn).__module__.partition(".")[0] == "bokeh":
        from .interactive import finished_chart

        return finished_chart(drawn, show, save)
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
