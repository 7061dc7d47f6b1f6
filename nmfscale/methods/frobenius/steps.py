"""Steps of an NMF with the squared Frobenius norm: the work on one block of counts.

Weighted counts are ``s_i x_ij w_j``; they are never formed. The weights w of features are part of
the held factor when rows are updated, and of the sums when features are; the weights s of samples,
the row array ``scales``, multiply the sums of a row, and the loadings that features are updated by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_copy
from ...counts.cached import cached_property
from ...counts.sell import LANES
from ...engine import progress
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ...kernels import dense
from ..anchors.steps import columns_of
from ..factors import Array
from ..slices import sliced_counts


def problem_of(
    design: Array, gram: Array, linear: Array | None, n_sweeps: int, tolerance: float = 0.0
) -> Any:
    """Return the problem of the kernels: `gram` (K, K) of the held factor, l1 penalties (K,).

    Components without curvature stay, but with a penalty their minimum is 0. The kernels reach it
    if the curvature, which makes no difference to the minimum, is 1.
    """
    dtype, K = design.dtype, len(gram)
    total = None
    if linear is not None:
        total = np.zeros(design.shape[1], dtype)
        total[:K] = linear
        gram = gram + np.diag((np.diag(gram).astype(dtype) == 0) & (linear > 0))
    return kernels.RowProblem(
        design, total, K, step=kernels.SQUARES, gram=np.ascontiguousarray(gram, dtype), floor=0.0,
        newton_steps=1, qp_sweeps=n_sweeps, qp_tolerance=tolerance,
    )  # fmt: skip


def extrapolated(
    now: Array, before: Array, momentum: float, n_rows: int, out: Array, n_threads: int
) -> Array:
    """Write ``max(now + momentum (now - before), 0)`` to `out`, 0 in lanes without a row."""
    n_slices, stride = len(now) // LANES, now.shape[1]
    to = kernels.Extrapolation(
        n_rows, out, momentum, np.ones(stride, now.dtype), np.empty((n_slices, 2, stride)),
        np.empty(n_slices), np.empty(n_slices, np.int64), before=before,
    )  # fmt: skip
    problem = problem_of(now, np.eye(stride), None, 0)
    kernels.extrapolate(problem, now, to, n_threads=n_threads)
    out[n_rows:] = 0
    return out


@dataclass(frozen=True)
class ScaleRows(Step):
    """Makes ``scales``: ``1 / sqrt(sum_j (w_j x_ij)^2)``, 0 for empty rows.

    `order` (m,) are the columns of the lanes, `squared` (m,) the squares of w in lane order.
    """

    order: Any
    squared: Any

    reads = "rows"
    divides = True
    shared = ("order", "squared")
    arrays = RowArrays((), ("scales",), ("scales",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Find the norms of the rows of a block."""
        out = block.empty("scales", np.empty((len(block.counts.offset) - 1) * LANES))
        nowhere = np.zeros((1, len(self.order)))
        kernels.squares(
            *columns_of(block.counts), self.squared, self.order, nowhere, out,
            n_threads=n_threads, unit=True,
        )  # fmt: skip
        np.sqrt(out, out=out)
        return {}


@dataclass(frozen=True)
class DescendRows(Step):
    """Moves loadings by coordinate descent with the factors fixed: makes ``next``.

    `design` (lanes, stride) are the factors times w, `gram` (K, K) is the Gram matrix of the
    factors, with the l2 penalty `square` on its diagonal. Rows start at ``L``, extrapolated away
    from ``before``; without ``L``, at 0. With `explained`, it also makes the array of this name:
    the sum of squares that each row explains.
    """

    design: Any
    gram: Array
    linear: Array | None
    square: float
    n_sweeps: int
    tolerance: float = 0.0
    momentum: float = 0.0
    explained: bool = False

    reads = "rows"
    divides = True
    shared = ("design",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `next`, and `explained` if that is asked for."""
        makes = ("next", "explained") if self.explained else ("next",)
        return RowArrays(("L", "before", "scales"), makes, makes)

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        n_lanes, stride = (len(block.counts.offset) - 1) * LANES, self.design.shape[1]
        L, zero = block.get("L"), np.zeros((), self.design.dtype)
        out = block.empty("next", np.broadcast_to(zero, (n_lanes, stride)))
        start = out
        if L is None:
            out[:] = 0
        elif self.momentum:
            extrapolated(L, block["before"], self.momentum, block.n_rows, out, n_threads)
        else:
            start = L
        report = {}
        if self.explained:
            report["loglik_end"] = block.empty("explained", np.empty(n_lanes))
        kernels.update_rows(
            sliced_counts(block.counts, len(self.design)),
            problem_of(self.design, self.gram, self.linear, self.n_sweeps, self.tolerance),
            start, out, n_threads=n_threads, scale=block.get("scales"), **report,
        )  # fmt: skip
        if self.explained:  # the kernels subtract the penalties, twice the l1 penalty
            b = out[:, : len(self.gram)].astype(np.float64, copy=False)
            slope = self.square * b if self.linear is None else self.square * b + 2 * self.linear
            report["loglik_end"] += (b * slope).sum(axis=1)
        if L is None:
            progress.advance(block.n_rows)
        return {}


@dataclass(frozen=True)
class SumRows(Step):
    """Computes the Gram matrix of loadings ``next``, and the sums of their columns."""

    n_components: int
    arrays = RowArrays(("next",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        rows = block["next"][: block.n_rows, : self.n_components]
        return {
            "gram": dense.cross(rows, n_threads=n_threads),
            "total": rows.sum(axis=0, dtype=np.float64),
        }


@dataclass(frozen=True)
class SumColumns(Step):
    """Sums ``sum_i x_ij s_i l_ik`` for every feature, with L the row array `source`."""

    n_slices: int
    n_components: int
    source: str = "next"

    reads = "columns"

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings `source`, and scales of samples."""
        return RowArrays((self.source, "scales"))

    def empty_sums(self) -> Sums:
        """Return zeros for the sums of the features, (slices, K, 16)."""
        return [np.zeros((self.n_slices, self.n_components, LANES))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        L, scales = block[self.source], block.get("scales")
        held = L if scales is None else aligned_copy(L * scales.astype(L.dtype)[:, None])
        kernels.sums(
            sliced_counts(block.counts, len(L)),
            problem_of(held, np.eye(self.n_components), None, 0), None, sums[0],
            wanted=kernels.SUM_GRADIENT, first=0, last=self.n_slices, n_threads=n_threads,
        )  # fmt: skip
        return {}

    def of_slices(self, slices: slice) -> SumColumns:
        """Return the step for some slices of columns."""
        return replace(self, n_slices=slices.stop - slices.start)
