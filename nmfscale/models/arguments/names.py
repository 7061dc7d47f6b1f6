"""Names of features: a fit stores them, and new counts are matched with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _get_feature_names,
    validate_data,
)

from ...counts.base import CountMatrix
from ...counts.names import names_of, same_kind, such_as
from ...counts.warn import warn_caller
from ...readers.streams.matching import REMEDY, FeatureWording, lacking_names, select_features

Array = NDArray[Any]
_IN_ORDER = "give X[model.feature_names_in_]."


def keep_names(estimator: Any, X: Any, counts: CountMatrix) -> None:
    """Store the number and names of the features of a fit.

    scikit-learn reserves `feature_names_in_` for text; names of other types are in
    `feature_labels_`.
    """
    of_some = {
        "feature_names_in_", "feature_labels_", "of_text_", "modalities_", "feature_weights_"
    }  # fmt: skip
    for name in of_some & vars(estimator).keys():
        delattr(estimator, name)
    if _is_frame(X):
        validate_data(estimator, X, reset=True, skip_check_array=True)
    else:
        _check_n_features(estimator, counts, reset=True)
    if counts.feature_names is not None:
        take_feature_names(estimator, counts.feature_names)
    if counts.of_text:
        estimator.of_text_ = True
    if counts.modalities is not None:
        estimator.modalities_ = counts.modalities
    if counts.feature_weights is not None:
        estimator.feature_weights_ = counts.feature_weights


def take_feature_names(estimator: Any, names: Array) -> None:
    """Store names of features: as `feature_names_in_` if they are text."""
    of_text = all(isinstance(name, str) for name in names)
    kept, other = ("feature_names_in_", "feature_labels_")[:: 1 if of_text else -1]
    vars(estimator).pop(other, None)
    setattr(estimator, kept, np.asarray(names, dtype=object))


def feature_names_of(model: Any, counts: CountMatrix) -> Array | None:
    """Return the names of the features of counts, or those of the fit if only it has names."""
    if counts.feature_names is not None or not hasattr(model, "components_"):
        return counts.feature_names
    names = names_of(model, 1)
    return names if names is not None and len(names) == counts.shape[1] else None


def _is_frame(X: Any) -> bool:
    """Whether X is a DataFrame whose columns scikit-learn checks; it refuses duplicates."""
    return hasattr(X, "columns") and bool(getattr(X.columns, "is_unique", True))


def matched_counts(
    estimator: Any, X: Any, counts: CountMatrix, missing: str = "error",
    remedy: str | None = None, more: Array | None = None,
) -> tuple[CountMatrix, Array | None]:  # fmt: skip
    """Return new counts with the features in the order of the fit, matched by name.

    If the fit or the counts have no names, the number of features must be that of the fit. A
    DataFrame with the columns of the fit in a different order is refused, as scikit-learn requires.

    `missing` says how to treat features of the fit that the counts lack: raise an error; leave them
    out and also return a mask (m,) of the others ("restrict"); or set their counts to 0 ("zero").
    `remedy` is the advice of the error if `missing` cannot be chosen. With `more`, names of
    features that follow those of the fit, there is no warning, and features may be in any order.
    """
    is_frame = is_named_frame(X)
    names, reference = counts.feature_names, names_of(estimator, 1)
    subject = type(estimator).__name__
    if names is None or reference is None:
        _check_n_features(estimator, counts, reset=False)
        if is_frame or names is None:  # warns if only the fit or X has names
            _check_feature_names(estimator, X if is_frame else None, reset=False)
        _warn_of_one_side(estimator, names, subject)
        return counts, None
    if more is not None:
        reference = np.concatenate([reference, more])
    names, reference = same_kind(names, reference)
    if names.tolist() == reference.tolist():
        return counts, None
    of_fit = getattr(estimator, "modalities_", None)
    if counts.modalities is not None and of_fit is not None:
        names, reference = (
            with_modality(names, counts.modalities),
            with_modality(reference, of_fit),
        )
    lacking = lacking_names(names, reference)
    refused = bool(lacking) and (missing == "error" or len(lacking) == len(reference))
    asked = is_frame and more is None
    if asked and (refused or not lacking and len(names) == len(reference)):
        refuse_columns(estimator, X, (remedy or REMEDY) if lacking else _IN_ORDER)
    own, other = f"that {subject} was fitted to", f"that {subject} was not fitted to"
    wording = FeatureWording(own, other, "in the fit")
    return select_features(
        counts, names, reference, wording, missing, remedy or REMEDY, warns=more is None
    )


def is_named_frame(X: Any) -> bool:
    """Whether X is a DataFrame with text columns; scikit-learn ignores other columns."""
    return _is_frame(X) and _get_feature_names(X) is not None


def refuse_columns(estimator: Any, X: Any, advice: str) -> None:
    """Raise scikit-learn's error about the columns of a DataFrame, followed by advice."""
    if not hasattr(estimator, "feature_names_in_"):
        return
    try:
        validate_data(estimator, X, reset=False, skip_check_array=True)
    except ValueError as error:
        raise ValueError(f"{error}{advice[0].upper()}{advice[1:]}") from None


def with_modality(names: Array, modalities: Array) -> Array:
    """Return names that begin with their modality, as only those of several modalities do."""
    return np.array(
        [
            f"{label}:{str(name).removeprefix(f'{label}:')}"
            for name, label in zip(names.tolist(), modalities.tolist(), strict=True)
        ],
        object,
    )


def _warn_of_one_side(estimator: Any, names: Array | None, subject: str) -> None:
    """Warn if only one side has names and these are not text, which scikit-learn ignores."""
    if names is None and hasattr(estimator, "feature_labels_"):
        warn_caller(
            f"X has no names of features, and {subject} was fitted with names such as "
            f"{such_as(estimator.feature_labels_)}: features are taken in the order of the fit."
        )
    if names is None or names_of(estimator, 1) is not None:
        return
    if names.tolist() != list(range(len(names))) and set(names) == set(range(len(names))):
        warn_caller(
            f"columns of X are the numbers from 0 in another order, and {subject} was fitted "
            "without names of features: features are taken by position, not by these numbers."
        )


def default_missing(model: Any, counts: CountMatrix) -> str:
    """Return how to treat features that counts lack if the user does not say.

    A word that a text does not have occurs there 0 times; a gene may not have been measured.
    """
    return "zero" if counts.of_text or getattr(model, "of_text_", False) else "error"
