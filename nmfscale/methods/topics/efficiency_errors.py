"""What errors of the efficiencies of batches add to the errors of regressions of features.

Efficiencies of a feature are estimated from its counts, together with its frequencies in the
topics. Where topics differ between batches, a high frequency in a topic and a high efficiency in
its batches explain the same counts. With the information T of the counts on log frequencies, and
the counts g_bk of topic k in batch b, the information on both is::

    T        g_b
    g_b'     a + sum_k g_bk

with the shape a of the prior of efficiencies. The covariance of log frequencies is the inverse of
``T - P``, ``P = sum_b g_b g_b' / (a + sum_k g_bk)``, which is positive by Cauchy's inequality. If
efficiencies are those of a part of the counts that is c times as large, it is that of two steps::

    V0 + V0 (P + c P (T - c P)^-1 P) V0,  V0 = T^-1,  P = sum_b g_b g_b' / (a + c sum_k g_bk)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.decompositions import inverse
from ...kernels.functions import log1p

Array = NDArray[Any]
_TINY = float(np.finfo(float).tiny)


def with_errors_of_efficiencies(
    numbers: Array, curvature: Array, weights: Array | None, pseudocounts: tuple[float, float],
    shape: float, part: float,
) -> Array:  # fmt: skip
    """Return the numbers of regressions with errors and likelihood ratios that allow for e.

    Parameters
    ----------
    numbers : array of shape (m, 5 K + 2)
        What the kernel `contrasts` writes of m features, with efficiencies that are known.
    curvature : array of shape (m, B, K (K + 1) / 2)
        Sums of ``x a a' / mu^2`` of the counts of each batch, packed.
    weights : array of shape (K, K), or None
        As for the kernel.
    pseudocounts : tuple of float
        Those of the errors, and those of the likelihood ratios.
    shape, part : float
        The shape a of the prior, and c, the counts of the fit in relation to those of the test.
    """
    out, K = numbers.copy(), _size(curvature.shape[2])
    f, others = numbers[:, :K], numbers[:, K : 2 * K].astype(np.intp)
    first, second = np.tril_indices(K)
    by_batch = np.zeros((*curvature.shape[:2], K, K))
    by_batch[:, :, first, second] = by_batch[:, :, second, first] = curvature
    by_batch *= f[:, None, :, None] * f[:, None, None, :]
    known, own = _covariances(by_batch, pseudocounts[0], shape, part)
    shares = _shares(f, weights, known, own)
    least = numbers[:, 4 * K : 5 * K]
    if weights is not None:
        out[:, 2 * K : 3 * K] /= np.sqrt(shares)
        known, own = _covariances(by_batch, pseudocounts[1], shape, part)
        out[:, 4 * K : 5 * K] = least * _shares(f, weights, known, own)
        return out
    nearest = np.take_along_axis(shares, others[:, :, None], axis=2)[:, :, 0]
    out[:, 2 * K : 3 * K] /= np.sqrt(nearest)
    known, own = _covariances(by_batch, pseudocounts[1], shape, part)
    shares = _shares(f, None, known, own)
    # ratios of other pairs are not known, but bounds: those of the kernel for self-concordance
    squares = f[:, :, None] * known * f[:, None, :]
    diagonal = np.diagonal(squares, axis1=1, axis2=2)
    variances = diagonal[:, :, None] + diagonal[:, None, :] - 2 * squares
    wald = np.abs(f[:, :, None] - f[:, None, :]) / np.sqrt(np.maximum(variances, _TINY))
    ratios = np.maximum(least[:, :, None], 2 * (wald - log1p(wald))) * shares
    ratios[:, range(K), range(K)] = np.inf
    out[:, 4 * K : 5 * K] = ratios.min(axis=2)
    return out


def _size(n_packed: int) -> int:
    """Return K, the size of matrices of which K (K + 1) / 2 numbers are stored."""
    return int((np.sqrt(8 * n_packed + 1) - 1) / 2 + 0.5)


def _covariances(by_batch: Array, pseudocount: float, shape: float, part: float) -> Array:
    """Return the covariances (2, m, K, K) of log frequencies if e is known, and if it is not."""
    whole, g = by_batch.sum(axis=1), by_batch.sum(axis=3)
    whole[:, range(whole.shape[1]), range(whole.shape[1])] += pseudocount
    divisor = np.maximum(shape + part * g.sum(axis=2), _TINY)
    P = dense.products(np.ascontiguousarray((g / divisor[:, :, None]).transpose(0, 2, 1)), g)
    known, left = inverse(whole)[0], inverse(whole - part * P)[0]
    added = P + part * dense.products(dense.products(P, left), P)
    return np.stack([known, known + dense.products(dense.products(known, added), known)])


def _shares(f: Array, weights: Array | None, known: Array, own: Array) -> Array:
    """Return shares of known efficiencies in variances of log ratios: (m, K), or (m, K, K)."""
    if weights is None:
        pairs = []
        for V in (known, own):
            diagonal = np.diagonal(V, axis1=1, axis2=2)
            pairs.append(diagonal[:, :, None] + diagonal[:, None, :] - 2 * V)
        return np.divide(pairs[0], pairs[1], out=np.ones_like(own), where=pairs[1] > 0)
    out = np.ones((len(f), len(weights)))
    for k, of_others in enumerate(weights):
        parts = f * of_others
        c = -parts / np.maximum(parts.sum(axis=1, keepdims=True), _TINY)
        c[:, k] = 1.0
        variances = [
            (c * dense.products(V, c[:, :, None])[:, :, 0]).sum(axis=1) for V in (known, own)
        ]
        np.divide(variances[0], variances[1], out=out[:, k], where=variances[1] > 0)
    return out
