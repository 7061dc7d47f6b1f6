"""One call for a whole fit, and one for new rows with the factors held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..data.table import CountTable
from ..kernels import rows as kernels
from .accelerated import first_type, fit_accelerated
from .alternate import METHODS, fit_alternating
from .checkpoint import Checkpoint
from .factor import MINVAL, Held, aligned_copy, in_order, lane_order
from .joint import fit_joint
from .monitor import Monitor
from .threads import limit_blas
from .updates import Halves
from .visits import sliced_counts

Array = NDArray[Any]
SOLVERS = ("auto", "joint-em", *METHODS)
_ROUNDS = 500


@dataclass(frozen=True)
class FitResult:
    """Factors in the user's order and how the fit went."""

    L: Array
    F: Array
    history: Array
    converged: bool
    interrupted: bool

    @property
    def loglik(self) -> float:
        """Poisson log-likelihood at (L, F)."""
        return float(self.history["loglik"][-1])


def fit_factors(
    counts: CountTable,
    L: Array,
    F: Array,
    monitor: Monitor,
    *,
    solver: str = "auto",
    inner_iter: int | None = None,
    extrapolate: bool = True,
    dtype: DTypeLike = np.float64,
    n_threads: int = 1,
    held: Held | None = None,
    folder: str | None = None,
    checkpoint: Checkpoint | None = None,
) -> FitResult:
    """Fit from (L, F) until the monitor says stop; loadings in memory or in files in `folder`."""
    held = held or Held()
    with limit_blas(1), monitor:
        if solver == "auto":
            begin = first_type(dtype, F.shape[1], held, monitor.max_iter)
            halves = fit_accelerated(
                Halves(counts, L, F, begin, n_threads, held, folder),
                monitor,
                exact_type=dtype,
                momentum=extrapolate,
                checkpoint=checkpoint,
            )
            return _result(halves, monitor)
        halves = Halves(counts, L, F, dtype, n_threads, held, folder)
        if solver == "joint-em":
            halves = fit_joint(halves, monitor)
        else:
            # Columns may be scaled only where nothing is held and no prior has its own scale.
            free = all(
                getattr(held, name) is None
                for name in held.__dataclass_fields__
                if name != "weights"
            )
            halves = fit_alternating(
                halves,
                monitor,
                solver=solver,
                inner_iter=inner_iter,
                extrapolate=extrapolate,
                rescale=free,
            )
        return _result(halves, monitor)


def _result(halves: Halves, monitor: Monitor) -> FitResult:
    L, F = halves.L.plain(), halves.F.plain()
    return FitResult(L, F, monitor.history, monitor.converged, monitor.interrupted)


def project_rows(
    counts: CountTable,
    F: Array,
    *,
    L: Array | None = None,
    n_steps: int = _ROUNDS,
    tol: float = 1e-8,
    dtype: DTypeLike = np.float64,
    n_threads: int = 1,
    prior: tuple[Array, Array] | None = None,
) -> Array:
    """Return loadings (n, K) of every row of the counts with the factors F (m, K) held.

    Each row is a convex problem of its own: it takes EM and Newton steps until its KKT residual is
    at most `tol` times its total, and then stands still, whatever its neighbours do.
    """
    dtype = np.dtype(dtype)
    layout = counts.layout(n_threads)
    K, order = F.shape[1], layout.row_order
    stride = kernels.row_stride(K)
    design = lane_order(F, layout.column_order, stride, dtype, least=MINVAL)
    total = np.zeros(stride)
    total[:K] = np.asarray(np.maximum(F, MINVAL), np.float64).sum(axis=0)
    totals = np.zeros(len(order))
    totals[order >= 0] = counts.row_totals[order[order >= 0]]
    if L is None:
        L = counts.row_totals[:, None] / (K * total[:K])
    values = lane_order(L, order, stride, dtype, least=MINVAL)
    after = aligned_copy(values)
    extra = {}
    if prior is not None:
        extra = {
            name: lane_order(p, order, stride, dtype, 0)
            for name, p in zip(("pseudo", "rate"), prior, strict=True)
        }
    # An empty row has no scale to judge a residual by: without a prior it is zero and stays.
    scale = totals if prior is None else totals + extra["pseudo"].sum(axis=1, dtype=np.float64)
    enough = max(tol, 50 * float(np.finfo(dtype).eps)) * scale
    kkt = np.zeros(len(order))
    problem = kernels.RowProblem(
        design,
        total.astype(dtype),
        K,
        floor=MINVAL,
        em_steps=1,
        newton_steps=1,
        qp_sweeps=50,
        qp_tolerance=1e-12,
    )
    for block, rows in layout.visit("rows"):
        sliced = sliced_counts(rows, counts.shape[1])
        here = slice(block.first, block.last)
        arrays = {name: array[here] for name, array in extra.items()}
        moving = scale[here] > 0
        for _ in range(n_steps):
            kernels.visit(
                sliced, problem, values[here], after[here],
                kkt_start=kkt[here], n_threads=n_threads, **arrays,
            )  # fmt: skip
            moving &= kkt[here] > enough[here]
            if not moving.any():
                break
            values[here][moving] = after[here][moving]
    values[values <= MINVAL] = 0
    values[scale == 0] = 0
    out = np.empty((counts.shape[0], K), dtype)
    out[order[order >= 0]] = values[order >= 0, :K]
    return out


def log_mu_sum(counts: CountTable, L: Array, F: Array, *, n_threads: int = 1) -> float:
    """Sum of x log mu over the nonzeros, mu = L F^T."""
    per_row = log_mu_rows(counts, L, F, n_threads=n_threads)
    return in_order(np.pad(per_row, (0, -len(per_row) % 16)))


def log_mu_rows(counts: CountTable, L: Array, F: Array, *, n_threads: int = 1) -> Array:
    """Sum of x log mu over the nonzeros of each row, (n,)."""
    layout = counts.layout(n_threads)
    K, order = F.shape[1], layout.row_order
    stride = kernels.row_stride(K)
    design = lane_order(np.asarray(F, np.float64), layout.column_order, stride, np.float64)
    values = lane_order(np.asarray(L, np.float64), order, stride, np.float64)
    log_mu = np.zeros(len(order))
    problem = kernels.RowProblem(design, np.zeros(stride), K)
    for block, rows in layout.visit("rows"):
        here = slice(block.first, block.last)
        kernels.visit(
            sliced_counts(rows, counts.shape[1]), problem, values[here], None,
            loglik_end=log_mu[here], n_threads=n_threads,
        )  # fmt: skip
    out = np.empty(counts.shape[0])
    out[order[order >= 0]] = log_mu[order >= 0]
    return out
