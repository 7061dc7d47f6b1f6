"""Semi-supervised NMF by coordinate descent: lowers the loss in fewer iterations.

An iteration moves A, B and S as the multiplicative updates do, and reads each order of the counts
once. With S fixed, each row of A and of B is a separate problem:

    norm        curvature ``S^T S``: sweeps of coordinate descent, HALS with Gram matrices
    divergence  curvature ``sum_i x_ij s_i s_i^T / mu_ij^2``: a Newton step, to the minimum of the
                quadratic over non-negative rows, by coordinate descent

A row of S explains counts and labels together. Coordinate descent uses the derivatives of both
terms, with all mu kept current, and no step raises the loss: see `joint.h` of the kernels. A Newton
step may raise it; the fit then returns and takes a multiplicative iteration instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.sell import LANES
from ...engine.protocol import Block, Needs, Sums, Values
from ..factors import Array, aligned_copy, in_lane_order, to_lanes
from ..slices import sliced_counts
from ..weights import entries
from ..weights.entries import BlockEntries
from . import labels
from .labels import Supervision
from .multiplicative import RelativeError, SemiSupervised, rows_of_block
from .steps import FLOOR, Losses, MoveRows, in_lanes, problem_of, rows_in_float64

# Sweeps over the coordinates of a row of S, by the loss of the data, and of A or B with a norm.
_SWEEPS = {"frobenius": 4, "kl": 2}
_SWEEPS_HELD = 4
# Sweeps over the quadratic of a Newton step.
_SWEEPS_NEWTON = 10
# A fit is "far" as long as a multiplicative iteration reduces the loss by this share.
_FAR = 0.1
# Minimum share of the sums of A that a row keeps, unless all its weights are 0.
_LEAST_LEFT = 1e-8
# A loss counts as higher if the difference is this many times the rounding of the type.
_ROUNDING = 10


class CoordinateDescent(SemiSupervised):
    """Coordinate descent and Newton steps; ``before`` is the point to which a fit may return."""

    curvature = True
    numbers = (*SemiSupervised.numbers, "reached", "far")

    def start(self) -> None:
        """Put loadings and labels into the executor."""
        super().start()
        self.reached, self.far = np.inf, "kl" in self.losses
        self.copy("S", "before")

    def arrive(self, iteration: int) -> dict[str, Any]:
        """Evaluate the point; if its loss rose, replace it by a multiplicative update."""
        seen = self.look()
        if seen["loss"] > self.reached + _ROUNDING * np.finfo(self.dtype).eps * abs(self.reached):
            self.copy("before", "S")
            self.look()
            super().update(iteration, False)
            seen = self.look()
        self.far = self.far and not seen["loss"] > (1 - _FAR) * self.reached
        self.reached = seen["loss"]
        return seen

    def update(self, iteration: int, ending: bool) -> None:
        """Move A and B by the current sums, then S."""
        self.copy("S", "before")
        if self.far:
            super().update(iteration, ending)
            return
        point = self.points["S"]
        A, B = self._features_moved(point["A"]), point["B"]
        if self._supervised:
            B = self._targets_moved(B)
        self.points["S"] = {"A": A, "B": B}
        scale = self.losses.scale(self.supervision)
        A, design, G = self._held()
        self.executor.run(DescendRows(design, A, G, B, self.losses, scale))

    def _numerators(self) -> Array:
        """Return ``X^T S`` or, for the curvature of a divergence, ``(X / S A^T)^T S``."""
        (_, sums), A = self._found, self.points["S"]["A"]
        if self.losses.data == "frobenius":
            return super()._numerators()
        H, out = sums[0], np.zeros(A.shape)
        pairs = zip(*np.tril_indices(A.shape[1]), strict=True)
        for (k, other), curvature in zip(pairs, H.transpose(1, 0, 2), strict=True):
            per_row = curvature.reshape(-1)[: len(A)]
            out[:, k] += per_row * A[:, other]
            if k != other:
                out[:, other] += per_row * A[:, k]
        return out

    def _features_moved(self, A: Array) -> Array:
        values, sums = self._found
        if self.losses.data == "frobenius":
            num, G, own = sums[0], values["gram"], None
            if self._weightless is not None:
                curvature, added = entries.curvature_left_of_columns(G, sums[2], self._weightless)
                # the addition to the curvature pulls the minimum towards A
                num, own = num + added * A, _packed(curvature)
            return self._least_squares(A, num, G, own)
        total, rate = values["total"], np.zeros(A.shape)
        if self._weightless is not None:
            rate = entries.columns_left(total + rate, sums[1], self._weightless)
            total = 0 * total
        return self._newton(A, sums[0], total, rate)

    def _targets_moved(self, B: Array) -> Array:
        values, _ = self._found
        H = _packed(values["label_curvature"])
        if self.losses.labels == "frobenius":
            return self._least_squares(B, values["up"], np.zeros((B.shape[1],) * 2), H)
        return self._newton(B, H, np.zeros(B.shape[1]), values["down"])

    def _least_squares(self, rows: Array, num: Array, G: Array, own: Array | None) -> Array:
        """Return rows (n, K) closer to the minimum of ``b'G b / 2 - num.b``; G may vary by row."""
        start, (n, K) = _padded(rows, FLOOR), rows.shape
        problem = problem_of(start, K, "frobenius", G, np.ones(K), newton_steps=_SWEEPS_HELD)
        out, n_slices = aligned_copy(start), len(start) // LANES
        offset = np.zeros(n_slices + 1, np.int64)
        nothing = kernels.SlicedCounts(np.zeros(0, np.int32), np.zeros(0), offset, 0)
        kernels.descend_jointly(
            nothing, problem, start, out, n_threads=self.executor.n_threads, rate=_padded(-num),
            quadratic=own,
        )  # fmt: skip
        return np.ascontiguousarray(out[:n, :K])

    def _newton(self, rows: Array, H: Array, total: Array, rate: Array) -> Array:
        """Return rows (n, K) after a Newton step with the curvature H."""
        start, (n, K) = _padded(rows, FLOOR), rows.shape
        problem = problem_of(
            start, K, "kl", H, total, newton_steps=1, qp_sweeps=_SWEEPS_NEWTON, qp_tolerance=0.0
        )
        out = aligned_copy(start)
        kernels.step(
            problem, H, start, out, wanted=kernels.SUM_FULL, first=0,
            n_threads=self.executor.n_threads, rate=_padded(rate), pseudo=_padded(0 * rate),
        )  # fmt: skip
        return np.ascontiguousarray(out[:n, :K])

    @property
    def _unit(self) -> float:
        return self.last

    def finish(self, settled: bool) -> dict[str, Any]:
        """Move to the last point, or to the one with the best validation, with exact zeros."""
        self.arrive(0)
        self.points.pop("before")
        return super().finish(settled)

    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""
        return (*super().saved_points(), "before")


class DescentToRelativeError(CoordinateDescent, RelativeError):
    """Coordinate descent that ends by the relative error."""

    numbers = (*CoordinateDescent.numbers, "initial")


def _padded(rows: Array, empty: float = 0.0) -> Array:
    """Return rows (n, K) padded to whole slices."""
    n, K = rows.shape
    lanes = in_lane_order(n, -(-n // LANES) * LANES)
    return to_lanes(rows, lanes, kernels.row_stride(K), np.float64, empty)


def _packed(matrices: Array) -> Array:
    """Return symmetric matrices (n, K, K), or lower triangles (n, P), arranged slice by slice."""
    if matrices.ndim == 3:
        matrices = matrices[:, *np.tril_indices(matrices.shape[1])]
    n, size = matrices.shape
    out = np.zeros((-(-n // LANES) * LANES, size))
    out[:n] = matrices
    return aligned_copy(out.reshape(-1, LANES, size).transpose(0, 2, 1))


@dataclass(frozen=True)
class DescendRows(MoveRows):
    """Moves S by coordinate descent on the joint loss of data and labels."""

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        K, before, data = self.A.shape[1], block["S"], self.losses.data
        n_slices, G, total = len(before) // LANES, self.gram, self.A.sum(axis=0)
        B = np.zeros((len(self.B), before.shape[1]), before.dtype)
        B[:, :K] = np.where(self.B > FLOOR, self.B, 0)
        up, down = labels.in_slices(block, len(B), n_slices, self.scale, before.dtype)
        own: dict[str, Any] = {}
        if (entries_of_block := block.get("entries")) is not None:
            here = BlockEntries(entries_of_block, rows_in_float64(block, K), self.A, data)
            if data == "frobenius":
                curvature, added = here.curvature_left_of_rows(G)
                own = {
                    "quadratic": aligned_copy(_packed(curvature), before.dtype),
                    "rate": in_lanes(-added * rows_in_float64(block, K), before),
                }
            else:
                left = here.rows_left(total)
                # a slope for parameters at the floor, which would let loadings grow without bound
                some = left.any(axis=1, keepdims=True)
                own = {"rate": in_lanes(np.maximum(left, some * _LEAST_LEFT * total), before)}
                total = 0 * total
        problem = problem_of(
            self.design, K, data, G, total, newton_steps=_SWEEPS[data],
            labels=B if len(B) else None, label_squares=self.losses.labels == "frobenius",
        )  # fmt: skip
        kernels.descend_jointly(
            sliced_counts(block.counts, len(self.design)), problem, before,
            block.empty("S", before), n_threads=n_threads, up=up, down=down, **own,
        )  # fmt: skip
        return {}


def descent_needs(
    counts: CountMatrix, n_components: int, supervision: Supervision, dtype: Any, losses: Losses,
    n_threads: int, plain: Needs, *, weighted: bool = False,
) -> Needs:  # fmt: skip
    """Return the memory of a fit, given that of multiplicative updates.

    `weighted`: entries have weights, so that each row has its own curvature even for a norm.
    """
    K, T, itemsize = n_components, supervision.n_targets, np.dtype(dtype).itemsize
    packed, lanes = kernels.packed_size(K), -(-counts.shape[1] // LANES) * LANES
    longest = 0 if losses.data == "frobenius" else int(counts.row_nnz.max())
    own = packed * 8 * 3 if weighted and losses.data == "frobenius" else 0
    # of a block: w y and w of labels in the form of the kernels, S in float64
    of_block = 2 * T * itemsize + K * 8 + own
    if "kl" in losses:  # far from the optimum, updates are multiplicative
        of_block = max(of_block, plain.scratch // rows_of_block(counts))
    statistics = packed if losses.data == "kl" else K + (K + packed if weighted else 0)
    gathered = n_threads * (longest * (K + 2) + T) * LANES * itemsize
    return plain._replace(
        shared=plain.shared + lanes * packed * 8 * (2 if own else 0) + T * K * K * 8 * 3,
        sums=lanes * statistics * 8,
        scratch=rows_of_block(counts) * of_block + gathered,
        task_row=plain.task_row + 2 * T * itemsize + own,
        saved_row=plain.saved_row * 2,
    )
