"""Steps of a semi-supervised NMF: the work on one block of counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...counts.sell import LANES, lanes_of
from ...engine import progress
from ...engine.protocol import Block, Needs, OverLanes, RowArrays, Step, Sums, Values
from ...kernels import dense
from ...kernels.functions import log
from ..factors import LEAST, Array, aligned_copy, rows_of_sums, sum_lanes, to_lanes
from ..rows_pass import RowsPass
from ..slices import sliced_counts
from ..weights import entries
from ..weights.entries import BlockEntries
from . import labels

# Floor of parameters during a fit, because updates cannot leave zero. At the end it becomes zero.
FLOOR = 1e-16
# Maximum number of sweeps of coordinate descent over the loadings of a new row, and the relative
# decrease of the loss at which sweeps end.
_SWEEPS, _LITTLE = 500, 1e-20
# Copies of the loadings of a block that loadings of new rows need, also if entries have weights,
# and copies of A.
_COPIES_BLOCK, _COPIES_WEIGHTED, _COPIES_HELD = 3, 8, 3


class Losses(NamedTuple):
    """Losses of data and labels: "frobenius" or "kl"."""

    data: str
    labels: str

    def scale(self, supervision: float) -> float:
        """Return the factor of U B and V B (the terms of the labels) in an update of S."""
        twice = supervision * (2 if self.labels == "frobenius" else 1)
        return twice / (2 if self.data == "frobenius" else 1)


def gram(values: Array) -> Array:
    """Return values^T values, in float64."""
    products: Array = dense.cross(values)
    return products


def problem_of(
    design: Array, n_components: int, loss: str, G: Array | None, total: Array, **how: Any
) -> Any:
    """Return the problem of the kernels with a fixed factor: Gram matrix G, sums `total`."""
    dtype = design.dtype
    if loss == "frobenius":
        how |= {"step": kernels.SQUARES, "gram": np.ascontiguousarray(G, dtype)}
        return kernels.RowProblem(design, None, n_components, floor=FLOOR, **how)
    padded = np.zeros(design.shape[1], dtype)
    padded[:n_components] = total
    return kernels.RowProblem(design, padded, n_components, floor=FLOOR, **how)


def rows_in_float64(block: Block, n_components: int) -> Array:
    """Return the loadings of the rows of a block."""
    return block["S"][: block.n_rows, :n_components].astype(np.float64)


@dataclass(frozen=True)
class SumSamples(Step):
    """Sums the statistics of S by which B moves, and the loss of the labels.

    It returns ``gram``, the Gram matrix of S, or ``total``, its sums, by the loss of the data. With
    `curvature`, the curvature of B is summed, too.
    """

    B: Array
    losses: Losses
    curvature: bool = False

    arrays = RowArrays(("S", *labels.ROWS))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        S = rows_in_float64(block, self.B.shape[1])
        of_data = {"gram": gram(S)} if self.losses.data == "frobenius" else {"total": S.sum(axis=0)}
        of_labels = labels.sums(block, S, self.B, self.losses.labels, n_threads, self.curvature)
        return {**of_data, **of_labels}


@dataclass(frozen=True)
class SumColumns(Step):
    """Sums the statistics by which A moves, and the loss of the data at the current point.

    `design` (lanes, stride) is A in lane order, `A` (m, K) the same in float64. With `curvature`,
    the curvature of A is summed, too; with a divergence as the loss it takes the place of
    numerators.
    """

    design: Any
    A: Array
    loss: str
    weighs_entries: bool = False
    curvature: bool = False

    reads = "columns"
    shared = ("design", "A")
    arrays = RowArrays(("S", *entries.ROWS))

    @property
    def sums_numerators(self) -> bool:
        """Whether numerators are summed."""
        return not (self.curvature and self.loss == "kl")

    def empty_sums(self) -> Sums:
        """Return zero arrays for numerators or curvature, and for corrections by entry weights."""
        (m, K), n_lanes = self.A.shape, len(self.design)
        packed = kernels.packed_size(K)
        out = [np.zeros((n_lanes // LANES, K if self.sums_numerators else packed, LANES))]
        if self.weighs_entries:
            out.append(np.zeros((m, K)))
            if self.curvature and self.sums_numerators:
                out.append(np.zeros((m, packed)))
        return out

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        K, S, how = self.A.shape[1], block["S"], {}
        if self.loss == "kl":
            how["loglik"] = np.zeros(len(self.design))
        problem = problem_of(S, K, self.loss, np.eye(K), np.ones(K))
        wanted = kernels.SUM_GRADIENT if self.sums_numerators else kernels.SUM_FULL
        kernels.sums(
            sliced_counts(block.counts, len(S)), problem, self.design, sums[0], wanted=wanted,
            first=0, last=len(sums[0]), n_threads=n_threads, **how,
        )  # fmt: skip
        of_block: Values = {"log_mu": OverLanes(how["loglik"], sum_lanes)} if how else {}
        if self.weighs_entries:
            here = BlockEntries(block["entries"], rows_in_float64(block, K), self.A, self.loss)
            sums[1] += here.of_columns()
            if len(sums) > 2:
                sums[2] += here.curvature_of_columns()
            of_block["loss_entries"] = here.loss
        return of_block

    def of_slices(self, slices: slice) -> SumColumns | None:
        """Return the step for some slices of columns, unless it sums over entries of all."""
        return None if self.weighs_entries else replace(self, design=self.design[lanes_of(slices)])


@dataclass(frozen=True)
class MoveRows(Step):
    """Moves S by a multiplicative update; for `design` and `A` see `SumColumns`.

    `gram` is A^T A, zeros if the loss of the data is a divergence.
    """

    design: Any
    A: Array
    gram: Array
    B: Array
    losses: Losses
    scale: float

    reads = "rows"
    divides = True
    shared = ("design", "A")
    arrays = RowArrays(("S", labels.TARGETS, labels.WEIGHTS, *entries.ROWS), ("S",), ("S",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        K, before = self.A.shape[1], block["S"]
        S = rows_in_float64(block, K)
        G, total = self.gram, self.A.sum(axis=0)
        pseudo, rate = labels.of_rows(block, S, self.B, self.losses.labels, n_threads)
        pseudo *= self.scale
        rate *= self.scale
        rate_of_rows, left = rate, None
        if (entries_of_block := block.get("entries")) is not None:
            # rows have their own sums: the common sum of the kernel is 0
            left = BlockEntries(entries_of_block, S, self.A, self.losses.data).rows_left(
                dense.product(S, G) if self.losses.data == "frobenius" else total
            )
            rate_of_rows, G, total = np.maximum(rate + left, LEAST), 0 * G, 0 * total
        problem = problem_of(self.design, K, self.losses.data, G, total, em_steps=1)
        out = block.empty("S", before)
        empty = 0.0 if left is None else 1.0
        kernels.update_rows(
            sliced_counts(block.counts, len(self.design)), problem, before, out,
            n_threads=n_threads, pseudo=in_lanes(pseudo, before),
            rate=in_lanes(rate_of_rows, before, empty),
        )  # fmt: skip
        if self.losses.data != self.losses.labels:
            down = G if self.losses.data == "frobenius" else total
            _hold_back(out[: block.n_rows, :K], S, pseudo, rate, down, left, self.losses.data)
        return {}


def in_lanes(values: Array, like: Array, empty: float = 0.0) -> Array:
    """Return rows (n_rows, K) in the shape of a row array; the padding holds `empty`."""
    out, (n_rows, K) = aligned_empty(like.shape, like.dtype), values.shape
    out[n_rows:], out[:, K:] = empty, empty
    out[:n_rows, :K] = values
    return out


def _hold_back(
    out: Array, S: Array, pseudo: Array, rate: Array, down: Array, left: Array | None, data: str
) -> None:
    """Shorten steps of S where the sum of two different losses might rise.

    `down` is the Gram matrix or the sums of A; `left` (n_rows, K) replaces it for rows with
    weights. With r the relative step of one loading, both losses are at most ``den r^2 / 2 - num r
    - p log r + q r`` of the norm and of the divergence. The update ``r = (num + p) / (den + q)``
      lowers this bound, except for some large steps, which are shortened to its minimum.
    """
    if data == "kl":
        which = np.nonzero((out > S) & (out * rate > 2 * pseudo))
    else:
        which = np.nonzero((out > S) & (pseudo > out * rate))
    if not len(which[0]):
        return
    row, k = which
    s, r, label, down_label = S[which], out[which] / S[which], pseudo[which], rate[which]
    if left is not None:
        own = left[which]
    else:
        own = down[k] if data == "kl" else dense.dots(S, row, down, k)
    if data == "kl":
        num, den, q = label / s, down_label, own
        p = r * (den + q) - num
    else:
        p, q, den = label / s, down_label, own
        num = r * (den + q) - p
    rises = p * (r - 1 - log(r)) > (den / 2 + q) * (r - 1) ** 2
    c = q - num
    root = np.sqrt(c * c + 4 * den * p)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(c > 0, 2 * p / (c + root), (root - c) / (2 * den))
    out[row[rises], k[rises]] = np.maximum(s * best, FLOOR)[rises]


@dataclass(frozen=True)
class Clean(Step):
    """Sets parameters to zero that are not above a threshold."""

    source: str
    least: float

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes the row array `source` anew."""
        return RowArrays((self.source,), (self.source,))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Process the rows of a block."""
        values = block[self.source]
        out = block.empty(self.source, values)
        np.multiply(values, values > np.float64(self.least) * (1 + 1e-6), out=out)
        return {}


@dataclass(frozen=True)
class Represent(Step):
    """Finds loadings of new rows from their counts alone, with A fixed.

    For a norm they are the optimum, found by coordinate descent; for a divergence they are the
    result of `n_steps` multiplicative steps from constant loadings.
    """

    design: Any
    A: Array
    loss: str
    n_steps: int

    reads = "rows"
    shared = ("design", "A")
    arrays = RowArrays(entries.ROWS, ("represented",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Find the loadings of the rows of a block."""
        K, sliced = self.A.shape[1], sliced_counts(block.counts, len(self.design))
        n_lanes = LANES * (len(block.counts.offset) - 1)
        start = aligned_copy(np.zeros((n_lanes, self.design.shape[1])))
        start[:, :K] = FLOOR if self.loss == "frobenius" else 1
        G, total = gram(self.A), self.A.sum(axis=0)
        how: dict[str, Any] = {"em_steps": self.n_steps}
        if self.loss == "frobenius":
            how = {"newton_steps": 1, "qp_sweeps": _SWEEPS, "qp_tolerance": _LITTLE}
        entries_of_block, more = block.get("entries"), {}
        if entries_of_block is not None and self.loss == "kl":
            ones = np.ones((block.n_rows, K))
            rate = BlockEntries(entries_of_block, ones, self.A, "kl").rows_left(total)
            nothing, total = np.zeros((block.n_rows, K)), 0 * total
            rate = in_lanes(np.maximum(rate, LEAST), start, 1.0)
            more = {"pseudo": in_lanes(nothing, start), "rate": rate}
        problem = problem_of(self.design, K, self.loss, G, total, **how)
        out = block.empty("represented", start)
        kernels.update_rows(sliced, problem, start, out, n_threads=n_threads, **more)
        if entries_of_block is not None and self.loss == "frobenius":
            num = np.zeros((n_lanes // LANES, K, LANES))
            kernels.sums(
                sliced, problem, start, num, wanted=kernels.SUM_GRADIENT, first=0, last=len(num),
                n_threads=n_threads,
            )  # fmt: skip
            _weighted_squares(out, rows_of_sums(num, n_lanes), G, self.A, entries_of_block)
        out[out <= FLOOR * (1 + 1e-6)] = 0
        progress.advance(block.n_rows)
        return {}


def _weighted_squares(out: Array, num: Array, G: Array, A: Array, linear: Array) -> None:
    """Find the loadings of rows with entry weights, each with its own Gram matrix."""
    if not len(linear):
        return
    linear, nobody, lower = linear.copy(), np.zeros((1, len(G))), np.tril_indices(len(G))
    lanes, first = np.unique(linear["lane"], return_index=True)
    for lane, begin, end in zip(lanes, first, np.append(first[1:], len(linear)), strict=True):
        here, b, g = linear[begin:end], np.zeros(len(G)), -num[lane]
        here["lane"] = 0
        H = np.zeros(G.shape)
        H[lower] = BlockEntries(here, nobody, A, "frobenius").curvature_left_of_rows(G)[0][0]
        H += np.tril(H, -1).T
        moving = np.flatnonzero(np.diag(H) > 0)
        for _ in range(_SWEEPS):
            most = 0.0
            for k in moving:
                step = max(b[k] - g[k] / H[k, k], 0.0) - b[k]
                if step:
                    b[k] += step
                    g += step * H[k]
                    most = max(most, step * step * H[k, k])
            if most < _LITTLE:
                break
        out[lane, : len(b)] = b


def representation(
    counts: CountMatrix, A: Array, loss: str, n_steps: int, n_threads: int,
    less_one: sp.csr_array | None = None,
) -> RowsPass:  # fmt: skip
    """Return the pass that finds loadings (n, K) with A (m, K) fixed, in float64: see `Represent`.

    `less_one` (n, m) holds weights of entries minus one.
    """
    layout, (m, K) = counts.layout(n_threads), A.shape
    design = to_lanes(A, layout.column_order, kernels.row_stride(K), np.float64, FLOOR, FLOOR)
    step = Represent(design, np.ascontiguousarray(design[:m, :K]), loss, n_steps)
    inputs = {} if less_one is None else {"entries": entries.in_blocks(less_one, layout)}
    needs = representation_needs(counts, K, less_one is not None)
    return RowsPass(counts, (step,), "represented", K, inputs, needs, n_threads)


def representation_needs(counts: CountMatrix, n_components: int, weighted: bool) -> Needs:
    """Return the memory that `representation` needs; `row` is for each row of a block.

    `weighted`: entries have weights.
    """
    stride = kernels.row_stride(n_components)
    copies = _COPIES_WEIGHTED if weighted else _COPIES_BLOCK
    return Needs(
        row=stride * 8 * copies, shared=counts.shape[1] * stride * 8 * _COPIES_HELD, sums=0
    )
