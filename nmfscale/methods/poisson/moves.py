"""Moves that leave a local optimum of a Poisson NMF: two topics are merged, another one is split.

Two fits of the same counts that end in different optima usually agree on most topics: one topic of
the first is two in the second, and another pair of topics is one. A move changes exactly this, and
a fit from the changed factors decides whether it pays (split and merge EM, Ueda et al. 2000).

Candidates are ranked on a sample of rows, from the expected counts of each topic,
``z_ijk = x_ij l_ik f_jk / mu_ij``:

- Merging topics a and b loses at most ``sum_ij (z_ija + z_ijb) log(mu_ij,ab / mu'_ij)``, where
  mu_ab is the contribution of both topics to mu, and mu' that of the merged topic.
- Topic k is split by the sign of the scores of the rows in the leading direction of a
  correspondence analysis of z_k. The split gains at least the mutual information, times the total
  count, between the half of a row and its features.

Both are bounds: by the argument of EM, the likelihood of all counts changes at least as favourably.
They are too weak to accept or refuse a move, but they find the moves that are worth a fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ...counts.base import CountMatrix
from ...kernels import dense
from ...kernels.functions import log, xlogy
from ..factors import LEAST, MINVAL, Array

# Rows are drawn until they hold this many nonzero counts, and at least this many rows.
MOST_NONZEROS, FEWEST_ROWS = 200_000, 100
# Memory for the drawn rows and what is computed of them, in bytes of each nonzero count: the
# products of all topics, and some temporary arrays.
BYTES_A_TOPIC, BYTES_A_COUNT = 16, 120
# Nonzero counts of these rows from which losses of merges are computed.
MOST_OF_PAIRS = 50_000
# Pairs of topics that are candidates for a merge.
MOST_PAIRS = 10
# Iterations of the power method that finds the direction of a split.
_POWER_STEPS = 8
# Counts that are added to each feature of a split topic in the proportion of both halves.
_PSEUDO_COUNT = 1.0


class Move(NamedTuple):
    """Topics a and b are merged in place a; topic `split` is divided between its place and b.

    If `split` is a, the merged topic is divided again, in another direction. `shares` (m, 2) are
    the parts of each feature of the split topic, which sum to one.
    """

    merged: tuple[int, int]
    split: int
    shares: Array


class _Sample:
    """Drawn rows of the counts, with the products l_ik f_jk at their nonzeros, (K, nnz)."""

    def __init__(
        self, counts: CountMatrix, L: Array, F: Array, weights: Array | None,
        rng: np.random.RandomState,
    ):  # fmt: skip
        order = rng.permutation(counts.shape[0])
        reached = int(np.searchsorted(np.cumsum(counts.row_nnz[order]), MOST_NONZEROS))
        drawn = np.sort(order[: max(reached + 1, FEWEST_ROWS)])
        X = counts.take_rows(drawn)
        self.shape, self.indptr, self.columns = X.shape, X.indptr, X.indices
        self.rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        self.L, self.F = L[drawn].astype(np.float64), F.astype(np.float64)
        self.products = np.empty((L.shape[1], X.nnz))
        for k, product in enumerate(self.products):
            np.multiply(self.L[:, k][self.rows], self.F[:, k][self.columns], out=product)
        x = X.data.astype(np.float64)
        if weights is not None:
            x *= weights[drawn][self.rows]
        self.ratio = x / np.maximum(self.products.sum(axis=0), LEAST)  # x / mu

    def expected(self, *topics: int) -> sp.csr_array:
        """Return the expected counts of some topics together."""
        z = self.ratio * sum(self.products[k] for k in topics)
        return sp.csr_array((z, self.columns, self.indptr), shape=self.shape)


def merge_losses(sample: _Sample) -> list[tuple[float, int, int]]:
    """Return (loss, a, b), a < b, of all pairs of topics, smallest first.

    Of many nonzero counts, regularly spaced ones are used.
    """
    u = sample.F.sum(axis=0)
    amounts = sample.L * u
    sizes = np.maximum(amounts.sum(axis=0), MINVAL)
    every = -(-len(sample.ratio) // MOST_OF_PAIRS)
    some = slice(None, None, every)
    of_rows = np.ascontiguousarray(amounts[sample.rows[some]].T)
    of_columns = np.ascontiguousarray(
        (sizes * sample.F / np.maximum(u, MINVAL))[sample.columns[some]].T
    )
    products = np.ascontiguousarray(sample.products[:, some])
    losses = []
    for b in range(len(u)):
        for a in range(b):
            both = products[a] + products[b]
            one = (of_rows[a] + of_rows[b]) * (of_columns[a] + of_columns[b])
            one /= sizes[a] + sizes[b]
            logs = log(np.maximum(both, LEAST) / np.maximum(one, LEAST))
            losses.append((every * float((sample.ratio[some] * (both * logs)).sum()), a, b))
    return sorted(losses)


def _times(matrix: sp.csr_array, x: Array) -> Array:
    found: Array = dense.of_sparse(matrix, x[:, None])[:, 0]
    return found


def halved(z: sp.csr_array, rng: np.random.RandomState) -> tuple[float, Array]:
    """Return a lower bound of the gain of a split, and the shares (m, 2) of the features.

    Margins are damped by their mean, so that rare features do not determine the direction.
    """
    of_rows, of_columns = z.sum(axis=1), z.sum(axis=0)
    total = of_rows.sum()
    if total <= 0:
        return 0.0, np.full((z.shape[1], 2), 0.5)
    left = 1 / np.sqrt(of_rows + of_rows.mean())
    right = 1 / np.sqrt(of_columns + of_columns.mean())
    row_part, column_part = left * of_rows / total, right * of_columns
    turned = z.T.tocsr()
    direction = rng.standard_normal(z.shape[1])
    for _ in range(_POWER_STEPS):
        scores = left * _times(z, right * direction) - row_part * (column_part * direction).sum()
        direction = right * _times(turned, left * scores)
        direction -= column_part * (row_part * scores).sum()
        direction /= max(np.sqrt((direction * direction).sum()), LEAST)
    scores = left * _times(z, right * direction) - row_part * (column_part * direction).sum()
    halves = np.stack([z.T @ (scores > 0), z.T @ (scores <= 0)], axis=1)
    sizes = halves.sum(axis=0)
    gain = xlogy(halves, halves).sum() - xlogy(of_columns, of_columns).sum()
    gain += xlogy(total, total) - xlogy(sizes, sizes).sum()
    if not sizes.all():
        return 0.0, np.full((z.shape[1], 2), 0.5)
    # a feature without counts in the sample is divided like all counts of the topic
    parts = halves + _PSEUDO_COUNT * sizes / total
    return float(gain), parts / parts.sum(axis=1, keepdims=True)


def ranked_moves(
    counts: CountMatrix, L: Array, F: Array, rng: np.random.RandomState,
    weights: Array | None = None,
) -> list[Move]:  # fmt: skip
    """Return the moves from a fit, the most promising first.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    L, F : ndarray of shape (n, K) and (m, K)
        Factors of the fit.
    rng : RandomState
        Draws rows and the starts of the directions.
    weights : ndarray of shape (n,), default=None
        Weights of the samples.

    Returns
    -------
    list of Move
        Pairs and splits are each ranked by their bounds, and moves by the product of the rank of
        the pair and that of the split, both from 1. A merged topic is only divided again
        after all other splits. Empty if there are fewer than two topics.
    """
    K = L.shape[1]
    if K < 2 or counts.shape[0] < 2:
        return []
    sample = _Sample(counts, L, F, weights, rng)
    pairs = merge_losses(sample)[:MOST_PAIRS]
    splits = [halved(sample.expected(k), rng) for k in range(K)]
    by_gain = sorted(range(K), key=lambda k: -splits[k][0])
    ranked: list[tuple[int, int, Move]] = []
    for p, (_, a, b) in enumerate(pairs):
        others = [k for k in by_gain if k not in (a, b)]
        shares = [splits[k][1] for k in others]
        if p == 0 or not others:
            others, shares = [*others, a], [*shares, halved(sample.expected(a, b), rng)[1]]
        for s, (k, parts) in enumerate(zip(others, shares, strict=True)):
            ranked.append(((p + 1) * (s + 1), p, Move((a, b), k, parts)))
    return [move for *_, move in sorted(ranked, key=lambda each: each[:2])]


def moved(L: Array, F: Array, move: Move) -> tuple[Array, Array]:
    """Return L (n, K) and F (m, K) after a move; every sample keeps its expected total."""
    (a, b), k = move.merged, move.split
    L, F = L.copy(), F.copy()
    u = np.maximum(F.sum(axis=0, dtype=np.float64), MINVAL)
    amounts = [L[:, each] * u[each] for each in (a, b)]
    sizes = [max(float(each.sum(dtype=np.float64)), MINVAL) for each in amounts]
    shares = sum(size * F[:, each] / u[each] for size, each in zip(sizes, (a, b), strict=True))
    F[:, a] = shares * (u[a] / sum(sizes))
    L[:, a] = (amounts[0] + amounts[1]) / u[a]
    # both halves have all loadings of the topic, and together its factors
    split = F[:, k].copy()
    F[:, k], F[:, b] = split * move.shares[:, 0], split * move.shares[:, 1]
    L[:, b] = L[:, k]
    return np.maximum(L, MINVAL), np.maximum(F, MINVAL)
