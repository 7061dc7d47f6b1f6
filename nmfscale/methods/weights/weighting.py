"""Weights of samples and features that multiply the counts, such as TF-IDF."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ...counts.base import CountMatrix
from ...kernels.functions import log
from ..factors import Array

CountWeighting: TypeAlias = Literal["counts", "tf-idf", "documents"]
# Rounding of squared norms in float32.
_UNIT = 1e-5


class Weights(NamedTuple):
    """Weights of samples (n,) and features (m,) that multiply the counts; None means 1.

    With `unit`, samples are then scaled to norm 1.
    """

    samples: Array | None = None
    features: Array | None = None
    unit: bool = False

    @property
    def are_one(self) -> bool:
        """Whether counts are not weighted."""
        return self.samples is None and self.features is None and not self.unit


def weights_of(counts: CountMatrix, word: str) -> Weights:
    """Return the weights that a named option stands for."""
    if word == "counts":
        return Weights()
    rarity = log((1 + counts.shape[0]) / (1 + counts.column_nnz.astype(np.float64))) + 1
    return Weights(None, rarity if word == "tf-idf" else None, unit=True)


def sum_of_squares(counts: CountMatrix, word: str) -> float:
    """Return the sum of squares of weighted counts: of samples of norm 1, their number."""
    if word != "counts":
        return float(np.count_nonzero(counts.row_nnz))
    return math.fsum(counts.row_sums(lambda x: np.asarray(x, np.float64) * x))


def are_unit(counts: CountMatrix) -> bool:
    """Whether all samples have norm 1 (to the precision of float32) without being single counts."""
    if counts.is_integer:
        return False
    squares = counts.row_sums(lambda x: np.asarray(x, np.float64) * x)[counts.row_nnz > 0]
    return bool(np.all(np.abs(squares - 1) < _UNIT))
