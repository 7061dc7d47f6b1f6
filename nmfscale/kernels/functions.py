"""Special functions of arrays, with the same bits on every processor.

NumPy and SciPy compute logarithms, exponentials and gamma functions by different programs on
different processors, so their last bits differ between machines. These functions take arrays of any
shape, or numbers, and return float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import rows

Array = NDArray[Any]


def log(x: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return the natural logarithm: -inf of 0, NaN of negative numbers."""
    return _applied(rows.log, x, n_threads)


def exp(x: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return the exponential: 0 below exp(-708), inf beyond the largest number."""
    return _applied(rows.exp, x, n_threads)


def log1p(x: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return log(1 + x) of numbers above -1, precise also for small x."""
    x = np.asarray(x, np.float64)
    above = 1.0 + x
    # log(1 + x) = log(above) + (1 + x - above) / above: the second term is what rounding has lost
    return log(above, n_threads=n_threads) - ((above - 1.0) - x) / above


def cbrt(x: ArrayLike) -> Any:
    """Return the cube root of numbers that are not negative."""
    x = np.asarray(x, np.float64)
    root = exp(log(np.maximum(x, np.finfo(np.float64).tiny)) / 3.0)
    root = root - (root * root * root - x) / (3.0 * root * root)  # a Newton step
    return np.where(x > 0, root, 0.0)[()]


def digamma(x: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return the digamma function of positive numbers."""
    return _applied(rows.digamma, x, n_threads)


def trigamma(x: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return the derivative of the digamma function of positive numbers."""
    return _applied(rows.trigamma, x, n_threads)


def log_gamma(x: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return log Gamma of positive numbers."""
    return _applied(rows.log_gamma, x, n_threads)


def xlogy(x: ArrayLike, y: ArrayLike, *, n_threads: int = 1) -> Any:
    """Return x log y, and 0 where x is 0."""
    x = np.asarray(x, np.float64)
    logs = log(np.where(x == 0, 1.0, y), n_threads=n_threads)
    return x * logs


def sine_and_cosine(x: ArrayLike) -> tuple[Any, Any]:
    """Return sine and cosine of angles up to a right angle, by their Taylor polynomials."""
    x = np.asarray(x, np.float64)
    square, sine, cosine = x * x, 1.0, 1.0
    for i in range(24, 0, -2):
        cosine = 1.0 - square / (i * (i - 1)) * cosine
        sine = 1.0 - square / (i * (i + 1)) * sine
    return x * sine, cosine


def power(x: ArrayLike, exponent: Any) -> Any:
    """Return x raised to a power, for positive numbers x."""
    return exp(exponent * log(x))


def _applied(function: Callable[..., None], x: ArrayLike, n_threads: int) -> Any:
    array = np.ascontiguousarray(x, np.float64)
    values = np.empty_like(array)
    function(array, values, n_threads=n_threads)
    return values.reshape(np.shape(x))[()]
