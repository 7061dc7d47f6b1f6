"""The paper's methods: alternating Poisson regression (Algorithm 1), extrapolated (Algorithm 3).

Each outer iteration updates all rows of L with F held, then all rows of F with the new L held,
several inner steps each. The loss that accepts or rejects a step is read off the expected counts
that the columns' update ends with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..engine.monitor import Monitor
from .factors import MINVAL, Array, Report, aligned_copy
from .newton import record_end
from .objective import Objective
from .poisson import Halves
from .steps import Momentum

PLAIN_EVERY = 20
BETA, BETA_MAX, INCREASE, REDUCE, INCREASE_MAX = 0.5, 0.99, 1.1, 0.75, 1.05


class Method(NamedTuple):
    """Kernel of a solver: EM steps first, then steps of its own; None stands for `inner_iter`."""

    kernel: str
    em_steps: int | None
    steps: int | None
    guarded: bool
    inner_iter: int


METHODS = {
    "em": Method("visit", None, 0, False, 4),
    "ccd": Method("descend", 1, None, False, 1),
    "scd": Method("descend", 1, None, False, 4),
    "sn": Method("descend", 1, None, True, 4),
    "newton": Method("visit", 1, None, False, 1),
}


class Pair(NamedTuple):
    """One pair of factors in lane order."""

    L: Array
    F: Array

    def copy(self) -> Pair:
        """Return the pair in memory of its own."""
        return Pair(aligned_copy(self.L), aligned_copy(self.F))

    def take(self, L: Array, F: Array) -> None:
        """Become a copy of two factors."""
        np.copyto(self.L, L)
        np.copyto(self.F, F)


class Alternating:
    """The loop's state: best (L, F), plain (Ln, Fn), extrapolated (Ly, Fy), each scaled alone.

    Each has memory of its own; where nothing is extrapolated there is only the best.
    """

    def __init__(
        self,
        halves: Halves,
        objective: Objective,
        solver: str,
        inner_iter: int | None,
        extrapolate: bool,
        rescale: bool,
    ):
        method = METHODS[solver]
        inner = inner_iter or method.inner_iter
        self.halves, self.objective, self.kernel = halves, objective, method.kernel
        self.extrapolating, self.rescaling = extrapolate, rescale
        self.options: dict[str, Any] = {
            "em_steps": inner if method.em_steps is None else method.em_steps,
            "newton_steps": inner if method.steps is None else method.steps,
            "guarded": method.guarded,
        }
        self.best = Pair(halves.L.values, halves.F.values)
        self._rescale(self.best)
        for factor in self.best:
            np.maximum(factor, MINVAL, out=factor, where=factor > 0)
        if extrapolate:
            self.plain, self.ahead = self.best.copy(), self.best.copy()
        self.scale = np.ones(halves.n_components)  # what brought the floor of best.L to where it is
        self.beta = self.beta_accepted = BETA
        self.beta_max = BETA_MAX
        self.state = self._state_at(self.best)
        self.last_loglik, self.accepted = self.state["loglik"], True
        self.seen: dict[str, float] = {}

    def plain_step(self) -> None:
        """Both half-steps from the best point, no extrapolation."""
        self.best, self.state = self._step(self.best, self.best, 0.0)
        self.scale = np.ones_like(self.scale) * self._rescale(self.best)
        if self.extrapolating:
            self.plain.take(*self.best)
            self.ahead.take(*self.best)
        self.last_loglik, self.accepted = self.state["loglik"], True

    def extrapolated_step(self) -> None:
        """Algorithm 3: where the loss at (Ly, Fn) did not fall, back to (Ln, Fn), smaller beta."""
        moved, state = self._step(self.ahead, self.plain, self.beta)
        if state["loglik"] > self.state["loglik"]:
            self.best.take(self.ahead.L, moved.F)
            self.state, self.scale = state, np.ones_like(self.scale)
        self.accepted = state["loglik"] > self.last_loglik
        if not self.accepted:
            self.ahead.take(*self.plain)
            self.beta_max = self.beta_accepted
            self.beta *= REDUCE
        else:
            self.halves.extrapolate("F", moved.F, self.plain.F, Momentum(self.beta), Report())
            self.plain = moved
            self.beta = min(self.beta_max, INCREASE * self.beta)
            self.beta_accepted = self.beta
            self.beta_max = min(BETA_MAX, INCREASE_MAX * self.beta_max)
        self.last_loglik = state["loglik"]
        self.scale = self.scale * self._rescale(self.best)
        for pair in (self.plain, self.ahead):
            self._rescale(pair)

    def end(self, converged: bool) -> Pair:
        """Return the best pair; of a fit that has converged what scaling moved is at the floor."""
        if not converged:
            return self.best
        K = len(self.scale)
        for factor, scale in ((self.best.L, self.scale), (self.best.F, 1 / self.scale)):
            columns = factor[:, :K]
            columns[columns <= 2 * MINVAL * scale] = MINVAL  # extrapolation may have doubled it
        return self.best

    def _step(self, start: Pair, plain: Pair, beta: float) -> tuple[Pair, dict[str, float]]:
        """Move L from `start`, extrapolate it away from `plain`, then move F.

        Returns (Ln, Fn) and the state at (Ly, Fn); Ly and Fn are left in `start`.
        """
        halves = self.halves
        halves.replace(*start)
        L, F = halves.L.room(), halves.F.room()
        rows = halves.move_rows(self.kernel, L, report=("kkt_start",), **self.options)
        halves.extrapolate("L", L, plain.L, Momentum(beta), rows)
        columns = halves.move_whole_columns(
            self.kernel, F, report=("kkt_start", "loglik_end"), **self.options
        )
        halves.extrapolate("F", F, plain.F, Momentum(), columns)
        self._remember(rows, columns, beta)
        return Pair(L, F), self.objective.at(halves, columns)

    def _remember(self, rows: Report, columns: Report, beta: float) -> None:
        self.seen = {
            "kkt_loadings": rows.kkt / self.objective.scale_L,
            "kkt_factors": columns.kkt / self.objective.scale_F,
            "change_loadings": rows.change,
            "change_factors": columns.change,
            "zeros_loadings": rows.zeros,
            "zeros_factors": columns.zeros,
            "momentum": beta,
        }

    def _state_at(self, pair: Pair) -> dict[str, float]:
        self.halves.replace(*pair)
        report = self.halves.move_rows(
            "visit", self.halves.L.room(), em_steps=1, report=("loglik_start",)
        )
        return self.objective.at(self.halves, report)

    def _rescale(self, pair: Pair) -> Any:
        return self.halves.rescale(*pair) if self.rescaling else 1.0


def fit_alternating(
    halves: Halves,
    monitor: Monitor,
    *,
    solver: str,
    inner_iter: int | None,
    extrapolate: bool,
    rescale: bool,
) -> None:
    """Run until the monitor says stop and end at the best point met."""
    loop = Alternating(halves, Objective(halves), solver, inner_iter, extrapolate, rescale)
    for iteration in range(1, monitor.max_iter + 1):
        if extrapolate and iteration % PLAIN_EVERY:
            loop.extrapolated_step()
        else:
            loop.plain_step()
        if iteration < monitor.max_iter:
            # a step that was rejected reached nothing, even where it ends as high as the best
            reached = loop.last_loglik if loop.accepted else -np.inf
            monitor.record(reached=reached, **loop.state | loop.seen)
        if monitor.finished:
            monitor.forget_last()
            break
    halves.replace(*loop.end(monitor.converged))
    objective, seen, known = loop.objective, loop.seen, loop.state["loglik"]
    del loop  # its other pairs are not needed for the rest
    record_end(halves, objective, monitor, seen, known)
