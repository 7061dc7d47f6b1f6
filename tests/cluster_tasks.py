"""Tasks for the workers of the tests, which import this module each time they are restarted.

It therefore imports only what the tasks need.
"""

import os
import platform
import resource
import signal
import threading
import time
from functools import partial
from pathlib import Path

import internals
import numpy as np
import pytest

from nmfscale.cluster.pool import perform
from nmfscale.cluster.tasks import MissingArraysError, UnfitWorkerError


def twice(number, data):
    """Return twice a number plus the sum of the data that was sent."""
    return 2 * number + sum(float(np.sum(array)) for array in data.values())


def add(*numbers):
    return sum(numbers)


def abort_at(number, bad, data):
    if number == bad:
        os.abort()
    return number


def fail_once(number, folder, kind, data):
    """Fail at the first call with a number."""
    mark = Path(folder, f"{kind}-{number}")
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise OSError(5, "Input/output error", str(mark))
    return number


def always(error, number, data):
    raise {"value": ValueError, "os": OSError, "memory": MemoryError}[error](f"number {number}")


def perform_and_count(folder, kind, number, function, args, data):
    """Run a task, count its steps, and kill its worker in the middle of one of them."""
    from nmfscale.engine.worker import run_steps

    def count(which):
        with Path(folder, which).open("ab", buffering=0) as file:
            file.write(b".")
            return file.tell()  # counts all workers

    def count_and_work(which, work, *args):
        n_begun = count(which)
        found = work(*args)
        if (which, n_begun) == (kind, number):
            time.sleep(1)  # long enough for earlier results to be fetched
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    runs = [run for work in args[2] for run in work.runs] if function is run_steps else []
    for step in {run.step.reads for run in runs} - {None}:
        count(f"{step} tasks")
    with pytest.MonkeyPatch.context() as patch:
        for which in ("rows", "columns"):
            internals.around_work(patch, which, partial(count_and_work, which))
        return perform(function, args, data)


def sleep(seconds, data):
    time.sleep(seconds)
    return seconds


def slow_at(folder, number, seconds, many, data):
    """Take `many` seconds in the process that ran number 0, `seconds` in others."""
    mark = Path(folder, "slow")
    if number == 0 and not mark.exists():
        mark.write_text(str(os.getpid()))
    time.sleep(many if mark.exists() and mark.read_text() == str(os.getpid()) else seconds)
    return number


def needs(name, data):
    if name not in data:
        raise MissingArraysError(name)
    return float(data[name].sum())


def remembers(mark, name, data):
    """Need the sent data only after the first call: the worker should remember them."""
    if mark.exists():
        return needs(name, data)
    mark.write_text(str(os.getpid()))
    return 0.0


def unfit_at(folder, number, data):
    """Raise UnfitWorkerError in the process that runs this first."""
    mark = Path(folder, "first")
    if not mark.exists():
        mark.write_text(str(os.getpid()))
    if mark.read_text() == str(os.getpid()):
        raise UnfitWorkerError("an old version")
    return number


def fail_at_worker(address):
    from distributed import get_worker

    if get_worker().address == address:
        raise ImportError("no module named nmfscale")
    return get_worker().address


def take_rows(rows, matrix):
    return matrix[rows]


def bits_of_a_fit(path, block, max_iter):
    """Fit in a task in which a client is active."""
    from distributed import get_client
    from small_fits import bits, model

    with pytest.MonkeyPatch.context() as patch, get_client().as_current():
        internals.small_blocks(patch, block)
        return bits(model(max_iter=max_iter).fit(path))


def bits_with_worker_client(path, block, max_iter):
    """Fit in a task, on the same cluster."""
    from distributed import worker_client
    from small_fits import bits, model

    with pytest.MonkeyPatch.context() as patch, worker_client() as client:
        internals.small_blocks(patch, block)
        return bits(model(max_iter=max_iter).fit(path, client=client))


def fit_with_get_client(path):
    """Return the error of a fit in a task that would wait for tasks of the same worker."""
    from distributed import get_client
    from small_fits import model

    try:
        model(max_iter=1).fit(path, client=get_client())
    except ValueError as error:
        return str(error)


def native_threads():
    """Return the number of threads of this process that Python did not start."""
    return len(os.listdir("/proc/self/task")) - threading.active_count()


_CHANGES = pytest.MonkeyPatch()


def change(function, *args):
    """Change something in this process; see `internals`."""
    function(_CHANGES, *args)


def undo_changes():
    _CHANGES.undo()


def machine(patch, name):
    """Pretend that this process runs on a machine of another type."""
    patch.setattr(platform, "machine", lambda: name)


def level():
    from nmfscale import kernels

    return kernels.level()


def forget_everything():
    """Clear everything that a worker has cached for fits."""
    from nmfscale.engine.caches import RECENT

    RECENT.__init__()


def bytes_remembered():
    """Return the bytes that a worker has cached for fits."""
    from nmfscale.engine.caches import RECENT

    return RECENT.n_bytes_held


def limit_files(n_bytes):
    """Make writes beyond this size fail, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
