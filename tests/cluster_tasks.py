"""Tasks that workers of the tests run; they import them from here."""

import importlib
import os
import resource
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np

from nmfscale.cluster.pool import perform
from nmfscale.cluster.tasks import MissingArraysError, UnfitWorkerError
from nmfscale.engine.session import look
from nmfscale.engine.worker import Workbench
from nmfscale.methods.steps import ColumnVisit


def twice(number, given):
    """Two times a number, and the sum of what was sent."""
    return 2 * number + sum(float(np.sum(array)) for array in given.values())


def add(*numbers):
    return sum(numbers)


def abort_at(number, bad, given):
    if number == bad:
        os.abort()
    return number


def fail_once(number, folder, kind, given):
    """Fail the first time that a number comes."""
    mark = Path(folder, f"{kind}-{number}")
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise OSError(5, "Input/output error", str(mark))
    return number


def always(error, number, given):
    raise {"value": ValueError, "os": OSError, "memory": MemoryError}[error](f"number {number}")


# What takes the time of a task.
WORK = {"rows": (Workbench, "move"), "columns": (ColumnVisit, "over")}


def perform_and_count(folder, kind, number, function, args, given):
    """Run a task, count it and what is computed in it; kill its worker in the middle of one."""

    def count(which):
        with Path(folder, which).open("ab", buffering=0) as file:
            file.write(b".")
            return file.tell()  # of all workers

    def counted(which, work):
        def count_and_work(*args):
            n_begun = count(which)
            found = work(*args)
            if (which, n_begun) == (kind, number):
                time.sleep(1)  # long enough for results before it to have been fetched
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return count_and_work

    count(function.__name__)
    with ExitStack() as stack:
        for which, (owner, name) in WORK.items():
            work = counted(which, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, work))
        return perform(function, args, given)


def sleep(seconds, given):
    time.sleep(seconds)
    return seconds


def slow_at(folder, number, seconds, many, given):
    """Take many seconds in the process that took number 0, few elsewhere."""
    mark = Path(folder, "slow")
    if number == 0 and not mark.exists():
        mark.write_text(str(os.getpid()))
    time.sleep(many if mark.exists() and mark.read_text() == str(os.getpid()) else seconds)
    return number


def needs(name, given):
    if name not in given:
        raise MissingArraysError(name)
    return float(given[name].sum())


def remembers(mark, name, given):
    """Need what is sent only after the first time, when it is remembered from before."""
    if mark.exists():
        return needs(name, given)
    mark.write_text(str(os.getpid()))
    return 0.0


def unfit_at(folder, number, given):
    """Only processes other than the first are fit."""
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
    """Fit in a task, where a client is active, too."""
    from distributed import get_client
    from small_fits import bits, model

    from nmfscale.counts import blocks as layout

    before, layout.BLOCK_NONZEROS = layout.BLOCK_NONZEROS, block
    try:
        with get_client().as_current():
            return bits(model(max_iter=max_iter).fit(path))
    finally:
        layout.BLOCK_NONZEROS = before


def bits_with_worker_client(path, block, max_iter):
    """Fit in a task on the cluster that it is a task of."""
    from distributed import worker_client
    from small_fits import bits, model

    from nmfscale.counts import blocks as layout

    before, layout.BLOCK_NONZEROS = layout.BLOCK_NONZEROS, block
    try:
        with worker_client() as client:
            return bits(model(max_iter=max_iter).fit(path, client=client))
    finally:
        layout.BLOCK_NONZEROS = before


def fit_with_get_client(path):
    """Say why a fit in a task may not wait for tasks which wait for it."""
    from distributed import get_client
    from small_fits import model

    try:
        model(max_iter=1).fit(path, client=get_client())
    except ValueError as error:
        return str(error)


def native_threads():
    """Count the threads of this process that Python does not know."""
    return len(os.listdir("/proc/self/task")) - threading.active_count()


def replace(module, name, value):
    """Let a function of a module return something else."""
    module = importlib.import_module(module)
    setattr(module, f"_before_{name}", getattr(module, name))
    setattr(module, name, lambda: value)


def put_back(module, name):
    module = sys.modules[module]
    setattr(module, name, getattr(module, f"_before_{name}"))


def level():
    from nmfscale import kernels

    return kernels.level()


def forget_everything():
    """Let a worker remember nothing of the fits that it took part in."""
    from nmfscale.engine import worker as workbench

    workbench._memory.__init__()


def bytes_remembered():
    """Say how much a worker remembers of the fits that it took part in."""
    from nmfscale.engine import worker as workbench

    return workbench._memory._held


def limit_files(n_bytes):
    """Refuse files of more bytes, as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


def near_sighted(store, folder, *args):
    """Look as a worker does, and say that it does not see the store, or the folder."""
    seen = look(*args)
    return seen._replace(
        sees_store=seen.sees_store and store, sees_folder=seen.sees_folder and folder
    )
