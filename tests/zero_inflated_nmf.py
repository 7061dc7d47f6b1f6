"""The worked example of CONTRIBUTING: topics of counts with more zeros than Poisson counts have.

A count is 0 with probability d_j, the dropout of its feature, or a Poisson count otherwise:

    x_ij ~ d_j [x = 0] + (1 - d_j) Poisson(mu_ij),    mu_ij = sum_k l_ik f_jk.

All zeros matter, and not only through sums: the model is dense in them. With the probability w_ij
that a count was not dropped (1 unless x_ij = 0) and expected counts ``n_ijk = x_ij l_ik f_jk /
mu_ij``, an iteration of expectation conditional maximization (ECM) is

    l_ik <- sum_j n_ijk / sum_j w_ij f_jk,
    f_jk <- sum_i n_ijk / sum_i w_ij l_ik  (with the new l),    d_j <- mean of 1 - w_ij.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from nmfscale.extensions import (
    LANES,
    LEAST,
    MINVAL,
    SUM_GRADIENT,
    Block,
    CountMatrix,
    CountModel,
    DeclaredMethod,
    FitOptions,
    LogMu,
    LogShares,
    Needs,
    Part,
    RowArrays,
    RowProblem,
    RowsPass,
    SellBlock,
    Step,
    SumColumns,
    Sums,
    Values,
    aligned_copy,
    checked_array,
    count_constants,
    dense,
    estimator,
    functions,
    lanes_of,
    merged_factors,
    per_lane,
    row_stride,
    rows_of_sums,
    sliced_counts,
    sum_lanes,
    to_lanes,
    update_rows,
)

Array = NDArray[Any]
# Numbers in a dense piece of a block. For new samples: steps at most, and the change of a loading,
# relative to the total of its sample, at which they end.
PIECE, N_STEPS, CHANGE = 1 << 18, 100, 1e-3

# 1. Steps: passes over the blocks of the counts ---------------------------------------------------


@dataclass(frozen=True)
class DenseRows(Step):
    """A step that sees all entries of some rows at a time, in slices of the block."""

    F: Array  # topics in lane order (lanes, stride)
    d: Array  # dropout in lane order (m,)
    n_components: int

    reads = "rows"
    shared = ("F", "d")

    def pieces(self, counts: SellBlock) -> Iterator[tuple[SellBlock, slice]]:
        """Yield some slices at a time, whose dense counts are small, and their lanes."""
        n_slices, size = len(counts.offset) - 1, max(1, PIECE // (LANES * len(self.d)))
        for first in range(0, n_slices, size):
            here = slice(first, min(first + size, n_slices))
            yield counts.slices(here), lanes_of(here)

    @property
    def topics(self) -> Array:
        """Topics (m, K) without padding."""
        return self.F[: len(self.d), : self.n_components]

    def kept(self, counts: SellBlock, L: Array, n_threads: int) -> tuple[Array, Array]:
        """Return w (lanes, m), and log p(x) of the rows without sums of x log mu and log x!."""
        mu = dense.product(L[:, : self.n_components], self.topics.T, n_threads=n_threads)
        there = np.zeros(mu.shape, bool)
        of_slice = np.repeat(np.arange(len(counts.offset) - 1), np.diff(counts.offset))
        lanes = (of_slice[:, None] * LANES + np.arange(LANES)).reshape(-1)
        some = counts.count > 0  # a large count is several entries: this sets one place repeatedly
        there[lanes[some], counts.index[some]] = True
        poisson = (1 - self.d) * functions.exp(-mu, n_threads=n_threads)
        zero = np.maximum(self.d + poisson, LEAST)
        w = np.where(there | (self.d == 0), 1.0, poisson / zero)
        logs = np.where(
            there, functions.log(1 - self.d) - mu, np.where(self.d > 0, functions.log(zero), -mu)
        )
        return w, logs.sum(axis=1)

    def rates(self, w: Array, n_threads: int) -> Array:
        """Return the denominators of an EM step, w F (lanes, K)."""
        return dense.product(w, self.topics, n_threads=n_threads)

    def moved(self, counts: SellBlock, L: Array, w: Array, n_threads: int, **out: Array) -> Array:
        """Return rows after an EM step: sums over nonzeros by a kernel, denominators of zeros."""
        K, stride = self.n_components, self.F.shape[1]
        rate, end = np.zeros_like(L), aligned_copy(L)
        rate[:, :K] = self.rates(w, n_threads)
        total = np.zeros(stride, self.F.dtype)
        update_rows(
            sliced_counts(counts, len(self.F)),
            RowProblem(self.F, total, K, floor=MINVAL, em_steps=1),
            aligned_copy(L), end, n_threads=n_threads, rate=aligned_copy(rate),
            pseudo=aligned_copy(np.zeros_like(L)), **out,
        )  # fmt: skip
        return end


@dataclass(frozen=True)
class UpdateLoadings(DenseRows):
    """Makes ``next`` of ``L``; sums what the objective, the topics and dropout need."""

    arrays = RowArrays(uses=("L",), makes=("next",), saves=("next",))

    def empty_sums(self) -> Sums:
        """Return zeros for sums of w l (m, K) and of 1 - w (m,)."""
        return [np.zeros((len(self.d), self.n_components)), np.zeros(len(self.d))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Update the rows of a block."""
        L, made, K = block["L"], block.empty("next", block["L"]), self.n_components
        log_mu, logs, kkt = (np.zeros(len(L)) for _ in range(3))
        here = self.empty_sums()
        for counts, lanes in self.pieces(block.counts):
            rows = slice(lanes.start, min(lanes.stop, block.n_rows))  # other lanes have no row
            n_rows = max(0, rows.stop - rows.start)
            w, of_rows = self.kept(counts, L[lanes], n_threads)
            logs[rows] = of_rows[:n_rows]
            out = {"loglik_start": log_mu[lanes], "kkt_start": kkt[lanes]}
            made[lanes] = self.moved(counts, L[lanes], w, n_threads, **out)
            here[0] += dense.cross(w[:n_rows], made[rows, :K], n_threads=n_threads)
            here[1] += (1 - w[:n_rows]).sum(axis=0)
        for total, of_block in zip(sums, here, strict=True):
            total += of_block  # once, so that rounding does not depend on the blocks of a task
        loglik, largest = sum_lanes(log_mu + logs), kkt[: block.n_rows].max(initial=0.0)
        return {"loglik": loglik, "max_kkt": float(largest)}


@dataclass(frozen=True)
class InferLoadings(DenseRows):
    """Makes ``found``, loadings of rows with fixed topics and dropout."""

    places: Array  # lane of each feature (m,)

    shared = ("F", "d", "places")
    arrays = RowArrays(uses=("totals",), makes=("found",))

    def rates(self, w: Array, n_threads: int) -> Array:
        """Add features in the order of the counts: that of lanes depends on the other rows."""
        w, topics = w[:, self.places], self.topics[self.places]
        return dense.product(np.ascontiguousarray(w), topics, n_threads=n_threads)

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move each row until it changes little, whatever the others do."""
        K, totals = self.n_components, block["totals"]
        found = aligned_copy(np.zeros((len(totals), self.F.shape[1])))
        found[:, :K] = np.maximum(totals[:, None] / K, MINVAL)
        for counts, lanes in self.pieces(block.counts):
            L, moving = found[lanes], np.ones(lanes.stop - lanes.start, bool)
            for _ in range(N_STEPS):
                w, _ = self.kept(counts, L, n_threads)
                end = self.moved(counts, L, w, n_threads)
                change = np.abs(end - L).max(axis=1)
                L[moving] = end[moving]
                moving &= change > CHANGE * totals[lanes]
                if not moving.any():
                    break
        block.put("found", found)
        return {}


# 2. A method: start, observe, update, finish ------------------------------------------------------


class ZeroInflatedECM(DeclaredMethod):
    """ECM: row array ``L`` and, in this process, ``F`` (m, K) and ``dropout`` (m,)."""

    record = ("log_likelihood", "kkt_loadings", "kkt_factors", "bytes_read")
    residuals = ("kkt_loadings", "kkt_factors")
    F: Array
    dropout: Array
    _next: tuple[Array, Array]

    def __init__(self, counts: CountMatrix, executor: Any, start: Any, K: int, dtype: Any):
        self.counts, self.executor, self._start = counts, executor, start
        self.n_components, self.dtype = K, np.dtype(dtype)
        self._log_factorials, _ = count_constants(counts, executor.layout)

    # What a checkpoint has; shapes, snapshots and resuming follow.
    def row_arrays(self) -> dict[str, str]:
        """Return the row arrays of the state."""
        return {"L": "L"}

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of this process."""
        return {"F": (self.counts.shape[1], self.n_components), "dropout": self.counts.shape[1:]}

    def start(self) -> None:
        """Move to the start."""
        L, F, dropout = self._start()
        self.put_rows("L", L, least=MINVAL)
        self.F, self.dropout = F[self.feature_order], dropout[self.feature_order]

    def _look(self) -> dict[str, Any]:
        """Make ``next``, the next topics and dropout, and return the record of this point."""
        F = self.lanes_of_columns(self.F, LEAST, least=LEAST)
        parts = (Part(0, len(F) // LANES, SUM_GRADIENT),)
        (seen, (weights, dropped)), (_, sums) = self.executor.run(
            UpdateLoadings(F, self.dropout, self.n_components),
            SumColumns(F, self.n_components, parts),
        )
        expected = self.F * rows_of_sums(sums[0], len(self.F))
        moved = np.divide(expected, weights, out=np.zeros_like(expected), where=weights > 0)
        n, m = self.counts.shape
        self._next = moved, np.minimum(dropped / n, 1 - 1e-9)
        return {
            "log_likelihood": seen["loglik"] - self._log_factorials,
            "kkt_loadings": seen["max_kkt"] / (self.counts.total / n or 1.0),
            "kkt_factors": np.abs(moved - self.F).max() / (self.F.max() or 1.0),
            "bytes_read": self.executor.bytes_read,
        }

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Return the record of the present point, None at the start."""
        record = self._look()
        return record if iteration else None

    def update(self, iteration: int, ending: bool) -> None:
        """Move to the next point."""
        self.executor.copy("next", "L")
        self.F, self.dropout = self._next

    def finish(self, settled: bool) -> dict[str, Any]:
        """Return the record of the last point."""
        record = self._look()
        self.executor.drop("next")
        return record

    def result(self) -> dict[str, Array]:
        """Return L (n, K), F (m, K), whose columns sum to one, and dropout (m,)."""
        sizes = self.F.sum(axis=0)
        L, F = self.plain_rows("L"), self.plain_columns(self.F / np.where(sizes > 0, sizes, 1))
        return {"L": L * sizes, "F": F, "dropout": self.plain_columns(self.dropout)}


def needs_of_fit(counts: CountMatrix, n_components: int, dtype: Any) -> Needs:
    """Return the memory that a fit needs besides the counts."""
    stride = row_stride(n_components)
    lanes = -(-counts.shape[1] // LANES) * LANES
    return Needs(
        row=4 * stride * np.dtype(dtype).itemsize,  # start, L, next, result
        shared=8 * lanes * stride * 8, sums=2 * lanes * (n_components + 1) * 8,
        scratch=6 * max(PIECE, LANES * lanes) * 8, saved_row=stride * 8,
        task_row=2 * stride * 8, task_shared=4 * lanes * stride * 8,
    )  # fmt: skip


# 3. An estimator: parameters, fit, and loadings of new samples ------------------------------------


@estimator
class ZeroInflatedNMF(CountModel):
    """Topics of counts with additional zeros, by maximum likelihood.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics.
    dropout : float, default=0.1
        Share of the zeros of a feature that are dropped counts, at the start.
    max_iter, tol, n_init, integer, dtype, n_threads, memory_limit, random_state, verbose, callback
        As in :class:`nmfscale.PoissonNMF`; the defaults of max_iter and tol are 500 and 1e-3.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Topics; rows sum to one.
    loadings_ : ndarray of shape (n_samples, n_components)
        Expected counts of each topic in each sample if none were dropped.
    dropout_ : ndarray of shape (n_features,)
        Probability that a count of the feature is dropped.
    loglik_ : float
        Log-likelihood.
    """

    dropout: float = 0.1
    max_iter: int = 500
    tol: float = 1e-3
    n_init: int = 1

    method_class: ClassVar[type[ZeroInflatedECM]] = ZeroInflatedECM
    array_axes: ClassVar[dict[str, str]] = {"dropout_": "m"}
    start_arguments: ClassVar[dict[str, str]] = {
        "loadings": "loadings_", "components": "components_", "dropout": "dropout_"
    }  # fmt: skip
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "dropout": [Interval(Real, 0, 1, closed="left")],
    }

    def fit(
        self, X: Any, y: Any = None, *, loadings: Any = None, components: Any = None,
        dropout: Any = None, checkpoint: Any = None, checkpoint_every: float = 60.0,
        resume: bool = False, client: Any = None, layer: str | None = None, raw: bool = False,
    ) -> Self:  # fmt: skip
        """Fit the model.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
        loadings, components, dropout : array-like, default=None
            Start, in the shapes of the attributes; by default random topics.
        y, checkpoint, checkpoint_every, resume, client, layer, raw
            As in :meth:`nmfscale.PoissonNMF.fit`.
        """
        options = FitOptions(checkpoint, checkpoint_every, resume, client, layer, raw)
        self.run_fit(X, options, loadings=loadings, components=components, dropout=dropout)
        return self

    def fit_counts(self, X: Any, options: FitOptions, **given: Any) -> Any:
        counts, options = self.counts_of_fit(X, options)
        (n, m), K, dtype = counts.shape, self.n_components, self.fit_dtype()
        shapes = {"loadings": (n, K), "components": (K, m), "dropout": (m,)}
        known = {
            name: value
            if value is None
            else checked_array(value, shapes[name], name, positive=False)
            for name, value in given.items()
        }

        def make(counts: CountMatrix, executor: Any, rng: Any) -> ZeroInflatedECM:
            def start() -> tuple[Array, Array, Array]:
                L, F, dropout = known["loadings"], known["components"], known["dropout"]
                F = rng.uniform(0.5, 1.5, (K, m)) * (counts.column_nnz > 0) if F is None else F
                F = F.T / np.maximum(F.sum(axis=1), LEAST)
                L = np.repeat(counts.row_totals[:, None] / K, K, axis=1) if L is None else L
                zeros = self.dropout * (1 - counts.column_nnz / n)
                return L, F, zeros if dropout is None else dropout

            return ZeroInflatedECM(counts, executor, start, K, dtype)

        fitted = self.fit_blocks(
            counts, needs_of_fit(counts, K, dtype), make, options,
            parts={"start": known.values()},
        )  # fmt: skip
        F = fitted.arrays["F"].astype(dtype)
        self.loadings_, self.components_ = fitted.arrays["L"].astype(dtype), F.T.copy()
        self.dropout_, self.loglik_ = fitted.arrays["dropout"], fitted.objective
        return counts, fitted

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, Array]:
        L, F = merged_factors(self.loadings_, self.components_.T, parts)
        return {"loadings_": L, "components_": np.ascontiguousarray(F.T)}

    def pass_of_loadings(self, counts: CountMatrix, *, gathered: bool, **given: Any) -> RowsPass:
        """Return the pass over new samples."""
        needs = needs_of_fit(counts, self.n_components_, np.float64)
        self.check_memory(counts, needs, gathered=gathered)
        n_threads = self.threads_for(counts)
        layout, F = counts.layout(n_threads), np.float64(self.components_.T)
        order, K = layout.column_order, F.shape[1]
        lanes = to_lanes(F, order, row_stride(K), np.float64, LEAST, LEAST)
        order = order[: counts.shape[1]]
        step = InferLoadings(lanes, self.dropout_[order], K, np.argsort(order))
        totals = per_lane(counts.row_totals, layout.row_order)
        return RowsPass(counts, (step,), "found", K, {"totals": totals}, needs, n_threads)

    @property
    def completion_factors(self) -> Array:
        """Expected counts of each topic, of which a part is dropped, (m, K)."""
        return self.components_.T * (1 - self.dropout_[:, None])

    def log_probability(self, counts: CountMatrix, client: Any) -> float:
        F, found = self.completion_factors, self.pass_of_loadings(counts, gathered=False)
        log_mu = LogMu.of(F, counts.layout(found.n_threads).column_order, found.output)
        steps = *found.steps, log_mu, LogShares(F.sum(axis=0), found.output)
        scored = replace(found, steps=steps, output="log_shares", width=1)
        return float(scored.gather(**self.where_to_run(client)).sum())
