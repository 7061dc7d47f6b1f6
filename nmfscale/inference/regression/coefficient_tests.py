"""Tests of coefficients that allow unequal variances, by permuting units or flipping their signs.

The statistic of some terms is ``|q' e|^2 / sum_u w_u e_u^2``, with residuals e of the model, an
orthonormal basis q of what the other terms do not explain, and weights w for which the denominator
is the expectation of the numerator under the null hypothesis, whatever the spread of each unit. For
a single term it is the square of the t-value with standard error HC3; for the levels of a label it
is the statistic of Brown and Forsythe (1974). Comparing it with permutations stays valid where
spread differs (DiCiccio and Romano 2017), which a comparison of pooled t-values does not. Effects
of strata may be absorbed: see `LeastSquares`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.cached import cached_property
from ...kernels import decompositions, dense
from ...kernels.permute import permuted_orders
from ..design.labellings import n_labellings
from ..groups.bootstrap import in_parts
from ..groups.labelling import labellings
from ..replicates.replicates import ReplicateTask
from ..replicates.seeds import child, child_states, generator
from .least_squares import AT_ONCE, LeastSquares
from .robust import CR3, free_rows, scale_of_rows

Array = NDArray[Any]
# Relative difference below which two statistics are equal up to rounding.
_TIE = 1e-9
# Residual variance below this share of that of the model without the term counts as 0.
_NOTHING = 1e-12


@dataclass(frozen=True)
class CoefficientTests(ReplicateTask):
    """Tests of sets of terms: `tested` are the numbers of their columns."""

    fit: LeastSquares
    tested: tuple[tuple[int, ...], ...]

    @property
    @abstractmethod
    def _units(self) -> Array:
        """The units that are moved together."""

    def about(self) -> Iterable[Any]:
        """Return the inputs of the tests, from which a checkpoint is recognised."""
        fit = self.fit
        yield from (fit.basis, fit.turn, fit.coefficients, fit.residuals, self._units)
        yield repr(self.tested)

    @property
    @abstractmethod
    def _unmoved(self) -> Array:
        """The argument of `statistics` for the data, (1, ...)."""

    @property
    @abstractmethod
    def _at_once(self) -> int:
        """Number of statistics that are computed at a time."""

    @abstractmethod
    def statistics(self, moves: Array) -> Array:
        """Return statistics (n, n_tests, T) of moves of units: permutations or signs, (n, ...)."""

    @cached_property
    def observed(self) -> Array:
        """The statistics of the data (n_tests, T)."""
        observed: Array = self.statistics(self._unmoved)[0]
        return observed

    def _drawn(self, n: int, draw: Callable[[slice], Array], n_threads: int) -> dict[str, Array]:
        """Return whether statistics of `n` moves reach those of the data; `draw` makes a part.

        Both arrays are (n, n_tests, T): `as_extreme` compares each topic alone, `largest` the
        step-down maximum over topics.
        """
        shape = n, *self.observed.shape
        alone, largest = np.zeros(shape, bool), np.zeros(shape, bool)

        def work(part: slice) -> None:
            alone[part], largest[part] = self.as_extreme(self.statistics(draw(part)))

        in_parts(n, self._at_once, work, n_threads)
        return {"as_extreme": alone, "largest": largest}

    def _counted(self, n: int, moves: Callable[[Array], Array]) -> Array:
        """Return the sums (2, n_tests, T) of what `run` returns, over the moves 0 to n - 1."""
        count = np.zeros((2, *self.observed.shape), np.int64)
        for first in range(0, n, self._at_once):
            numbers = np.arange(first, min(first + self._at_once, n))
            reached = self.as_extreme(self.statistics(moves(numbers)))
            count += np.stack([of_moves.sum(axis=0) for of_moves in reached])
        return count

    def as_extreme(self, statistics: Array) -> tuple[Array, Array]:
        """Return whether statistics (n, n_tests, T) reach those of the data.

        First each topic by itself; then, step down, the maximum over all topics that are no more
        extreme in the data (Westfall and Young).
        """
        least = self.observed * (1 - _TIE)
        order = np.argsort(self.observed, axis=1, kind="stable")
        in_order = np.take_along_axis(statistics, order[None], axis=2)
        largest = np.maximum.accumulate(in_order, axis=2)
        back = np.argsort(order, axis=1, kind="stable")
        return statistics >= least, np.take_along_axis(largest, back[None], axis=2) >= least

    @cached_property
    def _directions(self) -> list[Array]:
        return [self.fit.directions(list(columns)) for columns in self.tested]


@dataclass(frozen=True)
class FreedmanLane(CoefficientTests):
    """Permute the residuals of the reduced model among units (Freedman and Lane 1983).

    Rows of units have the same weight and are sorted by stratum, `n_units` in each. The terms are
    permuted instead of the residuals: this is equivalent and takes one array less.
    """

    n_units: Array
    name = "permutations"

    @property
    def _units(self) -> Array:
        return self.n_units

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Draw these permutations; return whether their statistics reach those of the data."""
        states = child_states(child(seed, 0), numbers)
        return self._drawn(len(states), lambda part: self._orders(states[part]), n_threads)

    def _orders(self, states: Array) -> Array:
        """Return random orders of units (n, n_units), one for each state of the generator."""
        orders = np.empty((len(states), len(self.fit.basis)), np.uint32)
        permuted_orders(self.n_units, states, orders, 1)
        return orders

    def all_as_extreme(self, sizes: Array, first: Array) -> Array:
        """Return what `run` counts (2, n_tests, T), summed over all permutations of units.

        A kind is all units with the same terms. `sizes` (n_strata, n_kinds) counts them in each
        stratum; `first` (n_kinds,) is one unit of each kind.
        """
        return self._counted(n_labellings(sizes), lambda numbers: first[labellings(sizes, numbers)])

    @property
    def _unmoved(self) -> Array:
        return np.arange(len(self.fit.basis))[None]

    @property
    def _at_once(self) -> int:
        (n, P), T = self.fit.basis.shape, self.fit.residuals.shape[1]
        return max(1, AT_ONCE // (2 * P * max(n, T)))

    @cached_property
    def _weights(self) -> list[Array]:
        """Weights (n,) of squared residuals, for each test."""
        free, rest = free_rows(self.fit)
        scale = np.where(free, scale_of_rows(self.fit) / rest**2, 0.0)
        return [
            (dense.product(self.fit.basis, direction) ** 2).sum(axis=1) * scale
            for direction in self._directions
        ]

    @cached_property
    def _pooled(self) -> list[float]:
        """Weight of the pooled variance, for rows with leverage 1."""
        free, _ = free_rows(self.fit)
        Q = self.fit.basis[~free]
        return [
            float((dense.product(Q, direction) ** 2).sum()) / self.fit.freedom
            for direction in self._directions
        ]

    @cached_property
    def _without(self) -> list[Array]:
        fit = self.fit
        return [
            fit.residuals + dense.product(fit.basis, fit.inside(direction))
            for direction in self._directions
        ]

    def statistics(self, moves: Array) -> Array:
        """Return statistics (n_orders, n_tests, T) if unit i is given the terms of unit moves[i].

        All products are single ones for all orders, which is several times faster.
        """
        orders, Q = moves, self.fit.basis
        of_tests = []
        rows = np.take(Q.T, orders, axis=1)  # (P, m, n)
        for j, (e, turn) in enumerate(zip(self._without, self._directions, strict=True)):
            v = _of_orders(rows, e)
            left, squares = self._left(rows, orders, e, v, self._weights[j])
            if self._pooled[j] > 0:
                total = (e**2).sum(axis=0)
                squares += self._pooled[j] * total
                left += self._pooled[j] * np.maximum(total - (v * v).sum(axis=1), 0)
            between = (dense.products(turn.T, v) ** 2).sum(axis=1)
            of_tests.append(self._of_topics(between, left, squares))
        return np.stack(of_tests, axis=1)

    def _of_topics(self, between: Array, left: Array, squares: Array) -> Array:
        """Return statistics (n_orders, T) from both parts of the ratio and the sums of squares."""
        return _ratio(between, left, squares)

    def _left(
        self, rows: Array, orders: Array, e: Array, v: Array, w: Array
    ) -> tuple[Array, Array]:
        """Return weighted squares (m, T) of residuals e after regression on v, and of e."""
        weights, Q = np.take(w, orders), self.fit.basis
        weighed = _of_orders(rows * weights, e)
        squares = dense.product(weights, e**2)
        of_fit = dense.cross(Q, w[:, None] * Q)
        left = squares - 2 * (v * weighed).sum(axis=1) + (v * dense.products(of_fit, v)).sum(axis=1)
        return np.maximum(left, 0), squares


@dataclass(frozen=True)
class SignFlips(CoefficientTests):
    """Flip the signs of the residuals of the reduced model, unit by unit.

    It is the wild bootstrap of clusters with the null hypothesis imposed (Cameron, Gelbach and
    Miller 2008): rows of a unit stay together, so that terms may vary within units. `factors`
    (n_units,) are those of `CR3`.
    """

    unit: Array
    factors: Array
    name = "sign flips"

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(self.factors)

    @property
    def _units(self) -> Array:
        return self.unit

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Draw these sign vectors; return whether their statistics reach those of the data."""
        of = child(seed, 0)

        def draw(part: slice) -> Array:
            draws = [generator(of, r).integers(2, size=self.n_units) for r in numbers[part]]
            return 2.0 * np.stack(draws) - 1

        return self._drawn(len(numbers), draw, n_threads)

    def n_all(self) -> int:
        """Return the number of sign vectors; a vector and its negative count once."""
        return 1 << (self.n_units - 1)

    def all_as_extreme(self) -> Array:
        """Return what `run` counts (2, n_tests, T), summed over all sign vectors."""
        units = np.arange(self.n_units)
        return self._counted(
            self.n_all(), lambda numbers: 1.0 - 2 * (numbers[:, None] >> units & 1)
        )

    @property
    def _unmoved(self) -> Array:
        return np.ones((1, self.n_units))

    @property
    def _at_once(self) -> int:
        P, T = self.fit.basis.shape[1], self.fit.residuals.shape[1]
        return max(1, AT_ONCE // (2 * P * T + self.n_units))

    @cached_property
    def _parts(self) -> list[tuple[Array, Array, Array, Array]]:
        """Return the terms that `statistics` sums over units, for each test."""
        errors = CR3(self.fit, self.unit, self.factors)
        scores, B, parts = errors.scores(), errors.squares(), []
        rest = np.eye(B.shape[1]) - B
        for turn in self._directions:
            r = scores + dense.products(B, self.fit.inside(turn))
            K = decompositions.solve(rest, np.broadcast_to(turn, (len(B), *turn.shape)))
            K *= self.factors[:, None, None]
            own = dense.products(K.transpose(0, 2, 1), r)  # (n_units, k, T)
            C = dense.products(K.transpose(0, 2, 1), B)  # (n_units, k, P)
            cross = dense.products(C.transpose(0, 2, 1), own)  # (n_units, P, T)
            parts.append((
                r.reshape(len(r), -1), cross.reshape(len(r), -1), (own**2).sum(axis=(0, 1)),
                dense.cross(C.reshape(-1, C.shape[2])),
            ))  # fmt: skip
        return parts

    def statistics(self, moves: Array) -> Array:
        """Return statistics (n, n_tests, T) of scores multiplied by these signs."""
        signs, P, T = moves, self.fit.basis.shape[1], self.fit.residuals.shape[1]
        out = np.empty((len(signs), len(self.tested), T))
        for j, ((r, cross, squares, of_fit), turn) in enumerate(
            zip(self._parts, self._directions, strict=True)
        ):
            v = dense.product(signs, r).reshape(-1, P, T)
            left = squares - 2 * (v * dense.product(signs, cross).reshape(-1, P, T)).sum(axis=1)
            left += (v * dense.products(of_fit, v)).sum(axis=1)
            out[:, j] = _ratio((dense.products(turn.T, v) ** 2).sum(axis=1), left, squares)
        return out


def _of_orders(rows: Array, e: Array) -> Array:
    """Return products (m, P, T) of rows (P, m, n) with e (n, T), a single product."""
    P, m, n = rows.shape
    products = dense.product(rows.reshape(-1, n), e).reshape(P, m, -1)
    return np.ascontiguousarray(products.transpose(1, 0, 2))


def _ratio(between: Array, left: Array, squares: Array) -> Array:
    """Divide sums of squares; return infinity where the divisor is 0, and 0 for 0 / 0."""
    positive = left > _NOTHING * squares
    out = np.where(between > _NOTHING * squares, np.inf, 0.0)
    return np.divide(between, left, out=out, where=positive)
