"""Dask clusters on this machine, what is done to their workers, and limits to the time it takes."""

import os
import random
import signal
import threading
import time
import warnings
from contextlib import contextmanager, suppress

# A hang is a failure: no test may take longer.
WALL = 60
SETTINGS = {
    "distributed.scheduler.worker-ttl": "15s",
    "distributed.scheduler.allowed-failures": 20,
    "distributed.comm.timeouts.connect": "12s",
    "distributed.comm.timeouts.tcp": "12s",
}


def within(seconds, function):
    """Return what a function returns, and fail if it takes too long."""
    done = []

    def run():
        try:
            done.append((function(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"no answer in {seconds} s"
    if done[0][1] is not None:
        raise done[0][1]
    return done[0][0]


def soon(what, seconds=30):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@contextmanager
def cluster_of(n_workers, **options):
    """Start worker processes and hand out a client of theirs."""
    import dask
    from distributed import Client, LocalCluster

    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": 60} | options
    with (
        # of workers that are killed
        warnings.catch_warnings(action="ignore"),
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=n_workers, threads_per_worker=1, **options) as cluster,
        Client(cluster) as client,
    ):
        if n_workers:
            client.wait_for_workers(n_workers, timeout=WALL)
        yield client


def make_whole(cluster, n_workers):
    """Wait until a cluster has all its workers.

    The watcher of a worker that was retired, or died twice within 15 s, does not start it again.
    """
    cluster.scale(n_workers)
    try:
        cluster.wait_for_workers(n_workers, timeout=20)
    except TimeoutError:
        cluster.scale(0)
        soon(lambda: not cluster.workers)
        cluster.scale(n_workers)
        cluster.wait_for_workers(n_workers, timeout=WALL)


def processes(client):
    """Return the numbers of the worker processes that have joined; one that dies before is lost."""
    here = client.cluster.scheduler.workers
    nannies = list(client.cluster.workers.values())
    return [nanny.pid for nanny in nannies if nanny.pid and nanny.worker_address in here]


def send(number, pids):
    """Send a signal to processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class At:
    """Callback of a fit that does something once an iteration is done, and counts them."""

    def __init__(self, actions):
        self.actions, self.seen = actions, 0

    def __call__(self, record):
        self.seen += 1
        if self.seen in self.actions:
            self.actions[self.seen]()


@contextmanager
def meanwhile(action, every):
    """Do something again and again, in a thread, until the block ends."""
    over, errors = threading.Event(), []

    def run():
        try:
            while not over.wait(every):
                action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(WALL)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


class Killer:
    """Kills a worker at random at every call, up to so many."""

    def __init__(self, client, seed=0, most=8):
        self.client, self.chance, self.kills, self.most = client, random.Random(seed), 0, most

    def __call__(self):
        pids = processes(self.client)
        if pids and self.kills < self.most:
            send(signal.SIGKILL, [self.chance.choice(pids)])
            self.kills += 1


def tasks_known(client):
    """Return how many tasks the scheduler knows."""
    return client.run_on_scheduler(_count_tasks)


def _count_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


def prefixes(client):
    """Return the names under which the dashboard shows tasks."""
    return set(client.run_on_scheduler(_task_prefixes))


def _task_prefixes(dask_scheduler):
    return list(dask_scheduler.task_prefixes)
