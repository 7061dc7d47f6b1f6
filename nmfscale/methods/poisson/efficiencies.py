"""Efficiencies of features in groups of samples: ``x_ij ~ Poisson(e_gj mu_ij)``, g the group of i.

Only the linear parts of the row problems change: u of a sample of group g is ``sum_j e_gj f_j``,
and that of a feature is ``sum_g e_gj S_g``, S_g the column sums of L over the samples of g. They
are 1, or 0 for features that were not measured in a group.

Efficiencies of batches b have a prior, ``e_bj ~ Gamma(a, a)`` of mean 1, and are integrated out.
With T_bj the count of a feature in a batch, and M_bj the sum of mu over its samples, the
log-likelihood has the terms::

    log G(a + T) - log G(a) + a log a - (a + T) log(a + M)

in place of -M. They are convex in M, so that the tangent, with slope ``-e``, e the posterior mean
``(a + T) / (a + M)``, is below them: an update of L or F that does not lower the likelihood with
e held does not lower the marginal likelihood (it is an EM algorithm), and gradients with the
current e are those of the marginal likelihood. As a grows, e tends to 1. Without a prior, a = 0,
``e = T / M``, and the terms are those of the profile likelihood, ``T log(T / M) - T``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.sell import LANES
from ...engine.protocol import Block, Executor, RowArrays, Step, Sums, Values
from ...kernels import dense
from ...kernels.functions import digamma, exp, log, log1p, log_gamma, trigamma, xlogy
from ..factors import LEAST, Array, Constraints, Factor, rows_of_sums
from ..slices import sliced_counts
from .steps import weighted_columns

# The shape of the prior from which an estimate starts; a larger one than the most is infinite.
FIRST_SHAPE, LEAST_SHAPE, MOST_SHAPE = 10.0, 1e-3, 1e6
# A step of the estimate multiplies the shape by at most exp(2). It ends with steps below the least.
_MOST_STEP, _LEAST_STEP, _STEPS = 2.0, 1e-3, 40
# Arrays (m, B) of float64: counts, expectations, efficiencies, and temporary ones.
_ARRAYS = 12
# Iterations between two estimates of the shape.
ADAPT_EVERY = 4
# Newton steps on the scale of each feature in an iteration.
_SCALE_STEPS = 2


class Efficiencies:
    """Known efficiencies (m, G) of features in lane order in groups of samples, 0 or 1.

    `group_sums` (G, stride) are S; `F` is the current factor, whose change is announced by
    `moved`.
    """

    def __init__(self, of_groups: Array):
        self.of_groups, self.n_groups = of_groups, of_groups.shape[1]
        self.group_sums = np.zeros((self.n_groups, 0))
        self._total: Array | None = None

    def take_sums(self, group_sums: Array) -> None:
        """Take the sums S of the current loadings."""
        self.group_sums = group_sums
        self.moved()

    def moved(self) -> None:
        """Note that L or F has moved."""
        self._total = None

    def move_to(self, F: Factor) -> None:
        """Compute what depends on the current point."""

    def totals_of_rows(self, F: Factor) -> Array:
        """Return u of each group, (G, stride)."""
        self.move_to(F)
        if self._total is None:
            self._total = dense.cross(self.of_groups, F.values[: F.n_rows])
        return np.maximum(self._total, LEAST)

    def totals_of_columns(self, F: Factor) -> Array:
        """Return u of each feature in lane order, (lanes, stride).

        A feature that was measured nowhere has all of L, so that it becomes zero.
        """
        self.move_to(F)
        own = np.zeros(F.values.shape)
        own[: F.n_rows] = dense.product(self.of_groups, self.group_sums)
        return np.where(own > 0, own, self.group_sums.sum(axis=0))


class BatchEfficiencies(Efficiencies):
    """Posterior means of efficiencies of features in batches of samples.

    Attributes
    ----------
    totals : ndarray of shape (m, B)
        Counts T of each feature in lane order in each batch.
    shape : float
        The shape a of the prior; infinite if there are no effects.
    estimated : bool
        Whether the shape is estimated.
    expected, of_batches : ndarray of shape (m, B)
        M, and the efficiencies e of the current point.
    """

    def __init__(self, totals: Array, batches: Array, measured: Array | None, shape: float | None):
        n_batches = totals.shape[1]
        self._measured = measured
        self._batches: Array | None = None  # of each group, if they are not one for each batch
        if not np.array_equal(batches, np.arange(n_batches)):
            self._batches = batches
        super().__init__(np.ones((len(totals), len(batches))))
        self.totals, self.estimated = totals, shape is None
        self.shape = FIRST_SHAPE if shape is None else shape
        self.expected = self.of_batches = np.ones(totals.shape)
        self._values, times = np.unique(totals, return_counts=True)
        self._times = times.astype(np.float64)
        self._sums = totals.sum(axis=1)
        self._here = False

    def moved(self) -> None:
        """Note that L or F has moved."""
        super().moved()
        self._here = False

    def move_to(self, F: Factor) -> None:
        """Compute M and e."""
        if self._here:
            return
        expected = dense.product(F.values[: F.n_rows], self.group_sums.T)
        if self._measured is not None:
            expected *= self._measured
        if self._batches is not None:
            of_groups = self._batches[:, None] == np.arange(self.totals.shape[1])
            expected = dense.product(expected, of_groups)
        self.expected = expected
        self._set()

    def _set(self) -> None:
        """Compute the efficiencies of groups."""
        self._total, self._here = None, True
        self.of_batches = self._means()
        of_groups = self.of_batches
        if self._batches is not None:
            of_groups = of_groups[:, self._batches]
        self.of_groups = of_groups if self._measured is None else of_groups * self._measured

    def _means(self) -> Array:
        """Return the posterior means at M; 1 where nothing is known."""
        if np.isinf(self.shape):
            return np.ones_like(self.expected)
        above, below = self.totals + self.shape, self.expected + self.shape
        return np.divide(above, below, out=np.ones_like(below), where=below > 0)

    def terms(self, F: Factor) -> tuple[float, float]:
        """Return sum T log e, and the terms of the marginal likelihood in place of -M."""
        self.move_to(F)
        a, T, M = self.shape, self.totals, self.expected
        if np.isinf(a):
            return 0.0, -float(M.sum())
        if a == 0:
            of_means = float(xlogy(T, np.maximum(self.of_batches, LEAST)).sum())
            return of_means, of_means - float((self.of_batches * M).sum())
        logs, t = log1p(M / a), self._values
        of_totals = float((self._times * t * log1p(t / a)).sum())
        return of_totals - float((T * logs).sum()), self._constant(a) - self._marginal(a, logs)

    def _constant(self, a: float) -> float:
        """Return sum log G(a + T) - log G(a) - T log a."""
        t = self._values
        terms = log_gamma(a + t) - float(log_gamma(a)) - t * float(log(a))
        return float((self._times * terms).sum())

    def _marginal(self, a: float, logs: Array) -> float:
        return float(((self.totals + a) * logs).sum())

    def scales(self, F: Factor, fixed: Array | None) -> Array:
        """Return factors c (m,) of the features that raise the likelihood.

        With e held, the scale of a feature would creep to its optimum: it is that of T, which e
        follows. In log c the likelihood h is concave and its curvature changes by at most a factor
        of exp(|step|) in a step, so that steps of log(1 + h' / -h'') never pass the maximum.
        """
        self.move_to(F)
        a, T, n, c = self.shape, self.totals, F.n_rows, np.ones(F.n_rows)
        pseudo = rate = np.zeros(n)
        if F.pseudo is not None and F.rate is not None:
            pseudo = F.pseudo[:n].sum(axis=1, dtype=np.float64)
            rate = (F.rate[:n] * F.values[:n]).sum(axis=1, dtype=np.float64)
        for _ in range(_SCALE_STEPS):
            M = self.expected * c[:, None]
            if np.isinf(a):
                mass = inside = M
            else:
                share = np.divide(M, M + a, out=np.zeros_like(M), where=M > 0)
                mass = (T + a) * share
                inside = mass * (1 - share)
            slope = self._sums + pseudo - mass.sum(axis=1) - rate * c
            curvature = inside.sum(axis=1) + rate * c
            # of a feature without counts the factors vanish by themselves
            moves = (curvature > 0) & (self._sums > 0)
            step = np.divide(np.abs(slope), curvature, out=np.zeros(n), where=moves)
            c *= np.where(slope > 0, 1 + step, 1 / (1 + step))
        if fixed is not None:
            c[fixed[:n]] = 1
        return c

    def log_gain(self, c: Array) -> float:
        """Return what scales c (m,) of the features add to sum x log mu."""
        return float((self._sums * log(c)).sum())

    def estimate(self, F: Factor, n_steps: int = _STEPS) -> float:
        """Raise the likelihood in the shape of the prior, by Newton steps in its log.

        Return what it gains.
        """
        self.move_to(F)
        if not self.estimated or np.isinf(self.shape):
            return 0.0
        a, M = self.shape, self.expected
        before = reached = self._constant(a) - self._marginal(a, log1p(M / a))
        for _ in range(n_steps):
            step = self._step(a)
            while abs(step) >= _LEAST_STEP:
                new = max(a * float(exp(step)), LEAST_SHAPE)
                there = self._constant(new) - self._marginal(new, log1p(M / new))
                if there >= reached:
                    break
                step /= 4
            else:
                break
            if new == a:
                break
            a, reached = new, there
            if a > MOST_SHAPE:
                a, reached = np.inf, -float(M.sum())
                break
        self.shape = a
        self._set()
        return reached - before

    def result(self, F: Factor, free: bool) -> tuple[Array, Array]:
        """Return the efficiencies (m, B), and factors c (m,) of features, all in lane order.

        Without a prior, and if F is `free`, the geometric mean of the efficiencies of a feature,
        with weights M, becomes 1 by the factors.
        """
        self.move_to(F)
        e, c = self.of_batches, np.ones(F.n_rows)
        if self.shape == 0 and free:
            weights = np.where(e > 0, self.expected, 0.0)
            logs = xlogy(weights, np.where(e > 0, e, 1.0)).sum(axis=1)
            total = weights.sum(axis=1)
            c = exp(np.divide(logs, total, out=np.zeros(F.n_rows), where=total > 0))
        return e / c[:, None], c

    def _step(self, a: float) -> float:
        """Return the Newton step of log a, of a limited size."""
        T, M, t = self.totals, self.expected, self._values
        slope = float((self._times * (digamma(a + t) - float(digamma(a)))).sum())
        slope += float(((M - T) / (M + a) - log1p(M / a)).sum())
        curvature = float((self._times * (trigamma(a + t) - float(trigamma(a)))).sum())
        curvature += float((1 / a - 1 / (M + a) - (M - T) / (M + a) ** 2).sum())
        slope, curvature = a * slope, a * a * curvature + a * slope
        step = -slope / curvature if curvature < 0 else np.copysign(_MOST_STEP, slope)
        return float(np.clip(step, -_MOST_STEP, _MOST_STEP))


def memory_of_batches(n_batches: int, n_features: int) -> int:
    """Return the bytes of the efficiencies of a fit, and of what is computed of them."""
    return _ARRAYS * 8 * n_batches * n_features


def efficiencies_of(
    constraints: Constraints, executor: Executor, n_features: int
) -> Efficiencies | None:
    """Return the efficiencies of a fit; None if all are 1. Groups are in the executor."""
    if constraints.groups is None:
        return None
    order = executor.layout.column_order
    measured: Array | None = None
    if constraints.measured is not None:
        in_order = constraints.measured[:, order[:n_features]]
        measured = np.ascontiguousarray(in_order.T, np.float64)
    if constraints.batches is None:
        assert measured is not None
        return Efficiencies(measured)
    totals = batch_totals(executor, constraints.batches, n_features)
    return BatchEfficiencies(totals, constraints.batches, measured, constraints.batch_shape)


def batch_totals(executor: Executor, batches: Array, n_features: int) -> Array:
    """Return the counts (m, B) of each feature in lane order in batches; `batches` are of groups.

    They are weighted if samples have weights.
    """
    step = BatchTotals(batches, len(executor.layout.column_order))
    ((_, (sums,)),) = executor.run(step)
    return rows_of_sums(sums, n_features)


@dataclass(frozen=True)
class BatchTotals(Step):
    """Sums the counts of each column over the samples of each batch, weighted if they have weights.

    `batches` (G,) are the batches of the groups of samples, `n_lanes` that of the columns.
    """

    batches: Array
    n_lanes: int

    reads = "columns"
    arrays = RowArrays(("groups", "weights", "weighted"))

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return int(self.batches.max()) + 1

    def empty_sums(self) -> Sums:
        """Return zeros."""
        return [np.zeros((self.n_lanes // LANES, self.n_batches, LANES))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the columns of a block."""
        batches = self.batches[block["groups"].astype(np.intp)]
        n, B = len(batches), self.n_batches
        there = aligned_empty((n, kernels.row_stride(B)), np.float64)
        there[:] = batches[:, None] == np.arange(there.shape[1])
        # numerators of least squares are sums of counts times rows
        problem = kernels.RowProblem(
            there, np.zeros(there.shape[1]), B, step=kernels.SQUARES, gram=np.zeros((B, B)),
            floor=0.0,
        )  # fmt: skip
        sliced = sliced_counts(weighted_columns(block, np.float64, n_threads, []), n)
        kernels.sums(
            sliced, problem, None, sums[0], wanted=kernels.SUM_GRADIENT, first=0,
            last=len(sums[0]), n_threads=n_threads,
        )  # fmt: skip
        return {}
