"""Dask clusters on this machine, faults of their workers, and time limits."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress

import psutil
from small_fits import model

from nmfscale.cluster import local as local_cluster

# A hang is a failure: no test may take longer, even if the processors are busy otherwise.
WALL = 120
# Seconds within which others take over the tasks of a silent worker, before Dask gives it up.
UNNOTICED = 50
ITERATIONS = 16
# The settings of users' clusters, but lost connections are noticed sooner.
SETTINGS = local_cluster._SETTINGS | {
    "distributed.comm.timeouts.connect": "12s",
    "distributed.comm.timeouts.tcp": "12s",
}
# Workers are forked from a process that has imported Dask: they start in a fifth of the time.
FORKED = {"distributed.worker.multiprocessing-method": "forkserver"}


def within(seconds, function):
    """Return the result of a function; fail if it takes too long."""
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


def soon(what, seconds=WALL):
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def fit(source, client=None, actions=None, **options):
    """Fit a small model, and run actions after iterations; see `At`."""
    how = {n: options.pop(n) for n in ("checkpoint", "checkpoint_every", "resume") if n in options}
    options = {"max_iter": ITERATIONS, "callback": actions and At(actions)} | options
    return within(WALL, lambda: model(**options).fit(source, client=client, **how))


@contextmanager
def cluster_of(n_workers, active=True, **options):
    """Start worker processes and yield a client, which fits use by default if `active`."""
    import dask
    from distributed import Client, LocalCluster

    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": 60} | options
    with (
        # killed workers cause warnings
        warnings.catch_warnings(action="ignore"),
        dask.config.set(SETTINGS | FORKED),
    ):
        # if a client of a lost scheduler were collected while another starts, both would hang
        gc.collect()
        cluster = LocalCluster(n_workers=n_workers, threads_per_worker=1, **options)
        try:
            with Client(cluster, set_as_default=active) as client:
                if n_workers:
                    client.wait_for_workers(n_workers, timeout=WALL)
                # nannies must have started, too: before that, they do not restart a worker
                started = cluster.workers.values()
                soon(lambda: all(each.status.name == "running" for each in list(started)))
                yield client
        finally:
            # faults of its workers may prevent it from closing
            with suppress(TimeoutError):
                cluster.close(timeout=WALL / 4)


def restore_workers(client, n_workers):
    """Wait until all workers are alive; replace them if one was retired and is not restarted."""
    cluster = client.cluster

    def are_alive():
        # a retired worker may begin to close only now, and others leave the dict meanwhile
        nannies = list(cluster.workers.values())
        if any(nanny.status.name in ("closing", "closed") for nanny in nannies):
            cluster.scale(0)
            soon(lambda: not cluster.workers)
            cluster.scale(n_workers)
        return len([pid for pid in processes(client) if alive(pid)]) == n_workers

    cluster.scale(n_workers)
    soon(are_alive)


def alive(pid):
    """Whether a process is running, and not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


_SCHEDULER = """
import time
from distributed import LocalCluster
if __name__ == "__main__":
    options = {"processes": False, "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, silence_logs=60, **options) as cluster:
        print(cluster.scheduler_address, flush=True)
        time.sleep(1000)
"""


@contextmanager
def scheduler_to_kill():
    """Start a scheduler with workers in a process; yield the process and a client."""
    from distributed import Client

    # the scheduler needs the paths, too: it unpickles submitted tasks
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", _SCHEDULER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            address = within(WALL, process.stdout.readline).strip()
            client = Client(address, timeout=WALL, set_as_default=False)
            try:
                yield process, client
            finally:
                process.kill()
                client.close(timeout=2)
        finally:
            process.kill()


def processes(client):
    """Return the ids of the worker processes that Dask restarts if they die.

    Dask restarts a worker only after the worker has joined and its nanny has started.
    """
    here = client.cluster.scheduler.workers
    return [
        nanny.pid
        for nanny in list(client.cluster.workers.values())
        if nanny.pid and nanny.status.name == "running" and nanny.worker_address in here
    ]


def send(number, pids):
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class At:
    """Callback of a fit that counts iterations, and runs the action of an iteration after it."""

    def __init__(self, actions):
        self.actions, self.seen = actions, 0

    def __call__(self, record):
        self.seen += 1
        if self.seen in self.actions:
            self.actions[self.seen]()


@contextmanager
def meanwhile(action, every):
    """Repeat an action in a thread until the block ends."""
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
    """Kills a random worker at every call, up to `most` workers."""

    def __init__(self, client, seed=0, most=8):
        self.client, self.chance, self.kills, self.most = client, random.Random(seed), 0, most

    def __call__(self):
        pids = processes(self.client)
        if pids and self.kills < self.most:
            send(signal.SIGKILL, [self.chance.choice(pids)])
            self.kills += 1


def tasks_known(client):
    """Return the number of tasks that the scheduler knows."""
    return client.run_on_scheduler(_count_tasks)


def _count_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


def prefixes(client):
    """Return the names under which the dashboard shows tasks."""
    return set(client.run_on_scheduler(_task_prefixes))


def _task_prefixes(dask_scheduler):
    return list(dask_scheduler.task_prefixes)
