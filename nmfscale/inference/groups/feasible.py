"""Which zeros a table may have and still have a balance, decided by maximum flows.

A table (T, R) with row sums R/T, column sums 1 and entries only where `support` is True exists if
and only if a flow of T R exists from rows that supply R each to columns that demand T each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def zeros_to_spare(support: Array) -> Array:
    """Whether tables (N, T, R) have so few zeros that a balance exists for certain, (N,).

    Rows whose entries lie within s columns have at least R - s zeros. If for every s fewer than a
    share s/R of the rows have this many zeros, a flow exists.
    """
    _, T, R = support.shape
    zeros = R - support.sum(axis=2)
    spare = np.ones(len(support), bool)
    for s in range(1, R):
        spare &= (zeros >= R - s).sum(axis=1) * R < s * T
    return spare


def inner_support(support: Array) -> Array | None:
    """Return which entries of a table (T, R) are positive in some flow; None if there is no flow.

    These are the entries with a flow, and those on a cycle of the residual graph.
    """
    from scipy.sparse.csgraph import connected_components

    flow, residual = _flow(support)
    T, R = support.shape
    if flow.sum() < T * R:
        return None
    _, part = connected_components(residual[:-2, :-2], connection="strong")
    inner: Array = support & ((flow > 0) | (part[:T, None] == part[None, T:]))
    return inner


def offending_set(support: Array) -> tuple[Array, Array]:
    """Return rows whose non-zero entries lie in too few columns, and these columns."""
    from scipy.sparse.csgraph import breadth_first_order

    _, residual = _flow(support)
    T, R = support.shape
    reached = np.sort(breadth_first_order(residual, T + R, return_predecessors=False))
    return reached[reached < T], reached[(reached >= T) & (reached < T + R)] - T


def _flow(support: Array) -> tuple[Array, Any]:
    """Return the maximum flow (T, R) and its residual graph over rows, columns, source and sink."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    T, R = support.shape
    capacity = np.zeros((T + R + 2, T + R + 2), np.int32)
    capacity[:T, T : T + R] = support * R  # as much as a row supplies: no limit
    capacity[T + R, :T] = R
    capacity[T : T + R, T + R + 1] = T
    flow = maximum_flow(csr_array(capacity), T + R, T + R + 1).flow.toarray()
    residual = capacity - flow
    residual[:T, T : T + R] = support
    return np.maximum(flow[:T, T : T + R], 0), csr_array(residual > 0)
