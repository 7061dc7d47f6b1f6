"""Monitors a fit: one record for each iteration, the stopping rule, progress, Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..terminal import open_bar, print_message

# Longer than the interval between plain (not extrapolated) steps of the paper's methods, which
# rise.
STILL = 30
# The gain of the last third of the iterations (at least five) shows whether the objective rises.
# With momentum the remaining gain after n iterations is about 1 / n^2: no more than this gain.
SHARE, FEWEST = 3, 5
# The remaining gain is estimated from the gains of the last two sixths of the iterations, which
# shrink by a roughly constant ratio, at most this. A gain that does not shrink, as at a saddle
# point, is not a plateau.
SIXTH, MOST_RATIO = 6, 0.97
# A fit has converged only if the remaining gain is at most this, in nats, or this many times `tol`.
LITTLE, LITTLE_PER_TOL = 0.5, 5e3
LIKELIHOODS = "loglik", "elbo"
# Residuals of nearby points are not precise enough. Residuals are therefore measured at doubling
# iterations, and after every twentieth of the iterations once they are within a few times `tol`.
FIRST_MEASURED, NEAR, NEAR_EVERY = 20, 4.0, 20
# Margin for the restoring of exact zeros at the end, which changes residuals by less.
CERTAIN = 0.999
# A fit that must exceed a given objective is abandoned if it will hardly do so: after the first of
# these iterations if several times the estimated remaining gain are not enough, after the second if
# not even the gain of the last half of the iterations is, after the third if it is still below.
HARDLY_AFTER, HARDLY_GAINS, HALF_AFTER, BELOW_AFTER = 12, 3.0, 20, 40
# Reasons why a fit ends, and their text in messages.
ENDS = {
    "converged": "converged",
    "plateau": "converged on a plateau",
    "precision": "float32 can make no more progress",
    "max_iter": "not converged: max_iter reached",
    "callback": "stopped by the callback",
    "interrupted": "interrupted",
    "behind": "abandoned: no gain",
    "nearly": "little is left to gain",
}
# The reasons that are stopping rules of convergence: little is left to gain.
CONVERGED = "converged", "plateau"
# Names of columns of the history in messages.
WORDS = {"loglik": "log-likelihood", "elbo": "ELBO", "kkt_loadings": "KKT"}


@contextmanager
def first_ctrl_c(heard: Callable[[], None]) -> Iterator[None]:
    """Within this context, call a function at the first Ctrl-C instead of KeyboardInterrupt.

    The second Ctrl-C raises KeyboardInterrupt.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            # here already: the code that restores Ctrl-C below may be interrupted before it begins
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        pressed = True
        heard()

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def left(best: Sequence[float]) -> float:
    """Estimate the remaining gain of a fit from its last gains.

    At least the gain of the last third of the iterations, because momentum leaves about as much,
    and gains come in steps. More if gains do not shrink like a convergent series.
    """
    n = len(best)
    third = best[-1] - best[max(-n, -1 - max(FEWEST, n // SHARE))] if n else 0.0
    if n < 2 * FEWEST:
        return third
    sixth = n // SIXTH if n >= 2 * SIXTH else 2
    last, before = (best[-1 - i] - best[-1 - i - sixth] for i in (0, sixth))
    ratio = min(last / before, MOST_RATIO) if before > 0 else MOST_RATIO
    return max(last * ratio / (1 - ratio), third)


class Monitor:
    """Records, stopping rule and progress of one fit.

    A fit has converged and ends when the largest residual is at most `tol`. It also ends on a
    plateau, when the best value of the objective gained at most `gain_tol` times its size in the
    last third of the iterations; the default of `gain_tol` is derived from `tol` by the method, and
    0 turns the plateau off. Iterations that ended below the best value do not count: the fit may
    return to its best point. But if `STILL` iterations in a row are below it, and the last one by
    no more than this, only rounding is left. With ``tol=0`` all `max_iter` iterations are run. Both
    ends also require a small remaining gain: see `left`. `doubtful` are ends that are unreliable in
    the arithmetic of the fit; their reason becomes "precision".

    `method`, a `Method` or its class, defines the columns of a record. `verbose=1` shows a progress
    bar, 2 prints every iteration. `callback` is called with each record; the fit stops if it
    returns a true value. A fit that will hardly exceed the objective `exceeds`, if it is given, is
    abandoned, and one that must gain no more than about `enough` ends early. With `hopeless_after`,
    it is abandoned only by its estimated remaining gain, and not before this iteration: fits from
    different starts rise for longer than those from moves. `title` is shown with the progress.
    `pressed` says whether Ctrl-C was pressed, even after the last iteration.
    """

    def __init__(
        self, method: Any, max_iter: int, tol: float, *, gain_tol: float | None = None,
        verbose: int = 0, callback: Callable[[dict[str, float]], Any] | None = None,
        doubtful: Collection[str] = (), exceeds: float | None = None,
        enough: float | None = None, hopeless_after: int | None = None, title: str = "",
    ):  # fmt: skip
        self.columns, self.residuals = method.record, method.residuals
        self._counted = method.counted
        self.objective = self.columns[0]
        self.max_iter, self.tol = max_iter, tol
        self.gain_tol = tol * method.gain_per_tol if gain_tol is None else gain_tol
        self.doubtful, self.exceeds, self.enough, self.title = doubtful, exceeds, enough, title
        self.hopeless_after = hopeless_after
        self.verbose, self.callback = int(verbose), callback
        self.records: list[dict[str, float]] = []
        self.seed: int | None = None  # of the start, saved with the state
        self.started = time.perf_counter()
        self.converged = self.still = self.interrupted = self.stopped = self.behind = False
        self.nearly = self.pressed = False
        self._replacing = self._ended = False
        self._bar: Any = None
        self._ctrl_c = ExitStack()
        self._best: list[float] = []  # objectives that were not lower than all earlier ones
        self._top: list[float] = []  # the best so far, after every iteration
        self._risen, self._below = False, 0
        # ratios of measured residuals to those of nearby points; when to measure the next ones
        self._ratio = dict.fromkeys(self.residuals, 1.0)
        self._next_measured, self._next_near = FIRST_MEASURED, 0

    def __enter__(self) -> Monitor:
        """Show the progress bar, and handle Ctrl-C if it would raise KeyboardInterrupt."""
        if self.verbose == 1:
            self._bar = open_bar(self.max_iter, self.title, "it", initial=len(self.records))
        elif self.verbose > 1 and self.title:
            self._write(self.title)
        self._ctrl_c.enter_context(first_ctrl_c(self._interrupt))
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handler of Ctrl-C, show why the fit ended, and close the bar."""
        self._ctrl_c.close()
        if exception[0] is None and self._bar is not None:
            self._bar.total = self._bar.n
            title = f"{self.title}: " if self.title else ""
            self._bar.set_description_str(f"{title}{ENDS[self.reason]}")
        elif exception[0] is None and self.verbose > 1:
            self._write(f"{ENDS[self.reason]} after {len(self.records)} iterations")
        if self._bar is not None:
            self._bar.close()

    def _interrupt(self) -> None:
        """Stop after this iteration at the first Ctrl-C, at once at the second."""
        self.pressed = True
        if not self._ended:  # later it is not the reason why the fit ended
            self.interrupted = True
        # even if nothing else is shown: the user expects an answer to Ctrl-C
        self._write("interrupted: finishing this iteration (press Ctrl-C again to stop at once)")

    def asks(self, record: dict[str, Any]) -> bool:
        """Whether to measure the residuals of the next record: see `Method.residuals_here`."""
        n = len(self.records) + 1
        nearby = max(record[name] * self._ratio[name] for name in self.residuals)
        near = nearby <= NEAR * self.tol and n >= self._next_near
        return n >= self._next_measured or near or nearby <= self.tol

    def _measure(self, values: dict[str, Any], measured: dict[str, Any]) -> None:
        n = len(self.records) + 1
        if not all(math.isfinite(value) for value in measured.values()):
            return  # the fit would not end here
        self._next_near = n + max(2, n // NEAR_EVERY)
        while self._next_measured <= n:
            self._next_measured *= 2
        for name, value in measured.items():
            if values[name] > 0 and value > 0:
                self._ratio[name] = value / values[name]
        values |= measured

    def record(
        self, *, reached: float | None = None, blind: bool = False,
        measured: dict[str, Any] | None = None, **values: Any,
    ) -> None:  # fmt: skip
        """Store the record of a finished iteration, show it, and decide whether to stop.

        `reached` is the objective where the iteration ended, if the record is of a different point,
        the best one. After a `blind` iteration the fit does not stop by itself: that iteration
        could not lift zeros, which residuals cannot show because they are products with the
        parameters.

        `measured` are the residuals of this point, if requested. Residuals in `values` are of
        nearby points, except at the end, and are multiplied by the ratio of both at the last
        measurement.
        """
        if measured is not None:
            self._measure(values, measured)
        elif not self._ended:
            values |= {name: values[name] * ratio for name, ratio in self._ratio.items()}
        record = {"iteration": len(self.records) + 1, "seconds": 0.0}
        record |= dict.fromkeys(self.columns, 0.0) | values
        lost = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        if lost:
            raise FloatingPointError(
                f"The numbers of the fit overflowed in iteration {record['iteration']} "
                f"({', '.join(lost)}): rescale the counts or the start, or use dtype='float64'."
            )
        record["seconds"] = time.perf_counter() - self.started
        self.records.append(record)
        self._note(record[self.objective], reached)
        residual, least = self.residual_of(record), self.tol
        if measured is not None:
            residual, least = self.residual_of(measured), self.tol * CERTAIN
        of_likelihood = self.objective in LIKELIHOODS
        little = max(LITTLE, LITTLE_PER_TOL * self.tol) if of_likelihood else math.inf
        converged = not blind and self.tol > 0 and residual <= least and self._left <= little
        still = not blind and self._on_plateau(record)
        if converged and "converged" in self.doubtful:
            converged, still = False, True
        if not self._ended:
            self.converged, self.still = converged, still
        elif converged:  # the record of the end may show convergence, but does not revoke it
            self.converged = True
        # the record that replaces the last one does not undo this
        self.behind = self.behind or self._will_hardly_exceed()
        self.nearly = self.nearly or self._has_enough()
        if self._replacing:  # shown before
            self._replacing = False
            return
        if self.callback is not None and self.callback(dict(record)):
            self.stopped = True
        self._show(record)

    def end(self, finish: Callable[[bool], dict[str, Any]]) -> None:
        """Store the record of the returned point, which ``finish(converged)`` computes."""
        self._ended = True
        self.record(**finish(self.converged or self.still))

    def state(self) -> dict[str, Any]:
        """Return numbers from which `restore` rebuilds the monitor."""
        return {
            "records": self.records, "seconds": time.perf_counter() - self.started,
            "ratio": self._ratio, "next": [self._next_measured, self._next_near],
            "best": [list(map(float, self._best)), bool(self._risen), self._below],
            "seed": self.seed,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the clock does not count the time in between."""
        self.records = list(state["records"])
        self._best, self._risen, self._below = state["best"]
        self._top = np.maximum.accumulate(
            [record[self.objective] for record in self.records]
        ).tolist()
        self._ratio, self.seed = dict(state["ratio"]), state["seed"]
        self._next_measured, self._next_near = state["next"]
        self.behind, self.nearly = self._will_hardly_exceed(), self._has_enough()
        self.started = time.perf_counter() - state["seconds"]

    def forget_last(self) -> None:
        """Drop the last record, which the end of the fit replaces without showing it again."""
        self.records.pop()
        self._top.pop()
        if self._risen:
            self._best.pop()
        self._replacing = True

    def _note(self, objective: float, reached: float | None = None) -> None:
        best = max([objective, *self._best[-1:]])
        self._risen = (objective if reached is None else reached) >= best
        self._below = 0 if self._risen else self._below + 1
        if self._risen:
            self._best.append(best)
        self._top.append(max([objective, *self._top[-1:]]))

    def _on_plateau(self, record: dict[str, float]) -> bool:
        if self.tol <= 0 or self.gain_tol <= 0 or not self._best:
            return False
        best, little = self._best[-1], self.gain_tol * abs(self._best[-1])
        if self._below >= STILL and (best - record[self.objective] <= little or self.doubtful):
            return True
        return len(self._best) > FEWEST and bool(self._risen) and left(self._best) <= little

    @property
    def _left(self) -> float:
        # the window contains falling iterations only if the objective no longer rises
        return min(left(self._best), left(self._top))

    @property
    def finished(self) -> bool:
        """Whether the fit should end."""
        ends = self.converged, self.still, self.interrupted, self.stopped, self.behind, self.nearly
        return any(ends)

    def _has_enough(self) -> bool:
        """Whether little is left to gain."""
        return (
            self.enough is not None
            and len(self._top) >= HARDLY_AFTER
            and (self._left <= self.enough)
        )

    def _will_hardly_exceed(self) -> bool:
        """Whether the fit will hardly exceed the objective that it must exceed."""
        n = len(self._top)
        if self.exceeds is None or n < HARDLY_AFTER or self._top[-1] > self.exceeds:
            return False
        below = self.exceeds - self._top[-1]
        if self.hopeless_after is not None:
            return n >= self.hopeless_after and HARDLY_GAINS * left(self._top) < below
        of_half = self._top[-1] - self._top[n // 2]
        slow = n >= HALF_AFTER and of_half < below
        return n >= BELOW_AFTER or slow or HARDLY_GAINS * left(self._top) < below

    @property
    def reason(self) -> str:
        """The reason why the fit ended: a key of `ENDS`."""
        if self.interrupted:
            return "interrupted"
        if self.converged:
            return "converged"
        if self.still:
            return "precision" if self.doubtful else "plateau"
        if self.stopped:
            return "callback"
        if self.behind:
            return "behind"
        return "nearly" if self.nearly else "max_iter"

    @property
    def history(self) -> NDArray[Any]:
        """The records: a structured array with a row for each iteration."""
        kinds = {name: np.int64 for name in ("iteration", *self._counted)}
        names = "iteration", "seconds", *self.columns
        out = np.zeros(len(self.records), [(name, kinds.get(name, np.float64)) for name in names])
        for name in names:
            out[name] = [record[name] for record in self.records]
        return out

    def residual_of(self, record: Any) -> float:
        """Return the largest residual of a record."""
        return float(max(record[name] for name in self.residuals))

    def _show(self, record: dict[str, float]) -> None:
        what, how = (
            WORDS.get(self.objective, self.objective),
            WORDS.get(self.residuals[0], "residual"),
        )
        value, residual = record[self.objective], self.residual_of(record)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{what} {value:,.2f}, {how} {residual:.1e}", refresh=False)
            self._bar.update(1)
        elif self.verbose > 1:
            self._write(
                f"iteration {record['iteration']:>4}  {record['seconds']:8.2f} s  "
                f"{what} {value:,.3f}  {how} {residual:.2e}"
            )

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print_message(text)
