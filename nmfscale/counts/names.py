"""Names of samples and features, and the rule by which arguments are matched with them.

An argument with an entry for each sample, or for each feature, is matched by name where both sides
have names. Its order does not matter, and entries that are not needed are left out. A name that is
missing is an error, and so is one that occurs twice, unless both sides have the same names in the
same order. Where one side has no names, entries are taken by position.

Names are those in the index of a pandas object, in an AnnData object, in counts, in a fitted model,
or the keys of a dict. They may be text, numbers, bytes, or tuples of them (a MultiIndex). A
RangeIndex counts as no names: pandas makes it up. Numbers and bytes match their text, as AnnData
and tables of text turn names into text.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Names that a message shows.
_SHOWN = 3
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def plain(value: Any) -> Any:
    """Return a value without NumPy's own types of numbers and text, also inside of lists."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def shown(value: Any) -> str:
    """Return how messages show a value: as Python writes it, cut where it is long."""
    return _SHORT.repr(plain(value))


def such_as(values: Iterable[Any]) -> str:
    """Return the first few values as text."""
    return ", ".join(shown(value) for value in islice(values, _SHOWN))


def name_array(names: Any) -> Array:
    """Return names as an array of Python objects of shape (n,); tuples stay whole."""
    values = names.tolist() if hasattr(names, "tolist") else list(names)
    return np.fromiter((plain(name) for name in values), object, len(values))


def checked_names(names: Any, size: int, argument: str, of: str) -> Array | None:
    """Return one name for each row or column of counts, or None; arrays stay as they are."""
    if names is None:
        return None
    if not isinstance(names, np.ndarray):
        of_text = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
        names = np.asarray(names, str) if of_text else name_array(names)
    if names.shape != (size,):
        raise ValueError(f"{argument} has shape {names.shape}, but there are {size} {of}s.")
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
        Python objects; None where there are no names.
    """
    found = None
    if hasattr(source, "columns") or hasattr(source, "iloc"):
        found = getattr(source, "columns" if axis == 1 else "index", None)
        if type(found).__name__ == "RangeIndex":
            return None
    elif isinstance(source, Mapping):
        found = list(source) if axis == 0 else None
    else:
        for name in _ATTRIBUTES[axis]:
            found = getattr(source, name, None)
            if found is not None:
                break
    return None if found is None else name_array(found)


# Where counts, AnnData objects and fitted models have names of samples, and of features.
_ATTRIBUTES = (
    ("sample_names", "obs_names", "sample_names_"),
    ("feature_names", "var_names", "feature_names_in_", "feature_labels_"),
)


def matched(
    values: Any, names: Any, argument: str, *, axis: int = 0, of: str = "samples", whom: str = "X"
) -> Any:  # fmt: skip
    """Return an argument with its entries in the order of names, where both sides have names.

    Parameters
    ----------
    values : object
        The argument: a pandas object or a dict is matched by name, all else is returned as it is.
    names : array-like or None
        Names of the samples or features that need an entry each, as `names_of` returns them.
    argument : str
        What messages call the argument.
    axis : {0, 1}, default=0
        The axis of the argument with an entry for each name.
    of : str, default="samples"
        What is named, in the plural.
    whom : str, default="X"
        What has these samples or features.

    Returns
    -------
    object
        Of the type of `values`, but a list for a dict.

    Raises
    ------
    ValueError
        If a name is missing, or if a name that is needed occurs more than once on either side; if
        `values` is a dict and there are no names.
    """
    if isinstance(values, Mapping):
        if names is None:
            raise ValueError(
                f"{argument} is a dict, and the {of} of {whom} have no names to look up in it: "
                "give a list in their order."
            )
        entries = list(values.values())
        places = places_of(list(values), names, argument, of=of, whom=whom)
        return entries if places is None else [entries[at] for at in places]
    if names is None or not hasattr(values, "iloc"):
        return values
    given = names_of(values, axis)
    if given is None:
        return values
    by_position = "reset_index(drop=True)" if axis == 0 else "to_numpy()"
    places = places_of(
        given, names, argument, of=of, whom=whom,
        remedy=f"or give {argument}.{by_position} to take entries by position",
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


def same_topics(one: Any, other: Any) -> Any:
    """Return a table with its columns in the order of those of another, where both have the same.

    Columns are topics. Two tables may call them differently: they are then taken by position.
    """
    names, given = names_of(one, 1), names_of(other, 1)
    if names is None or given is None or len(names) != len(given) or set(names) != set(given):
        return other
    return matched(other, names, "factors", axis=1, of="topics", whom="loadings")


def places_of(
    given: Any, names: Any, argument: str, *, of: str = "samples", whom: str = "X",
    remedy: str = "",
) -> Array | None:  # fmt: skip
    """Return where in `given` each of `names` is, or None if they are the same in the same order.

    `remedy` is added to messages, besides adding what is missing or making names unique.
    """
    given_names, names = (each.tolist() for each in same_kind(name_array(given), name_array(names)))
    if given_names == names:
        return None
    end = f", {remedy}." if remedy else "."
    place, wanted = {name: at for at, name in enumerate(given_names)}, set(names)
    if lacking := [name for name in names if name not in place]:
        others = [name for name in given_names if name not in wanted]
        beside = f"; it has {such_as(others)}, which {whom} does not have" if others else ""
        raise ValueError(
            f"{argument} has no entry for {len(lacking):,} of the {len(names):,} {of} of {whom}, "
            f"such as {such_as(lacking)}{beside}. Where both sides have names, {of} are matched by "
            f"name: add the missing entries{end}"
        )
    for side, whose in ((names, whom), (given_names, argument)):
        if repeated := repeated_names(side, wanted):
            raise ValueError(
                f"{whose} has several {of} of one name, such as {such_as(repeated)}, so that "
                f"{argument} cannot be matched by name: make names unique{end}"
            )
    return np.array([place[name] for name in names], np.intp)


def same_kind(one: Array, other: Array) -> tuple[Array, Array]:
    """Return names of two sides, as text where those of one side are all text.

    AnnData and tables of text turn numbers into text.
    """
    of_text = [all(isinstance(name, str) for name in names) for names in (one, other)]
    if of_text[0] == of_text[1]:
        return one, other
    return (one, as_text(other)) if of_text[0] else (as_text(one), other)


def as_text(names: Iterable[Any]) -> Array:
    """Return names as text; bytes are UTF-8."""
    return name_array([
        name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
        for name in names
    ])  # fmt: skip


def repeated_names(names: Iterable[Any], wanted: Collection[Any] | None = None) -> list[Any]:
    """Return the names that occur more than once, of those that are wanted, by default of all."""
    times = Counter(name for name in names if wanted is None or name in wanted)
    return [name for name, n in times.items() if n > 1]
