"""Gamma-Poisson factorization with efficiencies of features in groups of samples.

The counts are ``x_ij ~ Poisson(e_gj sum_k theta_ik beta_jk)``, g the group of sample i. Groups are
batches, in which features have efficiencies ``e ~ Gamma(a, a)``, or panels, in which they are 0 or
1 (see `poisson.efficiencies`). With e held, only linear terms differ from those of `gamma_poisson`:

    u_gk = sum_j e_gj E beta_jk  in place of S_k,  c_jk = sum_g e_gj sum_{i in g} E theta_ik

in place of T_k. They are the rates of the posteriors, beside those of the priors. If factors are
points, whose columns sum to one, ``W_jk = N_jk / (c_jk + l_k)``, with N the expected counts and l
the multipliers of the sums. The posterior of e_bj is Gamma(a + T_bj, a + M_bj) with T the counts of
a feature in a batch and M those expected with e = 1. A point has M, and c if factors are random.
For any of them, the ELBO has, in place of T . S,

    sum_jk c_jk E beta_jk + sum_bj (marginal terms at M + e_bj M_bj).

The shapes of the posteriors of rows need a pass over the counts. With these, all else is updated in
turn without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...counts.base import CountMatrix
from ...engine.protocol import Executor, Values
from ..factors import LEAST, Array, Constraints, Factor, in_lane_order, per_lane, to_lanes
from ..poisson.efficiencies import BatchEfficiencies, Efficiencies, efficiencies_of
from . import point_topics
from .gamma import GROUPS, GammaPrior, InferGamma
from .gamma_poisson import VariationalGammaPoisson, hold
from .mean_field import Held, Shared, Start

# Rounds of rates, factors and efficiencies with the shapes of posteriors held.
_ROUNDS = 3
# Steps before the shape of the prior of efficiencies is estimated: a start may mistake batches for
# topics.
_HELD = 5
EXPECTED, SHAPE = "expected", "batch_shape"


class GroupedGammaPoisson(VariationalGammaPoisson):
    """Gamma-Poisson factorization with groups of samples.

    A point is ``topics`` (m, K), ``of_columns`` c (m, K) if factors are random, and for batches
    ``expected`` M (m, B) and the shape of the prior.

    Parameters
    ----------
    counts, executor, start, of_rows, of_columns, dtype, **options
        As in `VariationalGammaPoisson`.
    constraints : Constraints
        Their groups, batches, and what was measured.
    """

    numbers = (*VariationalGammaPoisson.numbers, "steps")
    efficiencies: Efficiencies

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start],
        of_rows: GammaPrior, of_columns: GammaPrior | None, dtype: Any, *,
        constraints: Constraints, **options: Any,
    ):  # fmt: skip
        super().__init__(counts, executor, start, of_rows, of_columns, dtype, **options)
        self.constraints, self.steps = constraints, 0

    def put_known(self) -> None:
        """Put the groups of samples into the executor, and sum the counts of batches."""
        groups: Any = self.constraints.groups
        self.executor.put(GROUPS, per_lane(groups, self.executor.layout.row_order))
        efficiencies = efficiencies_of(self.constraints, self.executor, self.counts.shape[1])
        assert efficiencies is not None
        self.efficiencies = efficiencies

    def begin(self, topics: Array) -> Shared:
        """Return the shared arrays of a point with these factors, and efficiencies near 1."""
        self.put_known()
        shared, e = {"topics": topics}, self.efficiencies
        if self.of_columns is not None:
            totals = super().begin(topics)["totals"]
            shared["of_columns"] = np.broadcast_to(totals, topics.shape).copy()
        if isinstance(e, BatchEfficiencies):
            shared[EXPECTED] = np.maximum(e.totals, LEAST)
            shared[SHAPE] = np.array([e.shape])
        return shared

    def hold(self, shared: Shared, n_steps: int) -> tuple[Held, InferGamma]:
        """Return the factors of a point in the form for rows, and the step of the rows."""
        held, _ = hold(
            shared["topics"], shared.get("of_columns"), self.of_columns,
            len(self.executor.layout.column_order), self.dtype, self.executor.n_threads,
        )  # fmt: skip
        u = self._of_rows(shared)
        step = InferGamma(
            held.design, self.of_rows.shape, n_steps, self.tolerance, sums=u, prior=self.of_rows
        )
        return held, step

    def _of_rows(self, shared: Shared) -> Array:
        """Return u of a point."""
        e = self.efficiencies
        e.moved()
        if isinstance(e, BatchEfficiencies):
            e.shape = float(shared[SHAPE][0])
            e.expect(shared[EXPECTED])
        u: Array = e.totals_of_rows(self._factor(self._means(shared)))[:, : self.n_components]
        return u

    def more_of_bound(self, shared: Shared) -> float:
        """Return the terms of efficiencies, and the prior of points."""
        e, of_points = self.efficiencies, super().more_of_bound(shared)
        if not isinstance(e, BatchEfficiencies):
            return of_points
        self._of_rows(shared)
        return of_points + e.bound()

    def _means(self, shared: Shared) -> Array:
        """Return expected factors (m, K)."""
        topics, columns = shared["topics"], self.of_columns
        if columns is None:
            return topics
        rates: Array = columns.own_rates(topics, shared["of_columns"]) + shared["of_columns"]
        return topics / rates

    def _factor(self, means: Array) -> Factor:
        """Return expected factors in the form for efficiencies."""
        n_lanes = len(self.executor.layout.column_order)
        lanes = to_lanes(means, in_lane_order(len(means), n_lanes), self.stride, np.float64, 0.0)
        return Factor(lanes, len(means), self.n_components)

    def _at(self, means: Array, totals: Array) -> Factor:
        """Update efficiencies for expected factors (m, K) and sums of loadings (G, K)."""
        sums = np.zeros((len(totals), self.stride))
        sums[:, : self.n_components] = totals
        self.efficiencies.take_sums(sums)
        return self._factor(means)

    def _of_columns(self, F: Factor) -> Array:
        columns = self.efficiencies.totals_of_columns(F)
        return np.ascontiguousarray(columns[: F.n_rows, : self.n_components])

    def arrive(self, shared: Shared, of_rows: Values, expected: Array) -> Shared:
        """Return factors and efficiencies after a plain step."""
        arrived = dict(shared)
        if self.of_columns is None:
            F = self._arrive_at_points(arrived, of_rows["totals"], expected)
        else:
            arrived["topics"] = expected + self.of_columns.shape
            for _ in range(_ROUNDS):
                F = self._at(self._means(arrived), of_rows["totals"])
                arrived["of_columns"] = self._of_columns(F)
            F = self._at(self._means(arrived), of_rows["totals"])
        self.steps += 1
        return arrived | self._after(F, self.steps > _HELD)

    def _arrive_at_points(self, arrived: Shared, totals: Array, expected: Array) -> Factor:
        """Move factors, and the sums of loadings (G, K)."""
        if self.pseudo is not None:
            expected += self.pseudo
        rate, F = self.of_rows.rate, self._at(arrived["topics"], totals)
        amounts = totals * (self._of_rows(arrived) + rate)
        F = self._at(arrived["topics"], totals)
        for _ in range(_ROUNDS):
            c = self._of_columns(F)
            below = c + point_topics.multipliers(expected, c)
            topics = np.divide(expected, below, out=np.zeros_like(below), where=expected > 0)
            unused = expected.sum(axis=0) == 0
            topics[:, unused] = arrived["topics"][:, unused]
            arrived["topics"] = topics
            F = self._at(topics, totals)
            u = self.efficiencies.totals_of_rows(F)[:, : self.n_components]
            totals = amounts / (u + rate)
            F = self._at(topics, totals)
        return F

    def _after(self, F: Factor, estimates: bool) -> Shared:
        """Return what a point has of efficiencies, after an update of their shape if asked for."""
        e = self.efficiencies
        if not isinstance(e, BatchEfficiencies):
            return {}
        e.move_to(F)
        if estimates:
            e.estimate(F)
        return {EXPECTED: np.maximum(e.expected, LEAST), SHAPE: np.array([e.shape])}

    def newton_point(
        self, shared: Shared, arrived: Shared, curvature: Array, expected: Array
    ) -> Shared:
        """Return topics after a Newton step, and efficiencies for these."""
        c = self._of_columns(self._factor(arrived["topics"]))
        linear = c + point_topics.multipliers(expected, c)
        topics = point_topics.newton_step(
            shared["topics"], curvature, expected, self.executor.n_threads, linear, self.pseudo
        )
        self.efficiencies.moved()
        return {"topics": topics} | self._after(self._factor(topics), False)

    def extrapolated(self, name: str, now: Array, before: Array) -> Array:
        """Return a shared array extrapolated from `now` away from `before`; not the shape."""
        return now if name == SHAPE else super().extrapolated(name, now, before)

    def change(self, before: Shared, after: Shared) -> dict[str, float]:
        """Return the share of M that changes, until the shape of the prior is estimated, 1."""
        change = 0.0
        if EXPECTED in after:
            now, then = after[EXPECTED], before[EXPECTED]
            change = float(np.abs(now - then).sum() / 2 / now.sum())
            if self.constraints.batch_shape is None and self.steps <= _HELD:
                change = 1.0
        return {"change_totals": change}

    def result_of_columns(self, topics: Array) -> dict[str, Array]:
        """Return the arrays of factors, with `topics` (m, K) in the order of the counts."""
        shared, columns = self.points["gamma"], self.of_columns
        arrays = {"sums": self._of_rows(shared)}
        if columns is not None:
            of_columns = self.plain_columns(shared["of_columns"])
            columns = columns.taken(np.argsort(self.feature_order))
            arrays["eta"] = columns.own_rates(topics, of_columns)
            arrays["beta"] = topics / (arrays["eta"] + of_columns)
            arrays["totals"] = of_columns
        return arrays

    def sums_of_rows(self, sums: Array, here: slice) -> Array:
        """Return u of rows."""
        assert self.constraints.groups is not None
        of_rows: Array = sums[self.constraints.groups[here]]
        return of_rows

    def result(self) -> dict[str, Array]:
        """Return the posterior, efficiencies of batches (B, m), and the shape (1,) of their prior.

        `sums` are u (G, K) and `totals` c (m, K).
        """
        arrays, e = super().result(), self.efficiencies
        if not isinstance(e, BatchEfficiencies):
            return arrays
        point = self.points["gamma"]
        self._of_rows(point)
        means, _, _ = e.result(self._factor(self._means(point)), free=False)
        efficiencies = np.stack([*map(self.plain_columns, means.T)])
        return arrays | {"efficiencies": efficiencies, SHAPE: np.array([e.shape])}

    def point_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""
        m, K = self.counts.shape[1], self.n_components
        shapes: dict[str, tuple[int, ...]] = {"topics": (m, K)}
        if self.of_columns is not None:
            shapes["of_columns"] = m, K
        if self.constraints.batches is not None:
            shapes |= {EXPECTED: (m, int(self.constraints.batches.max()) + 1), SHAPE: (1,)}
        return shapes
