"""Counts of features in samples that share a label."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import CountMatrix

Array = NDArray[Any]


def totals_of_labels(counts: CountMatrix, labels: Array, n_labels: int) -> Array:
    """Return the counts (m, n_labels) of each feature in the samples of each label.

    `labels` (n,) are numbers from 0; samples with a negative one are left out.
    """
    totals = np.zeros(counts.shape[1] * n_labels)
    # In pieces: a product of sparse matrices would copy the counts to float64. Entries are added in
    # their order, whatever the pieces.
    for first, indptr, indices, data in counts.chunks():
        label = np.repeat(labels[first : first + len(indptr) - 1], np.diff(indptr))
        inside = label >= 0
        np.add.at(totals, indices[inside].astype(np.int64) * n_labels + label[inside], data[inside])
    return totals.reshape(counts.shape[1], n_labels)
