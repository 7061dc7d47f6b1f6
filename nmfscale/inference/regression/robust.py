"""Standard errors of least squares that allow unequal variances: HC3, and CR3 for clusters.

Both are jackknives: the influence of a unit is the change when it is left out. With one row for
each unit the influence is ``d e / (1 - h)``, and its squares add up to HC3 (MacKinnon and White
1985); with several rows it is ``t' (1 - Q_u' Q_u)^-1 Q_u' e_u``, and its squares add up to CR3
(Bell and McCaffrey 2002).

Where effects of strata are absorbed, a unit that is left out also changes the mean of its stratum.
Its influence is multiplied by ``sqrt(1 - w / W)``, because spread within a stratum does not involve
its mean: the two units of a pair count as one. The sum of squares of G such units is multiplied by
``(G - 1) / G``, so that of pairs the error is that of the paired t-test.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...kernels import decompositions, dense
from ..intervals import acceleration_of
from .least_squares import LeastSquares

Array = NDArray[Any]
# A leverage this close to 1 counts as 1, an eigenvalue this close to 0 as 0.
ROUNDING = 1e-9


class RobustErrors:
    """Variances of weighted sums of coefficients, and their degrees of freedom.

    Degrees of freedom of a variance y' G y are ``tr(G)^2 / tr(G^2)`` (Satterthwaite), for units of
    equal variances, or of those that are estimated.
    """

    fit: LeastSquares

    def influences(self, along: Array) -> Array:
        """Return the contribution of each unit (n_units, T) to a sum with weights (P,)."""
        raise NotImplementedError

    def total(self, turned: Array) -> tuple[Array, float]:
        """Return the total variance (T,) of k sums, and its degrees of freedom.

        `turned` (P, k) are their weights in the basis of the fit.
        """
        raise NotImplementedError

    def variances(self, along: Array) -> tuple[Array, Array]:
        """Return variances (T, k) and degrees of freedom (k,) of sums with weights (P, k)."""
        totals = [self.total(dense.product(self.fit.turn, of[:, None])) for of in along.T]
        variances, freedom = zip(*totals, strict=True)
        return np.stack(variances, axis=1), np.maximum(freedom, 1.0)

    def acceleration(self, along: Array) -> Array:
        """Return the acceleration (T, k) of BCa intervals of sums with weights (P, k)."""
        influences = [self.influences(weights) for weights in along.T]
        second = np.stack([(v * v).sum(axis=0) for v in influences], axis=1)
        third = np.stack([(v * v * v).sum(axis=0) for v in influences], axis=1)
        return acceleration_of(second, third)


@dataclass(frozen=True)
class HC3(RobustErrors):
    """Errors where each unit is one row.

    A row that alone determines a coefficient has residual 0 whatever its spread: the pooled spread
    of all rows is used for it. `spread` (n,) are variances of rows relative to that of all, for
    degrees of freedom.
    """

    fit: LeastSquares
    spread: Array

    @property
    def _pooled(self) -> Array:
        """Variance (T,) of all rows."""
        variance: Array = (self.fit.residuals**2).sum(axis=0) / self.fit.freedom
        return variance

    def influences(self, along: Array) -> Array:
        """Return the contribution of each unit (n_units, T) to a sum with weights (P,)."""
        fit = self.fit
        free, rest = free_rows(fit)
        scale = np.sqrt(scale_of_rows(fit)) / rest
        E = np.where(free[:, None], scale[:, None] * fit.residuals, np.sqrt(self._pooled))
        influences: Array = dense.product(fit.dual, along[:, None]) * E
        return influences

    def total(self, turned: Array) -> tuple[Array, float]:
        """Return the total variance (T,) of k sums, and its degrees of freedom."""
        fit = self.fit
        free, rest = free_rows(fit)
        squares = (dense.product(fit.basis, turned) ** 2).sum(axis=1)
        D = np.where(free, squares * scale_of_rows(fit) / rest**2, 0.0)
        pooled = float(squares[~free].sum())
        variance = dense.cross(D[:, None], fit.residuals**2)[0] + pooled * self._pooled
        D = D * self.spread
        trace = float((D * rest).sum()) + pooled
        within = dense.cross(fit.basis, D[:, None] * fit.basis)
        square = float((D**2 * (2 * rest - 1)).sum()) + float((within**2).sum())
        if fit.strata is not None and fit.share is not None:
            square += squares_in_strata(D, fit.basis, np.sqrt(fit.share), fit.strata)
        square += pooled * pooled / fit.freedom
        return variance, trace * trace / square if square > 0 else float(fit.freedom)


@dataclass(frozen=True)
class CR3(RobustErrors):
    """Errors where units have several rows: `unit` (n,) is the unit of each.

    `factors` (n_units,) multiply influences, where effects of strata are absorbed.
    """

    fit: LeastSquares
    unit: Array
    factors: Array
    unit_names: Any = None

    def influences(self, along: Array) -> Array:
        """Return the contribution of each unit (n_units, T) to a sum with weights (P,)."""
        K = self._without(dense.product(self.fit.turn, along[:, None]), self.squares())
        influences: Array = dense.products(K.transpose(0, 2, 1), self.scores())[:, 0]
        return influences

    def check(self) -> None:
        """Refuse a unit that alone determines a coefficient: its variance cannot be estimated."""
        rest = np.eye(self.fit.basis.shape[1]) - self.squares()
        lost = np.flatnonzero(decompositions.eigh(rest)[0][:, 0] < ROUNDING)
        if lost.size:
            name = lost[0] if self.unit_names is None else self.unit_names[lost[0]]
            raise ValueError(
                f"without unit {shown(name)} the coefficients are not determined, so that it is "
                "not known how far they vary: leave this unit or a covariate out, or join levels."
            )

    def scores(self) -> Array:
        """Return ``Q_u' e_u`` of each unit, (n_units, P, T)."""
        return self._of_units(self.fit.residuals)

    def squares(self) -> Array:
        """Return ``Q_u' Q_u`` of each unit, (n_units, P, P)."""
        return self._of_units(self.fit.basis)

    def _of_units(self, right: Array) -> Array:
        Q = self.fit.basis
        out = np.zeros((len(self.factors), Q.shape[1], right.shape[1]))
        # rows come in the order of units
        starts = np.flatnonzero(np.diff(self.unit, prepend=-1))
        for u, (first, last) in enumerate(itertools.pairwise([*starts, len(Q)])):
            out[u] = dense.cross(Q[first:last], right[first:last])
        return out

    def _without(self, turned: Array, B: Array) -> Array:
        """Return ``(1 - Q_u' Q_u)^-1 t`` for t (P, k), times factors, (n_units, P, k)."""
        rest = np.eye(B.shape[1]) - B
        solutions = decompositions.solve(rest, np.broadcast_to(turned, (len(B), *turned.shape)))
        weighed: Array = self.factors[:, None, None] * solutions
        return weighed

    def total(self, turned: Array) -> tuple[Array, float]:
        """Return the total variance (T,) of k sums, and its degrees of freedom."""
        B = self.squares()
        K = self._without(turned, B)
        turned_back, g = K.transpose(0, 2, 1), dense.products(B, K)
        variance = (dense.products(turned_back, self.scores()) ** 2).sum(axis=(0, 1))
        own, overlap = dense.products(turned_back, g), dense.products(g.transpose(0, 2, 1), g)
        trace = float((own - overlap).trace(axis1=1, axis2=2).sum())
        square = float((own**2 - 2 * own * overlap).sum())
        square += float((dense.cross(g.transpose(0, 2, 1).reshape(-1, B.shape[1])) ** 2).sum())
        return variance, trace * trace / square if square > 0 else float(len(B))


def free_rows(fit: LeastSquares) -> tuple[Array, Array]:
    """Return a mask of rows with leverage below 1, and 1 - leverage (1 for all other rows)."""
    rest = 1 - fit.leverage
    free = rest > ROUNDING
    return free, np.where(free, rest, 1.0)


def spread_of_groups(group: Array, residuals: Array, rest: Array) -> Array:
    """Return variances of rows (n,) in groups, pooled over topics, relative to that of all.

    `rest` (n,) is what leverages leave of 1.
    """
    own = np.bincount(group, (residuals**2).sum(axis=1))
    free = np.bincount(group, np.maximum(rest, 0))
    total = float(own.sum()) / (float(free.sum()) or 1.0)
    spread = np.divide(own, free * total, out=np.ones(len(own)), where=free * total > 0)
    of_rows: Array = spread[group]
    return of_rows


def scale_of_rows(fit: LeastSquares) -> Array:
    """Return what squared influences of rows (n,) are multiplied by where strata are absorbed."""
    if fit.share is None:
        return np.ones(len(fit.basis))
    moves = np.asarray(fit.basis.any(axis=1))
    return _scaled(np.maximum(1 - fit.share, 0.0), moves)


def factors_of_units(
    fit: LeastSquares, unit: Array, strata: Array | None, weights: Array | None
) -> Array:
    """Return the `factors` of `CR3`; a unit that is a stratum by itself is left out with it."""
    n_units = int(unit[-1]) + 1
    if strata is None:
        return np.ones(n_units)
    of_unit, stratum = np.bincount(unit, weights), strata[np.unique(unit, return_index=True)[1]]
    share = of_unit / np.bincount(strata, weights)[stratum]
    alone = np.bincount(stratum)[stratum] == 1
    moves = np.bincount(unit, (fit.basis[:, : fit.turn.shape[1]] ** 2).sum(axis=1)) > 0
    return np.sqrt(_scaled(np.where(alone, 1.0, 1 - share), moves))


def _scaled(rest: Array, moves: Array) -> Array:
    """Multiply by (G - 1) / G, where G adds up `rest` of the units that have a part in it."""
    G = float(rest[moves].sum())
    scaled: Array = rest * (max(G - 1, 0.0) / G) if G > 0 else rest
    return scaled


def squares_in_strata(D: Array, basis: Array, roots: Array, strata: Array) -> float:
    """Return what absorbed effects add to ``sum_ij D_i D_j m_ij^2`` for residuals ``M y``.

    `roots` (n,) are those of leverages of these effects.
    """
    terms = np.zeros((int(strata.max(initial=-1)) + 1, basis.shape[1] + 1))
    np.add.at(terms, strata, D[:, None] * np.column_stack([roots[:, None] * basis, roots**2]))
    return float(2 * (terms[:, :-1] ** 2).sum() + (terms[:, -1] ** 2).sum())
