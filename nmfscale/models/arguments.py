"""Checks of what is given to `fit` besides the counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def checked_vector(values: Any, size: int, name: str, *, positive: bool = False) -> Array | None:
    """Return one number for each sample in float64, or None."""
    if values is None:
        return None
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (size,):
        raise ValueError(
            f"{name} has shape {vector.shape}; one number a sample, ({size},), is needed."
        )
    bad = ~np.isfinite(vector) | (vector <= 0 if positive else vector < 0)
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        kind = "positive" if positive else "non-negative"
        raise ValueError(f"{name}[{where}] is {vector[where]}; {kind} finite numbers are needed.")
    if not vector.any():
        raise ValueError(f"{name}: all are 0; at least one sample must count.")
    return vector


def checked_mask(values: Any, size: int, name: str) -> Array | None:
    """Return a mask of the right size, or None."""
    if values is None:
        return None
    mask = np.asarray(values)
    if mask.dtype != bool or mask.shape != (size,):
        raise ValueError(
            f"{name} is {mask.dtype} of shape {mask.shape}; an array of {size} booleans is needed."
        )
    return mask


def gamma_prior(given: Any, shape: tuple[int, int], name: str) -> tuple[Array, Array] | None:
    """Return pseudo-counts alpha - 1 and rates of a Gamma prior, given alpha or (alpha, rate)."""
    if given is None:
        return None
    alpha, rate = given if isinstance(given, tuple) else (given, 1.0)
    arrays = []
    for what, value, least in (("alpha", alpha, 1.0), ("rate", rate, 0.0)):
        array = np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
        if not np.isfinite(array).all() or (array < least).any():
            raise ValueError(
                f"{name}: {what} is {value!r}; numbers of at least {least:g} are needed."
            )
        arrays.append(array)
    return arrays[0] - 1, arrays[1]
