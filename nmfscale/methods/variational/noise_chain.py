"""A Markov chain of the noisy topic model: draws of all parameters given the counts.

Single counts z_ijk of the components, loadings l, means mu, noise u and the shares pi of the
mixture of its strengths (`mixture_noise`) are drawn in turn (Gibbs sampling).  With the
sums z_ik and n_jk of the single counts, ``D_k = sum_j mu_j u_jk`` and ``S_k = sum_i l_ik``:

1. z_ij is multinomial, with probabilities proportional to ``l_ik u_jk``.
2. ``l_ik ~ Gamma(a_k + z_ik) / (D_k + b_i)``: in the prior Gamma(a_k, b_i), ``b_i = sum_k a_k /
   x_i`` makes the observed total x_i the mean of the total.  Proportions are then Dirichlet(a), and
   each a_k, whose prior is exponential, moves by a Metropolis step given z.
3. mu_j moves by a Metropolis step given n_jk and S, with u integrated out, so that it can jump
   between the frequencies n_jk / S_k of topics.  Proposals are ``Gamma(n_jk + 1/2) / S_k`` of one
   topic, the same of all topics together, or draws from the prior.  This is exponential, with the
   observed share of the feature as mean; a flat prior would allow any mu with u close to 0 for
   features with few counts.
4. The strength of the noise of a pair is drawn given n_jk and ``m_jk = mu_j S_k``, then
   ``u_jk ~ Gamma(theta + n_jk) / (theta + m_jk)``, mu_j given u, and pi.

Means over the draws of the probabilities in 4 are posterior probabilities.  They include the
uncertainty of loadings, means and shares, which variational inference takes as known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...kernels.functions import exp, log, log_gamma
from ...kernels.gibbs import draw_gamma, split_counts
from .mixture_noise import GRID, LEAST_SHARE, weights_of

Array = NDArray[Any]
# Features whose weights are in memory at a time.
_PIECE = 1 << 12
# Bounds of what is drawn, which rounding could violate.
_LEAST, _LEAST_NOISE = 1e-100, 1e-12
# Factors of a step of log a after a move and after none, so that four of nine are moves.
_LONGER, _SHORTER = 1.05, 0.96


class NoiseChain:
    """The chain; `sweep` draws all parameters once.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
        Whole numbers.
    L : ndarray of shape (n, K)
        Loadings at the start.
    mu : ndarray of shape (m,)
        Means of the features at the start.
    u : ndarray of shape (m, K)
        Noise at the start.
    shares : ndarray of shape (G,)
        Shares of the mixture at the start.
    rng : numpy.random.Generator
    n_threads : int
        Draws do not depend on it.
    """

    def __init__(
        self, counts: CountMatrix, L: Array, mu: Array, u: Array, shares: Array,
        rng: np.random.Generator, n_threads: int,
    ):  # fmt: skip
        self.counts, self.rng, self.n_threads = counts, rng, n_threads
        self.L = np.maximum(np.array(L, np.float64, order="C"), _LEAST)
        self.u = np.maximum(np.array(u, np.float64, order="C"), _LEAST_NOISE)
        self.mu, self.shares = np.maximum(mu, _LEAST), np.array(shares)
        self.a, self._steps = np.full(L.shape[1], 0.3), np.full(L.shape[1], 0.5)
        self._totals = np.maximum(counts.row_totals, _LEAST)
        self._rates = (counts.total + len(mu)) / (counts.column_totals + 1.0)
        self._of_samples = np.zeros(L.shape, np.int64)
        self.no_noise, self.mean = np.zeros(u.shape), np.ones(u.shape)

    def sweep(self, *, adapt: bool = False) -> None:
        """Draw all parameters once; `adapt` changes the steps of a, before draws are used.

        ``no_noise`` and ``mean`` (m, K) are then the probabilities of no noise and the expected u,
        given all but u and its strength.
        """
        n = self._split()
        self._move_a(adapt)
        sizes = (self.mu[:, None] * self.u).sum(axis=0)
        rates = sizes + self.a.sum() / self._totals[:, None]
        self.L = np.maximum(self._gamma(self.a + self._of_samples) / rates, _LEAST)
        S = self.L.sum(axis=0)
        numbers = np.zeros(len(GRID))
        for first in range(0, len(n), _PIECE):
            numbers += self._draw_features(slice(first, first + _PIECE), n, S)
        prior = np.full(len(GRID), 1 / (len(GRID) - 1))
        prior[0] = 1.0
        shares = self._gamma(prior + numbers)
        shares = np.maximum(shares / shares.sum(), LEAST_SHARE)
        self.shares = shares / shares.sum()
        total = self.mu.sum()  # only the product of l and mu matters
        self.mu /= total
        self.L *= total

    def _gamma(self, shapes: Array) -> Array:
        """Return Gamma numbers of rate one."""
        draws = np.empty(shapes.shape)
        key = int(self.rng.integers(2**64, dtype=np.uint64))
        draw_gamma(shapes.ravel(), draws.ravel(), key, n_threads=self.n_threads)
        return draws

    def _split(self) -> Array:
        """Draw the components of single counts; return n (m, K), and keep the sums of samples."""
        draws = np.zeros(self.u.shape, np.int64)
        key = int(self.rng.integers(2**64, dtype=np.uint64))
        for rows in self.counts.chunks():
            here = slice(rows.first, rows.first + len(rows.indptr) - 1)
            split_counts(
                *(np.ascontiguousarray(array, np.int64) for array in rows[1:]), self.L[here],
                self.u,
                key, rows.first, self._of_samples[here], draws, n_threads=self.n_threads,
            )  # fmt: skip
        return draws.astype(np.float64)

    def _move_a(self, adapt: bool) -> None:
        """Move each parameter of the proportions by a Metropolis step on the log scale."""
        totals = self._of_samples.sum(axis=1)

        def value(a: Array, k: int) -> float:
            sums, whole = self._of_samples[:, k] + a[k], a.sum()
            of_samples = self._log_gamma(sums) - self._log_gamma(whole + totals)
            at = len(totals) * (log_gamma(whole) - log_gamma(a[k]))
            return float(of_samples.sum() + at - a[k] + log(a[k]))

        for k in range(len(self.a)):
            direction, chance = self.rng.random(2)
            moved = self.a.copy()
            moved[k] *= exp(self._steps[k] * (2 * direction - 1))
            accepted = log(chance) < value(moved, k) - value(self.a, k)
            if accepted:
                self.a = moved
            if adapt:
                self._steps[k] *= _LONGER if accepted else _SHORTER

    def _log_gamma(self, x: Array) -> Array:
        values: Array = log_gamma(x, n_threads=self.n_threads)
        return values

    def _draw_features(self, here: slice, n: Array, S: Array) -> Array:
        """Draw means, noise and its strengths of some features; return numbers of the strengths."""
        n, mu = n[here], self.mu[here]
        mu, weights = self._move_means(n, mu, S, self._rates[here])
        expected = mu[:, None] * S
        self.no_noise[here] = weights[0]
        self.mean[here] = sum(
            w * ((theta + n) / (theta + expected)) for theta, w in zip(GRID, weights, strict=True)
        )
        chosen = (weights.cumsum(axis=0) < self.rng.random(n.shape)).sum(axis=0)
        chosen = np.minimum(chosen, len(GRID) - 1)
        theta = GRID[chosen]
        self.u[here] = np.maximum(self._gamma(theta + n) / (theta + expected), _LEAST_NOISE)
        rates = (self.u[here] * S).sum(axis=1) + self._rates[here]
        mu = self._gamma(1.0 + n.sum(axis=1)) / rates
        self.mu[here] = np.maximum(mu, _LEAST)
        return np.bincount(chosen.ravel(), minlength=len(GRID))

    def _move_means(self, n: Array, mu: Array, S: Array, prior: Array) -> tuple[Array, Array]:
        """Return means after a Metropolis step, and the weights of the strengths (G, ...).

        `prior` are the rates of the means.
        """
        rows, ones = np.arange(len(mu)), np.ones((len(mu), 1))
        shapes = np.concatenate([n + 0.5, n.sum(axis=1, keepdims=True) + 0.5, ones], axis=1)
        rates = np.concatenate([ones * S, ones * S.sum(), prior[:, None]], axis=1)
        which = self.rng.integers(rates.shape[1], size=len(mu))
        drawn = self._gamma(shapes[rows, which]) / rates[rows, which]
        drawn = np.maximum(drawn, _LEAST)
        constants = shapes * log(rates) - self._log_gamma(shapes)

        def value(at: Array) -> tuple[Array, Array]:
            """Return weights, and the log density minus that of a proposal."""
            expected = at[:, None] * S
            weights, evidence = weights_of(self.shares, n, expected, self.n_threads)
            target = (n * log(expected, n_threads=self.n_threads) + evidence).sum(axis=1)
            terms = constants + (shapes - 1) * log(at)[:, None] - rates * at[:, None]
            largest = terms.max(axis=1)
            proposed = largest + log(exp(terms - largest[:, None]).sum(axis=1))
            return weights, target - prior * at - proposed

        (weights, before), (of_drawn, after) = value(mu), value(drawn)
        accepted = log(self.rng.random(len(mu))) < after - before
        return np.where(accepted, drawn, mu), np.where(accepted[:, None], of_drawn, weights)
