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

from ..counts.base import CountMatrix
from ..counts.names import names_of, repeated_names, same_kind, such_as
from ..counts.warn import warn_caller
from ..readers.columns import select_columns

Array = NDArray[Any]


def keep_names(estimator: Any, X: Any, counts: CountMatrix) -> None:
    """Store the number and names of the features of a fit.

    scikit-learn reserves `feature_names_in_` for text; names of other types are in
    `feature_labels_`.
    """
    for name in {"feature_names_in_", "feature_labels_", "of_text_"} & vars(estimator).keys():
        delattr(estimator, name)
    if _is_frame(X):
        validate_data(estimator, X, reset=True, skip_check_array=True)
    else:
        _check_n_features(estimator, counts, reset=True)
    names = counts.feature_names
    if names is not None:
        of_text = all(isinstance(name, str) for name in names)
        kept = "feature_names_in_" if of_text else "feature_labels_"
        setattr(estimator, kept, np.asarray(names, dtype=object))
    if counts.of_text:
        estimator.of_text_ = True


def feature_names_of(model: Any, counts: CountMatrix) -> Array | None:
    """Return the names of the features of counts, or those of the fit if only it has names."""
    if counts.feature_names is not None or not hasattr(model, "components_"):
        return counts.feature_names
    known = names_of(model, 1)
    return known if known is not None and len(known) == counts.shape[1] else None


def _is_frame(X: Any) -> bool:
    """Whether X is a DataFrame whose columns scikit-learn checks; it refuses duplicates."""
    return hasattr(X, "columns") and bool(getattr(X.columns, "is_unique", True))


def matched_counts(
    estimator: Any, X: Any, counts: CountMatrix, missing: str = "error", remedy: str | None = None
) -> tuple[CountMatrix, Array | None]:
    """Return new counts with the features in the order of the fit, matched by name.

    If the fit or the counts have no names, the number of features must be that of the fit. A
    DataFrame with the columns of the fit in a different order is refused, as scikit-learn requires.

    `missing` says how to treat features of the fit that the counts lack: raise an error; leave them
    out and also return a mask (m,) of the others ("restrict"); or set their counts to 0 ("zero").
    `remedy` is the advice of the error if `missing` cannot be chosen.
    """
    # only for a DataFrame with text columns; scikit-learn ignores other columns
    is_frame = _is_frame(X) and _get_feature_names(X) is not None
    names, known = counts.feature_names, names_of(estimator, 1)
    subject = type(estimator).__name__
    if names is None or known is None:
        _check_n_features(estimator, counts, reset=False)
        if is_frame or names is None:  # warns if only the fit or X has names
            _check_feature_names(estimator, X if is_frame else None, reset=False)
        _warn_of_one_side(estimator, names, subject)
        return counts, None
    names, known = same_kind(names, known)
    if names.tolist() == known.tolist():
        return counts, None
    lacking = _lacking(names, known)
    refused = bool(lacking) and (missing == "error" or len(lacking) == len(known))
    asked = is_frame and hasattr(estimator, "feature_names_in_")
    if asked and (refused or not lacking and len(names) == len(known)):
        advice = (remedy or _REMEDY) if lacking else "give X[model.feature_names_in_]."
        try:
            validate_data(estimator, X, reset=False, skip_check_array=True)
        except ValueError as error:
            raise ValueError(f"{error}{advice[0].upper()}{advice[1:]}") from None
    if refused:
        raise ValueError(_lacks(names, known, lacking, subject, remedy or _REMEDY))
    columns = _places(names, known, subject)
    warn_caller(_done(counts, names, known, columns, subject, missing))
    there = columns >= 0
    if there.all():
        return select_columns(counts, columns), None
    if missing == "zero":
        return select_columns(counts, columns, known), None
    return select_columns(counts, columns[there], known[there]), there


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


def check_missing(missing: Any) -> None:
    """Refuse an invalid `missing`, which says how to treat missing features."""
    if missing is not None and missing not in MISSING:
        raise ValueError(
            f"missing={missing!r}: {', '.join(map(repr, MISSING))} are the ways to treat features "
            "of the fit that X lacks."
        )


MISSING = ("error", "restrict", "zero")
_REMEDY = (
    "give missing='restrict' if they were not measured, as genes in another assay: they are then "
    "left out; or missing='zero' if their absence means counts of 0, as of words in texts with a "
    "vocabulary of their own."
)


def _lacking(names: Array, known: Array) -> list[Any]:
    there = set(names.tolist())
    return [name for name in known.tolist() if name not in there]


def _lacks(names: Array, known: Array, lacking: list[str], subject: str, remedy: str) -> str:
    """Return text on missing features, with new ones that may be the same under other names."""
    others = _unknown(names, known)
    if len(lacking) == len(known):
        return (
            f"X has none of the {len(known):,} features that {subject} was fitted to, such as "
            f"{such_as(lacking)}; those of X are such as {such_as(others)}: give X names of the "
            "same kind."
        )
    more = f"; those of X are such as {such_as(others)}" if others else ""
    return (
        f"X lacks {len(lacking):,} of the {len(known):,} features that {subject} was fitted to, "
        f"such as {such_as(lacking)}{more}: {remedy}"
    )


def _places(names: Array, known: Array, subject: str) -> Array:
    """Return the position in `names` of each known name, -1 if it is missing."""
    wanted = set(known.tolist())
    for labels, where in ((known, f"that {subject} was fitted to"), (names, "of X")):
        if repeated := repeated_names(labels.tolist(), wanted):
            raise ValueError(
                f"several features {where} have one name, such as {such_as(repeated)}, and cannot "
                "be matched by name. Make names unique before the fit and here, for AnnData by "
                "var_names_make_unique(), or give the features of the fit in its order."
            )
    place = {name: at for at, name in enumerate(names.tolist())}
    return np.array([place.get(name, -1) for name in known.tolist()])


def _done(
    counts: CountMatrix, names: Array, known: Array, columns: Array, subject: str, missing: str
) -> str:
    """Return text that says how features were matched."""
    others, said = _unknown(names, known), []
    if lacking := known[columns < 0].tolist():
        what = "they are left out" if missing == "restrict" else "their counts are taken as 0"
        said.append(
            f"X lacks {len(lacking):,} of the {len(known):,} features that {subject} was fitted "
            f"to, such as {such_as(lacking)}: {what} (missing={missing!r})."
        )
    if others:
        are = "feature that" if len(others) == 1 else "features that"
        left = counts.total - float(counts.column_totals[columns[columns >= 0]].sum())
        share = f"{left / counts.total:.1%} of its counts" if counts.total else "no counts"
        said.append(
            f"X has {len(others):,} {are} {subject} was not fitted to, such as {such_as(others)}: "
            f"{'it is' if len(others) == 1 else 'they are'} ignored, with {share}."
        )
    if (np.diff(columns[columns >= 0]) < 0).any():
        what = "The other features are" if said else "X has its features"
        said.append(f"{what} in another order than in the fit: they are matched by name.")
    return " ".join(said)


def _unknown(names: Array, known: Array) -> list[Any]:
    wanted = set(known.tolist())
    return [name for name in names.tolist() if name not in wanted]
