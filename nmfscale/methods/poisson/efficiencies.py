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
# Arrays (m, B) of float64: counts, expectations, logarithms; and those of the start and the result.
_ARRAYS = 10
# Alternations between scales of features and of batches.
_ROUNDS = 30
# Iterations between two estimates of the shape.
ADAPT_EVERY = 8
# Newton steps on the scale of each feature in an iteration.
_SCALE_STEPS = 2


class Efficiencies:
    """Known efficiencies (m, G) of features in lane order in groups of samples, 0 or 1.

    `group_sums` (G, stride) are S at the current point. `moved` must be called if L or F moves.
    """

    def __init__(self, of_groups: Array):
        self._of_groups, self.n_groups = of_groups, of_groups.shape[1]

    def take_sums(self, group_sums: Array) -> None:
        """Take the sums S of the current loadings."""
        self.group_sums = group_sums
        self.moved()

    def moved(self) -> None:
        """Note that L or F has moved."""

    def of_groups(self, F: Factor) -> Array:
        """Return the efficiencies of groups at the current point, (m, G)."""
        return self._of_groups

    def totals_of_rows(self, F: Factor) -> Array:
        """Return u of each group, (G, stride)."""
        return np.maximum(dense.cross(self.of_groups(F), F.values[: F.n_rows]), LEAST)

    def totals_of_columns(self, F: Factor) -> Array:
        """Return u of each feature in lane order, (lanes, stride).

        A feature that was measured nowhere has all of L, so that it becomes zero.
        """
        own = np.zeros(F.values.shape)
        own[: F.n_rows] = dense.product(self.of_groups(F), self.group_sums)
        return np.where(own > 0, own, self.group_sums.sum(axis=0))


class BatchEfficiencies(Efficiencies):
    """Posterior means of efficiencies of features in batches of samples.

    Attributes
    ----------
    totals : ndarray of shape (m, B)
        Counts T of each feature in lane order in each batch.
    batches : ndarray of shape (G,)
        Batch of each group of samples.
    measured : ndarray of shape (m, G), or None
        1 for features that were measured in a group, otherwise 0.
    shape : float
        The shape a of the prior; infinite if there are no effects.
    estimated : bool
        Whether the shape is estimated.
    expected : ndarray of shape (m, B)
        M at the current point.
    """

    def __init__(self, totals: Array, batches: Array, measured: Array | None, shape: float | None):
        self.totals, self.batches = totals, batches.astype(np.intp)
        self.measured, self.n_groups = measured, len(batches)
        self.shape, self.estimated = FIRST_SHAPE if shape is None else shape, shape is None
        self._of_batches: Array | None = None  # of groups, if they are not the batches
        if not np.array_equal(batches, np.arange(totals.shape[1])):
            self._of_batches = np.eye(totals.shape[1])[batches]
        self.expected = np.zeros(totals.shape)
        # memory for efficiencies, and for terms of the likelihood
        self._means, self._room, self._more = (np.empty(totals.shape) for _ in range(3))
        self._values, times = np.unique(totals, return_counts=True)
        self._times = times.astype(np.float64)
        self._sums = totals.sum(axis=1)
        self._known = -1.0, 0.0  # a shape, and its term in the likelihood
        self._here, self._total = False, np.zeros((0, 0))

    def moved(self) -> None:
        """Note that L or F has moved."""
        self._here, self._total = False, np.zeros((0, 0))

    def move_to(self, F: Factor) -> None:
        """Compute M and e, unless they are those of this point."""
        if self._here:
            return
        M = dense.product(F.values[: F.n_rows], self.group_sums.T)
        if self.measured is not None:
            M *= self.measured
        self.expect(M if self._of_batches is None else dense.product(M, self._of_batches))

    def expect(self, M: Array) -> None:
        """Compute e for M (m, B), until L or F moves."""
        self.expected, self._here, a = M, True, self.shape
        if np.isinf(a):
            self._means[:] = 1
            return
        np.add(self.totals, a, out=self._means)
        np.add(self.expected, a, out=self._room)
        if a == 0:  # nothing is known of features without expected counts
            nothing = self._room == 0
            self._means[nothing] = self._room[nothing] = 1
        np.divide(self._means, self._room, out=self._means)

    def of_groups(self, F: Factor) -> Array:
        """Return the efficiencies of groups, (m, G)."""
        self.move_to(F)
        e = self._means if self._of_batches is None else self._means[:, self.batches]
        return e if self.measured is None else e * self.measured

    def totals_of_rows(self, F: Factor) -> Array:
        """Return u of each group, (G, stride)."""
        if not self._total.size:
            self._total = super().totals_of_rows(F)
        return self._total

    def terms(self, F: Factor) -> tuple[float, float]:
        """Return sum T log e, and the terms of the marginal likelihood in place of -M."""
        self.move_to(F)
        return self._terms()

    def _terms(self) -> tuple[float, float]:
        a, T, M, t = self.shape, self.totals, self.expected, self._values
        if np.isinf(a):
            return 0.0, -float(M.sum())
        if a == 0:
            of_means = float(xlogy(T, np.maximum(T, LEAST) / np.maximum(M, LEAST)).sum())
            return of_means, of_means - float(T.sum())
        of_totals = float((self._times * t * log1p(t / a)).sum())
        logs, weighted = self._log_growth(a)
        return of_totals - weighted, self._constant(a) - a * logs - weighted

    def bound(self) -> float:
        """Return the terms of the marginal likelihood, plus sum e M: 0 without effects."""
        _, marginal = self._terms()
        return marginal + float((self._means * self.expected).sum())

    def _log_growth(self, a: float) -> tuple[float, float]:
        """Return sum log(1 + M / a) and sum T log(1 + M / a)."""
        logs = np.multiply(self.expected, 1 / a, out=self._room)
        logs += 1
        kernels.log(logs, logs, n_threads=1)
        plain = float(logs.sum())
        logs *= self.totals
        return plain, float(logs.sum())

    def _constant(self, a: float) -> float:
        """Return sum log G(a + T) - log G(a) - T log a."""
        if self._known[0] != a:
            t = self._values
            terms = log_gamma(a + t) - float(log_gamma(a)) - t * float(log(a))
            self._known = a, float((self._times * terms).sum())
        return self._known[1]

    def _marginal(self, a: float) -> float:
        logs, weighted = self._log_growth(a)
        return self._constant(a) - a * logs - weighted

    def scales(self, F: Factor, fixed: Array | None) -> Array:
        """Return factors c (m,) of the features that raise the likelihood.

        With e held, the scale of a feature would creep to its optimum: it is that of T, which e
        follows. In log c the likelihood h is concave and its curvature changes by at most a factor
        of exp(|step|) in a step, so that steps of log(1 + h' / -h'') never pass the maximum.
        """
        self.move_to(F)
        n, mass, a = F.n_rows, np.multiply(self._means, self.expected, out=self._room), self.shape
        slope = self._sums - mass.sum(axis=1)
        if np.isfinite(a):
            mass *= a
            below = np.add(self.expected, a, out=self._more)
            np.divide(mass, below, out=mass, where=below > 0)
        curvature = mass.sum(axis=1)
        if F.pseudo is not None and F.rate is not None:
            rate = (F.rate[:n] * F.values[:n]).sum(axis=1, dtype=np.float64)
            slope = slope + F.pseudo[:n].sum(axis=1, dtype=np.float64) - rate
            curvature = curvature + rate
        # the factors of a feature without counts vanish by themselves
        moves = (curvature > 0) & (self._sums > 0)
        if fixed is not None:
            moves &= ~fixed[:n]
        step = np.divide(np.abs(slope), curvature, out=np.zeros(n), where=moves)
        c: Array = np.where(slope > 0, 1 + step, 1 / (1 + step))
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
        a = self.shape
        before = reached = self._marginal(a)
        for _ in range(n_steps):
            step = self._step(a)
            while abs(step) >= _LEAST_STEP:
                new = max(a * float(exp(step)), LEAST_SHAPE)
                there = self._marginal(new)
                if there >= reached:
                    break
                step /= 4
            else:
                break
            if new == a:
                break
            a, reached = new, there
            if a > MOST_SHAPE:
                a, reached = np.inf, -float(self.expected.sum())
                break
        self.shape = a
        self.moved()
        return reached - before

    def _step(self, a: float) -> float:
        """Return the Newton step of log a, of a limited size."""
        t, times = self._values, self._times
        below = np.add(self.expected, a, out=self._more)
        share = np.subtract(self.expected, self.totals, out=self._room)
        share /= below
        slope = float((times * (digamma(a + t) - float(digamma(a)))).sum()) + float(share.sum())
        # M / (a (a + M)) - (M - T) / (a + M)^2
        share -= self.expected / a
        share /= below
        second = -float(share.sum())
        slope = a * (slope - self._log_growth(a)[0])
        curvature = float((times * (trigamma(a + t) - float(trigamma(a)))).sum()) + second
        curvature = a * a * curvature + slope
        step = -slope / curvature if curvature < 0 else np.copysign(_MOST_STEP, slope)
        return float(np.clip(step, -_MOST_STEP, _MOST_STEP))

    def result(self, F: Factor, free: bool) -> tuple[Array, Array, Array]:
        """Return the efficiencies (m, B), and scales of features (m,) and of batches (B,).

        Without a prior, only the products of efficiencies with the scales are known. If both
        factors are `free`, scales make the geometric mean of the efficiencies of a feature 1, with
        weights M, and the sum of M over the features that a batch has its count.
        """
        self.move_to(F)
        T, e, M = self.totals, self._means.copy(), self.expected.copy()
        of_features, of_batches = np.ones(len(T)), np.ones(T.shape[1])
        for _ in range(_ROUNDS if self.shape == 0 and free else 0):
            weights = np.where(e > 0, M, 0.0)
            logs = xlogy(weights, np.where(e > 0, e, 1.0)).sum(axis=1)
            total = weights.sum(axis=1)
            c = exp(np.divide(logs, total, out=np.zeros(len(T)), where=total > 0))[:, None]
            e, M, of_features = e / c, M * c, of_features * c[:, 0]
            whole = np.where(e > 0, M, 0.0).sum(axis=0)
            s = np.divide(T.sum(axis=0), whole, out=np.ones(len(whole)), where=T.any(axis=0))
            e, M, of_batches = e / s, M * s, of_batches * s
        e[self.expected == 0] = 1  # nothing is known
        return e, of_features, of_batches


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
