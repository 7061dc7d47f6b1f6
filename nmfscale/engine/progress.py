"""Progress of work outside of iterations: the start of a fit, loadings of new samples.

The current progress is stored in the thread that does the work: inner functions report their
progress without an argument for it. If no progress is shown, reports are ignored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..terminal import open_bar, print_message

# Seconds after which a bar that counts samples appears: shorter work shows nothing.
_DELAY = 0.5
# Seconds between two lines of verbose=2.
_EVERY = 5.0


class Progress:
    """Shows the stages of a piece of work: ``verbose=1`` shows a bar, 2 prints lines."""

    def __init__(self, verbose: int, what: str):
        self._verbose, self._what = verbose, what
        self._bar: Any = None
        self._done, self._total, self._printed = 0, 0, 0.0

    def stage(self, name: str | None, total: int = 0) -> None:
        """Begin the next stage, with its number of samples if counted; None ends the last."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._done, self._total, self._printed = 0, total, time.perf_counter()
        if name is None:
            return
        title = f"{self._what}: {name}" if name else self._what
        if self._verbose == 1:
            self._bar = open_bar(
                total or None, title, " samples", leave=False, delay=_DELAY if total else 0,
                bar_format=None if total else "{desc} [{elapsed}]",
            )  # fmt: skip
        elif self._verbose > 1 and name:
            print_message(title)

    def advance(self, n: int) -> None:
        """Add to the number of finished samples."""
        self._done += n
        if self._bar is not None:
            self._bar.update(n)
        elif self._verbose > 1 and time.perf_counter() - self._printed > _EVERY:
            self._printed = time.perf_counter()
            print_message(f"{self._what}: {self._done:,} of {self._total:,} samples")


_under_way: ContextVar[Progress | None] = ContextVar("under_way", default=None)


@contextmanager
def shown(verbose: int, what: str, total: int = 0) -> Iterator[None]:
    """Show progress within this context, out of a number of samples if it is known."""
    if not verbose or sys.stderr is None:
        yield
        return
    work = Progress(int(verbose), what)
    before = _under_way.set(work)
    try:
        if total:
            work.stage("", total)
        yield
    finally:
        work.stage(None)
        _under_way.reset(before)


def stage(name: str, total: int = 0) -> None:
    """Begin a stage of the current progress: see :meth:`Progress.stage`."""
    work = _under_way.get()
    if work is not None:
        work.stage(name, total)


def advance(n: int) -> None:
    """Add to the number of finished samples of the current progress."""
    work = _under_way.get()
    if work is not None:
        work.advance(n)
