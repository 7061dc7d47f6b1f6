"""Runs the starts of a fit, and then the fits from moves; returns the best one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..engine import progress
from ..engine.checkpoint import Checkpoint
from ..engine.loop import begin, fit
from ..engine.monitor import Monitor
from ..engine.protocol import Executor, Method
from ..engine.threads import single_blas_thread
from ..methods.starts.initialize import KINDS
from .fitted import OTHER_ENDS, Fitted
from .moves import COLUMNS, Exchange, Move, Reweighting, Search, described, factors_of

Array = NDArray[Any]
# The fit from a move ends when about this is left to gain, in nats; only the best fit is continued.
NEARLY = 3.0
# The fit of a start ends earlier, because that of the best one is continued: when about this is
# left to gain for each count, within these limits.
NEARLY_PER_COUNT, NEARLY_OF_START = 1e-4, (NEARLY, 100.0)
# A start is abandoned, but not before this iteration, if several times its estimated remaining gain
# are not enough to exceed the best start: ranks of starts hardly correlate with those of their ends
# before.
HOPELESS_AFTER = 60
# A record of `starts_`.
START_COLUMNS = [
    ("iterations", np.int64), ("objective", np.float64), ("reason", "S12"), ("kept", np.bool_)
]  # fmt: skip
# Iterations with random weights of the samples; half of the weights are 0.
REWEIGHTED_ITERATIONS = 8


def number_of_starts(model: Any, *, given: bool) -> int:
    """Return `n_init` of a model, or what "auto" means; `given` if factors to start from are."""
    if model.n_init != "auto":
        return int(model.n_init)
    of_kinds = isinstance(model.init, str) and model.init == "auto" and not given
    return len(KINDS) if of_kinds and model.n_components > 1 and model.tol > 0 else 1


@dataclass
class Starts:
    """The fits of one model to the same counts, from several starts and then from moves.

    Attributes
    ----------
    make : callable
        ``make(executor, rng)`` returns the method of a fit, which has not begun. For a start that
        is given, it also takes `start`, a function that returns factors, and `weights`.
    executor : callable
        Returns a new executor.
    monitor : callable
        ``monitor(**options)`` returns the monitor of a fit.
    checkpoints : sequence of Checkpoint or None
        One for each start and each move, and, if there are moves, one for the last fit.
    rng : numpy.random.RandomState
        Generator of the starts and moves.
    seed : int or None
        Seed of `rng`; that of the checkpoint after a fit is resumed.
    n_starts, n_moves, verbose : int
        As in the models.
    continues : bool
        Whether the fit of a start may end early, because the best one is continued to its end:
        `make` also takes `number`, that of a start, and the arguments of a start that is given.
    """

    make: Callable[..., Method]
    executor: Callable[[], Executor]
    monitor: Callable[..., Monitor]
    checkpoints: Sequence[Checkpoint | None]
    rng: Any
    seed: int | None
    n_starts: int
    n_moves: int
    verbose: int
    continues: bool = False

    def run(
        self, start: Callable[[], tuple[Array, Array]] | None = None, *,
        saved: Checkpoint | None = None, weights: Array | None = None, number: int = 0,
        **how: Any,
    ) -> Fitted:  # fmt: skip
        """Run one fit, that of start `number` if no start is given.

        `how` are options of its monitor.
        """
        start_arguments: dict[str, Any] = {"number": number} if number else {}
        if start is not None:
            start_arguments = {"start": start, "weights": weights}
        method, monitor = (
            self.make(self.executor(), self.rng, **start_arguments),
            self.monitor(**how),
        )
        monitor.seed = self.seed
        with single_blas_thread():
            # Ctrl-C ends this at once, because there is no model yet
            with progress.shown(self.verbose, "start"):
                iteration = begin(method, monitor, saved, self.rng)
            with monitor:
                fit(method, monitor, saved, iteration, self.rng)
                arrays = method.result()
        self.seed = monitor.seed
        return Fitted(arrays, monitor.history, monitor.reason, monitor.pressed)

    def best(self, counts: CountMatrix, weights: Array | None) -> Fitted:
        """Run the fits of all starts, and those from moves; return the best one.

        `weights` (n,) are those of the samples in the choice of moves.
        """
        ends: dict[int, Fitted] = {}
        records: list[tuple[Any, ...]] = []
        n_kept = 1 + OTHER_ENDS if self.n_moves else 1
        for i in range(self.n_starts):
            how: dict[str, Any] = {}
            if self.continues and self.n_starts > 1:
                enough = np.clip(NEARLY_PER_COUNT * counts.total, *NEARLY_OF_START)
                how = {"number": i, "enough": enough, "hopeless_after": HOPELESS_AFTER}
                how["exceeds"] = next(iter(ends.values())).objective if ends else None
                how["title"] = f"start {i + 1} of {self.n_starts}"
            ends[i] = fitted = self.run(saved=self.checkpoints[i], **how)
            records.append((len(fitted.history), fitted.objective, fitted.reason, False))
            ranked = sorted(ends, key=lambda i: -ends[i].objective)
            ends = {i: ends[i] for i in ranked[:n_kept]}
            if fitted.is_last:
                break
        starts = np.array(records, START_COLUMNS)
        starts["kept"][next(iter(ends))] = True
        if self.n_moves and not fitted.is_last:
            best = self._after_moves(counts, ends, weights)
        else:
            best = self._to_its_end(next(iter(ends.values())), fitted)
        return replace(best, starts=starts)

    def _after_moves(
        self, counts: CountMatrix, ends: Mapping[int, Fitted], weights: Array | None
    ) -> Fitted:
        """Try moves from the best of the fits `ends`; return the best fit, with their records.

        Moves are ranked for the best fit, and again when a move was kept. The fit from a move is
        abandoned when it will hardly exceed the best one, and otherwise ends when little is left to
        gain; the best fit is continued at last. Its history is that of the start, of the moves that
        led to it, and of its end.
        """
        # further draws from `rng` must not depend on the number of moves
        rng = np.random.RandomState(self.rng.randint(np.iinfo(np.int32).max))
        records: list[tuple[Any, ...]] = []
        search = Search(counts, ends, weights, rng, self.verbose)
        fitted = search.best
        for i in range(self.n_moves):
            move = search.next()
            if move is None:
                break
            number = self.n_starts + i
            words, columns = described(move, self.n_starts)
            fitted, moved = self._from_move(search, move, number, words)
            if not moved:  # the user ended the iterations with weights
                break
            gain = fitted.objective - search.best.objective
            gives = isinstance(move, Reweighting)
            kept = search.judge(fitted.after(search.best), number, gives=gives)
            columns |= {
                "kind": move.kind, "iterations": len(fitted.history), "gain": gain, "kept": kept
            }  # fmt: skip
            records.append(tuple(columns.get(name, -1) for name, _ in COLUMNS))
            if fitted.is_last:
                break
        return replace(self._to_its_end(search.best, fitted), moves=np.array(records, COLUMNS))

    def _from_move(
        self, search: Search, move: Move | Exchange | Reweighting, number: int, words: str
    ) -> tuple[Fitted, bool]:
        """Return the fit from a move, and whether it is that; else the user has ended it before."""
        title = f"move {number - self.n_starts + 1} of {self.n_moves} ({words})"
        if isinstance(move, Reweighting):
            weighted = self.run(
                partial(factors_of, search.best), weights=move.weights, callback=None,
                max_iter=REWEIGHTED_ITERATIONS, title=f"{title}: iterations with weights",
            )  # fmt: skip
            if weighted.is_last:
                return weighted, False
            start: Callable[[], tuple[Array, Array]] = partial(factors_of, weighted)
        else:
            start = search.start_of(move)
        saved, least = self.checkpoints[number], search.best.objective
        return self.run(start, saved=saved, exceeds=least, enough=NEARLY, title=title), True

    def _to_its_end(self, best: Fitted, last: Fitted) -> Fitted:
        """Continue the best fit, unless it is at its end or the user has ended the `last` one."""
        best = replace(best, interrupted=last.interrupted)
        if best.reason != "nearly":
            return best
        if last.is_last:
            return replace(best, reason="interrupted" if last.interrupted else last.reason)
        saved = self.checkpoints[-1]
        fitted = self.run(partial(factors_of, best), saved=saved, title="best fit, to its end")
        fitted = fitted.after(best)
        if fitted.objective < best.objective:  # by rounding
            return replace(fitted, arrays=best.arrays, history=best.history)
        return fitted
