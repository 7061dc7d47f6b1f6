"""Attributes that are computed when they are first read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from nmfscale.counts.cached import cached_property


class Waits:
    def __init__(self, go: Event) -> None:
        self.go, self.begun, self.n_computed = go, Event(), 0

    @cached_property
    def value(self) -> int:
        """Number of computations."""
        self.begun.set()
        assert self.go.wait(60)
        self.n_computed += 1
        return self.n_computed


def test_a_value_is_computed_once_and_holds_up_no_other_object():
    # a lock of the class would also be held for ever in a process forked meanwhile
    slow, quick = Waits(Event()), Waits(Event())
    quick.go.set()
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(lambda: slow.value)
            assert slow.begun.wait(60)
            assert pool.submit(lambda: quick.value).result(20) == 1
        finally:
            slow.go.set()
        assert first.result(60) == slow.value == 1
    assert Waits.value.__doc__ == "Number of computations."
