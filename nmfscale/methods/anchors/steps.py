"""Steps over blocks of counts for the choice of anchors among the features.

X (n, m) are the counts, s_i is the squared weight of sample i in the choice of anchors (`Weights`),
1 without a row array ``scales``. Features are numbered like the user's columns; blocks have them in
lanes, and ``order`` is the column of each lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import kernels
from ...counts.cached import cached_property
from ...counts.sell import LANES, SellBlock
from ...engine import progress
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ..factors import Array

# Number of entries, and of slices of samples, that are processed together.
_PIECE, _SLICES = 1 << 16, 64


def columns_of(counts: SellBlock) -> tuple[Array, Array, Array]:
    """Return the arrays of a block in the form of the kernels."""
    return counts.index, counts.count, counts.offset


@dataclass(frozen=True)
class Squares(Step):
    """Sums ``s_i x_ij^2`` over samples i for every feature j, (1, m).

    With `weights`, a number w_j for each lane, it makes ``scales`` first, ``s_i = 1 / sum_j w_j
    x_ij^2``: samples then have norm 1 where feature j is multiplied by the square root of w_j.
    """

    order: Any
    weights: Any = None

    reads = "rows"
    shared = ("order", "weights")

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `scales`, the scales of the samples, from weights; uses them if there are none."""
        made = () if self.weights is None else ("scales",)
        return RowArrays(("scales",) if self.weights is None else (), made, made)

    def empty_sums(self) -> Sums:
        """Return zeros, one for each feature."""
        return [np.zeros((1, len(self.order)))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        unit, n_lanes = self.weights is not None, (len(block.counts.offset) - 1) * LANES
        scales = block.get("scales")
        if unit:
            scales = block.empty("scales", np.empty(n_lanes))
        elif scales is None:
            scales = np.ones(n_lanes)
        kernels.squares(
            *columns_of(block.counts), self.weights if unit else np.ones(len(self.order)),
            self.order, sums[0], scales, n_threads=n_threads, unit=unit,
        )  # fmt: skip
        return {}


@dataclass(frozen=True)
class GramColumns(Step):
    """Sums ``s_i x_ij x_ip`` over samples i for every feature j and p in `lanes`, (lanes, m).

    Without `weighted`, s is 1.
    """

    order: Any
    lanes: Any
    weighted: bool = True

    reads = "rows"
    shared = ("order",)
    arrays = RowArrays(("scales",))

    def empty_sums(self) -> Sums:
        """Return zeros, one for each feature and lane."""
        return [np.zeros((len(self.lanes), len(self.order)))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        scales = block.get("scales") if self.weighted else None
        kernels.gram_columns(
            *columns_of(block.counts), self.lanes, self.order, sums[0], n_threads=n_threads,
            scales=scales,
        )  # fmt: skip
        return {}


@dataclass(frozen=True)
class TakeColumns(Step):
    """Makes ``anchors``, the counts of every sample in the columns `lanes`, as `dtype`."""

    n_features: int
    lanes: Any
    dtype: str

    reads = "rows"
    arrays = RowArrays((), ("anchors",), ("anchors",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Copy the counts of a block."""
        n_slices = len(block.counts.offset) - 1
        like = np.broadcast_to(np.zeros((), self.dtype), (n_slices * LANES, len(self.lanes)))
        columns = block.empty("anchors", like)
        columns[:] = 0
        add_columns(block.counts, self.n_features, self.lanes, 0, n_slices, columns)
        progress.advance(block.n_rows)
        return {}


def add_columns(
    counts: SellBlock, n_features: int, lanes: Array, first: int, last: int, out: Array
) -> None:
    """Add the counts of slices first:last in some columns to `out` (rows, lanes)."""
    place = np.full(n_features, -1, np.int32)
    place[lanes] = np.arange(len(lanes), dtype=np.int32)
    starts = counts.offset * LANES
    for begin in range(int(starts[first]), int(starts[last]), _PIECE):
        here = slice(begin, min(begin + _PIECE, int(starts[last])))
        column = place[counts.index[here]]
        at = np.flatnonzero(column >= 0)
        entry = at + begin
        row = (np.searchsorted(starts, entry, side="right") - 1) * LANES + entry % LANES
        # padding adds zeros; a split count occurs more than once
        values = counts.count[entry].astype(out.dtype)
        np.add.at(out, (row - first * LANES, column[at]), values)


@dataclass(frozen=True)
class Distance(Step):
    """Squared distance of a column from a combination of columns, and its products with these.

    With r the last column of `lanes` minus the combination ``sum_k a_k x_k`` of the other columns:
    ``sum_i s_i r_i^2``, and ``sum_i s_i r_i x_ik``.
    """

    n_features: int
    lanes: Any
    combination: Any

    reads = "rows"
    arrays = RowArrays(("scales",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        scales, n_slices = block.get("scales"), len(block.counts.offset) - 1
        square, products = 0.0, np.zeros(len(self.combination))
        for first in range(0, n_slices, _SLICES):
            last = min(first + _SLICES, n_slices)
            columns = np.zeros(((last - first) * LANES, len(self.lanes)))
            add_columns(block.counts, self.n_features, self.lanes, first, last, columns)
            left = columns[:, -1] - (columns[:, :-1] * self.combination).sum(axis=1)
            weighted = left if scales is None else left * scales[first * LANES : last * LANES]
            square += float((left * weighted).sum())
            products += (columns[:, :-1] * weighted[:, None]).sum(axis=0)
        return {"square": square, "products": products}


@dataclass(frozen=True)
class Project(Step):
    """Sums Gaussian projections of the features (m, d), with separate directions for each block.

    The directions of a block depend on `seed` and its number. `weights` are those of `Squares`.
    """

    order: Any
    n_directions: int
    seed: int
    weights: Any = None

    reads = "rows"
    shared = ("order", "weights")
    arrays = RowArrays(("scales",))

    def empty_sums(self) -> Sums:
        """Return zeros, d for each feature."""
        return [np.zeros((len(self.order), self.n_directions))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        counts, scales = block.counts, block.get("scales")
        if self.weights is not None:
            scales = np.empty((len(counts.offset) - 1) * LANES)
            nowhere = np.zeros((1, len(self.order)))
            kernels.squares(
                *columns_of(counts), self.weights, self.order, nowhere, scales,
                n_threads=n_threads, unit=True,
            )  # fmt: skip
        share = np.zeros_like(sums[0])
        for first, directions in self._directions(block.number, len(counts.offset) - 1):
            if scales is not None:
                rows = slice(first * LANES, first * LANES + len(directions))
                directions *= np.sqrt(scales[rows])[:, None]
            kernels.project(
                *columns_of(counts), self.order, directions, share, first=first,
                n_threads=n_threads,
            )  # fmt: skip
        sums[0] += share
        return {}

    def _directions(self, number: int, n_slices: int) -> Iterator[tuple[int, Array]]:
        """Yield the first slice of groups of rows, and normal numbers of variance 1 / d."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        for first in range(0, n_slices, _SLICES):
            n_rows = (min(first + _SLICES, n_slices) - first) * LANES
            directions = rng.standard_normal((n_rows, self.n_directions))
            directions /= np.sqrt(self.n_directions)
            yield first, directions


@dataclass(frozen=True)
class Hadamard(Project):
    """Sums a randomized Hadamard transform of the features, at some of its rows, (m, d).

    With N a power of two from the number of lanes on, H the Hadamard-Walsh matrix of order N and D
    a diagonal of random signs: ``sqrt(N / d) (H / sqrt(N))_q D X`` for the d rows q of `sampled`.
    Lanes are numbered over all blocks; `starts` is the first of each block. The entries of X are
    multiplied one by one: a fast transform of each column would need ``N log2 N`` operations for
    it, in place of d for each of its nonzeros.
    """

    starts: tuple[int, ...] = ()
    sampled: Any = None

    shared = ("order", "sampled")

    def _directions(self, number: int, n_slices: int) -> Iterator[tuple[int, Array]]:
        """Yield the first slice of groups of rows, and the signs of their lanes over sqrt(d)."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number, 1)))
        low = _walsh(np.arange(LANES), self.sampled % LANES) / np.sqrt(self.n_directions)
        for first in range(0, n_slices, _SLICES):
            slices = np.arange(first, min(first + _SLICES, n_slices)) + self.starts[number] // LANES
            # H is a Kronecker product: signs of slices times those of lanes within a slice
            high = _walsh(slices, self.sampled // LANES)
            signs = 1.0 - 2.0 * rng.integers(0, 2, (len(slices), LANES, 1))
            yield first, (high[:, None] * low * signs).reshape(-1, self.n_directions)


def _walsh(rows: Array, columns: Array) -> Array:
    """Return the entries of Hadamard-Walsh matrices, -1 to the number of common bits."""
    common: Array = rows[:, None] & columns[None, :]
    for shift in (32, 16, 8, 4, 2, 1):
        common = common ^ common >> shift
    return 1.0 - 2.0 * (common & 1)


def sampled_transform(
    order: Array, blocks: Any, n_rows: int, n_sampled: int, seed: int
) -> Hadamard:
    """Return the step for blocks with `n_rows` lanes in all, with rows drawn without replacement.

    There are at most as many rows as the transform has: with all of them it is orthonormal.
    """
    N = 1 << max(0, n_rows - 1).bit_length()
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, 2)))
    sampled = np.sort(rng.choice(N, min(n_sampled, N), replace=False, shuffle=False))
    starts = tuple(int(block.first) for block in blocks)
    return Hadamard(order, len(sampled), seed, starts=starts, sampled=sampled.astype(np.int64))
