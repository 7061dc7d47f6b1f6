"""Names of features: kept by a fit, and those of new counts matched with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
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
from ..counts.warn import warn_caller
from ..readers.columns import select_columns

Array = NDArray[Any]
# Names that a message shows.
_SHOWN = 3


def keep_names(estimator: Any, X: Any, counts: CountMatrix) -> None:
    """Keep number and names of the features of a fit."""
    if hasattr(X, "columns"):
        validate_data(estimator, X, reset=True, skip_check_array=True)
        return
    _check_n_features(estimator, counts, reset=True)
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    if counts.feature_names is not None:
        estimator.feature_names_in_ = np.asarray(counts.feature_names, dtype=object)


def matched_counts(estimator: Any, X: Any, counts: CountMatrix) -> CountMatrix:
    """Return new counts with the features of the fit in its order, matched by name.

    Where one side has no names, there must be as many features as in the fit. A DataFrame whose
    columns are those of the fit in another order is refused, as scikit-learn demands.
    """
    is_frame = hasattr(X, "columns")
    names = _get_feature_names(X) if is_frame else counts.feature_names
    known = getattr(estimator, "feature_names_in_", None)
    if names is None or known is None:
        _check_n_features(estimator, counts, reset=False)
        if is_frame or names is None:  # warns if names are on one side only
            _check_feature_names(estimator, X if is_frame else None, reset=False)
        return counts
    names = np.asarray(names, dtype=object)
    if np.array_equal(names, known):
        return counts
    whom = type(estimator).__name__
    lacking = _lacking(names, known)
    if is_frame and (lacking or len(names) == len(known)):
        remedy = _REMEDY if lacking else "give X[model.feature_names_in_]."
        try:
            validate_data(estimator, X, reset=False, skip_check_array=True)
        except ValueError as error:
            raise ValueError(f"{error}{remedy[0].upper()}{remedy[1:]}") from None
    if lacking:
        raise ValueError(_lacks(names, known, lacking, whom))
    columns = _places(names, known, whom)
    warn_caller(_done(names, known, columns, whom))
    return select_columns(counts, columns)


_REMEDY = (
    "add them, with counts of 0 where nothing was counted, or fit the model to the features that "
    "both have."
)


def _lacking(names: Array, known: Array) -> list[str]:
    there = set(names.tolist())
    return [name for name in known.tolist() if name not in there]


def _lacks(names: Array, known: Array, lacking: list[str], whom: str) -> str:
    """Say what is missing, and beside it what might be the same under another name."""
    others = _unknown(names, known)
    more = f"; those of X are such as {_such_as(others)}" if others else ""
    return (
        f"X lacks {len(lacking):,} of the {len(known):,} features that {whom} was fitted to, such "
        f"as {_such_as(lacking)}{more}: {_REMEDY}"
    )


def _places(names: Array, known: Array, whom: str) -> Array:
    """Return where in `names` each of the known ones is, all of which are there."""
    wanted = set(known.tolist())
    for labels, where in ((known, f"that {whom} was fitted to"), (names, "of X")):
        often = Counter(name for name in labels.tolist() if name in wanted)
        if repeated := [name for name, times in often.items() if times > 1]:
            raise ValueError(
                f"several features {where} have one name, such as {_such_as(repeated)}, and cannot "
                "be matched by name. Make names unique before the fit and here, for AnnData by "
                "var_names_make_unique(), or give the features of the fit in its order."
            )
    place = {name: at for at, name in enumerate(names.tolist())}
    return np.array([place[name] for name in known.tolist()])


def _done(names: Array, known: Array, columns: Array, whom: str) -> str:
    """Say what was done to the features."""
    others, said = _unknown(names, known), []
    if others:
        are = "feature that" if len(others) == 1 else "features that"
        said.append(
            f"X has {len(others):,} {are} {whom} was not fitted to, such as {_such_as(others)}: "
            f"{'it is' if len(others) == 1 else 'they are'} ignored."
        )
    if (np.diff(columns) < 0).any():
        what = "The others stand" if others else "X has its features"
        said.append(f"{what} in another order than in the fit: they are matched by name.")
    return " ".join(said)


def _unknown(names: Array, known: Array) -> list[str]:
    wanted = set(known.tolist())
    return [name for name in names.tolist() if name not in wanted]


def _such_as(names: Iterable[str]) -> str:
    return ", ".join(repr(str(name)) for name in islice(names, _SHOWN))
