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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from ..cluster.pool import WorkerPool, active_client, in_task, worker_memory
from ..cluster.tasks import NoWorkersError, RetryPolicy, UnfitWorkerError
from ..counts.base import CountMatrix
from ..counts.blocks import cut_blocks
from ..counts.warn import warn_caller
from ..methods.factors import Array, Held
from ..methods.transform import design_of
from ..storage.atomic import file_id, file_lock
from ..storage.store import StoredCounts
from ..storage.store_writer import pack
from ..storage.version import package_version
from .checkpoint import folder_in_use, recorded_level
from .partition import group_size_within
from .remote import RemoteRows
from .threads import available_processors, resolve_threads
from .worker import Setting, forget_run, take_level

# Of folders that go when the fit ends.
_PREFIX = ".nmfscale-"
# Seconds in which workers of a cluster that is restarting may come to result.
_LOOKS_FOR = 30.0
# Recent points that a worker need not read again, as a share of its memory or where it has none.
_REMEMBERED, _REMEMBERED_BYTES = 0.15, 1 << 30
# A dataset of loadings larger than this is not saved at every visit.
_SAVE_ALWAYS, _SAVE_EVERY = 1 << 30, 10


class Sight(NamedTuple):
    """What a worker says of itself."""

    version: str
    levels: list[str]
    host: str
    processors: int
    memory: int | None
    sees_store: bool
    sees_folder: bool
    machine: str = ""  # unknown to versions before


def look(store: str, mark: tuple[int, ...], probe: str, token: str) -> Sight:
    """Say on a worker what it is and whether it sees the files of the fit."""
    return Sight(
        package_version(), kernels.available_levels(), socket.gethostname(),
        available_processors(), worker_memory(), _mark(store) == mark, _text(probe) == token,
        platform.machine(),
    )  # fmt: skip


def _mark(path: str) -> tuple[int, ...] | None:
    try:
        return file_id(Path(path).stat())
    except OSError:
        return None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


class Site:
    """A pool, what its tasks have in common, and the folder of the driver."""

    def __init__(
        self, pool: WorkerPool, setting: Setting, folder: Path, group_size: int, save_every: int
    ):
        self.pool, self.setting, self.folder = pool, setting, folder
        self.group_size, self.save_every = group_size, save_every
        self._n_rows = 0

    def rows(self, counts: Any, L: Array, dtype: Any, held: Held) -> RemoteRows:
        """Return the rows of a fit; those of the one before go."""
        shutil.rmtree(self.folder / str(self._n_rows), ignore_errors=True)
        self._n_rows += 1
        name = str(self._n_rows)
        folder = self.folder / name
        folder.mkdir()
        setting = replace(
            self.setting,
            run=f"{self.setting.run}-{name}",
            folder=self.setting.folder and str(folder),
        )
        rows = RemoteRows(
            counts, L, dtype, held, self.pool, setting, folder, self.group_size, self.save_every
        )
        self.pool.fetch = rows.fetch
        self.pool.forget_all(but="counts-")
        return rows

    def project_rows(self, counts: Any, F: Array, *, L: Array, n_steps: int, dtype: Any) -> Array:
        """Return loadings (n, K) a few steps from L, with the factors F (m, K) held."""
        design, total = design_of(F, counts.layout().column_order, np.dtype(dtype))
        return self.rows(counts, L, dtype, Held()).project(design, total, n_steps)


@contextmanager
def open_site(
    client: Any, counts: StoredCounts, n_components: int, *, n_threads: int | None = None,
    folder: str | None = None, level: str | None = None, retry: RetryPolicy | None = None,
    save_every: int | None = None, hint: str = "", verbose: int = 0,
) -> Iterator[Site]:  # fmt: skip
    """Look at the workers of a client and make a place for the files of a fit.

    Parameters
    ----------
    client : distributed.Client
    counts : StoredCounts
    n_components : int
    n_threads : int, optional
        Kernel threads of a task; by default the processors of a host by the tasks that its workers
        do at a time.
    folder : str, optional
        Where files are kept meanwhile; workers that see it read and write there. By default the
        system's temporary folder.
    level : {"baseline", "avx2"}, optional
        Instruction set; by default the lowest that the driver and all workers have.
    retry : RetryPolicy, optional
    save_every : int, optional
        Of so many visits of the rows, the loadings after the first two are saved.
    hint : str, default=""
        For messages: how to take up the fit again.
    verbose : int, default=0

    Yields
    ------
    Site

    Raises
    ------
    ClusterError
        If there are no workers, or none that can do it.
    MemoryLimitError
        If workers have too little memory.
    """
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}run-", dir=folder))
    before = kernels.level()
    pool = WorkerPool(client, str, retry, hint)
    try:
        sights = _survey(pool, counts, place)
        setting = _setting(pool, sights, counts, n_components, place, level, n_threads)
        take_level(setting.level)
        limits = {worker: sight.memory for worker, sight in sights.items()}
        size = group_size_within(limits, pool.wait_for_workers(), setting, counts.layout())
        # which is said of a block
        pool.retry = replace(pool.retry, task=pool.retry.task * size)
        if save_every is None:
            loadings = counts.shape[0] * kernels.row_stride(n_components) * 8
            save_every = 1 if loadings <= _SAVE_ALWAYS else _SAVE_EVERY
        if verbose:
            print(_summary(sights, setting), file=sys.stderr)
        yield Site(pool, setting, place, size, save_every)
    finally:
        pool.forget_all()
        pool.tell_all(forget_run, pool.run_name)
        shutil.rmtree(place, ignore_errors=True)
        kernels.use_level(before)


def _setting(
    pool: WorkerPool, sights: dict[str, Sight], counts: StoredCounts, n_components: int,
    place: Path, level: str | None, n_threads: int | None,
) -> Setting:  # fmt: skip
    """Return what all tasks have in common, by what the workers said of themselves."""
    layout = counts.layout()
    have = [kernels.available_levels(), *(sight.levels for sight in sights.values())]
    limits = [sight.memory for sight in sights.values() if sight.memory]
    store = str(layout.path), str(layout.count_dtype), layout.file.mark
    return Setting(
        run=pool.run_name,
        version=package_version(),
        store=store if all(sight.sees_store for sight in sights.values()) else None,
        folder=str(place) if all(sight.sees_folder for sight in sights.values()) else None,
        n_components=n_components,
        n_threads=_threads(pool, sights, n_threads),
        level=level or ("baseline" if min(map(len, have)) == 1 else "avx2"),
        memory=int(_REMEMBERED * min(limits)) if limits else _REMEMBERED_BYTES,
    )


def client_of_fit(client: Any, solver: str) -> Any:
    """Return the client given, or the one that is active; None if the solver has no use for it."""
    if client is None:
        return active_client() if solver == "auto" else None
    if not hasattr(client, "submit") or not hasattr(client, "scheduler"):
        raise ValueError(
            f"client={client!r} is no distributed.Client: pass Client(...), made of the cluster or "
            "its address."
        )
    if solver != "auto":
        raise ValueError(f"client= goes with solver='auto', not {solver!r}.")
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
def site_of_fit(
    client: Any, counts: CountMatrix, n_components: int, *, checkpoint: Any = None,
    resume: bool = False, n_threads: int | None = None, verbose: int = 0,
) -> Iterator[tuple[CountMatrix, Site | None]]:  # fmt: skip
    """Give the counts as a fit needs them, and the site; None where it is this process."""
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
        affinity = str(folder or stack.enter_context(_scratch()))
        if not isinstance(counts, StoredCounts):
            place = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}counts-", dir=affinity)
            store = Path(stack.enter_context(place), "counts.nmf")
            pack(counts, store, n_threads=resolve_threads(n_threads))
            counts = StoredCounts(store)
        site = open_site(
            client, counts, n_components, n_threads=n_threads, folder=affinity, level=level,
            hint=hint, verbose=verbose,
        )  # fmt: skip
        yield counts, stack.enter_context(site)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a temporary folder; those of processes that were killed on this machine go."""
    affinity = Path(tempfile.gettempdir())
    for left in affinity.glob(f"{_PREFIX}fit-*"):
        if left.is_dir():
            with suppress(BlockingIOError), file_lock(Path(f"{left}.lock")) as alone:
                if alone:
                    shutil.rmtree(left, ignore_errors=True)
    place = affinity / f"{_PREFIX}fit-{secrets.token_hex(8)}"
    # locked before it is there, so that no other process takes it for left
    with file_lock(Path(f"{place}.lock")):
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


def _survey(pool: WorkerPool, counts: StoredCounts, place: Path) -> dict[str, Sight]:
    """Ask all workers what they can do; those that cannot take part are left out."""
    token = secrets.token_hex(16)
    (place / "probe").write_text(token)
    file = counts.layout().file
    end = time.monotonic() + min(_LOOKS_FOR, pool.retry.workers)
    for attempt in count(1):
        found = pool.each(look, str(file.path.resolve()), file.mark, str(place / "probe"), token)
        if not all(isinstance(sight, OSError) for sight in found.values()):
            break
        if attempt >= pool.retry.attempts and time.monotonic() > end:
            break
        # workers of a cluster that restarts are listed for a while after they died
        time.sleep(min(2.0, pool.retry.workers / 4))
    sights, reasons = {}, []
    for worker, sight in found.items():
        why = _unlike(sight) if isinstance(sight, Sight) else f"{type(sight).__name__}: {sight}"
        if not why:
            sights[worker] = sight
            continue
        # one that only did not result in time, or died, may do so later
        if isinstance(sight, OSError):
            reasons.append(f"worker {worker} does not answer yet: {why}")
        else:
            reasons.append(f"a worker is left out: {worker}: {why}")
            pool.excluded.add(worker)
    if not sights:
        raise NoWorkersError(f"no worker can take part. {'; '.join(reasons)}")
    for reason in reasons:
        warn_caller(reason)
    return sights


def _unlike(sight: Sight) -> str:
    """Say why a worker would not compute as this process does; nothing if it would."""
    if sight.version != package_version():
        return f"it has nmfscale {sight.version}, and this is {package_version()}"
    # each has a logarithm of its own
    if sight.machine != platform.machine():
        return f"it is a machine of type {sight.machine}, and this of {platform.machine()}"
    return ""


def _threads(pool: WorkerPool, sights: dict[str, Sight], asked: int | None) -> int:
    """Kernel threads of a task, so that a host has as many as it has processors."""
    if asked is not None:
        return resolve_threads(asked)
    tasks: Counter[str] = Counter()
    for worker, n_tasks in pool.wait_for_workers().items():
        if worker in sights:
            tasks[sights[worker].host] += n_tasks
    here = [sight for sight in sights.values() if tasks[sight.host]]
    return min((max(1, sight.processors // tasks[sight.host]) for sight in here), default=1)


def _summary(sights: dict[str, Sight], setting: Setting) -> str:
    hosts = len({sight.host for sight in sights.values()})
    counts = "read from the store" if setting.store else "sent by this process"
    loadings = "in files" if setting.folder else "sent back and forth"
    return (
        f"{_several(len(sights), 'worker')} on {_several(hosts, 'host')}, "
        f"{_several(setting.n_threads, 'thread')} each, {setting.level}: counts {counts}, "
        f"loadings {loadings}"
    )


def _several(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
