"""The loop of every fit, with a model that knows no counts."""

import os
import signal

import numpy as np
import pytest
from small_fits import StopError

from nmfscale.engine.checkpoint import Checkpoint, CheckpointError
from nmfscale.engine.loop import begin, fit
from nmfscale.engine.monitor import Monitor
from nmfscale.engine.protocol import Method


class Climb(Method):
    """Goes up by random numbers that its start drew; `press` is called at every look."""

    record = ("height", "residual")
    residuals = ("residual",)
    counted = ()

    def __init__(self, rng, press=lambda iteration: None):
        self.rng, self.press, self.n_starts = rng, press, 0

    def start(self):
        self.n_starts += 1
        self.steps, self.at = self.rng.uniform(size=8), 0.0

    def observe(self, iteration):
        self.press(iteration)
        return {"height": self.at, "residual": 1.0} if iteration else None

    def update(self, iteration, ending):
        self.at += self.steps[iteration - 1]

    def finish(self, converged):
        return {"height": self.at, "residual": 1.0}

    def result(self):
        return {"steps": self.steps}

    def shapes(self):
        return {"steps": (8,)}

    def snapshot(self):
        return {"at": self.at}, {"steps": self.steps}

    def restore(self, numbers, arrays):
        self.at, self.steps = numbers["at"], arrays["steps"]


def climb(folder, *, resume=False, starts=2, seed=3, press=lambda iteration: None):
    """Climb some times, as the starts of one fit; return the models and where they ended."""
    rng, found = np.random.RandomState(seed), []
    for i in range(starts):
        model = Climb(rng, press)
        monitor = Monitor(model, 8, 0.0)
        saved = Checkpoint(folder / str(i), {}, every=0, resume=resume)
        iteration = begin(model, monitor, saved, rng)
        with monitor:
            fit(model, monitor, saved, iteration, rng)
        found.append((model, monitor.records[-1]["height"], len(monitor.records)))
    return found


def test_what_is_resumed_is_not_started(tmp_path):
    def stop(iteration):
        if iteration == 5:
            raise StopError

    expected = [each[1:] for each in climb(tmp_path / "whole")]
    with pytest.raises(StopError):
        climb(tmp_path / "state", press=stop)
    # another seed: the random numbers of later starts come from the checkpoint as well
    (one, *of_one), (other, *of_other) = climb(tmp_path / "state", resume=True, seed=4)
    assert (one.n_starts, other.n_starts) == (0, 1)
    assert [tuple(of_one), tuple(of_other)] == expected


@pytest.mark.parametrize("change", [{}, {"steps": np.zeros(3)}])
def test_arrays_of_other_shapes_are_named(tmp_path, change):
    saved = Checkpoint(tmp_path, {}, every=0)
    saved.save(0, {}, change)
    model = Climb(np.random.RandomState(0))
    monitor = Monitor(model, 8, 0.0)
    with pytest.raises(CheckpointError, match=r"has steps of shape .*, not \(8,\)"):
        begin(model, monitor, Checkpoint(tmp_path, {}, resume=True))


def test_ctrl_c_before_the_first_update():
    model = Climb(np.random.RandomState(0), lambda _: os.kill(os.getpid(), signal.SIGINT))
    monitor = Monitor(model, 8, 0.0)
    begin(model, monitor)
    with monitor:
        fit(model, monitor)
    assert monitor.interrupted and len(monitor.records) == 1


def test_a_start_is_not_abandoned_before_its_rank_is_known():
    monitor = Monitor(Climb(np.random.RandomState(0)), 99, 0.0, exceeds=1e6, hopeless_after=60)
    while not monitor.finished:
        monitor.record(height=float(len(monitor.records)), residual=1.0)
    assert monitor.reason == "behind" and len(monitor.records) == 60


def test_a_fit_that_was_abandoned_stays_so_when_its_last_record_is_replaced():
    monitor = Monitor(Climb(np.random.RandomState(0)), 50, 0.0, exceeds=1e6)
    while not monitor.finished:
        monitor.record(height=float(len(monitor.records)), residual=1.0)
    assert 1 < len(monitor.records) < 50
    monitor.forget_last()
    monitor.record(height=2e6, residual=1.0)
    assert monitor.reason == "behind"
