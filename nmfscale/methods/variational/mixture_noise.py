"""Gamma noise of mean one whose strengths have a common prior: a mixture, estimated from all pairs.

Each pair has u ~ Gamma(theta_g, theta_g) with probability pi_g, for theta_g on a fixed grid from no
noise to strong noise.  With counts n that are Poisson with mean m u, the posterior of u is the
mixture of Gamma(theta_g + n, theta_g + m) with the weights

    w_g ~ pi_g exp(g(theta_g)),

g as in `gamma_noise`, and its terms in the bound are ``log sum_g pi_g exp(g(theta_g)) - n E log u +
m E u``.  The pi that maximise the bound given w are the means of w over all pairs (empirical Bayes;
a grid of variances as in Stephens 2017, False discovery rates: a new deal, Biostatistics 18).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ... import kernels
from ...kernels.functions import exp, log, log_gamma
from ..factors import Array
from .gamma_noise import MOST_THETA, Posterior

# The first is no noise. Variances 1 / theta differ by a factor of 2: a mixture of two neighbours is
# close to what is between them.
GRID = np.array([MOST_THETA, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625])
# Smallest probability of a point of the grid, and features that are processed together.
LEAST_SHARE, _PIECE = 1e-8, 1 << 12
# Maximum number of EM steps of the shares in an iteration. They end when shares above the second
# number change by less than the third one, relatively.
_STEPS, _SMALL, _SETTLED = 20, 1e-4, 1e-4


def weights_of(shares: Array, n: Array, m: Array, n_threads: int) -> tuple[Array, Array]:
    """Return weights w (G, ...) of the grid for counts n and expected counts m.

    Also return ``log sum_g pi_g exp(g(theta_g))``.
    """
    log_weights = np.empty((len(GRID), *n.shape))
    constants = GRID * log(GRID) - log_gamma(GRID) + log(shares)
    for theta, constant, terms in zip(GRID, constants, log_weights, strict=True):
        shape = theta + n
        kernels.log_gamma(shape, terms, n_threads=n_threads)
        terms += constant
        terms -= shape * log(theta + m, n_threads=n_threads)
    largest = log_weights.max(axis=0)
    log_weights -= largest
    log_weights = exp(log_weights, n_threads=n_threads)
    total = log_weights.sum(axis=0)
    log_weights /= total
    return log_weights, largest + log(total, n_threads=n_threads)


class MixtureNoise:
    """The mixture; its parameters are the shares pi (G,) of the grid."""

    def __init__(self, n_threads: int):
        self.n_threads = n_threads

    def shape(self, m: int, K: int) -> tuple[int, ...]:
        """Return the shape of the parameters."""
        return GRID.shape

    def start(self, m: int, K: int) -> Array:
        """Return the parameters at the start: half of the pairs have no noise."""
        rest = np.full(len(GRID) - 1, 0.5 / (len(GRID) - 1))
        return np.concatenate([[0.5], rest])

    def posterior(self, shares: Array, n: Array, m: Array) -> Posterior:
        """Return the posteriors of u for counts n and expected counts m (m, K), in float64."""
        mean, logs, bounds = np.zeros_like(n), np.zeros_like(n), []
        for here, weights, evidence in self._pieces(shares, n, m):
            for theta, w in zip(GRID, weights, strict=True):
                shape, rate = theta + n[here], theta + m[here]
                mean[here] += w * (shape / rate)
                expected = np.empty_like(shape)
                kernels.digamma(shape, expected, n_threads=self.n_threads)
                expected -= log(rate, n_threads=self.n_threads)
                logs[here] += w * expected
            terms = evidence + m[here] * mean[here] - n[here] * logs[here]
            bounds.append(float(terms.sum()))
        return Posterior(mean, logs, math.fsum(bounds))

    def update(self, shares: Array, n: Array, m: Array) -> tuple[Array, Array]:
        """Return better parameters, by EM steps, and E u with `shares`.

        A step replaces the shares by the means of the weights over all pairs.
        """
        ratios, mean = np.empty((len(GRID), *n.shape)), np.zeros_like(n)
        for here, weights, _ in self._pieces(shares, n, m):
            ratios[:, here] = weights
            for theta, w in zip(GRID, weights, strict=True):
                mean[here] += w * ((theta + n[here]) / (theta + m[here]))
        ratios = ratios.reshape(len(GRID), -1)
        relative = np.ones(len(GRID))  # of the shares to those of the weights
        for _ in range(_STEPS):
            total = np.zeros(n.size)
            for scale, w in zip(relative, ratios, strict=True):
                total += scale * w
            np.divide(1.0, total, out=total)
            factors = np.array([(w * total).sum() for w in ratios]) / (n.size * shares)
            relative *= factors
            if np.abs(factors - 1)[shares * relative > _SMALL].max() < _SETTLED:
                break
        return self.feasible(shares * relative), mean

    def feasible(self, shares: Array) -> Array:
        """Return positive shares that sum to one."""
        raised = np.maximum(shares, LEAST_SHARE)
        weights: Array = raised / raised.sum()
        return weights

    def of_pairs(self, shares: Array, n: Array, m: Array) -> dict[str, Array]:
        """Return what a fit reports of each pair, (m, K).

        ``theta`` is one over the posterior mean of 1 / theta, ``no_noise`` is the posterior
        probability of no noise.
        """
        variance, none = np.zeros_like(n), np.zeros_like(n)
        for here, weights, _ in self._pieces(shares, n, m):
            none[here] = weights[0]
            for theta, w in zip(GRID, weights, strict=True):
                variance[here] += w / theta
        return {"theta": 1 / variance, "no_noise": none}

    def _pieces(self, shares: Array, n: Array, m: Array) -> Iterator[tuple[slice, Array, Array]]:
        """Yield features, and the results of `weights_of` for them."""
        for first in range(0, len(n), _PIECE):
            here = slice(first, first + _PIECE)
            yield here, *weights_of(shares, n[here], m[here], self.n_threads)
