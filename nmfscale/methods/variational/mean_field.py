"""Mean-field inference with momentum, for any model whose updates never decrease the bound.

A point consists of the row array ``gamma`` (shapes of the posterior of every sample) and of shared
arrays in this process; all are positive.  One iteration, counts read once:

1. A plain step to ``next``, which cannot lower the evidence lower bound (ELBO). The ELBO of the
   point before the step is a by-product.
2. Judge that point.  If its ELBO is the highest so far, keep it as ``best``.  If it fell, the next
   step has no momentum; if it is still lower then, return to the best point.
3. Momentum on logarithms: ``gamma <- next (next / before)^b``, shared arrays likewise, with
   ``before`` the previous plain point and ``b = min((k - 1) / (k + 2), MOST_MOMENTUM)``; k counts
   the iterations, and is halved when the ELBO falls. No parameter is extrapolated below its prior,
   just as in plain points: a posterior with a small shape is very sensitive to it.

The history has the best ELBO so far, and the fit ends at the best point: it never falls.

Topics that are point estimates take Newton steps, and their momentum is linear (`point_topics`).
These steps may lower the ELBO, as momentum may. The first step of a fit, and the first one after a
return to the best point, is plain.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.sell import LANES
from ...engine.protocol import Block, Executor, Needs, RowArrays, Step, Sums, Values
from ..declared import PointMethod, Shared
from ..factors import Array, rows_of_sums, to_lanes
from ..poisson import solvers
from ..poisson.newton import shares_correlations
from ..poisson.steps import Part, SumColumns
from . import point_topics
from .posteriors import InferRows, SumTerms

MOST_MOMENTUM = 0.99
# A relative decrease of the ELBO up to this is rounding, not a fall.
NOISE = {"float32": 1e-8, "float64": 1e-14}
# Maximum number of updates of new posteriors of samples in a start, and the mean change at which
# they end.
FRESH_STEPS, FRESH_TOLERANCE = 20, 1e-3
# Maximum number of updates of each sample in an iteration with a Newton step of the topics, which
# lowers the ELBO if posteriors are far from their optimum given the topics.
NEWTON_ROW_STEPS = 12


@dataclass(frozen=True)
class ExtrapolateLog(Step):
    """Extrapolates logarithms from ``next`` away from ``before``, but not below `least`."""

    momentum: float
    least: Any = None
    arrays = RowArrays(("next", "before"), ("gamma",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Extrapolate the rows of a block."""
        now = block["next"]
        out = block.empty("gamma", now)
        kernels.extrapolate_log(now, block["before"], out, self.momentum, n_threads=n_threads)
        if self.least is not None:
            inside = out[:, : len(self.least)]
            np.maximum(inside, self.least.astype(out.dtype), out=inside)
        return {}


class MeanField(PointMethod):
    """Mean-field fit; points and row arrays ``gamma``, ``next``, ``before``, ``best``: see above.

    A step may make other row arrays, ``theta`` and ``log_mu``.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    executor : Executor
    n_components : int
    dtype : float32 or float64
        Of the row arrays.
    momentum : bool
    """

    result_name = "posterior"
    ends_with_update = True
    numbers: ClassVar[tuple[str, ...]] = ("best", "count", "beta", "fallen")

    def __init__(
        self, counts: CountMatrix, executor: Executor, n_components: int, dtype: Any, momentum: bool
    ):
        self.counts, self.executor, self.n_components = counts, executor, n_components
        self.dtype, self.momentum = np.dtype(dtype), momentum
        self.points = {}
        self.best: dict[str, Any] = {}
        self.count, self.beta, self.fallen = 0, 0.0, False
        self._seen: dict[str, Any] = {}
        self._totals = counts.column_totals[self.feature_order].astype(np.float64)

    def sum_counts(self, design: Array, source: str, wanted: int = kernels.SUM_GRADIENT) -> Step:
        """Return the step that sums the counts of each topic in features, for `counts_of`."""
        parts = (Part(0, len(design) // LANES, wanted),)
        return SumColumns(design, self.n_components, parts, source=source)

    def counts_of(self, sums: Sums, design: Array) -> Array:
        """Return expected counts (m, K) of each topic, in lane order, from the sums."""
        counts = rows_of_sums(sums[0], self.counts.shape[1])
        counts *= design[: len(counts), : self.n_components]
        return counts

    @abstractmethod
    def look(self) -> dict[str, Any]:
        """Compute the plain point ``next``; return the record of the current point.

        The record has ``elbo`` and the quantities that vanish at an optimum.
        """

    def momentum_of(self, count: int) -> float:
        """Return the momentum for this count of iterations."""
        return min((count - 1) / (count + 2), MOST_MOMENTUM)

    def _looked(self) -> dict[str, Any]:
        numbers = self.look()
        if not math.isfinite(numbers["elbo"]):
            raise FloatingPointError(
                f"The evidence lower bound is {numbers['elbo']}: the start or a prior is too small "
                "or too large for the counts. Rescale these, or leave them at their defaults."
            )
        return numbers | {"momentum": self.beta, "bytes_read": self.executor.bytes_read}

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Take a plain step, and on the way compute the bound at the current point."""
        self._seen = self._looked()
        if not iteration:
            return None
        reached = self._seen["elbo"]
        return self._seen | {"elbo": max(reached, self.best["elbo"]), "reached": reached}

    def update(self, iteration: int, ending: bool) -> None:
        """Judge the point; move to the next one, or return to the best."""
        reached, best = self._seen["elbo"], self.best.get("elbo", -math.inf)
        fell = bool(self.best) and reached < best - NOISE[self.dtype.name] * abs(best)
        if reached >= best:
            self.best = self._seen
            self.copy("gamma", "best")
        self.count, self.beta = max(self.count // 2, 1) if fell else self.count + 1, 0.0
        if fell and self.fallen and not ending:
            self.count, self.fallen = 0, False
            self.copy("best", "gamma")
            return
        self.fallen = fell
        if self.momentum and not ending and not fell:
            self.beta = self.momentum_of(self.count)
        if self.beta:
            self._extrapolate()
        else:
            self.copy("next", "gamma")
        self.copy("next", "before")

    def _extrapolate(self) -> None:
        point: Shared = {}
        for name, now in self.points["next"].items():
            point[name] = self.extrapolated(name, now, self.points["before"][name])
        self.points["gamma"] = shared = self.feasible(point)
        self.executor.apply(ExtrapolateLog(self.beta, self.least(shared)))

    def extrapolated(self, name: str, now: Array, before: Array) -> Array:
        """Return a shared array extrapolated from `now` away from `before`."""
        further = np.empty_like(now)
        kernels.extrapolate_log(now, before, further, self.beta, n_threads=self.executor.n_threads)
        return further

    def feasible(self, shared: Shared) -> Shared:
        """Return extrapolated shared arrays, made feasible."""
        return shared

    def least(self, shared: Shared) -> Array | None:
        """Return the lower bound (K,) of rows of ``gamma`` after a plain step, if there is one."""
        return None

    def finish(self, settled: bool) -> dict[str, Any]:
        """Move to the last plain point, or to the best point if that is higher."""
        self.executor.drop("before")
        seen = self._looked()
        if seen["elbo"] < self.best["elbo"]:
            self.copy("best", "gamma")
            seen = self.best | {"bytes_read": seen["bytes_read"]}
        self.executor.drop("next", "theta", "log_mu", "best")
        return seen

    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""
        return "gamma", "before", "best"


class Start(NamedTuple):
    """Start of a fit: topics (m, K), and gamma (n, K), which is inferred by default.

    First, topics are updated `rounds` times, each time with a new gamma.
    """

    topics: Array
    gamma: Array | None = None
    rounds: int = 0


class Held(Protocol):
    """Topics in the form for rows.

    Attributes
    ----------
    design : ndarray (n_lanes, stride)
        exp(E log) of the topics in lane order, each feature divided by its maximum, so that small
        values do not underflow.
    shift : ndarray (m,)
        Logarithms of the maxima.
    bound : float
        Terms of the topics in the ELBO.
    """

    design: Array
    shift: Array
    bound: float


class MeanFieldTopics(MeanField):
    """Mean-field inference of topics; a point has ``topics`` (m, K) in lane order.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    executor : Executor
    start : callable
        Returns a `Start`.
    n_components : int
    dtype : float32 or float64
    n_steps : int, default=None
        Maximum number of updates of each sample in an iteration; None means 1, or
        `NEWTON_ROW_STEPS` if topics take Newton steps.
    fresh_steps, tolerance : int and float
        Maximum number of updates of new posteriors, and the mean change at which they end.
    momentum : bool, default=True
    points : bool, default=False
        Whether topics are point estimates, which take Newton steps if there is momentum and
        `takes_newton_steps` agrees.
    """

    residual_name = "largest change of an iteration"
    gain_per_tol = 1e-2
    # Terms of the ELBO that depend on the counts only.
    constant = 0.0
    # Pseudo-counts (m, K) of topics that are points, in lane order; `arrive` adds them to counts.
    pseudo: Array | None = None

    def __init__(
        self, counts: CountMatrix, executor: Executor, start: Callable[[], Start],
        n_components: int, dtype: Any, *, n_steps: int | None = None,
        fresh_steps: int = FRESH_STEPS, tolerance: float = FRESH_TOLERANCE, momentum: bool = True,
        points: bool = False,
    ):  # fmt: skip
        super().__init__(counts, executor, n_components, dtype, momentum)
        # rounding keeps the parameters of large samples from converging further
        least = 8 * float(np.finfo(dtype).eps) * float(counts.row_totals.max(initial=0))
        self.fresh_steps, self.tolerance, self._start = fresh_steps, max(tolerance, least), start
        self.newton = momentum and points and takes_newton_steps(counts, n_components)
        self.n_steps = n_steps or (NEWTON_ROW_STEPS if self.newton else 1)

    @abstractmethod
    def begin(self, topics: Array) -> Shared:
        """Return the shared arrays of a point with these topics."""

    @abstractmethod
    def hold(self, shared: Shared, n_steps: int) -> tuple[Held, InferRows]:
        """Return the topics of a point in the form for rows, and the step of the rows."""

    @abstractmethod
    def arrive(self, shared: Shared, of_rows: Values, expected: Array) -> Shared:
        """Return the shared arrays after a plain step.

        The inputs are the results of the step of the rows, and expected counts (m, K) of each
        topic.
        """

    @abstractmethod
    def change(self, before: Shared, after: Shared) -> dict[str, float]:
        """Return the change of the shared arrays other than topics."""

    def start(self) -> None:
        """Move to the start."""
        topics, gamma, rounds = self._start()
        topics, n = (
            np.ascontiguousarray(topics[self.feature_order], np.float64),
            self.counts.shape[0],
        )
        self.points["gamma"] = self.begin(topics)
        if gamma is not None:
            self._put(gamma, np.arange(n))
        for i in range(rounds + 1 if gamma is None else 0):
            self._put(np.ones((1, self.n_components)), np.zeros(n, np.intp))
            self._step(self.fresh_steps)
            if i < rounds:
                self.points["gamma"] = self.points["next"]
        if gamma is None:
            self.executor.copy("next", "gamma")
        self.copy("gamma", "before")
        self.copy("gamma", "best")

    def _put(self, gamma: Array, rows: Array) -> None:
        """Put gamma into the executor: for each sample, its row."""
        order, folder = self.executor.layout.row_order, self.executor.folder
        order = np.where(order < 0, -1, rows[order])
        lanes = to_lanes(gamma, order, self.stride, self.dtype, 1.0, folder=folder)
        self.executor.put("gamma", lanes)

    def look(self) -> dict[str, Any]:
        """Compute the plain point ``next``; return the record of the current point."""
        return self._step(self.n_steps)

    def _step(self, n_steps: int) -> dict[str, Any]:
        shared = self.points["gamma"]
        held, infer = self.hold(shared, n_steps)
        newton = self.newton and self.count > 0
        wanted = kernels.SUM_FULL if newton else kernels.SUM_GRADIENT
        add = self.sum_counts(held.design, "theta", wanted)
        _, (of_rows, _), (_, sums) = self.executor.run(infer, SumTerms.after(infer), add)
        topics, curvature = shared["topics"], sums[0]
        elbo = of_rows["bound"] + (self._totals * held.shift).sum() + held.bound
        elbo += self.more_of_bound(shared) + self.constant
        if newton:
            sums = [point_topics.numerators(curvature, held.design)]
        expected = self.counts_of(sums, held.design)
        self.points["next"] = arrived = self.arrive(shared, of_rows, expected)
        if newton:
            arrived |= self.newton_point(shared, arrived, curvature, expected)
        after = arrived["topics"]
        moved = after / after.sum(axis=0)
        moved -= topics / topics.sum(axis=0)
        return {
            "elbo": float(elbo),
            "change_components": float(np.abs(moved, out=moved).sum(axis=0).max()) / 2,
            "change_loadings": float(of_rows["change"].sum()) / 2 / (self.counts.total or 1.0),
            **self.change(shared, arrived),
        }

    def more_of_bound(self, shared: Shared) -> float:
        """Return further terms of the shared arrays in the ELBO."""
        return 0.0

    def newton_point(
        self, shared: Shared, arrived: Shared, curvature: Array, expected: Array
    ) -> Shared:
        """Return shared arrays that a Newton step of the topics changes, after a plain step."""
        topics, n_threads = shared["topics"], self.executor.n_threads
        moved = point_topics.newton_step(topics, curvature, expected, n_threads, pseudo=self.pseudo)
        return {"topics": moved}

    def extrapolated(self, name: str, now: Array, before: Array) -> Array:
        """Return a shared array extrapolated from `now` away from `before`."""
        if name == "topics" and self.newton:
            return point_topics.extrapolated(now, before, self.beta)
        return super().extrapolated(name, now, before)

    def plain_point(self) -> tuple[Array, Array]:
        """Return gamma (n, K) and topics (m, K) in the order of the counts."""
        return self.plain_rows("gamma"), self.plain_columns(self.points["gamma"]["topics"])


def takes_newton_steps(counts: CountMatrix, n_components: int) -> bool:
    """Whether point estimates of topics take Newton steps, or only EM steps.

    Not a single topic, which is at its optimum after an EM step, and not if the sums of curvature
    would be large.
    """
    return n_components > 1 and not shares_correlations(n_components, counts.shape[1])


def points_of(topics: Array) -> Array:
    """Return topics (m, K) whose columns sum to one; empty columns become flat."""
    totals = topics.sum(axis=0, dtype=np.float64)
    flat = np.full(topics.shape, 1 / len(topics))
    return np.divide(topics, totals, out=flat, where=totals > 0)


def mean_field_needs(
    counts: CountMatrix, n_components: int, dtype: Any, n_threads: int, *, rows: int, task: int,
    topics: int, scratch: int = 0, points: bool = False,
) -> Needs:  # fmt: skip
    """Return the memory of a fit, including that of a Poisson NMF as its start.

    Given the maximum number of row arrays in memory, `rows`, and in a task, `task`, and of arrays
    (m, K), `topics`; and whether topics are point estimates.
    """
    newton = points and takes_newton_steps(counts, n_components)
    wanted = kernels.SUM_FULL if newton else kernels.SUM_GRADIENT
    itemsize, stride = np.dtype(dtype).itemsize, kernels.row_stride(n_components)
    lanes = -(-counts.shape[1] // LANES) * LANES
    own = Needs(
        row=stride * itemsize * rows + 5 * 8,
        shared=lanes * stride * 8 * topics + scratch,
        sums=lanes * kernels.statistics_size(n_components, wanted) * 8,
        task_row=task * stride * 8,
        task_shared=lanes * stride * 8 * 2,
        saved_row=stride * 8,
    )
    start = solvers.poisson_needs(counts, n_components, dtype, "auto", n_threads)
    return Needs(*map(max, own, start))
