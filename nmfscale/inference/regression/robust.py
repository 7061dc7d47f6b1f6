"""Standard errors of least squares that allow unequal variances: HC3, and CR3 for clusters.

Both are jackknives: the influence of a unit is the change when it is left out. With one row for
each unit the influence is ``d e / (1 - h)``, and its squares add up to HC3 (MacKinnon and White
1985); with several rows it is ``t' (1 - Q_u' Q_u)^-1 Q_u' e_u``, and its squares add up to CR3
(Bell and McCaffrey 2002).

The variance of a rare topic is poorly estimated from few units: if they happen to lack the topic,
it is almost 0. Moderated variances add `PRIOR` units with a prior variance, as in Smyth (2004) but
between topics instead of genes: it has the same sum over topics, shared out in proportion to ``m (1
- m)``, as for proportions with a single concentration. With many units moderation does not matter.
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
# Number of units that moderation adds, as degrees of freedom.
PRIOR = 5.0
# A leverage this close to 1 counts as 1, an eigenvalue this close to 0 as 0.
ROUNDING = 1e-9


class RobustErrors:
    """Standard errors of weighted sums of coefficients, and their degrees of freedom.

    `along` (P,) are the weights of a sum. `strata`: where units of each stratum begin. `shares`
    (T,) are the shares of topics in a moderated variance, None without moderation.
    """

    strata: Array
    shares: Array | None

    def influences(self, along: Array) -> Array:
        """Return the contribution of each unit to a weighted sum of coefficients, (n_units, T)."""
        influences = self._influences(along)
        if len(self.strata) > 2:
            for first, last in itertools.pairwise(self.strata):
                if last - first > 1:
                    influences[first:last] -= influences[first:last].mean(axis=0)
        return influences

    def _influences(self, along: Array) -> Array:
        raise NotImplementedError

    def freedom(self, along: Array) -> float:
        """Return degrees of freedom of the standard error under equal variances.

        For a variance y' G y they are ``tr(G)^2 / tr(G^2)`` (Satterthwaite).
        """
        raise NotImplementedError

    def standard_errors(self, along: Array) -> Array:
        """Return standard errors (T,)."""
        squares = self.influences(along) ** 2
        if self.shares is None:
            return np.sqrt(squares.sum(axis=0))
        prior = self._prior(along)
        own = ((1 - prior)[:, None] * squares).sum(axis=0)
        all_topics = float((prior * squares.sum(axis=1)).sum())
        return np.sqrt(own + self.shares * all_topics)

    def _prior(self, along: Array) -> Array:
        """Return the weight of the pooled variance in moderated variances, for each unit."""
        raise NotImplementedError

    def of_sums(self, along: Array) -> tuple[Array, Array]:
        """Return standard errors (T, k) and degrees of freedom (k,) of sums.

        `along` (P, k) are their weights.
        """
        errors = np.stack([self.standard_errors(weights) for weights in along.T], axis=1)
        return errors, np.array([max(1.0, self.freedom(weights)) for weights in along.T])

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
    of all rows is used for it.
    """

    fit: LeastSquares
    strata: Array
    shares: Array | None = None

    def _prior(self, along: Array) -> Array:
        """Return the weight of the prior: PRIOR / (PRIOR + n - 1) for a mean of n units."""
        return prior_of_rows(self.fit)

    def _influences(self, along: Array) -> Array:
        fit = self.fit
        free, rest = free_rows(fit)
        E = fit.residuals
        spread = np.sqrt((E**2).sum(axis=0) / fit.freedom)
        E = np.where(free[:, None], E / rest[:, None], spread)
        influences: Array = _times(fit.basis, _times(fit.turn, along))[:, None] * E
        return influences

    def freedom(self, along: Array) -> float:
        """Return degrees of freedom of the standard error under equal variances."""
        fit = self.fit
        free, rest = free_rows(fit)
        d2 = _times(fit.basis, _times(fit.turn, along)) ** 2
        D2 = np.where(free, d2 / rest**2, 0.0)
        pooled = float(d2[~free].sum())
        trace = float((D2 * rest).sum()) + pooled
        within = dense.cross(fit.basis, D2[:, None] * fit.basis)
        square = float((D2**2 * (2 * rest - 1)).sum()) + float((within**2).sum())
        square += pooled * pooled / fit.freedom
        return trace * trace / square if square > 0 else float(fit.freedom)


@dataclass(frozen=True)
class CR3(RobustErrors):
    """Errors where units have several rows: `unit` (n,) is the unit of each."""

    fit: LeastSquares
    unit: Array
    strata: Array
    unit_names: Any = None
    shares: Array | None = None

    def _prior(self, along: Array) -> Array:
        """Return the weight of the prior, the same for all units."""
        return np.full(int(self.strata[-1]), PRIOR / (PRIOR + self.freedom(along)))

    def _influences(self, along: Array) -> Array:
        scores = self.scores()
        k = self._without(_times(self.fit.turn, along))
        influences: Array = dense.products(k[:, None, :], scores)[:, 0]
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
        fit = self.fit
        return self._of_units(fit.residuals)

    def squares(self) -> Array:
        """Return ``Q_u' Q_u`` of each unit, (n_units, P, P)."""
        return self._of_units(self.fit.basis)

    def _of_units(self, right: Array) -> Array:
        Q = self.fit.basis
        out = np.zeros((int(self.strata[-1]), Q.shape[1], right.shape[1]))
        # rows come in the order of units
        starts = np.flatnonzero(np.diff(self.unit, prepend=-1))
        for u, (first, last) in enumerate(itertools.pairwise([*starts, len(Q)])):
            out[u] = dense.cross(Q[first:last], right[first:last])
        return out

    def _without(self, turned: Array) -> Array:
        """Return ``(1 - Q_u' Q_u)^-1 t`` for vectors t (P,) or (P, k), one for each unit."""
        rest = np.eye(self.fit.basis.shape[1]) - self.squares()
        right = np.broadcast_to(turned.reshape(len(turned), -1), (len(rest), len(turned), 1))
        solutions: Array = decompositions.solve(rest, right)[:, :, 0]
        return solutions

    def freedom(self, along: Array) -> float:
        """Return degrees of freedom of the standard error under equal variances."""
        B, k = self.squares(), self._without(_times(self.fit.turn, along))
        g = dense.products(B, k[:, :, None])[:, :, 0]
        f, length = (k * g).sum(axis=1), (g * g).sum(axis=1)
        trace, square = float((f - length).sum()), float((f**2 - 2 * f * length).sum())
        square += float((dense.cross(g) ** 2).sum())
        return trace * trace / square if square > 0 else float(len(B))


def free_rows(fit: LeastSquares) -> tuple[Array, Array]:
    """Return a mask of rows with leverage below 1, and 1 - leverage (1 for all other rows)."""
    rest = 1 - (fit.basis**2).sum(axis=1)
    free = rest > ROUNDING
    return free, np.where(free, rest, 1.0)


def prior_of_rows(fit: LeastSquares) -> Array:
    """Return the weight of the pooled variance, by leverage h of rows (n,)."""
    return prior_of((fit.basis**2).sum(axis=1))


def prior_of(leverage: Array) -> Array:
    """Return PRIOR / (PRIOR + n - 1) for a mean of n = 1 / leverage units."""
    shrunk: Array = PRIOR * leverage / (1 + (PRIOR - 1) * leverage)
    return shrunk


def _times(A: Array, x: Array) -> Array:
    """Return A x for a vector x."""
    products: Array = (A * x).sum(axis=1)
    return products
