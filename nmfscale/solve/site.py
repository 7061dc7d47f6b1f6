"""Where a fit on a cluster takes place: a folder for its files, and what its workers can do."""

from __future__ import annotations

import secrets
import shutil
import socket
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.block_file import mark_of
from ..data.jobs import NoWorkersError, Patience, UnfitWorkerError
from ..data.layout import cut_blocks
from ..data.packing import pack
from ..data.store import StoredCounts
from ..data.table import CountTable
from ..data.whole_file import package_version
from ..data.workers import Crew, active_client, worker_memory
from ..kernels import rows as kernels
from .accelerated import SHARED_FROM
from .checkpoint import recorded_level
from .cluster import MOST_GROUPS, RemoteRows, group_size
from .factor import LANES, Array, Held
from .memory import MemoryLimitError, readable
from .projection import design_of
from .tasks import Setting, take_level
from .threads import available_processors, resolve_threads
from .visits import FAN_IN

# Of folders that go when the fit ends.
_PREFIX = ".nmfscale-"
# Of what a worker may hold, so much is used: Dask slows it down beyond.
_SHARE = 0.6
# Python and its libraries.
_WORKER_BYTES = 250 << 20
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


def look(store: str, mark: tuple[int, ...], probe: str, token: str) -> Sight:
    """Say on a worker what it is and whether it sees the files of the fit."""
    return Sight(
        package_version(), kernels.available_levels(), socket.gethostname(),
        available_processors(), worker_memory(), _mark(store) == mark, _text(probe) == token,
    )  # fmt: skip


def _mark(path: str) -> tuple[int, ...] | None:
    try:
        return mark_of(Path(path).stat())
    except OSError:
        return None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


class Site:
    """A crew, what its tasks have in common, and the folder of the driver."""

    def __init__(self, crew: Crew, setting: Setting, folder: Path, save_every: int):
        self.crew, self.setting, self.folder, self.save_every = crew, setting, folder, save_every
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
        rows = RemoteRows(counts, L, dtype, held, self.crew, setting, folder, self.save_every)
        self.crew.fetch = rows.fetch
        self.crew.forget_all(but="counts-")
        return rows

    def project_rows(self, counts: Any, F: Array, *, L: Array, n_steps: int, dtype: Any) -> Array:
        """Return loadings (n, K) a few steps from L, with the factors F (m, K) held."""
        design, total = design_of(F, counts.layout().column_order, np.dtype(dtype))
        return self.rows(counts, L, dtype, Held()).project(design, total, n_steps)


@contextmanager
def open_site(
    client: Any, counts: StoredCounts, n_components: int, *, n_threads: int | None = None,
    folder: str | None = None, level: str | None = None, patience: Patience | None = None,
    save_every: int | None = None, remedy: str = "", verbose: int = 0,
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
    patience : Patience, optional
    save_every : int, optional
        Of so many visits of the rows, the loadings after the first two are saved.
    remedy : str, default=""
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
    crew = Crew(client, str, patience, remedy)
    try:
        sights = _survey(crew, counts, place)
        layout = counts.layout()
        have = [kernels.available_levels(), *(sight.levels for sight in sights.values())]
        if level is None:
            level = "baseline" if min(map(len, have)) == 1 else "avx2"
        take_level(level)
        loadings = counts.shape[0] * kernels.row_stride(n_components) * 8
        if save_every is None:
            save_every = 1 if loadings <= _SAVE_ALWAYS else _SAVE_EVERY
        limits = [sight.memory for sight in sights.values() if sight.memory]
        setting = Setting(
            crew.run_name,
            package_version(),
            (str(layout.path), str(layout.count_dtype), layout.file.mark)
            if all(sight.sees_store for sight in sights.values())
            else None,
            str(place) if all(sight.sees_folder for sight in sights.values()) else None,
            n_components,
            _threads(crew, sights, n_threads),
            group_size(len(layout.blocks), sum(crew.wait_for_workers().values())),
            level,
            int(_REMEMBERED * min(limits)) if limits else _REMEMBERED_BYTES,
        )
        setting = _sized(crew, sights, setting, layout)
        # which is said of a block
        task = crew.patience.task * setting.group_size
        crew.patience = replace(crew.patience, task=task)
        if verbose:
            print(_summary(sights, setting), file=sys.stderr)
        yield Site(crew, setting, place, save_every)
    finally:
        crew.forget_all()
        shutil.rmtree(place, ignore_errors=True)
        kernels.use_level(before)


def client_of_fit(client: Any, solver: str) -> Any:
    """Return the client given, or the one that is active; None if the solver has no use for it."""
    if client is None:
        return active_client() if solver == "auto" else None
    if not hasattr(client, "submit") or not hasattr(client, "scheduler"):
        raise ValueError(f"client={client!r} is no distributed.Client.")
    if solver != "auto":
        raise ValueError(f"client= goes with solver='auto', not {solver!r}.")
    return client


@contextmanager
def site_of_fit(
    client: Any, counts: CountTable, n_components: int, *, checkpoint: Any = None,
    resume: bool = False, n_threads: int | None = None, verbose: int = 0,
) -> Iterator[tuple[CountTable, Site | None]]:  # fmt: skip
    """Give the counts as a fit needs them, and the site; None where it is this process."""
    level = recorded_level(checkpoint) if resume else None
    if resume and checkpoint is not None:
        for left in Path(checkpoint).glob(f"{_PREFIX}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
    if client is not None and len(cut_blocks(counts.row_nnz)) == 2:
        client = None
        if verbose:
            print("counts of a single block are fitted in this process", file=sys.stderr)
    if client is None:
        with _at_level(level):
            yield counts, None
        return
    remedy, folder = "With checkpoint= a fit can be resumed.", None
    if checkpoint is not None:
        folder = str(Path(checkpoint).resolve())
        Path(folder).mkdir(parents=True, exist_ok=True)
        remedy = f"Fit with resume=True to go on from the checkpoint in {folder}."
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}counts-", dir=folder) as place:
        if not isinstance(counts, StoredCounts):
            pack(counts, Path(place, "counts.nmf"), n_threads=resolve_threads(n_threads))
            counts = StoredCounts(Path(place, "counts.nmf"))
        with open_site(
            client, counts, n_components, n_threads=n_threads, folder=folder, level=level,
            remedy=remedy, verbose=verbose,
        ) as site:  # fmt: skip
            yield counts, site


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


def _survey(crew: Crew, counts: StoredCounts, place: Path) -> dict[str, Sight]:
    """Ask all workers what they can do; those that cannot take part are left out."""
    token = secrets.token_hex(16)
    (place / "probe").write_text(token)
    file = counts.layout().file
    for _ in range(crew.patience.attempts):
        found = crew.each(look, str(file.path.resolve()), file.mark, str(place / "probe"), token)
        if not all(isinstance(sight, OSError) for sight in found.values()):
            break
    sights, reasons = {}, []
    for worker, sight in found.items():
        if isinstance(sight, Sight) and sight.version == package_version():
            sights[worker] = sight
            continue
        why = f"{type(sight).__name__}: {sight}"
        if isinstance(sight, Sight):
            why = f"it has nmfscale {sight.version}, and this is {package_version()}"
        # one that only did not answer in time, or died, may do so later
        if isinstance(sight, OSError):
            reasons.append(f"worker {worker} does not answer yet: {why}")
        else:
            reasons.append(f"a worker is left out: {worker}: {why}")
            crew.unfit.add(worker)
    if not sights:
        raise NoWorkersError(f"no worker can take part. {'; '.join(reasons)}")
    for reason in reasons:
        warnings.warn(reason, stacklevel=4)
    return sights


def _threads(crew: Crew, sights: dict[str, Sight], asked: int | None) -> int:
    """Kernel threads of a task, so that a host has as many as it has processors."""
    if asked is not None:
        return resolve_threads(asked)
    tasks: Counter[str] = Counter()
    for worker, n_tasks in crew.wait_for_workers().items():
        if worker in sights:
            tasks[sights[worker].host] += n_tasks
    here = [sight for sight in sights.values() if tasks[sight.host]]
    return min((max(1, sight.processors // tasks[sight.host]) for sight in here), default=1)


def _sized(crew: Crew, sights: dict[str, Sight], setting: Setting, layout: Any) -> Setting:
    """Make tasks as small as workers need; refuse what they cannot hold before any work starts."""
    slots, size = crew.workers(), setting.group_size
    per_task = _task_bytes(setting, layout)
    for worker, sight in sights.items():
        if sight.memory is None:
            continue
        need = _WORKER_BYTES + slots.get(worker, 1) * per_task + setting.memory
        if setting.store is None:
            need += layout.nbytes // len(sights)
        if need <= _SHARE * sight.memory:
            continue
        if size > 1 and len(layout.blocks) * FAN_IN <= size * MOST_GROUPS:
            return _sized(crew, sights, replace(setting, group_size=size // FAN_IN), layout)
        raise MemoryLimitError(
            f"worker {worker} may hold {readable(sight.memory)}, and the fit needs workers of "
            f"{readable(need / _SHARE)} ({int(need / _SHARE):,} bytes): start them with more "
            "memory or fewer threads, or fit fewer components."
        )
    return setting


def _task_bytes(setting: Setting, layout: Any) -> int:
    """Bytes that a task holds: a block, loadings of all of its blocks, sums and factors."""
    largest: int = layout.buffer_bytes // 2
    K, stride = setting.n_components, kernels.row_stride(setting.n_components)
    lanes = setting.group_size * max(block.last - block.first for block in layout.blocks)
    columns, own = -(-layout.shape[1] // LANES) * LANES, K < SHARED_FROM
    wanted = kernels.SUM_FULL if own else kernels.SUM_DIAGONAL
    sums = columns * 8 * kernels.statistics_size(K, wanted)
    # two points, where they lead, what was there before; the same of priors; curvature
    rows = lanes * (8 * stride * 8 + own * kernels.kept_size(K) * 4)
    return largest + rows + (1 + FAN_IN) * sums + 3 * columns * stride * 8


def _summary(sights: dict[str, Sight], setting: Setting) -> str:
    hosts = len({sight.host for sight in sights.values()})
    counts = "read from the store" if setting.store else "sent by this process"
    loadings = "in files" if setting.folder else "sent back and forth"
    return (
        f"{len(sights)} workers on {hosts} hosts, {setting.n_threads} threads each, "
        f"{setting.level}: counts {counts}, loadings {loadings}"
    )
