"""The rows of a regression: proportions of units or of samples, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...methods.factors import proportions
from ..design.groups import Design
from ..design.loadings import SampleTopics
from .covariates import DesignMatrix

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Responses Y (n, T) and design matrix X (n, P), with a row for each unit or sample.

    `unit` (n,) is the unit of each row; units are sorted by stratum, `strata` is where each stratum
    begins, and rows are in the order of their units. `weights` (n,) is None if all rows count
    alike. `what` is "units" or "samples".
    """

    X: Array
    Y: Array
    weights: Array | None
    unit: Array
    strata: Array
    what: str
    unit_names: Any

    @classmethod
    def of(
        cls, topics: SampleTopics, matrix: DesignMatrix, design: Design, equal_weights: str
    ) -> Rows:
        """Use samples as rows, or units if each unit has a single value of every covariate."""
        X, unit, what, amounts = matrix.values, design.of_sample, "samples", topics.rows
        kept = np.asarray(amounts.any(axis=1))
        left_out = np.setdiff1d(unit, unit[kept]).size if design.unit_names is not None else 0
        topics.warn_of_empty(f"; with them {left_out:,} units" if left_out else "")
        _, first = np.unique(unit, return_index=True)
        if design.unit_names is not None and not (X != X[first[unit]]).any():
            amounts, X, what = design.sum_over_units(amounts), X[first], "units"
            unit, kept = np.arange(design.n_units), np.asarray(amounts.any(axis=1))
        DesignMatrix(X, matrix.terms).check_rank(kept, what)
        left = np.unique(unit[kept])
        of_left = design.strata.codes[left]
        place = np.empty(design.n_units, np.int64)
        ordered = left[np.argsort(of_left, kind="stable")]
        place[ordered] = np.arange(left.size)
        unit, sizes = place[unit[kept]], np.bincount(of_left)
        order = np.argsort(unit, kind="stable")
        amounts, unit = amounts[kept][order], unit[order]
        totals = amounts.sum(axis=1)
        if equal_weights == "units":  # the weights of a unit add up to 1
            totals = totals / np.bincount(unit, totals)[unit]
        alike = np.ptp(totals) <= 1e-12 * totals.max()
        names = design.unit_names
        return cls(
            X[kept][order], proportions(amounts), None if alike else totals, unit,
            np.concatenate([[0], np.cumsum(sizes[sizes > 0])]), what,
            None if names is None else [names[u] for u in ordered],
        )  # fmt: skip

    @property
    def n_units(self) -> int:
        """Number of units."""
        return int(self.strata[-1])

    @property
    def are_units(self) -> bool:
        """Whether each unit has one row."""
        return len(self.X) == self.n_units

    def kinds(self) -> tuple[Array, Array]:
        """Return numbers of units with equal terms (n_strata, n_kinds), and one unit of each."""
        _, first, kind = np.unique(self.X, axis=0, return_index=True, return_inverse=True)
        sizes = np.zeros((len(self.strata) - 1, len(first)), np.int64)
        stratum = np.repeat(np.arange(len(sizes)), np.diff(self.strata))
        np.add.at(sizes, (stratum, kind.reshape(-1)), 1)
        return sizes, first

    def known_within_strata(self, columns: list[int]) -> bool:
        """Return whether columns vary within strata, and other columns do not explain them."""
        stratum = np.repeat(np.arange(len(self.strata) - 1), np.diff(self.strata))[self.unit]
        means = np.zeros((len(self.strata) - 1, self.X.shape[1]))
        np.add.at(means, stratum, self.X)
        away = self.X - (means / np.bincount(stratum)[:, None])[stratum]
        lengths = np.linalg.norm(away, axis=0)
        away[:, lengths <= 1e-9 * np.linalg.norm(self.X, axis=0)] = 0
        away /= np.where(lengths > 0, lengths, 1.0)
        others = np.delete(away, columns, axis=1)
        rank, of_others = (np.linalg.matrix_rank(matrix, tol=1e-7) for matrix in (away, others))
        return bool(rank - of_others == len(columns))
