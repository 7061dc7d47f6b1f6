"""Differences between groups within blocks, such as donors or strata, and their variances.

Effects of groups are additive within blocks, by weighted least squares in which effects of blocks
are absorbed. Variances are those of the jackknife, ``(G - 1) / G`` times the squared influences of
G clusters. A block with a single unit in each of its groups, such as a donor, is a cluster (CR3, as
if the block were left out): of complete pairs the variance is that of the paired t-test. In other
blocks each unit is a cluster (HC3), where the block counts by ``sqrt(1 - w / W)``, because spread
within a block does not involve its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels import decompositions, dense
from ..design.units import within_strata
from .least_squares import NOTHING
from .one_way import degrees
from .robust import ROUNDING, spread_of_groups, squares_in_strata

Array = NDArray[Any]
# Entries of products of terms that are in memory at a time.
_PRODUCTS = 1 << 22


@dataclass(frozen=True)
class WithinBlocks:
    """Effects of R groups, relative to the first, in an orthonormal basis of k = R - 1 terms.

    `coefficients` (k, T) and `covariances` (T, k, k) are in this basis; `turn` (R, k) turns weights
    of groups into it. The rest is for degrees of freedom. Of clusters that are blocks, `inverse`
    and `projection` (n_blocks, k, k) are ``(1 - B)^-1`` and ``(1 - B)^-1 B`` for ``B = Q_u' Q_u``.
    Of clusters that are units, `basis` (n, k) are their terms, `factor` (n,) multiplies residuals,
    `spread` (n,) is the variance of a group over that of all, `leverage` (n,) and `block` (n,) are
    as they say, and `roots` (n,) are of weights relative to that of the block. `lone` (k, k) are
    squares of terms that one cluster determines; its variance is the pooled one of all residuals,
    of `n_free` degrees of freedom.
    """

    coefficients: Array
    covariances: Array
    turn: Array
    inverse: Array
    projection: Array
    basis: Array
    factor: Array
    spread: Array
    leverage: Array
    block: Array
    roots: Array
    lone: Array
    n_free: int

    @classmethod
    def of(cls, values: Array, weights: Array, group: Array, block: Array) -> WithinBlocks:
        """Compare values (n, T) of units of weights (n,) between groups, numbered from 0."""
        R, n_blocks = int(group.max()) + 1, int(block.max()) + 1
        root = np.sqrt(weights)[:, None]
        indicators = (group[:, None] == np.arange(R)).astype(float)
        Z = root * within_strata(indicators, block, weights)
        y = root * within_strata(values, block, weights)
        y[:, (y**2).sum(axis=0) <= NOTHING * (weights[:, None] * values**2).sum(axis=0)] = 0
        Q, upper, _ = decompositions.qr(Z[:, 1:])
        turn = np.vstack([np.zeros(R - 1), decompositions.inverse(upper)[0]])
        along = dense.cross(Q, y)
        E = y - dense.product(Q, along)
        E[:, (E**2).sum(axis=0) <= NOTHING * (y**2).sum(axis=0)] = 0
        n_free = max(1, len(y) - n_blocks - (R - 1))
        whole = _one_in_each_group(group, block)[block]
        covariances, lone, inverse, projection = _of_blocks(Q[whole], E[whole], block[whole])
        of_units, lone_units, parts = _of_units(
            Q[~whole], E[~whole], block[~whole], weights[~whole], group[~whole]
        )
        n_clusters = len(inverse) + int((parts[0] ** 2).any(axis=1).sum())
        lone = lone + lone_units
        pooled = (E**2).sum(axis=0) / n_free
        covariances = (covariances + of_units) * ((n_clusters - 1) / n_clusters)
        covariances += pooled[:, None, None] * lone
        return cls(along, covariances, turn, inverse, projection, *parts, lone, n_free)

    def differences(self, along: Array) -> Array:
        """Return sums of effects (T, k) with weights of groups (R, k) that add up to 0."""
        differences: Array = dense.cross(self.coefficients, dense.cross(self.turn, along))
        return differences

    def variances(self, along: Array) -> tuple[Array, Array]:
        """Return variances (T, k) of such sums, and their degrees of freedom (k,)."""
        turned = dense.cross(self.turn, along)
        products = dense.products(self.covariances, turned)  # (T, R - 1, k)
        freedom = np.array([self._freedom(weights[:, None]) for weights in turned.T])
        return np.maximum((products * turned).sum(axis=1), 0), freedom

    def between(self) -> tuple[Array, Array, Array, float]:
        """Return what a test of equal groups compares.

        The sum of squares between groups (T,), its expectation if they are equal (T,), and the
        degrees of freedom of both, (T,) and a number.
        """
        k, V = len(self.lone), self.covariances
        trace, square = V.trace(axis1=1, axis2=2), (V**2).sum(axis=(1, 2))
        squares = (self.coefficients**2).sum(axis=0)
        return squares, trace, degrees(trace, square, k), self._freedom(np.eye(k))

    def _freedom(self, along: Array) -> float:
        """Return degrees of freedom of variances of sums (k, m), of units as unlike as groups are.

        For a variance y' G y they are ``tr(G)^2 / tr(G^2)`` (Satterthwaite).
        """
        D = ((dense.product(self.basis, along) * self.factor[:, None]) ** 2).sum(axis=1)
        D = D * self.spread
        trace = float((D * (1 - self.leverage)).sum())
        square = float((D**2 * (1 - 2 * self.leverage)).sum())
        shared = dense.cross(self.basis, D[:, None] * self.basis)
        if len(self.inverse):
            of_blocks = dense.products(self.projection, along)
            inverse = dense.products(self.inverse, along).transpose(0, 2, 1)
            overlap = dense.products(of_blocks.transpose(0, 2, 1), of_blocks)
            own = dense.products(inverse, of_blocks)
            trace += float((own - overlap).trace(axis1=1, axis2=2).sum())
            square += float((own**2 - 2 * own * overlap).sum())
            shared = shared + dense.cross(of_blocks.transpose(0, 2, 1).reshape(-1, len(along)))
        square += float((shared**2).sum())
        square += squares_in_strata(D, self.basis, self.roots, self.block)
        alone = float((along * dense.product(self.lone, along)).sum())
        trace, square = trace + alone, square + alone**2 / self.n_free
        return trace * trace / square if square > 0 else float(self.n_free)


def unlinked(group: Array, block: Array) -> list[Array]:
    """Return sets of groups, numbered from 0, that have no block in common with other sets."""
    of = np.arange(int(group.max()) + 1)
    order = np.argsort(block, kind="stable")
    for members in np.split(group[order], np.flatnonzero(np.diff(block[order])) + 1):
        joined = np.unique(of[members])
        of[np.isin(of, joined)] = joined[0]
    return [np.flatnonzero(of == first) for first in np.unique(of)]


def _one_in_each_group(group: Array, block: Array) -> Array:
    """Return a mask of blocks that have several groups, and one unit in each of them."""
    pairs, n_units = np.unique(np.stack([block, group]), axis=1, return_counts=True)
    several = np.bincount(pairs[0], weights=n_units > 1)
    mask: Array = (several == 0) & (np.bincount(pairs[0]) > 1)
    return mask


def _of_blocks(Q: Array, E: Array, block: Array) -> tuple[Array, Array, Array, Array]:
    """Return covariances (T, k, k) by leaving out whole blocks, and the terms they need.

    These are `lone`, `inverse` and `projection`.
    """
    k, T = Q.shape[1], E.shape[1]
    _, block = np.unique(block, return_inverse=True)
    block = block.reshape(-1)
    n_blocks = int(block.max(initial=-1)) + 1
    B, scores = np.zeros((n_blocks, k, k)), np.zeros((n_blocks, k, T))
    np.add.at(B, block, Q[:, :, None] * Q[:, None, :])
    for t in range(T):
        np.add.at(scores[:, :, t], block, Q * E[:, t : t + 1])
    if not n_blocks:
        return np.zeros((T, k, k)), np.zeros((k, k)), B, B
    roots, vectors = decompositions.eigh(B)
    free = 1 - roots > ROUNDING
    inverse = np.where(free, 1 / np.where(free, 1 - roots, 1.0), 0.0)
    K, N = (
        dense.products(vectors * scale[:, None, :], vectors.transpose(0, 2, 1))
        for scale in (inverse, inverse * roots)
    )
    of_lone = (vectors.transpose(0, 2, 1)[~free]).reshape(-1, k)
    influences = dense.products(K, scores)
    covariances = np.stack([dense.cross(influences[:, :, t]) for t in range(T)])
    return covariances, dense.cross(of_lone), K, N


def _of_units(
    Q: Array, E: Array, block: Array, weights: Array, group: Array
) -> tuple[Array, Array, tuple[Array, Array, Array, Array, Array, Array]]:
    """Return covariances (T, k, k) by leaving out units, `lone`, and the terms they need."""
    n, k = Q.shape
    _, block = np.unique(block, return_inverse=True)
    block = block.reshape(-1)
    share = weights / np.bincount(block, weights, minlength=1)[block]
    leverage = share + (Q**2).sum(axis=1)
    rest = 1 - leverage
    lone = (rest <= ROUNDING) & (share < 1 - ROUNDING)
    free = rest > ROUNDING
    factor = np.where(free, np.sqrt(np.maximum(1 - share, 0)) / np.where(free, rest, 1.0), 0.0)
    squares, covariances = (factor[:, None] * E) ** 2, np.zeros((k * k, E.shape[1]))
    size = max(1, _PRODUCTS // (k * k))
    for first in range(0, n, size):
        rows = Q[first : first + size]
        terms = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
        covariances += dense.cross(terms, squares[first : first + size])
    of_topics = np.ascontiguousarray(covariances.T).reshape(-1, k, k)
    spread = spread_of_groups(group, E, rest)
    parts = Q, factor, spread, leverage, block.astype(np.int64), np.sqrt(share)
    return of_topics, dense.cross(Q[lone]), parts
