"""Features of later batches of `partial_fit`: matched by name, added to the model, or left out."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import name_array, names_of, same_kind, shown, such_as
from ...readers.streams.matching import check_missing, lacking_names
from .names import (
    default_missing,
    is_named_frame,
    matched_counts,
    refuse_columns,
    take_feature_names,
)

Array = NDArray[Any]

NewFeatures: TypeAlias = Literal["error", "add", "ignore"]
_MISSING = (
    "give missing='zero' if their counts are 0 in such batches, as of words; or missing='restrict' "
    "if they were not measured there, as genes of another assay."
)
_NEW = (
    "give new_features='add' to add them to the model, or new_features='ignore' to leave out their "
    "counts."
)

_NAMES = "pass a DataFrame or AnnData object, counts of text_counts, or feature_names=."


class Batch(NamedTuple):
    """Counts of a batch with the features of a model, and the names of those to add to it.

    `there` is a mask of the features, old and new, that the counts have; None means all.
    `restricted` says that features which a batch lacks were not measured in it.
    """

    counts: CountMatrix
    there: Array | None = None
    names: Array = np.zeros(0, object)
    restricted: bool = False

    @property
    def features(self) -> Any:
        """Places of the features of the counts among those of the model."""
        return slice(None) if self.there is None else self.there


def check_new_features(new_features: Any, missing: Any) -> None:
    """Refuse unknown ways to treat new and missing features."""
    check_missing(missing)
    if new_features not in get_args(NewFeatures):
        raise ValueError(
            f"new_features={shown(new_features)}: {', '.join(map(repr, get_args(NewFeatures)))} "
            "are the ways to treat features of a batch that the model does not have."
        )


def first_batch(counts: CountMatrix, new_features: NewFeatures) -> Batch:
    """Return the first batch, whose features need names if others are to be added."""
    if new_features == "add" and counts.feature_names is None:
        raise ValueError(
            f"new_features='add' matches features by name, and X has no names: {_NAMES}"
        )
    return Batch(counts)


def matched_batch(
    model: Any, X: Any, counts: CountMatrix, new_features: NewFeatures, missing: Any
) -> Batch:
    """Return the counts of a batch in the order of the features of a model, new ones at the end.

    The rules are those of `matched_counts`, except that new features are an error by default. Those
    to add are features that earlier batches lacked, so that `missing` must say what that means.
    """
    missing = default_missing(model, counts) if missing is None else missing
    names, own = counts.feature_names, names_of(model, 1)
    new, more = name_array([]), None
    if names is not None and own is not None:
        new = name_array(_lacking(own, names))
    elif new_features == "add":
        whose = "X has" if names is None else "the first batch had"
        raise ValueError(
            f"new_features='add' matches features by name, and {whose} no names: {_NAMES}"
        )
    all_new = len(new) and len(new) == len(names)  # which is refused below, whatever the options
    if new_features != "ignore" and not all_new:
        if len(new):
            _check_new(model, X, counts, new, new_features, missing)
        more = new if new_features == "add" else None
    found = matched_counts(model, X, counts, missing, f"in a batch, {_MISSING}", more)
    return Batch(*found, new if more is not None else new[:0], missing == "restrict")


def _check_new(
    model: Any, X: Any, counts: CountMatrix, new: Array, new_features: str, missing: str
) -> None:
    """Refuse new features that are not to be added, or that too little is known about."""
    one = f"{len(new):,} feature{'' if len(new) == 1 else 's'}"
    subject = type(model).__name__
    if new_features == "error":
        if is_named_frame(X):
            refuse_columns(model, X, _NEW)
        raise ValueError(
            f"X has {one} that {subject} does not have, such as {such_as(new)}: {_NEW}"
        )
    if missing == "error":
        raise ValueError(
            f"X has {one} that earlier batches lacked, such as {such_as(new)}: {_MISSING}"
        )
    if getattr(model, "modalities_", None) is not None or counts.modalities is not None:
        raise ValueError(
            f"X has {one} that {subject} does not have, such as {such_as(new)}, and features have "
            "modalities, to which none can be added: give new_features='ignore'."
        )


def add_features(model: Any, names: Array) -> None:
    """Add features, none of whose counts the model has seen, to its names."""
    if not len(names):
        return
    own = names_of(model, 1)
    assert own is not None
    take_feature_names(model, np.concatenate(same_kind(own, names)))
    model.n_features_in_ = len(own) + len(names)
    model.unseen_features_ = with_new_rows(model.unseen_features_, len(names), True)


def with_new_rows(values: Array, n_new: int, value: Any = 0.0) -> Array:
    """Return an array (m, ...) with further rows for new features, which have this value."""
    new = np.broadcast_to(np.asarray(value, values.dtype), (n_new, *values.shape[1:]))
    return np.concatenate([values, new])


def _lacking(own: Array, names: Array) -> list[Any]:
    """Return the names that are not among `own`, without repetitions."""
    own, names = same_kind(own, names)
    return [*dict.fromkeys(lacking_names(own, names))]
