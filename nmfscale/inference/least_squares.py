"""Least squares of many topics on the same terms, when units are drawn again or permuted.

With ``X = Q R`` and residuals E a replicate needs no more than ``Q*' [Q E]``, where rows of Q* are
those of Q, weighed or permuted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ..counts.cached import cached_property
from ..kernels.permute import permuted_orders
from .bootstrap import draw_in_parts, in_parts
from .groups import n_labellings
from .labelling import labellings
from .replicates import ReplicateTask
from .seeds import child, child_states

Array = NDArray[Any]
# So many numbers of permuted or weighed rows are in memory at a time on a thread.
_AT_ONCE = 1 << 19
# The smallest eigenvalue of Q* Q, 1 in the data, below which coefficients are not determined.
_SINGULAR = 1e-8
# Statistics between 0 and 1 that differ by less differ by rounding.
_TIE = 1e-12


@dataclass(frozen=True)
class LeastSquares:
    """Coefficients B (P, T) of ``Y = X B + E`` for X (n, P) and Y (n, T).

    `basis` Q (n, P) is orthonormal. Row j of B is ``d_j' Y`` with columns d_j of `dual` (n, P),
    which are orthogonal to all columns of X but the j-th; ``dual = Q @ turn``.
    """

    basis: Array
    turn: Array
    coefficients: Array
    residuals: Array

    @classmethod
    def of(cls, X: Array, Y: Array) -> LeastSquares:
        """Fit columns of Y."""
        norms = np.linalg.norm(X, axis=0)
        Q, R = np.linalg.qr(X / norms)
        turn = np.linalg.inv(R).T / norms
        along = Q.T @ Y
        E, B = Y - Q @ along, turn.T @ along
        # what is 0 but for rounding: residuals where X explains all, terms that explain nothing
        least = 1e-24 * (Y**2).sum(axis=0)
        E[:, (E**2).sum(axis=0) <= least] = 0
        B[B**2 <= least * (turn**2).sum(axis=0)[:, None]] = 0
        return cls(Q, turn, B, E)

    @property
    def dual(self) -> Array:
        """Columns d_j with ``d_j' x_k = 1`` for k = j and 0 otherwise."""
        found: Array = self.basis @ self.turn
        return found

    def tested(self) -> Array:
        """Say of which terms the null hypothesis leaves a constant in the model (P,).

        Residuals of a model without constant do not have mean zero, and say nothing when permuted.
        """
        one = np.ones(len(self.basis)) / np.sqrt(len(self.basis))
        has_constant = np.linalg.norm(self.basis.T @ one) > 1 - 1e-9
        away = np.abs(self.dual.T @ one) / np.linalg.norm(self.turn, axis=0)
        found: Array = has_constant & (away < 1e-7)
        return found

    def influences(self, j: int) -> Array:
        """Return what each row (n, T) adds to the j-th coefficient: ``d_j e`` (Huber)."""
        found: Array = (self.basis @ self.turn[:, j])[:, None] * self.residuals
        return found


@dataclass(frozen=True)
class CoefficientsTask(ReplicateTask):
    """Coefficients of units that are drawn again; `unit` (n,) is the unit of each row."""

    fit: LeastSquares
    unit: Array
    strata: Array
    name = "bootstrap replicates"

    def about(self) -> Iterable[Any]:
        """Return what the replicates stand on."""
        fit = self.fit
        return fit.basis, fit.turn, fit.coefficients, fit.residuals, self.unit, self.strata

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return ``coefficients`` (n, T, P), and ``singular``: where they are not determined."""
        fit, states = self.fit, child_states(seed, numbers)
        P = fit.basis.shape[1]
        right = np.hstack([fit.basis, fit.residuals])
        out = np.zeros((len(states), fit.residuals.shape[1], P))
        singular = np.zeros(len(states), bool)
        size = _at_once(fit)

        def fit_part(part: slice, counts: Array) -> None:
            for i in range(part.start, part.stop, size):
                here = slice(i, min(i + size, part.stop))
                times = counts[here.start - part.start : here.stop - part.start, self.unit]
                # the same product for each replicate, however many come at a time
                products = np.matmul((times[:, :, None] * fit.basis).transpose(0, 2, 1), right)
                square = products[:, :, :P]
                lost = np.linalg.eigvalsh(square)[:, 0] < _SINGULAR
                square[lost] = np.eye(P)
                moved = np.matmul(fit.turn.T, np.linalg.solve(square, products[:, :, P:]))
                out[here] = (fit.coefficients + moved).transpose(0, 2, 1)
                singular[here] = lost

        draw_in_parts(states, self.strata, fit_part, n_threads)
        return {"coefficients": out, "singular": singular}


@dataclass(frozen=True)
class FreedmanLane(ReplicateTask):
    """Permutation tests of single terms: residuals of the model without the term are permuted.

    With u and v, the products of permuted residuals e with the unit vector q_j along d_j and with
    Q, the statistic is ``u^2 / (|e|^2 - |v|^2 + u^2)``: of what other terms leave, the share that
    term j explains. It rises with the absolute t-value of the j-th coefficient. Since
    ``e = E + q_j c_j``, all terms need the same product ``Q*' [E q]`` (Freedman and Lane 1983).
    Rows stand stratum after stratum, n_units in each; `tested` are the numbers of the terms.
    """

    fit: LeastSquares
    n_units: Array
    tested: Array
    name = "permutations"

    def about(self) -> Iterable[Any]:
        """Return what the permutations stand on."""
        fit = self.fit
        yield from (fit.basis, fit.turn, fit.coefficients, fit.residuals, self.n_units, self.tested)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return ``as_extreme`` (n, P, T): whether statistics are those of the data or more."""
        states, observed = child_states(child(seed, 0), numbers), self.observed()
        out = np.zeros((len(states), *observed.shape), bool)

        def work(part: slice) -> None:
            orders = np.empty((part.stop - part.start, len(self.fit.basis)), np.uint32)
            permuted_orders(self.n_units, states[part], orders, 1)
            out[part] = self.statistics(orders) >= observed - _TIE

        in_parts(len(states), _at_once(self.fit), work, n_threads)
        return {"as_extreme": out}

    def all_as_extreme(self, sizes: Array, first: Array) -> Array:
        """Count (P, T) as `run` does, over all ways to give units the terms of others, each once.

        `sizes` (n_strata, n_kinds) are units of each stratum with the same terms, `first`
        (n_kinds,) one of each kind.
        """
        n, size, observed = n_labellings(sizes), _at_once(self.fit), self.observed()
        count = np.zeros(observed.shape, np.int64)
        for i in range(0, n, size):
            kinds = labellings(sizes, np.arange(i, min(i + size, n)))
            count += (self.statistics(first[kinds]) >= observed - _TIE).sum(axis=0)
        return count

    def observed(self) -> Array:
        """Return the statistics of the data (P, T)."""
        found: Array = self.statistics(np.arange(len(self.fit.basis))[None])[0]
        return found

    @cached_property
    def _right(self) -> tuple[Array, Array, Array]:
        """Return directions in Q (P, n_tested), products with these (n_tested, T), and [E q]."""
        fit = self.fit
        turn, c = fit.turn[:, self.tested], fit.coefficients[self.tested]
        lengths = np.linalg.norm(turn, axis=0)
        turn = turn / lengths
        return turn, c / lengths[:, None], np.hstack([fit.residuals, fit.basis @ turn])

    @cached_property
    def _squares(self) -> Array:
        found: Array = (self.fit.residuals**2).sum(axis=0)
        return found

    def statistics(self, orders: Array) -> Array:
        """Return statistics (n_orders, P, T) where unit i has the terms of unit orders[i].

        Their last digits may depend on how many come at a time, which `_TIE` is far above.
        """
        turn, c, right = self._right
        (n, P), T = self.fit.basis.shape, self.fit.residuals.shape[1]
        # one product for all orders is several times faster
        rows = np.take(self.fit.basis, orders.T, axis=0).reshape(n, -1)
        products = (rows.T @ right).reshape(len(orders), P, -1)
        of_E, of_q = products[:, :, :T], products[:, :, T:]
        v = np.einsum("nkt,nkt->nt", of_E, of_E)[:, None, :]
        v = v + 2 * c * np.matmul(of_q.transpose(0, 2, 1), of_E)
        v += c**2 * np.einsum("nkj,nkj->nj", of_q, of_q)[:, :, None]
        u = np.matmul(turn.T, of_E) + c * np.einsum("kj,nkj->nj", turn, of_q)[:, :, None]
        u *= u
        rest = np.maximum(self._squares + c**2 - v, 0) + u
        return np.divide(u, rest, out=np.zeros_like(u), where=rest > 0)


def _at_once(fit: LeastSquares) -> int:
    """Return how many replicates come at a time on a thread."""
    (n, P), T = fit.basis.shape, fit.residuals.shape[1]
    return max(1, _AT_ONCE // (P * max(n, P + T)))
