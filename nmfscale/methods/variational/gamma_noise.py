"""Gamma noise of mean one on the factors of a topic model: its posterior and its strength.

With u ~ Gamma(theta, theta) (shape, rate; mean 1, variance 1 / theta) and counts n that are Poisson
with mean m u, the posterior is Gamma(theta + n, theta + m), and the best theta maximises

    g(theta) = theta log theta - log G(theta) + log G(theta + n) - (theta + n) log(theta + m),

the log-likelihood, up to terms without theta, of one negative binomial count n with mean m and size
theta.  It has one maximum: at infinity if ``(n - m)^2 <= n``, at zero for n = 0, otherwise in
between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import kernels
from ...kernels.functions import exp, log
from ..factors import Array

# Bounds on theta: with the larger one u deviates from one by 1 %, with the smaller one u is mostly
# almost 0.
LEAST_THETA, MOST_THETA = 1e-4, 1e4
START_THETA = 1.0
_ROUNDS, _TOLERANCE = 60, 1e-10


class Posterior(NamedTuple):
    """Expectations under Gamma(theta + n, theta + m), and its terms in the bound.

    Attributes
    ----------
    mean, log : ndarray
        E u and E log u.
    bound : float
        Sum over all of E[log p(u) - log q(u)].
    """

    mean: Array
    log: Array
    bound: float


class FreeNoise:
    """A theta of its own for each pair, (m, K), which maximises the bound."""

    def __init__(self, n_threads: int):
        self.n_threads = n_threads

    def shape(self, m: int, K: int) -> tuple[int, ...]:
        """Return the shape of the parameters."""
        return m, K

    def start(self, m: int, K: int) -> Array:
        """Return the parameters at the start."""
        return np.full((m, K), START_THETA)

    def posterior(self, theta: Array, n: Array, m: Array) -> Posterior:
        """Return the posteriors of u for counts n and expected counts m."""
        return posterior_of(theta, n, m, self.n_threads)

    def update(self, theta: Array, n: Array, m: Array) -> tuple[Array, Array]:
        """Return better parameters, from `theta`, and E u with them."""
        shapes = best_theta(n, m, theta, self.n_threads).reshape(n.shape)
        return shapes, (shapes + n) / (shapes + m)

    def feasible(self, theta: Array) -> Array:
        """Return parameters within their bounds."""
        return np.clip(theta, LEAST_THETA, MOST_THETA)

    def of_pairs(self, theta: Array, n: Array, m: Array) -> dict[str, Array]:
        """Return what a fit reports of each pair, (m, K)."""
        return {"theta": theta}


def posterior_of(theta: Array, n: Array, m: Array, n_threads: int) -> Posterior:
    """Return the posteriors for counts n and expected counts m, in float64.

    E[log p - log q] = g(theta) - n E log u + m E u.
    """
    shape, rate = theta + n, theta + m
    log_rate, mean = log(rate, n_threads=n_threads), shape / rate
    logs, terms, of_theta = np.empty_like(shape), np.empty_like(shape), np.empty_like(shape)
    kernels.digamma(shape, logs, n_threads=n_threads)
    logs -= log_rate
    kernels.log_gamma(shape, terms, n_threads=n_threads)
    kernels.log_gamma(theta, of_theta, n_threads=n_threads)
    terms += theta * log(theta, n_threads=n_threads) - of_theta
    terms -= shape * log_rate
    terms += m * mean - n * logs
    return Posterior(mean, logs, float(terms.sum()))


def best_theta(n: Array, m: Array, start: Array, n_threads: int) -> Array:
    """Return the theta within its bounds that maximises g, for each entry.

    Newton's method in log theta from `start`, with bisection if it leaves the bracket.
    """
    out = np.full(n.size, MOST_THETA)
    n, m, start = n.ravel(), m.ravel(), start.ravel()
    ends = log(LEAST_THETA), log(MOST_THETA)
    inside = np.flatnonzero(_slope(out, ends[1], n, m, n_threads) < 0)
    least = np.full(inside.size, LEAST_THETA)
    falls = _slope(least, ends[0], n[inside], m[inside], n_threads) <= 0
    out[inside[falls]] = LEAST_THETA
    at = inside[~falls]
    low, high = np.full(at.size, ends[0]), np.full(at.size, ends[1])
    now = np.clip(log(start[at], n_threads=n_threads), low, high)
    for _ in range(_ROUNDS):
        if not at.size:
            break
        theta = exp(now, n_threads=n_threads)
        slope = theta * _slope(theta, now, n[at], m[at], n_threads)
        low, high = np.where(slope >= 0, now, low), np.where(slope <= 0, now, high)
        bend = slope + theta**2 * _bend(theta, n[at], m[at])
        newton = now - np.divide(slope, bend, out=np.full_like(slope, np.inf), where=bend < 0)
        after = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
        out[at] = exp(after, n_threads=n_threads)
        moving = np.abs(after - now) > _TOLERANCE
        at, now, low, high = at[moving], after[moving], low[moving], high[moving]
    return out


def _slope(theta: Array, log_theta: Any, n: Array, m: Array, n_threads: int) -> Array:
    """Return g' = psi(theta + n) - psi(theta) + log(theta / (theta + m)) + (m - n) / (theta + m).

    The difference of logarithms is as precise as that of the two psi.
    """
    rate, slope, term = theta + m, theta + n, np.empty_like(theta)
    kernels.digamma(slope, slope, n_threads=n_threads)
    kernels.digamma(theta, term, n_threads=n_threads)
    slope -= term
    slope += log_theta
    slope -= log(rate, n_threads=n_threads)
    np.subtract(m, n, out=term)
    term /= rate
    slope += term
    return slope


def _bend(theta: Array, n: Array, m: Array) -> Array:
    """Return g'', the derivative of `_slope`."""
    bend: Array = m / (theta * (theta + m)) - (m - n) / (theta + m) ** 2
    bend += _trigamma(theta + n) - _trigamma(theta)
    return bend


def _trigamma(x: Array) -> Array:
    """Return psi' to eight digits: enough for a step, and ten times faster than SciPy."""
    sums = np.zeros_like(x)
    for i in range(6):
        sums += 1 / (x + i) ** 2
    inverse = 1 / (x + 6)
    square = inverse * inverse
    sums += inverse + square / 2 + inverse * square * (1 / 6 - square / 30)
    return sums
