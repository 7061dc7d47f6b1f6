"""Gamma distributions: priors and posteriors of rows of a factor, their rates and bound.

Row i of a factor has K parameters theta_ik ~ Gamma(a_k, r) (shape, rate), and q(theta_ik) =
Gamma(gamma_ik, rho_ik).  The other factor enters by its column sums S_k.  Given the shares of the
counts, ``gamma_ik = a_k + sum_j x_ij phi_ijk`` and ``rho_ik = r + S_k`` are optimal.

A random rate, ``xi_i ~ Gamma(s, t)``, may replace r: q(xi_i) is Gamma(s + sum_k a_k,
t + sum_k E theta_ik), and its mean u_i replaces r above.  Both posteriors are at their optimum
where

    t u + sum_k gamma_ik u / (u + S_k) = s + sum_k a_k,

which rises and is concave in u: Newton from below never passes its only root.  So gamma is the only
state of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.cached import cached_property
from ...counts.sell import LANES
from ...engine.protocol import Block, RowArrays, Values
from ...kernels import dense
from ...kernels.functions import log, log_gamma
from ..factors import Array, aligned_copy
from .posteriors import PIECE, InferRows

# Row array of the groups of samples.
GROUPS = "groups"
# Maximum number of Newton steps for the rate of a row (about ten are needed), and their tolerance.
_MOST_STEPS, _REACHED = 200, 1e-14


@dataclass(frozen=True)
class GammaPrior:
    """Prior of rows of a factor: shapes (K,), and rates (K,) or the hyperprior of the rate.

    `drawn` holds shape s and rate t of the hyperprior. With it, shapes may differ between rows,
    (rows, K), and methods then take the values of all rows.
    """

    shape: Array
    rate: Array | None = None
    drawn: tuple[float, float] | None = None

    def taken(self, rows: Array) -> GammaPrior:
        """Return the prior of these rows."""
        return self if self.shape.ndim == 1 else replace(self, shape=self.shape[rows])

    def own_rates(self, values: Array, sums: Array) -> Array:
        """Return the part of rows in the rates of q: expected rates (n, 1), or fixed rates (K,)."""
        if self.drawn is None:
            assert self.rate is not None
            return self.rate
        s, t = self.drawn
        goal = s + self.shape.sum(axis=-1)
        most = np.maximum((goal - values.sum(axis=1)) / t, 0)  # no share is more than all of gamma
        u = np.maximum(goal / (t + (values / sums).sum(axis=1)), most)
        for _ in range(_MOST_STEPS):
            rates = u[:, None] + sums
            parts = values / rates
            slope = t + (parts / rates * sums).sum(axis=1)
            moved = u - (t * u + parts.sum(axis=1) * u - goal) / slope
            rises = moved > u * (1 + _REACHED)
            if not rises.any():
                break
            u = np.where(rises, moved, u)
        of_rows: Array = u[:, None]
        return of_rows

    def bound(self, values: Array, own: Array, sums: Array, n_threads: int) -> Array:
        """Return terms of rows, and of the sums, in the ELBO beyond the counts.

        ``sum_k [log G(gamma) - log G(a) + (a - gamma) psi(gamma) + a log(r / rho)]``, and for a
        random rate, ``-KL`` of its posterior in place of log r, without terms that cancel.
        """
        a, terms, logs = self.shape, np.empty_like(values), np.empty_like(values)
        kernels.log_gamma(values, terms, n_threads=n_threads)
        kernels.digamma(values, logs, n_threads=n_threads)
        terms += (a - values) * logs - a * log(own + sums) - log_gamma(a)
        bounds: Array = terms.sum(axis=1)
        if self.drawn is None:
            return bounds + float((a * log(own)).sum())
        (s, t), u = self.drawn, own[:, 0]
        after = s + a.sum(axis=-1)
        constant = s * log(t) - log_gamma(s) + log_gamma(after) - after * log(after) + after
        return bounds + constant + after * log(u) - t * u


@dataclass(frozen=True)
class InferGamma(InferRows):
    """Updates Gamma posteriors.

    Attributes
    ----------
    sums : ndarray (K,), or (G, K) for samples of each group
        Column sums of the other factor, with efficiencies of its rows if there are groups.
    prior : GammaPrior
        Its shapes are `alpha`.
    n_rounds : int
        Maximum number of alternations between updates of random rates and of rows.
    """

    sums: Any = None
    prior: Any = None
    n_rounds: int = 1

    kind = kernels.GAMMA

    @cached_property
    def arrays(self) -> RowArrays:
        """Also uses the groups of samples."""
        arrays = super().arrays
        return arrays._replace(uses=(*arrays.uses, GROUPS))

    def rates_of_lanes(self, block: Block, gamma: Array) -> dict[str, Array]:
        """Return the rates of samples, without random ones, if there are groups."""
        if self.sums.ndim == 1:
            return {}
        of_groups = self.sums if self.prior.drawn else self.sums + self.prior.rate
        rate = aligned_empty(gamma.shape, gamma.dtype)
        rate[:], rate[:, : len(self.alpha)] = 1, of_groups[block[GROUPS].astype(np.intp)]
        return {"rate": rate}

    def move(
        self, sliced: Any, gamma: Array, after: Array | None, n_rows: int, n_threads: int,
        made: dict[str, Array],
    ) -> None:  # fmt: skip
        """Update the rows of `gamma` into `after`."""
        K, total = len(self.alpha), np.zeros(gamma.shape[1], gamma.dtype)
        of_lanes = made.get("rate")
        if of_lanes is None:
            total[:K] = self.sums if self.prior.drawn else self.sums + self.prior.rate
        problem = self.problem(gamma, total)
        if self.prior.drawn is None:
            kernels.update_rows(sliced, problem, gamma, after, n_threads=n_threads, **made)
            return
        sums = self.sums if of_lanes is None else of_lanes[:n_rows, :K].astype(np.float64)
        rate = aligned_copy(np.ones_like(gamma) if of_lanes is None else of_lanes)
        source, theta, before = gamma, made.get("theta"), np.zeros((n_rows, 1))
        moves = np.ones(n_rows, bool)
        for i in range(self.n_rounds):
            own = self._own_rates(source, sums, n_rows)
            moves &= (np.abs(own - before) > self.tolerance * own)[:, 0] | (i < 1)
            if not moves.any():
                return
            rate[:n_rows, :K], before = own if of_lanes is None else sums + own, own
            rows = np.flatnonzero(moves)
            stay = np.flatnonzero(~moves)
            kept = [a[stay] for a in (after, theta) if a is not None]
            kernels.update_rows(
                sliced, problem, source, after, n_threads=n_threads,
                slices=np.unique(rows // LANES), **made | {"rate": rate},
            )  # fmt: skip
            if after is None or theta is None:
                return
            after[stay], theta[stay] = kept
            source = after

    def _own_rates(self, gamma: Array, sums: Array, n_rows: int) -> Array:
        own = np.empty((n_rows, 1))
        for first in range(0, n_rows, PIECE):
            here = slice(first, min(first + PIECE, n_rows))
            of_rows = sums if sums.ndim == 1 else sums[here]
            own[here] = self.prior.own_rates(_values(gamma, here, len(self.alpha)), of_rows)
        return own

    def terms(
        self, block: Block, gamma: Array, after: Array | None, n_threads: int
    ) -> tuple[Array, Values]:
        """Return terms of rows in the ELBO beyond the counts, their change, and sums.

        ``totals`` are the sums of expected loadings afterwards, if rates are random, and those of
        each group if there are groups.
        """
        K, prior, n_rows, sums = len(self.alpha), self.prior, block.n_rows, self.sums
        bounds, change, totals = np.empty(n_rows), np.zeros(K), np.zeros(sums.shape)
        groups = block[GROUPS][:n_rows].astype(np.int32) if sums.ndim == 2 else None
        for first in range(0, n_rows, PIECE):
            here = slice(first, min(first + PIECE, n_rows))
            values = _values(gamma, here, K)
            if groups is not None:
                sums = self.sums[groups[here]]
            own = prior.own_rates(values, sums)
            bounds[here] = prior.bound(values, own, sums, n_threads)
            if after is None:
                continue
            moved = _values(after, here, K)
            change += np.abs(moved - values).sum(axis=0)
            if groups is not None:
                expected = moved / (prior.own_rates(moved, sums) + sums)
                totals += dense.sums_of_groups(expected, groups[here], len(totals))
            elif prior.drawn is not None:
                totals += (moved / (prior.own_rates(moved, sums) + sums)).sum(axis=0)
        return bounds, {"change": change, "totals": totals}


def _values(gamma: Array, here: slice, K: int) -> Array:
    return np.ascontiguousarray(gamma[here, :K], np.float64)
