"""Where a fit on a cluster takes place: a folder for its files, and what its workers can do."""

from __future__ import annotations

import platform
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from .. import kernels
from ..cluster.pool import WorkerPool, active_client, in_task, worker_memory
from ..cluster.tasks import NoWorkersError, RetryPolicy, UnfitWorkerError
from ..counts.base import CountMatrix
from ..counts.blocks import cut_blocks
from ..counts.warn import warn_caller
from ..storage.atomic import FileInUseError, FileLock, file_id
from ..storage.store import StoredCounts
from ..storage.store_writer import pack
from ..storage.version import package_version
from .checkpoint import folder_in_use, recorded_level
from .partition import partition_size_within
from .protocol import Needs
from .remote import DaskExecutor
from .threads import available_processors, resolve_threads
from .worker import RunConfig, forget_run, take_level

# Of folders that go when the fit ends.
_PREFIX = ".nmfscale-"
# Seconds in which workers of a cluster that is restarting may begin to answer.
_LOOKS_FOR = 30.0
# Recent arrays that a worker need not read again, as a share of its memory or where it has none.
_REMEMBERED, _REMEMBERED_BYTES = 0.15, 1 << 30
# Row arrays larger than this are not saved every time.
_SAVE_ALWAYS, _SAVE_EVERY = 1 << 30, 10


class WorkerInfo(NamedTuple):
    """What a worker says of itself."""

    version: str
    levels: list[str]
    host: str
    processors: int
    memory: int | None
    sees_store: bool
    sees_folder: bool
    machine: str = ""  # unknown to versions before


def probe(store: str, mark: tuple[int, ...], probe_file: str, token: str) -> WorkerInfo:
    """Say on a worker what it is and whether it sees the files of the fit."""
    return WorkerInfo(
        package_version(), kernels.available_levels(), socket.gethostname(),
        available_processors(), worker_memory(),
        _seen(lambda: file_id(Path(store).stat())) == mark,
        _seen(Path(probe_file).read_text) == token, platform.machine(),
    )  # fmt: skip


def _seen(look: Callable[[], Any]) -> Any:
    """Return what is found in a file; None if this machine does not see it."""
    try:
        return look()
    except OSError:
        return None


class ClusterSession:
    """A pool, what its tasks have in common, and the folder of the driver."""

    def __init__(
        self, pool: WorkerPool, config: RunConfig, folder: Path, partition_size: int,
        save_every: int,
    ):  # fmt: skip
        self.pool, self.config, self.folder = pool, config, folder
        self.partition_size, self.save_every = partition_size, save_every
        self._n_executors = 0

    def executor(self, counts: StoredCounts, n_threads: int) -> DaskExecutor:
        """Return an executor for one start of a fit; the files of the one before go."""
        shutil.rmtree(self.folder / str(self._n_executors), ignore_errors=True)
        self._n_executors += 1
        name = str(self._n_executors)
        folder = self.folder / name
        folder.mkdir()
        config = replace(
            self.config,
            run=f"{self.config.run}-{name}",
            folder=self.config.folder and str(folder),
        )
        executor = DaskExecutor(
            counts, self.pool, config, folder, self.partition_size, self.save_every, n_threads
        )
        self.pool.fetch = executor.fetch
        self.pool.forget_all(but="counts-")
        return executor


@contextmanager
def open_session(
    client: Any, counts: StoredCounts, needs: Needs, *, n_threads: int | None = None,
    folder: str | None = None, level: str | None = None, retry: RetryPolicy | None = None,
    save_every: int | None = None, hint: str = "", verbose: int = 0,
) -> Iterator[ClusterSession]:  # fmt: skip
    """Ask the workers of a client what they are, and make a folder for the files of a fit.

    A task has `n_threads`, by default those that give a host as many as it has processors. Workers
    that see `folder`, by default the system's temporary one, read and write there. `level` is by
    default the lowest that the driver and all workers have; `hint` says in messages how to take up
    the fit again. Workers with too little memory are a MemoryLimitError.
    """
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}run-", dir=folder))
    before = kernels.level()
    pool = WorkerPool(client, str, retry, hint)
    try:
        infos = _preflight_of_fit(pool, counts, place)
        config = _run_config(pool, infos, counts, place, level, n_threads)
        take_level(config.level)
        limits = {worker: info.memory for worker, info in infos.items()}
        size = partition_size_within(
            limits, pool.wait_for_workers(), config, counts.layout(), needs
        )
        # which is said of a block
        pool.retry = replace(pool.retry, task=pool.retry.task * size)
        if save_every is None:
            save_every = 1 if counts.shape[0] * needs.saved_row <= _SAVE_ALWAYS else _SAVE_EVERY
        if verbose:
            print(_summary(infos, config), file=sys.stderr)
        yield ClusterSession(pool, config, place, size, save_every)
    finally:
        pool.forget_all()
        pool.tell_all(forget_run, pool.run_name)
        shutil.rmtree(place, ignore_errors=True)
        kernels.use_level(before)


def _run_config(
    pool: WorkerPool, infos: dict[str, WorkerInfo], counts: StoredCounts, place: Path,
    level: str | None, n_threads: int | None,
) -> RunConfig:  # fmt: skip
    """Return what all tasks have in common, by what the workers said of themselves."""
    layout = counts.layout()
    limits = [info.memory for info in infos.values() if info.memory]
    store = str(layout.path), str(layout.count_dtype), layout.file.mark
    return RunConfig(
        run=pool.run_name,
        version=package_version(),
        store=store if all(info.sees_store for info in infos.values()) else None,
        folder=str(place) if all(info.sees_folder for info in infos.values()) else None,
        n_threads=threads_of_task(pool, infos, n_threads),
        level=level or common_level(infos),
        memory=int(_REMEMBERED * min(limits)) if limits else _REMEMBERED_BYTES,
    )


def client_of_fit(client: Any, refusal: str | None) -> Any:
    """Return the client given, or the one that is active.

    `refusal` says why the method of the fit cannot do without whole columns of the counts, if so:
    then None is returned, and a client that was given is a ValueError.
    """
    if client is None:
        return active_client() if refusal is None else None
    if not hasattr(client, "submit") or not hasattr(client, "scheduler"):
        raise ValueError(
            f"client={client!r} is no distributed.Client: pass Client(...), made of the cluster or "
            "its address."
        )
    if refusal is not None:
        raise ValueError(f"client= cannot be used: {refusal}.")
    if client.status in ("closed", "closing"):
        raise ValueError(f"client={client!r} is closed: pass a Client that is connected.")
    if in_task(of_pool=True):
        raise ValueError(
            "client= of a task that keeps others from its worker: fit in "
            "`with distributed.worker_client() as client:`."
        )
    if client.asynchronous:
        raise ValueError(f"client={client!r} is asynchronous: pass a synchronous Client.")
    return client


@contextmanager
def session_of_fit(
    client: Any, counts: CountMatrix, needs: Needs, *, checkpoint: Any = None,
    resume: bool = False, n_threads: int | None = None, verbose: int = 0,
) -> Iterator[tuple[CountMatrix, ClusterSession | None]]:  # fmt: skip
    """Give the counts as a fit needs them, and the session; None where it is this process."""
    with ExitStack() as stack:
        folder, hint = None, "With checkpoint= a fit can be resumed."
        if checkpoint is not None:
            folder = stack.enter_context(folder_in_use(checkpoint, left=f"{_PREFIX}*"))
            hint = f"Fit with resume=True to go on from the checkpoint in {folder}."
        level = recorded_level(folder) if resume else None
        if client is not None and len(cut_blocks(counts.row_nnz)) == 2:
            client = None
            if verbose:
                print("counts of a single block are fitted in this process", file=sys.stderr)
        if client is None:
            stack.enter_context(_at_level(level))
            yield counts, None
            return
        place_of_files = str(folder or stack.enter_context(_scratch()))
        if not isinstance(counts, StoredCounts):
            place = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}counts-", dir=place_of_files)
            store = Path(stack.enter_context(place), "counts.nmf")
            pack(counts, store, n_threads=resolve_threads(n_threads))
            counts = StoredCounts(store)
        session = open_session(
            client, counts, needs, n_threads=n_threads, folder=place_of_files, level=level,
            hint=hint, verbose=verbose,
        )  # fmt: skip
        yield counts, stack.enter_context(session)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a temporary folder; those of processes that were killed on this machine go."""
    temporary = Path(tempfile.gettempdir())
    for left in temporary.glob(f"{_PREFIX}fit-*"):
        if left.is_dir():
            with suppress(FileInUseError), FileLock(Path(f"{left}.lock")) as alone:
                if alone:
                    shutil.rmtree(left, ignore_errors=True)
    place = temporary / f"{_PREFIX}fit-{secrets.token_hex(8)}"
    # locked before it is there, so that no other process takes it for left
    with FileLock(Path(f"{place}.lock")):
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _at_level(level: str | None) -> Iterator[None]:
    """Use an instruction set inside, if this processor has it."""
    before = kernels.level()
    try:
        if level is not None:
            with suppress(UnfitWorkerError):  # the checkpoint will say that it does not agree
                take_level(level)
        yield
    finally:
        kernels.use_level(before)


def _preflight_of_fit(pool: WorkerPool, counts: StoredCounts, place: Path) -> dict[str, WorkerInfo]:
    """Ask all workers what they can do, and whether they see the files of the fit."""
    token = secrets.token_hex(16)
    (place / "probe").write_text(token)
    file = counts.layout().file
    return preflight(pool, str(file.path.resolve()), file.mark, str(place / "probe"), token)


def preflight(
    pool: WorkerPool, store: str = "", mark: tuple[int, ...] = (), probe_file: str = "",
    token: str = "",
) -> dict[str, WorkerInfo]:  # fmt: skip
    """Ask all workers what they can do; those that cannot take part are left out."""
    end = time.monotonic() + min(_LOOKS_FOR, pool.retry.workers)
    for attempt in count(1):
        found = pool.each(probe, store, mark, probe_file, token)
        unfit = {worker: _unfit(info) for worker, info in found.items()}
        silent = any(isinstance(info, OSError) for info in found.values())
        if not all(unfit.values()) or not silent:
            break
        if attempt >= pool.retry.attempts and time.monotonic() > end:
            break
        # workers that begin import for a while, and those that died are listed for a while
        time.sleep(min(2.0, pool.retry.workers / 4))
    infos, reasons = {}, []
    for worker, info in found.items():
        why = unfit[worker]
        if not why:
            infos[worker] = info
            continue
        # one that only did not result in time, or died, may do so later
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
    """Say why a worker is of no use; nothing if it would compute as this process does."""
    if not isinstance(info, WorkerInfo):
        return f"{type(info).__name__}: {info}"
    if info.version != package_version():
        return f"it has nmfscale {info.version}, and this is {package_version()}"
    # each has a logarithm of its own
    if info.machine != platform.machine():
        return f"it is a machine of type {info.machine}, and this of {platform.machine()}"
    return ""


def common_level(infos: dict[str, WorkerInfo]) -> str:
    """Return the lowest instruction set that this process and all workers have."""
    have = [kernels.available_levels(), *(info.levels for info in infos.values())]
    return "baseline" if min(map(len, have)) == 1 else "avx2"


def threads_of_task(pool: WorkerPool, infos: dict[str, WorkerInfo], asked: int | None) -> int:
    """Kernel threads of a task, so that a host has as many as it has processors."""
    if asked is not None:
        return resolve_threads(asked)
    tasks: Counter[str] = Counter()
    for worker, n_tasks in pool.wait_for_workers().items():
        if worker in infos:
            tasks[infos[worker].host] += n_tasks
    here = [info for info in infos.values() if tasks[info.host]]
    return min((max(1, info.processors // tasks[info.host]) for info in here), default=1)


def _summary(infos: dict[str, WorkerInfo], config: RunConfig) -> str:
    hosts = len({info.host for info in infos.values()})
    counts = "read from the store" if config.store else "sent by this process"
    arrays = "in files" if config.folder else "sent back and forth"
    return (
        f"{_several(len(infos), 'worker')} on {_several(hosts, 'host')}, "
        f"{_several(config.n_threads, 'thread')} each, {config.level}: counts {counts}, "
        f"row arrays {arrays}"
    )


def _several(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
