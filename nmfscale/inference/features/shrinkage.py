"""Adaptive shrinkage of many effects: an empirical Bayes estimate with a normal mixture at 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense, nnls
from ...kernels.functions import exp, log
from ..quantiles import normal_cdf

Array = NDArray[Any]
# Ratio of neighbouring standard deviations of the mixture; pseudo-observations of the null.
_RATIO, _NULL_PENALTY = 1.4142135623730951, 10.0
# The normal distribution function is interpolated between so many nodes, up to this number.
_NODES, _FAR, _DENSITY = 4096, 9.0, 0.3989422804014327
# Steps of the weights; relative gradient at which they end; share of the trace of the Hessian that
# is added to its diagonal, because neighbours of the mixture are much alike; shortest step.
_EM_STEPS, _MOST_STEPS, _TOLERANCE, _RIDGE, _LEAST_STEP = 10, 100, 1e-6, 1e-10, 1e-3


@dataclass(frozen=True)
class Shrunken:
    """Posterior means of m effects, and their local false sign rates.

    The local false sign rate is the posterior probability that the sign of an effect is wrong, or
    that it is 0. `null_share` is the weight of 0 in the mixture, an upper estimate.
    """

    means: Array
    lfsr: Array
    null_share: float


def shrink(effects: Array, errors: Array) -> Shrunken:
    """Shrink effects (m,) with normal errors of these standard deviations (m,), positive.

    The prior is a mixture of normal distributions with mean 0 and a grid of standard deviations, 0
    among them; its weights maximise the likelihood of all effects, with a penalty that favours 0
    [1]_.

    References
    ----------
    .. [1] Stephens (2017). False discovery rates: a new deal. Biostatistics.
    """
    if not effects.size:
        return Shrunken(effects.copy(), effects.copy(), 1.0)
    grid = _grid(effects, errors)
    spread = np.sqrt((errors * errors)[:, None] + grid * grid)  # (m, G)
    scaled = effects[:, None] / spread
    log_density = -0.5 * scaled * scaled - log(spread)
    density = exp(log_density - log_density.max(axis=1, keepdims=True))
    weights = _weights(density)
    used = np.flatnonzero(weights)  # few of the mixture, the first of them 0
    grid, spread, density = grid[used], spread[:, used], density[:, used]
    shares = density * weights[used]
    shares /= shares.sum(axis=1, keepdims=True)
    factor = (grid / spread) * (grid / spread)
    means, deviations = factor * effects[:, None], np.sqrt(factor) * errors[:, None]
    at_zero = deviations <= 0
    above = np.where(at_zero, 0.0, _normal_cdf(means / np.where(at_zero, 1.0, deviations)))
    below = np.where(at_zero, 0.0, 1 - above)
    at_null = shares[:, 0]
    sides = [at_null + (shares * side).sum(axis=1) for side in (below, above)]
    lfsr = np.clip(np.minimum(*sides), 0.0, 1.0)
    return Shrunken((shares * means).sum(axis=1), lfsr, float(weights[0]))


def _normal_cdf(x: Array) -> Array:
    """Return the normal distribution function of many numbers, to 1e-12: cubic interpolation."""
    nodes = np.arange(_NODES + 1) * (_FAR / _NODES)
    values, slopes = normal_cdf(nodes), exp(-0.5 * nodes * nodes) * (_DENSITY * _FAR / _NODES)
    place = np.minimum(np.abs(x) * (_NODES / _FAR), _NODES - 1e-9)
    at = place.astype(np.int64)
    t, rise = place - at, values[at + 1] - values[at]
    a, b = slopes[at] - rise, rise - slopes[at + 1]
    cubic = values[at] + t * (rise + (1 - t) * (a * (1 - t) + b * t))
    return np.where(x < 0, 1 - cubic, cubic)


def _grid(effects: Array, errors: Array) -> Array:
    """Return standard deviations: 0, then from a tenth of the least error to twice the spread."""
    least = float(errors.min()) / 10
    spread = np.maximum(effects * effects - errors * errors, 0.0).max()
    most = max(2 * float(np.sqrt(spread)), 8 * least)
    grid = [most]
    while grid[-1] > least:
        grid.append(grid[-1] / _RATIO)
    return np.array([0.0, *grid[::-1]])


def _weights(density: Array) -> Array:
    """Return the weights of the mixture; `density` (m, G) is scaled row by row.

    They minimise ``(m + penalty) sum(w) - sum_i log(density_i . w) - penalty log w_0``, at which
    their sum is one: Newton steps on the quadratic model with w >= 0, as in Kim et al. (2020), A
    fast algorithm for maximum likelihood estimation of mixture proportions.
    """
    total = len(density) + _NULL_PENALTY
    weights = np.full(density.shape[1], 1 / density.shape[1])
    for _ in range(_EM_STEPS):
        weights = -weights * _gradient(density, weights) / total
    for _ in range(_MOST_STEPS):
        gradient = total + _gradient(density, weights)
        if gradient.min() >= -_TOLERANCE * total:
            break
        weights = _moved(density, weights, _minimum_of_model(density, weights, gradient))
    return weights / weights.sum()


def _mixture(density: Array, weights: Array) -> Array:
    return dense.product(density, weights[:, None])[:, 0]


def _gradient(density: Array, weights: Array) -> Array:
    """Return the gradient of the logarithms."""
    out: Array = -dense.cross(density, 1 / _mixture(density, weights)[:, None])[:, 0]
    out[0] -= _NULL_PENALTY / weights[0]
    return out


def _minimum_of_model(density: Array, weights: Array, gradient: Array) -> Array:
    """Return the minimum of the quadratic model at some weights, with no weight below 0."""
    hessian = dense.cross(density / _mixture(density, weights)[:, None])
    hessian[0, 0] += _NULL_PENALTY / (weights[0] * weights[0])
    hessian.flat[:: len(hessian) + 1] += _RIDGE * np.trace(hessian)
    linear = dense.product(hessian, weights[:, None]) - gradient[:, None]
    nnls(hessian, linear, np.zeros(1), np.zeros(1), n_threads=1)
    return linear[:, 0]


def _moved(density: Array, weights: Array, to: Array) -> Array:
    """Return weights on the way to others, as far as the loss falls."""

    def loss(w: Array) -> float:
        if w[0] <= 0 or (mixture := _mixture(density, w)).min() <= 0:
            return np.inf
        total = len(density) + _NULL_PENALTY
        return float(total * w.sum() - log(mixture).sum() - _NULL_PENALTY * log(w[0]))

    now, step = loss(weights), 1.0
    while step > _LEAST_STEP:
        moved = weights + step * (to - weights)
        if loss(moved) <= now:
            return moved
        step /= 2
    return weights
