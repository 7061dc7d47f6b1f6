"""A table of fits: their course, scores, stability and quality."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ...counts.argument_types import CountsLike, SeedLike
from ...counts.names import shown
from ...models.comparison import Metric, TopicMatch, match_topics
from ...models.pipelines import model_and_input
from .compare_fits_result import FitComparison, FitSummary
from .topic_quality import topic_quality
from .topic_quality_result import TopicQuality

Array = NDArray[Any]
# An entry below this share of the sum of its row counts as almost zero.
_NOTHING = 1e-8
# Measures of topic_quality: means over the topics, or numbers.
_MEASURES = "npmi", "exclusivity", "diversity", "deviance_explained"


def compare_fits(
    models: Mapping[str, Any],
    X: CountsLike | None = None,
    *,
    held_out: CountsLike | None = None,
    stability: Mapping[str, Any] | None = None,
    metric: Metric = "lift",
    n_top: int = 10,
    random_state: SeedLike | None = None,
    layer: str | None = None,
    raw: bool = False,
) -> FitComparison:
    """Compare fits: their course, scores and quality, and agreement with topics of the first fit.

    Parameters
    ----------
    models : dict of str to fitted model
        Fits by name. The topics of all fits are compared with those of the first.
    X : counts of shape (n_samples, n_features), default=None
        Counts on which every model is scored, see :meth:`PoissonNMF.score`, and its topics are
        measured, see :func:`topic_quality`; by default there are no scores and measures. Models
        that predict labels have no score, which would need labels.
    held_out : counts of shape (n_other_samples, n_features), default=None
        Samples that were not used in the fits, with whole counts: loadings are fitted to half of
        the counts of each sample, and the other half is scored (document completion).
    stability : dict of str to Stability or float, default=None
        Results of :func:`stability` for some of the fits, by name of the fit, or numbers.
    metric : {"lift", "cosine", "bhattacharyya"}, default="lift"
        As in :func:`match_topics`.
    n_top : int, default=10
        As in :func:`topic_quality`.
    random_state : int, RandomState instance or None, default=None
        Determines how held-out counts are split, in the same way for all fits.
    layer, raw
        As in :meth:`PoissonNMF.fit`: the part of AnnData objects or .h5ad files to use.

    Returns
    -------
    FitComparison
        Summary of each fit; ``to_frame()`` returns a table.

    Raises
    ------
    NotFittedError
        If a model is not fitted.
    ValueError
        If there are no models, if `stability` has another name, or as in :func:`match_topics` and
        :func:`topic_quality`.

    Warns
    -----
    UserWarning
        As in :func:`match_topics`.

    Examples
    --------
    >>> from nmfscale import TopicModel, compare_fits
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, *_ = simulate_topic_counts(100, 30, 3, random_state=0)
    >>> fits = {f"K={K}": TopicModel(K, random_state=0).fit(X) for K in (3, 4)}
    >>> table = compare_fits(fits).to_frame()
    >>> table.n_components.tolist(), table.n_unmatched.tolist()
    ([3, 4], [0, 1])
    """
    if not isinstance(models, Mapping) or not models:
        raise ValueError(
            f"models is {type(models).__name__}: a dict of fits by name is needed, such as "
            '{"one": model, "other": model}.'
        )

    models = {str(name): model for name, model in models.items()}
    stable = _checked_stability(stability, models)
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    part: dict[str, Any] = {"layer": layer, "raw": raw}
    first = next(iter(models.values()))
    matches = {name: match_topics(first, model, metric=metric) for name, model in models.items()}
    fits = []
    for name, fit in models.items():
        model, counts = model_and_input(fit, X)
        scored = not hasattr(model, "predict")
        score = held = quality = None
        if X is not None and scored:
            score = float(model.score(counts, **part))
        if held_out is not None and scored:
            others = model_and_input(fit, held_out)[1]
            held = float(model.score(others, completion=0.5, random_state=seed, **part))
        if X is not None:
            quality = topic_quality(model, counts, n_top=n_top, **part)
        scores = score, held, stable.get(name)
        fits.append(_summary(name, model, matches[name], scores, quality))
    return FitComparison(tuple(fits), matches)


def _checked_stability(stability: Any, models: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean similarity of topics by name of the fit."""
    if stability is None:
        return {}
    if not isinstance(stability, Mapping) or not set(map(str, stability)) <= set(models):
        raise ValueError(
            f"stability is {shown(stability)}: a dict is needed, by names of the fits: "
            f"{', '.join(map(repr, models))}."
        )
    similarity_of = {}
    for name, similarity in stability.items():
        if hasattr(
            similarity, "similarities"
        ):  # of all fits with the best one, which equals itself
            similarity = np.delete(similarity.similarities, similarity.best, axis=0).mean()
        if not isinstance(similarity, Real) or not np.isfinite(float(similarity)):
            raise ValueError(
                f"stability[{name!r}] is {shown(similarity)}: a finite number, or a result of "
                "stability() with two starts or more, is needed."
            )
        similarity_of[str(name)] = float(similarity)
    return similarity_of


def _summary(
    name: str, model: Any, match: TopicMatch,
    scores: tuple[float | None, float | None, float | None], quality: TopicQuality | None,
) -> FitSummary:  # fmt: skip
    history, objective = getattr(model, "history_", None), None
    value = residual = seconds = None
    if history is not None:
        last, objective = history[-1], model.reported_objective or history.dtype.names[2]
        value, seconds = float(last[objective]), float(last["seconds"])
        residual = max(float(last[residual_name]) for residual_name in model.method_class.residuals)
    measures: dict[str, float | None] = dict.fromkeys(_MEASURES)
    if quality is not None:
        measures = {name: float(np.mean(getattr(quality, name))) for name in _MEASURES}
    score, held_out, stability = scores
    loadings = getattr(model, "loadings_", None)
    return FitSummary(
        name, type(model).__name__, len(model.components_), objective, value, score, held_out,
        residual, getattr(model, "n_iter_", None), seconds, getattr(model, "stop_reason_", None),
        float(match.similarity.mean()), float(match.similarity.min()), len(match.unmatched_b),
        stability, measures["npmi"], measures["exclusivity"], measures["diversity"],
        measures["deviance_explained"], _sparsity(model.components_),
        None if loadings is None else _sparsity(loadings),
    )  # fmt: skip


def _sparsity(rows: Array) -> float:
    return float(np.mean(rows < _NOTHING * rows.sum(axis=1, keepdims=True, dtype=np.float64)))
