"""Errors of held-out counts that loadings of seen counts predict, in squares."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...kernels import dense
from ..factors import Array
from ..weights.weighting import Weights


def squares_of_errors(counts: Any, L: Array, F: Array, weights: Weights) -> tuple[float, float]:
    """Return ``|Y - L F^T|^2`` and ``|Y|^2``, where Y are weighted counts (n, m) in sparse rows.

    ``L F^T`` is not formed: its product with Y is a sum over nonzeros, and its square the sum of
    ``(L^T L) o (F^T F)``.
    """
    F = np.asarray(F, np.float64)
    rows, columns = np.repeat(np.arange(len(L)), np.diff(counts.indptr)), counts.indices
    y = counts.data.astype(np.float64)
    if weights.features is not None:
        y *= weights.features[columns]
    if weights.unit:
        norms = np.sqrt(np.bincount(rows, y * y, len(L)))
        y /= norms[rows]
    square = float((y * y).sum())
    product = sum(float((y * L[rows, k] * F[columns, k]).sum()) for k in range(L.shape[1]))
    gram = float((dense.cross(L) * dense.cross(F)).sum())
    return max(square - 2 * product + gram, 0.0), square
