"""Rescaling of a fit to the scale of its counts and back to the requested one.

Parameters below an absolute floor count as zeros. So given factors of a different scale are
multiplied by powers of two, which change no digit, and the result of the fit is divided by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...counts.base import CountMatrix
from ..factors import Array, Constraints, Factor, balancing_scales
from ..projection.penalty import Penalty
from ..weights.measured import Measured
from ..weights.poisson_weights import PoissonWeights
from .joint_em import penalise


class ScaledFit:
    """Start and constraints of a Poisson NMF, rescaled to the scale of the counts.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    L, F : ndarray of shape (n, K) and (m, K), or None
        Factors as they were given.
    constraints : Constraints
    sizes : ndarray of shape (n,) or None
        Known sizes of the samples.
    n_components : int
    dtype : float32 or float64
        Type in which a fit ends.

    Attributes
    ----------
    L, F, constraints
        Start and constraints for expected counts ``L F^T``.
    """

    def __init__(
        self, counts: CountMatrix, L: Array | None, F: Array | None, constraints: Constraints,
        sizes: Array | None, n_components: int, dtype: Any,
    ):  # fmt: skip
        self._counts, self._given = counts, L
        self._sizes = None if sizes is None else sizes[:, None].astype(dtype)
        if self._sizes is not None and L is not None:
            L = L * self._sizes
        # a broadcast view: memory has not been checked yet
        self._scales: Array = np.broadcast_to(1.0, (n_components,))
        if L is not None or F is not None:
            self._scales = scales = balancing_scales(counts.total, counts.shape, L, F)
            L = None if L is None else L * scales.astype(L.dtype)
            F = None if F is None else F * (1 / scales).astype(F.dtype)
            constraints = constraints.scaled(scales)
        if constraints.topics is not None or constraints.features is not None:
            constraints = replace(constraints, factors=F)
        self.L, self.F, self.constraints = L, F, constraints

    @property
    def measured(self) -> Measured | PoissonWeights | None:
        """Features of each group of samples, or weights of entries, if they are not all 1."""
        constraints = self.constraints
        if constraints.entries is not None:
            return PoissonWeights(constraints.entries)
        if constraints.groups is None or constraints.measured is None:
            return None
        return Measured(constraints.groups, constraints.measured)

    def finish(
        self, arrays: dict[str, Array], history: Array, solver: str, penalty: Penalty
    ) -> None:
        """Rescale L, F and the history of a fit to the requested scale, in place.

        Apply the `penalty`, if it only rescales them.
        """
        constraints, counts, scales = self.constraints, self._counts, self._scales
        if solver == "joint-em":  # its F sums to one at any scale of the start
            if penalty.weight and penalty.only_rescales:
                weights, name = constraints.weights, "L"
                total = (
                    counts.total if weights is None else float((weights * counts.row_totals).sum())
                )
                if penalty.on == "components":
                    name = "F"
                    _normalise(arrays["L"], arrays["F"], weights)
                penalise(arrays[name], history, penalty.weight, total)
        elif not (scales == 1).all():
            history["loglik"] += constraints.log_scales(scales)
            for name, by in (("L", 1 / scales), ("F", scales)):
                arrays[name] = arrays[name] * by.astype(arrays[name].dtype)
        if self.measured is not None and constraints.prior_loadings is None:
            self.measured.clear(arrays["L"], arrays["F"])
        if self._sizes is not None:
            arrays["L"] = arrays["L"] / self._sizes
        if constraints.samples is not None and self._given is not None:
            # exactly as given: neither rounded nor raised to the floor
            arrays["L"][constraints.samples] = self._given[constraints.samples]


def _normalise(L: Array, F: Array, weights: Array | None) -> None:
    """Scale columns so that the weighted ones of L sum to one, in place; columns of zeros stay."""
    sums = Factor(L, *L.shape).column_sums(weights)
    sums[sums == 0] = 1
    L /= sums.astype(L.dtype)
    F *= sums.astype(F.dtype)
