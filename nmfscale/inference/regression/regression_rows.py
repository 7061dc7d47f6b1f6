"""The rows of a regression: proportions of units or of samples, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.warn import warn_caller
from ...methods.factors import proportions
from ..design.groups import Design, blocks_of
from ..design.loadings import SampleTopics
from ..design.units import weights_of_subjects, within_strata
from .covariates import DesignMatrix, first_dependent

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Responses Y (n, T) and design matrix X (n, P), with a row for each unit or sample.

    `unit` (n,) is the unit of each row; units are sorted by stratum, `strata` is where each stratum
    begins, and rows are in the order of their units. `weights` (n,) is None if all rows count
    alike. `blocks` (n,) are the strata or units, numbered from 0, within which rows are compared;
    None if all rows are. `within` is what these are called, "strata" or "units", or "". `what` is
    "units"; "levels", what units have at one combination of levels; or "samples".
    """

    X: Array
    Y: Array
    weights: Array | None
    unit: Array
    strata: Array
    what: str
    unit_names: Any
    blocks: Array | None = None
    within: str = ""

    @classmethod
    def of(
        cls, topics: SampleTopics, matrix: DesignMatrix, design: Design, equal_weights: str,
        within: str = "",
    ) -> Rows:  # fmt: skip
        """Use samples as rows, or units if each unit has a single value of every covariate.

        `within` "units": rows are units at each of their levels.
        """
        X, unit, what, amounts = matrix.values, design.of_sample, "samples", topics.rows
        kept = np.asarray(amounts.any(axis=1))
        left_out = np.setdiff1d(unit, unit[kept]).size if design.unit_names is not None else 0
        topics.warn_of_empty(f"; with them {left_out:,} units" if left_out else "")
        first = np.unique(unit, return_index=True)[1]
        if within == "units":
            cell, first = _cells(X, unit)
            summed = np.zeros((len(first), amounts.shape[1]))
            np.add.at(summed, cell, amounts)
            amounts, X, unit, what = summed, X[first], unit[first], "levels"
            kept = np.asarray(amounts.any(axis=1))
            kept = _comparable(X, unit, design.strata.codes[unit], kept)
        elif design.unit_names is not None and not (X != X[first[unit]]).any():
            amounts, X, what = design.sum_over_units(amounts), X[first], "units"
            unit, kept = np.arange(design.n_units), np.asarray(amounts.any(axis=1))
        if within != "units":
            DesignMatrix(X, matrix.terms).check_rank(kept, what)
        X, unit, amounts = X[kept], unit[kept], amounts[kept]
        left = np.unique(unit)
        of_left = design.strata.codes[left]
        place = np.empty(design.n_units, np.int64)
        ordered = left[np.argsort(of_left, kind="stable")]
        place[ordered] = np.arange(left.size)
        order, sizes = np.argsort(place[unit], kind="stable"), np.bincount(of_left)
        stratum = _numbered(design.strata.codes[unit][order])
        X, unit, amounts = X[order], place[unit][order], amounts[order]
        names, Y, weights = design.unit_names, proportions(amounts), amounts.sum(axis=1)
        if equal_weights == "units":  # the weights of a unit, or of it at a level, add up to 1
            weights = weights / (weights if within == "units" else np.bincount(unit, weights)[unit])
        blocks = {"": None, "strata": stratum, "units": blocks_of(stratum, unit)}[within]
        if blocks is not None:
            if within == "units" and (relative := weights_of_subjects(Y, blocks, unit)) is not None:
                weights = weights * relative
            centred = within_strata(X, blocks, weights)
            DesignMatrix(X, matrix.terms).check_within(centred, int(blocks.max()) + 1, within)
        alike = np.ptp(weights) <= 1e-12 * weights.max()
        return cls(
            X, Y, None if alike else weights, unit,
            np.concatenate([[0], np.cumsum(sizes[sizes > 0])]), what,
            None if names is None else [names[u] for u in ordered], blocks, within,
        )  # fmt: skip

    @property
    def n_units(self) -> int:
        """Number of units."""
        return int(self.strata[-1])

    @property
    def are_units(self) -> bool:
        """Whether each unit has one row."""
        return len(self.X) == self.n_units

    @property
    def are_exchangeable(self) -> bool:
        """Whether units have one row each and count alike, so that they can be permuted."""
        return self.are_units and self.weights is None

    def kinds(self) -> tuple[Array, Array, Array]:
        """Return numbers of units with equal terms by stratum, (n_strata, n_kinds).

        Twice: of kinds that are the same in all strata; and of kinds in a stratum, with one unit of
        each.
        """
        _, kind = np.unique(self.X, axis=0, return_inverse=True)
        stratum = np.repeat(np.arange(len(self.strata) - 1), np.diff(self.strata))
        keys, first, own = np.unique(
            np.column_stack([stratum, kind.reshape(-1)]), axis=0, return_index=True,
            return_inverse=True,
        )  # fmt: skip
        sizes = np.zeros((len(self.strata) - 1, int(kind.max()) + 1), np.int64)
        of_strata = np.zeros((len(self.strata) - 1, len(first)), np.int64)
        np.add.at(sizes, (stratum, kind.reshape(-1)), 1)
        np.add.at(of_strata, (stratum, own.reshape(-1)), 1)
        return sizes, of_strata, first


def are_crossed(matrix: DesignMatrix, design: Design, kept: Array) -> bool:
    """Return whether units are compared with themselves, as they have samples at several levels.

    That is if all terms differ within units, and are levels, of labels or of two numbers. `kept`
    (n,) is a mask of samples that have topics.
    """
    if design.unit_names is None:
        return False
    X, unit = matrix.values[kept], _numbered(design.of_sample[kept])
    differs = (X != X[np.unique(unit, return_index=True)[1][unit]]).any(axis=0)
    varies = np.ptp(X, axis=0) > 0
    if not varies.any() or not differs[varies].all():
        return False
    if len(matrix.levels()) < X.shape[1]:
        return False
    _, first = _cells(X, unit)
    strata = design.strata.codes[design.of_sample[kept]][first]
    centred = within_strata(X[first][:, varies], blocks_of(strata, unit[first]))
    return first_dependent(centred) is None


def _comparable(X: Array, unit: Array, stratum: Array, kept: Array) -> Array:
    """Return a mask of units at levels that are compared with others, with a warning of the rest.

    Where some units have several levels, others that all have one level have no counterpart.
    """
    places = np.flatnonzero(kept)
    blocks = blocks_of(stratum[places], unit[places])
    centred = within_strata(X[places], blocks)
    moves = (np.abs(centred) > 1e-9 * np.abs(X).max(axis=0)).any(axis=1)
    alone = np.bincount(blocks, moves)[blocks] == 0
    if alone.any():
        warn_caller(
            f"{np.unique(unit[places[alone]]).size:,} units have samples at one level only, beside "
            "others at several levels, which are compared within each: the regression leaves the "
            "former out, as no unit of another level can be set against them."
        )
    comparable = np.array(kept)
    comparable[places[alone]] = False
    return comparable


def _cells(X: Array, unit: Array) -> tuple[Array, Array]:
    """Return the cell (n,) of each sample, of a unit and its covariates, and one sample of each."""
    _, first, cell = np.unique(
        np.column_stack([unit, X]), axis=0, return_index=True, return_inverse=True
    )
    return cell.reshape(-1), first


def _numbered(stratum: Array) -> Array:
    """Return strata numbered from 0."""
    return np.unique(stratum, return_inverse=True)[1].reshape(-1)
