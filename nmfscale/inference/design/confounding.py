"""Whether conditions of samples can be told from their batches: texts of warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown

Array = NDArray[Any]
# Cramér's V from which batches and conditions nearly coincide: see the notes of `batch_effects`.
_COINCIDE = 0.9


def cramers_v(table: Array) -> float:
    """Return Cramér's V of a table of counts, 0 to 1; 0 if it has one row or column."""
    table = table[table.any(axis=1)][:, table.any(axis=0)].astype(np.float64)
    if min(table.shape) < 2:
        return 0.0
    rows, columns, n = table.sum(axis=1), table.sum(axis=0), table.sum()
    expected = rows[:, None] * columns / n
    squares = float(((table - expected) ** 2 / expected).sum())
    return float(np.sqrt(squares / n / (min(table.shape) - 1)))


def apart(table: Array) -> list[Array]:
    """Return sets of columns that no rows connect: columns with a row in common are in one set."""
    from scipy.sparse.csgraph import connected_components

    there = (table > 0).astype(np.int64)
    together = there.T @ there > 0
    n, of_column = connected_components(together, directed=False)
    return [np.flatnonzero(of_column == part) for part in range(n)]


def confounded(table: Array, conditions: tuple[Any, ...]) -> str | None:
    """Return what is wrong with batches and conditions, from the sizes (B, C) of both; or None."""
    parts = apart(table)
    if len(parts) > 1:
        one, other = (shown(conditions[part[0]]) for part in parts[:2])
        return (
            f"conditions {one} and {other} have no batch in common: their differences cannot be "
            "told from those of batches, and efficiencies remove both. Use batches that have "
            "samples of both conditions, such as runs in place of donors, or fit without batch=."
        )
    v = cramers_v(table)
    if v >= _COINCIDE:
        return (
            f"batches and conditions nearly coincide (Cramér's V {v:.2f}): most of "
            "what differs between conditions differs between batches, and efficiencies remove it."
        )
    return None
