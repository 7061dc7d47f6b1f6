"""Variance beyond Poisson: deviations that two halves of the counts have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine.threads import resolve_threads
from ...kernels import dense
from ...methods.projection.transform import project_rows
from ...methods.weights.measured import Measured

Array = NDArray[Any]
# Entries of which expected counts are computed at a time.
_PIECE = 1 << 16
# Standard errors beyond which counts vary more than Poisson counts, and the least dispersion.
_ERRORS, _LEAST = 3.0, 0.02


def excess_variance(
    halves: Sequence[CountMatrix], topics: Array, sums: Array, n_threads: int | None
) -> tuple[float, float]:
    """Return the dispersion of counts around independent fits to two halves, and its error.

    With expected counts m_1 and m_2, the estimate is the sum of ``w (x_1 - m_1) (x_2 - m_2)``
    divided by the sum of ``w m_1 m_2``. The halves of Poisson counts are independent; if rates vary
    by a factor of mean 1 and variance d, the estimate is close to d. The weights w are reciprocal
    to the totals of samples and features. `topics` (2, m, K) are the topics of the fits, and `sums`
    (n,) the sums to which samples are added for the standard error. Entries that were not measured
    are left out.
    """
    threads = resolve_threads(n_threads)
    measured = Measured.of(halves[0])
    F = [np.asarray(array, np.float64) for array in topics]
    # projections: loadings of the fits, of any model
    L = [
        project_rows(x, f, n_threads=threads, measured=measured)
        for x, f in zip(halves, F, strict=True)
    ]
    columns = halves[0].column_totals + halves[1].column_totals
    rows = halves[0].row_totals + halves[1].row_totals
    of_rows, of_columns = (
        np.divide(1.0, array, out=np.zeros(array.shape), where=array > 0)
        for array in (rows, columns)
    )
    expected = _expected(L, F, of_columns, measured)
    cross = [_cross(halves[i], L[1 - i], F[1 - i], of_columns) for i in range(2)]
    both = _products(halves[0], halves[1], of_columns)
    above = of_rows * (both - cross[0] - cross[1] + expected)
    below = of_rows * expected
    n_sums = int(sums.max()) + 1
    above, below = (np.bincount(sums, array, n_sums) for array in (above, below))
    ratio = float(above.sum() / below.sum())
    rest = above - ratio * below
    error = float(np.sqrt(n_sums / max(n_sums - 1, 1) * (rest**2).sum()) / below.sum())
    return ratio, error


def _expected(
    L: Sequence[Array], F: Sequence[Array], weights: Array, measured: Measured | None
) -> Array:
    """Return ``sum_j w_j m_ij m'_ij`` over the measured features, with m = L F^T, (n,)."""
    if measured is None:
        measured = Measured(np.zeros(len(L[0]), int), np.ones((1, len(weights)), bool))
    sums = np.zeros(len(L[0]))
    for group, features in enumerate(measured.features):
        rows = measured.groups == group
        product = dense.cross(F[0] * (weights * features)[:, None], F[1])
        sums[rows] = (dense.product(L[0][rows], product) * L[1][rows]).sum(axis=1)
    return sums


def varies_more(excess: tuple[float, float] | None) -> bool:
    """Whether an estimate of the dispersion, with its standard error, exceeds that of Poisson."""
    return excess is not None and excess[0] > max(_LEAST, _ERRORS * excess[1])


def inflation_of(dispersion: float, L: Array, F: Array) -> float:
    """Return the variance of counts divided by that of Poisson counts, given their dispersion.

    It is the mean of ``1 + dispersion * mu`` over the entries, weighted by their expected counts mu
    (L F^T); that of one feature and one topic if topics do not overlap.
    """
    L, F = np.asarray(L, np.float64), np.asarray(F, np.float64)
    squares = float((dense.cross(L, L) * dense.cross(F, F)).sum())
    total = float((L.sum(axis=0) * F.sum(axis=0)).sum())
    return 1 + max(dispersion, 0.0) * squares / total if total else 1.0


def _cross(counts: CountMatrix, L: Array, F: Array, weights: Array) -> Array:
    """Return ``sum_j w_j x_ij m_ij`` with m = L F^T, (n,)."""
    sums_of_rows = np.zeros(counts.shape[0])
    for first, indptr, indices, data in counts.chunks():
        row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        values = np.empty(len(data))
        for start in range(0, len(data), _PIECE):
            part = slice(start, start + _PIECE)
            mu = dense.dots(L, first + row[part], F, indices[part])
            values[part] = mu * data[part] * weights[indices[part]]
        sums_of_rows[first : first + len(indptr) - 1] = np.bincount(row, values, len(indptr) - 1)
    return sums_of_rows


def _products(one: CountMatrix, other: CountMatrix, weights: Array) -> Array:
    """Return ``sum_j w_j x_ij y_ij``, (n,)."""
    products = np.zeros(one.shape[0])
    for rows in one.chunks():
        x = rows.matrix(one.shape[1]).astype(np.float64)
        stop = rows.first + x.shape[0]
        for again in other.chunks(rows.first, stop):
            y = again.matrix(one.shape[1]).astype(np.float64)
            at = again.first - rows.first
            products[again.first : again.first + y.shape[0]] = (
                x[at : at + y.shape[0]].multiply(y) @ weights
            )
    return products
