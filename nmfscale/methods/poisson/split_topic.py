"""One more topic for a fit: the topic is split whose samples are explained worst."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...counts.base import CountMatrix

Array = NDArray[Any]
# Nonzero counts of the samples that are used, and of a piece of them.
_ENTRIES, _PIECE = 1_000_000, 1 << 16
# Power iterations for every topic, and more of them for the topic that is split.
_ROUNDS, _MORE = 6, 10
# Samples are used for a topic if it has at least this share of their counts.
_SHARE = 0.05
# Largest relative difference of the two topics from the topic that is split.
_TILT = 0.8


def split_topic(counts: CountMatrix, L: Array, F: Array) -> Array:
    """Return topics (m, K + 1): those of a fit L (n, K), F (m, K), with one of them in two halves.

    Two topics ``f_k (1 + t)`` and ``f_k (1 - t)``, with loadings ``l_k (1 + s) / 2`` and ``l_k (1 -
    s) / 2`` have the expected counts ``l_k f_k (1 + s t)``. For small s and t the log-likelihood
    rises by ``sum_ij (x_ij / mu_ij - 1) l_ik f_jk s_i t_j``, which is largest for the leading
    singular vectors of the matrix ``(x_ij / mu_ij - 1) sqrt(l_ik f_jk)``. The topic with the
    largest singular value is split. Counts of more than a million nonzeros are represented by
    evenly spaced samples.
    """
    step = max(1, -(-counts.nnz // _ENTRIES))
    rows = np.arange(0, counts.shape[0], step)
    rows = rows[counts.row_nnz[rows] > 0]
    found = counts.take_rows(rows)
    ratios = _ratios(found, L[rows], F)
    sizes = L[rows] * F.sum(axis=0)
    best, tilted, split = -1.0, np.zeros(len(F)), 0
    for k in range(F.shape[1]):
        there = np.flatnonzero(sizes[:, k] > _SHARE * sizes.sum(axis=1))
        if not there.size:
            continue
        residuals = _Residuals(ratios[there], L[rows[there], k], F[:, k])
        gain, vector = residuals.leading(_start(F[:, k]), _ROUNDS)
        if gain > best:
            best, tilted, split = gain, residuals.leading(vector, _MORE)[1], k
    f = F[:, split]
    tilt = np.divide(tilted, np.sqrt(f), out=np.zeros(len(f)), where=f > 0)
    scale = np.quantile(np.abs(tilt[f > 0]), 0.95) if (f > 0).any() else 0.0
    tilt = np.clip(_TILT * tilt / max(float(scale), 1e-300), -_TILT, _TILT)
    halves = np.column_stack([F, f * (1 - tilt)])
    halves[:, split] = f * (1 + tilt)
    return halves


class _Residuals:
    """The matrix ``(x_ij / mu_ij - 1) sqrt(l_i f_j)``: sparse, minus one of rank one."""

    def __init__(self, ratios: sp.csr_array, l_k: Array, f_k: Array):
        self.rows, self.columns = np.sqrt(l_k), np.sqrt(f_k)
        weights = np.repeat(self.rows, np.diff(ratios.indptr)) * self.columns[ratios.indices]
        data = ratios.data * weights
        self.matrix = sp.csr_array((data, ratios.indices, ratios.indptr), ratios.shape)

    def leading(self, v: Array, n_rounds: int) -> tuple[float, Array]:
        """Return the singular value and the right singular vector after some power iterations."""
        size = 0.0
        for _ in range(n_rounds):
            u = self.matrix @ v - self.rows * (self.columns @ v)
            u /= max(float(np.linalg.norm(u)), 1e-300)
            v = self.matrix.T @ u - self.columns * (self.rows @ u)
            size = float(np.linalg.norm(v))
            v = v / max(size, 1e-300)
        return size, v


def _start(f_k: Array) -> Array:
    start = np.sqrt(f_k) * np.random.default_rng(0).normal(size=len(f_k))
    return np.asarray(start / max(float(np.linalg.norm(start)), 1e-300))


def _ratios(matrix: sp.csr_array, L: Array, F: Array) -> sp.csr_array:
    """Return observed over expected counts at the nonzero counts."""
    ratios = np.empty(matrix.nnz)
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    for start in range(0, matrix.nnz, _PIECE):
        part = slice(start, start + _PIECE)
        mu = np.einsum("ek,ek->e", L[row[part]], F[matrix.indices[part]])
        ratios[part] = matrix.data[part] / np.maximum(mu, 1e-30)
    return sp.csr_array((ratios, matrix.indices, matrix.indptr), matrix.shape)
