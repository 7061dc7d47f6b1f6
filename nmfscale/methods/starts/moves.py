"""Moves that leave a local optimum of a Poisson NMF: one topic less, and another one more.

Two fits of the same counts that end in different optima usually agree on most topics: one topic of
the first is two in the second, and another pair of topics is one. A move changes exactly this, and
a fit from the changed factors decides whether it pays (split and merge EM, Ueda et al. 2000). There
are two ways to have one topic less, and two to have one more.

Candidates are ranked on a sample of rows, from the expected counts of each topic,
``z_ijk = x_ij l_ik f_jk / mu_ij``:

- Merging topics a and b loses at most ``sum_ij (z_ija + z_ijb) log(mu_ij,ab / mu'_ij)``, where
  mu_ab is the contribution of both topics to mu, and mu' that of the merged topic.
- Deleting topic k loses at most ``sum_ij x_ij log(mu_ij / mu'_ij)``, where each row divides the
  loading of the topic among its other topics, most of it in proportion to their loadings.
- Topic k is split by the sign of the scores of the rows in the leading direction of a
  correspondence analysis of z_k. The split gains at least the mutual information, times the total
  count, between the half of a row and its features.
- The topic to add has the frequencies of the rows with the largest deviance per count. It gains at
  least ``sum_ij x_ij log(mu'_ij / mu_ij)``, where mu' has a share of the new topic in each row.

All are bounds: the optimum of the likelihood near the changed factors is at least as high. They are
too weak to accept or refuse a move, but they find the moves that are worth a fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ...counts.base import CountMatrix
from ...kernels import dense
from ...kernels.functions import log, xlogy
from ..factors import LEAST, MINVAL, Array

# Rows are drawn until they hold this many nonzero counts, and at least this many rows (or all).
MOST_NONZEROS, FEWEST_ROWS = 200_000, 100
# Memory for the drawn rows and what is computed of them, in bytes of each nonzero count: the
# products of all topics, and some temporary arrays.
BYTES_A_TOPIC, BYTES_A_COUNT = 16, 120
# Nonzero counts of these rows from which losses of merges and deletions are computed.
MOST_OF_LOSSES = 50_000
# Ways to have one topic less that are candidates: pairs to merge, and topics to delete.
MOST_REMOVED = 10
# Share of a deleted loading that a row divides equally among all other topics.
_EQUAL = 0.05
# Share of the counts, in the rows that are explained worst, from which a topic is added.
_WORST = 0.05
# Share of each row with which an added topic starts.
_START_SHARE = 0.1
# Iterations of the power method that finds the direction of a split.
_POWER_STEPS = 8
# Counts that are added to each feature of a split topic in the proportion of both halves.
_PSEUDO_COUNT = 1.0


class Move(NamedTuple):
    """A topic less, in one of two ways, and a topic more, in one of two ways.

    `removed` is a pair of topics (a, b), which are merged in place a, or one topic (b,), which is
    deleted. Place b is then free. Topic `split` is divided between its place and b; `shares` (m, 2)
    are the parts of each of its features, which sum to one. If `split` is a, the merged topic is
    divided again, in another direction. If `split` is None, a topic with frequencies `shares` (m,)
    is added in place b.
    """

    removed: tuple[int, ...]
    split: int | None
    shares: Array

    @property
    def kind(self) -> str:
        """Name of the move."""
        less, more = ("delete", "merge")[len(self.removed) - 1], "add"
        return f"{less}-{more if self.split is None else 'split'}"


def drawn_rows(counts: CountMatrix, rng: np.random.RandomState, most: int, fewest: int) -> Array:
    """Return the sorted numbers of at least `fewest` random rows with about `most` nonzeros."""
    order = rng.permutation(counts.shape[0])
    reached = int(np.searchsorted(np.cumsum(counts.row_nnz[order]), most))
    drawn: Array = np.sort(order[: max(reached + 1, fewest)])
    return drawn


class _Sample:
    """Drawn rows of the counts, with the products l_ik f_jk at their nonzeros, (K, nnz)."""

    def __init__(
        self, counts: CountMatrix, L: Array, F: Array, weights: Array | None,
        rng: np.random.RandomState,
    ):  # fmt: skip
        drawn = drawn_rows(counts, rng, MOST_NONZEROS, FEWEST_ROWS)
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
        self.mu = np.maximum(self.products.sum(axis=0), LEAST)
        self.counts, self.ratio = x, x / self.mu

    def spaced(self) -> tuple[int, slice]:
        """Return every how many nonzero counts losses are computed, and their slice."""
        every = max(1, -(-len(self.ratio) // MOST_OF_LOSSES))
        return every, slice(None, None, every)

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
    every, some = sample.spaced()
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


def delete_losses(sample: _Sample) -> list[tuple[float, int]]:
    """Return (loss, k) of the deletion of each of at least two topics, smallest first.

    Of many nonzero counts, regularly spaced ones are used.
    """
    u = sample.F.sum(axis=0)
    amounts = sample.L * u
    size, K = amounts.sum(axis=1), len(u)
    frequencies = sample.F / np.maximum(u, MINVAL)
    every, some = sample.spaced()
    rows, columns, before = sample.rows[some], sample.columns[some], sample.mu[some]
    losses = []
    for k in range(K):
        rest = size - amounts[:, k]
        # loadings rise by the factor `scale`, except for a part that all topics get
        equal = np.where(rest > 0, _EQUAL * amounts[:, k], amounts[:, k])
        scale = np.divide(size - equal, rest, out=np.zeros(len(rest)), where=rest > 0)
        others = (frequencies.sum(axis=1) - frequencies[:, k]) / (K - 1)
        mu = scale[rows] * (before - sample.products[k, some]) + equal[rows] * others[columns]
        lost = sample.counts[some] * log(before / np.maximum(mu, LEAST))
        losses.append((every * float(lost.sum()), k))
    return sorted(losses)


def added(sample: _Sample) -> tuple[float, Array]:
    """Return a lower bound of the gain of an added topic, and its frequencies (m,)."""
    n, m = sample.shape
    terms = sample.counts * log(np.maximum(sample.ratio, LEAST))
    deviance = np.bincount(sample.rows, terms, n)
    totals = np.bincount(sample.rows, sample.counts, n)
    order = np.argsort(-deviance / np.maximum(totals, LEAST), kind="stable")
    n_worst = int(np.searchsorted(np.cumsum(totals[order]), _WORST * totals.sum())) + 1
    worst = np.isin(sample.rows, order[:n_worst])
    frequencies: Array = np.bincount(sample.columns[worst], sample.counts[worst], m)
    frequencies = frequencies + _PSEUDO_COUNT * sample.F.sum(axis=1) / max(sample.F.sum(), LEAST)
    frequencies /= frequencies.sum()
    size = (sample.L * sample.F.sum(axis=0)).sum(axis=1)
    new = size[sample.rows] * frequencies[sample.columns] / sample.mu
    gains = sample.counts * log(1 - _START_SHARE + _START_SHARE * new)
    return float(gains.sum()), frequencies


def _times(matrix: sp.csr_array, x: Array) -> Array:
    product: Array = dense.of_sparse(matrix, x[:, None])[:, 0]
    return product


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
        Ways to have one topic less and ways to have one more are each ranked by their bounds, and
        moves by the product of both ranks, from 1. A merged topic is only divided again after all
        other splits. Empty if there are fewer than two topics.
    """
    K = L.shape[1]
    if K < 2 or counts.shape[0] < 2:
        return []
    sample = _Sample(counts, L, F, weights, rng)
    less: list[tuple[float, tuple[int, ...]]] = [
        *((loss, (a, b)) for loss, a, b in merge_losses(sample)),
        *((loss, (k,)) for loss, k in delete_losses(sample)),
    ]
    less = sorted(less)[:MOST_REMOVED]
    more: list[tuple[float, int | None, Array]] = []
    for k in range(K):
        gain, shares = halved(sample.expected(k), rng)
        more.append((gain, k, shares))
    gain, shares = added(sample)
    more = sorted([*more, (gain, None, shares)], key=lambda ranked_move: -ranked_move[0])
    ranked: list[tuple[int, int, Move]] = []
    for p, (_, removed) in enumerate(less):
        ways = [(split, shares) for _, split, shares in more if split not in removed]
        if p == 0 and len(removed) == 2:
            ways.append((removed[0], halved(sample.expected(*removed), rng)[1]))
        for s, (split, shares) in enumerate(ways):
            ranked.append(((p + 1) * (s + 1), p, Move(removed, split, shares)))
    return [move for *_, move in sorted(ranked, key=lambda ranked_move: ranked_move[:2])]


def moved(L: Array, F: Array, move: Move) -> tuple[Array, Array]:
    """Return L (n, K) and F (m, K) after a move; every sample keeps its expected total."""
    b, k = move.removed[-1], move.split
    L, F = L.copy(), F.copy()
    u = np.maximum(F.sum(axis=0, dtype=np.float64), MINVAL)
    if len(move.removed) == 2:
        a = move.removed[0]
        amounts = [L[:, topic] * u[topic] for topic in (a, b)]
        sizes = [max(float(topic.sum(dtype=np.float64)), MINVAL) for topic in amounts]
        shares = sum(
            size * F[:, topic] / u[topic] for size, topic in zip(sizes, (a, b), strict=True)
        )
        F[:, a] = shares * (u[a] / sum(sizes))
        L[:, a] = (amounts[0] + amounts[1]) / u[a]
    else:
        _divide_loading(L, u, b)
    if k is None:
        L[:, b] = 0
        size = (L * u).sum(axis=1)
        L *= 1 - _START_SHARE
        F[:, b] = move.shares * u[b]
        L[:, b] = _START_SHARE * size / u[b]
    else:
        # both halves have all loadings of the topic, and together its factors
        split = F[:, k].copy()
        F[:, k], F[:, b] = split * move.shares[:, 0], split * move.shares[:, 1]
        L[:, b] = L[:, k]
    return np.maximum(L, MINVAL), np.maximum(F, MINVAL)


def _divide_loading(L: Array, u: Array, k: int) -> None:
    """Divide the loadings of topic k among the other topics, in place; u (K,) are column sums."""
    loading = L[:, k] * u[k]
    L[:, k] = 0
    rest = (L * u).sum(axis=1)
    equal = np.where(rest > 0, _EQUAL * loading, loading)
    scale = np.divide(rest + loading - equal, rest, out=np.zeros(len(rest)), where=rest > 0)
    L *= scale[:, None]
    L += equal[:, None] / ((len(u) - 1) * u)
    L[:, k] = 0
