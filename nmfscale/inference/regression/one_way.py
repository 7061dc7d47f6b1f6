"""Variances of sums of means of cells, by leaving out one unit at a time (HC3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.functions import power
from ..intervals import acceleration_of
from ..quantiles import f_tail, t_quantile
from .least_squares import NOTHING
from .robust import ROUNDING

Array = NDArray[Any]


@dataclass(frozen=True)
class OneWay:
    """HC3 variances of sums of means of C cells: what `HC3` gives, from sums over the cells.

    A unit i of weight w_i in a cell of weight W has leverage ``h = w_i / W`` and the influence
    ``v = h (y_i - mean) / (1 - h)`` on the mean of its cell. Influences of cells do not overlap, so
    that all numbers of a sum with weights a_c are sums over cells of powers of a_c. `weights` (C,)
    are those of cells. `second` and `third` (C, T) are sums of v^2 and v^3; `trace`, `square` (C,)
    those of `HC3.freedom`. `lone` (C,) are the squared influences of a unit that is alone in its
    cell, `n_free` the degrees of freedom of all residuals.
    """

    weights: Array
    second: Array
    third: Array
    trace: Array
    square: Array
    lone: Array
    n_free: int

    @classmethod
    def of(cls, cell: Array, values: Array, weights: Array) -> OneWay:
        """Return the variances of means of values (n, T) by cell (n,), numbered from 0."""

        def sums(rows: Array) -> Array:
            return np.stack([np.bincount(cell, column) for column in rows.T], axis=1)

        totals = np.bincount(cell, weights)
        n_free = max(1, len(cell) - totals.size)
        h = weights / totals[cell]
        away = values - (sums(weights[:, None] * values) / totals[:, None])[cell]
        # what is 0 up to rounding, as in LeastSquares
        least = NOTHING * (weights[:, None] * values**2).sum(axis=0)
        away[:, (weights[:, None] * away**2).sum(axis=0) <= least] = 0
        spread = np.sqrt((weights[:, None] * away**2).sum(axis=0) / n_free)
        alone = 1 - h <= ROUNDING
        rest = np.where(alone, 1.0, 1 - h)
        shared = spread / np.sqrt(weights)[:, None]
        influences = np.where(alone[:, None], shared, (h / rest)[:, None] * away)
        squared = influences**2
        factor = np.where(alone, 0.0, h / totals[cell] / rest**2)
        square = np.bincount(cell, factor**2 * (2 * rest - 1)) + np.bincount(cell, factor * h) ** 2
        return cls(
            totals, sums(squared), sums(squared * influences), np.bincount(cell, factor * rest),
            square, np.bincount(cell, np.where(alone, 1 / weights, 0.0)), n_free,
        )  # fmt: skip

    def variances(self, along: Array) -> tuple[Array, Array]:
        """Return variances (T, k) and degrees of freedom (k,) of sums with weights (C, k)."""
        return self._of_squares(along**2)

    def _of_squares(self, squares: Array) -> tuple[Array, Array]:
        """Return sums of variances of cells, weighted by `squares` (C, k), and their freedom.

        Degrees of freedom are those of Satterthwaite and Welch, if units of a cell have equal
        variances: of a cell's variance, pooled over topics, relative to its weight in the mean.
        """
        spread = self._spread()
        of_cells = np.column_stack([self.trace * spread, self.lone])
        trace, lone = dense.cross(of_cells, squares)
        square = dense.cross((self.square * spread**2)[:, None], squares**2)[0]
        square += lone**2 / self.n_free
        freedom: Array = np.divide(
            (trace + lone) ** 2, square, out=np.full(len(square), float(self.n_free)),
            where=square > 0,
        )  # fmt: skip
        return dense.cross(self.second, squares), np.minimum(freedom, self.n_free)

    def _spread(self) -> Array:
        """Return the variance of units of each cell over that of all, pooled over topics (C,)."""
        own, several = self.second.sum(axis=1), self.trace > 0
        total = self.trace.sum()
        if not own[several].any():
            return np.ones(len(own))
        variance = own[several].sum() / total
        spread: Array = np.divide(own, self.trace * variance, out=np.ones(len(own)), where=several)
        return spread

    def between(self, means: Array) -> tuple[Array, Array, Array, float]:
        """Return what a test of equal means (T, C) compares: see `WithinBlocks.between`.

        Of two means it is the squared t of their difference. Of more, the bias of HC3, which
        protects a single difference where groups differ in spread, is kept for one of them only.
        """
        w, whole, variances = self.weights, self.weights.sum(), self.second
        squares = ((means - (means * w).sum(axis=1, keepdims=True) / whole) ** 2 * w).sum(axis=1)
        kappa = w * (1 - w / whole)
        _, within = self._of_squares(kappa[:, None])
        bias = np.where(self.trace > 0, w * self.trace, 1.0)
        variances = variances / power(bias, 1 - 1 / (len(w) - 1))[:, None]
        weighed = w[:, None] * variances
        overlap = (w[:, None] * weighed).sum(axis=0) / whole
        second = (weighed**2 * (1 - 2 * w / whole)[:, None]).sum(axis=0) + overlap**2
        expected = (kappa[:, None] * variances).sum(axis=0)
        return squares, expected, degrees(expected, second, len(w) - 1), float(within[0])

    def acceleration(self, along: Array) -> Array:
        """Return the acceleration (T, k) of BCa intervals of sums with weights (C, k)."""
        second, third = dense.cross(self.second, along**2), dense.cross(self.third, along**3)
        return acceleration_of(second, third)


def degrees(trace: Array, square: Array, largest: int) -> Array:
    """Return degrees of freedom tr(V)^2 / tr(V^2) of a sum of squares with covariance V (Box)."""
    return np.clip(
        np.divide(trace**2, square, out=np.full(len(trace), float(largest)), where=square > 0),
        1.0, largest,
    )  # fmt: skip


def pvalues(squares: Array, expected: Array, between: Array, within: Array) -> Array:
    """Return p-values of sums of squares over what is expected of them, by the F distribution.

    `between` and `within` are the degrees of freedom of the two. Nothing over nothing is 1.
    """
    some = expected > 0
    ratio = np.divide(squares, expected, out=np.zeros(np.shape(squares)), where=some)
    # no spread at all is more extreme than any p-value that can be told from 0
    p = np.where(some, f_tail(ratio, between, within), np.where(squares > 0, 0.0, 1.0))
    return np.maximum(p, np.finfo(np.float64).tiny)


def t_quantiles(freedom: Array, level: float) -> Array:
    """Return the quantiles of Student's t (T, k), many of which are equal."""
    values, place = np.unique(freedom, return_inverse=True)
    quantiles: Array = np.atleast_1d(t_quantile(values, level))[place].reshape(freedom.shape)
    return quantiles
