"""One more topic for a fit: the topic is split whose samples are explained worst."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...kernels import dense

Array = NDArray[Any]
# Nonzero counts of the samples that choose the topic, and of those that show how to split it; and
# of a piece of them.
_FEW, _MANY, _PIECE = 300_000, 3_000_000, 1 << 16
# Power iterations for every topic, and for the topic that is split.
_ROUNDS, _MORE = 6, 12
# Samples are used for a topic if it has at least this share of their counts.
_SHARE = 0.05
# Largest relative difference of the two topics from the topic that is split.
_TILT = 0.8
# Share of the loadings of the two topics that is the same for both.
_EQUAL = 0.2


def split_topic(counts: CountMatrix, L: Array, F: Array) -> Array:
    """Return topics (m, K + 1): those of a fit L (n, K), F (m, K), one of them in two halves.

    The halves are the last two topics, ``f_k (1 + t)`` and ``f_k (1 - t)``. With loadings ``l_k (1
    + s) / 2`` and ``l_k (1 - s) / 2`` they have the expected counts ``l_k f_k (1 + s t)``. For
    small s and t the log-likelihood rises by ``sum_ij (x_ij / mu_ij - 1) l_ik f_jk s_i t_j``, which
    is largest for the leading singular vectors of the matrix ``(x_ij / mu_ij - 1) sqrt(l_ik
    f_jk)``. The topic with the largest singular value is split. Large counts are represented by
    evenly spaced samples.
    """
    sizes = L * F.sum(axis=0)
    has = sizes > _SHARE * sizes.sum(axis=1, keepdims=True)
    few = _Sample(counts, L, F, np.flatnonzero(counts.row_nnz > 0), _FEW)
    split = int(np.argmax([few.leading(k, has, _ROUNDS)[0] for k in range(F.shape[1])]))
    there = np.flatnonzero(has[:, split] & (counts.row_nnz > 0))
    tilted = _Sample(counts, L, F, there, _MANY).leading(split, has, _MORE)[1]
    f = F[:, split]
    tilt = np.divide(tilted, np.sqrt(f), out=np.zeros(len(f)), where=f > 0)
    scale = np.quantile(np.abs(tilt[f > 0]), 0.95) if (f > 0).any() else 0.0
    tilt = np.clip(_TILT * tilt / max(float(scale), 1e-300), -_TILT, _TILT)
    rest = np.delete(F, split, axis=1)
    return np.column_stack([rest, f * (1 + tilt), f * (1 - tilt)])


def loadings_after_split(L: Array) -> Array:
    """Return loadings (n, K) from which a fit can start, given those of topics after a split.

    Where one of the last two topics has no loadings, it gets a tenth of those of the other one, so
    that steps can raise them.
    """
    L = L.copy()
    halves = L[:, -2:]
    L[:, -2:] = (1 - _EQUAL) * halves + _EQUAL * halves.mean(axis=1, keepdims=True)
    return L


class _Sample:
    """Evenly spaced samples of some rows, with observed over expected counts."""

    def __init__(self, counts: CountMatrix, L: Array, F: Array, rows: Array, n_entries: int):
        n_found = int(counts.row_nnz[rows].sum())
        self.rows = rows[:: max(1, -(-n_found // n_entries))]
        self.L, self.F = L[self.rows], F
        self.ratios = _ratios(counts.take_rows(self.rows), self.L, F)

    def leading(self, k: int, has: Array, n_rounds: int) -> tuple[float, Array]:
        """Return the leading singular value and right singular vector (m,) of topic k.

        `has` (n, K) says which samples are used for which topic.
        """
        there = np.flatnonzero(has[self.rows, k])
        if not there.size:
            return -1.0, np.zeros(len(self.F))
        whole = there.size == len(self.rows)
        ratios = self.ratios if whole else self.ratios[there]
        residuals = _Residuals(ratios, self.L[there, k], self.F[:, k])
        return residuals.leading(_start(self.F[:, k]), n_rounds)


class _Residuals:
    """The matrix ``(x_ij / mu_ij - 1) sqrt(l_i f_j)``: sparse, minus one of rank one."""

    def __init__(self, ratios: sp.csr_array, l_k: Array, f_k: Array):
        self.rows, self.columns = np.sqrt(l_k), np.sqrt(f_k)
        weights = np.repeat(self.rows, np.diff(ratios.indptr)) * self.columns[ratios.indices]
        data = ratios.data * weights
        self.matrix = sp.csr_array((data, ratios.indices, ratios.indptr), ratios.shape)
        self.turned = self.matrix.T.tocsr()

    def leading(self, v: Array, n_rounds: int) -> tuple[float, Array]:
        """Return the singular value and the right singular vector after some power iterations."""
        size = 0.0
        for _ in range(n_rounds):
            u = _times(self.matrix, v) - self.rows * (self.columns * v).sum()
            u /= max(_norm(u), 1e-300)
            v = _times(self.turned, u) - self.columns * (self.rows * u).sum()
            size = _norm(v)
            v = v / max(size, 1e-300)
        return size, v


def _times(matrix: sp.csr_array, x: Array) -> Array:
    found: Array = dense.of_sparse(matrix, x[:, np.newaxis])[:, 0]
    return found


def _norm(x: Array) -> float:
    return float(np.sqrt((x * x).sum()))


def _start(f_k: Array) -> Array:
    start = np.sqrt(f_k) * np.random.default_rng(0).normal(size=len(f_k))
    return np.asarray(start / max(_norm(start), 1e-300))


def _ratios(matrix: sp.csr_array, L: Array, F: Array) -> sp.csr_array:
    """Return observed over expected counts at the nonzero counts."""
    ratios = np.empty(matrix.nnz)
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    for start in range(0, matrix.nnz, _PIECE):
        part = slice(start, start + _PIECE)
        mu = dense.dots(L, row[part], F, matrix.indices[part])
        ratios[part] = matrix.data[part] / np.maximum(mu, 1e-30)
    return sp.csr_array((ratios, matrix.indices, matrix.indptr), matrix.shape)
