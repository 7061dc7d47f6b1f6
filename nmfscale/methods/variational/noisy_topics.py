"""The noisy topic model, by variational EM (mean field) with momentum.

Component k gives z_ijk of the counts x_ij = sum_k z_ijk, and

    z_ijk ~ Poisson(l_ik mu_j u_jk),   u_jk ~ Gamma(theta_jk, theta_jk)   (shape, rate: mean 1).

All topics share the means mu of the features, and depart from them by u.  The posterior is
approximated by q(u_jk) = Gamma(theta_jk + n_jk, theta_jk + m_jk) and shares pi_ijk of the counts.
With S_k = sum_i l_ik the evidence lower bound (ELBO) at the best shares is

    sum_ij x_ij log( mu_j sum_k l_ik exp(E log u_jk) ) - sum_jk mu_j S_k E u_jk - sum_ij log x_ij!
    + sum_jk E[ log p(u_jk) - log q(u_jk) ]                        (see `gamma_noise`).

A plain step, in one read of the counts, with the shares
``pi_ijk = l_ik exp(E log u_jk) / sum_k' l_ik' exp(E log u_jk')``:

1. Rows: ``l'_ik = sum_j x_ij pi_ijk / sum_j mu_j E u_jk``: an EM step.
2. Columns: ``n'_jk = sum_i x_ij pi_ijk``, from the rows before the step.
3. ``mu'_j = sum_i x_ij / sum_k E u_jk S'_k``.
4. ``m'_jk = mu'_j S'_k``, and for each pair theta' and q(u) jointly: theta' maximises the ELBO with
   the best q(u) for that theta. Or theta has a mixture prior (`mixture_noise`) in the place of free
   parameters, and its shares are updated.

None of these can lower the ELBO.  Only the product of l and mu matters, so mu is normalised once,
at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...engine.protocol import Block, Executor, Needs, RowArrays, Step, Sums, Values
from ...kernels.functions import exp, log, xlogy
from ..factors import LEAST, MINVAL, Array, Factor, per_lane
from ..poisson import solvers
from ..poisson.objective import count_constants
from ..poisson.steps import UpdateRows
from .gamma_noise import FreeNoise, Posterior
from .mean_field import MeanField, mean_field_needs
from .mixture_noise import MixtureNoise
from .posteriors import change_of

# Options of the Poisson NMF from which a fit starts.
START_ITERATIONS, START_TOLERANCE = 200, 1e-3
# Row arrays in memory at the worst moment; in a task; arrays (m, K) in float64. Measured: 6.0 and
# 23 with 200,000 samples or 60,000 features, K = 20, including the start.
_COPIES_ROWS, _COPIES_TASK, _COPIES_FACTORS = 7, 6, 26


@dataclass(frozen=True)
class Movement(Step):
    """Sums loadings before and after a step, and the change of each component."""

    n_components: int
    source: str = "gamma"
    target: str = "next"

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the loadings before and after a move."""
        return RowArrays((self.source, self.target))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        K, n = self.n_components, block.n_rows
        before, after = block[self.source], block[self.target]
        total, total_next = (Factor(values, n, K).column_sums()[:K] for values in (before, after))
        return {"total": total, "total_next": total_next,
                "change": change_of(before, after, n, K)}  # fmt: skip


class Start(NamedTuple):
    """Start of a fit: loadings (n, K), means (m,), counts (m, K) of topics in features.

    Without counts u is one.
    """

    L: Array
    mu: Array
    counts: Array | None = None


class FixedParameters(NamedTuple):
    """Masks of samples (n,) with fixed loadings, and of features (m,) with fixed means."""

    samples: Array | None = None
    features: Array | None = None

    @property
    def free(self) -> bool:
        """Whether nothing is fixed, so that loadings and means are determined up to scale only."""
        return self.samples is None and self.features is None


def find_start(
    counts: CountMatrix, executor: Executor, n_components: int, init: str, rng: Any, dtype: Any,
    L: Array | None = None, mu: Array | None = None,
) -> Start:  # fmt: skip
    """Return a start, with loadings and means if these are given."""
    of_topics = None
    if L is None and init == "random":
        # exponential numbers, as from rng.gamma(1.0)
        L = -log(1.0 - rng.random_sample((counts.shape[0], n_components)))
        L *= (counts.row_totals / np.maximum(L.sum(axis=1), LEAST))[:, None]
    elif L is None:
        L, F = solvers.factors_of(
            counts, executor, n_components, max_iter=START_ITERATIONS, tol=START_TOLERANCE, rng=rng,
            dtype=dtype,
        )  # fmt: skip
        of_topics = F * L.sum(axis=0, dtype=np.float64)
        sizes = F.sum(axis=0, dtype=np.float64)
        if mu is not None:
            sizes /= max(float(mu.sum()), LEAST)
        L *= sizes.astype(L.dtype)  # in place: it may be on disk
    if mu is None:
        mu = counts.column_totals / max(float(L.sum(dtype=np.float64)), LEAST)
    return Start(L, mu, of_topics)


class NoisyTopics(MeanField):
    """Noisy topics; a point: ``counts`` n (m, K), ``noise``, ``means`` mu (m,), ``totals`` S (K,).

    ``noise`` are the parameters of the noise, theta (m, K) or shares of a mixture. Means and arrays
    (m, K) are in lane order, in float64; ``gamma`` holds the loadings. The m of
    q(u) is ``mu_j S_k`` of the point. Momentum extrapolates S together with the loadings; after a
    plain step S is the sum of the loadings.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    executor : Executor
    start : callable
        Returns a `Start`.
    n_components : int
    dtype : float32 or float64
    fixed : FixedParameters
    mixture : bool
        Whether theta has a mixture prior.
    momentum : bool, default=True
    """

    record = ("elbo", "change_components", "change_loadings", "momentum", "bytes_read")
    residuals = ("change_components", "change_loadings")
    residual_name = "largest change of an iteration"
    gain_per_tol = 0.1
    result_name = "loadings"

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start],
        n_components: int, dtype: Any, fixed: FixedParameters, *, mixture: bool,
        momentum: bool = True,
    ):  # fmt: skip
        super().__init__(counts, executor, n_components, dtype, momentum)
        self.noise = noise_of(mixture, executor.n_threads)
        self.fixed, self._start = fixed, start
        self._fixed_features = (
            None if fixed.features is None else fixed.features[self.feature_order]
        )
        self._log_factorials, _ = count_constants(counts, executor.layout)

    def start(self) -> None:
        """Move to the start."""
        L, mu, counts = self._start()
        self.put_rows("gamma", L, least=MINVAL)
        self.put_known()
        means, totals = mu[self.feature_order].astype(np.float64), L.sum(axis=0, dtype=np.float64)
        counts_of_features = (
            means[:, None] * totals if counts is None else counts[self.feature_order]
        )
        self.points["gamma"] = {
            "counts": np.ascontiguousarray(counts_of_features, np.float64), "means": means,
            "totals": totals,
            "noise": self.noise.start(*counts_of_features.shape),
        }  # fmt: skip
        self.copy("gamma", "before")
        self.copy("gamma", "best")

    def put_known(self) -> None:
        """Give the executor the samples whose loadings stay."""
        if self.fixed.samples is not None:
            self.executor.put("fixed", per_lane(self.fixed.samples, self.executor.layout.row_order))

    def look(self) -> dict[str, Any]:
        """Compute the plain point ``next``; return the record of the current point."""
        point, K, mu = self.points["gamma"], self.n_components, self.points["gamma"]["means"]
        noise = self.noise.posterior(point["noise"], point["counts"], np.outer(mu, point["totals"]))
        shift, design = self._design(noise)
        factors = mu[:, None] * noise.mean
        sizes = np.zeros(self.stride)
        sizes[:K] = np.maximum(factors.sum(axis=0), LEAST)
        move = UpdateRows(design, sizes, K, source="gamma", reports=("loglik_start",))
        add = self.sum_counts(design, "gamma")
        (seen, _), (moved, _), (_, sums) = self.executor.run(move, Movement(K), add)
        topic_counts = self.counts_of(sums, design)
        self.points["next"], factors_after = self._next(topic_counts, noise, moved["total_next"])
        counts = xlogy(self._totals, np.maximum(mu, LEAST)) + self._totals * shift
        expected = math.fsum(moved["total"] * sizes[:K])
        elbo = seen["log_mu"] + float(counts.sum()) - expected - self._log_factorials + noise.bound
        change = math.fsum(moved["change"] * sizes[:K])
        return {
            "elbo": elbo,
            "change_components": _distance(factors, factors_after),
            "change_loadings": change / 2 / (self.counts.total or 1.0),
        }

    def _design(self, noise: Posterior) -> tuple[Array, Array]:
        """Return exp(E log u) for the rows, with features divided by their maximum; log maxima."""
        shift = noise.log.max(axis=1)
        shares = exp(noise.log - shift[:, None], n_threads=self.executor.n_threads)
        return shift, self.lanes_of_columns(shares, LEAST, least=LEAST)

    def _next(
        self, topic_counts: Array, noise: Posterior, totals: Array
    ) -> tuple[dict[str, Array], Array]:
        """Return the shared arrays after a plain step, and expected factors (m, K).

        They follow from the counts of topics in features.
        """
        point = self.points["gamma"]
        means = self._totals / np.maximum((noise.mean * totals).sum(axis=1), LEAST)
        if self._fixed_features is not None:
            means[self._fixed_features] = point["means"][self._fixed_features]
        expected = np.outer(means, totals)
        after, mean = self.noise.update(point["noise"], topic_counts, expected)
        point = {"counts": topic_counts, "means": means, "totals": totals, "noise": after}
        return point, means[:, None] * mean

    def feasible(self, shared: dict[str, Array]) -> dict[str, Array]:
        """Return a feasible point, with the noise within its bounds."""
        point = shared | {"noise": self.noise.feasible(shared["noise"])}
        if self._fixed_features is not None:
            point["means"][self._fixed_features] = self.points["gamma"]["means"][
                self._fixed_features
            ]
        return point

    def result(self) -> dict[str, Array]:
        """Return loadings (n, K), means (m,), theta, counts and expected counts (m, K), the noise.

        Unless something is fixed, means sum to one.
        """
        point, L = self.points["gamma"], self.plain_rows("gamma")
        L[self.counts.row_totals == 0] = 0  # otherwise parameters at the floor may explain a count
        scale = float(point["means"].sum()) if self.fixed.free else 1.0
        if scale > 0:
            L *= np.asarray(scale, L.dtype)
        expected = np.outer(point["means"], point["totals"])
        arrays = {
            "means": point["means"] / (scale or 1.0), "counts": point["counts"],
            "expected": expected,
            **self.noise.of_pairs(point["noise"], point["counts"], expected),
        }  # fmt: skip
        plain = {name: self.plain_columns(array) for name, array in arrays.items()}
        return plain | {"L": L, "noise": point["noise"]}

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        m, K = self.counts.shape[1], self.n_components
        noise = self.noise.shape(m, K)
        return {"counts": (m, K), "noise": noise, "means": (m,), "totals": (K,)}


def noise_of(mixture: bool, n_threads: int) -> FreeNoise | MixtureNoise:
    """Return the noise with a mixture prior, or with free parameters."""
    return MixtureNoise(n_threads) if mixture else FreeNoise(n_threads)


def _distance(one: Array, other: Array) -> float:
    """Return the largest total variation distance between topics of the same number."""
    moved = one / np.maximum(one.sum(axis=0), LEAST)
    moved -= other / np.maximum(other.sum(axis=0), LEAST)
    return float(np.abs(moved, out=moved).sum(axis=0).max()) / 2


def noisy_topic_needs(counts: CountMatrix, n_components: int, dtype: Any, n_threads: int) -> Needs:
    """Return the memory of a fit, including that of a Poisson NMF as its start."""
    return mean_field_needs(
        counts, n_components, dtype, n_threads, rows=_COPIES_ROWS, task=_COPIES_TASK,
        topics=_COPIES_FACTORS,
    )  # fmt: skip
