"""Latent Dirichlet allocation by variational inference (mean field), with momentum.

Sample i has topic proportions theta_i ~ Dirichlet(alpha); its counts x_ij are draws from topics
beta_k ~ Dirichlet(eta).  The posterior is approximated by q(theta_i) = Dirichlet(gamma_i) and
q(beta_k) = Dirichlet(lambda_k).  With ``Et_ik = psi(gamma_ik) - psi(sum_k gamma_ik)`` and
``Eb_kj = psi(lambda_kj) - psi(sum_j lambda_kj)`` the evidence lower bound (ELBO) is

    sum_ij x_ij log mu_ij,  mu_ij = sum_k exp(Et_ik + Eb_kj)
    + sum_i [ log G(sum alpha) - log G(sum_k gamma_ik)
              + sum_k ( log G(gamma_ik) - log G(alpha_k) + (alpha_k - gamma_ik) Et_ik ) ]
    + sum_k [ the same of lambda_k and eta ].

Here the shares ``phi_ijk = exp(Et_ik + Eb_kj) / mu_ij`` of a count are at their optimum, and never
stored. The ELBO bounds the log-probability of ordered draws, without ``N_i! / prod_j x_ij!``. With
eta = 0, topics are point estimates W_kj: Eb is then log W, and the last line is left out. Above 0,
eta may be a number for each topic and feature, eta_kj.

A plain step (Blei, Ng and Jordan 2003; Geiger and Park, Algorithm 5), counts read once:

1. Rows: ``gamma'_ik = alpha_k + sum_j x_ij phi_ijk``.  The ELBO of the point before, and sums of
   Et, are by-products.
2. Columns, from the same phi: ``lambda'_kj = eta + sum_i x_ij phi_ijk``; W' is the same,
   normalised.
3. If alpha is estimated: alpha' maximises the ELBO at gamma' (`estimate_alpha`).

None of these can lower the ELBO. `MeanField` takes them with momentum, and then with Newton steps
of W: see `point_topics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...engine.protocol import Executor, Needs, Values
from ...kernels.functions import exp
from ...kernels.resample import gamma_draws
from ..factors import LEAST, Array, Constraints, in_lane_order, to_lanes
from ..poisson import solvers
from ..starts.seeded import seeded_factors
from .dirichlet import InferDirichlet, estimate_alpha, expected_log, minus_divergence
from .mean_field import MeanFieldTopics, Shared, Start, mean_field_needs, points_of
from .posteriors import PIECE, Inference, inference, topics_in_lanes

# Options of the Poisson NMF from which a fit starts. With fewer iterations fits end lower; with
# more they do not end higher.
START_ITERATIONS, START_TOLERANCE = 60, 1e-2
# Number of updates of topics in a random start, each with new posteriors of samples.
RANDOM_ROUNDS = 30
# Maximum number of row arrays in memory; in a task; copies of the topics in float64. Measured:
# 6.2 and 11 with 200,000 samples or 60,000 features, K = 20, including the start.
_COPIES_ROWS, _COPIES_TASK, _COPIES_TOPICS = 7, 6, 12
# Prior of the topics: a number, or (m, K).
Eta = float | Array
# A smaller exponential is not used as a divisor: it has lost digits, or is zero.
_LEAST_TOTAL = 1e-290


class HeldTopics:
    """Topics (m, K), lambda in lane order or W if `eta` is 0, in the form for rows.

    Its `bound` is the last line of the ELBO. `eta` is a number or (m, K) in lane order.
    """

    def __init__(self, values: Array, eta: Eta, n_lanes: int, dtype: Any, n_threads: int):
        m, K = values.shape
        self.shift, self.bound, shares = np.zeros(m), 0.0, np.maximum(values, LEAST)
        if has_prior(eta):
            logs, total = expected_log(values, 0, n_threads), np.empty(K)
            self.shift = logs.max(axis=1)
            self.bound = math.fsum(minus_divergence(values, eta, logs, 0, n_threads))
            kernels.exp_digamma(values.sum(axis=0), total, n_threads=n_threads)
            if total.min() > _LEAST_TOTAL:
                kernels.exp_digamma(values, shares, n_threads=n_threads)
                shares /= total
                scale_to_largest(shares, logs, self.shift)
            else:  # a topic without counts, and almost no prior
                shares = exp(logs - self.shift[:, None])
        lanes = in_lane_order(m, n_lanes)
        self.design = to_lanes(shares, lanes, kernels.row_stride(K), dtype, LEAST)


def find_start(
    counts: CountMatrix, executor: Executor, init: str, alpha: Array, eta: Eta, rng: Any,
    dtype: Any, topics: Array | None = None, gamma: Array | None = None,
    max_iter: int = START_ITERATIONS, constraints: Constraints | None = None,
) -> Start:  # fmt: skip
    """Return a start: topics and gamma as given, random topics, or those of a Poisson NMF.

    `constraints` are the groups of samples in that fit, and the prior of seeds.
    """
    if topics is not None:
        return Start(topics, gamma)
    if gamma is not None:
        start = find_start(
            counts, executor, init, alpha, eta, rng, dtype, max_iter=max_iter,
            constraints=constraints,
        )  # fmt: skip
        return Start(start.topics, gamma)
    K = len(alpha)
    if init == "random":
        prior = None if constraints is None else constraints.prior_factors
        topics = random_topics(
            rng, (counts.shape[1], K), eta, counts, None if prior is None else prior[0]
        )
        return Start(topics, rounds=RANDOM_ROUNDS)
    L, F = solvers.factors_of(
        counts, executor, K, max_iter=max_iter, tol=START_TOLERANCE, rng=rng, dtype=dtype,
        constraints=constraints,
    )  # fmt: skip
    topics = F * L.sum(axis=0, dtype=np.float64) + eta if has_prior(eta) else points_of(F)
    L *= F.sum(axis=0, dtype=np.float64).astype(L.dtype)  # in place: it may be on disk
    L += alpha.astype(L.dtype)
    return Start(topics, L)


def has_prior(eta: Eta) -> bool:
    """Return whether topics have a prior, and are not points."""
    return bool(np.min(eta) > 0)


def random_topics(
    rng: Any, shape: tuple[int, int], eta: Eta, counts: CountMatrix, seeds: Array | None = None
) -> Array:
    """Return topics (m, K) that are nearly flat, or start from their `seeds` in counts."""
    drawn: Array = 0.01 * gamma_draws(100.0, rng, shape[0] * shape[1]).reshape(shape)
    if seeds is not None:
        drawn = shape[0] * seeded_factors(counts, drawn, seeds, rng, 1)
    return drawn if has_prior(eta) else points_of(drawn)


class VariationalLDA(MeanFieldTopics):
    """Variational LDA; a point is ``topics`` (m, K) in lane order and ``alpha`` (K,).

    Parameters
    ----------
    counts, executor, start, dtype, **options
        As in `MeanFieldTopics`.
    alpha : ndarray (K,)
    eta : float or ndarray (m, K)
    estimate : {"none", "symmetric", "vector"}, default="none"
        How alpha is estimated.
    """

    record = ("elbo", "change_components", "change_loadings", "change_prior", "momentum",
              "bytes_read")  # fmt: skip
    residuals = ("change_components", "change_loadings", "change_prior")

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start], alpha: Array,
        eta: Eta, dtype: Any, *, estimate: str = "none", **options: Any,
    ):  # fmt: skip
        points = not has_prior(eta)
        super().__init__(counts, executor, start, len(alpha), dtype, points=points, **options)
        self.eta, self.estimate, self._alpha = eta, estimate, np.array(alpha)
        self._eta = eta[self.feature_order] if isinstance(eta, np.ndarray) else eta

    def begin(self, topics: Array) -> Shared:
        """Return the shared arrays of a point with these topics."""
        return {"topics": topics, "alpha": self._alpha}

    def hold(self, shared: Shared, n_steps: int) -> tuple[HeldTopics, InferDirichlet]:
        """Return the topics of a point in the form for rows, and the step of the rows."""
        n_lanes = len(self.executor.layout.column_order)
        held = HeldTopics(shared["topics"], self._eta, n_lanes, self.dtype, self.executor.n_threads)
        infer = InferDirichlet(
            held.design, shared["alpha"], n_steps, self.tolerance, learns=self.estimate != "none"
        )
        return held, infer

    def arrive(self, shared: Shared, of_rows: Values, expected: Array) -> Shared:
        """Return topics and alpha after a plain step."""
        alpha = shared["alpha"]
        if self.estimate != "none":
            mean = of_rows["logs"] / self.counts.shape[0]
            alpha = estimate_alpha(alpha, mean, self.estimate == "symmetric")
        if has_prior(self.eta):
            expected += self._eta
            return {"topics": expected, "alpha": alpha}
        return {"topics": shares_of(expected, shared["topics"]), "alpha": alpha}

    def change(self, before: Shared, after: Shared) -> dict[str, float]:
        """Return the change of alpha."""
        return {"change_prior": float(np.abs(after["alpha"] / before["alpha"] - 1).max())}

    def feasible(self, shared: dict[str, Array]) -> dict[str, Array]:
        """Return a feasible point: topics sum to one without a prior, or else are above it."""
        if not has_prior(self.eta):
            return shared | {"topics": points_of(shared["topics"])}
        np.maximum(shared["topics"], self._eta, out=shared["topics"])
        return shared

    def least(self, shared: Shared) -> Array:
        """Return the prior alpha (K,): no update leaves gamma below it."""
        return shared["alpha"]

    def online(self, topics: Array, weight: float, n_samples: float) -> Array:
        """Return topics (m, K) after an online step towards those of the current batch.

        lambda <- (1 - weight) lambda + weight (eta + n_samples / n sum_i x_ij phi_ijk)
        """
        self.start()
        estimate = self.plain_columns(self.points["next"]["topics"])
        if has_prior(self.eta):
            estimate = self.eta + n_samples / self.counts.shape[0] * (estimate - self.eta)
        return (1 - weight) * topics + weight * estimate

    def result(self) -> dict[str, Array]:
        """Return gamma and its means (n, K), lambda (m, K) in the order of the counts, alpha."""
        gamma, topics = self.plain_point()
        means = aligned_empty(gamma.shape, gamma.dtype, self.executor.folder)
        for first in range(0, len(means), PIECE):
            means[first : first + PIECE] = proportions(gamma[first : first + PIECE])
        alpha = self.points["gamma"]["alpha"]
        return {"gamma": gamma, "proportions": means, "lambda": topics, "alpha": alpha}

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        K = self.n_components
        return {"topics": (self.counts.shape[1], K), "alpha": (K,)}


def scale_to_largest(shares: Array, logs: Array, shift: Array) -> None:
    """Divide each row of ``exp(logs)`` by its maximum; `shift` is the log of the maximum."""
    largest = shares.max(axis=1)
    none = largest == 0  # features without counts, and almost no prior
    shares[none], largest[none] = exp(logs[none] - shift[none, None]), 1
    shares /= largest[:, None]


def shares_of(expected: Array, topics: Array) -> Array:
    """Normalise expected counts (m, K) of each topic; a topic without counts stays unchanged."""
    totals = expected.sum(axis=0)
    return np.divide(expected, totals, out=topics.copy(), where=totals > 0)


def proportions(gamma: Array) -> Array:
    """Return the means of Dirichlet distributions with these rows of parameters."""
    shares: Array = gamma / gamma.sum(axis=1, keepdims=True)
    return shares


def of_all_features(gamma: Array, alpha: Array, shares: Array) -> Array:
    """Return gamma (n, K), for all features, of samples with only some features measured.

    The excess over the prior is the expected counts of each topic. They are divided by the measured
    share of the topic, `shares` (K,), and keep their total.
    """
    counts = gamma - alpha
    whole = np.divide(counts, shares, out=np.zeros_like(counts), where=shares > 0)
    total = whole.sum(axis=1, keepdims=True)
    scale = np.divide(counts.sum(axis=1, keepdims=True), total, where=total > 0, out=total * 0)
    parameters: Array = alpha + whole * scale
    return parameters


def dirichlet_inference(
    counts: CountMatrix, topics: Array, alpha: Array, eta: Eta, *, n_steps: int,
    tolerance: float, n_threads: int,
) -> Inference:  # fmt: skip
    """Return the inference of posteriors of rows with fixed topics (m, K).

    `n_steps` and `tolerance` are those of `InferDirichlet`.
    """
    topics, n_lanes = topics_in_lanes(counts, topics, n_threads)
    if isinstance(eta, np.ndarray):
        eta, _ = topics_in_lanes(counts, eta, n_threads)
    held = HeldTopics(topics, eta, n_lanes, np.float64, n_threads)
    step = InferDirichlet(held.design, alpha, n_steps, tolerance)
    worth = InferDirichlet(held.design, alpha, source="next", target=None)
    return inference(counts, step, worth, held.shift, held.bound, n_threads)


def lda_needs(
    counts: CountMatrix, n_components: int, dtype: Any, n_threads: int, *, points: bool = False
) -> Needs:
    """Return the memory of a fit, including that of a Poisson NMF as its start.

    `points`: whether topics are point estimates.
    """
    return mean_field_needs(
        counts, n_components, dtype, n_threads, rows=_COPIES_ROWS, task=_COPIES_TASK,
        topics=_COPIES_TOPICS, scratch=PIECE * n_components * 8 * 6, points=points,
    )  # fmt: skip
