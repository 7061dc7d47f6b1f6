"""Weights of samples in a mean: units count equally, or samples do."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from .groups import Design, Labels

Array = NDArray[Any]
EqualWeights: TypeAlias = Literal["units", "samples"]


def sample_weights(
    equal_weights: str, design: Design, groups: Labels | None, weights: Array
) -> Array:
    """Return the weight of each sample in a mean (n,), given its weight in the fit.

    With "units" the weights of a unit add up to 1, in each group in which it has samples.
    """
    if equal_weights == "samples" or design.unit_names is None:
        return weights
    cell = design.of_sample
    if groups is not None:
        cell = cell * len(groups.names) + groups.codes
    sums = np.bincount(cell, weights)[cell]
    scaled: Array = weights / np.where(sums > 0, sums, 1.0)
    return scaled


def check_groups(groups: Labels, weights: Array) -> None:
    """Refuse groups whose samples all have weight zero."""
    empty = np.flatnonzero(np.bincount(groups.codes, weights) == 0)
    if empty.size:
        raise ValueError(
            f"no sample of group {shown(groups.names[empty[0]])} has counts and a weight above 0: "
            "leave its samples out of groups, or give them to another one."
        )


def counted_once(equal_weights: str, units: str) -> str:
    """Return the words in the text of a result on what counts once; empty if samples are units."""
    return f", each {equal_weights[:-1]} counts once" if units == "units" else ""
