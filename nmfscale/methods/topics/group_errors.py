"""Errors of frequencies in groups of samples: how much they vary between units, and by their prior.

The covariance of log ratios is ``V (S + P) V``: V is the inverse of the curvature, S the sum over
units of products of their scores, and P the variance of the slope of the prior. With one topic and
Poisson counts it is ``1 / (a + sum x)``, the posterior variance of the Gamma distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.sell import LANES, SellBlock
from ...kernels import dense
from .split_sums import matrices, part_sums, split_sums

Array = NDArray[Any]
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class GroupSums:
    """Sums of amounts (n, K) of topics over the samples of groups and units.

    `groups` (B, G, K) are those of each group of samples, and `gram` (B, G, K, K) sums of products
    of amounts; samples have one of B vectors of efficiencies. `n_units` (G,) are numbers of units.
    `units` (B, U, K) are the sums of units, whose groups are `group_of` (U,) and whose subjects,
    such as authors with texts in several groups, are `subjects` (U,); all three are None if samples
    are units, and the last one if each unit is a subject of its own.
    """

    groups: Array
    gram: Array
    n_units: Array
    units: Array | None = None
    group_of: Array | None = None
    subjects: Array | None = None

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return self.groups.shape[1]

    @property
    def whole(self) -> Array:
        """Sums (G, K) over all samples of the groups."""
        whole: Array = self.groups.sum(axis=0)
        return whole

    def expected(self, efficiencies: Array) -> Array:
        """Return the expected counts (p, G, K) of features with efficiencies (p, B)."""
        return _weighted(efficiencies, self.groups)


def _weighted(weights: Array, values: Array) -> Array:
    """Return sums (p, ...) over the first axis of values (B, ...) with weights (p, B)."""
    sums = dense.product(weights, values.reshape(len(values), -1))
    return sums.reshape(-1, *values.shape[1:])


@dataclass(frozen=True)
class Errors:
    """The errors of p features with frequencies f (p, G, stride) in groups.

    V (p, G, K, K) are the inverse curvatures, `efficiencies` (p, B), `shapes` (p, K) those of the
    prior, times the `dispersions` (p,) of counts.
    """

    sums: GroupSums
    f: Array
    V: Array
    efficiencies: Array
    shapes: Array
    dispersions: Array
    n_threads: int

    def squares_of_samples(self, parts: SellBlock, order: Array, arrays: dict[str, Array]) -> Array:
        """Return S (p, G, K, K) if samples are units.

        The score of a sample is ``x p_k - e l_k f_k``, so that S consists of sums of ``x^2 p p'``,
        ``-2 e x mu p p'`` and ``e^2 l f l' f'``: the kernel adds up the first two as those of other
        counts.
        """
        K, L, G = self.shapes.shape[1], arrays["design"], self.sums.n_groups
        f, e = self.f.reshape(-1, self.f.shape[2]), self.efficiencies
        slices = np.repeat(np.arange(len(order) // LANES), np.diff(parts.offset))
        x, index = parts.count.reshape(-1, LANES), parts.index.reshape(-1, LANES)
        entry, lane = np.nonzero(x)
        rows, pairs = index[entry, lane].astype(np.int64), order[slices[entry] * LANES + lane]
        values, means = x[entry, lane], dense.dots(L, rows, f, pairs)
        means *= e[pairs // G, arrays["batches"][rows].astype(np.intp)]
        sums = np.zeros((len(order), K, K))
        for products, sign in ((values * values, 1.0), (2 * values * means, -1.0)):
            count = np.zeros(x.shape)
            count[entry, lane] = products
            packed = part_sums(
                replace(parts, count=count.reshape(-1)), L, f[order], K, wanted=kernels.SUM_FULL,
                n_threads=self.n_threads,
            )  # fmt: skip
            sums[order] += sign * matrices(packed, K)
        whole = sums.reshape(self.V.shape) + _weighted(e * e, self.sums.gram)
        return self._of_several(whole * self.f[:, :, :K, None] * self.f[:, :, None, :K])

    def squares_of_units(
        self, counts: SellBlock, arrays: dict[str, Array]
    ) -> tuple[Array, list[Array] | None]:
        """Return S (p, G, K, K), and how much units move log ratios, by group: arrays (p, U_g, K).

        The second result is None if no unit shares its subject with another.
        """
        units, group_of = self.sums.units, self.sums.group_of
        assert units is not None and group_of is not None
        K, U = self.shapes.shape[1], units.shape[1]
        f = np.ascontiguousarray(self.f[:, group_of])
        sums = split_sums(
            counts, arrays["design"], f, arrays["units"], U, K, wanted=kernels.SUM_GRADIENT,
            n_threads=self.n_threads,
        )  # fmt: skip
        scores = (sums - _weighted(self.efficiencies, units)) * f[:, :, :K]
        squares, moves = np.empty_like(self.V), []
        for g in range(self.sums.n_groups):
            own = np.ascontiguousarray(scores[:, group_of == g])
            squares[:, g] = dense.products(np.ascontiguousarray(own.transpose(0, 2, 1)), own)
            if self.sums.subjects is not None:
                moves.append(dense.products(own, self.V[:, g]))
        return self._of_several(squares), moves or None

    def _of_several(self, squares: Array) -> Array:
        """Return sums over units as if the mode had not been fitted to them."""
        n = self.sums.n_units
        out: Array = squares * (n / np.maximum(n - 1, 1))[:, None, None]
        return out

    def variances(self, squares: Array, moves: list[Array] | None, rest: bool) -> dict[str, Array]:
        """Return variances of log ratios, and of their changes: (p, G, K) each."""
        V = self.V.reshape(-1, *self.V.shape[2:])
        of_units = dense.products(dense.products(V, squares.reshape(V.shape)), V)
        between = np.maximum(np.diagonal(of_units, axis1=1, axis2=2), 0.0)
        prior = np.repeat(self.shapes * self.dispersions[:, None], self.sums.n_groups, axis=0)
        added = dense.products(V * V, prior[:, :, None])[:, :, 0].reshape(self.V.shape[:3])
        between = between.reshape(added.shape)
        changes = np.zeros_like(between)
        for g, weights in self._contrasts(rest):
            own = between if moves is None else np.zeros_like(between)
            changes[:, g] = (weights * weights * (own + added)).sum(axis=1)
            if moves is not None:
                changes[:, g] += self._squares_of_subjects(moves, weights)
        return {"variances": between + added, "changes": changes}

    def _contrasts(self, rest: bool) -> Iterator[tuple[int, Array]]:
        """Yield the weights (p, G, K) of log ratios in the change of each group."""
        K, G = self.shapes.shape[1], self.sums.n_groups
        amounts = self.f[:, :, :K] * self.sums.whole
        for g in range(0 if rest else 1, G):
            weights = np.zeros_like(amounts)
            if rest:
                others = np.maximum(amounts.sum(axis=1) - amounts[:, g], _TINY)
                weights -= amounts / others[:, None]
            else:
                weights[:, 0] = -1.0
            weights[:, g] = 1.0
            yield g, weights

    def _squares_of_subjects(self, moves: list[Array], weights: Array) -> Array:
        """Return sums (p, K) over subjects of the squares of what they move a change."""
        group_of, subjects, n = self.sums.group_of, self.sums.subjects, self.sums.n_units
        assert group_of is not None and subjects is not None
        sums = np.zeros((len(weights), int(subjects.max()) + 1, weights.shape[2]))
        for g, own in enumerate(moves):
            factor = np.sqrt(n[g] / max(n[g] - 1, 1))
            sums[:, subjects[group_of == g]] += own * (weights[:, g, None] * factor)
        squares: Array = (sums * sums).sum(axis=1)
        return squares
