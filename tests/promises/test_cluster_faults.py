"""Fits on workers of this machine that die, stall, restart, differ, or run out of something."""

import os
import pickle
import resource
import signal
import sys
import threading
import time
from dataclasses import is_dataclass
from functools import partial

import cluster_tasks as tasks
import internals
import numpy as np
import psutil
import pytest
from clusters import (
    WALL,
    Killer,
    cluster_of,
    fit,
    meanwhile,
    processes,
    scheduler_to_kill,
    send,
    soon,
    within,
)
from distributed import Client
from night import at_night
from replicate_tasks import Draws
from small_fits import X, bits, model

from nmfscale.cluster.tasks import (
    BlockFailedError,
    ClusterError,
    NoWorkersError,
    SchedulerLostError,
    WorkerDiedError,
)
from nmfscale.engine.lineage import Ref
from nmfscale.engine.memory import MemoryLimitError
from nmfscale.engine.worker import RunConfig, TaskContext
from nmfscale.inference.replicates.replicates import run_replicates
from nmfscale.readers.open import as_counts
from nmfscale.storage.arrays import DamagedFileError, load_arrays, save_arrays
from nmfscale.storage.store_blocks import DamagedStoreError
from nmfscale.storage.store_writer import pack

# Dask's own warnings about workers that we kill are not ours
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture
def pools(monkeypatch):
    """The worker pools of all fits."""
    return internals.note_pools(monkeypatch)


def run_folder(state):
    (found,) = state.glob(".nmfscale-run-*")
    return found


# Workers that die -----------------------------------------------------------------------------


@pytest.mark.nightly
def test_workers_are_killed_all_the_time(client, store, monkeypatch):
    internals.save_every(monkeypatch, 5)
    killer = Killer(client)
    # however quick the fit is, it meets three of them
    actions = {6 * n: partial(soon, lambda n=n: killer.kills >= n) for n in (1, 2, 3)}
    with meanwhile(killer, 1.0):
        fitted = fit(store, client, actions, max_iter=24)
    assert bits(fitted) == bits(fit(X, max_iter=24))
    assert killer.kills >= 3


@pytest.mark.parametrize("sees", [True, False])
def test_a_worker_is_killed_in_each_part_of_a_transform(client, store, monkeypatch, sees):
    fitted, killer = fit(X), Killer(client, most=3)

    def kill_and_wait(results, batch, note):
        killer()
        return results(batch, note)

    internals.workers_see(monkeypatch, sees, sees)
    internals.stream_together(monkeypatch, 1)
    internals.around_results(monkeypatch, kill_and_wait)
    found = within(WALL, lambda: fitted.transform(store, client=client))
    assert found.tobytes() == fitted.transform(X).tobytes() and killer.kills == 3


def test_a_worker_is_killed(client, store):
    actions = {4: Killer(client), 9: Killer(client, 1)}
    assert bits(fit(store, client, actions, max_iter=12)) == bits(fit(X, max_iter=12))


@pytest.mark.nightly
def test_a_worker_is_killed_between_two_saves(client, store, monkeypatch):
    internals.save_every(monkeypatch, 5)
    expected = bits(fit(X))
    for at in (4, 5, 7):  # before, at and after a save
        assert bits(fit(store, client, {at: Killer(client, at)})) == expected


@pytest.mark.parametrize("kind", ["columns", *at_night("rows")])
def test_one_task_is_done_again_for_a_worker_that_is_killed(store, tmp_path, monkeypatch, kind):
    internals.retry_policy(monkeypatch, late=WALL)
    internals.columns_in_whole_blocks(monkeypatch)  # each task has columns of all blocks otherwise

    def count(name, number):
        folder = tmp_path / name
        folder.mkdir()
        counting = partial(tasks.perform_and_count, folder, kind, number)
        internals.perform_by(monkeypatch, counting)
        fitted = fit(store, client)
        return bits(fitted), {which: (folder / which).stat().st_size for which in counted}

    counted = ["rows", "columns", "rows tasks", "columns tasks"]

    with cluster_of(2) as client:
        expected, undisturbed = count("undisturbed", 0)
        n_blocks = len(as_counts(X).layout().blocks)
        # but for a stream of blocks, a pass is one task for each worker
        assert undisturbed["rows tasks"] < undisturbed["rows"] * 3 / n_blocks
        found, killed = count("killed", 8 * n_blocks + 2)
    assert found == expected
    # a pass has fewer tasks until the worker is restarted
    again = {which: killed[which] - undisturbed[which] for which in ("rows", "columns")}
    assert 1 <= again.pop(kind) <= -(-n_blocks // 2)
    assert not any(again.values())


@pytest.mark.nightly
def test_lineage_ends_at_saved_loadings(client, store, monkeypatch):
    internals.save_every(monkeypatch, 5)
    sizes = []

    def note_and_run(run, pool, name, function, tasks, **options):
        if name.startswith("UpdateRows"):
            sizes.append(len(pickle.dumps(tasks[0].args)))
        return run(pool, name, function, tasks, **options)

    internals.around_run(monkeypatch, note_and_run)
    fit(store, client, max_iter=90)
    # of five iterations, two save what they use: loadings, and the curvature of an earlier one
    assert max(min(sizes[i : i + 8]) for i in range(len(sizes) - 8)) < 2 * sizes[0]
    assert max(sizes[45:]) < 1.2 * max(sizes[:45])


def test_all_workers_are_killed_and_come_back(store):
    with cluster_of(2) as client:

        def kill_all():
            pids = processes(client)
            client.cluster.scale(0)
            send(signal.SIGKILL, pids)
            client.loop.call_later(4, client.cluster.scale, 2)

        begin = time.monotonic()
        with pytest.warns(UserWarning, match="no workers: waiting up to 300 s"):
            fitted = fit(store, client, {6: kill_all})
        assert time.monotonic() - begin > 4
    assert bits(fitted) == bits(fit(X))


def test_all_workers_are_gone(store, tmp_path, monkeypatch):
    internals.retry_policy(monkeypatch, workers=2)
    state = tmp_path / "state"
    with cluster_of(2) as client:
        with pytest.raises(NoWorkersError, match=f"no worker for 2 s.*checkpoint in {state}"):
            fit(store, client, {6: lambda: client.cluster.scale(0)}, checkpoint=state,
                checkpoint_every=0)  # fmt: skip
    assert bits(fit(X, checkpoint=state, resume=True)) == bits(fit(X))


def test_the_scheduler_is_killed(client, store, tmp_path):
    state = tmp_path / "state"
    with scheduler_to_kill() as (process, other):
        with pytest.raises(SchedulerLostError, match=f"resume=True.*checkpoint in {state}"):
            fit(store, other, {6: process.kill}, checkpoint=state, checkpoint_every=0)
    assert bits(fit(store, client, checkpoint=state, resume=True)) == bits(fit(X))


@pytest.mark.parametrize("what", ["fit", "replicates"])
def test_the_client_is_closed(client, store, tmp_path, what):
    state = tmp_path / "state"
    with Client(client.scheduler.address, set_as_default=False) as other:
        with pytest.raises(SchedulerLostError, match=f"closed.*resume=True.*checkpoint in {state}"):
            if what == "fit":
                fit(store, other, {6: other.close}, checkpoint=state, checkpoint_every=0)
            else:
                first = {"advance": lambda n: n and other.close()}
                run_replicates(Draws(), 40, batch_size=1, client=other, checkpoint=state, **first)


# Workers that come and go ---------------------------------------------------------------------


@pytest.mark.nightly
def test_workers_come_and_go(client, store):
    def retire():
        client.retire_workers([next(iter(client.scheduler_info(-1)["workers"]))])

    actions = {
        3: lambda: client.cluster.scale(1),
        7: lambda: client.cluster.scale(3),
        11: retire,
        14: lambda: client.restart(wait_for_workers=False),
    }
    assert bits(fit(store, client, actions, max_iter=20)) == bits(fit(X, max_iter=20))


@pytest.mark.nightly
def test_all_workers_restart_during_an_iteration(client, store):
    restarts = []

    def restart():
        client.restart(wait_for_workers=False)
        restarts.append(1)

    # it begins while the fit goes on, which then waits for its end, however quick it is
    actions = {6: threading.Timer(0.01, restart).start, 8: partial(soon, lambda: restarts)}
    assert bits(fit(store, client, actions)) == bits(fit(X)) and restarts


@pytest.mark.nightly
def test_workers_restart_while_a_fit_begins(client, store, monkeypatch):
    asked = []

    def dead_at_first(each, pool, *args, **options):
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 1.5:
            return {worker: WorkerDiedError("it died") for worker in pool.workers()}
        return each(pool, *args, **options)

    internals.around_each(monkeypatch, dead_at_first)
    assert bits(fit(store, client)) == bits(fit(X)) and len(asked) > 1


# Data that are lost or damaged ----------------------------------------------------------------


@pytest.fixture
def nothing_shared(monkeypatch):
    """Workers that see no files of the driver."""
    internals.workers_see(monkeypatch, store=False, folder=False)


@pytest.mark.parametrize("loss", ["killed", *at_night("cancelled")])
def test_arrays_sent_to_workers_are_lost(client, store, nothing_shared, pools, loss):
    def lose():
        sent = list(pools[0]._sent.values())
        assert len(sent) > 10
        if loss == "cancelled":
            client.cancel(sent, force=True)
        else:
            Killer(client)()

    found = fit(store, client, {3: lose, 7: lose}, max_iter=10)
    assert bits(found) == bits(fit(X, max_iter=10))


def flip(path):
    """Flip a bit in the middle of a file's longest run of numbers."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["step", *at_night("shared", "totals")])
def test_a_bit_flips_in_a_file_of_the_fit(client, store, tmp_path, kind):
    state, flipped = tmp_path / "state", []

    def damage():
        for path in run_folder(state).glob(f"*/{kind}-*.npz"):
            flip(path)
            flipped.append(path)
        client.run(tasks.forget_everything)

    with pytest.raises(ClusterError, match=f"{state}.*/{kind}-.*npz.* is damaged.*checkpoint"):
        fit(store, client, {5: damage}, checkpoint=state, checkpoint_every=0)
    assert flipped
    assert bits(fit(X, checkpoint=state, resume=True)) == bits(fit(X))


def test_tasks_of_a_fit_that_has_ended_end_soon(tmp_path):
    ref = Ref("F", str(tmp_path / "gone" / "F.npz"))
    config = RunConfig("", "", None, str(tmp_path / "gone"), 1, "baseline", 0)
    begin = time.monotonic()
    with pytest.raises(OSError, match="gone is gone"):
        within(WALL, lambda: TaskContext(config, None, {}).arrays(ref))
    assert time.monotonic() - begin < 10


@pytest.mark.nightly
def test_a_bit_flips_anywhere_in_a_file(tmp_path):
    path = tmp_path / "point.npz"
    arrays = {"L_0": np.arange(12.0).reshape(4, 3), "L_1": np.ones((2, 3), np.float32)}
    save_arrays(path, arrays)
    content, found = path.read_bytes(), 0
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            read = load_arrays(path)
        except DamagedFileError as error:
            found += str(path) in str(error)
        else:
            assert read.keys() == arrays.keys()
            assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
    assert found > len(content) / 2


def test_the_store_is_replaced(client, store, tmp_path):
    (tmp_path / "other").mkdir()
    pack(as_counts(X[::-1]), tmp_path / "other" / "counts.nmf")
    replace = {3: lambda: os.replace(tmp_path / "other" / "counts.nmf", store)}
    with pytest.raises(DamagedStoreError, match="counts.nmf was changed while it was in use"):
        fit(store, client, replace)


# What runs out --------------------------------------------------------------------------------


def test_workers_with_too_little_memory_are_refused(store):
    seen = []
    with cluster_of(1, memory_limit="300MB") as client:
        with pytest.raises(
            MemoryLimitError, match=r"may hold 300 MB.*needs workers of \d+ MB \([\d,]{11} bytes\)"
        ):
            within(WALL, lambda: model(callback=seen.append).fit(store, client=client))
    assert not seen


@pytest.mark.nightly
@linux
def test_the_disk_is_full_for_workers(client, store, tmp_path):
    state, most = tmp_path / "state", resource.RLIM_INFINITY
    try:
        with pytest.raises(BlockFailedError, match=rf"rows .* failed 3 times.*{state}"):
            fit(store, client, {5: lambda: client.run(tasks.limit_files, 100)}, checkpoint=state,
                checkpoint_every=0)  # fmt: skip
    finally:
        client.run(tasks.limit_files, most)
    assert all(name.startswith("checkpoint-") for name in os.listdir(state))
    assert bits(fit(X, checkpoint=state, resume=True)) == bits(fit(X))


def files_of(thing):
    """Paths of the files that row arrays, or whatever holds some, are made of."""
    if isinstance(thing, Ref):
        return {thing.path}
    if is_dataclass(thing):
        thing = vars(thing)
    if isinstance(thing, dict):
        thing = list(thing.values())
    return set().union(*map(files_of, thing)) if isinstance(thing, (list, tuple)) else set()


@pytest.mark.nightly
@linux
def test_no_slow_leak(store, tmp_path, monkeypatch):
    import dask

    state, seen, unused = tmp_path / "state", [], []
    n_groups = len(as_counts(X).layout().blocks)
    executors = internals.note_executors(monkeypatch)
    # what Dask keeps for its own dashboard is not ours to judge
    short = {f"distributed.admin.{name}log-length": 100 for name in ("", "low-level-")}
    with dask.config.set(short), cluster_of(2) as client:
        pids = [os.getpid(), *processes(client)]
        everyone = [psutil.Process(pid) for pid in pids]

        def look(record):
            files = {str(path) for path in run_folder(state).rglob("*") if path.is_file()}
            used = files_of(executors[-1]._arrays)
            assert used <= files
            # two points make where L is, two the best, two where curvature was stored with F; one
            # is next; one has the totals of the samples
            assert len(used) <= 8 * n_groups + 1
            unused.append(len(files - used))
            if record["iteration"] % 5 == 0:
                seen.append([(each.memory_info().rss, each.num_fds()) for each in everyone])

        fitted = model(max_iter=160, callback=look)
        within(2 * WALL, lambda: fitted.fit(store, client=client, checkpoint=state))
        assert processes(client) == pids[1:]
    assert max(unused[60:]) - min(unused[60:]) <= 4
    held = np.array(seen[8:], float)
    half = len(held) // 2
    grown = held[half:].mean(axis=0) - held[:half].mean(axis=0)
    assert (grown[:, 0] < 5 * half * 100_000).all(), grown
    assert (np.abs(grown[:, 1]) <= 2).all(), grown
