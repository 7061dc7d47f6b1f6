"""Properties of the workers of a cluster, and the client to use."""

from __future__ import annotations

import platform
import socket
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from .. import kernels
from ..cluster.pool import WorkerPool, active_client, in_task, worker_memory
from ..cluster.tasks import NoWorkersError
from ..counts.warn import warn_caller
from ..storage.atomic import file_id
from ..storage.version import package_version
from .threads import available_processors, resolve_threads

# Seconds that workers of a restarting cluster have to begin to answer.
_LOOKS_FOR = 30.0


class WorkerInfo(NamedTuple):
    """Properties that a worker reports."""

    version: str
    levels: list[str]
    host: str
    processors: int
    memory: int | None
    sees_store: bool
    sees_folder: bool
    machine: str = ""  # missing in earlier versions


def probe(store: str, mark: tuple[int, ...], probe_file: str, token: str) -> WorkerInfo:
    """Return the properties of a worker, and whether it can read the files of the fit."""
    return WorkerInfo(
        package_version(), kernels.available_levels(), socket.gethostname(),
        available_processors(), worker_memory(),
        _seen(lambda: file_id(Path(store).stat())) == mark,
        _seen(Path(probe_file).read_text) == token, platform.machine(),
    )  # fmt: skip


def _seen(look: Callable[[], Any]) -> Any:
    """Return the identity of a file, None if this machine cannot read it."""
    try:
        return look()
    except OSError:
        return None


def resolve_client(client: Any) -> Any:
    """Return the given client, or the active one."""
    if client is None:
        return active_client()
    if not hasattr(client, "submit") or not hasattr(client, "scheduler"):
        raise ValueError(
            f"client={client!r} is not a distributed.Client: pass Client(...) of the cluster or "
            "its address."
        )
    if client.status in ("closed", "closing"):
        raise ValueError(f"client={client!r} is closed: pass a Client that is connected.")
    if in_task(of_pool=True):
        raise ValueError(
            "client= of a task that blocks other tasks on its worker: fit in "
            "`with distributed.worker_client() as client:`."
        )
    if client.asynchronous:
        raise ValueError(f"client={client!r} is asynchronous: pass a synchronous Client.")
    return client


def preflight(
    pool: WorkerPool, store: str = "", mark: tuple[int, ...] = (), probe_file: str = "",
    token: str = "",
) -> dict[str, WorkerInfo]:  # fmt: skip
    """Query all workers; leave out those that cannot take part."""
    end = time.monotonic() + min(_LOOKS_FOR, pool.retry.workers)
    for attempt in count(1):
        answers = pool.each(probe, store, mark, probe_file, token)
        unfit = {worker: _unfit(info) for worker, info in answers.items()}
        silent = any(isinstance(info, OSError) for info in answers.values())
        if not all(unfit.values()) or not silent:
            break
        if attempt >= pool.retry.attempts and time.monotonic() > end:
            break
        # new workers need time for imports, and dead workers stay listed for a while
        time.sleep(min(2.0, pool.retry.workers / 4))
    infos, reasons = {}, []
    for worker, info in answers.items():
        why = unfit[worker]
        if not why:
            infos[worker] = info
            continue
        # a worker that merely did not answer in time may answer later
        if isinstance(info, OSError):
            reasons.append(f"worker {worker} does not answer yet: {why}")
        else:
            reasons.append(f"a worker is left out: {worker}: {why}")
            pool.excluded.add(worker)
    if not infos:
        raise NoWorkersError(f"no worker can take part. {'; '.join(reasons)}")
    for reason in reasons:
        warn_caller(reason)
    return infos


def _unfit(info: Any) -> str:
    """Return why a worker cannot be used; empty if it would compute like this process."""
    if not isinstance(info, WorkerInfo):
        return f"{type(info).__name__}: {info}"
    if info.version != package_version():
        return f"it has nmfscale {info.version}, and this is {package_version()}"
    # the logarithm depends on the machine
    if info.machine != platform.machine():
        return f"it is a machine of type {info.machine}, and this of {platform.machine()}"
    return ""


def common_level(infos: dict[str, WorkerInfo]) -> str:
    """Return the lowest instruction set of this process and all workers."""
    have = [kernels.available_levels(), *(info.levels for info in infos.values())]
    same = [[name for name in levels if name != "baseline"] for levels in have]
    return same[0][0] if all(same) else "baseline"


def threads_of_task(pool: WorkerPool, infos: dict[str, WorkerInfo], asked: int | None) -> int:
    """Return the kernel threads of a task, so that a host uses each processor once."""
    if asked is not None:
        return resolve_threads(asked)
    tasks: Counter[str] = Counter()
    for worker, n_tasks in pool.wait_for_workers().items():
        if worker in infos:
            tasks[infos[worker].host] += n_tasks
    here = [info for info in infos.values() if tasks[info.host]]
    return min((max(1, info.processors // tasks[info.host]) for info in here), default=1)
