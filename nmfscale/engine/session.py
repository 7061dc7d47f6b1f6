"""The session of a fit on a cluster: a pool of workers, their settings, a folder for files."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import kernels
from ..cluster.pool import WorkerPool
from ..cluster.tasks import RetryPolicy, UnfitWorkerError
from ..counts.base import CountMatrix
from ..counts.blocks import cut_blocks
from ..storage.locks import FileInUseError, FileLock
from ..storage.store import StoredCounts
from ..storage.store_writer import pack
from ..storage.version import package_version
from ..terminal import print_message
from .caches import forget_run
from .checkpoint import folder_in_use, recorded_level
from .lineage import fetch
from .partition import TaskSizes, task_sizes_within
from .protocol import Needs
from .remote import DaskExecutor
from .threads import resolve_threads
from .worker import RunConfig, take_level
from .workers import WorkerInfo, common_level, preflight, threads_of_task

# Prefix of folders that are deleted when the fit ends.
_PREFIX = ".nmfscale-"
# Size of a worker's cache of arrays: a share of its memory limit, or bytes if it has none.
REMEMBERED, _REMEMBERED_BYTES = 0.15, 1 << 30
# Row arrays larger than this are not saved in every run.
_SAVE_ALWAYS, _SAVE_EVERY = 1 << 30, 10


class ClusterSession:
    """A pool, the settings that its tasks share, and the folder of the driver."""

    def __init__(
        self, pool: WorkerPool, config: RunConfig, folder: Path, tasks: TaskSizes, save_every: int,
        loadings_bytes: int,
    ):  # fmt: skip
        self.pool, self.config, self.folder = pool, config, folder
        self.tasks, self.save_every, self.loadings_bytes = tasks, save_every, loadings_bytes
        self._n_executors = 0

    def executor(self, counts: StoredCounts, n_threads: int) -> DaskExecutor:
        """Return an executor for one start of a fit, and delete the files of the previous one."""
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
            counts, self.pool, config, folder, self.tasks.partition_size, self.tasks.least_branch,
            self.save_every, n_threads, self.loadings_bytes,
        )  # fmt: skip
        self.pool.forget_all(but="counts-")
        return executor


@contextmanager
def open_session(
    client: Any, counts: StoredCounts, needs: Needs, *, n_threads: int | None = None,
    folder: str | None = None, level: str | None = None, retry: RetryPolicy | None = None,
    save_every: int | None = None, hint: str = "", verbose: int = 0,
) -> Iterator[ClusterSession]:  # fmt: skip
    """Query the workers of a client, and make a folder for the files of a fit.

    A task has `n_threads`, by default the number with which a host uses each processor once.
    Workers that can access `folder`, by default the system's temporary folder, read and write
    there. `level` is by default the lowest of the driver and all workers; `hint` is the advice in
    error messages on how to resume the fit. Raise MemoryLimitError if workers have too little
    memory.
    """
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}run-", dir=folder))
    before = kernels.level()
    pool = WorkerPool(client, partial(fetch, counts.layout()), retry, hint)
    try:
        with pool.working():
            infos = _preflight_of_fit(pool, counts, place)
            config = _run_config(pool, infos, counts, place, level, n_threads)
            take_level(config.level)
            limits = {worker: info.memory for worker, info in infos.items()}
            tasks = task_sizes_within(
                limits, pool.wait_for_workers(), config, counts.layout(), needs
            )
            config = replace(config, counts_memory=tasks.counts_memory)
            loadings_bytes = counts.shape[0] * needs.saved_row
            if save_every is None:
                save_every = 1 if loadings_bytes <= _SAVE_ALWAYS else _SAVE_EVERY
            if verbose:
                print_message(_summary(infos, config))
            yield ClusterSession(pool, config, place, tasks, save_every, loadings_bytes)
    finally:
        pool.tell_all(forget_run, pool.run_name)
        shutil.rmtree(place, ignore_errors=True)
        kernels.use_level(before)


def _run_config(
    pool: WorkerPool, infos: dict[str, WorkerInfo], counts: StoredCounts, place: Path,
    level: str | None, n_threads: int | None,
) -> RunConfig:  # fmt: skip
    """Return the settings that all tasks share, based on the properties of workers."""
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
        memory=int(REMEMBERED * min(limits)) if limits else _REMEMBERED_BYTES,
    )


@contextmanager
def session_of_fit(
    client: Any, counts: CountMatrix, needs: Needs, *, checkpoint: Any = None,
    resume: bool = False, n_threads: int | None = None, verbose: int = 0,
    hint: str = "With checkpoint= a fit can be resumed.",
) -> Iterator[tuple[CountMatrix, ClusterSession | None]]:  # fmt: skip
    """Yield the counts for a fit or a `RowsPass`, and the session.

    The session is None if the work is done in this process. Without a checkpoint, `hint` ends the
    messages of errors that stop the work.
    """
    with ExitStack() as stack:
        folder = None
        if checkpoint is not None:
            folder = stack.enter_context(folder_in_use(checkpoint, left=f"{_PREFIX}*"))
            hint = f"Fit with resume=True to continue from the checkpoint in {folder}."
        level = recorded_level(folder) if resume else None
        if client is not None and len(cut_blocks(counts.row_nnz)) == 2:
            client = None
            if verbose:
                print_message("counts of a single block stay in this process")
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
    """Make a temporary folder, and delete those left by killed processes of this machine."""
    temporary = Path(tempfile.gettempdir())
    for left in temporary.glob(f"{_PREFIX}fit-*"):
        if left.is_dir():
            with suppress(FileInUseError), FileLock(Path(f"{left}.lock")) as alone:
                if alone:
                    shutil.rmtree(left, ignore_errors=True)
    place = temporary / f"{_PREFIX}fit-{secrets.token_hex(8)}"
    # locked before it appears, so that no other process deletes it as a leftover
    with FileLock(Path(f"{place}.lock")):
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _at_level(level: str | None) -> Iterator[None]:
    """Use an instruction set within this context if this processor supports it."""
    before = kernels.level()
    try:
        if level is not None:
            with suppress(UnfitWorkerError):  # the mismatch raises an error later
                take_level(level)
        yield
    finally:
        kernels.use_level(before)


def _preflight_of_fit(pool: WorkerPool, counts: StoredCounts, place: Path) -> dict[str, WorkerInfo]:
    """Query the abilities of all workers, and whether they can read the files of the fit."""
    token = secrets.token_hex(16)
    (place / "probe").write_text(token)
    file = counts.layout().file
    return preflight(pool, str(file.path.resolve()), file.mark, str(place / "probe"), token)


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
