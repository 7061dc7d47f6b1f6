"""NMF with the squared Frobenius norm, by accelerated coordinate descent (HALS).

The objective for weighted counts X' = diag(s) X diag(w) is scikit-learn's,

    |X' - L F^T|^2 / 2 + l1_L |L|_1 + l2_L |L|^2 / 2 + l1_F |F|_1 + l2_F |F|^2 / 2.

With one factor fixed, each row of the other is a quadratic problem with a common matrix, such as
``F^T F``. An iteration reads each order of the counts once, for ``X' F`` and ``X'^T L``. Next to
these products, sweeps over the coordinates of a row are cheap, and several are made (Gillis and
Glineur, 2012, Accelerated multiplicative updates and hierarchical ALS algorithms for NMF).

Both factors start an iteration extrapolated away from those of the iteration before (Ang and
Gillis, 2019, Accelerating nonnegative matrix factorization algorithms using extrapolation). Unlike
there, the pair whose loss decides on the extrapolation is not extrapolated itself: if its loss
rose, it is dropped, and the next iteration starts at the pair before it, without extrapolation, so
that the loss of the accepted pairs never rises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_copy, aligned_empty
from ...counts.base import CountMatrix
from ...counts.blocks import cut_blocks
from ...counts.sell import LANES
from ...engine.monitor import FEWEST, left
from ...engine.protocol import Executor, Needs, Step, Sums, Values
from ...kernels import dense
from ..declared import PointMethod
from ..factors import Array, per_lane, rows_of_sums, sum_lanes, to_lanes
from ..rows_pass import RowsPass
from ..weights.weighting import Weights
from .steps import DescendRows, ScaleRows, SumColumns, SumRows, extrapolated, problem_of

# Sweeps of an iteration; at most for the loadings at the end, and of new samples, which end when a
# row's decrease of the loss is this share of the mean sum of squares that the fit explains, or the
# square of this many times the rounding of the type.
SWEEPS, _SWEEPS_END, _LITTLE, _ROUNDINGS = 4, 1000, 1e-20, 8
# Momentum: at first, limit, its growth and that of the limit, and its cut after a rise of the loss.
_FIRST, _MOST, _GROW, _GROW_LIMIT, _CUT = 0.5, 0.99, 1.1, 1.05, 0.75
# A loss below this share of the sum of squares is rounding.
_ROUNDING = 1e-14
# Arrays of features and of samples in lane order, and of the rows of a block, in float64.
_COPIES_F, _COPIES_L, _COPIES_BLOCK = 7, 3, 3


class Penalties(NamedTuple):
    """Factors of the l1 and l2 norms of L and of F in the objective."""

    l1_L: float = 0.0
    l2_L: float = 0.0
    l1_F: float = 0.0
    l2_F: float = 0.0


class Start(NamedTuple):
    """Start of a fit: L (n, K), or None for zeros, and F (m, K)."""

    L: Array | None
    F: Array


class Hals(PointMethod):
    """Accelerated HALS; the row array of a point has its name, its F is in lane order.

    The points are ``L``, the accepted one, and ``before``, the accepted one before. `start` returns
    the start of a fit; `square` is the sum of squares of the weighted counts.
    """

    record = ("minus_loss", "loss", "relative_gap", "momentum", "bytes_read")
    residuals = ("relative_gap",)
    residual_name = "estimate of the remaining decrease of the loss (relative)"
    numbers: ClassVar[tuple[str, ...]] = (
        "losses", "beta", "beta_accepted", "beta_most", "accepted", "pending",
    )  # fmt: skip

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start],
        n_components: int, weights: Weights, square: float, penalties: Penalties, dtype: Any,
    ):  # fmt: skip
        self.counts, self.executor, self.n_components = counts, executor, n_components
        self.weights, self.square, self.penalties = weights, square, penalties
        self.dtype, self._start, self.points = np.dtype(dtype), start, {}
        w = weights.features
        self._w = None if w is None else per_lane(w, executor.layout.column_order)
        # losses of the accepted points, minus these, after each iteration
        self.losses: list[float] = []
        self.beta = self.beta_accepted = _FIRST
        self.beta_most, self.accepted = _MOST, False
        self.pending: dict[str, Any] = {}

    def start(self) -> None:
        """Move to the start."""
        self.put_known()
        L, F = self._start()
        if L is None:
            lanes = len(self.executor.layout.row_order), self.stride
            zeros = aligned_empty(lanes, self.dtype, self.executor.folder)
            zeros[:] = 0  # in a file perhaps, whose memory is not mapped anew
            self.executor.put("L", zeros)
        else:
            self.put_rows("L", L, empty=0.0)
        self.points["L"] = {"F": self.lanes_of_columns(F[self.feature_order], 0.0)}
        self.copy("L", "before")

    def put_known(self) -> None:
        """Put the weights of samples into the executor."""
        if self.weights.unit:
            self.executor.run(scale_step(self.counts, self.executor.layout, self.weights.features))

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Return the record of the last iteration."""
        if not iteration:
            return None
        return self.pending | {"bytes_read": self.executor.bytes_read}

    def update(self, iteration: int, ending: bool) -> None:
        """Move both factors, and keep them unless the loss rose."""
        K, penalties = self.n_components, self.penalties
        momentum = self.beta if self.accepted else 0.0
        F, n_threads = self._F("L"), self.executor.n_threads
        ahead, out = F, aligned_empty(F.shape, F.dtype)
        if momentum:
            ahead = aligned_empty(F.shape, F.dtype)
            extrapolated(F, self._F("before"), momentum, self.counts.shape[1], ahead, n_threads)
        of_rows, sums = self._moved(self._rows_step(ahead, SWEEPS, momentum=momentum))
        explained = np.zeros(len(F))
        problem = problem_of(
            ahead, _raised(of_rows["gram"], penalties.l2_F), _linear(penalties.l1_F, K), SWEEPS
        )
        kernels.step(
            problem, sums[0], ahead, out, wanted=kernels.SUM_GRADIENT, first=0,
            n_threads=n_threads, scale=self._w, loglik_end=explained,
        )  # fmt: skip
        self._decide(
            out, (self.square - sum_lanes(explained)) / 2 + self._penalty_L(of_rows), momentum
        )

    def _decide(self, F: Array, loss: float, momentum: float) -> None:
        """Accept the new point, ``next`` and F, unless its loss is higher."""
        self.accepted = not self.losses or loss <= -self.losses[-1]
        if self.accepted:
            self.copy("L", "before")
            self.executor.copy("next", "L")
            self.points["L"] = {"F": F}
            if momentum:
                self.beta = self.beta_accepted = min(self.beta_most, _GROW * self.beta)
                self.beta_most = min(_MOST, _GROW_LIMIT * self.beta_most)
        else:
            self.beta_most = self.beta_accepted
            self.beta *= _CUT
        self.executor.drop("next")
        self.losses.append(-loss if self.accepted else self.losses[-1])
        now = -self.losses[-1]
        self.pending = {
            "minus_loss": -now, "loss": now, "relative_gap": self._gap(), "momentum": momentum,
            # without momentum, only rounding can raise the loss
            "blind": not self.accepted and momentum > 0,
        }  # fmt: skip

    def _gap(self) -> float:
        """Return the estimate of how much the loss will still fall, relative to it."""
        now = -self.losses[-1]
        if now <= _ROUNDING * self.square:
            return 0.0
        return 1.0 if len(self.losses) <= FEWEST else min(left(self.losses) / now, 1.0)

    def _moved(self, rows: DescendRows) -> tuple[Values, Sums]:
        """Move the loadings; return the sums of these and of features."""
        K, n_slices = self.n_components, len(self.executor.layout.column_order) // LANES
        _, (of_rows, _), (_, sums) = self.executor.run(rows, SumRows(K), SumColumns(n_slices, K))
        return of_rows, sums

    def _rows_step(self, F: Array, n_sweeps: int, **how: Any) -> DescendRows:
        K, n_threads = self.n_components, self.executor.n_threads
        gram = dense.cross(F, n_threads=n_threads)[:K, :K]
        design = F if self._w is None else aligned_copy(F * self._w.astype(F.dtype)[:, None])
        return rows_step(design, gram, self.penalties, n_sweeps, **how)

    def _penalty_L(self, of_rows: dict[str, Any]) -> float:
        squares = self.penalties.l2_L / 2 * math.fsum(np.diag(of_rows["gram"]))
        return squares + self.penalties.l1_L * math.fsum(of_rows["total"])

    def _F(self, point: str) -> Array:
        return self.points[point]["F"]

    def finish(self, settled: bool) -> dict[str, Any]:
        """Move the loadings to their optimum with the factors fixed."""
        K, F = self.n_components, self._F("L")
        self.points.pop("before")
        self.executor.drop("before")
        little = max(_LITTLE, (_ROUNDINGS * float(np.finfo(self.dtype).eps)) ** 2)
        tolerance = little * self.square / self.counts.shape[0]
        step = self._rows_step(F, _SWEEPS_END, tolerance=tolerance)
        of_rows, sums = self._moved(step)
        self.executor.copy("next", "L")
        self.executor.drop("next")
        if any(self.penalties):  # a topic that no sample has
            F = aligned_copy(F * np.pad(of_rows["total"] > 0, (0, F.shape[1] - K)))
            self.points["L"] = {"F": F}
        loss = self._loss(F[:, :K].astype(np.float64), of_rows, rows_of_sums(sums[0], len(F)))
        self._all_zero = loss > self.square / 2
        if self._all_zero:  # with penalties, there are local optima above the loss of no topics
            loss, self._error = self.square / 2, math.sqrt(self.square)
        return self.pending | {
            "minus_loss": -loss, "loss": loss, "bytes_read": self.executor.bytes_read,
        }  # fmt: skip

    def _loss(self, F: Array, of_rows: dict[str, Any], num: Array) -> float:
        """Return the loss from ``X'^T L``, without w, and the Gram matrix of L, in float64."""
        own, penalties = dense.cross(F), self.penalties
        if self._w is not None:
            num = num * self._w[:, None]
        square = self.square + float((own * of_rows["gram"]).sum())
        square = max(square - 2 * math.fsum((num * F).sum(axis=0)), 0.0)
        self._error = math.sqrt(square)
        of_F = penalties.l2_F / 2 * math.fsum(np.diag(own)) + penalties.l1_F * math.fsum(
            F.sum(axis=0)
        )
        return square / 2 + of_F + self._penalty_L(of_rows)

    def result(self) -> dict[str, Array]:
        """Return L (n, K) and F (m, K), in the order of the counts, and the norm of the errors."""
        L, F = self.plain_rows("L"), self.plain_columns(self._F("L"))
        if self._all_zero:
            F[:] = 0
        L[:, ~F.any(axis=0)] = 0
        return {"L": L, "F": F, "error": np.array(self._error)}

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        return {"F": (len(self.executor.layout.column_order), self.stride)}

    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""
        return "L", "before"

    def set_shared(self, arrays: dict[str, Array]) -> None:
        """Set the factors of the points."""
        super().set_shared({name: aligned_copy(array) for name, array in arrays.items()})


def rows_step(
    design: Array, gram: Array, penalties: Penalties, n_sweeps: int, **how: Any
) -> DescendRows:
    """Return the step that moves loadings with factors fixed, whose Gram matrix is given."""
    K = len(gram)
    return DescendRows(
        design, _raised(gram, penalties.l2_L), _linear(penalties.l1_L, K), penalties.l2_L,
        n_sweeps, **how,
    )  # fmt: skip


def scale_step(counts: CountMatrix, layout: Any, features: Array | None) -> ScaleRows:
    """Return the step that finds the weights of samples of norm 1, given those of features."""
    order = np.ascontiguousarray(layout.column_order[: counts.shape[1]])
    w = np.ones(len(order)) if features is None else features[order]
    return ScaleRows(order, w * w)


def _raised(gram: Array, l2: float) -> Array:
    """Return a Gram matrix with an l2 penalty."""
    return gram + l2 * np.eye(len(gram)) if l2 else gram


def _linear(l1: float, n_components: int) -> Array | None:
    """Return the linear terms of an l1 penalty."""
    return np.full(n_components, l1) if l1 else None


def loadings_pass(
    counts: CountMatrix, L: Array | None, F: Array, weights: Weights, penalties: Penalties,
    n_threads: int, *, explained: bool = False,
) -> RowsPass:  # fmt: skip
    """Return the pass that finds loadings (n, K) with F (m, K) fixed, in float64.

    If `explained` is true, it finds the sum of squares that each row explains (n,) instead. L are
    the loadings of the fit, from which follows the precision; without them, it is that of rounding.
    """
    layout, K = counts.layout(n_threads), F.shape[1]
    F = np.asarray(F, np.float64)
    held = F if weights.features is None else F * weights.features[:, None]
    design = to_lanes(held, layout.column_order, kernels.row_stride(K), np.float64, 0.0)
    steps: tuple[Step, ...] = ()
    if weights.unit:
        steps = (scale_step(counts, layout, weights.features),)
    gram = dense.cross(F, n_threads=n_threads)
    tolerance = 0.0
    if L is not None:
        squares = [float((column * column).sum(dtype=np.float64)) for column in L.T]
        tolerance = _LITTLE * math.fsum(np.diag(gram) * squares) / len(L)
    last = rows_step(design, gram, penalties, _SWEEPS_END, tolerance=tolerance, explained=explained)
    return RowsPass(
        counts, (*steps, last), "explained" if explained else "next", 1 if explained else K,
        needs=loadings_needs(counts, K), n_threads=n_threads,
    )  # fmt: skip


def loadings_needs(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory for loadings of new rows; `row` is the part for each row of a block."""
    stride = kernels.row_stride(n_components)
    return Needs(
        row=(stride * _COPIES_BLOCK + 2) * 8, shared=counts.shape[1] * stride * 8 * 3, sums=0
    )


def hals_needs(counts: CountMatrix, n_components: int, dtype: Any, start: int) -> Needs:
    """Return the memory of a fit; `start` is that of its start."""
    K, stride = n_components, kernels.row_stride(n_components)
    itemsize, lanes = np.dtype(dtype).itemsize, -(-counts.shape[1] // LANES) * LANES
    largest = int(np.diff(cut_blocks(counts.row_nnz)).max())
    # of a block: loadings times the weights of samples, and in float64 for the Gram matrix
    of_block = stride * (itemsize + 2 * 8)
    return Needs(
        row=_COPIES_L * stride * itemsize + K * itemsize + 8,
        shared=lanes * stride * (itemsize * _COPIES_F + 8),
        sums=lanes * K * 8,
        start=start,
        scratch=largest * of_block,
        task_row=_COPIES_L * stride * itemsize + of_block + 8,
        task_shared=lanes * stride * itemsize * 2,
        saved_row=_COPIES_L * stride * itemsize + 8,
    )
