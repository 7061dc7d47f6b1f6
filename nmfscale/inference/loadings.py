"""What questions about loadings take: a fitted model, or an array or table of loadings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def checked_loadings(loadings: Any, topic_names: Any = None) -> tuple[Array, tuple[Any, ...]]:
    """Return loadings (n, T) in float64, and names of the topics, by default those of a model."""
    if hasattr(loadings, "get_params"):
        if not hasattr(loadings, "loadings_"):
            raise ValueError(
                f"{type(loadings).__name__} has no loadings_: fit it first, or pass what its "
                "transform returns."
            )
        if topic_names is None:
            topic_names = getattr(loadings, "topic_names_", None)
        loadings = loadings.loadings_
    try:
        values = np.asarray(loadings, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"loadings is a {type(loadings).__name__}: numbers of shape (samples, topics), or a "
            f"fitted model, are needed ({error})."
        ) from None
    if values.ndim != 2 or not values.size:
        raise ValueError(f"loadings has shape {values.shape}; (samples, topics) is needed.")
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        i, k = map(int, np.argwhere(bad)[0])
        raise ValueError(
            f"loadings[{i}, {k}] is {values[i, k]}; non-negative finite numbers are needed."
        )
    if topic_names is None:
        topic_names = getattr(loadings, "columns", range(values.shape[1]))
    return values, checked_names(topic_names, values.shape[1], "topic_names")


def checked_names(names: Any, size: int, what: str) -> tuple[Any, ...]:
    """Return one name each, all different."""
    if isinstance(names, str) or not isinstance(names, Sequence | np.ndarray | range):
        names = [names] if isinstance(names, str) else list(names)
    found = tuple(each.item() if isinstance(each, np.generic) else each for each in names)
    if len(found) != size or len(set(found)) != size:
        raise ValueError(f"{what} has {len(set(found))} different names; {size} are needed.")
    return found


def proportions(amounts: Array) -> Array:
    """Divide rows by their sums; rows of zeros stay."""
    sums = amounts.sum(axis=1, keepdims=True)
    out: Array = amounts / np.where(sums > 0, sums, 1.0)
    return out


def amounts_of_topics(loadings: Any) -> Array:
    """Return what of each topic is in each sample (n, T): of a fitted model, proportions.

    These are loadings times what the features of their component add up to, so that the scale of
    components is no matter. Arrays and tables are taken as they are.
    """
    values, _ = checked_loadings(loadings)
    if not hasattr(loadings, "components_"):
        return values
    return proportions(values * np.asarray(loadings.components_, np.float64).sum(axis=1))
