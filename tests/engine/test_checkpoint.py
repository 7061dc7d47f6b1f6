"""A fit that was stopped anywhere and resumed ends with the bits of one that never was."""

import errno
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import internals
import numpy as np
import pytest
import scipy.sparse as sp
import small_fits
from count_files import write_h5ad
from night import at_night
from sklearn.exceptions import ConvergenceWarning
from small_fits import StopError, X, at_level, bits, model, stop_at

from nmfscale import kernels
from nmfscale.engine.checkpoint import (
    Checkpoint,
    CheckpointError,
    _marks,
    checkpoints_for,
    folder_in_use,
)
from nmfscale.engine.monitor import first_ctrl_c
from nmfscale.methods.poisson.solvers import SOLVERS
from nmfscale.readers.open import as_counts
from nmfscale.storage.locks import FileLock
from nmfscale.storage.store_writer import pack

fcntl = pytest.importorskip("fcntl")
# the same sums of rows and of columns, and as many nonzeros of each
SWAPPED = X.copy()
SWAPPED[np.ix_([0, 1], [2, 4])] += [[1, -1], [-1, 1]]


def fit_and_stop(folder, iteration, source=X, *, resume=False, **options):
    with pytest.raises(StopError):
        model(callback=stop_at(iteration), **options).fit(
            source, checkpoint=folder, checkpoint_every=0, resume=resume
        )


@pytest.mark.parametrize("iteration", [13, *at_night(1, 2, 7, 18, 22)])
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
def test_resumed_anywhere(tmp_path, monkeypatch, options, iteration):
    if "n_components" in options:  # else EM climbs too fast to end, and nothing shares curvature
        internals.always_momentum(monkeypatch)
    fit_and_stop(tmp_path, iteration, **options)
    resumed = model(**options).fit(X, checkpoint=tmp_path, resume=True)
    assert bits(resumed) == bits(model(**options).fit(X))
    assert len(resumed.history_) == 24


@pytest.mark.nightly
def test_resumed_while_it_ran_away(tmp_path, monkeypatch):
    # any fall of the log-likelihood goes back and is careful for a while
    internals.any_fall_goes_back(monkeypatch)
    expected = bits(model().fit(X))
    for iteration in range(1, 23):
        folder = tmp_path / str(iteration)
        fit_and_stop(folder, iteration)
        assert bits(model().fit(X, checkpoint=folder, resume=True)) == expected


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
    assert sorted(os.listdir(tmp_path)) == ["restart-0", "restart-1", "restart-end"]
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
    with pytest.raises(CheckpointError, match="no checkpoint can be read.*checksum of L differs"):
        model().fit(X, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "source", "named"),
    [
        ({"n_components": 4}, X, "n_components was 3 and is 4"),
        ({"dtype": "float32"}, X, "dtype was 'float64' and is 'float32'"),
        ({"extrapolate": False}, X, "extrapolate was True and is False"),
        ({"prior_factors": 1.5}, X, "batches, weights or priors differ"),
        ({"init": np.arange(90) % 3}, X, "the start differs"),
        ({"random_state": 1}, X, "random_state was 0 and is 1"),
        ({}, X + 1, "the counts differ"),
        ({}, SWAPPED, "the counts differ"),
    ],
)
def test_checkpoints_of_another_fit(tmp_path, options, source, named):
    fit_and_stop(tmp_path, 3)
    with pytest.raises(CheckpointError, match=named):
        model(**options).fit(source, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize("place", ["memory", "other order", "store", "h5ad", "dask array"])
@pytest.mark.parametrize("counts", [X, X / 3, X * 10_000], ids=["small", "fractions", "large"])
def test_counts_are_known_wherever_they_are(tmp_path, monkeypatch, counts, place):
    kept = as_counts(counts, integer="allow")
    expected = _marks(kept)
    other = as_counts(SWAPPED * (counts[0, 2] / X[0, 2]), integer="allow")
    assert not np.array_equal(expected, _marks(other))
    internals.small_blocks(monkeypatch, 300)
    source = counts
    if place == "other order":
        order = np.lexsort((-kept.indices, np.repeat(np.arange(90), np.diff(kept.indptr))))
        arrays = kept.data[order], kept.indices[order], kept.indptr
        source = sp.csr_array(arrays, shape=counts.shape)
    elif place == "store":
        source = tmp_path / "counts.nmf"
        pack(kept, source)
    elif place == "h5ad":
        source = write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(counts))
    elif place == "dask array":
        source = pytest.importorskip("dask.array").from_array(counts, chunks=(31, -1))
    found = as_counts(source, in_memory=place == "memory", integer="allow")
    assert np.array_equal(_marks(found), expected)


def test_folders_that_do_not_serve(tmp_path):
    fit_and_stop(tmp_path / "state", 3)
    with pytest.raises(CheckpointError, match="resume it, or give another folder"):
        model().fit(X, checkpoint=tmp_path / "state")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="no such folder"):
        model().fit(X, checkpoint=tmp_path / "file" / "state")
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        model().fit(X, resume=True)
    for every in (-1, "1", None, np.nan):
        with pytest.raises(ValueError, match=f"checkpoint_every={every!r}: seconds"):
            model().fit(X, checkpoint=tmp_path / "other", checkpoint_every=every)
    for folder in (3, "", b"state"):
        with pytest.raises(ValueError, match=f"checkpoint={folder!r}: the path of a folder"):
            model().fit(X, checkpoint=folder)


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "auto"])
def test_every_solver_goes_on_where_it_was_saved(tmp_path, solver):
    options = {"solver": solver, "max_iter": 24}
    for iteration in (3, 21):  # before and after the step of the 20th without extrapolation
        fit_and_stop(tmp_path / "state", iteration, resume=iteration > 3, **options)
    resumed = model(**options).fit(X, checkpoint=tmp_path / "state", resume=True)
    assert bits(resumed) == bits(model(**options).fit(X))


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("before", [1, 2])
def test_another_number_of_starts(tmp_path, before, resume):
    options = {"init": "random", "max_iter": 3}
    model(n_init=before, **options).fit(X, checkpoint=tmp_path, checkpoint_every=0)
    said = {1: "n_init=1, and n_init is 3", 2: "n_init > 1 or n_moves > 0, and n_init is 1"}[before]
    with pytest.raises(CheckpointError, match=f"holds checkpoints of a fit with {said}"):
        model(n_init={1: 3, 2: 1}[before], **options).fit(X, checkpoint=tmp_path, resume=resume)


def test_more_starts_than_before(tmp_path):
    options = {"init": "random", "max_iter": 3}
    model(n_init=2, **options).fit(X, checkpoint=tmp_path, checkpoint_every=0)
    fitted = model(n_init=4, **options).fit(X, checkpoint=tmp_path, resume=True)
    assert bits(fitted) == bits(model(n_init=4, **options).fit(X))


# A folder serves one fit at a time --------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("n_init", [1, 2])
def test_a_folder_in_use(tmp_path, n_init, resume):
    options, seen = {"n_init": n_init, "max_iter": 6}, []

    def begin_another(record):
        if record["iteration"] == 3:
            (tmp_path / ".nmfscale-run-1").mkdir()
            with pytest.raises(
                CheckpointError, match=rf"is in use by process {os.getpid()} on .*; wait"
            ):
                model(**options).fit(X, checkpoint=tmp_path, resume=resume)
            assert (tmp_path / ".nmfscale-run-1").is_dir()
            (tmp_path / ".nmfscale-run-1").rmdir()
            seen.append(record)

    fitted = model(callback=begin_another, **options).fit(
        X, checkpoint=tmp_path, checkpoint_every=0
    )
    assert bits(fitted) == bits(model(**options).fit(X)) and len(seen) == n_init
    names = sorted(os.listdir(tmp_path))
    assert len(names) == {1: 2, 2: 3}[n_init]
    assert all(name.startswith(("checkpoint", "restart")) for name in names)


def test_a_folder_of_a_process_that_is_gone(tmp_path):
    fit_and_stop(tmp_path, 3)
    (tmp_path / ".in-use").write_text("process 1 on some host, which is long gone")
    (tmp_path / ".nmfscale-run-1").mkdir()
    assert bits(model().fit(X, checkpoint=tmp_path, resume=True)) == bits(model().fit(X))
    assert all(name.startswith("checkpoint-") for name in os.listdir(tmp_path))


FORKED = """
import os, signal, sys, time
from small_fits import X, model
def fork_and_die(record):
    if record["iteration"] == 3:
        if not os.fork():
            print(os.getpid(), flush=True)  # it has closed what it inherited by now
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
model(callback=fork_and_die).fit(X, checkpoint=sys.argv[1], checkpoint_every=0)
"""


@pytest.mark.slow
def test_a_folder_whose_process_was_killed_and_left_a_child(tmp_path):
    known = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-P", "-c", FORKED, tmp_path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=known) as process:
        child = int(process.stdout.readline())
        assert process.wait() == -signal.SIGKILL
        try:
            assert (tmp_path / ".in-use").read_text().startswith(f"process {process.pid} on ")
            small_fits.model().fit(small_fits.X, checkpoint=tmp_path, resume=True)
        finally:
            os.kill(child, signal.SIGKILL)
    assert all(name.startswith("checkpoint-") for name in os.listdir(tmp_path))


def interrupted_at(number, work):
    """Do some work with a Ctrl-C at one of its lines; whether there are so many."""
    left = number

    def trace(frame, event, _):
        nonlocal left
        place, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if name == "__del__" or not {"nmfscale", "signal.py"} & {place.name, *place.parts}:
            return None  # in __del__ errors are ignored
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


def test_ctrl_c_at_any_line_leaves_a_folder_free(tmp_path):
    def use():
        with folder_in_use(tmp_path, "nothing"):
            pass

    number = 0
    while interrupted_at(number := number + 1, use):
        with FileLock(tmp_path / ".in-use") as alone:
            assert alone
        use()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert number > 30


def test_ctrl_c_at_any_line_gives_ctrl_c_back(tmp_path):
    def press_once_and_end():
        with first_ctrl_c(lambda: None):
            signal.raise_signal(signal.SIGINT)

    number = 0
    while interrupted_at(number := number + 1, press_once_and_end):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, number
    assert number > 5


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / ".nmfscale-run-1").mkdir()  # perhaps somebody's
    fit_and_stop(tmp_path, 3)
    assert bits(model().fit(X, checkpoint=tmp_path, resume=True)) == bits(model().fit(X))
    assert {name[:9] for name in os.listdir(tmp_path)} == {"checkpoin", ".nmfscale"}


def test_the_lock_of_another_stays(tmp_path):
    with FileLock(tmp_path / "a") as alone:
        os.replace(tmp_path / "a", tmp_path / "b")
        with FileLock(tmp_path / "a") as another, pytest.raises(BlockingIOError, match="process"):
            assert alone and another
            with FileLock(tmp_path / "b"):
                pass
        (tmp_path / "a").write_text("somebody's")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


# Which instructions -----------------------------------------------------------------------------


@pytest.fixture
def saved_at_baseline(tmp_path):
    """The bits of a fit without AVX, and a folder with checkpoints of it."""
    if len(kernels.available_levels()) == 1:
        pytest.skip("this processor has one level only")
    with at_level("baseline"):
        fit_and_stop(tmp_path, 3)
        return bits(model().fit(X)), tmp_path


def test_the_level_of_a_checkpoint_that_is_locked_for_a_while(saved_at_baseline):
    expected, folder = saved_at_baseline
    files = [(folder / name).open() for name in os.listdir(folder)]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    release = threading.Timer(0.5, lambda: [file.close() for file in files])
    release.start()
    assert bits(model().fit(X, checkpoint=folder, resume=True)) == expected
    release.join()


def test_the_baseline_of_another_machine(saved_at_baseline, monkeypatch):
    was = f"baseline of {platform.machine()}"
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(
        CheckpointError, match=f"instruction set was '{was}' and is 'baseline of vax'"
    ):
        model().fit(X, checkpoint=saved_at_baseline[1], resume=True)


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


def test_arrays_to_compare_are_iterables():
    # of a model of another package, and in a fit without checkpoints, too
    with pytest.raises(TypeError, match=r"parts\['start'\] is None: a tuple of arrays is needed"):
        checkpoints_for(None, 1, as_counts(X), {"start": None}, every=60.0, resume=False)
