"""Gamma-Poisson factorization by variational inference (mean field), with momentum.

The counts are ``x_ij ~ Poisson(sum_k theta_ik beta_jk)`` with theta_ik ~ Gamma(a_k, r_k).

- Plain: beta are point estimates W_jk whose columns sum to one (Canny 2004; Geiger and Park,
  Algorithm 7). With a common rate, gamma and W equal those of LDA with point estimates of topics in
  every iteration (Lemma E.3), and the bounds differ by a constant.
- Hierarchical (Gopalan, Hofman and Blei 2015; Levitin and others 2019): beta_jk ~ Gamma(c, eta_j),
  and rates are random, theta_ik ~ Gamma(a, xi_i), xi_i ~ Gamma(s, t), eta_j likewise.

With T_k = sum_i E theta_ik, S_k = sum_j E beta_jk and phi at its optimum the evidence lower bound
(ELBO) of the log-probability of all counts is

    sum_ij x_ij log mu_ij - log x_ij!,  mu_ij = sum_k exp(E log theta_ik + E log beta_jk)
    + sum_i of `GammaPrior.bound` + sum_j of the same of beta + T . S,

where the last two terms are left out if beta are points, with S = 1. Terms from the means of the
Poisson distributions and from entropies cancel otherwise.

A point is gamma, the shapes lambda of q(beta), and T: rates are at their optimum given these
(`nmfscale.methods.variational.gamma`).  A plain step cannot lower the ELBO:

1. Rows: ``gamma'_ik = a_k + sum_j x_ij phi_ijk``, then new rates; T' from both.
2. Columns, from the same phi: ``lambda'_jk = c + sum_i x_ij phi_ijk``, then new rates from T'; W'
   is the same without c, normalised.

The shapes c may differ between factors, c_jk, where features are seeds of a component. Points then
have a Dirichlet prior with pseudo-counts p_jk: W' is ``p_jk + sum_i x_ij phi_ijk``, normalised, and
the bound has ``sum_jk p_jk log W_jk`` in addition.

With momentum, W takes Newton steps instead: see `point_topics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...engine.protocol import Executor, Values
from ...kernels.functions import log, xlogy
from ..factors import LEAST, Array, in_lane_order, per_lane, to_lanes
from ..poisson.objective import count_constants
from .gamma import GROUPS, GammaPrior, InferGamma
from .lda import HeldTopics, scale_to_largest, shares_of
from .mean_field import Held, MeanFieldTopics, Shared, Start, points_of
from .posteriors import PIECE, Inference, inference, topics_in_lanes

# Maximum number of updates of the rates of new rows.
_ROUNDS = 200


def drawn_priors(
    of_loadings: Array, of_factors: float | Array, shapes: Array, means: Array
) -> tuple[GammaPrior, GammaPrior]:
    """Return priors of loadings and factors with random rates, from these shapes and means.

    The shapes of factors are a number or (m, K).
    """
    rows, columns = ((float(s), float(s / mean)) for s, mean in zip(shapes, means, strict=True))
    if not isinstance(of_factors, np.ndarray):
        of_factors = np.full(len(of_loadings), of_factors)
    return GammaPrior(of_loadings, drawn=rows), GammaPrior(of_factors, drawn=columns)


def dispersion(totals: Array) -> float:
    """Return the variance of totals divided by their mean, at least 1 (Poisson counts)."""
    totals = np.asarray(totals, np.float64)
    mean = float(totals.mean())
    return max(float(totals.var()) / mean, 1.0) if mean > 0 else 1.0


class HeldGammas:
    """Factors of q(beta) = Gamma(lambda, rates) in lane order, (m, K), in the form for rows.

    `totals` is T, or (m, K) with efficiencies of features.

    Attributes
    ----------
    own : ndarray (m, 1)
        Expected rates eta_j.
    means : ndarray (m, K)
        Expected factors.
    sums : ndarray (K,)
        S.
    """

    def __init__(
        self, values: Array, totals: Array, prior: GammaPrior, n_lanes: int, dtype: Any,
        n_threads: int,
    ):  # fmt: skip
        m, K = values.shape
        self.own = prior.own_rates(values, totals)
        rates = self.own + totals
        self.means = values / rates
        self.sums = self.means.sum(axis=0)
        bound = math.fsum(prior.bound(values, self.own, totals, n_threads))
        sums = self.sums if totals.ndim == 1 else self.means
        self.bound = bound + float((totals * sums).sum())
        logs, shares = np.empty_like(values), np.empty_like(values)
        kernels.digamma(values, logs, n_threads=n_threads)
        logs -= log(rates, n_threads=n_threads)
        self.shift = logs.max(axis=1)
        kernels.exp_digamma(values, shares, n_threads=n_threads)
        shares /= rates
        scale_to_largest(shares, logs, self.shift)
        lanes = in_lane_order(m, n_lanes)
        self.design = to_lanes(shares, lanes, kernels.row_stride(K), dtype, LEAST)


def hold(
    topics: Array, totals: Array | None, prior: GammaPrior | None, n_lanes: int, dtype: Any,
    n_threads: int,
) -> tuple[Held, Array]:  # fmt: skip
    """Return factors in the form for rows, and S; without a prior they are point estimates.

    `totals` is T; for point estimates it is S, if this is not 1.
    """
    if prior is None or totals is None:
        sums = np.ones(topics.shape[1]) if totals is None else totals
        return HeldTopics(topics, 0.0, n_lanes, dtype, n_threads), sums
    held = HeldGammas(topics, totals, prior, n_lanes, dtype, n_threads)
    return held, held.sums


class VariationalGammaPoisson(MeanFieldTopics):
    """Gamma-Poisson factorization; a point is ``topics`` (m, K), lambda or W, and ``totals`` T.

    Parameters
    ----------
    counts, executor, start, dtype, **options
        As in `MeanFieldTopics`.
    of_rows : GammaPrior
    of_columns : GammaPrior or None
        Without a prior, factors are point estimates.
    pseudo : ndarray (m, K), default=None
        Pseudo-counts of factors that are point estimates.
    """

    record = ("elbo", "change_components", "change_loadings", "change_totals", "momentum",
              "bytes_read")  # fmt: skip
    residuals = ("change_components", "change_loadings", "change_totals")

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start],
        of_rows: GammaPrior, of_columns: GammaPrior | None, dtype: Any,
        pseudo: Array | None = None, **options: Any,
    ):  # fmt: skip
        points = of_columns is None
        super().__init__(
            counts, executor, start, len(of_rows.shape), dtype, points=points, **options
        )
        order = self.feature_order
        self.of_rows, self.of_columns = of_rows, of_columns and of_columns.taken(order)
        self.pseudo = None if pseudo is None else pseudo[order]
        self.constant = -count_constants(counts, executor.layout, None)[0]

    def begin(self, topics: Array) -> Shared:
        """Return the shared arrays of a point with these factors."""
        K, rows, columns = self.n_components, self.of_rows, self.of_columns
        if columns is None:
            return {"topics": topics, "totals": np.ones(K)}
        # T S is the expected count, and T / S the ratio that the priors expect
        (n, m), shapes, usual = self.counts.shape, columns.shape * len(topics), columns.shape
        if usual.ndim == 2:  # the shapes of seeds are not those of most features
            shapes, usual = usual.sum(axis=0), usual.min(axis=0)
        counts = topics.sum(axis=0) - shapes
        counts = np.maximum(counts, max(self.counts.total, 1.0) / K * 1e-3)
        mean_T, mean_S = (
            size * shape * drawn[1] / drawn[0]
            for size, shape, drawn in ((n, rows.shape, rows.drawn), (m, usual, columns.drawn))
            if drawn is not None
        )
        return {"topics": topics, "totals": np.sqrt(counts * mean_T / mean_S)}

    def hold(self, shared: Shared, n_steps: int) -> tuple[Held, InferGamma]:
        """Return the factors of a point in the form for rows, and the step of the rows."""
        held, sums = hold(
            shared["topics"], shared["totals"], self.of_columns,
            len(self.executor.layout.column_order), self.dtype, self.executor.n_threads,
        )  # fmt: skip
        rows = self.of_rows
        step = InferGamma(held.design, rows.shape, n_steps, self.tolerance, sums=sums, prior=rows)
        return held, step

    def arrive(self, shared: Shared, of_rows: Values, expected: Array) -> Shared:
        """Return factors and T after a plain step."""
        if self.of_columns is None:
            if self.pseudo is not None:
                expected += self.pseudo
            return {"topics": shares_of(expected, shared["topics"]), "totals": shared["totals"]}
        expected += self.of_columns.shape
        return {"topics": expected, "totals": of_rows["totals"]}

    def more_of_bound(self, shared: Shared) -> float:
        """Return the prior of points."""
        if self.pseudo is None:
            return 0.0
        return math.fsum(xlogy(self.pseudo, np.maximum(shared["topics"], LEAST)).ravel())

    def change(self, before: Shared, after: Shared) -> dict[str, float]:
        """Return the change of T."""
        return {"change_totals": float(np.abs(after["totals"] / before["totals"] - 1).max())}

    def feasible(self, shared: Shared) -> Shared:
        """Return a feasible point: factors sum to one without a prior, or else are above it."""
        if self.of_columns is None:
            return shared | {"topics": points_of(shared["topics"])}
        np.maximum(shared["topics"], self.of_columns.shape, out=shared["topics"])
        return shared

    def least(self, shared: Shared) -> Array:
        """Return the shapes of the prior."""
        return self.of_rows.shape

    def result(self) -> dict[str, Array]:
        """Return the posterior, with rows and columns in the order of the counts.

        Shapes of loadings `gamma` (n, K), and their means `theta` (n, K). Shapes of factors
        `lambda` (m, K), and, if factors are random, their means `beta` (m, K) and rates `eta`
        (m,). Mean rates of samples `xi` (n,), if rates are random. Sums over features `sums` (K,)
        and over samples `totals` (K,).
        """
        gamma, topics = self.plain_point()
        arrays = {"gamma": gamma, "lambda": topics} | self.result_of_columns(topics)
        arrays["theta"] = theta = aligned_empty(gamma.shape, gamma.dtype, self.executor.folder)
        own, rows = np.empty((len(gamma), 1)), self.of_rows
        for first in range(0, len(gamma), PIECE):
            here = slice(first, first + PIECE)
            values = gamma[here].astype(np.float64)
            sums = self.sums_of_rows(arrays["sums"], here)
            rates = rows.own_rates(values, sums)
            theta[here] = values / (rates + sums)
            if rows.drawn is not None:
                own[here] = rates
        return arrays | {"xi": own[:, 0]}

    def result_of_columns(self, topics: Array) -> dict[str, Array]:
        """Return the arrays of factors, with `topics` (m, K) in the order of the counts."""
        totals, columns = self.points["gamma"]["totals"], self.of_columns
        if columns is None:
            return {"totals": totals, "sums": np.ones(self.n_components)}
        eta = columns.taken(np.argsort(self.feature_order)).own_rates(topics, totals)
        of_point = self.points["gamma"]["topics"]  # summed in the order of the lanes
        sums = (of_point / (columns.own_rates(of_point, totals) + totals)).sum(axis=0)
        return {"totals": totals, "sums": sums, "eta": eta, "beta": topics / (eta + totals)}

    def sums_of_rows(self, sums: Array, here: slice) -> Array:
        """Return the sums of factors that rows have, of the `sums` of a result."""
        return sums

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        K = self.n_components
        return {"topics": (self.counts.shape[1], K), "totals": (K,)}


def gamma_inference(
    counts: CountMatrix, topics: Array, totals: Array | None, of_rows: GammaPrior,
    of_columns: GammaPrior | None, *, n_steps: int, tolerance: float, n_threads: int,
    groups: Array | None = None, of_groups: Array | None = None,
) -> Inference:  # fmt: skip
    """Return the passes for fixed factors (m, K); they find expected loadings instead of gamma.

    `totals` are those of `hold`; with random factors, also (m, K). `n_steps` and `tolerance` are
    those of `InferGamma`. Random rates are updated in alternation with rows. If samples are in
    `groups` (n,), `of_groups` (G, K) are the sums of expected factors in each.
    """
    topics, n_lanes = topics_in_lanes(counts, topics, n_threads)
    if totals is not None and totals.ndim == 2:
        totals, _ = topics_in_lanes(counts, totals, n_threads)
    if of_columns is not None:
        of_columns = of_columns.taken(counts.layout(n_threads).column_order[: counts.shape[1]])
    held, sums = hold(topics, totals, of_columns, n_lanes, np.float64, n_threads)
    if of_groups is not None:
        sums = of_groups
    inputs: dict[str, Any] = {"sums": sums, "prior": of_rows}
    step = InferGamma(held.design, of_rows.shape, n_steps, tolerance, n_rounds=_ROUNDS, **inputs)
    worth = InferGamma(held.design, of_rows.shape, source="next", target=None, **inputs)
    constant = -count_constants(counts, counts.layout(n_threads), None)[0]
    posterior = inference(counts, step, worth, held.shift, held.bound, n_threads, constant)

    def means(rows: slice, gamma: Array) -> Array:
        own = sums if groups is None else sums[groups[rows]]
        expected: Array = gamma / (of_rows.own_rates(gamma, own) + own)
        return expected

    known: dict[str, Array] = {}
    if groups is not None:
        known[GROUPS] = per_lane(groups, counts.layout(n_threads).row_order)
    return posterior._replace(
        loadings=replace(posterior.loadings.then(means), inputs=known),
        bounds=replace(posterior.bounds, inputs=known),
    )
