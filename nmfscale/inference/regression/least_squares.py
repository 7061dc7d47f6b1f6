"""Least squares of many topics on the same terms, also for resampled units.

With ``X = Q R`` and residuals E a replicate needs only ``Q*' [Q E]``, where Q* is Q with weighted
rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...kernels import decompositions, dense
from ..design.units import within_strata
from ..groups.bootstrap import draw_in_parts
from ..replicates.replicates import ReplicateTask
from ..replicates.seeds import child_states

Array = NDArray[Any]
# Number of entries of weighted rows that a thread has in memory at a time.
AT_ONCE = 1 << 19
# Smallest eigenvalue of Q*' Q (1 in the data) below which coefficients are not determined.
_SINGULAR = 1e-8
# Share of a sum of squares that counts as 0 up to rounding.
NOTHING = 1e-24


@dataclass(frozen=True)
class LeastSquares:
    """Coefficients B (P, T) of ``Y = X B + E`` for X (n, P) and Y (n, T).

    Rows are multiplied by the roots of their weights first. `basis` Q (n, P) is orthonormal. Row j
    of B is ``d_j' Y`` with columns d_j of `dual` (n, P), which are orthogonal to all columns of X
    but the j-th; ``dual = Q @ turn``.

    Effects of strata may be absorbed: `strata` (n,) are strata of rows, numbered from 0, and
    `share` (n,) is the leverage of these effects, the weight of a row in the mean of its stratum.
    The effects of some strata may be further columns of `basis`, orthonormal as well, in place of
    leverages.
    """

    basis: Array
    turn: Array
    coefficients: Array
    residuals: Array
    strata: Array | None = None
    share: Array | None = None

    @classmethod
    def of(
        cls, X: Array, Y: Array, weights: Array | None = None, strata: Array | None = None,
        in_basis: Array | None = None,
    ) -> LeastSquares:  # fmt: skip
        """Fit the columns of Y by weighted least squares, with row weights (n,).

        Effects of `strata` are absorbed; those of `in_basis`, a mask of strata, in the basis.
        """
        share, whole = None, Y
        if strata is None:
            X, shift = _centred(X)
        else:
            X, Y, shift = *(within_strata(A, strata, weights) for A in (X, Y)), np.eye(X.shape[1])
            share = _shares(strata, weights)
        if weights is not None:
            root = np.sqrt(weights)[:, None]
            X, Y, whole = X * root, Y * root, whole * root
        norms = np.linalg.norm(X, axis=0)
        Q, R, _ = decompositions.qr(X / norms)
        turn = dense.product(decompositions.inverse(R)[0].T / norms, shift.T)
        # set to 0 what is 0 up to rounding: what does not vary within strata, residuals if X
        # explains all, terms that explain nothing
        if strata is not None:
            Y[:, (Y**2).sum(axis=0) <= NOTHING * (whole**2).sum(axis=0)] = 0
        along = dense.cross(Q, Y)
        E, B = Y - dense.product(Q, along), dense.cross(turn, along)
        least = NOTHING * (Y**2).sum(axis=0)
        E[:, (E**2).sum(axis=0) <= least] = 0
        B[B**2 <= least * (turn**2).sum(axis=0)[:, None]] = 0
        if in_basis is not None and strata is not None and share is not None:
            columns = np.flatnonzero(in_basis)
            effects = np.where(strata[:, None] == columns, np.sqrt(share)[:, None], 0.0)
            Q = np.hstack([Q, effects])
            turn = np.vstack([turn, np.zeros((columns.size, turn.shape[1]))])
            share = np.where(in_basis[strata], 0.0, share)
        return cls(Q, turn, B, E, strata, share)

    @property
    def dual(self) -> Array:
        """Columns d_j with ``d_j' x_k = 1`` for k = j and 0 otherwise."""
        dual: Array = dense.product(self.basis, self.turn)
        return dual

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the residuals."""
        n, P = self.basis.shape
        absorbed = 0 if self.share is None else round(float(self.share.sum()))
        return max(1, n - P - absorbed)

    @property
    def leverage(self) -> Array:
        """Leverages (n,) of rows."""
        leverage: Array = (self.basis**2).sum(axis=1)
        return leverage if self.share is None else leverage + self.share

    def directions(self, columns: list[int]) -> Array:
        """Return an orthonormal basis (P, k) of what the other terms do not explain."""
        directions: Array = decompositions.qr(self.turn[:, columns])[0]
        return directions

    def inside(self, directions: Array) -> Array:
        """Return the part of Y that some terms explain, in the basis (P, T)."""
        P = self.turn.shape[1]
        along = np.zeros((len(self.turn), self.coefficients.shape[1]))
        along[:P] = decompositions.solve(self.turn[:P].T, self.coefficients)
        parts = dense.cross(directions, along)
        total = (along**2).sum(axis=0) + (self.residuals**2).sum(axis=0)
        # set to 0 what is 0 up to rounding
        parts[:, (parts**2).sum(axis=0) <= NOTHING * total] = 0
        projected: Array = dense.product(directions, parts)
        return projected


def _shares(strata: Array, weights: Array | None) -> Array:
    """Return the share (n,) of each row in the weight of its stratum."""
    sums = np.bincount(strata, weights)[strata]
    shares: Array = (1.0 if weights is None else weights) / sums
    return shares


def _centred(X: Array) -> tuple[Array, Array]:
    """Subtract means of columns if one column is constant; return S (P, P), ``B = S B_centred``.

    A column whose mean is far larger than its spread is otherwise collinear up to rounding.
    """
    n, P = X.shape
    constant = np.flatnonzero((np.ptp(X, axis=0) == 0) & (X[0] != 0))
    shift = np.eye(P)
    if constant.size == 0:
        return X, shift
    means = X.sum(axis=0) / n
    means[constant[0]] = 0.0
    shift[constant[0]] -= means / X[0, constant[0]]
    return X - means, shift


@dataclass(frozen=True)
class CoefficientsTask(ReplicateTask):
    """Coefficients of resampled units; `unit` (n,) is the unit of each row."""

    fit: LeastSquares
    unit: Array
    strata: Array
    name = "bootstrap replicates"

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        fit = self.fit
        return fit.basis, fit.turn, fit.coefficients, fit.residuals, self.unit, self.strata

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return ``coefficients`` (n, T, P), and ``singular``, a mask of singular replicates."""
        fit, states = self.fit, child_states(seed, numbers)
        P = fit.basis.shape[1]
        right = np.hstack([fit.basis, fit.residuals])
        out = np.zeros((len(states), fit.residuals.shape[1], P))
        singular = np.zeros(len(states), bool)
        size = at_once(fit)

        def fit_part(part: slice, counts: Array) -> None:
            for i in range(part.start, part.stop, size):
                here = slice(i, min(i + size, part.stop))
                times = counts[here.start - part.start : here.stop - part.start, self.unit]
                # one product for each replicate, so that bits do not depend on the batch size
                weighted = times[:, None] * fit.basis.T
                products = dense.product(weighted.reshape(-1, len(right)), right)
                products = products.reshape(len(times), P, -1)
                square = products[:, :, :P]
                lost = decompositions.eigh(square)[0][:, 0] < _SINGULAR
                square[lost] = np.eye(P)
                moved = dense.products(fit.turn.T, decompositions.solve(square, products[:, :, P:]))
                out[here] = (fit.coefficients + moved).transpose(0, 2, 1)
                singular[here] = lost

        draw_in_parts(states, self.strata, fit_part, n_threads)
        return {"coefficients": out, "singular": singular}


def at_once(fit: LeastSquares) -> int:
    """Return the number of replicates that a thread computes at a time."""
    (n, P), T = fit.basis.shape, fit.residuals.shape[1]
    return max(1, AT_ONCE // (P * max(n, P + T)))
