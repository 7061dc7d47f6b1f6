"""Derivatives of the profile likelihood of a Poisson NMF: a function of the factors alone.

With ``phi_i(l, F) = sum_j (l . f_j - x_ij log(l . f_j))`` and l_i its minimum, the profile
objective ``sum_i phi_i(l_i(F), F)`` has the gradient ``sum_i l_i (1 - x_ij / mu_ij)`` in f_j, and a
Hessian that is the Schur complement of the loadings. Parameters are logarithms of F, for which the
problem is well scaled: derivatives are multiplied by the parameter, and a parameter at zero does
not move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ... import kernels
from ...counts.base import CountMatrix
from ...kernels import decompositions, dense
from ..factors import LEAST

Array = NDArray[Any]

# Nonzeros that are processed at a time, so that temporaries are small compared with the counts.
_PIECE = 1 << 18
# Eigenvalues of a sample's Hessian below this share of the largest belong to directions that its
# counts do not determine.
_RANK = 1e-9


@dataclass(frozen=True)
class Piece:
    """A piece of rows: sparse `ratio` x / mu and `weight` x / mu^2 at their nonzeros."""

    rows: slice
    row_of: Array
    column_of: Array
    ratio: Any
    weight: Any


class ProfileHessian:
    """Hessian of the profile objective at a fit, and quantities derived from it.

    Parameters
    ----------
    counts : CountMatrix
        Counts (n, m).
    L, F : ndarray
        Loadings (n, K), optimal for F, and factors (m, K), in float64.
    prior : pair of ndarray, default=None
        Pseudo-counts and rates (m, K) of a Gamma prior on F.
    n_threads : int, default=1
        Threads of a product; its bits do not depend on their number.

    Attributes
    ----------
    scale : ndarray of shape (m, K)
        F, with 0 for entries that are held fixed, at zero, or heading for zero.
    least : float
        Entries that explain fewer counts are held fixed: see `hold`.
    kkt : float
        Largest ``f_jk`` times its gradient, divided by the mean total of a feature: 0 at an
        optimum.
    """

    def __init__(
        self, counts: CountMatrix, L: Array, F: Array, prior: tuple[Array, Array] | None = None, *,
        n_threads: int = 1,
    ):  # fmt: skip
        self._counts, self._L, self._F, K = counts, L, F, F.shape[1]
        self._n_threads = n_threads
        (n, m), self._pairs = counts.shape, np.triu_indices(K)
        self.gradient = np.tile(L.sum(axis=0), (m, 1))
        own, of_rows = np.zeros((m, len(self._pairs[0]))), np.empty((n, len(self._pairs[0])))
        toward = np.empty((n, K))
        for piece in self._pieces():
            L_here = L[piece.rows]
            self.gradient -= dense.of_sparse(piece.ratio.T.tocsr(), L_here)
            own += dense.of_sparse(piece.weight.T.tocsr(), self._products(L_here))
            of_rows[piece.rows] = dense.of_sparse(piece.weight, self._products(F))
            toward[piece.rows] = F.sum(axis=0) - dense.of_sparse(piece.ratio, F)
        self._prior = np.zeros_like(F)
        if prior is not None:
            seen = np.maximum(F, LEAST)
            self.gradient += prior[1] - prior[0] / seen
            self._prior = np.where(F > 0, prior[0] / seen**2, 0.0)
        curvature = self._square(own)
        curvature[:, np.arange(K), np.arange(K)] += self._prior
        self.scale = _movable(F, self.gradient, curvature)
        self.kkt = float(np.abs(F * self.gradient).max() / (max(counts.total, 1.0) / m))
        hessians = self._square(of_rows)
        movable = _outer(_movable(L, toward, hessians))
        self._inverse = _inverse(hessians * movable) * movable
        self._curvature, self._invariant = curvature, prior is None
        self.hold(0.0)

    def hold(self, least: float) -> None:
        """Hold entries of F fixed that explain fewer counts than this."""
        self.least = least
        self.scale = np.where(self._F * self._L.sum(axis=0) < least, 0.0, self.scale)
        # the Hessian of each feature by itself: the preconditioner of the conjugate gradients
        own, K = self._curvature * _outer(self.scale), self._F.shape[1]
        own[:, np.arange(K), np.arange(K)] += self.scale * self.gradient
        self._preconditioner = _inverse(own)

    def _products(self, rows: Array) -> Array:
        """Return products of all pairs of columns."""
        first, second = self._pairs
        return rows[:, first] * rows[:, second]

    def _square(self, pairs: Array) -> Array:
        first, second = self._pairs
        K = self._F.shape[1]
        out = np.empty((len(pairs), K, K))
        out[:, first, second] = out[:, second, first] = pairs
        return out

    def _pieces(self) -> Iterator[Piece]:
        """Yield the counts, some rows at a time."""
        m = self._counts.shape[1]
        for chunk in self._counts.chunks():
            for part in chunk.parts(_PIECE):
                n_rows = len(part.indptr) - 1
                row_of = np.repeat(np.arange(part.first, part.first + n_rows), np.diff(part.indptr))
                mu = np.maximum(_dots(self._L, row_of, self._F, part.indices), LEAST)
                ratio = part.data / mu
                yield Piece(
                    slice(part.first, part.first + n_rows), row_of, part.indices,
                    *(
                        sp.csr_array((values, part.indices, part.indptr), shape=(n_rows, m))
                        for values in (ratio, ratio / mu)
                    ),
                )  # fmt: skip

    def _changes(self, V: Array, moved: Array) -> Array:
        """Return the change of the gradient in F due to V (m, K) and the loadings that it moves.

        By the implicit function theorem, ``dl_i = -A_i^-1 (d^2 phi_i / dl dF) V``. `moved` (n, K)
        holds the part of this second derivative that is not a sum over counts, and is overwritten
        by dl.
        """
        both = np.hstack([self._F, V])
        changes = np.zeros((kernels.PROFILE_PIECES, *V.shape))
        for part in self._counts.chunks():
            rows = slice(part.first, part.first + len(part.indptr) - 1)
            kernels.profile_product(
                part.indptr, part.indices.astype(np.int32, copy=False), part.data.astype(float),
                self._L[rows], both, self._inverse[rows], moved[rows], changes,
                least=LEAST, n_threads=self._n_threads,
            )  # fmt: skip
        change: Array = changes.sum(axis=0) + moved.sum(axis=0)
        return change

    def product(self, Z: Array) -> Array:
        """Return the Hessian times Z (m, K), both with respect to logarithms of F."""
        V = self.scale * Z
        change = self._changes(V, np.tile(V.sum(axis=0), (len(self._L), 1))) + self._prior * V
        # the gradient with respect to logarithms: 0 at an optimum, and needed to keep scales free
        out: Array = self.scale * (change + self.gradient * Z)
        return out

    def of_loadings(self, towards: Array) -> Array:
        """Return the gradient in F (m, K) of a function whose derivatives in L are (n, K)."""
        return self._changes(np.zeros_like(self._F), towards.copy())

    def influences(self, V: Array) -> Array:
        """Return influences ``-V . d phi_i / dF`` (n,) of the weight of each sample."""
        out, total = np.empty(len(self._L)), V.sum(axis=0)
        for piece in self._pieces():
            dots = _dots(self._L, piece.row_of, V, piece.column_of)
            seen = _at(piece.ratio, dots).sum(axis=1)
            out[piece.rows] = seen - (self._L[piece.rows] * total).sum(axis=1)
        return out

    def solve(self, gradient: Array, tol: float, max_iter: int) -> tuple[Array, float, int]:
        """Return V (m, K) with H V = gradient, the relative residual, and the number of products.

        By conjugate gradients, preconditioned by the Hessian of each feature by itself; the
        residual is measured in the norm of the preconditioner. A feature does not move in
        directions in which its own curvature is not positive: this occurs if fewer samples have it
        than there are topics, and it has not reached zero in the remaining topics. The scale of
        each topic can move from F to the loadings: H is singular in these directions, to which
        gradients of scale-independent quantities are orthogonal.
        """
        left = self._without_scales(self.scale * gradient)
        Z, step, n_products = np.zeros_like(left), self._precondition(left), 0
        slope = first = float((left * step).sum())
        while slope > tol**2 * first and n_products < max_iter:
            image, n_products = self.product(step), n_products + 1
            curvature = float((step * image).sum())
            if curvature <= 0:
                raise FloatingPointError(
                    f"the Hessian has the curvature {curvature:.1e} after {n_products} products: "
                    "the fit is not at a maximum of the likelihood"
                )
            length = slope / curvature
            Z += length * step
            left -= length * image
            better = self._precondition(left)
            slope, before = float((left * better).sum()), slope
            step = better + slope / before * step
        residual = math.sqrt(max(slope, 0.0) / first) if first > 0 else 0.0
        return self.scale * Z, residual, n_products

    def _precondition(self, left: Array) -> Array:
        moved = (self._preconditioner * left[:, None]).sum(axis=2)
        return self._without_scales(moved)

    def _without_scales(self, values: Array) -> Array:
        """Project out the scale of each topic, with respect to logarithms of F."""
        if not self._invariant:
            return values
        ones = self.scale > 0
        mean = (values * ones).sum(axis=0) / np.maximum(ones.sum(axis=0), 1)
        return values - ones * mean


def _dots(A: Array, rows: Array, B: Array, columns: Array) -> Array:
    """Return ``a_i . b_j`` at pairs of rows."""
    dots: Array = dense.dots(A, rows, B, columns)
    return dots


def _at(matrix: Any, factor: Array | float) -> Any:
    """Return a matrix whose nonzeros are multiplied by `factor`."""
    return sp.csr_array((matrix.data * factor, matrix.indices, matrix.indptr), shape=matrix.shape)


def _movable(values: Array, gradient: Array, curvature: Array) -> Array:
    """Return parameters, with 0 for those at zero or that a single Newton step takes to zero."""
    own = np.einsum("ikk->ik", curvature)
    there = (values > 0) & (own * values > gradient)
    return np.where(there, values, 0.0)


def _outer(values: Array) -> Array:
    return values[:, :, None] * values[:, None, :]


def _inverse(matrices: Array) -> Array:
    """Return inverses (n, K, K) along eigenvectors of positive eigenvalues, and 0 along others."""
    values, vectors = decompositions.eigh(matrices)
    seen = values > np.maximum(_RANK * values[:, -1:], 0)
    inverses = np.divide(1, values, out=np.zeros_like(values), where=seen)
    inverse = np.zeros(matrices.shape)
    for k in range(matrices.shape[1]):  # the sum over eigenvectors
        inverse += _outer(vectors[:, :, k]) * inverses[:, k, None, None]
    return inverse
