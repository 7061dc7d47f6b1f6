"""The nearest of many samples in topic space, in blocks: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.functions import log

Array = NDArray[Any]
ProportionMetric: TypeAlias = Literal["hellinger", "jensen-shannon"]
# Samples, and queries, whose distances are in memory at a time.
_SAMPLES, _QUERIES = 8192, 128


def nearest_rows(
    rows: Array, queries: Array, n_neighbors: int, metric: ProportionMetric, own: Array | None
) -> tuple[list[Array], list[Array]]:
    """Return the numbers of the nearest rows (n, K) of each query (q, K), and their distances.

    Rows and queries are proportions; rows of 0 are not near anything. `own` (q,) are the numbers of
    the queries among the rows, which are left out. Of equal distances, the first row counts.
    """
    distances = _METRICS[metric]
    numbers: list[Array] = []
    nearest: list[Array] = []
    for begin in range(0, len(queries), _QUERIES):
        some = queries[begin : begin + _QUERIES]
        best = [(np.empty(0, np.int64), np.empty(0)) for _ in some]
        for first in range(0, len(rows), _SAMPLES):
            block = rows[first : first + _SAMPLES]
            there = np.flatnonzero(block.any(axis=1))
            of_block = distances(block[there], some)
            for i, (at, values) in enumerate(best):
                mine = of_block[:, i]
                near = np.ones(len(there), bool)
                if own is not None:
                    near &= there + first != own[begin + i]
                if len(values) == n_neighbors:
                    near &= mine < values[-1]
                at = np.concatenate([at, there[near] + first])
                values = np.concatenate([values, mine[near]])
                order = np.argsort(values, kind="stable")[:n_neighbors]
                best[i] = at[order], values[order]
        for at, values in best:
            numbers.append(at)
            nearest.append(values)
    return numbers, nearest


def _hellinger(rows: Array, queries: Array) -> Array:
    """Return Hellinger distances (n, q), between 0 and 1."""
    affinities = dense.product(np.sqrt(rows), np.sqrt(queries).T)
    return np.sqrt(np.maximum(1.0 - affinities, 0.0))


def _jensen_shannon(rows: Array, queries: Array) -> Array:
    """Return the square roots of Jensen-Shannon divergences in nats (n, q)."""
    of_rows, of_queries = _entropies(rows), _entropies(queries)
    divergences = np.empty((len(rows), len(queries)))
    for i, query in enumerate(queries):
        divergences[:, i] = _entropies((rows + query) / 2) - (of_rows + of_queries[i]) / 2
    return np.sqrt(np.maximum(divergences, 0.0))


def _entropies(rows: Array) -> Array:
    """Return the entropy of each row of proportions, in nats."""
    entropies: Array = -(rows * log(np.where(rows > 0, rows, 1.0))).sum(axis=1)
    return entropies


_METRICS: dict[ProportionMetric, Callable[[Array, Array], Array]] = {
    "hellinger": _hellinger, "jensen-shannon": _jensen_shannon,
}  # fmt: skip


def mean_log_lifts(rows: Array, lifts: Array, smoothing: float) -> Array:
    """Return the mean log2 of the lifts of words in samples (n,).

    `lifts` (K, w) are frequencies of words in topics, divided by their overall frequencies; `rows`
    (n, K) are proportions. A share `smoothing` of each sample has the overall frequencies.
    """
    scores = np.empty(len(rows))
    for first in range(0, len(rows), _SAMPLES):
        block = slice(first, first + _SAMPLES)
        smoothed = (1 - smoothing) * dense.product(rows[block], lifts) + smoothing
        scores[block] = log(smoothed).mean(axis=1)
    return scores / float(log(np.array([2.0]))[0])
