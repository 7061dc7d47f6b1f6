"""Intervals from the replicates of a bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..counts.argument_types import check_option
from ..counts.names import shown
from ..kernels.functions import sine_and_cosine
from .quantiles import normal_cdf, normal_quantile

Array = NDArray[Any]
ReplicateInterval: TypeAlias = Literal["percentile", "bca"]
# Kinds of intervals of means and coefficients: their standard errors need no replicates.
RobustInterval: TypeAlias = Literal["t", "percentile", "bca"]


def check_interval(level: Any, interval: Any, kinds: Any = ReplicateInterval) -> None:
    """Refuse an invalid level or an unknown kind of interval."""
    if not isinstance(level, Real) or not 0 < float(level) < 1:
        raise ValueError(f"level={shown(level)}: a number between 0 and 1 is needed, such as 0.95.")
    check_option("interval", interval, kinds)


def arcsine_interval(estimate: Array, margins: Array) -> tuple[Array, Array]:
    """Return intervals of proportions that are symmetric on the arcsine square-root scale.

    `margins` are half the widths of symmetric intervals; multiplied by the derivative of the
    arcsine they are half widths on its scale (delta method). With the logit, intervals of shares
    near 0 would reach to 1 if there are few units.
    """
    inside = (estimate > 0) & (estimate < 1)
    center = np.where(inside, estimate, 0.5)
    far = margins / (2 * np.sqrt(center * (1 - center)))
    # sin(arcsin(root) -+ far)^2 by the addition theorem; angles end at 0 and at a right angle
    root, other = np.sqrt(center), np.sqrt(1 - center)
    sine, cosine = sine_and_cosine(np.minimum(far, np.pi / 2))
    lower = np.where(sine >= root, 0.0, root * cosine - other * sine) ** 2
    upper = np.where(sine >= other, 1.0, root * cosine + other * sine) ** 2
    return np.where(inside, lower, estimate), np.where(inside, upper, estimate)


def interval_ends(
    interval: str, replicates: Array, estimate: Array, level: float,
    acceleration: Callable[[], Array],
) -> tuple[Array, Array]:  # fmt: skip
    """Return both ends (...) of the chosen kind of interval; `acceleration` is called for BCa."""
    if interval == "percentile":
        return percentile(replicates, level)
    return bca(replicates, estimate, acceleration(), level)


def ends_of_known(
    interval: str, replicates: Array, estimate: Array, level: float,
    acceleration: Callable[[], Array],
) -> tuple[Array, Array]:  # fmt: skip
    """Return both ends of the interval of replicates (n, ...), leaving out entries that are NaN."""
    lost = np.isnan(replicates)
    whole = ~lost.any(axis=0)
    a = np.zeros(estimate.shape) if interval == "percentile" else acceleration()
    out = np.empty((2, *estimate.shape))
    out[:, whole] = interval_ends(
        interval, replicates[:, whole], estimate[whole], level, lambda: a[whole]
    )
    for place in map(tuple, np.argwhere(~whole)):
        observed_replicates = replicates[(~lost[(slice(None), *place)], *place)]
        here = np.array([estimate[place]])
        ends = interval_ends(
            interval, observed_replicates[:, None], here, level, partial(np.atleast_1d, a[place])
        )
        out[(slice(None), *place)] = np.concatenate(ends)
    return out[0], out[1]


def spread(replicates: Array) -> Array:
    """Return the standard deviations of replicates (n, ...), ignoring NaN."""
    lost = np.isnan(replicates)
    if not lost.any():
        return np.std(replicates, axis=0, ddof=min(1, len(replicates) - 1))
    n = (~lost).sum(axis=0)
    mean = np.where(lost, 0.0, replicates).sum(axis=0) / np.maximum(n, 1)
    squares = np.where(lost, 0.0, (replicates - mean) ** 2).sum(axis=0)
    return np.sqrt(squares / np.maximum(n - 1, 1))


def acceleration_of(second: Array, third: Array) -> Array:
    """Return the BCa acceleration, sum v^3 / (6 (sum v^2)^1.5) of empirical influences v.

    Davison and Hinkley 1997, 5.3.2, where l = n_s v, with v centred in each stratum. It is 0 where
    nothing varies.
    """
    scale = 6 * second * np.sqrt(second)
    return np.divide(third, scale, out=np.zeros(scale.shape), where=scale > 0)


def percentile(replicates: Array, level: float) -> tuple[Array, Array]:
    """Return both ends (...) of equal-tailed percentile intervals of replicates (n, ...)."""
    return _quantiles(replicates, [(1 - level) / 2, (1 + level) / 2])


def bca(
    replicates: Array, estimate: Array, acceleration: Array, level: float
) -> tuple[Array, Array]:
    """Return both ends (...) of bias-corrected and accelerated (BCa) intervals (Efron 1987).

    With z0 = ndtri(share of replicates below the estimate), in which ties count half, the ends are
    quantiles ``ndtr(z0 + (z0 + z) / (1 - a (z0 + z)))`` for z of the percentile interval.
    """
    n = len(replicates)
    below = (replicates < estimate).sum(axis=0) + (replicates == estimate).sum(axis=0) / 2
    bias = normal_quantile(np.clip(below / n, 0.5 / n, 1 - 0.5 / n))
    shares = []
    for z in normal_quantile([(1 - level) / 2, (1 + level) / 2]):
        # beyond its pole the formula is no longer monotonic
        scale = np.maximum(1 - acceleration * (bias + z), 1e-3)
        shares.append(normal_cdf(bias + (bias + z) / scale))
    return _quantiles(replicates, shares)


def _quantiles(replicates: Array, shares: Sequence[Any]) -> tuple[Array, Array]:
    """Interpolate two quantiles of each entry linearly, like np.quantile but faster."""
    n, *shape = replicates.shape
    # NumPy sorts contiguous values many times faster
    ordered = np.ascontiguousarray(replicates.reshape(n, -1).T)
    ordered.sort(axis=1)
    entry, quantiles = np.arange(len(ordered)), []
    for share in shares:
        at = np.broadcast_to(share, shape).ravel() * (n - 1)
        first = np.clip(at.astype(np.int64), 0, max(n - 2, 0))
        low, high = ordered[entry, first], ordered[entry, np.minimum(first + 1, n - 1)]
        quantiles.append((low + (at - first) * (high - low)).reshape(shape))
    return quantiles[0], quantiles[1]


class Jackknife:
    """Acceleration of BCa intervals from leave-one-out estimates, added stratum by stratum.

    With l_j = (n_s - 1)(mean_s - estimate without j) in stratum s of n_s units, it is
    ``sum_s n_s^-3 sum l^3 / (6 (sum_s n_s^-2 sum l^2)^1.5)`` (Davison and Hinkley 1997, 5.3.2).
    """

    def __init__(self, estimate: Array):
        self._estimate = estimate
        self._n, self._sums = 0, np.zeros((3, *estimate.shape))
        self._second, self._third = np.zeros(estimate.shape), np.zeros(estimate.shape)

    def add(self, without: Array) -> None:
        """Add leave-one-out estimates (n, ...) of a stratum."""
        self._n += len(without)
        away = self._estimate - without  # their mean is close to 0
        power = np.ones_like(away)
        for into in self._sums:
            power = power * away
            into += power.sum(axis=0)

    def end_stratum(self) -> None:
        """Close a stratum: it consists of the estimates added since the last one."""
        n, (first, second, third) = max(self._n, 1), self._sums
        mean = first / n
        share = (n - 1) / n
        self._second += share * share * np.maximum(second - n * mean * mean, 0)
        self._third += (
            share * share * share * (third - 3 * mean * second + 2 * n * mean * mean * mean)
        )
        self._n, self._sums = 0, np.zeros_like(self._sums)

    def acceleration(self) -> Array:
        """Return the acceleration (...), 0 where estimates do not vary."""
        return acceleration_of(self._second, self._third)
