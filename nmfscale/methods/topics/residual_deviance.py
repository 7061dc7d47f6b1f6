"""Residual deviance by sample and by feature, in one pass over the counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import RowRange
from ...kernels.functions import xlogy
from ..factors import LEAST

Array = NDArray[Any]
# Number of products of loadings and factors in memory at a time.
_PRODUCTS = 1 << 22


class ResidualDeviance:
    """Adds up ``2 (x log(x / mu) - x + mu)`` by sample and by feature.

    Expected counts are scaled to the total t_i of each sample: ``mu_ij = t_i p_ij`` with
    ``p_ij = mu'_ij / sum_j mu'_ij`` and ``mu' = L F^T``. So the deviance of a sample is that of a
    multinomial model, for every scale of L and F.

    Parameters
    ----------
    L, F : ndarray of shape (n, K) and (m, K)
        Factors; L of consecutive rows of the counts.
    row_totals : ndarray of shape (n,)
        Sums of these rows.
    first : int, default=0
        Number of the first of these rows.
    panel : ndarray of int of shape (n,), default=None
        Panel of each sample; None if all features were measured in all samples.
    measured : ndarray of bool of shape (n_panels, m), default=None
        Features that were measured in each panel; sums are over these.

    Attributes
    ----------
    of_samples : ndarray of shape (n,)
        Half the deviance of each sample, apart from rounding.
    of_features : ndarray of shape (m,)
        The same of each feature in these samples, plus its count in them.
    """

    def __init__(
        self, L: Array, F: Array, row_totals: Array, first: int = 0,
        panel: Array | None = None, measured: Array | None = None,
    ):  # fmt: skip
        L, F = (np.ascontiguousarray(factor, np.float64) for factor in (L, F))
        self._F = F
        if panel is None or measured is None:
            panel, measured = np.zeros(len(L), np.int64), np.ones((1, len(F)), bool)
        # sums of F over the features of each panel
        sums = np.array([F[there].sum(axis=0) for there in measured])
        sizes = (L * sums[panel]).sum(axis=1)
        scale = np.divide(row_totals, sizes, out=np.zeros(len(L)), where=sizes > 0)
        self._L = L * scale[:, None]
        self._products = _PRODUCTS // F.shape[1] + 1
        self.of_features = np.zeros(len(F))
        for number, there in enumerate(measured):
            of_panel = self._L[panel == number].sum(axis=0)
            self.of_features += there * (F * of_panel).sum(axis=1)
        self.of_samples = np.where(sizes > 0, 0.0, -row_totals)
        self._first = first

    def add(self, piece: RowRange) -> None:
        """Add some rows of the counts, sorted by column. Rows must come in their order."""
        for part in piece.parts(self._products):
            first = part.first - self._first
            rows = np.repeat(np.arange(first, first + len(part.indptr) - 1), np.diff(part.indptr))
            x = part.data.astype(np.float64)
            mu = (self._L[rows] * self._F[part.indices]).sum(axis=1)
            terms = xlogy(x, x / np.maximum(mu, LEAST))
            # one addition after the other, so that sums do not depend on the pieces
            np.add.at(self.of_samples, rows, terms)
            np.add.at(self.of_features, part.indices, terms)
