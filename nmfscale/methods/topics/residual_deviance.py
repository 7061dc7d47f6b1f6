"""Residual deviance by sample and by feature, in one pass over the counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.row_ranges import RowRange
from ...kernels.functions import xlogy
from ..factors import LEAST
from ..weights.measured import Measured, SampleGroups

Array = NDArray[Any]
# Number of products of loadings and factors in memory at a time.
_PRODUCTS = 1 << 22


class ResidualDeviance:
    """Adds up ``2 (x log(x / mu) - x + mu)`` by sample and by feature.

    Expected counts are scaled to the total t_i of each sample: ``mu_ij = t_i p_ij`` with
    ``p_ij = mu'_ij / sum_j mu'_ij`` and ``mu' = L F^T``, times the efficiencies of features. So the
    deviance of a sample is that of a multinomial model, for every scale of L and F.

    Parameters
    ----------
    L, F : ndarray of shape (n, K) and (m, K)
        Factors; L of consecutive rows of the counts.
    row_totals : ndarray of shape (n,)
        Sums of these rows.
    first : int, default=0
        Number of the first of these rows.
    groups : SampleGroups or None
        Efficiencies of features in the samples, or a mask of those that were measured in them; None
        if all are 1.

    Attributes
    ----------
    of_samples : ndarray of shape (n,)
        Half the deviance of each sample, apart from rounding.
    of_features : ndarray of shape (m,)
        The same of each feature in these samples, plus its count in them.
    """

    def __init__(
        self, L: Array, F: Array, row_totals: Array, first: int = 0,
        groups: SampleGroups | None = None,
    ):  # fmt: skip
        L, F = (np.ascontiguousarray(factor, np.float64) for factor in (L, F))
        self._F = F
        if groups is None:
            groups = Measured.everything((len(L), len(F)))
        self._groups = groups.groups
        self._values = None if isinstance(groups, Measured) else groups.values
        sizes = (L * groups.sums(F)).sum(axis=1)
        scale = np.divide(row_totals, sizes, out=np.zeros(len(L)), where=sizes > 0)
        self._L = L * scale[:, None]
        self._products = _PRODUCTS // F.shape[1] + 1
        self.of_features = np.zeros(len(F))
        for number, values in enumerate(groups.values):
            of_group = self._L[groups.groups == number].sum(axis=0)
            self.of_features += values * (F * of_group).sum(axis=1)
        self.of_samples = np.where(sizes > 0, 0.0, -row_totals)
        self._first = first

    def add(self, piece: RowRange) -> None:
        """Add some rows of the counts, sorted by column. Rows must come in their order."""
        for part in piece.parts(self._products):
            first = part.first - self._first
            rows = np.repeat(np.arange(first, first + len(part.indptr) - 1), np.diff(part.indptr))
            x = part.data.astype(np.float64)
            mu = (self._L[rows] * self._F[part.indices]).sum(axis=1)
            if self._values is not None:
                mu *= self._values[self._groups[rows], part.indices]
            terms = xlogy(x, x / np.maximum(mu, LEAST))
            # one addition after the other, so that sums do not depend on the pieces
            np.add.at(self.of_samples, rows, terms)
            np.add.at(self.of_features, part.indices, terms)
