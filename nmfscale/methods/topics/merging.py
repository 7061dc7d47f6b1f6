"""Merging of topics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# The topics of each topic after a merger.
Parts = list[list[int]]


def summed(values: Array, parts: Parts) -> Array:
    """Sum merged topics on the last axis (..., K'); unmerged topics stay the same to the bit."""
    kept = [np.sum(values[..., part], axis=-1, dtype=np.float64) for part in parts]
    return np.ascontiguousarray(np.stack(kept, axis=-1).astype(values.dtype))


def averaged(values: Array, parts: Parts, weights: Array) -> Array:
    """Return means (..., K') weighted by topic weights (K,); equal weights where all are 0."""
    kept = []
    for part in parts:
        shares = weights[part] if weights[part].any() else np.ones(len(part))
        kept.append((values[..., part] * (shares / shares.sum())).sum(axis=-1))
    return np.ascontiguousarray(np.stack(kept, axis=-1).astype(values.dtype))


def merged_factors(L: Array, F: Array, parts: Parts) -> tuple[Array, Array]:
    """Return merged L (n, K') and F (m, K') that keep row sums and column sums of ``L F^T``."""
    F_new = averaged(F, parts, L.sum(axis=0, dtype=np.float64))
    sizes, whole = (A.sum(axis=0, dtype=np.float64) for A in (F, F_new))
    L_new = np.empty((len(L), len(parts)), L.dtype)
    for at, part in enumerate(parts):
        share = sizes[part] / whole[at] if len(part) > 1 and whole[at] > 0 else np.ones(len(part))
        L_new[:, at] = (L[:, part] * share).sum(axis=1)
    return L_new, F_new


def merged_dirichlet(topics: Array, parts: Parts, eta: float | Array, expected: Array) -> Array:
    """Return Dirichlet parameters (m, K') of merged topics: the prior eta plus summed counts.

    `eta` is a number, or (m, 1). Without a prior, topics are point estimates, and the result is
    their mean weighted by expected counts (K,).
    """
    if np.max(eta) == 0:
        return averaged(topics, parts, np.maximum(expected, 0))
    return summed(topics, parts) - eta * (np.array([*map(len, parts)]) - 1)
