"""null_plot and forest_plot: null distributions of tests, and estimates with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..annotated.keys import KEY
from ..counts.argument_types import AnnDataLike, ResultLike, WeightKind
from ..models.topics.topic_labels import all_shortened, shortened
from .canvas import (
    PALETTE,
    FigureOptions,
    IntervalTool,
    WhichTests,
    axes_or_new,
    plot,
)
from .objects import result_in
from .panels import Grid, Table, chosen_panels, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ABOVE, _BELOW, _NEUTRAL = PALETTE[0], PALETTE[5], "0.55"
_ROW = 0.155  # distance of two intervals in inches
_LONGEST_TITLE = 32  # letters above a panel of a null distribution


# Tests ----------------------------------------------------------------------------------------


@plot
def null_plot(
    test: AnnDataLike | ResultLike,
    *,
    groupby: str | None = None,
    key: str = KEY,
    which: WhichTests = "all",
    max_pairs: int = 44,
    bins: int = 40,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw the permutation distribution of a test statistic, and its observed value.

    Parameters
    ----------
    test : AnnData, PermutationTest or GroupTest
        Object with a test by :func:`nmfscale.tl.permutation_test`; or the result of
        :func:`nmfscale.permutation_test`, or one of its tests.
    groupby : str, default=None
        For an AnnData object, the column of ``obs`` with the groups that were compared; not needed
        if there is only one.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    which : {"all", "overall", "pairs"}, default="all"
        The tests to draw, each in its own panel.
    max_pairs : int, default=44
        Largest number of pairs to draw: those farthest from their null distribution.
    bins : int, default=40
        Number of bars in each histogram.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The panels are ``child_axes`` of the Axes, in the order of the
        tests. A dashed line marks the observed value. Titles show the p-value, and for pairs also
        the p-value adjusted for all pairs (max-T).

    Raises
    ------
    ValueError
        If an argument has a wrong type or value, or if there are no pairs to draw.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import permutation_test
    >>> from nmfscale.pl import null_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=60)
    >>> test = permutation_test(shares, np.repeat(["a", "b", "c"], 20), random_state=0)
    >>> [panel.get_title().splitlines()[0] for panel in null_plot(test).child_axes]
    ['all 3 groups', 'a - b', 'a - c', 'b - c']
    """
    test = result_in(test, key, "permutation_test", groupby)
    tests, n_left_out = _chosen_tests(test, which, max_pairs)
    caption = f"{getattr(test, 'statistic', 'statistic')} of permuted labels; dashed: observed"
    if n_left_out:
        caption += f"; {n_left_out:,} pairs nearer to their null distribution are not drawn"
    grid = _grid_of_tests(len(tests))
    host = axes_or_new(ax, *grid.size)
    names = all_shortened([name for comparison in tests for name in comparison.groups], 14)
    for panel, comparison in zip(grid.draw(host, caption), tests, strict=True):
        panel.hist(comparison.null, bins=bins, color="0.72")
        panel.axvline(comparison.observed, color=_BELOW, linestyle="--", linewidth=1.4)
        panel.set_title(_title_of(comparison, names), size=8, parse_math=False)
        panel.set_yticks([])
    return host


def size_of_tests(test: Any) -> tuple[float, float]:
    """Return width and height in inches of a figure for all tests."""
    return _grid_of_tests(len(_chosen_tests(test, "all", 44)[0])).size


def _grid_of_tests(n_tests: int) -> Grid:
    return Grid(n_tests, *((3.6, 2.2) if n_tests == 1 else (1.9, 1.1)))


def _chosen_tests(test: Any, which: str, max_pairs: int) -> tuple[list[Any], int]:
    """Return the tests to draw, the overall test first, and the number of pairs left out."""
    if hasattr(test, "observed"):
        return [test], 0
    if not hasattr(test, "overall"):
        raise ValueError(
            f"test is a {type(test).__name__}: pass the result of permutation_test, or one of its "
            "tests."
        )
    pairs = [] if which == "overall" else list(test.pairs)
    if which == "pairs" and not pairs:
        raise ValueError("test has no pairs, as it compares two groups: use which='overall'.")
    n_left_out = max(0, len(pairs) - max_pairs)
    if n_left_out:
        far = np.argsort([-pair.zscore for pair in pairs], kind="stable")[:max_pairs]
        pairs = [pairs[i] for i in np.sort(far)]
    return ([] if which == "pairs" else [test.overall]) + pairs, n_left_out


def _title_of(test: Any, short: dict[Any, str]) -> str:
    names = [short[name] for name in test.groups]
    title = " - ".join(names) if len(names) == 2 else f"all {len(names)} groups"
    if len(title) > _LONGEST_TITLE:
        title = title.replace(" - ", " -\n", 1)
    more = f" of {test.null.size:,} labellings" if test.exact else ""
    if test.pvalue_maxt != test.pvalue:
        more = f", max-T {_rounded(test.pvalue_maxt)}"
    return f"{title}\np = {_rounded(test.pvalue)}{more}"


def _rounded(pvalue: float) -> str:
    return f"{pvalue:.2g}" if pvalue < 0.995 else "1"


# Intervals ------------------------------------------------------------------------------------


@plot
def forest_plot(
    result: AnnDataLike | ResultLike,
    kind: WeightKind = "RwT",
    *,
    groupby: str | None = None,
    tool: IntervalTool = "group_effects",
    key: str = KEY,
    panels: Sequence[Any] | None = None,
    n_top: int = 10,
    max_panels: int = 8,
    topic_names: Sequence[str] | None = None,
    group_names: Sequence[str] | None = None,
    ax: Axes | None = None,
    **output: Unpack[FigureOptions],
) -> Any:
    """Draw weights or means of groups within topics, or of topics within groups, with intervals.

    Rows are in the order of the result, the same in all panels. A line marks the neutral weight,
    which all topics would have in all groups if there were no difference. Intervals above it are
    blue, intervals below it orange.

    Parameters
    ----------
    result : AnnData, BootstrapWeights, BootstrapFit, or any object of arrays
        One of the following: an AnnData object with a result of `tool`; the result of
        :func:`nmfscale.bootstrap_weights`; the result of :func:`nmfscale.bootstrap_fit` with groups
        or of :func:`nmfscale.group_effects`, to draw mean proportions; the differences in the
        latter; the result of :func:`nmfscale.regress_proportions`, whose terms take the place of
        groups; or an object with arrays ``estimate`` or ``means``, ``lower`` and ``upper`` of shape
        (n_components, n_groups).
    kind : {"RwT", "TwR"}, default="RwT"
        "RwT" (regions within topics) draws a panel with all groups for each topic; "TwR" a panel
        with all topics for each group.
    groupby : str, default=None
        For an AnnData object, the column of ``obs`` with the groups; not needed if there is only
        one result.
    tool : {"group_effects", "bootstrap_weights"}, default="group_effects"
        For an AnnData object, the tool of ``nmfscale.tl`` whose result is drawn.
    key : str, default="topics"
        For an AnnData object, the key of the fit.
    panels : sequence, default=None
        Names of the topics ("RwT") or groups ("TwR") to draw. By default, those in which two
        intervals are farthest apart.
    n_top : int, default=10
        If there are more than 2 `n_top` rows, only the 2 `n_top` are drawn whose estimates are
        farthest from the mean of a panel.
    max_panels : int, default=8
        Largest number of panels if `panels` is None.
    topic_names, group_names : sequence of str, default=None
        Names; by default those of the result. Topics without a name have their number and two
        leading features, such as "0 file, files", if the result comes from a model whose features
        have names; others are "topic 0", "group 0", ...
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. The panels are ``child_axes`` of the Axes; all have the same
        horizontal scale.

    Raises
    ------
    ValueError
        If the arrays are not finite or differ in shape, if the number of names is wrong, or if
        another argument has a wrong type or value.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale import bootstrap_weights
    >>> from nmfscale.pl import forest_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=120)
    >>> found = bootstrap_weights(shares, np.repeat(["a", "b"], 60), random_state=0)
    >>> [panel.get_title() for panel in forest_plot(found, "TwR").child_axes]
    ['a', 'b']
    """
    result = result_in(result, key, tool, groupby)
    whole = table_of(result, kind, topic_names, group_names)
    table = whole.of(chosen_panels(whole, panels, max_panels))
    neutral = getattr(result, "neutral", None)
    what = "mean proportion" if neutral is None else "balanced weight"
    if neutral == 0:
        regressed = hasattr(result, "coefficients")
        what = "coefficient" if regressed else "difference of mean proportions"
    level = getattr(result, "level", None)
    caption = [what, "intervals" if level is None else f"{level:.0%} intervals"]
    if neutral is not None:
        caption.append(f"line: neutral, {neutral:.3g}")
    if panels is None and len(table.panels) < len(whole.panels):
        caption.append(f"{len(table.panels)} of {len(whole.panels)} panels")
    rows = _chosen_rows(table, n_top)
    if len(rows) < len(table.rows):
        caption.append(f"{len(rows)} of {len(table.rows)} rows")
    grid = _grid_of_intervals(table, n_top)
    host = axes_or_new(ax, *grid.size)
    drawn = grid.draw(host, "; ".join(caption))
    limits = _limits(table, neutral)
    for i, panel in enumerate(drawn):
        _draw_intervals(panel, table, i, rows, neutral)
        title = shortened(table.panel_labels[i], 28)
        panel.set_title(title, size=8, weight="bold", parse_math=False)
        panel.set_xlim(*limits)
    return host


def size_of_intervals(result: Any, kind: str) -> tuple[float, float]:
    """Return width and height in inches of a figure for the panels drawn by default."""
    table = table_of(result, kind, None, None)
    return _grid_of_intervals(table.of(chosen_panels(table, None, 8)), 10).size


def _grid_of_intervals(table: Table, n_top: int) -> Grid:
    # an inch holds about 17 letters of this size
    labels = 0.1 + max(len(shortened(name, 24)) for name in table.row_labels) / 16
    n_rows = min(len(table.rows), 2 * n_top)
    return Grid(len(table.panels), 1.7, _ROW * (n_rows + 0.6), labels)


def _limits(table: Table, neutral: float | None) -> tuple[float, float]:
    """Return the limits of a common scale for all intervals."""
    values = [table.lower.min(), table.estimate.min(), table.upper.max(), table.estimate.max()]
    values += [] if neutral is None else [neutral]
    margin = 0.04 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin


def _chosen_rows(table: Table, n_top: int) -> list[int]:
    """Return the rows of every panel in their order, at most 2 `n_top`."""
    away = np.abs(table.estimate - table.estimate.mean(axis=1, keepdims=True)).max(axis=0)
    return sorted(np.argsort(-away, kind="stable")[: 2 * n_top].tolist())


def _draw_intervals(
    panel: Axes, table: Table, i: int, rows: list[int], neutral: float | None
) -> None:
    """Draw the intervals of one panel, the first row at the top."""
    y = np.arange(len(rows), dtype=float)
    estimate, lower, upper = (array[i, rows] for array in table[:3])
    colors = np.full(len(rows), _NEUTRAL, object)
    if neutral is not None:
        colors[lower > neutral], colors[upper < neutral] = _ABOVE, _BELOW
        panel.axvline(neutral, color="0.6", linewidth=0.8, zorder=0)
    panel.hlines(y, lower, upper, colors=colors.tolist(), linewidth=1.6)
    panel.scatter(estimate, y, c=colors.tolist(), s=12, zorder=3)
    panel.set_ylim(y[-1] + 0.8, -0.8)
    names = [shortened(table.row_labels[k], 24) for k in rows]
    panel.set_yticks(y, names, parse_math=False)
    panel.tick_params(axis="y", length=0)
