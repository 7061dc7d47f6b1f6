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

import numpy as np

from ... import kernels
from ...engine.protocol import Executor
from ...kernels import dense
from ...kernels.functions import digamma, exp, log, log1p, log_gamma, trigamma, xlogy
from ..factors import LEAST, Array, Constraints, Factor
from ..weights.entries import columns_left
from ..weights.measured import GroupSums
from ..weights.poisson_weights import GroupSumsOfEntries, weightless_in_groups
from .batch_totals import batch_totals

# The shape of the prior from which an estimate starts; a larger one than the most is infinite.
FIRST_SHAPE, LEAST_SHAPE, MOST_SHAPE = 10.0, 1e-3, 1e6
# A step of the estimate multiplies the shape by at most exp(2). It ends with steps below the least.
_MOST_STEP, _LEAST_STEP, _STEPS = 2.0, 1e-3, 40
# Arrays (m, B) of float64: counts, expectations, logarithms; and those of the start and the result.
_ARRAYS = 10
# Numbers of an array (m, B) that are processed at a time.
_PIECE = 1 << 14
# Alternations between scales of features and of batches.
_ROUNDS = 30
# Iterations between two estimates of the shape, and between two steps on scales.
ADAPT_EVERY, SCALE_EVERY = 8, 4


class Efficiencies:
    """Known efficiencies (m, G) of features in lane order in groups of samples, 0 or 1.

    `group_sums` (G, stride) are S at the current point. `moved` must be called if L or F moves.
    """

    # if entries have weights: a mask (G, m) of features without any in a group, and S of each
    # feature, (G, m, stride)
    weightless: Array | None = None
    of_features: Array | None = None

    def __init__(self, of_groups: Array):
        self._of_groups, self.n_groups = of_groups, of_groups.shape[1]

    def sum_groups(self, executor: Executor, source: str = "L") -> None:
        """Compute the sums S of loadings."""
        ((of_rows, _),) = executor.run(GroupSums(self.n_groups, source))
        sums = of_rows["sums"]
        if self.weightless is not None:
            step = GroupSumsOfEntries((*self.weightless.shape, sums.shape[1]), source)
            ((_, (more,)),) = executor.run(step)
            self.of_features = np.stack([*map(columns_left, sums, more, self.weightless)])
        self.take_sums(sums)

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
        e = self.of_groups(F)
        if self.of_features is None:
            own[: F.n_rows] = dense.product(e, self.group_sums)
        else:
            for g, sums in enumerate(self.of_features):
                own[: F.n_rows] += e[:, g, None] * sums
        np.copyto(own, self.group_sums.sum(axis=0), where=own <= 0)
        return own


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
        self._means = np.empty(totals.shape)
        # arrays of batches are processed in pieces that fit into the cache of a processor
        n = max(1, _PIECE // max(1, totals.shape[1]))
        self._pieces = [slice(i, min(i + n, len(totals))) for i in range(0, len(totals), n)]
        self._memory = np.empty((2, min(n, len(totals)), totals.shape[1]))
        self._values, times = np.unique(totals, return_counts=True)
        self._times = times.astype(np.float64)
        self._sums = totals.sum(axis=0), totals.sum(axis=1)
        self._known = -1.0, 0.0  # a shape, and its term in the likelihood
        self._here, self._total = False, np.zeros((0, 0))

    def moved(self) -> None:
        """Note that L or F has moved."""
        self._here, self._total = False, np.zeros((0, 0))

    def move_to(self, F: Factor) -> None:
        """Compute M and e, unless they are those of this point."""
        if self._here:
            return
        # without columns of padding, products would be copied to memory of their own
        group_sums = dense.padded(self.group_sums.T)
        for piece in self._pieces:
            if self.of_features is None:
                M = dense.product(F.values[piece], group_sums)[:, : self.n_groups]
            else:
                M = (self.of_features[:, piece] * F.values[piece]).sum(axis=2).T
            if self.measured is not None:
                M *= self.measured[piece]
            if self._of_batches is not None:
                M = dense.product(M, self._of_batches)
            self._expect(piece, M)
        self._here = True

    def expect(self, M: Array) -> None:
        """Compute e for M (m, B), until L or F moves."""
        for piece in self._pieces:
            self._expect(piece, M[piece])
        self._here = True

    def _expect(self, piece: slice, M: Array) -> None:
        """Store M, and compute e, of a piece of the features."""
        self.expected[piece] = M
        a, e, (below, _) = self.shape, self._means[piece], self._room(piece)
        if np.isinf(a):
            e[:] = 1
            return
        np.add(self.totals[piece], a, out=e)
        np.add(M, a, out=below)
        if a == 0:  # nothing is known of features without expected counts
            nothing = below == 0
            e[nothing] = below[nothing] = 1
        np.divide(e, below, out=e)

    def _room(self, piece: slice) -> Array:
        """Return memory for two arrays of a piece of the features."""
        return self._memory[:, : piece.stop - piece.start]

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
        plain = weighted = 0.0
        for piece in self._pieces:
            logs, _ = self._room(piece)
            np.multiply(self.expected[piece], 1 / a, out=logs)
            logs += 1
            kernels.log(logs, logs, n_threads=1)
            plain += float(logs.sum())
            logs *= self.totals[piece]
            weighted += float(logs.sum())
        return plain, weighted

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
        follows.
        """
        n = F.n_rows
        slope, curvature = self._slopes(F, axis=1)
        if F.pseudo is not None and F.rate is not None:
            rate = (F.rate[:n] * F.values[:n]).sum(axis=1, dtype=np.float64)
            slope = slope + F.pseudo[:n].sum(axis=1, dtype=np.float64) - rate
            curvature = curvature + rate
        # the factors of a feature without counts vanish by themselves
        moves = self._sums[1] > 0
        if fixed is not None:
            moves &= ~fixed[:n]
        return _scale_step(slope, curvature, moves)

    def scales_of_batches(self, F: Factor) -> Array:
        """Return factors c (B,) of the loadings of batches that raise the likelihood.

        With e held, they would creep, too: e takes back most of a change of scale. A prior of L is
        ignored. Without a prior of e, and without effects, c is 1.
        """
        if not 0 < self.shape < np.inf:
            return np.ones(self.totals.shape[1])
        slope, curvature = self._slopes(F, axis=0)
        return _scale_step(slope, curvature, self._sums[0] > 0)

    def _slopes(self, F: Factor, axis: int) -> tuple[Array, Array]:
        """Return the derivative of the likelihood in log scales, and minus the second, along axis.

        In the logarithm of a scale, the likelihood of all that it multiplies is concave.
        """
        self.move_to(F)
        a, sums = self.shape, np.zeros((2, len(self._sums[axis])))
        for piece in self._pieces:
            into, M = sums[:, piece] if axis else sums, self.expected[piece]
            mass, below = self._room(piece)
            np.multiply(self._means[piece], M, out=mass)
            into[0] += mass.sum(axis=axis)
            if np.isfinite(a):
                mass *= a
                np.add(M, a, out=below)
                np.divide(mass, below, out=mass, where=below > 0)
            into[1] += mass.sum(axis=axis)
        return self._sums[axis] - sums[0], sums[1]

    def log_gain(self, c: Array, axis: int) -> float:
        """Return what scales of batches (axis 0) or features (axis 1) add to sum x log mu."""
        return float((self._sums[axis] * log(c)).sum())

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
        slope = float((times * (digamma(a + t) - float(digamma(a)))).sum())
        curvature = float((times * (trigamma(a + t) - float(trigamma(a)))).sum())
        for piece in self._pieces:
            share, below = self._room(piece)
            M = self.expected[piece]
            np.add(M, a, out=below)
            np.subtract(M, self.totals[piece], out=share)
            share /= below
            slope += float(share.sum())
            # M / (a (a + M)) - (M - T) / (a + M)^2
            share -= M / a
            share /= below
            curvature -= float(share.sum())
        slope = a * (slope - self._log_growth(a)[0])
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


def _scale_step(slope: Array, curvature: Array, moves: Array) -> Array:
    """Return factors that raise a concave function of their logarithms; 1 where nothing moves.

    Its curvature changes by at most a factor of exp(|step|) in a step, so that steps of
    log(1 + slope / curvature) never pass the maximum.
    """
    able = moves & (curvature > 0)
    step = np.divide(np.abs(slope), curvature, out=np.zeros(len(slope)), where=able)
    c: Array = np.where(slope > 0, 1 + step, 1 / (1 + step))
    return c


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
    found = BatchEfficiencies(totals, constraints.batches, measured, constraints.batch_shape)
    if constraints.entries is not None:
        mask = weightless_in_groups(constraints.entries, constraints.groups, found.n_groups)
        found.weightless = mask[:, order[:n_features]]
    return found
