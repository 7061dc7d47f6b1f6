"""Names of samples and features, and the rule that matches arguments by name.

An argument with an entry for each sample, or for each feature, is matched by name if both sides
have names. Its order then does not matter, and surplus entries are ignored. A missing name is an
error, and so is a name that occurs twice, unless both sides have the same names in the same order.
If one side has no names, entries are matched by position.

Names come from the index of a pandas object, from an AnnData object, counts, a fitted model, or the
keys of a dict. They may be text, numbers, bytes, or tuples of these (a MultiIndex). A RangeIndex
of consecutive numbers does not count as names, because pandas creates it by default. Numbers and
bytes match their text, because AnnData and text files turn names into text.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .foreign import refuse_annotated
from .warn import warn_caller

Array = NDArray[Any]
# Number of names that a message shows.
_SHOWN = 3
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class NumberOfNamesError(ValueError):
    """An argument does not have a name for each row or column: `size` names are needed."""

    def __init__(self, argument: str, shape: tuple[int, ...], size: int, of: str) -> None:
        super().__init__(f"{argument} has shape {shape}, but there are {size} {of}s.")
        self.argument, self.size = argument, size


def plain(value: Any) -> Any:
    """Convert NumPy scalars to Python's numbers and text, also inside lists and tuples."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def shown(value: Any) -> str:
    """Format a value for messages: its repr, shortened if it is long."""
    return _SHORT.repr(plain(value))


def is_missing(value: Any) -> bool:
    """Whether a value is None or, like NaN, NaT and pandas.NA, does not equal itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # the comparison of pandas.NA has no truth value
        return True
    except ValueError:  # that of an array has one for each entry
        return False


def such_as(values: Iterable[Any]) -> str:
    """Format the first few values for messages."""
    return ", ".join(shown(value) for value in islice(values, _SHOWN))


def name_array(names: Any) -> Array:
    """Return names as an array of Python objects of shape (n,); tuples stay whole."""
    values = names.tolist() if hasattr(names, "tolist") else list(names)
    return np.fromiter((plain(name) for name in values), object, len(values))


def checked_names(names: Any, size: int, argument: str, of: str) -> Array | None:
    """Return names as an array with one for each row or column, or None; arrays are not changed."""
    if names is None:
        return None
    if not isinstance(names, np.ndarray):
        all_text = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        names = np.asarray(names, str) if all_text else name_array(names)
    if names.shape != (size,):
        raise NumberOfNamesError(argument, names.shape, size, of)
    return np.asarray(names)


def names_of(source: Any, axis: int = 0) -> Array | None:
    """Return the names of the rows (axis 0) or columns (axis 1) of an argument, or None.

    Parameters
    ----------
    source : object
        A pandas object, AnnData, counts, a fitted model (samples and features) or a dict.
    axis : {0, 1}, default=0
        Samples and features are axes 0 and 1 of counts, AnnData and models.

    Returns
    -------
    ndarray of shape (n,), object, or None
        The names as Python objects; None if there are none.
    """
    names = None
    if hasattr(source, "columns") or hasattr(source, "iloc"):
        names = getattr(source, "columns" if axis == 1 else "index", None)
        # pandas 3 makes a RangeIndex of rows or columns selected in steps, such as in reverse order
        if type(names).__name__ == "RangeIndex" and getattr(names, "step", 1) == 1:
            return None
    elif isinstance(source, Mapping):
        names = list(source) if axis == 0 else None
    else:
        for name in _ATTRIBUTES[axis]:
            names = getattr(source, name, None)
            if names is not None:
                break
    return None if names is None else name_array(names)


# Attributes of counts, AnnData objects and fitted models with names of samples, and of features.
_ATTRIBUTES = (
    ("sample_names", "obs_names", "sample_names_"),
    ("feature_names", "var_names", "feature_names_in_", "feature_labels_"),
)


def matched(
    values: Any, names: Any, argument: str, *, axis: int = 0, of: str = "samples",
    subject: str = "X",
) -> Any:  # fmt: skip
    """Return an argument with its entries in the order of `names`, if both sides have names.

    Parameters
    ----------
    values : object
        The argument. A pandas object or a dict is matched by name; anything else is returned
        unchanged.
    names : array-like or None
        Names of the samples or features, each of which needs an entry; from `names_of`.
    argument : str
        Name of the argument in messages.
    axis : {0, 1}, default=0
        The axis of the argument with an entry for each name.
    of : str, default="samples"
        Noun for the named things in messages, in the plural.
    subject : str, default="X"
        Name in messages of the object that has these samples or features.

    Returns
    -------
    object
        Of the same type as `values`; a list if that is a dict.

    Raises
    ------
    ValueError
        If a name is missing, if a required name occurs more than once on either side, or if
        `values` is a dict and `names` is None.
    """
    refuse_annotated(values, argument)
    if isinstance(values, Mapping):
        if names is None:
            raise ValueError(
                f"{argument} is a dict, but the {of} of {subject} have no names to look up in it: "
                "pass a list in their order."
            )
        entries = list(values.values())
        places = places_of(list(values), names, argument, of=of, subject=subject)
        return entries if places is None else [entries[at] for at in places]
    if names is None or not hasattr(values, "iloc"):
        return values
    own_names = names_of(values, axis)
    if own_names is None:
        return values
    by_position = "reset_index(drop=True)" if axis == 0 else "to_numpy()"
    places = places_of(
        own_names, names, argument, of=of, subject=subject,
        remedy=f"or pass {argument}.{by_position} to match entries by position",
    )  # fmt: skip
    if places is None:
        return values
    return values.iloc[places] if axis == 0 else values.iloc[:, places]


def of_samples(values: Any, counts: Any, argument: str) -> Any:
    """Return an argument with its entries, or rows, in the order of the samples of counts."""
    return matched(values, counts.sample_names, argument)


def of_features(values: Any, counts: Any, argument: str, *, axis: int = 0) -> Any:
    """Return an argument with its entries along an axis in the order of the features of counts."""
    return matched(values, counts.feature_names, argument, axis=axis, of="features")


def warn_of_surplus(
    values: Any, names: Any, argument: str, *, of: str = "features", subject: str = "X"
) -> None:
    """Warn if a table has rows whose names are not among `names`, where these rows matter."""
    rows = names_of(values) if hasattr(values, "iloc") else None
    if rows is None or names is None:
        return
    rows, names = same_kind(rows, name_array(names))
    wanted = set(names.tolist())
    if surplus := [name for name in rows.tolist() if name not in wanted]:
        warn_caller(
            f"{argument} has {len(surplus):,} {of} that {subject} lacks, such as "
            f"{such_as(surplus)}: they are left out, and the result is that of the {len(names):,} "
            f"{of} of {subject}."
        )


def same_topics(one: Any, other: Any) -> Any:
    """Return the table `other` with its columns, topics, in the order of those of `one`.

    If the names of the topics differ between the tables, columns are matched by position.
    """
    return of_topics(other, names_of(one, 1))


def of_topics(values: Any, topics: Any) -> Any:
    """Return a table or Series with its topics in this order, if it has the same topics."""
    axis = 1 if getattr(values, "ndim", 0) == 2 else 0
    names = names_of(values, axis) if hasattr(values, "iloc") else None
    if topics is None or names is None or sorted_text(topics) != sorted_text(names):
        return values
    return matched(values, topics, "factors", axis=axis, of="topics", subject="loadings")


def transposed(values: Any) -> Any:
    """Return a matrix or table, if there is one, with rows in place of columns."""
    if values is None or hasattr(values, "T"):
        return None if values is None else values.T
    return np.asarray(values).T


def names_of_topics(L: Any, F: Any) -> Array | None:
    """Return the names of the topics of two factors in their common order, or None."""
    names = names_of(same_topics(L, F), 1)
    return names_of(L, 1) if names is None else names


def sorted_text(names: Iterable[Any]) -> list[str]:
    """Return names as text, in alphabetical order."""
    return sorted(as_text(names).tolist())


def places_of(
    labels: Any, names: Any, argument: str, *, of: str = "samples", subject: str = "X",
    remedy: str = "",
) -> Array | None:  # fmt: skip
    """Return the position in `labels` of each of `names`, or None if both are equal in order, too.

    `remedy` is an alternative that messages add to "add the missing entries" or "make names
    unique".
    """
    given_names, names = (
        array.tolist() for array in same_kind(name_array(labels), name_array(names))
    )
    if given_names == names:
        return None
    end = f", {remedy}." if remedy else "."
    place, wanted = {name: at for at, name in enumerate(given_names)}, set(names)
    if lacking := [name for name in names if name not in place]:
        others = [name for name in given_names if name not in wanted]
        beside = f"; it has {such_as(others)}, which {subject} does not have" if others else ""
        raise ValueError(
            f"{argument} has no entry for {len(lacking):,} of the {len(names):,} {of} of "
            f"{subject}, such as {such_as(lacking)}{beside}. If both sides have names, {of} are "
            f"matched by name: add the missing entries{end}"
        )
    for side, whose in ((names, subject), (given_names, argument)):
        if repeated := repeated_names(side, wanted):
            raise ValueError(
                f"{whose} has several {of} of the same name, such as {such_as(repeated)}, so "
                f"{argument} cannot be matched by name: make names unique{end}"
            )
    return np.array([place[name] for name in names], np.intp)


def same_kind(one: Array, other: Array) -> tuple[Array, Array]:
    """Return the names of two sides; as text, if those of one side are all text.

    AnnData and text files turn numbers into text.
    """
    all_text = [all(isinstance(name, str) for name in names) for names in (one, other)]
    if all_text[0] == all_text[1]:
        return one, other
    return (one, as_text(other)) if all_text[0] else (as_text(one), other)


def as_text(names: Iterable[Any]) -> Array:
    """Return names as text; bytes are decoded as UTF-8."""
    return name_array([
        name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
        for name in names
    ])  # fmt: skip


def repeated_names(names: Iterable[Any], wanted: Collection[Any] | None = None) -> list[Any]:
    """Return the names that occur more than once, among those in `wanted`, by default among all."""
    times = Counter(name for name in names if wanted is None or name in wanted)
    return [name for name, n in times.items() if n > 1]
