"""One read of counts for several fits, each in a thread of its own.

A fit visits the blocks of a layout as if it were alone. Once all of them wait, the next block is
read for those who are at it; the others wait until it is their turn.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from copy import copy
from typing import Any, TypeVar

from .base import CountMatrix

T = TypeVar("T")


class SharedVisitError(RuntimeError):
    """A visit is over because another thread failed."""


class _Place:
    """A thread that waits for the next block of its visit, and what it gets."""

    def __init__(self, order: str, inside: bool):
        self.order, self.inside = order, inside
        self.item: Any = None
        self.error: BaseException | None = None
        self.ready = threading.Event()

    def hand(self, item: Any, error: BaseException | None = None) -> None:
        """Wake the thread."""
        self.item, self.error = item, error
        self.ready.set()


class SharedVisits:
    """Visits of `n_members` threads to the blocks of a layout, which is read once for all.

    Of different orders the one that most threads wait for is read first, so that those that do the
    same in turn fall into step. At most `at_once` threads run at a time.
    """

    def __init__(self, layout: Any, n_members: int, at_once: int):
        self._layout = layout
        self._lock, self._turns = threading.Lock(), threading.Semaphore(at_once)
        self._n_running, self._waiting = n_members, list[_Place]()
        self._items: Any = None  # what is left of the visit that goes on
        self._stopped = False

    @contextmanager
    def member(self) -> Iterator[SharedLayout]:
        """Take part inside, and give the layout as a member has it."""
        self._turns.acquire()
        try:
            yield SharedLayout(self._layout, self)
        finally:
            self._turns.release()
            with self._lock:
                self._n_running -= 1
                self._go_on()

    def visit(self, order: str) -> Iterator[Any]:
        """Yield what the layout yields of "rows", "columns" or "both"."""
        item = self._next(order, False)
        while item is not None:
            yield item
            item = self._next(order, True)

    def _next(self, order: str, inside: bool) -> Any:
        place = _Place(order, inside)
        with self._lock:
            if self._stopped:
                raise SharedVisitError("another fit failed")
            self._waiting.append(place)
            self._n_running -= 1
            self._turns.release()
            self._go_on()
        place.ready.wait()
        self._turns.acquire()
        if place.error is not None:
            raise place.error
        return place.item

    def _go_on(self) -> None:
        """Read the next block if all members wait: no thread needs the one before any more."""
        if self._n_running or not self._waiting:
            return
        here = [place for place in self._waiting if place.inside]
        if not here:
            self.close()
            ((order, _),) = Counter(place.order for place in self._waiting).most_common(1)
            here = [place for place in self._waiting if place.order == order]
            layout = self._layout
            self._items = layout.visit_both() if order == "both" else layout.visit(order)
        self._waiting = [place for place in self._waiting if place not in here]
        self._n_running = len(here)
        item, error = None, None
        try:
            item = next(self._items, None)
        except BaseException as raised:  # belongs to those who asked, whoever's thread this is
            error = raised
        for place in here:
            place.hand(item, error)

    def stop(self) -> None:
        """Let every member fail where it visits next."""
        with self._lock:
            self._stopped = True
            self._n_running += len(self._waiting)
            for place in self._waiting:
                place.hand(None, SharedVisitError("another fit failed"))
            self._waiting = []

    def close(self) -> None:
        """Give back what a visit holds that was broken off; no thread may still look at a block."""
        if self._items is not None:
            self._items.close()
            self._items = None


class SharedLayout:
    """A layout whose visits of all blocks are shared; everything else is the layout's own."""

    def __init__(self, layout: Any, visits: SharedVisits):
        self._layout, self._visits = layout, visits

    def visit(self, which: str, *some: Any) -> Iterator[Any]:
        """Visit the "rows" or "columns" of all blocks together, or of some blocks alone."""
        return self._layout.visit(which, *some) if some else self._visits.visit(which)

    def visit_both(self) -> Iterator[Any]:
        """Visit both orders of all blocks together."""
        return self._visits.visit("both")

    def __getattr__(self, name: str) -> Any:
        """Return what the layout has."""
        return getattr(self._layout, name)


def share_reads(
    counts: CountMatrix, functions: Sequence[Callable[[CountMatrix], T]], at_once: int
) -> list[T]:
    """Call each function with the counts, in a thread of its own, and return what they return.

    Visits of their blocks share each read. At most `at_once` threads run at a time. If one fails,
    or Ctrl-C is pressed, all end at their next visit.
    """
    visits = SharedVisits(counts.layout(), len(functions), at_once)

    def call(function: Callable[[CountMatrix], T]) -> T:
        with visits.member() as layout:
            own = copy(counts)
            # where the blocks come from is decided: nothing may keep them, or send them elsewhere
            own.from_file, own._layout = False, layout
            return function(own)

    with closing(visits), ThreadPoolExecutor(len(functions)) as pool:
        try:
            futures = [pool.submit(call, function) for function in functions]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            visits.stop()
            raise
    return [future.result() for future in futures]
