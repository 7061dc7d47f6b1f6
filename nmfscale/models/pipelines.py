"""Pipelines of scikit-learn that end with a model: the model, and the names of its features.

A sparse matrix has no names, so a model behind a CountVectorizer does not know its words, and
scikit-learn has no way to pass them on. Functions that take a model therefore also take the
pipeline, and ask its earlier steps.
"""

from __future__ import annotations

import copy
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from ..counts.argument_types import PipelineLike
from ..counts.foreign import refuse_annotated
from ..counts.names import names_of, shown
from .base import CountModel

Array = NDArray[Any]
# A fitted model of this package, or a pipeline that ends with one.
FittedModel: TypeAlias = CountModel | PipelineLike
_GET_MODEL = (
    "pass nmfscale.get.model(adata), the model of a fit in it. Functions of nmfscale.tl take the "
    "object itself."
)

_ESTIMATOR = (
    "pass an estimator, such as nmfscale.TopicModel(10), and the object in the place of the counts."
)


def is_pipeline(fit: Any) -> bool:
    """Whether an object is a Pipeline of scikit-learn (or a subclass, as of imbalanced-learn)."""
    return hasattr(fit, "steps") and hasattr(fit, "named_steps")


def model_of(fit: Any) -> Any:
    """Return the fitted model at the end of a pipeline, with the names of its features.

    The copy of the last step shares its arrays. Any other object is returned unchanged.
    """
    if not is_pipeline(fit):
        return fit
    model = _last_step(fit)
    check_is_fitted(model, "components_")
    named_model = copy.copy(model)
    if names_of(named_model, 1) is None:
        names = _names_of_input(fit[:-1])
        if names is not None:
            named_model.feature_names_in_ = names
    if _counts_words(fit[:-1]):
        named_model.of_text_ = True
    return named_model


@overload
def model_and_input(fit: FittedModel, X: Any) -> tuple[CountModel, Any]: ...
@overload
def model_and_input(fit: Any, X: Any) -> tuple[Any, Any]: ...
def model_and_input(fit: Any, X: Any) -> tuple[Any, Any]:
    """Return the model, or estimator, at the end of a pipeline, and the counts that it gets for X.

    If the model is fitted, the earlier steps transform `X`; otherwise copies of them are fitted to
    it. The counts have names where the steps have them. Without a pipeline, both are returned
    unchanged.
    """
    refuse_swapped(fit, X, "the counts")
    refuse_annotated(fit, "model", _GET_MODEL)
    if not is_pipeline(fit):
        return fit, X
    model = _last_step(fit)
    if hasattr(model, "components_"):
        model, before = model_of(fit), fit[:-1]
        counts = X if X is None else _checked_input(before, X).transform(X)
    else:
        before = clone(fit[:-1])
        counts = X if X is None else _checked_input(before, X).fit_transform(X)
    return model, counts if X is None else _with_names(counts, X, before)


def estimator_and_input(estimator: Any, X: Any) -> tuple[CountModel, Any]:
    """Return what `model_and_input` returns, for an estimator that need not be fitted."""
    refuse_swapped(estimator, X, "the counts")
    refuse_annotated(estimator, "estimator", _ESTIMATOR)
    return model_and_input(estimator, X)


def refuse_swapped(fit: Any, other: Any, what: str) -> None:
    """Refuse a model in the place of the argument after it, which `what` describes."""
    if hasattr(other, "get_params") and not hasattr(fit, "get_params"):
        raise ValueError(
            f"the arguments are swapped: the {type(other).__name__} comes first, and {what} after "
            "it."
        )


def _last_step(pipeline: Any) -> Any:
    """Return the model at the end of a pipeline; refuse other last steps."""
    model = pipeline.steps[-1][1]
    if not isinstance(model, CountModel):
        raise ValueError(
            f"the last step of the pipeline is {shown(type(model).__name__)}: a model of counts, "
            "such as TopicModel, is needed there. Leave out later steps, as pipeline[:-1] does."
        )
    return model


def _checked_input(before: Any, X: Any) -> Any:
    """Return the earlier steps of a pipeline; refuse a matrix if they count the words of texts."""
    if _counts_words(before) and len(getattr(X, "shape", ())) == 2:
        raise ValueError(
            f"X is a matrix of shape {X.shape}, and the pipeline begins with "
            f"{type(before.steps[0][1]).__name__}, which takes texts: pass the texts, or "
            "nmfscale.get.model(pipeline) in place of the pipeline."
        )
    return before


def _counts_words(before: Any) -> bool:
    """Whether the first step is a vectorizer of texts."""
    return bool(before.steps) and hasattr(before.steps[0][1], "build_analyzer")


def _names_of_input(before: Any) -> Array | None:
    """Return the names of the columns that the earlier steps make, or None."""
    if not before.steps:
        return None
    try:
        names = before.get_feature_names_out()
    except (AttributeError, ValueError):  # a step without names, or that needs those of its input
        return None
    return np.asarray(names, object)


def _with_names(matrix: Any, X: Any, before: Any) -> Any:
    """Return the output of the earlier steps with names of features and of samples."""
    from ..readers.open import as_counts

    counts = as_counts(matrix, integer="allow")
    if counts.feature_names is None:
        counts.feature_names = _names_of_input(before)
    if counts.sample_names is None and len(getattr(X, "shape", ())) > 0:
        counts.sample_names = names_of(X)
    counts.of_text = _counts_words(before)
    return counts
