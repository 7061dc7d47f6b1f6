"""Normal, t and beta distributions and an inverse of trigamma, the same bits on every processor.

They come from series and continued fractions, evaluated in a fixed order; SciPy's last bits depend
on the processor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..kernels.functions import exp, log, log_gamma, trigamma

Array = NDArray[Any]

# Beyond it a normal distribution has less than 1e-17 of its mass.
_FAR = 9.0
_MOST_TERMS = 10_000
# Points of a beta distribution that are evaluated together.
_POINTS = 256
# From here on, the tail is a continued fraction, of this many terms.
_NEAR, _FRACTIONS = 3.0, 100
# The inverse of the trigamma function is searched between these logarithms.
_LOW, _HIGH, _BISECTIONS = -20.0, 30.0, 100


def normal_cdf(x: ArrayLike) -> Array:
    """Return the standard normal distribution function, to 1e-16 absolute."""
    # Marsaglia 2004: Phi(x) = 1/2 + phi(x) (x + x^3 / 3 + x^5 / (3 5) + ...)
    z = np.minimum(np.abs(np.asarray(x, np.float64)), _FAR)
    term = total = z
    i = 1
    while (term > 1e-17 * total).any():
        i += 2
        term = term * (z * z / i)
        total = total + term
    half = np.minimum(total * exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.5)
    probabilities: Array = np.where(np.asarray(x) < 0, 0.5 - half, 0.5 + half)
    return probabilities


def normal_tail(x: ArrayLike) -> Array:
    """Return the probability beyond x >= 0 of a standard normal, to 1e-12 relative."""
    x = np.asarray(x, np.float64)
    far = np.maximum(x, _NEAR)
    fraction = far  # Laplace: phi(x) / (x + 1 / (x + 2 / (x + 3 / ...)))
    for i in range(_FRACTIONS, 0, -1):
        fraction = far + i / fraction
    beyond = exp(-far * far / 2) / (math.sqrt(2 * math.pi) * fraction)
    probabilities: Array = np.where(x < _NEAR, normal_cdf(-x), beyond)
    return probabilities


def normal_quantile(p: ArrayLike) -> Any:
    """Return the standard normal quantiles of probabilities between 0 and 1."""
    p = np.asarray(p, np.float64)
    upper, z = np.maximum(p, 1 - p), np.zeros(p.shape)
    # the function is concave: Newton's method from 0 never passes the root
    for _ in range(100):
        density = exp(-z * z / 2) / math.sqrt(2 * math.pi)
        after = np.minimum(z + np.maximum(upper - normal_cdf(z), 0) / density, _FAR)
        if not (after > z * (1 + 1e-15)).any():
            break
        z = after
    return np.where(p < 0.5, -z, z)[()]


def t_quantile(freedom: ArrayLike, level: float) -> Any:
    """Return t such that ``|T| <= t`` has probability `level`, for degrees of freedom >= 1."""
    freedom = np.maximum(np.asarray(freedom, np.float64), 1.0)
    # t^2 / (freedom + t^2) has a beta distribution
    x, rest = _beta_ends(level, 0.5, freedom / 2)
    return np.sqrt(freedom * x / rest)[()]


def t_pvalue(t: ArrayLike, freedom: ArrayLike) -> Any:
    """Return the probability that ``|T| >= |t|``, for positive degrees of freedom."""
    t, freedom = np.asarray(t, np.float64), np.asarray(freedom, np.float64)
    return beta_cdf(freedom / (freedom + t * t), freedom / 2, 0.5)


def f_tail(x: ArrayLike, between: ArrayLike, within: ArrayLike) -> Any:
    """Return the probability beyond x >= 0 of F distributions with these degrees of freedom.

    With 1 degree `between` it is the two-sided tail of Student's t at the root of x.
    """
    x, between, within = (np.asarray(values, np.float64) for values in (x, between, within))
    return beta_cdf(within / (within + between * x), within / 2, between / 2)


def beta_quantile(p: ArrayLike, a: ArrayLike, b: ArrayLike) -> Any:
    """Return the quantiles at `p` of beta distributions with parameters a and b."""
    return _beta_ends(p, a, b)[0][()]


def _beta_ends(p: ArrayLike, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return quantiles x and 1 - x; the smaller one is searched, which keeps its digits."""
    p, a, b = np.broadcast_arrays(*(np.asarray(values, np.float64) for values in (p, a, b)))
    lower = np.asarray(p <= beta_cdf(0.5, a, b))
    target, first, second = np.where(lower, [p, a, b], [1 - p, b, a])
    low, high = np.zeros(p.shape), np.full(p.shape, 0.5)
    middle = low + (high - low) / 2
    while (between := (low < middle) & (middle < high)).any():
        low[between], high[between] = _bisected(
            low[between], high[between], target[between], first[between], second[between]
        )
        middle = low + (high - low) / 2
    return np.where(lower, high, 1 - high), np.where(lower, 1 - high, high)


def _bisected(low: Array, high: Array, target: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Return the intervals after some bisections, whose points are evaluated together.

    Calls of NumPy take longer than the arithmetic of few intervals.
    """
    n_bisections = max(1, (_POINTS // low.size).bit_length() - 1)
    edges = np.stack([low, high], axis=-1)
    for _ in range(n_bisections):
        finer = np.empty((low.size, 2 * edges.shape[1] - 1))
        finer[:, ::2] = edges
        finer[:, 1::2] = edges[:, :-1] + (edges[:, 1:] - edges[:, :-1]) / 2
        edges = finer
    below = beta_cdf(edges[:, 1:-1], a[:, None], b[:, None]) < target[:, None]
    rows, at = np.arange(low.size), np.zeros(low.size, np.intp)
    for step in (1 << np.arange(n_bisections)[::-1]).tolist():
        at = np.where(below[rows, at + step - 1], at + step, at)
    return edges[rows, at], edges[rows, at + 1]


def beta_cdf(x: ArrayLike, a: ArrayLike, b: ArrayLike) -> Any:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz)."""
    x, a, b = np.broadcast_arrays(*(np.asarray(values, np.float64) for values in (x, a, b)))
    probability, inside = np.where(x <= 0, 0.0, 1.0), (x > 0) & (x < 1)
    turned = inside & (x > (a + 1) / (a + b + 2))  # the fraction of 1 - x converges faster
    share, first, second = np.where(turned, [1 - x, b, a], [x, a, b])[:, inside]
    scale = first * log(share) + second * log(1 - share)
    scale = scale + log_gamma(first + second) - log_gamma(first) - log_gamma(second)
    value = exp(scale) * _fraction(share, first, second) / first
    probability[inside] = np.where(turned[inside], 1 - value, value)
    return probability[()]


def _fraction(x: Array, a: Array, b: Array) -> Array:
    """Return the continued fractions of incomplete beta functions, (n,)."""
    limits: Array = np.empty(x.size)
    active: Array = np.arange(x.size)
    c: Array
    c, d = np.ones(x.size), 1 / _not_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for term in (even, odd):
            d, c = 1 / _not_zero(1 + term * d), _not_zero(1 + term / c)
            fraction = fraction * (d * c)
        going = np.abs(fraction - before) > 1e-16 * np.abs(fraction)
        if not going.all():
            limits[active[~going]] = fraction[~going]
            active = active[going]
            x, a, b, c, d, fraction = (values[going] for values in (x, a, b, c, d, fraction))
            if not active.size:
                break
    limits[active] = fraction
    return limits


def _not_zero(x: Array) -> Array:
    return np.where(np.abs(x) > 1e-300, x, 1e-300)


def trigamma_inverse(value: float) -> float:
    """Return x with trigamma(x) = value; the function falls."""
    low, high = _LOW, _HIGH
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if trigamma(exp(middle)) > value:
            low = middle
        else:
            high = middle
    return float(exp(high))
