"""top_features and top_features_plot: the leading features of every topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..annotated.keys import KEY
from ..methods.feature_scores import largest_elsewhere, ranked_features
from ..methods.score_names import DEFAULT_SCORE, SCORES
from ..models.pipelines import model_of
from ..models.topic_labels import shortened
from .canvas import (
    axes_or_new,
    check_arguments,
    finished,
    holds_names,
    index_of,
    matched_by_name,
    names_and_colors,
    nonnegative_matrix,
    size_in_inches,
)
from .objects import colors_of, model_in, symbols_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Number of panels in a row, if the plot creates the figure.
_ACROSS = 5


def leading_features(
    components: Any, feature_names: Any, n_top: int, score: Any = DEFAULT_SCORE,
    weight: float | None = None, feature_totals: Any = None, min_count: float = 0,
) -> tuple[np.ndarray, list[str], list[np.ndarray]]:  # fmt: skip
    """Return frequencies, names, and the indices of each topic's leading features, best first."""
    components = model_of(components)
    if hasattr(score, "topic_number"):
        score = _z_of(score, names_of_features(components))
    columns = _columns_of(components, (feature_names, score, feature_totals))
    matrix = nonnegative_matrix(
        getattr(components, "components_", components), "components", "topics x features",
        "the components_ of a fitted model",
    )  # fmt: skip
    n_topics, n_features = matrix.shape
    if feature_names is None:
        feature_names = names_of_features(components)
    if feature_names is None and holds_names(columns):
        feature_names = columns
    feature_names = matched_by_name(feature_names, columns, "feature_names", "components")
    if feature_names is None:
        names = [f"feature {feature}" for feature in range(n_features)]
    elif len(feature_names) == n_features:
        names = [str(name) for name in feature_names]
    else:
        turned = ": pass its transpose, topics x features" * (len(feature_names) == n_topics)
        raise ValueError(
            f"feature_names has {len(feature_names)} entries, and components, of shape "
            f"{matrix.shape}, have {n_features} features{turned}."
        )
    totals = _totals_of(feature_totals, columns, n_features)
    overall = None if totals is None or not totals.any() else totals / totals.sum()
    among = _among(components, totals, min_count) if min_count else None
    if not isinstance(score, str):
        score = _given_scores(score, columns, matrix.shape)
    frequencies, leading = ranked_features(
        matrix, n_top, score, weight=weight, overall=overall, among=among
    )
    return frequencies, names, leading


def _columns_of(components: Any, arguments: Sequence[Any]) -> Any:
    """Return an index with the names of the features, or None.

    The names of a model become an index only if there are arguments to match with it: pandas is not
    required otherwise.
    """
    if hasattr(components, "columns"):
        return components.columns
    names = names_of_features(components)
    named = any(hasattr(each, "iloc") or isinstance(each, dict) for each in arguments)
    return index_of(names) if named else None


def names_of_features(model: Any) -> Any:
    """Return the names of the features of a fitted model, or None."""
    names = getattr(model, "feature_names_in_", None)
    return getattr(model, "feature_labels_", None) if names is None else names


def _among(model: Any, totals: np.ndarray | None, min_count: float) -> np.ndarray:
    """Return which features have a total of `min_count`; by default with the totals of a model."""
    totals = getattr(model, "feature_totals_", None) if totals is None else totals
    if totals is None:
        raise ValueError(
            f"min_count={min_count} needs the total count of each feature: pass a fitted "
            "model, or its feature_totals_ as feature_totals."
        )
    among: np.ndarray = np.asarray(totals) >= min_count
    return among


def _totals_of(given: Any, columns: Any, n_features: int) -> np.ndarray | None:
    """Return the total count of each feature, or None."""
    if given is None:
        return None
    totals = matched_by_name(given, columns, "feature_totals", "components")
    found = nonnegative_matrix([totals], "feature_totals", "one for each feature", "numbers")[0]
    if len(found) != n_features:
        raise ValueError(
            f"feature_totals has {len(found)} entries, and components have {n_features} features."
        )
    return found


def _z_of(found: Any, names: Any) -> Any:
    """Return the z of differential features, (n_topics, n_features), in the order of the model."""
    if names is None or found.feature_names is None:
        return found.z
    place = {name: j for j, name in enumerate(found.feature_names)}
    missing = [name for name in names if name not in place]
    if missing:
        raise ValueError(
            f"score has no z of {len(missing):,} features of the model, such as {missing[0]!r}: "
            "pass differential_features of all its features."
        )
    return found.z[:, [place[name] for name in names]]


def _given_scores(given: Any, columns: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return scores that are an argument, in the order of the features."""
    if hasattr(given, "columns"):
        given = matched_by_name(given.T, columns, "score", "components").T
    scores = np.asarray(given, dtype=np.float64)
    if scores.shape != shape or not np.isfinite(scores).all():
        raise ValueError(
            f"score has shape {scores.shape}: finite numbers of shape {shape}, topics x features, "
            f"are needed, or one of {', '.join(map(repr, SCORES))}."
        )
    return scores


def top_features(
    components: Any,
    feature_names: Any = None,
    *,
    n_top: int = 10,
    score: Any = DEFAULT_SCORE,
    weight: float | None = None,
    feature_totals: Any = None,
    min_count: float = 0,
    gene_symbols: str | None = None,
    key: str = KEY,
) -> list[list[str]]:
    """Return the names of the leading features of each topic.

    Parameters
    ----------
    components : AnnData, fitted model, or array-like of shape (n_topics, n_features)
        An AnnData object with a fit, a model, a pipeline that ends with one, or non-negative
        components; every row is divided by its sum.
    feature_names : array-like of str, default=None
        Names of the features; by default those of the model, the columns of a DataFrame, or
        "feature 0", "feature 1", ...
    n_top : int, default=10
        Number of features for each topic.
    score : {"relevance", "probability", "divergence", "frex", "lift"}, DifferentialFeatures, or \
            array-like of shape (n_topics, n_features), default="relevance"
        What ranks features, given their frequency f in the topic and p overall.
        "relevance": ``weight log f + (1 - weight) log(f / p)`` [2]_.  "probability": f.
        "divergence": the Poisson divergence ``f log(f / g) - f + g`` from the largest frequency g
        in another topic.  "frex": the harmonic mean of the ranks of f and of f divided by its sum
        over the topics [1]_.  "lift": f / p; use it with `min_count`, because the lift of rare
        features is large by chance.  A result of
        :func:`nmfscale.differential_features` for the same model ranks by its z, and an array by
        its values.
    weight : float, default=None
        Weight, between 0 and 1, of exclusivity in "frex" (0.5 by default) or of log f in
        "relevance" (0.6 by default).
    feature_totals : array-like of shape (n_features,), default=None
        Total count of each feature, which overall frequencies p are calculated from, as in [2]_. By
        default, p is the mean of f over the topics.
    min_count : float, default=0
        Features with smaller totals, by default those of the model, are left out.
    gene_symbols : str, default=None
        For an AnnData object, the column of ``var`` with the names of the features.
    key : str, default="topics"
        For an AnnData object, the key of the fit.

    Returns
    -------
    list of list of str
        One list for each topic, best first; shorter than `n_top` if a topic has fewer features.

    Raises
    ------
    ValueError
        If the components are not a finite non-negative matrix, the names do not match them, or
        another argument is of the wrong kind; if there is a `min_count` without totals.

    References
    ----------
    .. [1] Bischof, Airoldi (2012). Summarizing topical content with word frequency and
       exclusivity. International Conference on Machine Learning 29.
    .. [2] Sievert, Shirley (2014). LDAvis: a method for visualizing and interpreting topics.
       Workshop on Interactive Language Learning, Visualization, and Interfaces.

    Examples
    --------
    >>> from nmfscale.pl import top_features
    >>> components = [[5, 4, 1, 0], [5, 0, 1, 4]]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2)
    [['gene', 'the'], ['word', 'the']]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2, score="probability")
    [['the', 'gene'], ['the', 'word']]
    """
    check_arguments("top_features", **locals())
    if gene_symbols is not None:
        feature_names = symbols_of(components, gene_symbols)
    components = model_in(components, key)
    _, names, leading = leading_features(
        components, feature_names, n_top, score, weight, feature_totals, min_count
    )
    return [[names[feature] for feature in order] for order in leading]


def top_features_plot(
    components: Any,
    feature_names: Any = None,
    *,
    n_top: int = 10,
    score: Any = DEFAULT_SCORE,
    weight: float | None = None,
    feature_totals: Any = None,
    min_count: float = 0,
    topic_names: Sequence[str] | None = None,
    colors: Sequence[Any] | None = None,
    gene_symbols: str | None = None,
    key: str = KEY,
    ax: Axes | None = None,
    show: bool | None = None,
    save: Any = None,
    return_fig: bool = False,
) -> Any:
    """Draw the leading features of each topic as panels of horizontal bars.

    A bar is the feature's share of the topic (also written beside it, in percent); a grey mark is
    its largest share in another topic.  Each panel has its own scale, and orders its features by
    share, even if they were selected for being distinctive.

    Parameters
    ----------
    components, feature_names, n_top, score, weight, feature_totals, min_count, gene_symbols, key
        As in :func:`top_features`: the features, how many to draw, and how to select them.
    topic_names : sequence of str, default=None
        Titles of the panels; by default those of the model, or "topic 0", "topic 1", ...
    colors : sequence of colors, default=None
        One for each topic; :func:`topic_colors` by default.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on; by default a new pyplot figure with five panels in a row.
    show, save, return_fig
        As in :func:`structure_plot`.

    Returns
    -------
    matplotlib.axes.Axes, matplotlib.figure.Figure or None
        As in :func:`structure_plot`. All panels share the Axes.

    Raises
    ------
    ValueError
        As in :func:`top_features`.

    Examples
    --------
    >>> from nmfscale.pl import top_features_plot
    >>> ax = top_features_plot([[5, 4, 1, 0], [5, 0, 1, 4]], ["the", "gene", "of", "word"])
    """
    check_arguments("top_features_plot", **locals())
    if gene_symbols is not None:
        feature_names = symbols_of(components, gene_symbols)
    colors = colors_of(components, key, colors)
    components = model_in(components, key)
    frequencies, names, leading = leading_features(
        components, feature_names, n_top, score, weight, feature_totals, min_count
    )
    if topic_names is None:
        topic_names = getattr(model_of(components), "topic_names_", None)
    n_topics = len(frequencies)
    titles, fills = names_and_colors(topic_names, colors, n_topics)
    elsewhere = largest_elsewhere(frequencies) if n_topics > 1 else None

    n_rows = -(-n_topics // (_ACROSS if ax is None else max(1, int(size_in_inches(ax)[0] // 1.8))))
    n_columns, height = -(-n_topics // n_rows), _height(frequencies, n_top)
    ax = axes_or_new(ax, *size_of_panels(frequencies, n_top))
    # An inch holds about eleven bold letters: long titles use the whole panel.
    most = max(5, int(11 * size_in_inches(ax)[0] / n_columns))
    indent = 0.5 if 2 * max(map(len, titles)) <= most else 0.03
    for topic, order in enumerate(leading):
        row, column = divmod(topic, n_columns)
        order = order[np.argsort(-frequencies[topic, order], kind="stable")]
        rivals = None if elsewhere is None else elsewhere[topic, order]
        panel = frequencies[topic, order], rivals, [names[j] for j in order]
        ax.text(
            column + indent, row * height - 0.95, shortened(titles[topic], most),
            va="center", weight="bold", parse_math=False,
        )  # fmt: skip
        if len(order):
            _bars(ax, column + 0.5, row * height + np.arange(len(order)), *panel, fills[topic])
    ax.set(xlim=(0, n_columns), ylim=(n_rows * height - 1.5, -1.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    caption = ["bar: share of the topic in %"]
    if elsewhere is not None:
        caption.append("mark: largest share in another topic")
    # On one line the captions are almost four inches long.
    ax.set_xlabel(("    " if size_in_inches(ax)[0] > 3.5 else "\n").join(caption), size=8)
    return finished(ax, show, save, return_fig)


def size_of_panels(components: np.ndarray, n_top: int) -> tuple[float, float]:
    """Return width and height in inches of a figure for the panels of these components."""
    n_rows = -(-len(components) // _ACROSS)
    n_columns = -(-len(components) // n_rows)
    return 2.4 * n_columns, 0.4 + 0.165 * n_rows * _height(components, n_top)


def _height(components: np.ndarray, n_top: int) -> float:
    """Return the height of a panel in bars: of the fullest topic, plus title and spacing."""
    return min(n_top, np.count_nonzero(components, axis=1).max()) + 2.2


def _bars(
    ax: Axes, left: float, y: np.ndarray, shares: Any, rivals: Any, names: list[str], color: Any
) -> None:
    """Draw one panel: bars up to a third of its width, names to the left, percentages right."""
    longest = shares if rivals is None else np.maximum(shares, rivals)
    scale = 0.33 / longest.max()
    ax.barh(y, scale * shares, left=left, height=0.78, color=color)
    if rivals is not None:
        for shade, width in (("white", 3.0), ("0.2", 1.4)):  # readable on dark bars too
            ax.vlines(left + scale * rivals, y - 0.39, y + 0.39, color=shade, linewidth=width)
    for height, name, share, end in zip(y, names, shares, scale * longest, strict=True):
        percent = f"{100 * share:.1f}" if share >= 0.01 else f"{100 * share:#.2g}"
        ax.text(
            left - 0.015, height, shortened(name, 18),
            ha="right", va="center", size=7.5, parse_math=False,
        )  # fmt: skip
        ax.text(left + end + 0.015, height, percent, va="center", size=6, color="0.3")
