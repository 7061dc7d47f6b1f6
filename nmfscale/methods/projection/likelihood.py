"""Log-likelihoods, deviance and KKT residuals of counts at given factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike
from ...counts.base import CountMatrix
from ...counts.names import of_features, of_samples, same_topics, warn_of_surplus
from ...counts.structure import non_negative
from ...engine.threads import resolve_threads
from ...kernels.functions import log_gamma, xlogy
from ...readers.open import as_counts
from ..factors import LEAST
from ..weights.measured import Measured
from .transform import log_mu_rows

Array = NDArray[Any]


def loglik_poisson(
    X: CountsLike, L: ArrayLike, F: ArrayLike, *, n_threads: int | None = None
) -> Array:
    """Poisson log-likelihood of each sample.

    Parameters
    ----------
    X : counts of shape (n_samples, n_features)
        Array, sparse matrix, AnnData, DataFrame, path or Counts. Sums are over the measured entries
        (``counts.measured``), as after an outer join by :func:`nmfscale.concat`.
    L : array-like of shape (n_samples, n_components)
        Loadings, non-negative.
    F : array-like of shape (n_features, n_components)
        Factors, non-negative. The rows of L and F, if they are DataFrames, are matched with the
        samples and features of `X` by name.
    n_threads : int, default=None
        Threads, as in :class:`nmfscale.PoissonNMF`.

    Returns
    -------
    ndarray of shape (n_samples,), float64
        ``sum_j x_ij log mu_ij - mu_ij - log x_ij!`` with ``mu = L F^T``. An expected count of zero
        counts as 1e-30, so that the result is finite.

    Raises
    ------
    ValueError
        If the shapes do not fit, a value is negative or not finite, or L or F lacks a name of `X`.

    Warns
    -----
    UserWarning
        If F has features that `X` lacks: they are left out, as features that were not measured.

    Examples
    --------
    >>> from nmfscale.likelihood import loglik_poisson
    >>> loglik_poisson([[2, 0], [1, 3]], [[1.0], [2.0]], [[1.0], [1.0]]).round(4)
    array([-2.6931, -3.0192])
    """
    counts, L, F = checked_factors(X, L, F)
    log_mu = _log_mu(counts, L, F, n_threads)
    return log_mu - _sizes(counts, L, F) - counts.row_log_factorials


def loglik_multinomial(
    X: CountsLike, L: ArrayLike, F: ArrayLike, *, n_threads: int | None = None
) -> Array:
    """Multinomial log-likelihood of each sample given its total.

    Parameters
    ----------
    X, L, F, n_threads
        As in :func:`loglik_poisson`; L and F may be scaled in any way, see Notes.

    Returns
    -------
    ndarray of shape (n_samples,), float64
        ``log t_i! - sum_j log x_ij! + sum_j x_ij log p_ij`` with ``p_ij = mu_ij / sum_j mu_ij``; 0
        for empty samples.

    Raises
    ------
    ValueError
        As in :func:`loglik_poisson`.

    Notes
    -----
    By Lemma 1 of Carbonetto et al. the Poisson log-likelihood is this plus
    ``log Poisson(t_i; s_i)``.

    Examples
    --------
    >>> from nmfscale.likelihood import loglik_multinomial
    >>> loglik_multinomial([[2, 0], [1, 3]], [[1.0], [2.0]], [[1.0], [1.0]]).round(4)
    array([-1.3863, -1.3863])
    """
    counts, L, F = checked_factors(X, L, F)
    log_mu = _log_mu(counts, L, F, n_threads)
    sizes = np.maximum(_sizes(counts, L, F), LEAST)
    totals = counts.row_totals
    return log_mu - xlogy(totals, sizes) + log_gamma(totals + 1) - counts.row_log_factorials


def deviance_poisson(
    X: CountsLike, L: ArrayLike, F: ArrayLike, *, n_threads: int | None = None
) -> Array:
    """Poisson deviance of each sample.

    Parameters
    ----------
    X, L, F, n_threads
        As in :func:`loglik_poisson`.

    Returns
    -------
    ndarray of shape (n_samples,), float64
        ``2 sum_j (x_ij log(x_ij / mu_ij) - x_ij + mu_ij)``.

    Raises
    ------
    ValueError
        As in :func:`loglik_poisson`.

    Examples
    --------
    >>> from nmfscale.likelihood import deviance_poisson
    >>> deviance_poisson([[2, 0], [1, 3]], [[1.0], [2.0]], [[1.0], [1.0]]).round(4)
    array([2.7726, 1.0465])
    """
    counts, L, F = checked_factors(X, L, F)
    log_mu = _log_mu(counts, L, F, n_threads)
    return 2 * (counts.row_x_log_x - log_mu - counts.row_totals + _sizes(counts, L, F))


def kkt_residuals(X: CountsLike, L: ArrayLike, F: ArrayLike) -> tuple[Array, Array]:
    """Residuals of the first-order (KKT) conditions of Poisson NMF; they vanish at an optimum.

    Parameters
    ----------
    X, L, F
        As in :func:`loglik_poisson`.

    Returns
    -------
    of_L : ndarray of shape (n_samples, n_components)
        ``L * ((1 - U) F)`` with ``U = X / (L F^T)`` (Carbonetto et al., Appendix A.4).
    of_F : ndarray of shape (n_features, n_components)
        ``F * ((1 - U)^T L)``.

    Raises
    ------
    ValueError
        As in :func:`loglik_poisson`.

    Notes
    -----
    They are in units of counts; the history of a fit divides them by the mean total of a sample (or
    feature).

    Examples
    --------
    >>> from nmfscale.likelihood import kkt_residuals
    >>> of_L, of_F = kkt_residuals([[2, 0], [1, 3]], [[1.0], [2.0]], [[1.0], [1.0]])
    >>> of_L.ravel()
    array([0., 0.])
    >>> of_F.ravel()
    array([0., 0.])
    """
    counts, L, F = checked_factors(X, L, F)
    measured = Measured.of(counts)
    of_L = L * _column_sums(counts, F)
    toward_F = np.zeros_like(F)
    for first, indptr, columns, data in counts.chunks():
        rows = np.repeat(np.arange(first, first + len(indptr) - 1), np.diff(indptr))
        ratio = data / np.maximum((L[rows] * F[columns]).sum(axis=1), LEAST)
        np.subtract.at(of_L, rows, L[rows] * F[columns] * ratio[:, None])
        np.add.at(toward_F, columns, L[rows] * ratio[:, None])
    total = L.sum(axis=0) if measured is None else measured.totals(L)
    return of_L, F * (total - toward_F)


def _log_mu(counts: CountMatrix, L: Array, F: Array, n_threads: int | None) -> Array:
    n_threads = resolve_threads(n_threads, counts.nnz * F.shape[1])
    return log_mu_rows(counts, L, F, n_threads=n_threads)


def checked_factors(X: Any, L: ArrayLike, F: ArrayLike) -> tuple[CountMatrix, Array, Array]:
    """Return counts and factors in float64 with matching shapes, matched by name."""
    counts = as_counts(X, integer="allow")
    warn_of_surplus(F, counts.feature_names, "F")
    factors = [
        non_negative(factor, name, (n_rows, None)).astype(np.float64, order="C", copy=False)
        for name, factor, n_rows in (
            ("L", of_samples(L, counts, "L"), counts.shape[0]),
            ("F", same_topics(L, of_features(F, counts, "F")), counts.shape[1]),
        )
    ]
    if factors[0].shape[1] != factors[1].shape[1]:
        raise ValueError(
            f"L has {factors[0].shape[1]} components and F has {factors[1].shape[1]}; "
            "they must agree."
        )
    return counts, factors[0], factors[1]


def _column_sums(counts: CountMatrix, F: Array) -> Array:
    """Return the column sums (K,) of F, or those (n, K) over the measured features of samples."""
    measured = Measured.of(counts)
    sums: Array = F.sum(axis=0) if measured is None else measured.sums(F)
    return sums


def _sizes(counts: CountMatrix, L: Array, F: Array) -> Array:
    """Return expected totals of the rows, (n,), over their measured features."""
    sizes: Array = (L * _column_sums(counts, F)).sum(axis=1)
    return sizes
