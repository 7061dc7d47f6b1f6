"""Replicates: the same bits in any batches, on any workers, resumed or not."""

import os
import signal

import numpy as np
import pytest
from clusters import WALL, within
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night
from numpy.random import SeedSequence
from replicate_tasks import Draws

from nmfscale.engine.checkpoint import CheckpointError
from nmfscale.inference.replicates.replicates import run_replicates
from nmfscale.inference.replicates.seeds import child, child_states, seed_of

SEED = 7


@pytest.fixture(scope="module")
def expected():
    seed = SeedSequence(SEED)
    return np.array([np.random.default_rng(each).random(2) for each in seed.spawn(40)])


@settings(max_examples=50, deadline=None)
@given(
    st.one_of(st.integers(0, 2**200), st.lists(st.integers(0, 2**40), min_size=1, max_size=6)),
    st.lists(st.integers(0, 2**40), max_size=3),
    st.integers(0, 2**32 - 9),
)
def test_states_are_those_of_spawned_seeds(entropy, key, first):
    seed, numbers = SeedSequence(entropy, spawn_key=key), range(first, first + 9)
    found = [child(seed, r).generate_state(4, np.uint64) for r in numbers]
    np.testing.assert_array_equal(child_states(seed, numbers), found)


def test_a_seed_of_anything():
    assert seed_of(3).entropy == 3 and seed_of(np.int64(3)).entropy == 3
    assert seed_of(None).entropy != seed_of(None).entropy
    for make in np.random.default_rng, np.random.RandomState:
        assert seed_of(make(3)).entropy == seed_of(make(3)).entropy
        rng = make(3)
        assert seed_of(rng).entropy != seed_of(rng).entropy
    for bad in -1, True, "three", 1.5:
        with pytest.raises(ValueError, match="random_state="):
            seed_of(bad)


@pytest.mark.parametrize("batch_size", [None, 1, 7, 100])
def test_batches_do_not_matter(expected, batch_size):
    found = run_replicates(Draws(), 40, random_state=SEED, batch_size=batch_size)
    np.testing.assert_array_equal(found["draws"], expected)
    np.testing.assert_array_equal(found["number"], np.arange(40))
    assert len(found) == 40 and not found.interrupted


def test_batches_grow_to_a_second(monkeypatch):
    sizes, clock = [], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def spend(numbers):
        sizes.append(len(numbers))
        clock[0] += 0.001 * len(numbers)

    run_replicates(Draws(action=spend), 5000)
    assert sizes[:4] == [1, 16, 256, 1000] and sum(sizes) == 5000 and max(sizes) == 1000


def test_replicates_that_share_work_are_in_a_batch(expected, monkeypatch):
    sizes = []
    task = Draws(action=lambda numbers: sizes.append(len(numbers)), smallest_batch=9)
    monkeypatch.setattr("time.perf_counter", iter(range(0, 9000, 9)).__next__)  # a second for each
    found = run_replicates(task, 40, random_state=SEED)
    assert sizes == [9, 9, 9, 9, 4]
    np.testing.assert_array_equal(found["draws"], expected)


def press_at(number):
    def press(numbers):
        if number in numbers:
            os.kill(os.getpid(), signal.SIGINT)

    return press


def test_ctrl_c_hands_back_what_is_done(expected, capsys):
    found = run_replicates(Draws(action=press_at(12)), 40, random_state=SEED, batch_size=5)
    assert found.interrupted and "interrupted" in capsys.readouterr().err
    np.testing.assert_array_equal(found.numbers, np.arange(15))
    np.testing.assert_array_equal(found["draws"], expected[:15])


@pytest.mark.parametrize("random_state", [SEED, None])
def test_resumed_or_extended_is_the_same(expected, tmp_path, random_state):
    options = {"checkpoint": tmp_path / "here", "resume": True, "batch_size": 5}
    run_replicates(Draws(action=press_at(12)), 20, random_state=SEED, **options)
    done = []
    found = run_replicates(Draws(action=done.extend), 40, random_state=random_state, **options)
    assert done == list(range(15, 40))
    np.testing.assert_array_equal(found["draws"], expected)
    fewer = run_replicates(Draws(action=done.extend), 10, **options)
    np.testing.assert_array_equal(fewer["draws"], expected[:10])
    assert len(done) == 25


def test_what_is_done_is_saved_when_a_task_fails(expected, tmp_path):
    def fail(numbers):
        if 12 in numbers:
            raise OSError("a fault")

    options = {"random_state": SEED, "checkpoint": tmp_path, "resume": True, "batch_size": 5}
    with pytest.raises(OSError, match="a fault"):
        run_replicates(Draws(action=fail), 40, **options)
    done = []
    found = run_replicates(Draws(action=done.extend), 40, **options)
    np.testing.assert_array_equal(found["draws"], expected)
    assert done[0] == 10


def test_another_job_is_not_resumed(tmp_path):
    options = {"checkpoint": tmp_path, "resume": True}
    run_replicates(Draws(), 4, random_state=SEED, **options)
    with pytest.raises(CheckpointError, match="the inputs differ. Resume with the original inputs"):
        run_replicates(Draws(scale=2.0), 4, random_state=SEED, **options)
    with pytest.raises(CheckpointError, match="random_state=7, and it is 8 now"):
        run_replicates(Draws(), 4, random_state=8, **options)
    with pytest.raises(CheckpointError, match="resume it, or give another folder"):
        run_replicates(Draws(), 4, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_replicates": 0}, "number of replicates is 0"),
        ({"n_replicates": 2.5}, "number of replicates is 2.5"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"resume": True}, "resume=True needs checkpoint="),
        ({"checkpoint_every": -1}, "checkpoint_every=-1"),
        ({"client": "no client"}, "is not a distributed.Client"),
    ],
)
def test_wrong_options_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        run_replicates(Draws(), **{"n_replicates": 4} | options)


def test_a_bar_says_how_far(capsys):
    run_replicates(Draws(), 40, verbose=1)
    assert "40/40" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch_size", [3, *at_night(None)])
def test_a_cluster_whose_worker_dies(client, expected, tmp_path, batch_size):
    begun = tmp_path / "begun"
    begun.mkdir()
    task = Draws(folder=str(begun), kill=20)
    options = {"random_state": SEED, "client": client, "batch_size": batch_size}
    found = within(WALL, lambda: run_replicates(task, 40, **options))
    np.testing.assert_array_equal(found["draws"], expected)
    if batch_size:  # no more was done than one batch again
        assert len(list(begun.iterdir())) == 14


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_resumes(client, expected, tmp_path):
    options = {"checkpoint": tmp_path, "resume": True, "random_state": SEED}
    for n in 15, 40:  # where a client is active
        found = within(WALL, lambda n=n: run_replicates(Draws(), n, **options))
        np.testing.assert_array_equal(found["draws"], expected[:n])
