"""Plots of a fit: arrays in, Axes out.

Each function draws on the Axes it is given, or on a new pyplot figure when given none, and
returns the Axes.  Nothing here calls ``show`` or changes matplotlib's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "detached_axes",
    "progress_plot",
    "structure_plot",
    "top_features",
    "top_features_plot",
    "topic_colors",
]

# Okabe and Ito's seven, then colours that stay apart from them and from each other in CIELAB under
# normal, protan, deutan and tritan vision (greedy search, moderate chroma).
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442",
    "#4B2D4B", "#A5D278", "#691E00", "#D2B4D2", "#2D2D78", "#69783C", "#F0B4A5",
    "#A5F0D2", "#874B78", "#A5964B", "#0F5A2D", "#963C5A", "#999999",
)  # fmt: skip


def topic_colors(n_topics: int) -> list[str]:
    """Colours of topics 1, 2, ..., the same in every plot.

    Parameters
    ----------
    n_topics : int
        Number of colours.

    Returns
    -------
    list of str
        Hexadecimal colours.  The first twenty stay apart for colour-blind readers; beyond those,
        lighter and darker versions follow, and after sixty the list starts again.

    Examples
    --------
    >>> from nmfscale.plots import topic_colors
    >>> topic_colors(3)
    ['#0072B2', '#E69F00', '#009E73']
    """
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
    """Axes side by side on a figure that pyplot and the display know nothing of.

    Parameters
    ----------
    width, height : float
        Size of the figure in inches.
    n_axes : int, default=1
        Number of Axes.

    Returns
    -------
    list of matplotlib.axes.Axes
        Save with ``axes[0].figure.savefig(path)``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return list(figure.subplots(1, n_axes, squeeze=False)[0])


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def _nonnegative_matrix(values: Any, name: str, axes: str) -> np.ndarray:
    """Return `values` as a non-empty, finite, non-negative float64 matrix."""
    matrix = np.asarray(values, dtype=np.float64)
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


def _rows_to_one(matrix: np.ndarray) -> np.ndarray:
    """Divide each row by its sum; rows of zeros stay."""
    sums = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0)


def _topic_names(names: Sequence[str] | None, n_topics: int) -> list[str]:
    if names is None:
        return [f"topic {topic + 1}" for topic in range(n_topics)]
    if len(names) != n_topics:
        raise ValueError(f"topic_names has {len(names)} entries for {n_topics} topics.")
    return [str(name) for name in names]


def _colors_for(colors: Sequence[Any] | None, n_topics: int) -> list[Any]:
    if colors is None:
        return topic_colors(n_topics)
    if len(colors) < n_topics:
        raise ValueError(f"colors has {len(colors)} entries for {n_topics} topics.")
    return list(colors[:n_topics])


def _grouping(groups: Any, n_samples: int) -> tuple[list[str], np.ndarray]:
    """Return the labels in drawing order and, for each sample, the number of its label."""
    if groups is None:
        return [""], np.zeros(n_samples, dtype=np.intp)
    categorical = getattr(groups, "cat", groups)  # a pandas Series keeps its categories here
    values = np.asarray(groups, dtype=object)
    if values.shape != (n_samples,):
        raise ValueError(
            f"groups must hold one label per sample, shape ({n_samples},); got {values.shape}."
        )
    # None, NaN and NaT are the labels that are missing or differ from themselves.
    missing = [value is None or bool(value != value) for value in values]
    labels = np.where(missing, "(no group)", values.astype(str)).tolist()
    order: list[str] = []
    if hasattr(categorical, "categories"):
        order = [str(label) for label in categorical.categories]
    present = set(labels)
    order = [label for label in order if label in present]
    order += sorted(present.difference(order), key=lambda label: (label == "(no group)", label))
    number = {label: place for place, label in enumerate(order)}
    return order, np.array([number[label] for label in labels], dtype=np.intp)


def _thin_out(members: list[np.ndarray], max_samples: int, rng: Any) -> list[np.ndarray]:
    """Draw about `max_samples` of all members, by group size, small groups kept visible."""
    sizes = np.array([len(member) for member in members])
    if sizes.sum() <= max_samples:
        return members
    ends = np.rint(np.cumsum(sizes) * (max_samples / sizes.sum())).astype(int)
    least = max(1, max_samples // (10 * len(members)))
    quotas = np.minimum(sizes, np.maximum(least, np.diff(ends, prepend=0)))
    return [
        np.sort(rng.permutation(member)[:quota])
        for member, quota in zip(members, quotas, strict=True)
    ]


def _topic_chain(shares: np.ndarray, dominant: np.ndarray) -> list[int]:
    """Line up the topics that dominate some sample so that neighbours share samples."""
    rest, sizes = np.unique(dominant, return_counts=True)
    overlap = shares.T @ shares
    norm = np.sqrt(overlap.diagonal())
    chain = [int(rest[sizes.argmax()])]
    left = [int(topic) for topic in rest if topic != chain[0]]
    while left:
        ends = [chain[0], chain[-1]]
        similarity = overlap[np.ix_(ends, left)] / (norm[ends][:, None] * norm[left])
        end, nearest = np.unravel_index(similarity.argmax(), similarity.shape)
        chain.insert(0 if end == 0 else len(chain), left.pop(int(nearest)))
    return chain


def _order_within(shares: np.ndarray) -> np.ndarray:
    """Order one group's samples: by dominant topic, sliding from one topic into the next."""
    dominant = shares.argmax(axis=1)
    chain = _topic_chain(shares, dominant)
    if len(chain) == 1:
        return np.argsort(-shares[:, chain[0]], kind="stable")
    blocks = []
    for place, topic in enumerate(chain):
        block = np.flatnonzero(dominant == topic)
        # At the ends of the chain the topic itself stands for the missing neighbour.
        before = chain[place - 1] if place > 0 else topic
        after = chain[place + 1] if place + 1 < len(chain) else topic
        slide = shares[block, after] - shares[block, before]
        blocks.append(block[np.argsort(slide, kind="stable")])
    return np.concatenate(blocks)


def _staircase(left: float, heights: np.ndarray) -> np.ndarray:
    """Outline, from the ground up, of bars one wide that start at `left`."""
    edges = left + np.arange(len(heights) + 1)
    x = np.concatenate([edges[:1], np.repeat(edges, 2)[1:-1], edges[-1:]])
    y = np.concatenate([[0.0], np.repeat(heights, 2), [0.0]])
    return np.column_stack([x, y])


def _width_in_inches(ax: Axes) -> float:
    return ax.get_window_extent().width / ax.figure.dpi


def _label_groups(ax: Axes, labels: list[str], centres: list[float]) -> None:
    """Write the group labels below the bars, upright only where they fit side by side."""
    if labels == [""]:
        ax.set_xticks([])
        return
    ax.set_xticks(centres, labels)
    # About twelve letters of this size go into an inch.
    places = 12 * _width_in_inches(ax) / ax.get_xlim()[1] * np.array(centres)
    lengths = np.array([len(label) for label in labels])
    if (np.diff(places) < (lengths[:-1] + lengths[1:]) / 2 + 1).any():
        for text in ax.get_xticklabels():
            text.set(rotation=40, ha="right", rotation_mode="anchor", size=8)


def structure_plot(
    proportions: Any,
    groups: Any = None,
    *,
    max_samples: int = 2000,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    gap: float | None = None,
    random_state: Any = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the topic proportions of each sample as a stacked bar.

    Samples stand in groups.  Within a group they are sorted by their largest topic, the topics
    lined up by similarity, and slide from each topic into the next; the order depends on the
    proportions alone.

    Parameters
    ----------
    proportions : array-like of shape (n_samples, n_topics)
        Non-negative loadings.  Every row is divided by its sum; rows of zeros stay blank.
    groups : array-like of shape (n_samples,), default=None
        Label of each sample.  A pandas categorical keeps the order of its categories, other
        labels are sorted.  Missing labels are gathered in "(no group)".  None draws one group.
    max_samples : int, default=2000
        Above this number a random subset is drawn, by group size, of about this size.
    topic_names : sequence of str, default=None
        Names for the legend; "topic 1", "topic 2", ... by default.
    colors : sequence of colors, default=None
        One per topic; :func:`topic_colors` by default.
    gap : float, default=None
        Space between groups, counted in samples; by default 1.5% of the samples drawn.
    random_state : int, RandomState instance or None, default=0
        Chooses the subset.
    ax : matplotlib.axes.Axes, default=None
        Where to draw; a new pyplot figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The bars are one ``PolyCollection``, ``ax.collections[-1]``.

    Raises
    ------
    ValueError
        If the proportions are not a finite non-negative matrix, or if another argument does not
        fit their shape.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.plots import structure_plot
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=60)
    >>> ax = structure_plot(shares, np.repeat(["young", "old"], 30))
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['old', 'young']
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from sklearn.utils import check_random_state

    shares = _nonnegative_matrix(proportions, "proportions", "samples x topics")
    n_samples, n_topics = shares.shape
    names = _topic_names(topic_names, n_topics)
    fills = _colors_for(colors, n_topics)
    if max_samples < 1:
        raise ValueError(f"max_samples must be at least 1; got {max_samples}.")
    if gap is not None and gap < 0:
        raise ValueError(f"gap must not be negative; got {gap}.")
    shares = _rows_to_one(shares)

    labels, number = _grouping(groups, n_samples)
    members = [np.flatnonzero(number == group) for group in range(len(labels))]
    members = _thin_out(members, max_samples, check_random_state(random_state))
    n_drawn = sum(map(len, members))
    gap = 0.015 * n_drawn if gap is None else gap

    left, outlines, centres = 0.0, [], []
    for member in members:
        ordered = shares[member[_order_within(shares[member])]]
        cumulated = np.cumsum(ordered, axis=1)
        outlines.append([_staircase(left, cumulated[:, topic]) for topic in range(n_topics)])
        centres.append(left + len(member) / 2)
        left += len(member) + gap

    ax = _axes(ax, 9.0, 3.6)
    # Tallest first, each over the one before: no background shows through between the bars.
    stack = [outline[topic] for topic in reversed(range(n_topics)) for outline in outlines]
    paint = [fills[topic] for topic in reversed(range(n_topics)) for _ in outlines]
    ax.add_collection(PolyCollection(stack, facecolors=paint, edgecolors="none", linewidths=0))
    ax.set(xlim=(0, left - gap), ylim=(0, 1), yticks=[0, 0.5, 1], ylabel="topic proportion")
    _label_groups(ax, labels, centres)
    if n_drawn < n_samples:
        ax.set_xlabel(f"{n_drawn:,} of {n_samples:,} samples")
    elif labels == [""]:
        ax.set_xlabel(f"{n_samples:,} samples")
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.tick_params(axis="x", length=0)
    keys = [Patch(facecolor=fills[k], label=names[k]) for k in reversed(range(n_topics))]
    _legend_outside(ax, handles=keys, ncols=1 + (n_topics - 1) // 12)
    return ax


def _legend_outside(ax: Axes, **options: Any) -> None:
    """Put the legend to the right of the Axes, where it hides nothing."""
    ax.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False,
        handlelength=1.0, handleheight=1.0, labelspacing=0.35, fontsize=9, **options,
    )  # fmt: skip


def _records(histories: Any) -> dict[str, Any]:
    """Return histories by name, after checking that each has at least one record."""
    if not isinstance(histories, Mapping):
        histories = {"fit": histories}
    if not histories:
        raise ValueError("histories is empty: give at least one name and its history_.")
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


def _column(history: Any, field: str, name: str) -> np.ndarray:
    fields = getattr(history, "columns", None)
    if field not in (history.dtype.names if fields is None else fields):
        raise ValueError(f"history of {name!r} has no field {field!r}.")
    return np.asarray(history[field], dtype=np.float64)


def _distances_to_best(fits: dict[str, Any]) -> dict[str, np.ndarray]:
    logliks = {name: _column(history, "loglik", name) for name, history in fits.items()}
    known = np.concatenate(list(logliks.values()))
    known = known[np.isfinite(known)]
    if known.size == 0:
        raise ValueError("no finite log-likelihood in any of the histories.")
    return {name: np.maximum(known.max() - loglik, 0.01) for name, loglik in logliks.items()}


def _largest_residuals(fits: dict[str, Any]) -> dict[str, np.ndarray]:
    sides = "kkt_loadings", "kkt_factors"
    return {
        name: np.maximum(*(_column(history, side, name) for side in sides))
        for name, history in fits.items()
    }


def progress_plot(
    histories: Any, *, y: str = "loglik", x: str = "seconds", ax: Axes | None = None
) -> Axes:
    """Draw how fits of the same counts approached the optimum.

    Parameters
    ----------
    histories : mapping of str to structured array or DataFrame
        Name of each fit and its ``history_``.  A single history may be given as it is.
    y : {"loglik", "kkt"}, default="loglik"
        "loglik" draws the distance to the highest log-likelihood that any of the fits reached,
        on a logarithmic scale that ends at 0.01.  "kkt" draws the larger of the two KKT
        residuals, which needs no other fit to compare with.
    x : {"seconds", "iteration"}, default="seconds"
        What runs along the horizontal axis.
    ax : matplotlib.axes.Axes, default=None
        Where to draw; a new pyplot figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        One line for each fit.

    Raises
    ------
    TypeError
        If a history is neither a structured array nor a DataFrame.
    ValueError
        If `x` or `y` is unknown, or if a history is empty or lacks a field.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.plots import progress_plot
    >>> history = np.zeros(3, dtype=[("seconds", float), ("loglik", float)])
    >>> history["seconds"], history["loglik"] = [1, 2, 3], [-900, -120, -100]
    >>> ax = progress_plot({"default": history})
    >>> ax.lines[0].get_ydata().tolist()
    [800.0, 20.0, 0.01]
    """
    for name, value, allowed in (("y", y, ("loglik", "kkt")), ("x", x, ("seconds", "iteration"))):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}; got {value!r}.")
    fits = _records(histories)
    places = {name: _column(history, x, name) for name, history in fits.items()}
    heights = _distances_to_best(fits) if y == "loglik" else _largest_residuals(fits)

    ax = _axes(ax, 6.0, 4.0)
    colors = topic_colors(len(fits))
    dashes, markers = ("-", "--", "-.", ":"), "osD^vP*X"
    for turn, (name, height) in enumerate(heights.items()):
        # Zeros and unknown values have no place on a logarithmic scale.
        drawn = np.isfinite(height) & (height > 0)
        ax.plot(
            places[name][drawn], height[drawn], label=name, color=colors[turn],
            linestyle=dashes[turn % len(dashes)], linewidth=1.6, marker=markers[turn % 8],
            markersize=4.5, markevery=max(1, int(drawn.sum()) // 12), clip_on=False,
        )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel("distance to best log-likelihood" if y == "loglik" else "largest KKT residual")
    if y == "loglik":
        ax.set_ylim(bottom=0.01)
    ax.set_xlim(left=0)
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if len(fits) > 1:
        ax.legend(frameon=False)
    return ax


def _leading_features(
    components: Any, feature_names: Any, n_top: int, distinctive: bool
) -> tuple[np.ndarray, list[str], list[np.ndarray]]:
    """Return frequencies, names, and the numbers of each topic's leading features, best first."""
    if n_top < 1:
        raise ValueError(f"n_top must be at least 1; got {n_top}.")
    frequencies = _rows_to_one(_nonnegative_matrix(components, "components", "topics x features"))
    n_topics, n_features = frequencies.shape
    if feature_names is None:
        names = [f"feature {feature}" for feature in range(n_features)]
    elif len(feature_names) == n_features:
        names = [str(name) for name in feature_names]
    else:
        raise ValueError(
            f"feature_names has {len(feature_names)} entries for {n_features} features."
        )
    scores = frequencies
    if distinctive and n_topics > 1:
        # Poisson divergence from the nearest rival, f log(f/g) - (f - g), where f > g; the floor
        # keeps features that no rival has comparable with the others.
        rivals = np.maximum(_largest_elsewhere(frequencies), 0.01 / n_features)
        ratio = np.maximum(frequencies / rivals, 1)
        scores = rivals * (ratio * np.log(ratio) - ratio + 1)
    # Features that do not stand out (score 0) follow by frequency.
    orders = [np.lexsort((-frequencies[k], -scores[k]))[:n_top] for k in range(n_topics)]
    return frequencies, names, [order[frequencies[k, order] > 0] for k, order in enumerate(orders)]


def _largest_elsewhere(frequencies: np.ndarray) -> np.ndarray:
    """Return, for each topic and feature, the largest frequency in any other topic."""
    if len(frequencies) == 1:
        return np.zeros_like(frequencies)
    first, second = -np.partition(-frequencies, 1, axis=0)[:2]
    holder = frequencies.argmax(axis=0) == np.arange(len(frequencies))[:, None]
    return np.where(holder, second, first)


def top_features(
    components: Any,
    feature_names: Any = None,
    *,
    n_top: int = 10,
    distinctive: bool = True,
) -> list[list[str]]:
    """Name the leading features of each topic.

    Parameters
    ----------
    components : array-like of shape (n_topics, n_features)
        Non-negative; every row is divided by its sum.
    feature_names : array-like of str, default=None
        Names of the features; "feature 0", "feature 1", ... by default.
    n_top : int, default=10
        How many to name for each topic.
    distinctive : bool, default=True
        True ranks features by how far a topic exceeds the topic nearest to it, as the Poisson
        divergence ``f log(f / g) - f + g`` of its frequency f from the largest frequency g
        elsewhere.  False ranks them by frequency.

    Returns
    -------
    list of list of str
        One list for each topic, best first; shorter than `n_top` where a topic has fewer features.

    Raises
    ------
    ValueError
        If the components are not a finite non-negative matrix, the names do not match them, or
        `n_top` is below 1.

    Examples
    --------
    >>> from nmfscale.plots import top_features
    >>> components = [[5, 4, 1, 0], [5, 0, 1, 4]]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2)
    [['gene', 'the'], ['word', 'the']]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2, distinctive=False)
    [['the', 'gene'], ['the', 'word']]
    """
    _, names, leading = _leading_features(components, feature_names, n_top, distinctive)
    return [[names[feature] for feature in order] for order in leading]


def top_features_plot(
    components: Any,
    feature_names: Any = None,
    *,
    n_top: int = 10,
    distinctive: bool = True,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the leading features of each topic as panels of horizontal bars.

    A bar is the feature's share of the topic (written beside it, in percent), a grey mark its
    largest share in any other topic.  Each panel has a scale of its own and shows its features by
    share, though they may have been chosen for being distinctive.

    Parameters
    ----------
    components : array-like of shape (n_topics, n_features)
        Non-negative; every row is divided by its sum.
    feature_names : array-like of str, default=None
        Names of the features; "feature 0", "feature 1", ... by default.
    n_top : int, default=10
        How many to draw for each topic.
    distinctive : bool, default=True
        How features are chosen, see :func:`top_features`.
    topic_names : sequence of str, default=None
        Titles of the panels; "topic 1", "topic 2", ... by default.
    colors : sequence of colors, default=None
        One per topic; :func:`topic_colors` by default.
    ax : matplotlib.axes.Axes, default=None
        Where to draw; a new pyplot figure by default, five panels to a row.

    Returns
    -------
    matplotlib.axes.Axes
        All panels share these Axes.

    Raises
    ------
    ValueError
        As :func:`top_features`.

    Examples
    --------
    >>> from nmfscale.plots import top_features_plot
    >>> ax = top_features_plot([[5, 4, 1, 0], [5, 0, 1, 4]], ["the", "gene", "of", "word"])
    """
    frequencies, names, leading = _leading_features(components, feature_names, n_top, distinctive)
    n_topics = len(frequencies)
    titles = _topic_names(topic_names, n_topics)
    fills = _colors_for(colors, n_topics)
    elsewhere = _largest_elsewhere(frequencies)

    n_rows = -(-n_topics // (5 if ax is None else max(1, int(_width_in_inches(ax) // 1.8))))
    n_columns, height = -(-n_topics // n_rows), n_top + 2.2
    ax = _axes(ax, 2.4 * n_columns, 0.4 + 0.165 * n_rows * height)
    for topic, order in enumerate(leading):
        row, column = divmod(topic, n_columns)
        order = order[np.argsort(-frequencies[topic, order], kind="stable")]
        panel = frequencies[topic, order], elsewhere[topic, order], [names[j] for j in order]
        ax.text(column + 0.5, row * height - 0.95, titles[topic], va="center", weight="bold")
        if len(order):
            _bars(ax, column + 0.5, row * height + np.arange(len(order)), *panel, fills[topic])
    ax.set(xlim=(0, n_columns), ylim=(n_rows * height - 1.5, -1.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_xlabel("bar: share of the topic in %    mark: largest share in another topic", size=8)
    return ax


def _bars(
    ax: Axes, left: float, y: np.ndarray, shares: Any, rivals: Any, names: list[str], color: Any
) -> None:
    """Draw one panel: a third of a unit of bars, names to the left, percentages to the right."""
    ends = 0.33 * np.maximum(shares, rivals) / max(shares.max(), rivals.max())
    scale = ends / np.maximum(shares, rivals)
    ax.barh(y, scale * shares, left=left, height=0.78, color=color)
    for shade, width in (("white", 3.0), ("0.2", 1.4)):  # readable on dark bars too
        ax.vlines(left + scale * rivals, y - 0.39, y + 0.39, color=shade, linewidth=width)
    for height, name, share, end in zip(y, names, shares, ends, strict=True):
        shown = name if len(name) <= 20 else name[:19] + "\N{HORIZONTAL ELLIPSIS}"
        percent = f"{100 * share:.1f}" if share >= 0.01 else f"{100 * share:#.2g}"
        ax.text(left - 0.015, height, shown, ha="right", va="center", size=7.5)
        ax.text(left + end + 0.015, height, percent, va="center", size=6, color="0.3")
