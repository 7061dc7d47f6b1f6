"""Quasi-likelihood regression of many features on few units, with a log link.

Counts y of units with sizes s, which may differ between features, have the mean ``mu = s exp(X
beta)`` and the variance ``phi (mu + alpha mu^2)``: alpha is common to all features, phi belongs to
the feature. Both are found from squared residuals, and phi is moderated over the features, as in
edgeR [1]_. Coefficients are tested by the difference of the deviances with and without them.

References
----------
.. [1] Lund, Nettleton, McCarthy, Smyth (2012). Detecting differential expression in RNA-sequence
   data using quasi-likelihood with shrunken dispersion estimates. Statistical Applications in
   Genetics and Molecular Biology.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.decompositions import inverse, solve
from ...kernels.functions import exp, log, log1p, xlogy

Array = NDArray[Any]
# Pseudo-counts that are added to each unit of mean size, at the mean rate of the feature, so that
# coefficients are finite: those of edgeR.
PSEUDOCOUNT = 0.125
# Least degrees of freedom of a variance.
_LEAST_FREEDOM = 0.1
# Features whose regressions are solved together.
_FEATURES = 1 << 11
# Largest change of a linear predictor in a step, change at which it has converged, most steps.
_STEP, _CONVERGED, _MOST_STEPS = 2.0, 1e-7, 100
# Bounds of the common alpha, and bisections; below the first, counts are Poisson counts.
_POISSON, _MOST_ALPHA, _BISECTIONS = 1e-6, 100.0, 60


@dataclass(frozen=True)
class QuasiFit:
    """Regressions of m features on a design with p columns, for phi = 1.

    `coefficients` and their standard `errors` (m, p), `means` and `leverages` (m, U), and
    `deviance` (m,).
    """

    coefficients: Array
    errors: Array
    means: Array
    leverages: Array
    deviance: Array


def with_pseudocounts(counts: Array, sizes: Array) -> Array:
    """Return counts (m, U) with pseudo-counts, in proportion to the sizes of the units.

    Sizes are (U,), or (m, U) if they differ between features.
    """
    added: Array = counts + _pseudocounts(sizes)
    return added


def _pseudocounts(sizes: Array) -> Array:
    added: Array = PSEUDOCOUNT * (sizes / sizes.mean(axis=-1, keepdims=True))
    return added


def variances(counts: Array, fit: QuasiFit, sizes: Array, alpha: float) -> tuple[Array, Array]:
    """Return phi (m,) from the residuals of a fit with alpha, and its degrees of freedom (m,).

    It is the sum of the squared residuals, divided by its expectation with phi = 1: units have
    weight by their variances, and those without counts have none. Pearson's statistic would count
    their degrees of freedom, although nothing is left of a unit whose mean is fitted to 0, such as
    both samples of a pair. Pseudo-counts do not vary. The degrees of freedom are Satterthwaite's.
    """
    squares = ((counts - fit.means) ** 2).sum(axis=1)
    means = np.maximum(fit.means - _pseudocounts(sizes), 0.0)
    weights, left = means * (1 + alpha * fit.means), 1 - fit.leverages
    expected = (weights * left).sum(axis=1)
    of_squares = (weights * weights * left).sum(axis=1)
    tiny = np.finfo(float).tiny
    phi = squares / np.maximum(expected, tiny)
    return phi, np.maximum(expected * expected / np.maximum(of_squares, tiny), _LEAST_FREEDOM)


def fit_features(counts: Array, sizes: Array, design: Array, alpha: float) -> QuasiFit:
    """Fit positive counts (m, U) of units with sizes (U,) or (m, U) to a design (U, p).

    The design has full rank. The first column of the design is the intercept.
    """
    sizes = np.broadcast_to(sizes, counts.shape)
    parts = [
        _fit(counts[first : first + _FEATURES], sizes[first : first + _FEATURES], design, alpha)
        for first in range(0, len(counts), _FEATURES)
    ]
    return QuasiFit(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _fit(counts: Array, sizes: Array, design: Array, alpha: float) -> tuple[Array, ...]:
    """Return the arrays of a `QuasiFit`, by Fisher scoring with bounded steps."""
    m, p = len(counts), design.shape[1]
    offset, active = log(sizes), np.arange(m)
    beta = np.zeros((m, p))
    beta[:, 0] = log(counts.sum(axis=1) / sizes.sum(axis=1))
    for _ in range(_MOST_STEPS):
        y, mu = counts[active], exp(_predicted(beta[active], design) + offset[active])
        variance = 1 + alpha * mu
        score = _products((y - mu) / variance, design)
        step = solve(_gram(mu / variance, design), score[:, :, None])[:, :, 0]
        largest = np.abs(_predicted(step, design)).max(axis=1)
        beta[active] += step * np.minimum(1.0, _STEP / np.maximum(largest, _STEP))[:, None]
        active = active[largest > _CONVERGED]
        if not active.size:
            break
    mu = exp(_predicted(beta, design) + offset)
    variance = mu * (1 + alpha * mu)
    weights = mu * mu / variance
    inverses = inverse(_gram(weights, design))[0]
    errors = np.sqrt(np.maximum(np.diagonal(inverses, axis1=1, axis2=2), 0.0))
    parts = dense.products(inverses, design.T)
    leverages = np.zeros_like(mu)
    for j, column in enumerate(design.T):
        leverages += column * parts[:, j]
    leverages = np.clip(leverages * weights, 0.0, 1.0)
    return beta, errors, mu, leverages, _deviance(counts, mu, alpha)


def _predicted(coefficients: Array, design: Array) -> Array:
    """Return the linear predictors (m, U); a matrix product would depend on the library."""
    out = np.zeros((len(coefficients), len(design)))
    for j, column in enumerate(design.T):
        out += coefficients[:, [j]] * column
    return out


def _products(values: Array, design: Array) -> Array:
    """Return the products (m, p) of rows (m, U) with the columns of the design."""
    return np.stack([(values * column).sum(axis=1) for column in design.T], axis=1)


def _gram(weights: Array, design: Array) -> Array:
    """Return the weighted products (m, p, p) of the columns of the design with each other."""
    p = design.shape[1]
    out = np.zeros((len(weights), p, p))
    for a in range(p):
        for b in range(a + 1):
            both = design[:, a] * design[:, b]
            if both.any():
                used = np.flatnonzero(both)
                out[:, a, b] = out[:, b, a] = (weights[:, used] * both[used]).sum(axis=1)
    return out


def _deviance(y: Array, mu: Array, alpha: float) -> Array:
    """Return the deviances (m,) of negative binomial counts, or of Poisson counts."""
    if alpha == 0:
        terms = xlogy(y, y / mu) - (y - mu)
    else:
        terms = xlogy(y, y / mu) - (y + 1 / alpha) * (log1p(alpha * y) - log1p(alpha * mu))
    return np.maximum(2 * terms.sum(axis=1), 0.0)


def common_alpha(counts: Array, means: Array, freedom: int) -> float:
    """Return the alpha with which Pearson's statistic is what its degrees of freedom expect.

    `counts` and `means` (m, U) are those of fits with alpha = 0 that have `freedom`. The half of
    the features with more counts determines alpha.
    """
    totals = counts.sum(axis=1)
    large = totals >= np.median(totals)
    squares, means = (counts[large] - means[large]) ** 2, means[large]
    expected = float(freedom * np.count_nonzero(large))
    low, high = log(_POISSON), log(_MOST_ALPHA)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        alpha = exp(middle)
        if (squares / (means * (1 + alpha * means))).sum() > expected:
            low = middle
        else:
            high = middle
    alpha = float(exp(high))
    return alpha if alpha > 2 * _POISSON else 0.0
