"""What a fit leaves behind: one record per iteration, when to stop, a progress line, Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

HISTORY = np.dtype(
    [("iteration", np.int64), ("seconds", np.float64), ("loglik", np.float64),
     ("loglik_multinomial", np.float64), ("deviance", np.float64), ("kkt_loadings", np.float64),
     ("kkt_factors", np.float64), ("change_loadings", np.float64), ("change_factors", np.float64),
     ("zeros_loadings", np.float64), ("zeros_factors", np.float64), ("momentum", np.float64),
     ("bytes_read", np.int64)]
)  # fmt: skip
# More than from one step of the paper's methods that is not extrapolated, and rises, to the next.
STILL = 30


class Monitor:
    """Records, stopping rule and progress of one fit.

    A fit has converged when both relative KKT residuals are at most `tol`, or when the best
    log-likelihood has gained less than `rtol` times its size in `patience` iterations. Those that
    ended below it do not count: a fit may have to go back from them. But where `STILL` iterations
    in a row are below it, and the last one by no more than that, only rounding is left.

    Parameters
    ----------
    max_iter : int
    tol, rtol : float
        `tol=0` never stops.
    patience : int, default=5
    verbose : int, default=0
        1 shows a progress bar, 2 prints every iteration.
    callback : callable, optional
        Called with the record (a dict) after each iteration; a true answer stops the fit.
    """

    def __init__(
        self,
        max_iter: int,
        tol: float,
        *,
        rtol: float = 1e-7,
        patience: int = 5,
        verbose: int = 0,
        callback: Callable[[dict[str, float]], Any] | None = None,
    ):
        self.max_iter, self.tol, self.rtol, self.patience = max_iter, tol, rtol, patience
        self.verbose, self.callback = int(verbose), callback
        self.records: list[dict[str, float]] = []
        self.started = time.perf_counter()
        self.converged = self.interrupted = self.stopped = False
        self._replacing = False
        self._bar: Any = None
        self._old_handler: Any = None
        self._best: list[float] = []  # log-likelihoods that were no lower than all before
        self._risen, self._below = False, 0

    def __enter__(self) -> Monitor:
        """Show the bar, and take over Ctrl-C where it would raise KeyboardInterrupt."""
        if self.verbose == 1:
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=self.max_iter, unit="it", file=sys.stderr, dynamic_ncols=True, leave=True
            )
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._old_handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *exception: object) -> None:
        """Give Ctrl-C back and close the bar."""
        if self._old_handler is not None:
            signal.signal(signal.SIGINT, self._old_handler)
        if self._bar is not None:
            self._bar.close()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """First Ctrl-C: stop after this iteration. Second: at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        # also where nothing else is shown: whoever pressed the key waits for an answer
        self._write("interrupted: finishing this iteration (press Ctrl-C again to stop at once)")

    def record(
        self, *, reached: float | None = None, blind: float = False, **values: float
    ) -> None:
        """Keep the record of an iteration that is complete, show it, and decide whether to stop.

        `reached` is the log-likelihood where the iteration ended, where the record is of another
        point: of the best. After a `blind` one the fit does not stop by itself: it could not lift
        zeros, and the residuals, products with the parameters, do not tell.
        """
        record = dict.fromkeys(HISTORY.names or (), 0.0) | values
        record["iteration"] = len(self.records) + 1
        lost = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        if lost:
            raise FloatingPointError(
                f"The numbers of the fit overflowed in iteration {record['iteration']} "
                f"({', '.join(lost)}): rescale the counts or the start, or use dtype='float64'."
            )
        record["seconds"] = time.perf_counter() - self.started
        self.records.append(record)
        self._note(record["loglik"], reached)
        self.converged = not blind and self._settled(record)
        if self._replacing:  # shown before
            self._replacing = False
            return
        if self.callback is not None and self.callback(dict(record)):
            self.stopped = True
        self._show(record)

    def state(self) -> dict[str, Any]:
        """Numbers from which `restore` makes the same monitor."""
        return {"records": self.records, "seconds": time.perf_counter() - self.started}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken; the clock does not count the time between."""
        self.records = list(state["records"])
        self._best, self._below = [], 0
        for record in self.records:
            self._note(record["loglik"])
        self.started = time.perf_counter() - state["seconds"]
        if self._bar is not None:
            self._bar.update(len(self.records))

    def forget_last(self) -> None:
        """Drop the last record: the end of the fit completes it, without showing it again."""
        self.records.pop()
        if self._risen:
            self._best.pop()
        self._replacing = True

    def _note(self, loglik: float, reached: float | None = None) -> None:
        best = max([loglik, *self._best[-1:]])
        self._risen = (loglik if reached is None else reached) >= best
        self._below = 0 if self._risen else self._below + 1
        if self._risen:
            self._best.append(best)

    def _settled(self, record: dict[str, float]) -> bool:
        if self.tol <= 0:
            return False
        if max(record["kkt_loadings"], record["kkt_factors"]) <= self.tol:
            return True
        if not self._best:
            return False
        best, little = self._best[-1], self.rtol * abs(self._best[-1])
        if self._below >= STILL and best - record["loglik"] <= little:
            return True
        if len(self._best) <= self.patience or not self._risen:
            return False
        return best - self._best[-1 - self.patience] <= little

    @property
    def finished(self) -> bool:
        """Whether the fit should end."""
        return self.converged or self.interrupted or self.stopped

    @property
    def history(self) -> NDArray[Any]:
        """The records, a structured array of one row per iteration."""
        out = np.zeros(len(self.records), HISTORY)
        for name in HISTORY.names or ():
            out[name] = [record[name] for record in self.records]
        return out

    def _show(self, record: dict[str, float]) -> None:
        kkt = max(record["kkt_loadings"], record["kkt_factors"])
        if self._bar is not None:
            self._bar.set_postfix_str(
                f"log-likelihood {record['loglik']:,.2f}, KKT {kkt:.1e}", refresh=False
            )
            self._bar.update(1)
        elif self.verbose > 1:
            self._write(
                f"iteration {record['iteration']:>4}  {record['seconds']:8.2f} s  "
                f"log-likelihood {record['loglik']:,.3f}  KKT {kkt:.2e}"
            )

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr)
