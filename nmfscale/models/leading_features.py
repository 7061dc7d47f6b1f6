"""The leading features of each topic of a model, or of components, by one of several scores."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from ..counts.matched_frames import index_of, matched_by_name
from ..counts.names import names_of
from ..counts.structure import nonnegative_matrix
from ..methods.factors import proportions
from ..methods.topics.feature_scores import feature_scores, ranked_features
from ..methods.topics.score_names import DEFAULT_SCORE, SCORES
from .pipelines import model_of

# Constraints of the arguments, in the form of scikit-learn.
OF_LEADING_FEATURES: dict[str, list[Any]] = {
    "feature_names": ["array-like", None],
    "n_top": [Interval(Integral, 1, None, closed="left")],
    "score": [StrOptions(set(SCORES)), "array-like", HasMethods(["topic_number"])],
    "weight": [Interval(Real, 0, 1, closed="both"), None],
    "feature_totals": ["array-like", None],
    "min_count": [Interval(Real, 0, None, closed="left")],
}


def leading_features(
    components: Any, feature_names: Any, n_top: int, score: Any = DEFAULT_SCORE,
    weight: float | None = None, feature_totals: Any = None, min_count: float = 0,
) -> tuple[np.ndarray, list[str], list[np.ndarray]]:  # fmt: skip
    """Return frequencies, names, and the indices of each topic's leading features, best first."""
    components = model_of(components)
    if hasattr(score, "topic_number"):
        score = _z_of(score, names_of(components, 1))
    columns = _columns_of(components, (feature_names, score, feature_totals))
    matrix = nonnegative_matrix(
        getattr(components, "components_", components), "components", "topics x features",
        "the components_ of a fitted model",
    )  # fmt: skip
    n_topics, n_features = matrix.shape
    if feature_names is None:
        feature_names = names_of(components, 1)
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


def scores_of_features(components: Any, score: Any = DEFAULT_SCORE) -> np.ndarray:
    """Return the scores (n_components, n_features) by which `leading_features` ranks features."""
    components = model_of(components)
    matrix = np.asarray(components.components_, np.float64)
    if isinstance(score, str):
        return feature_scores(proportions(matrix), score)
    if hasattr(score, "topic_number"):
        score = _z_of(score, names_of(components, 1))
    return _given_scores(score, _columns_of(components, (score,)), matrix.shape)


def leading_names(
    components: Any, feature_names: Any = None, n_top: int = 10, **ranking: Any
) -> list[list[str]]:
    """Return the names of each topic's leading features; arguments as in `leading_features`."""
    _, names, leading = leading_features(components, feature_names, n_top, **ranking)
    return [[names[feature] for feature in order] for order in leading]


def _columns_of(components: Any, arguments: Sequence[Any]) -> Any:
    """Return an index with the names of the features, or None.

    The names of a model become an index only if there are arguments to match with it: pandas is not
    required otherwise.
    """
    if hasattr(components, "columns"):
        return components.columns
    names = names_of(components, 1)
    named = any(hasattr(argument, "iloc") or isinstance(argument, dict) for argument in arguments)
    return index_of(names) if named else None


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


def _totals_of(feature_totals: Any, columns: Any, n_features: int) -> np.ndarray | None:
    """Return the total count of each feature, or None."""
    if feature_totals is None:
        return None
    totals = matched_by_name(feature_totals, columns, "feature_totals", "components")
    vector = nonnegative_matrix([totals], "feature_totals", "one for each feature", "numbers")[0]
    if len(vector) != n_features:
        raise ValueError(
            f"feature_totals has {len(vector)} entries, and components have {n_features} features."
        )
    return vector


def _z_of(result: Any, names: Any) -> Any:
    """Return z (n_components, n_features) of differential features in the order of the model."""
    if names is None or result.feature_names is None:
        return result.z
    place = {name: j for j, name in enumerate(result.feature_names)}
    missing = [name for name in names if name not in place]
    if missing:
        raise ValueError(
            f"score has no z of {len(missing):,} features of the model, such as {missing[0]!r}: "
            "pass differential_features of all its features."
        )
    return result.z[:, [place[name] for name in names]]


def _given_scores(score: Any, columns: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return scores that are an argument, in the order of the features."""
    if hasattr(score, "columns"):
        score = matched_by_name(score.T, columns, "score", "components").T
    scores = np.asarray(score, dtype=np.float64)
    if scores.shape != shape or not np.isfinite(scores).all():
        raise ValueError(
            f"score has shape {scores.shape}: finite numbers of shape {shape}, topics x features, "
            f"are needed, or one of {', '.join(map(repr, SCORES))}."
        )
    return scores
