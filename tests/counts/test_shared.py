"""Visits of several threads share each read, whatever they do in turn, and end together."""

import os
import signal
import threading

import numpy as np
import pytest
from clusters import within

from nmfscale.counts.memory import checked_counts
from nmfscale.counts.shared import share_reads

N_BLOCKS = 5


class Reads:
    """A layout of numbers that notes what is read; block 3 is damaged if asked for."""

    def __init__(self, damaged=False):
        self.reads, self.damaged = [], damaged

    def _read(self, order):
        for i in range(N_BLOCKS):
            if self.damaged and i == 3:
                raise OSError("block 3 is damaged")
            self.reads.append((order, i))
            yield i, order

    def visit(self, which):
        return self._read(which)

    def visit_both(self):
        return self._read("both")


def share(functions, layout=None, at_once=2):
    counts = checked_counts(np.eye(2, dtype=int))
    counts._layout = layout or Reads()
    return within(20, lambda: share_reads(counts, functions, at_once)), counts._layout.reads


def visits(text):
    """A function that visits rows, columns or both, as the letters of a text say."""
    orders = {"r": "rows", "c": "columns", "b": "both"}

    def run(counts):
        layout, seen = counts.layout(), []
        for letter in text:
            items = layout.visit_both() if letter == "b" else layout.visit(orders[letter])
            found = list(items)
            assert found == [(i, orders[letter]) for i in range(N_BLOCKS)]
            seen.append(letter)
        return "".join(seen)

    return run


@pytest.mark.parametrize("at_once", [1, 3, 9])
def test_fits_that_end_at_different_times_read_as_much_as_the_longest(at_once):
    texts = ["rc" * n for n in (3, 1, 7, 5)]
    found, reads = share([visits(each) for each in texts], at_once=at_once)
    assert found == texts and len(reads) == 14 * N_BLOCKS


def test_those_that_are_out_of_step_fall_into_step_again():
    texts = ["rcrcrc" + "rc" * 9, "rcrrccrc" + "rc" * 9, "rcbrc", "", "rcrcrrcc" + "rc" * 9]
    found, reads = share([visits(each) for each in texts])
    assert found == texts and len(reads) <= 1.25 * len(texts[1]) * N_BLOCKS


def test_no_more_run_at_a_time_than_asked():
    running, most, lock = [0], [0], threading.Lock()

    def work(counts):
        for _ in counts.layout().visit("rows"):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.002)
            with lock:
                running[0] -= 1

    share([work] * 6, at_once=2)
    assert most == [2]


def test_a_visit_that_is_broken_off_keeps_nobody_waiting():
    def look_at_one(counts):
        next(iter(counts.layout().visit("rows")))
        return visits("rc")(counts)

    found, _ = share([look_at_one, visits("rrc"), look_at_one])
    assert found == ["rc", "rrc", "rc"]


def failing(counts):
    for i, _ in counts.layout().visit("rows"):
        if i == 2:
            raise KeyError("a fault of one")


def test_one_that_fails_ends_all():
    begun = []

    def go_on(counts):
        while True:
            begun.append(visits("rc")(counts))

    with pytest.raises(KeyError, match="a fault of one"):
        share([go_on, failing, go_on])
    assert len(begun) < 10
    with pytest.raises(OSError, match="block 3 is damaged"):
        share([visits("rc"), visits("cr"), visits("rc")], Reads(damaged=True))


def test_ctrl_c_ends_all():
    n_visits, before = 100_000, threading.active_count()
    counts = checked_counts(np.eye(2, dtype=int))
    counts._layout = Reads()

    def press(counts):
        visits("rc")(counts)
        os.kill(os.getpid(), signal.SIGINT)
        visits("rc" * n_visits)(counts)

    with pytest.raises(KeyboardInterrupt):  # heard by the main thread alone
        share_reads(counts, [press, visits("rc" * n_visits)], 2)
    assert len(counts._layout.reads) < n_visits * N_BLOCKS
    assert threading.active_count() == before
