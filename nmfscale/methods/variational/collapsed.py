"""Latent Dirichlet allocation by collapsed variational inference of order zero (CVB0).

Proportions and topics are integrated out. What remains are the expected counts N_ik of topic k in
sample i and N_kj in feature j, whose sum over samples or features is N_k. Each count x_ij is shared
among the topics in proportions (Asuncion, Welling, Smyth and Teh 2009)

    gamma_ijk ~ (N_ik - g_ijk + alpha_k) (N_kj - g_ijk + eta) / (N_k - g_ijk + m eta),

where g_ijk is the share of this count in the sums. It is computed anew from these sums, instead of
being stored for each nonzero: see `kernels/collapsed.h`. An iteration reads the counts once and
replaces all sums:

1. Rows: ``N'_ik = sum_j x_ij gamma_ijk``.
2. Columns: ``N'_kj = sum_i x_ij gamma_ijk``, from the same gamma.
3. The fixed points of Minka (2000), once each, of the priors that are estimated:
   ``alpha'_k = alpha_k sum_i E[psi(N_ik + alpha_k) - psi(alpha_k)]
   / sum_i [psi(N_i + sum alpha) - psi(sum alpha)]``, and eta' likewise. The expectation is over
   counts that are 0 with positive probability (Teh, Newman and Welling 2007). With N_ik in its
   place, alpha would be far too large for short samples.

The sums of the terms of gamma are probabilities of each count given all others, up to a factor of
the sample. Their log-likelihood is the first column of the history. No objective is known that CVB0
increases in every iteration, and this one may fall. It exceeds that of new samples, because the
others were shared out while the count was there.

From the second iteration on, logarithms of the sums are extrapolated, as in `mean_field`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...engine.protocol import Executor
from ...kernels.functions import digamma, log
from ..declared import PointMethod, Shared
from ..factors import Array, in_lane_order, rows_of_sums, to_lanes
from ..rows_pass import RowsPass
from .collapsed_steps import Priors, ShareColumns, ShareRows, SumChanges, mean_digamma
from .dirichlet import LEAST_ALPHA, MOST_ALPHA
from .mean_field import FRESH_STEPS, FRESH_TOLERANCE, ExtrapolateLog, Start
from .posteriors import PIECE, Inference, inference_needs, topics_in_lanes

# Start and bounds of an estimated eta. Together, a large eta and alpha grow without limit: all
# topics become equal.
START_ETA, LEAST_ETA, MOST_ETA = 0.01, 1e-4, 0.1
# Iterations of the Poisson NMF from which a fit starts; with more, fits do not end higher.
START_ITERATIONS = 20
# With more momentum iterations are not fewer.
MOST_MOMENTUM = 0.9


class CollapsedLDA(PointMethod):
    """CVB0; a point is ``topics`` (m, K) in lane order, N_kj, and ``alpha`` (K,), ``eta`` (1,).

    Its row array has N_ik. Row arrays: ``gamma``, ``next``, ``before``, ``squares``.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    executor : Executor
    start : callable
        Returns a `Start`: N_kj + eta and N_ik + alpha. Random topics are scaled to the counts.
    alpha : ndarray (K,)
    eta : float or None
        None estimates it.
    more : ndarray (m, K), default=None
        What the prior of topics has more than eta. In the formulas above, it adds to N_kj.
    dtype : float32 or float64
        Of the row arrays.
    estimate : {"none", "symmetric", "vector"}
        How alpha is estimated.
    momentum : bool
    """

    record: ClassVar[tuple[str, ...]] = (
        "leave_one_out", "change_components", "change_loadings", "change_prior", "momentum",
        "bytes_read",
    )  # fmt: skip
    residuals = ("change_components", "change_loadings", "change_prior")
    residual_name = "largest change of an iteration"
    result_name = "posterior"
    gain_per_tol = 0.0  # its objective may fall
    ends_with_update = True
    numbers: ClassVar[tuple[str, ...]] = ("count", "beta", "last")

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start], alpha: Array,
        eta: float | None, dtype: Any, *, estimate: str = "none", momentum: bool = True,
        more: Array | None = None,
    ):  # fmt: skip
        self.counts, self.executor, self._start = counts, executor, start
        self.n_components, self.dtype = len(alpha), np.dtype(dtype)
        self.estimate, self.learns_eta, self.momentum = estimate, eta is None, momentum
        self._alpha, self._eta = np.array(alpha), START_ETA if eta is None else eta
        self._more = None if more is None else np.ascontiguousarray(more[self.feature_order])
        self.points = {}
        self.count, self.beta, self.last = 0, 0.0, -np.inf
        self._seen: dict[str, Any] = {}
        self._sizes, self._n_of_size = np.unique(counts.row_totals, return_counts=True)

    def start(self) -> None:
        """Move to the start."""
        topics, gamma, rounds = self._start()
        topics = np.ascontiguousarray(topics[self.feature_order], np.float64)
        if rounds:  # random: the topics share the counts of each feature
            totals = self.counts.column_totals[self.feature_order]
            topics *= (totals / topics.sum(axis=1))[:, None]
        else:
            topics = np.maximum(topics - self._with_more(self._eta), 0)
        shared = {"topics": topics, "alpha": self._alpha, "eta": np.array([self._eta])}
        self.points["gamma"] = shared
        if gamma is None:
            step = self._rows(shared, FRESH_STEPS, FRESH_TOLERANCE)
            self.executor.run(replace(step, target="gamma", source="none", learns=False))
        else:
            self.put_rows("gamma", np.maximum(gamma - self._alpha.astype(gamma.dtype), 0), empty=0)
        self.copy("gamma", "before")

    def _with_more(self, values: Any) -> Any:
        """Return numbers of topics plus what their prior has more than eta."""
        return values if self._more is None else values + self._more

    def _shares(self, shared: Shared) -> Array:
        posterior: Array = self._with_more(shared["topics"]) + shared["eta"]
        return posterior / posterior.sum(axis=0)

    def _priors(self, shared: Shared) -> Priors:
        eta = float(shared["eta"][0])
        total = shared["topics"].sum(axis=0) + len(shared["topics"]) * eta
        if self._more is not None:
            total = total + self._more.sum(axis=0)
        return Priors(shared["alpha"], eta, 1 / total)

    def _rows(self, shared: Shared, n_steps: int = 1, tolerance: float = 0.0) -> ShareRows:
        lanes = in_lane_order(len(shared["topics"]), len(self.executor.layout.column_order))
        held = self._with_more(shared["topics"])
        design = to_lanes(held, lanes, self.stride, self.dtype, 0)
        learns = self.estimate != "none" and self.n_components > 1
        return ShareRows(design, self._priors(shared), n_steps, tolerance, learns=learns)

    def _look(self) -> dict[str, Any]:
        """Compute the point ``next``; return the record of the current point."""
        shared = self.points["gamma"]
        rows = self._rows(shared)
        columns = ShareColumns(rows.design, rows.priors)
        (of_rows, _), (changes, _), (_, (sums,)) = self.executor.run(
            rows, SumChanges(shared["alpha"]), columns
        )
        both = rows_of_sums(sums, self.counts.shape[1])
        topics, squares = (both[:, at : at + self.n_components] for at in (0, self.n_components))
        self.points["next"] = after = {
            "topics": np.ascontiguousarray(topics),
            "alpha": self._next_alpha(shared["alpha"], changes.get("excess")),
            "eta": self._next_eta(shared["eta"], topics, squares),
        }
        moved = self._shares(after) - self._shares(shared)
        change = max(
            float(np.abs(after[name] / shared[name] - 1).max()) for name in ("alpha", "eta")
        )
        return {
            "leave_one_out": of_rows["bound"] + self._of_sizes(shared["alpha"]),
            "change_components": float(np.abs(moved).sum(axis=0).max()) / 2,
            "change_loadings": float(changes["change"].sum()) / 2 / (self.counts.total or 1.0),
            "change_prior": change,
            "momentum": self.beta,
            "bytes_read": self.executor.bytes_read,
        }

    def _of_sizes(self, alpha: Array) -> float:
        """Return -sum_i N_i log(N_i - 1 + sum alpha)."""
        return of_sizes(self._sizes, self._n_of_size, alpha)

    def _next_alpha(self, alpha: Array, excess: Array | None) -> Array:
        total = float(alpha.sum())
        sizes = digamma(self._sizes + total) - digamma(total)
        below = float((self._n_of_size * sizes).sum())
        if excess is None or below <= 0:
            return alpha
        if self.estimate == "symmetric":
            excess = np.full_like(excess, excess.mean())
        clipped: Array = np.clip(alpha * excess / below, LEAST_ALPHA, MOST_ALPHA)
        return clipped

    def _next_eta(self, eta: Array, topics: Array, squares: Array) -> Array:
        m, n_threads = len(topics), self.executor.n_threads
        more = 0.0 if self._more is None else self._more.sum(axis=0)
        below = m * (digamma(topics.sum(axis=0) + m * eta + more) - digamma(m * eta + more)).sum()
        if not self.learns_eta or m == 1 or below <= 0:
            return eta
        excess = mean_digamma(
            np.ascontiguousarray(topics), np.ascontiguousarray(squares), self._with_more(eta),
            n_threads,
        )  # fmt: skip
        clipped: Array = np.clip(eta * (excess.sum(axis=0).sum() / below), LEAST_ETA, MOST_ETA)
        return clipped

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Compute the next point, and on the way the record of the current point."""
        self._seen = self._look()
        return self._seen if iteration else None

    def update(self, iteration: int, ending: bool) -> None:
        """Move to the next point, extrapolated unless the log-likelihood fell."""
        fell = self._seen["leave_one_out"] < self.last
        self.count, self.beta = max(self.count // 2, 1) if fell else self.count + 1, 0.0
        self.last = self._seen["leave_one_out"]
        if self.momentum and not ending and not fell:
            self.beta = min((self.count - 1) / (self.count + 2), MOST_MOMENTUM)
        if self.beta:
            after, before = self.points["next"], self.points["before"]
            further = np.empty_like(after["topics"])
            kernels.extrapolate_log(
                after["topics"], before["topics"], further, self.beta,
                n_threads=self.executor.n_threads,
            )  # fmt: skip
            self.points["gamma"] = after | {"topics": further}
            self.executor.apply(ExtrapolateLog(self.beta))
        else:
            self.copy("next", "gamma")
        self.copy("next", "before")

    def finish(self, settled: bool) -> dict[str, Any]:
        """Return the record of the last point."""
        self.executor.drop("before")
        numbers = self._look()
        self.executor.drop("next", "squares")
        return numbers

    def result(self) -> dict[str, Array]:
        """Return N_ik + alpha and its means (n, K), N_kj + eta (m, K), alpha, eta."""
        shared, gamma = self.points["gamma"], self.plain_rows("gamma")
        means = aligned_empty(gamma.shape, gamma.dtype, self.executor.folder)
        for first in range(0, len(gamma), PIECE):
            rows = slice(first, first + PIECE)
            gamma[rows] += shared["alpha"].astype(gamma.dtype)
            means[rows] = gamma[rows] / gamma[rows].sum(axis=1, keepdims=True)
        topics = self.plain_columns(self._with_more(shared["topics"])) + shared["eta"]
        return {
            "gamma": gamma, "proportions": means, "lambda": topics, "alpha": shared["alpha"],
            "eta": shared["eta"],
        }  # fmt: skip

    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""
        return "gamma", "before"

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        K = self.n_components
        return {"topics": (self.counts.shape[1], K), "alpha": (K,), "eta": (1,)}


def of_sizes(sizes: Array, n_of_size: Any, alpha: Array) -> float:
    """Return -sum_i N_i log(N_i - 1 + sum alpha), given how many samples have each size N_i."""
    others = np.maximum(np.asarray(sizes, np.float64) - 1, 0) + alpha.sum()
    return -float((n_of_size * (sizes * log(others))).sum())


def collapsed_inference(
    counts: CountMatrix, topics: Array, alpha: Array, *, n_steps: int, tolerance: float,
    n_threads: int,
) -> Inference:  # fmt: skip
    """Return the inference of rows with known topics (m, K), whose columns sum to one.

    Its "posteriors" are N_ik + alpha_k. Its "bound" is the log-probability of each count given the
    other counts of its sample. `n_steps` and `tolerance` are those of `ShareRows`.
    """
    topics, n_lanes = topics_in_lanes(counts, topics, n_threads)
    stride = kernels.row_stride(len(alpha))
    design = to_lanes(topics, in_lane_order(len(topics), n_lanes), stride, np.float64, 0)
    priors = Priors(np.asarray(alpha), None, np.ones(len(alpha)))
    step = ShareRows(design, priors, n_steps, tolerance)
    worth = replace(step, n_steps=1, source="next", target=None)
    needs, sizes = inference_needs(counts, len(alpha)), counts.row_totals
    rows_pass = RowsPass(counts, (step,), "next", len(alpha), needs=needs, n_threads=n_threads)
    bounds = replace(rows_pass, steps=(step, worth), output="bound", width=1)
    loadings = rows_pass.then(lambda rows, N: N + alpha)
    return Inference(loadings, bounds, 0.0, of_sizes(sizes, 1, alpha), 0.0)
