"""Choice of the features farthest from each other: pivoted Cholesky factorisation of X'X.

It chooses the same columns as QR of X with column pivots. It needs one column of X'X at a time, and
X is never dense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...engine.protocol import Executor
from ...kernels import decompositions
from ..factors import Array, per_lane
from ..weights.weighting import Weights
from .steps import Distance, GramColumns, Squares

# Relative difference below which distances are ties; relative error of a distance.
_TIES, _TOO_LARGE = 1e-12, 1e-8
# Rounding error of squared distances for each anchor, in units of the last place of the column's
# square.
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


class Pivots:
    """A pivoted Cholesky factorisation of a Gram matrix, of which columns are added one by one.

    Attributes
    ----------
    rows : ndarray (n_most, m)
        Rows of the factor; the columns `chosen` make it triangular.
    squares, left : ndarray (m,)
        Squared norms of the columns, and squared distances from the span of the chosen.
    trace : list of dict
        For every anchor the diagonal of the factor, the spanned share of all squares, and the
        largest remaining distance divided by the largest norm.
    """

    def __init__(self, squares: Array, n_most: int, n_threads: int):
        self.squares, self.left, self._n_threads = squares, squares.copy(), n_threads
        self.rows = np.zeros((n_most, len(squares)))
        self.chosen: list[int] = []
        self.trace: list[dict[str, float]] = []
        self.settle()

    def farthest(self) -> int | None:
        """Return the farthest column, the first of ties; None if all columns are spanned."""
        most = self.left.max()
        return int(np.argmax(self.left >= (1 - _TIES) * most)) if most > 0 else None

    def is_doubtful(self, p: int) -> bool:
        """Whether the distance of a column may be too large by rounding."""
        rounding = len(self.chosen) * _ROUNDING * self.squares[p]
        return bool(rounding > _TOO_LARGE * self.left[p])

    def settle(self) -> None:
        """Set distances to zero that are rounding errors only."""
        k = len(self.chosen)
        self.left[self.left <= k * _ROUNDING * self.squares] = 0
        self.left[self.chosen] = 0

    def add(self, p: int, column: Array) -> None:
        """Add column p of the Gram matrix (m,)."""
        k, pivot = len(self.chosen), math.sqrt(self.left[p])
        self.rows[k] = column
        factors = self.rows[:k, p].copy()
        kernels.eliminate(
            self.rows, factors, pivot, self.rows[k], self.left, n_threads=self._n_threads
        )
        self.chosen.append(p)
        self.settle()
        total, most = math.fsum(self.squares), self.squares.max()
        self.trace.append({
            "diagonal": pivot,
            "spanned": 1 - math.fsum(self.left) / total,
            "residual": math.sqrt(self.left.max() / most),
        })  # fmt: skip

    def combination(self, products: Array) -> Array:
        """Return coefficients (k,) of the combination of chosen columns with these products."""
        R = self.triangle()
        weights: Array = decompositions.solve(R, decompositions.solve(R.T, products[:, None]))[:, 0]
        return weights

    def triangle(self) -> Array:
        """Return the upper triangular factor of the chosen columns."""
        k = len(self.chosen)
        return np.triu(self.rows[:k, self.chosen])


class GramOfCounts:
    """Columns of X'X, computed in one pass over the counts."""

    def __init__(self, counts: CountMatrix, executor: Executor, weights: Weights):
        self._executor, self._features, m = executor, weights.features, counts.shape[1]
        self.order = np.ascontiguousarray(executor.layout.column_order[:m])
        self.lanes = np.empty(m, np.int64)
        self.lanes[self.order] = np.arange(m)
        if weights.samples is not None:
            squared = weights.samples.astype(np.float64) ** 2
            executor.put("scales", per_lane(squared, executor.layout.row_order))

    def weigh(self, sums: Array) -> Array:
        """Multiply the columns of a sum by the weights of their features."""
        if self._features is not None:
            sums *= self._features
        return sums

    def squares(self, unit: Array | None = None) -> Array:
        """Return |x_j|^2, (m,); `unit`, weights by lane, scale the samples first."""
        ((_, sums),) = self._executor.run(Squares(self.order, unit))
        return self.weigh(self.weigh(sums[0]))[0]

    def columns(self, features: Sequence[int]) -> Array:
        """Return x_j'x_p for these features p, (p, m)."""
        ((_, sums),) = self._executor.run(GramColumns(self.order, self.lanes[list(features)]))
        columns = self.weigh(sums[0])
        if self._features is not None:
            columns *= self._features[list(features), None]
        return columns

    def distance(self, features: Sequence[int], combination: Array) -> tuple[float, Array]:
        """Return |x_p - A a|^2 for the last feature p, and its products with earlier ones, A."""
        names, w = list(features), np.ones(len(features))
        if self._features is not None:
            w = self._features[names]
        step = Distance(len(self.order), self.lanes[names], combination * w[:-1] / w[-1])
        ((sums, _),) = self._executor.run(step)
        return sums["square"] * w[-1] * w[-1], sums["products"] * w[:-1] * w[-1]


class GramOfProjection:
    """Columns of Y'Y, of projections Y (m, d) of the columns of X."""

    def __init__(self, projected: Array):
        self._Y = projected

    def squares(self) -> Array:
        """Return |y_j|^2, (m,)."""
        squares: Array = (self._Y * self._Y).sum(axis=1)
        return squares

    def columns(self, features: Sequence[int]) -> Array:
        """Return y_j'y_p for these features p, (p, m)."""
        return np.stack([(self._Y * self._Y[p]).sum(axis=1) for p in features])

    def distance(self, features: Sequence[int], combination: Array) -> tuple[float, Array]:
        """Return |y_p - A a|^2 for the last feature p, and its products with earlier ones, A."""
        *others, p = features
        there = self._Y[others]
        left = self._Y[p] - (there * combination[:, None]).sum(axis=0)
        return float((left * left).sum()), (there * left).sum(axis=1)
