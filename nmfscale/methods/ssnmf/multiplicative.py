"""Semi-supervised NMF by multiplicative updates: X ~ S A^T and Y ~ S B^T with the same S.

Haddock et al., Semi-supervised NMF models for topic modeling in learning tasks, Algorithms 1 to 3
and equation 3, for samples in rows: their X, A S and B S are our X^T, A S^T and B S^T. The loss is

    R(X, S A^T) + supervision * Q(Y, S B^T),

with R and Q squared Frobenius norms or I-divergences ("kl"). An iteration, each stored order of
the counts read once:

1. Columns: sums over the samples at (A, B, S), among them ``X^T S``, or ``(X / S A^T)^T S``. The
   loss of the point is a by-product. A and B move by these sums in this process.
2. Rows: S moves with the new A and B. Divided by the constant of R (2 for a norm, 1 for a
   divergence), the update is ``s <- (s num + pseudo) / (down + rate)``: the labels enter as
   `pseudo` and `rate`, like those of a prior.

S A^T is never formed: a norm needs ``X A`` and ``A^T A``, a divergence S A^T at the nonzeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.blocks import cut_blocks
from ...counts.sell import LANES
from ...engine.protocol import Executor, Needs, Sums, Values
from ...kernels import dense
from ..declared import PointMethod
from ..factors import (
    Array,
    per_lane,
    rows_of_sums,
)
from ..weights import entries
from ..weights.entries import EntryWeights
from . import labels
from .labels import Supervision
from .steps import FLOOR, Clean, Losses, MoveRows, SumColumns, SumSamples, gram

# Keep floor values if zeroing them raises the loss by more than this (relative).
_FELL = 1e-9


class Start(NamedTuple):
    """Start of a fit: non-negative S (n, K), A (m, K) and B (T, K)."""

    S: Array
    A: Array
    B: Array


def random_start(rng: Any, shape: tuple[int, int], n_targets: int, n_components: int) -> Start:
    """Return a random start, with entries of A, then B, then S drawn from [0, 1)."""
    (n, m), K = shape, n_components
    A, B = rng.uniform(size=(m, K)), rng.uniform(size=(n_targets, K))
    return Start(rng.uniform(size=(n, K)), A, B)


class SemiSupervised(PointMethod):
    """Multiplicative updates; row arrays ``S`` and those of `labels` and `entries`.

    `start` returns the start of a fit; `constant` is the part of the loss of the data that does not
    depend on the parameters. With held-out labels the fit ends at the point that predicts them
    best, once `patience` iterations have found no better one.
    """

    record: ClassVar[tuple[str, ...]] = (
        "minus_loss", "loss", "loss_data", "loss_labels", "decrease", "validation", "bytes_read",
    )  # fmt: skip
    residuals = ("decrease",)
    residual_name = "relative decrease of the loss"
    numbers: ClassVar[tuple[str, ...]] = ("first", "last", "best", "best_iteration")
    # whether sums over the samples have the curvature of A and B, too
    curvature = False

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start],
        n_components: int, losses: Losses, supervision: float, targets: Supervision, dtype: Any, *,
        weights: EntryWeights | None = None, constant: float = 0.0, patience: int = 10,
    ):  # fmt: skip
        self.counts, self.executor, self.n_components = counts, executor, n_components
        self.losses, self.supervision, self.known = losses, supervision, targets
        self.dtype, self.constant, self.patience = np.dtype(dtype), constant, patience
        self.weights, self._start = weights, start
        self._weightless = None if weights is None else weights.weightless()[self.feature_order]
        self.first = self.last = math.nan
        self.best, self.best_iteration = -math.inf, 0
        self.points = {}
        self._seen: dict[str, Any] = {}
        self._found: tuple[Values, Sums] = {}, []
        self._of_A: tuple[Array, Array, Array] | None = None

    def start(self) -> None:
        """Put loadings and labels into the executor."""
        S, A, B = self._start()
        self.put_rows("S", S, empty=FLOOR, least=FLOOR)
        A = np.ascontiguousarray(A[self.feature_order], np.float64)
        if self._weightless is not None:
            A[self._weightless] = 0
        if self._supervised:  # a class without labels is not part of the loss
            B = np.where(self._targets_known[:, None], B, 0)
        self.points["S"] = {"A": np.maximum(A, FLOOR), "B": np.maximum(B, FLOOR)}
        self.put_known()
        if self.known.held_out is not None:
            self.copy("S", "best")

    def put_known(self) -> None:
        """Put labels, their weights and the weights of entries into the executor."""
        order, supervision = self.executor.layout.row_order, self.known
        arrays = {labels.TARGETS: supervision.targets, labels.WEIGHTS: supervision.weights}
        if supervision.held_out is not None:
            arrays[labels.HELD_OUT] = supervision.held_out
        for name, values in arrays.items():
            of_lanes: Array = per_lane(values, order) if values.ndim == 1 else values[order]
            if values.ndim == 2:
                of_lanes[order < 0] = 0
            self.executor.put(name, of_lanes)
        if self.weights is not None:
            entries_of_blocks = entries.in_blocks(self.weights.less_one, self.executor.layout)
            self.executor.put("entries", entries_of_blocks)

    def _held(self) -> tuple[Array, Array, Array]:
        """Return A, A in lane order, and A^T A, zeros if the loss of the data is a divergence."""
        A = self.points["S"]["A"]
        if self._of_A is None or self._of_A[0] is not A:
            K = self.n_components
            G = gram(A) if self.losses.data == "frobenius" else np.zeros((K, K))
            self._of_A = A, self.lanes_of_columns(A, FLOOR), G
        return self._of_A

    def look(self) -> dict[str, Any]:
        """Sum the statistics by which A and B move; return the record of the current point."""
        (A, design, G), B = self._held(), self.points["S"]["B"]
        weighted, curvature = self.weights is not None, self.curvature
        step = SumColumns(design, A, self.losses.data, weighted, curvature)
        (values, _), (of_columns, sums) = self.executor.run(
            SumSamples(B, self.losses, curvature), step
        )
        values |= of_columns
        if step.sums_numerators:
            sums[0] = rows_of_sums(sums[0], len(A))
        self._found = values, sums
        if self.losses.data == "frobenius":
            data = (G * values["gram"]).sum() - 2 * math.fsum((sums[0] * A).sum(axis=0))
        else:
            data = float((A.sum(axis=0) * values["total"]).sum()) - values["log_mu"]
        data = float(data + self.constant + values.get("loss_entries", 0.0))
        loss = data + self.supervision * values["loss_labels"]
        return {
            "minus_loss": -loss, "loss": loss, "loss_data": data,
            "loss_labels": values["loss_labels"], "validation": values["validation"],
            "bytes_read": self.executor.bytes_read,
        }  # fmt: skip

    def arrive(self, iteration: int) -> dict[str, Any]:
        """Evaluate the point that an update has reached, or its replacement."""
        return self.look()

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Return the record of the current point; A and B will move by its sums."""
        seen = self.arrive(iteration)
        if not iteration:
            return None
        loss, decrease = seen["loss"], 1.0
        if iteration == 1:
            self.first = loss
        else:
            decrease = self._decrease(loss)
        self.last = loss
        if self.known.held_out is not None:
            if seen["validation"] > self.best:
                self.best, self.best_iteration = seen["validation"], iteration
                self.copy("S", "best")
            elif iteration - self.best_iteration >= self.patience:
                return self._noted(
                    seen | {"decrease": decrease} | dict.fromkeys(self.residuals, 0.0)
                )
        return self._noted(seen | {"decrease": decrease})

    def _noted(self, record: dict[str, Any]) -> dict[str, Any]:
        self._seen = record
        return record

    def update(self, iteration: int, ending: bool) -> None:
        """Move A and B by the current sums, then S."""
        (values, sums), point = self._found, self.points["S"]
        A, B = point["A"], point["B"]
        if self.losses.data == "frobenius":
            down = dense.product(A, values["gram"])
        else:
            down = np.broadcast_to(values["total"], A.shape)
        if self._weightless is not None:
            down = entries.columns_left(down, sums[1], self._weightless)
        A = _multiplied(A, self._numerators(), down)
        B = _multiplied(B, values["up"], values["down"]) if self._supervised else B
        self.points["S"] = {"A": A, "B": B}
        scale = self.losses.scale(self.supervision)
        A, design, G = self._held()
        self.executor.run(MoveRows(design, A, G, B, self.losses, scale))

    def _numerators(self) -> Array:
        return self._found[1][0]

    @property
    def _supervised(self) -> bool:
        return bool(self.known.weights.any())

    @property
    def _targets_known(self) -> Array:
        """Return a mask (T,) of targets with a label of positive weight in some sample."""
        supervision = self.known
        if supervision.targets.ndim == 2:
            wide = (
                supervision.weights
                if supervision.weights.ndim == 2
                else supervision.weights[:, None]
            )
            return np.broadcast_to((wide > 0).any(axis=0), supervision.n_targets)
        weights = np.bincount(
            supervision.targets.astype(np.intp), supervision.weights, supervision.n_targets
        )
        return weights > 0

    def finish(self, settled: bool) -> dict[str, Any]:
        """Move to the last point, or to the one with the best validation, with exact zeros."""
        if self.known.held_out is not None:
            last = self.look()
            if last["validation"] <= self.best:
                self.copy("best", "S")
            self.executor.drop("best")
        at_end = self.look()
        before = self.points["S"]
        self.executor.copy("S", "before")
        self.executor.apply(Clean("S", FLOOR))
        self.points["S"] = {name: np.where(a > FLOOR, a, 0) for name, a in before.items()}
        seen = self.look()
        if not seen["loss"] <= at_end["loss"] + _FELL * abs(at_end["loss"]):
            self.executor.copy("before", "S")
            self.points["S"], seen = before, at_end
        self.executor.drop("before")
        seen |= {"decrease": self._decrease(seen["loss"])}
        if settled:
            seen |= {name: self._seen.get(name, 1.0) for name in self.residuals}
        return seen

    def _decrease(self, loss: float) -> float:
        """Return the relative decrease of the loss in an iteration that ended at this loss."""
        if not self._unit > 0:
            return 1.0
        return max((self.last - loss) / self._unit, 0.0)

    @property
    def _unit(self) -> float:
        return self.first

    def result(self) -> dict[str, Array]:
        """Return S (n, K), A (m, K) in the order of the counts and B (T, K)."""
        A, B = (self.points["S"][name] for name in ("A", "B"))
        return {"S": self.plain_rows("S"), "A": self.plain_columns(A), "B": B}

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        K = self.n_components
        return {"A": (self.counts.shape[1], K), "B": (self.known.n_targets, K)}

    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""
        return ("S",) if self.known.held_out is None else ("S", "best")


class RelativeError(SemiSupervised):
    """A fit that ends when its loss is at most `tol` times that of the start: equation 10."""

    record = (*SemiSupervised.record, "relative_error")
    residuals = ("relative_error",)
    residual_name = "loss relative to that of the start"
    numbers: ClassVar[tuple[str, ...]] = (*SemiSupervised.numbers, "initial")
    initial = math.nan

    def look(self) -> dict[str, Any]:
        """Return the record of the current point; the first one is the start."""
        seen = super().look()
        if math.isnan(self.initial):
            self.initial = seen["loss"]
        return seen | {"relative_error": seen["loss"] / self.initial if self.initial > 0 else 0.0}


def _multiplied(values: Array, up: Array, down: Array) -> Array:
    """Return values * up / down, at least the floor; values with `down` 0 stay."""
    updated = values * up
    np.divide(updated, down, out=updated, where=down > 0)
    np.copyto(updated, values, where=~(down > 0))
    return np.maximum(updated, FLOOR, out=updated)


def multiplicative_needs(
    counts: CountMatrix, n_components: int, supervision: Supervision, dtype: Any,
    weights: EntryWeights | None,
) -> Needs:  # fmt: skip
    """Return the memory of a fit; `weights` are those of entries, if they have any."""
    K, stride, itemsize = n_components, kernels.row_stride(n_components), np.dtype(dtype).itemsize
    lanes = -(-counts.shape[1] // LANES) * LANES
    of_labels = 16 * (supervision.n_targets if supervision.targets.ndim == 2 else 1)
    # S before and after, and the result or the start; the point with the best validation
    n_points = 2 if supervision.held_out is None else 3
    # of a block: S, its terms in float64, and the terms in lane order
    of_block = 3 * K * 8 + 2 * stride * itemsize
    more = 4 * supervision.n_targets * (K + LANES) * 8  # B transposed, its sums, and their results
    if weights is not None:
        of_block += 3 * K * 8
        more += entries.memory_of_entries(weights.less_one)
    return Needs(
        row=n_points * stride * itemsize + K * itemsize + of_labels,
        shared=lanes * stride * 8 * 8 + more,
        sums=lanes * n_components * 8,
        scratch=rows_of_block(counts) * of_block,
        task_row=2 * stride * itemsize + of_block + of_labels,
        task_shared=lanes * stride * 8 * 4,
        saved_row=stride * itemsize,
    )


def rows_of_block(counts: CountMatrix) -> int:
    """Return the number of rows of the largest block."""
    return int(np.diff(cut_blocks(counts.row_nnz)).max())
