"""Dirichlet distributions: expected logarithms, divergences, priors, posteriors of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import kernels
from ...engine.protocol import Block, Values
from ...kernels.functions import digamma, exp, log_gamma, trigamma
from ..factors import Array
from .posteriors import PIECE, InferRows

# Bounds of estimated parameters of a prior.
LEAST_ALPHA, MOST_ALPHA = 1e-6, 1e6


def expected_log(values: Array, axis: int, n_threads: int) -> Array:
    """Return E log x_k = psi(a_k) - psi(sum a) along an axis, in float64."""
    total = np.ascontiguousarray(values.sum(axis=axis, keepdims=True))
    logs, of_total = np.empty_like(values), np.empty_like(total)
    kernels.digamma(values, logs, n_threads=n_threads)
    kernels.digamma(total, of_total, n_threads=n_threads)
    logs -= of_total
    return logs


def minus_divergence(values: Array, prior: Any, logs: Array, axis: int, n_threads: int) -> Array:
    """Return minus the divergence of distributions along an axis from their prior.

    ``log G(sum p) - log G(sum a) + sum_k [log G(a_k) - log G(p_k) + (p_k - a_k) E log_k]``, of
    parameters a and p. `prior` is an array, of the shape of `values` or the same for all of them,
    or a number if all its parameters are the same; `logs` are those of `expected_log`.
    """
    terms, alike = np.empty_like(values), 1 if np.ndim(prior) else values.shape[axis]
    kernels.log_gamma(values, terms, n_threads=n_threads)
    terms += (prior - values) * logs
    if np.ndim(prior) == 2:
        of_prior = log_gamma(prior.sum(axis=axis)) - log_gamma(prior).sum(axis=axis)
    else:
        of_prior = log_gamma(alike * np.sum(prior)) - alike * np.sum(log_gamma(prior))
    divergence: Array = terms.sum(axis=axis) - log_gamma(values.sum(axis=axis)) + of_prior
    return divergence


def estimate_alpha(alpha: Array, mean_log: Array, symmetric: bool) -> Array:
    """Return the alpha that maximises log G(sum alpha) - sum log G(alpha) + alpha . mean_log.

    Newton from `alpha`: in log alpha if all are the same; else the Hessian is diagonal plus rank
    one (Minka 2000). A step is halved until alpha is positive and the value does not fall.
    """

    def value(a: Array) -> float:
        return float(log_gamma(a.sum()) - log_gamma(a).sum() + (a * mean_log).sum())

    best = value(alpha)
    for _ in range(100 if len(alpha) > 1 else 0):  # with a single topic it has no information
        step = _newton_step(alpha, mean_log, symmetric)
        while np.abs(step / alpha).max() > 1e-12:
            moved = np.clip(alpha + step, LEAST_ALPHA, MOST_ALPHA)
            if (alpha + step > 0).all() and value(moved) >= best:
                break
            step = step / 2
        else:
            return alpha
        change, alpha, best = np.abs(moved / alpha - 1).max(), moved, value(moved)
        if change < 1e-9:
            break
    return alpha


def _newton_step(alpha: Array, mean_log: Array, symmetric: bool) -> Array:
    total, curved = alpha.sum(), trigamma(alpha.sum())
    slope, diagonal = digamma(total) - digamma(alpha) + mean_log, -trigamma(alpha)
    if symmetric:
        along = slope.sum() * alpha[0]
        bend = along + (len(alpha) ** 2 * curved + diagonal.sum()) * alpha[0] * alpha[0]
        log_step = -along / bend if bend < 0 else math.copysign(1.0, along)
        step: Array = alpha * exp(min(max(log_step, -1.0), 1.0)) - alpha
        return step
    common = (slope / diagonal).sum() / (1 / curved + (1 / diagonal).sum())
    step = -(slope - common) / diagonal
    return step


@dataclass(frozen=True)
class InferDirichlet(InferRows):
    """Updates Dirichlet posteriors; `learns`: sum the expected logs Et afterwards."""

    learns: bool = False

    kind = kernels.DIRICHLET

    def terms(
        self, block: Block, gamma: Array, after: Array | None, n_threads: int
    ) -> tuple[Array, Values]:
        """Return terms of rows in the ELBO beyond the counts, their change, and Et."""
        K, n_rows = len(self.alpha), block.n_rows
        bounds, change, logs = np.empty(n_rows), np.zeros(K), np.zeros(K)
        for first in range(0, n_rows, PIECE):
            here = slice(first, min(first + PIECE, n_rows))
            values = np.ascontiguousarray(gamma[here, :K], np.float64)
            expected = expected_log(values, 1, n_threads)
            bounds[here] = minus_divergence(values, self.alpha, expected, 1, n_threads)
            if after is None:
                continue
            moved = np.ascontiguousarray(after[here, :K], np.float64)
            if self.learns:
                logs += expected_log(moved, 1, n_threads).sum(axis=0)
            change += np.abs(moved - values).sum(axis=0)
        return bounds, {"change": change, "logs": logs}
