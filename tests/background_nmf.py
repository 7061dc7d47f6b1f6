"""The worked example of CONTRIBUTING: topics beside a known background.

Droplets with single cells also hold RNA from outside of the cell. Its profile a (m,) is known from
empty droplets. How much of it sample i has, r_i, is estimated with the topics:

    x_ij ~ Poisson(sum_k l_ik f_jk + r_i a_j).

Let L have r as its last column, and F have a. With the expected counts of each component
``n_ijk = x_ij l_ik f_jk / (L F^T)_ij``, and columns of F that sum to one, an iteration of EM is

    l_ik <- sum_j n_ijk,    f_jk <- sum_i n_ijk / sum_ij n_ijk,    f_j of the background stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from nmfscale import kernels
from nmfscale.counts.base import CountMatrix
from nmfscale.counts.names import of_features
from nmfscale.counts.sell import LANES
from nmfscale.engine.protocol import Block, Needs, RowArrays, Step, Sums, Values
from nmfscale.methods.declared import DeclaredMethod
from nmfscale.methods.factors import LEAST, MINVAL, Array, rows_of_sums, sum_lanes
from nmfscale.methods.merging import merged_factors
from nmfscale.methods.poisson.objective import count_constants
from nmfscale.methods.poisson.steps import Part, SumColumns
from nmfscale.methods.rows_pass import RowsPass
from nmfscale.methods.slices import sliced_counts
from nmfscale.methods.transform import projection, projection_needs
from nmfscale.models.base import CountModel
from nmfscale.models.fit_options import FitOptions
from nmfscale.models.validation import checked_array

# 1. A step: one pass over the blocks of the counts ------------------------------------------------


@dataclass(frozen=True)
class UpdateLoadings(Step):
    """Makes ``next`` from ``L`` by an EM step; adds up what the objective needs of ``L``."""

    design: Array  # F in lane order (lanes, stride)
    n_components: int

    reads = "rows"
    shared = ("design",)
    arrays = RowArrays(uses=("L",), makes=("next",), saves=("next",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Update the rows of a block."""
        L, ones = block["L"], np.ones(self.design.shape[1], self.design.dtype)
        log_mu, kkt = np.zeros(len(L)), np.zeros(len(L))
        K, sliced = self.n_components, sliced_counts(block.counts, len(self.design))
        kernels.update_rows(
            sliced, kernels.RowProblem(self.design, ones, K, floor=MINVAL, em_steps=1), L,
            block.empty("next", L), n_threads=n_threads, loglik_start=log_mu, kkt_start=kkt,
        )  # fmt: skip
        expected = L[: block.n_rows, :K].sum(dtype=np.float64)
        largest = float(kkt[: block.n_rows].max(initial=0.0))
        return {"log_mu": sum_lanes(log_mu), "expected": float(expected), "max_kkt": largest}


# 2. A method: start, observe, update, finish ------------------------------------------------------


class BackgroundEM(DeclaredMethod):
    """EM for topics beside a background; row array ``L`` and, in this process, ``F`` (m, K + 1)."""

    record = ("loglik", "kkt_loadings", "kkt_factors", "bytes_read")
    residuals = ("kkt_loadings", "kkt_factors")
    F: Array
    _expected_counts: Array

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
        return {"F": (self.counts.shape[1], self.n_components)}

    def start(self) -> None:
        """Move to the start."""
        L, F = self._start()
        self.put_rows("L", L, least=MINVAL)
        self.F = F[self.feature_order]

    def _look(self) -> dict[str, Any]:
        """Make ``next``, sum up the expected counts, and return the record of the present point."""
        design = self.lanes_of_columns(self.F, LEAST, least=LEAST)
        parts = (Part(0, len(design) // LANES, kernels.SUM_GRADIENT),)
        (seen, _), (_, sums) = self.executor.run(
            UpdateLoadings(design, self.n_components),
            SumColumns(design, self.n_components, parts),
        )
        self._expected_counts = found = self.F * rows_of_sums(sums[0], len(self.F))
        residuals = np.abs(found - self.F * found.sum(axis=0))[:, :-1]
        means = [self.counts.total / size or 1.0 for size in self.counts.shape]
        return {
            "loglik": seen["log_mu"] - seen["expected"] - self._log_factorials,
            "kkt_loadings": seen["max_kkt"] / means[0],
            "kkt_factors": residuals.max() / means[1],
            "bytes_read": self.executor.bytes_read,
        }

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Return the record of the present point, None at the start."""
        record = self._look()
        return record if iteration else None

    def update(self, iteration: int, ending: bool) -> None:
        """Move to the next point; the background stays."""
        self.executor.copy("next", "L")
        totals = self._expected_counts.sum(axis=0)
        moved = np.divide(self._expected_counts, totals, out=self.F.copy(), where=totals > 0)
        moved[:, -1] = self.F[:, -1]
        self.F = moved

    def finish(self, settled: bool) -> dict[str, Any]:
        """Return the record of the last point."""
        record = self._look()
        self.executor.drop("next")
        return record

    def result(self) -> dict[str, Array]:
        """Return L (n, K + 1) and F (m, K + 1) in the order of the counts."""
        return {"L": self.plain_rows("L"), "F": self.plain_columns(self.F)}


def needs_of_fit(counts: CountMatrix, n_components: int, dtype: Any) -> Needs:
    """Return the memory that a fit needs besides the counts."""
    stride = kernels.row_stride(n_components)
    lanes = -(-counts.shape[1] // LANES) * LANES
    return Needs(
        row=4 * stride * np.dtype(dtype).itemsize,  # start, L, next, result
        shared=6 * lanes * stride * 8, sums=lanes * n_components * 8, saved_row=stride * 8,
        task_row=2 * stride * 8, task_shared=2 * lanes * stride * 8,
    )  # fmt: skip


# 3. An estimator: parameters, fit, and loadings of new samples ------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class BackgroundNMF(CountModel):
    """Topics beside a background of known profile, by maximum likelihood.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics besides the background.
    max_iter, tol, n_init, integer, dtype, n_threads, memory_limit, random_state, verbose, callback
        As in :class:`nmfscale.PoissonNMF`; the defaults of max_iter and tol are 500 and 1e-3.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Topics; rows sum to one.
    loadings_ : ndarray of shape (n_samples, n_components)
        Expected counts of each topic in each sample.
    background_, background_counts_ : ndarray of shape (n_features,) and (n_samples,)
        Profile of the background, which sums to one, and its expected counts in each sample.
    loglik_ : float
        Poisson log-likelihood.
    """

    max_iter: int = 500
    tol: float = 1e-3
    n_init: int = 1

    _method: ClassVar[type[BackgroundEM]] = BackgroundEM
    _axes: ClassVar[dict[str, str]] = {"background_": "m", "background_counts_": "n"}

    def fit(
        self, X: Any, y: Any = None, *, background: Any = None, checkpoint: Any = None,
        checkpoint_every: float = 60.0, resume: bool = False, client: Any = None,
        layer: str | None = None, raw: bool = False,
    ) -> Self:  # fmt: skip
        """Fit the model.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
        background : array-like of shape (n_features,), default=None
            Counts or shares of the features in the background; by default their totals in X.
        y, checkpoint, checkpoint_every, resume, client, layer, raw
            As in :meth:`nmfscale.PoissonNMF.fit`.
        """
        options = FitOptions(checkpoint, checkpoint_every, resume, client, layer, raw)
        self._fit(X, options, background=background)
        return self

    def _fit_counts(self, X: Any, options: FitOptions, *, background: Any) -> Any:
        counts, options = self._counts_of_fit(X, options)
        m, K, dtype = counts.shape[1], self.n_components + 1, self._dtype()
        given = counts.column_totals if background is None else background
        given = of_features(given, counts, "background")
        profile = checked_array(given, (m,), "background", positive=False).astype(float)
        profile = profile / (profile.sum() or 1.0)

        def make(counts: CountMatrix, executor: Any, rng: Any) -> BackgroundEM:
            def start() -> tuple[Array, Array]:
                F = rng.uniform(0.5, 1.5, (m, K)) * (counts.column_totals > 0)[:, None]
                F[:, -1] = profile
                L = np.repeat(counts.row_totals[:, None] / K, K, axis=1)
                return L, F / np.maximum(F.sum(axis=0), LEAST)

            return BackgroundEM(counts, executor, start, K, dtype)

        fitted = self._fit_blocks(
            counts, needs_of_fit(counts, K, dtype), make, options, parts={"background": (profile,)}
        )
        L, F = fitted.arrays["L"], fitted.arrays["F"].astype(dtype)
        self.loadings_, self.background_counts_ = np.ascontiguousarray(L[:, :-1]), L[:, -1].copy()
        self.components_, self.background_ = np.ascontiguousarray(F[:, :-1].T), F[:, -1].copy()
        self.loglik_ = fitted.objective
        return counts, fitted

    def _merged(self, parts: list[list[int]]) -> dict[str, Array]:
        L, F = merged_factors(self.loadings_, self.components_.T, parts)
        return {"loadings_": L, "components_": np.ascontiguousarray(F.T)}

    def _projection(self, counts: CountMatrix, *, gathered: bool, **options: Any) -> RowsPass:
        """Return the pass over new samples; the last loading is that of the background."""
        needs = projection_needs(counts, self.n_components_ + 1)
        self._check_memory(counts, needs, gathered=gathered)
        return projection(counts, self._seen_factors, n_threads=self._threads(counts), **options)

    def _pass_of_loadings(self, counts: CountMatrix, *, gathered: bool, **given: Any) -> RowsPass:
        return self._projection(counts, gathered=gathered).then(lambda rows, L: L[:, :-1])

    @property
    def _seen_factors(self) -> Array:
        return np.column_stack([self.components_.T, self.background_])

    def _seen_loadings(self, counts: CountMatrix) -> Array:
        return self._projection(counts, gathered=True).gather()

    def _log_probability(self, counts: CountMatrix, client: Any) -> float:
        scored = self._projection(counts, gathered=False, scored=True)
        return float(scored.gather(**self._where(client)).sum())
