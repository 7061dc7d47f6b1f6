"""Latent Dirichlet allocation by variational inference (mean field), with momentum.

Sample i has topic proportions theta_i ~ Dirichlet(alpha); its counts x_ij are draws from topics
beta_k ~ Dirichlet(eta).  The posterior is approximated by q(theta_i) = Dirichlet(gamma_i) and
q(beta_k) = Dirichlet(lambda_k).  With ``Et_ik = psi(gamma_ik) - psi(sum_k gamma_ik)`` and
``Eb_kj = psi(lambda_kj) - psi(sum_j lambda_kj)`` the evidence lower bound (ELBO) is

    sum_ij x_ij log mu_ij,  mu_ij = sum_k exp(Et_ik + Eb_kj)
    + sum_i [ log G(sum alpha) - log G(sum_k gamma_ik)
              + sum_k ( log G(gamma_ik) - log G(alpha_k) + (alpha_k - gamma_ik) Et_ik ) ]
    + sum_k [ the same of lambda_k and eta ].

The shares ``phi_ijk = exp(Et_ik + Eb_kj) / mu_ij`` of a count are at their optimum in it, and never
stored.  It bounds the log-probability of draws in their order, without ``N_i! / prod_j x_ij!``.
With eta = 0 topics are estimated as points W_kj: Eb is then log W, and the last line is left out.

A plain step (Blei, Ng and Jordan 2003; Geiger and Park, Algorithm 5), counts read once:

1. Rows: ``gamma'_ik = alpha_k + sum_j x_ij phi_ijk``.  The ELBO of the point where they began, and
   sums of Et, are by-products.
2. Columns, from the same phi: ``lambda'_kj = eta + sum_i x_ij phi_ijk``; W' is that, normalised.
3. If alpha is estimated: alpha' maximises the ELBO at gamma' (`estimate_alpha`).

None of these can lower the ELBO. `MeanField` takes them with momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..counts.aligned import aligned_empty
from ..counts.base import CountMatrix
from ..counts.sell import LANES
from ..engine.local import LocalExecutor
from ..engine.protocol import Executor, Needs
from . import fit
from .dirichlet import PIECE, InferRows, estimate_alpha, expected_log, minus_divergence
from .factors import LEAST, Array, aligned_copy, from_lanes, sum_lanes, to_lanes
from .mean_field import MeanField
from .steps import Part, SumColumns
from .transform import plain_rows

# The Poisson NMF that a fit starts from. Fits from one that is cut short end lower; one that is
# fitted further does not make them end higher.
START_ITERATIONS, START_TOLERANCE = 60, 1e-2
# A random start: topics are moved so often with samples that begin anew.
RANDOM_ROUNDS = 30
# Rounds on samples that begin anew in a start, until they change by no more than this on average.
FRESH_STEPS, FRESH_TOLERANCE = 20, 1e-3
# Row arrays in memory at the worst moment; in a task; copies of the topics in float64. Measured:
# 6.2 and 11 of 200,000 samples or 60,000 features, K = 20, the start included.
_COPIES_ROWS, _COPIES_TASK, _COPIES_TOPICS = 7, 6, 12
# Of inference: row arrays of a block, and copies of the topics (measured: 4.1 and 5 to 6).
_COPIES_BLOCK, _COPIES_HELD = 5, 6


class HeldTopics:
    """Topics (m, K), lambda in lane order or W where `eta` is 0, as the rows need them.

    Attributes
    ----------
    design : ndarray (n_lanes, stride)
        exp(Eb), each feature divided by its largest, so that a small eta does not underflow.
    shift : ndarray (m,)
        Logarithms of these.
    bound : float
        The last line of the ELBO.
    """

    def __init__(self, values: Array, eta: float, n_lanes: int, dtype: Any, n_threads: int):
        m, K = values.shape
        self.values, self.eta = values, eta
        self.shift, self.bound, shares = np.zeros(m), 0.0, np.maximum(values, LEAST)
        if eta > 0:
            logs, total = expected_log(values, 0, n_threads), np.empty(K)
            self.shift = logs.max(axis=1)
            self.bound = math.fsum(minus_divergence(values, eta, logs, 0, n_threads))
            kernels.exp_digamma(values, shares, n_threads=n_threads)
            kernels.exp_digamma(values.sum(axis=0), total, n_threads=n_threads)
            shares /= total
            largest = shares.max(axis=1)
            none = largest == 0  # features without counts, and next to no prior
            shares[none], largest[none] = np.exp(logs[none] - self.shift[none, None]), 1
            shares /= largest[:, None]
        lanes = np.append(np.arange(m), np.full(n_lanes - m, -1))
        self.design = to_lanes(shares, lanes, kernels.row_stride(K), dtype, LEAST)

    def after(self, sums: Array) -> Array:
        """Return the topics after a plain step, from sums over the samples (slices, K, 16)."""
        m, K = self.values.shape
        found = np.ascontiguousarray(sums.transpose(0, 2, 1).reshape(-1, K)[:m])
        found *= self.design[:m, :K]
        if self.eta > 0:
            found += self.eta
            return found
        totals = found.sum(axis=0)
        return np.divide(found, totals, out=self.values.copy(), where=totals > 0)


class Start(NamedTuple):
    """Where a fit starts: topics (m, K), and gamma (n, K), by default inferred.

    Topics are moved `rounds` times first, gamma beginning anew each time.
    """

    topics: Array
    gamma: Array | None = None
    rounds: int = 0


def find_start(
    counts: CountMatrix, blocks: Executor, init: str, alpha: Array, eta: float, rng: Any,
    dtype: Any,
) -> Start:  # fmt: skip
    """Return a start: random topics, or expected counts of a Poisson NMF."""
    K = len(alpha)
    if init == "random":
        return Start(random_topics(rng, (counts.shape[1], K), eta), rounds=RANDOM_ROUNDS)
    L, F = fit.factors_of(
        counts, blocks, K, max_iter=START_ITERATIONS, tol=START_TOLERANCE, rng=rng, dtype=dtype
    )
    topics = F * L.sum(axis=0, dtype=np.float64) + eta if eta > 0 else normalized(F)
    L *= F.sum(axis=0, dtype=np.float64).astype(L.dtype)  # in place: it may be on disk
    L += alpha.astype(L.dtype)
    return Start(topics, L)


def random_topics(rng: Any, shape: tuple[int, int], eta: float) -> Array:
    """Return topics (m, K) that are nearly flat."""
    drawn: Array = rng.gamma(100.0, 0.01, shape)
    return drawn if eta > 0 else normalized(drawn)


def normalized(topics: Array) -> Array:
    """Return topics (m, K) whose columns sum to one; those of nothing are flat."""
    totals = topics.sum(axis=0, dtype=np.float64)
    flat = np.full(topics.shape, 1 / len(topics))
    return np.divide(topics, totals, out=flat, where=totals > 0)


class VariationalLDA(MeanField):
    """Variational LDA; a point has ``topics`` (m, K) in lane order, and ``alpha`` (K,).

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    blocks : Executor
    start : callable
        Returns a `Start`.
    alpha : ndarray (K,)
    eta : float
    dtype : float32 or float64
    n_steps : int, default=1
        Rounds on each sample in an iteration, at most.
    fresh_steps, tolerance : int and float
        The same where samples begin anew, and the change on average at which rounds end.
    estimate : {"none", "symmetric", "vector"}, default="none"
        What is estimated of alpha.
    momentum : bool, default=True
    """

    record = ("elbo", "change_components", "change_loadings", "change_prior", "momentum",
              "bytes_read")  # fmt: skip
    residuals = ("change_components", "change_loadings", "change_prior")
    residual_name = "largest change of an iteration"
    gain_per_tol = 1e-2

    def __init__(
        self, counts: CountMatrix, blocks: Executor, start: Callable[[], Start], alpha: Array,
        eta: float, dtype: Any, *, n_steps: int = 1, fresh_steps: int = FRESH_STEPS,
        tolerance: float = FRESH_TOLERANCE, estimate: str = "none", momentum: bool = True,
    ):  # fmt: skip
        super().__init__(counts, blocks, len(alpha), dtype, momentum)
        # rounding keeps the parameters of large samples from coming closer
        least = 8 * float(np.finfo(dtype).eps) * float(counts.row_totals.max(initial=0))
        self.n_steps, self.fresh_steps, self.tolerance = n_steps, fresh_steps, max(tolerance, least)
        self.eta, self.estimate, self._start, self._alpha = eta, estimate, start, np.array(alpha)
        self._order = blocks.layout.column_order[: counts.shape[1]]
        self._totals = counts.column_totals[self._order].astype(np.float64)

    def start(self) -> None:
        """Stand at the start."""
        topics, gamma, rounds = self._start()
        topics, n = np.ascontiguousarray(topics[self._order], np.float64), self.counts.shape[0]
        self.points["gamma"] = {"topics": topics, "alpha": self._alpha}
        if gamma is not None:
            self._put(gamma, np.arange(n))
        for i in range(rounds + 1 if gamma is None else 0):
            self._put(np.ones((1, self.n_components)), np.zeros(n, np.intp))
            self._step(self.fresh_steps)
            if i < rounds:
                self.points["gamma"] = self.points["next"]
        if gamma is None:
            self.blocks.copy("next", "gamma")
        self.copy("gamma", "before")
        self.copy("gamma", "best")

    def _put(self, gamma: Array, rows: Array) -> None:
        """Hand gamma to the executor: for each sample, that row."""
        order, folder = self.blocks.layout.row_order, self.blocks.folder
        order = np.where(order < 0, -1, rows[order])
        lanes = to_lanes(gamma, order, self.stride, self.dtype, 1.0, folder=folder)
        self.blocks.put("gamma", lanes)

    def look(self) -> dict[str, Any]:
        """Make the plain point ``next``; return the record of the point where the fit stands."""
        return self._step(self.n_steps)

    def _step(self, n_steps: int) -> dict[str, Any]:
        topics, alpha = (self.points["gamma"][name] for name in ("topics", "alpha"))
        n_lanes = len(self.blocks.layout.column_order)
        held = HeldTopics(topics, self.eta, n_lanes, self.dtype, self.blocks.n_threads)
        learns = self.estimate != "none"
        infer = InferRows(held.design, alpha, n_steps, self.tolerance, learns=learns)
        parts = (Part(0, n_lanes // LANES, kernels.SUM_GRADIENT),)
        add = SumColumns(held.design, self.n_components, {}, parts, source="theta")
        (found, _), (_, sums) = self.blocks.run(infer, add)
        after, learned = held.after(sums[0]), alpha
        if learns:
            mean = found["logs"] / self.counts.shape[0]
            learned = estimate_alpha(alpha, mean, self.estimate == "symmetric")
        self.points["next"] = {"topics": after, "alpha": learned}
        moved = after / after.sum(axis=0)
        moved -= topics / topics.sum(axis=0)
        return {
            "elbo": float(found["bound"] + (self._totals * held.shift).sum() + held.bound),
            "change_components": float(np.abs(moved, out=moved).sum(axis=0).max()) / 2,
            "change_loadings": float(found["change"].sum()) / 2 / (self.counts.total or 1.0),
            "change_prior": float(np.abs(learned / alpha - 1).max()),
        }

    def feasible(self, shared: dict[str, Array]) -> dict[str, Array]:
        """Return a point whose topics sum to one where they have no prior."""
        return shared if self.eta > 0 else shared | {"topics": normalized(shared["topics"])}

    def online(self, topics: Array, weight: float, n_samples: float) -> Array:
        """Return topics (m, K) after a step towards those of the present counts, a batch.

        lambda <- (1 - weight) lambda + weight (eta + n_samples / n sum_i x_ij phi_ijk)
        """
        self.start()
        found = np.empty(topics.shape)
        found[self._order] = self.points["next"]["topics"]
        if self.eta > 0:
            found = self.eta + n_samples / self.counts.shape[0] * (found - self.eta)
        return (1 - weight) * topics + weight * found

    def result(self) -> dict[str, Array]:
        """Return gamma and its means (n, K), lambda (m, K) in the order of the counts, alpha."""
        topics, gamma = self.points["gamma"]["topics"], self.blocks.get("gamma")
        plain, n, folder = np.empty_like(topics), self.counts.shape[0], self.blocks.folder
        plain[self._order] = topics
        gamma = from_lanes(gamma, self.blocks.layout.row_order, n, self.n_components, folder)
        means = aligned_empty(gamma.shape, gamma.dtype, folder)
        for first in range(0, n, PIECE):
            means[first : first + PIECE] = proportions(gamma[first : first + PIECE])
        alpha = self.points["gamma"]["alpha"]
        return {"gamma": gamma, "proportions": means, "lambda": plain, "alpha": alpha}

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        K = self.n_components
        return {"topics": (self.counts.shape[1], K), "alpha": (K,)}


def proportions(gamma: Array) -> Array:
    """Return the means of Dirichlet distributions with these rows of parameters."""
    shares: Array = gamma / gamma.sum(axis=1, keepdims=True)
    return shares


class Inference:
    """Posteriors of the rows of counts with topics (m, K) held, a block at a time, in float64.

    Samples start from gamma = 1; `n_steps` and `tolerance` are those of `InferRows`.
    """

    def __init__(
        self, counts: CountMatrix, topics: Array, alpha: Array, eta: float, *, n_steps: int,
        tolerance: float, n_threads: int,
    ):  # fmt: skip
        layout, self._K = counts.layout(n_threads), len(alpha)
        self._blocks, order = LocalExecutor(layout, n_threads), layout.column_order
        n_lanes, order = len(order), order[: counts.shape[1]]
        topics = np.ascontiguousarray(topics[order], np.float64)
        held = HeldTopics(topics, eta, n_lanes, np.float64, n_threads)
        self._step = InferRows(held.design, alpha, n_steps, tolerance)
        self._worth = InferRows(held.design, alpha, source="next", target=None)
        self.bound = held.bound
        self._shift = float((counts.column_totals[order] * held.shift).sum())

        def ones(place: Any) -> Array:
            gamma = aligned_copy(np.ones((place.last - place.first, held.design.shape[1])))
            gamma[:, self._K :] = 0
            return gamma

        self._blocks.put_by("gamma", ones)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Rows of one block after the other, and their gamma."""
        for place, made in self._blocks.stream(self._step):
            gamma = plain_rows(self._blocks.layout, place, made["next"], self._K)
            yield slice(place.start, place.stop), gamma

    def elbo(self) -> float:
        """Return what the rows add to the ELBO: all but its last line, which is `bound`."""
        found = [made["bound"] for _, made in self._blocks.stream(self._step, self._worth)]
        return math.fsum(sum_lanes(each) for each in found) + self._shift


def needs_of(counts: CountMatrix, n_components: int, dtype: Any, n_threads: int) -> Needs:
    """Return the memory that a fit needs, that of a Poisson NMF as its start included."""
    itemsize, stride = np.dtype(dtype).itemsize, kernels.row_stride(n_components)
    lanes = -(-counts.shape[1] // LANES) * LANES
    own = Needs(
        row=stride * itemsize * _COPIES_ROWS + 4 * 8,
        shared=lanes * stride * 8 * _COPIES_TOPICS + PIECE * n_components * 8 * 6,
        sums=lanes * n_components * 8,
        task_row=_COPIES_TASK * stride * 8,
        task_shared=lanes * stride * 8 * 2,
        saved_row=stride * 8,
    )
    start = fit.needs_of(counts, n_components, dtype, "auto", n_threads)
    return Needs(*map(max, own, start))


def inference_needs(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory that `Inference` needs; `row` is for each row of a block."""
    m, stride = counts.shape[1], kernels.row_stride(n_components)
    return Needs(
        row=stride * 8 * _COPIES_BLOCK + 8 * 8,
        shared=m * stride * 8 * _COPIES_HELD + PIECE * n_components * 8 * 6,
        sums=0,
    )
