"""One call for a whole fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..counts.base import CountMatrix
from ..engine.checkpoint import Checkpoint
from ..engine.monitor import Monitor
from ..engine.session import Site
from ..engine.threads import single_blas_thread
from .alternating import METHODS, fit_alternating
from .factors import Held
from .joint_em import fit_joint
from .newton import first_type, fit_accelerated
from .poisson import Halves

Array = NDArray[Any]
SOLVERS = ("auto", "joint-em", *METHODS)


@dataclass(frozen=True)
class FitResult:
    """Factors in the user's order and how the fit went; `stopped` by the callback."""

    L: Array
    F: Array
    history: Array
    converged: bool
    interrupted: bool
    stopped: bool

    def scaled(self, scales: Array, held: Held) -> FitResult:
        """Return the result of a fit with loadings times `scales` at the scale that was given."""
        if (scales == 1).all():
            return self
        history = self.history.copy()
        history["loglik"] += held.log_scales(scales)
        L, F = (A * d.astype(A.dtype) for A, d in ((self.L, 1 / scales), (self.F, scales)))
        return replace(self, L=L, F=F, history=history)

    @property
    def loglik(self) -> float:
        """Poisson log-likelihood at (L, F)."""
        return float(self.history["loglik"][-1])


def fit_factors(
    counts: CountMatrix,
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
    site: Site | None = None,
) -> FitResult:
    """Fit from (L, F) until the monitor says stop.

    Loadings are in memory, in files in `folder`, or with the workers of `site`, which has the
    method "auto" only.
    """
    held = held or Held()
    with single_blas_thread(), monitor:
        if solver == "auto":
            begin = first_type(dtype, counts, F.shape[1], held, monitor.max_iter, n_threads)
            if site is None:
                halves = Halves(counts, L, F, begin, n_threads, held, folder)
            else:
                rows = site.rows(counts, L, begin, held)
                halves = Halves.over(counts, rows, F, begin, n_threads, held)
            fit_accelerated(
                halves,
                monitor,
                exact_type=dtype,
                momentum=extrapolate,
                checkpoint=checkpoint,
            )
            return _result(halves, monitor)
        halves = Halves(counts, L, F, dtype, n_threads, held, folder)
        if solver == "joint-em":
            fit_joint(halves, monitor)
        else:
            # Columns may be scaled only where nothing is held and no prior has its own scale.
            free = all(
                getattr(held, name) is None
                for name in held.__dataclass_fields__
                if name != "weights"
            )
            fit_alternating(
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
    ends = monitor.converged, monitor.interrupted, monitor.stopped
    return FitResult(L, F, monitor.history, *ends)
