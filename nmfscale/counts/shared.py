"""Shared reads of counts: several fits, each in its own thread, read the blocks once.

Each fit visits the blocks of a layout as if it were alone. Once all fits wait for a block, the next
block is read for the fits that visit the same order ("rows", "columns" or "both"); fits that want
another order wait until that visit is over.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from copy import copy
from typing import Any, TypeVar

from .base import CountMatrix

T = TypeVar("T")
# Seconds after which the main thread looks for Ctrl-C.
_LISTENS_EVERY = 0.2


class SharedVisitError(RuntimeError):
    """A visit is over because another thread failed."""


class _Waiting:
    """A thread that waits for the next block of its visit, and the block or error it receives."""

    def __init__(self, order: str, inside: bool):
        self.order, self.inside = order, inside
        self.item: Any = None
        self.error: BaseException | None = None
        self.ready = threading.Event()

    def deliver(self, item: Any, error: BaseException | None = None) -> None:
        """Pass a block or an error to the thread, and wake it."""
        self.item, self.error = item, error
        self.ready.set()


class SharedVisits:
    """Visits of `n_members` threads to the blocks of a layout, which is read once for all of them.

    If threads wait for different orders, the order that most of them want is read first: threads
    with the same sequence of visits then stay synchronised. At most `at_once` threads run at a
    time.
    """

    def __init__(self, layout: Any, n_members: int, at_once: int):
        self._layout = layout
        self._lock, self._turns = threading.Lock(), threading.Semaphore(at_once)
        self._n_running, self._waiting = n_members, list[_Waiting]()
        self._items: Any = None  # iterator over the remaining blocks of the current visit
        self._stopped = False

    @contextmanager
    def member(self) -> Iterator[SharedLayout]:
        """Register a member for the duration of the block; yield its view of the layout."""
        self._turns.acquire()
        try:
            yield SharedLayout(self._layout, self)
        finally:
            self._turns.release()
            with self._lock:
                self._n_running -= 1
                self._read_next()

    def visit(self, order: str) -> Iterator[Any]:
        """Yield blocks in order "rows", "columns" or "both", or "panels", like the layout."""
        item = self._next(order, False)
        while item is not None:
            yield item
            item = self._next(order, True)

    def _next(self, order: str, inside: bool) -> Any:
        member = _Waiting(order, inside)
        with self._lock:
            if self._stopped:
                raise SharedVisitError("another fit failed")
            self._waiting.append(member)
            self._n_running -= 1
            self._turns.release()
            self._read_next()
        member.ready.wait()
        self._turns.acquire()
        if member.error is not None:
            raise member.error
        return member.item

    def _read_next(self) -> None:
        """Read the next block if all members wait: then no thread uses the previous one."""
        if self._n_running or not self._waiting:
            return
        readers = [member for member in self._waiting if member.inside]
        if not readers:
            self.close()
            ((order, _),) = Counter(member.order for member in self._waiting).most_common(1)
            readers = [member for member in self._waiting if member.order == order]
            layout = self._layout
            if order == "panels":
                self._items = layout.visit_panels()
            else:
                self._items = layout.visit_both() if order == "both" else layout.visit(order)
        self._waiting = [member for member in self._waiting if member not in readers]
        self._n_running = len(readers)
        item, error = None, None
        try:
            item = next(self._items, None)
        except BaseException as raised:  # raised in all threads that wait for this block
            error = raised
        for member in readers:
            member.deliver(item, error)

    def stop(self) -> None:
        """Make every member fail at its next visit."""
        self._stopped = True  # before the lock, which is held during reads
        with self._lock:
            self._n_running += len(self._waiting)
            for member in self._waiting:
                member.deliver(None, SharedVisitError("another fit failed"))
            self._waiting = []

    def close(self) -> None:
        """Release what an unfinished visit holds; no thread may still use a block."""
        if self._items is not None:
            self._items.close()
            self._items = None


class SharedLayout:
    """A layout whose visits of all blocks are shared; all other attributes are the layout's."""

    def __init__(self, layout: Any, visits: SharedVisits):
        self._layout, self._visits = layout, visits

    def visit(self, which: str, *some: Any) -> Iterator[Any]:
        """Visit the "rows" or "columns" of all blocks with other fits, or of some blocks alone."""
        return self._layout.visit(which, *some) if some else self._visits.visit(which)

    def visit_both(self) -> Iterator[Any]:
        """Visit the rows and columns of all blocks with other fits."""
        return self._visits.visit("both")

    def visit_panels(self) -> Iterator[Any]:
        """Visit panels of columns together."""
        return self._visits.visit("panels")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the layout."""
        return getattr(self._layout, name)


def _ended(futures: Sequence[Future[T]]) -> set[Future[T]]:
    """Wait until all functions have ended, or one has failed; return those that have ended."""
    rest: set[Future[T]] = set(futures)
    while rest:
        # a signal that arrives just before a wait begins does not interrupt it
        done, rest = wait(futures, _LISTENS_EVERY, FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            return done
    return set(futures)


def share_reads(
    counts: CountMatrix, functions: Sequence[Callable[[CountMatrix], T]], at_once: int
) -> list[T]:
    """Call each function with the counts, in its own thread, and return their results.

    Visits of the blocks share each read. At most `at_once` threads run at a time. If a function
    fails, or on Ctrl-C, all functions end at their next visit.
    """
    visits = SharedVisits(counts.layout(), len(functions), at_once)

    def call(function: Callable[[CountMatrix], T]) -> T:
        with visits.member() as layout:
            own = copy(counts)
            # the layout is fixed: a fit must neither keep its blocks nor send them to a cluster
            own.from_file, own._layout = False, layout
            return function(own)

    with closing(visits), ThreadPoolExecutor(len(functions)) as pool:
        try:
            futures = [pool.submit(call, function) for function in functions]
            for future in _ended(futures):
                future.result()
        except BaseException:
            visits.stop()
            raise
    return [future.result() for future in futures]
