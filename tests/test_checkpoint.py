"""A fit that was stopped anywhere and resumed ends with the bits of one that never was."""

import errno
import os
import signal

import h5py
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from small_fits import X, bits, model

from nmfscale.solve import accelerated
from nmfscale.solve.checkpoint import Checkpoint, CheckpointError


class StopError(Exception):
    """Raised in the middle of a fit."""


def stop_at(iteration):
    def callback(record):
        if record["iteration"] == iteration:
            raise StopError

    return callback


def fit_and_stop(folder, iteration, source=X, **options):
    with pytest.raises(StopError):
        model(callback=stop_at(iteration), **options).fit(
            source, checkpoint=folder, checkpoint_every=0
        )


@pytest.mark.parametrize(
    "iteration", [2, 13, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 7, 18, 22))]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "float32"},
        {"n_components": 19},
        {"extrapolate": False},
        {"prior_factors": 1.1, "init": "random"},
    ],
    ids=str,
)
def test_resumed_anywhere(tmp_path, options, iteration):
    fit_and_stop(tmp_path, iteration, **options)
    resumed = model(**options).fit(X, checkpoint=tmp_path, resume=True)
    assert bits(resumed) == bits(model(**options).fit(X))
    assert len(resumed.history_) == 24


@pytest.mark.slow
def test_resumed_while_it_ran_away(tmp_path, monkeypatch):
    # any fall of the log-likelihood goes back and is careful for a while
    monkeypatch.setattr(accelerated, "GAIN_OVER", 1)
    expected = bits(model().fit(X))
    for iteration in range(1, 23):
        folder = tmp_path / str(iteration)
        fit_and_stop(folder, iteration)
        assert bits(model().fit(X, checkpoint=folder, resume=True)) == expected


def test_resumed_elsewhere(tmp_path, store):
    expected = bits(model().fit(X))
    places = [(X, 1), (store, 2), (X, 3), (store, 1)]
    for iteration, (source, n_threads) in zip((4, 9, 16), places[:-1], strict=True):
        with pytest.raises(StopError):
            model(callback=stop_at(iteration), n_threads=n_threads).fit(
                source, checkpoint=tmp_path / "state", checkpoint_every=0, resume=True
            )
    source, n_threads = places[-1]
    resumed = model(n_threads=n_threads).fit(source, checkpoint=tmp_path / "state", resume=True)
    assert bits(resumed) == expected


def test_every_restart_is_resumed(tmp_path):
    options = {"n_init": 2, "init": "random", "max_iter": 10}
    expected = bits(model(**options).fit(X))
    seen = []

    def callback(record):
        seen.append(record)
        if len(seen) == 14:
            raise StopError

    with pytest.raises(StopError):
        model(callback=callback, **options).fit(X, checkpoint=tmp_path, checkpoint_every=0)
    assert sorted(os.listdir(tmp_path)) == ["restart-0", "restart-1"]
    assert bits(model(**options).fit(X, checkpoint=tmp_path, resume=True)) == expected


def test_more_iterations_than_before(tmp_path):
    model(max_iter=10).fit(X, checkpoint=tmp_path, checkpoint_every=0)
    longer = model(max_iter=20).fit(X, checkpoint=tmp_path, resume=True)
    assert len(longer.history_) == 20


def test_an_interrupted_fit_is_saved(tmp_path):
    def interrupt(record):
        if record["iteration"] == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(ConvergenceWarning, match="was interrupted"):
        usable = model(callback=interrupt).fit(X, checkpoint=tmp_path, checkpoint_every=1e6)
    assert usable.interrupted_
    assert np.isfinite(usable.components_).all()
    resumed = model().fit(X, checkpoint=tmp_path, resume=True)
    assert bits(resumed) == bits(model().fit(X))


# What is kept, what is refused ----------------------------------------------------------------


def test_two_are_kept(tmp_path):
    fit_and_stop(tmp_path, 8)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-00000007.h5", "checkpoint-00000008.h5"]


def flip(path):
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        at = file["L"].id.get_offset() + 8
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "unfinished"])
def test_the_one_before_stands_in(tmp_path, damage):
    fit_and_stop(tmp_path, 8)
    newest = tmp_path / "checkpoint-00000008.h5"
    if damage == "cut":
        newest.write_bytes(newest.read_bytes()[:3000])
    elif damage == "flip":
        flip(newest)
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        with h5py.File(newest, "r+") as file:
            del file.attrs["complete"]
    resumed = model().fit(X, checkpoint=tmp_path, resume=True)
    assert bits(resumed) == bits(model().fit(X))


def test_another_version(tmp_path):
    fit_and_stop(tmp_path, 8)
    for path in tmp_path.iterdir():
        with h5py.File(path, "r+") as file:
            file.attrs["format_version"] -= 1
    with pytest.raises(CheckpointError, match="another version of nmfscale.*Remove them to begin"):
        model().fit(X, checkpoint=tmp_path, resume=True)


def test_all_damaged(tmp_path):
    fit_and_stop(tmp_path, 8)
    for path in tmp_path.iterdir():
        flip(path)
    with pytest.raises(CheckpointError, match="no checkpoint can be read.*L is damaged"):
        model().fit(X, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "source", "named"),
    [
        ({"n_components": 4}, X, "n_components was 3 and is 4"),
        ({"dtype": "float32"}, X, "dtype was 'float64' and is 'float32'"),
        ({"extrapolate": False}, X, "extrapolate was True and is False"),
        ({"prior_factors": 1.5}, X, "held was"),
        ({"init": np.arange(90) % 3}, X, "start was"),
        ({"random_state": 1}, X, "random_state was 0 and is 1"),
        ({}, X + 1, "counts was"),
    ],
)
def test_checkpoints_of_another_fit(tmp_path, options, source, named):
    fit_and_stop(tmp_path, 3)
    with pytest.raises(CheckpointError, match=named):
        model(**options).fit(source, checkpoint=tmp_path, resume=True)


def test_folders_that_do_not_serve(tmp_path):
    fit_and_stop(tmp_path / "state", 3)
    with pytest.raises(CheckpointError, match="resume it, or give another folder"):
        model().fit(X, checkpoint=tmp_path / "state")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="no such folder"):
        model().fit(X, checkpoint=tmp_path / "file" / "state")
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        model().fit(X, resume=True)
    with pytest.raises(ValueError, match="goes with solver='auto'"):
        model(solver="scd").fit(X, checkpoint=tmp_path / "other")
    with pytest.raises(ValueError, match="checkpoint_every=-1"):
        model().fit(X, checkpoint=tmp_path / "other", checkpoint_every=-1)


def test_a_full_disk_is_a_warning_first(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path, {}, every=0)
    checkpoint.save(1, {}, {"L": np.ones(3)})
    before = (tmp_path / "checkpoint-00000001.h5").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for iteration in (2, 3):
        with pytest.warns(UserWarning, match="no checkpoint could be written.*No space left"):
            checkpoint.save(iteration, {}, {"L": np.ones(3)})
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(4, {}, {"L": np.ones(3)})
    assert os.listdir(tmp_path) == ["checkpoint-00000001.h5"]
    assert (tmp_path / "checkpoint-00000001.h5").read_bytes() == before
