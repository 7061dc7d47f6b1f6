"""progress_plot: how fits of the same counts approach the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.keys import KEY
from ..annotated.scheme import model_in
from ..counts.argument_types import AnnDataLike
from ..models.pipelines import FittedModel, model_of
from .canvas import (
    FigureOptions,
    ProgressX,
    ProgressY,
    axes_or_new,
    legend_of_names,
    plot,
    topic_colors,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WORDS = {"loglik": "log-likelihood", "elbo": "ELBO"}
# Of which model of the counts a log-likelihood is.
_LIKELIHOODS = {"loglik": "Poisson", "loglik_multinomial": "multinomial"}


def _records(histories: Any, key: str) -> dict[str, Any]:
    """Return the histories by name; check that each has at least one record."""
    if not isinstance(histories, Mapping):
        histories = {"fit": histories}
    fits = {name: model_of(model_in(fit, key)) for name, fit in histories.items()}
    histories = {name: getattr(fit, "history_", fit) for name, fit in fits.items()}
    if not histories:
        raise ValueError("histories is empty: pass at least one name and its history_.")
    for name, history in histories.items():
        fields = getattr(getattr(history, "dtype", None), "names", None)
        if fields is None and not hasattr(history, "columns"):
            raise TypeError(
                f"history of {name!r} must be a structured array or a DataFrame, such as the "
                f"history_ of a fitted model; got {type(history).__name__}."
            )
        if len(history) == 0:
            raise ValueError(f"history of {name!r} has no record: was the model fitted?")
    return {str(name): history for name, history in histories.items()}


def _fields(history: Any) -> list[str]:
    fields = getattr(history, "columns", None)
    return list(history.dtype.names if fields is None else fields)


def objective(history: Any) -> str:
    """Return the field that the fit maximises: the first after iteration and seconds."""
    fields = [name for name in _fields(history) if name not in ("iteration", "seconds")]
    return fields[0] if fields else "loglik"


def ends_of_starts(model: Any) -> str:
    """Return the objectives at the ends of several starts as text; nothing for a single start."""
    starts = getattr(model, "starts_", None)
    if starts is None or len(starts) < 2:
        return ""
    conditions = [starts["kept"], starts["reason"] == b"behind"]
    marks = np.select(conditions, [" (best)", " (abandoned)"], "")
    ends = zip(starts["objective"].tolist(), marks.tolist(), strict=True)
    return ", ".join(f"{objective:,.1f}{mark}" for objective, mark in ends)


def final_objectives(history: Any) -> list[tuple[str, float]]:
    """Return the objective at the end of a fit, and related numbers, with the kind of each.

    The kind of a log-likelihood is "Poisson" or "multinomial"; that of other objectives is empty.
    """
    first = objective(history)
    fields = [name for name in _fields(history) if name == first or name.startswith(f"{first}_")]
    return [(_LIKELIHOODS.get(name, ""), float(history[name][-1])) for name in fields]


def residuals(history: Any) -> list[str]:
    """Return the fields with KKT residuals, if there are any."""
    return [name for name in _fields(history) if name.startswith("kkt_")]


def label(field: str) -> str:
    """Return the label of an objective."""
    return _WORDS.get(field, field.replace("_", " "))


def _column(history: Any, field: str, name: str) -> np.ndarray:
    if field not in _fields(history):
        raise ValueError(f"history of {name!r} has no field {field!r}.")
    return np.asarray(history[field], dtype=np.float64)


def _distances_to_best(fits: dict[str, Any], field: str) -> dict[str, np.ndarray]:
    values = {name: _column(history, field, name) for name, history in fits.items()}
    finite = np.concatenate(list(values.values()))
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        raise ValueError(f"no finite {label(field)} in any of the histories.")
    return {name: np.maximum(finite.max() - value, 0.01) for name, value in values.items()}


def _largest_residuals(fits: dict[str, Any]) -> dict[str, np.ndarray]:
    for name, history in fits.items():
        if not residuals(history):
            raise ValueError(f"history of {name!r} has no KKT residuals: draw y='loglik'.")
    return {
        name: np.max([_column(history, field, name) for field in residuals(history)], axis=0)
        for name, history in fits.items()
    }


@plot
def progress_plot(
    histories: AnnDataLike
    | FittedModel
    | ArrayLike
    | Mapping[str, AnnDataLike | FittedModel | ArrayLike],
    *,
    y: ProgressY = "loglik",
    x: ProgressX = "seconds",
    key: str = KEY,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw how fits of the same counts approach the optimum.

    Parameters
    ----------
    histories : mapping of str to AnnData, fitted model, structured array or DataFrame
        Name of each fit, and an object with the fit, the model or its ``history_``.  A single one
        may be passed without a name.
    y : {"loglik", "kkt"}, default="loglik"
        "loglik" draws the distance to the highest objective that any of the fits reached, on a
        logarithmic scale that ends at 0.01.  The objective is the first field after ``iteration``
        and ``seconds``: the log-likelihood, or whatever the model maximises.  "kkt" draws the
        largest KKT residual, which is meaningful for a single fit, too.
    x : {"seconds", "iteration"}, default="seconds"
        The field on the horizontal axis.
    key : str, default="topics"
        For AnnData objects, the key of the fit.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. There is one line for each fit.

    Raises
    ------
    TypeError
        If a history is neither a structured array nor a DataFrame.
    ValueError
        If `x` or `y` is unknown, if `ax` is not Axes, or if a history is empty or lacks a field.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.pl import progress_plot
    >>> history = np.zeros(3, dtype=[("seconds", float), ("loglik", float)])
    >>> history["seconds"], history["loglik"] = [1, 2, 3], [-900, -120, -100]
    >>> ax = progress_plot({"default": history})
    >>> ax.lines[0].get_ydata().tolist()
    [800.0, 20.0, 0.01]
    """
    fits = _records(histories, key)
    places = {name: _column(history, x, name) for name, history in fits.items()}
    field = objective(next(iter(fits.values())))
    heights = _distances_to_best(fits, field) if y == "loglik" else _largest_residuals(fits)

    ax = axes_or_new(ax, 6.0, 4.0)
    colors = topic_colors(len(fits))
    dashes, markers = ("-", "--", "-.", ":"), "osD^vP*X"
    lines = []
    for turn, (name, height) in enumerate(heights.items()):
        # A logarithmic scale cannot show zeros and unknown values.
        drawn = np.isfinite(height) & (height > 0)
        lines += ax.plot(
            places[name][drawn], height[drawn], label=name, color=colors[turn],
            linestyle=dashes[turn % len(dashes)], linewidth=1.6, marker=markers[turn % 8],
            markersize=4.5, markevery=max(1, int(drawn.sum()) // 12), clip_on=False,
        )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(f"distance to best {label(field)}" if y == "loglik" else "largest KKT residual")
    if y == "loglik":
        ax.set_ylim(bottom=0.01)
    ax.set_xlim(left=0)
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if len(fits) > 1:
        legend_of_names(ax, lines, list(fits))
    return ax
