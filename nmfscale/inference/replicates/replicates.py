"""The engine of all resampling: numbered replicates in batches, in this process or on a cluster.

A replicate draws from its own child of the seed, so that results are the same to the bit for any
number of threads, batches and workers, and after an interrupted job is resumed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...cluster.pool import WorkerPool
from ...cluster.tasks import ClusterError, RetryPolicy, Task
from ...counts.names import shown
from ...engine.checkpoint import Checkpoint, CheckpointError, digest_of, folder_in_use
from ...engine.monitor import first_ctrl_c
from ...engine.threads import resolve_threads, single_blas_thread
from ...engine.worker import take_level
from ...engine.workers import WorkerInfo, common_level, preflight, resolve_client, threads_of_task
from ...terminal import print_message, progress_bar
from ..job import JobOptions, job_options
from .seeds import seed_of

Array = NDArray[Any]
# Target duration of a batch in seconds, and the largest growth from one batch to the next.
_BATCH_SECONDS, _GROWTH = 1.0, 16
# Shorter batches are a poor guide to the speed: the processor may have been busy elsewhere.
_LEAST_SECONDS = 0.25
_HINT = "With checkpoint= finished replicates are kept, and resume=True continues from them."
_HINT_OF_FOLDER = "Call again with resume=True to continue from the checkpoint in {}."


class ReplicateTask(ABC):
    """The work of one replicate of a job.

    It is pickled and sent to each worker once. What a worker computes once for all replicates
    belongs in a `counts.cached.cached_property`, which is kept in the process.
    """

    # name of replicates in the progress bar and the dashboard
    name: ClassVar[str] = "replicates"
    # seconds for each replicate after which a cluster retries a batch on another worker
    patience: float = 60.0

    @abstractmethod
    def about(self) -> Iterable[Any]:
        """Yield what determines the results; a job can be resumed only if it is the same."""

    @abstractmethod
    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return arrays with one row for each of these replicates, by name.

        Replicate r draws from `child(seed, r)` alone (`generator`, or `child_states` for a kernel).
        Results must be the same to the bit for any batch size and number of threads. Memory beyond
        the results must not grow with the number of replicates.
        """

    def smallest_batch(self, local: bool) -> int:
        """Return the smallest useful number of replicates in a batch, given the work they share.

        `local`: the batch runs in this process, not on a worker.
        """
        return 1

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the path and `file_id` of the file that every worker must read, or None."""
        return "", ()


@dataclass
class Replicates:
    """Finished replicates: their numbers in increasing order, and arrays with a row for each.

    `interrupted`: Ctrl-C ended the job before all requested replicates were done.
    """

    n_asked: int
    seed: SeedSequence
    done: NDArray[np.bool_]
    rows: dict[str, Array] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the finished replicates."""
        return np.flatnonzero(self.done)

    def __len__(self) -> int:
        """Return the number of finished replicates."""
        return int(np.count_nonzero(self.done))

    def __getitem__(self, name: str) -> Array:
        """Return an array of results with a row for each finished replicate."""
        rows = self.rows[name]
        return rows if self.done.all() else rows[self.done]

    def keep(self, first: int, arrays: dict[str, Array]) -> int:
        """Store the results of a batch; return its number of replicates."""
        size = 0
        for name, values in arrays.items():
            values = np.asarray(values)
            if name not in self.rows:
                self.rows[name] = np.zeros((self.n_asked, *values.shape[1:]), values.dtype)
            self.rows[name][first : first + len(values)] = values
            size = len(values)
        self.done[first : first + size] = True
        return size


@job_options
def run_replicates(
    task: ReplicateTask, n_replicates: int, *, batch_size: int | None = None,
    advance: Callable[[int], Any] | None = None, **options: Unpack[JobOptions],
) -> Replicates:  # fmt: skip
    """Run replicates 0 to n - 1 of a task, and return the finished ones in order.

    Batches have `batch_size` replicates, or as many as take about a second, judged by the first
    batches, unless replicates share their work. With a client (by default the active one, if any)
    batches are tasks of its cluster, and a worker that dies loses its batch only. `checkpoint` is a
    folder as in `fit`; a resumed job may ask for more replicates than before, and random_state=None
    continues with its old seed. Ctrl-C ends the job after the current batches and returns the
    finished replicates, or raises KeyboardInterrupt if there are none. `advance` is called with the
    number of replicates that were loaded, and of each batch, in place of a progress bar.
    """
    check_positive("the number of replicates", n_replicates)
    if batch_size is not None:
        check_positive("batch_size", batch_size)
    client, checkpoint = resolve_client(options["client"]), options["checkpoint"]
    with ExitStack() as stack:
        place = None
        if checkpoint is not None:
            folder = stack.enter_context(folder_in_use(checkpoint, left=".nmfscale-*"))
            about = {"task": task.name, "inputs": digest_of(*task.about())}
            every, resume = options["checkpoint_every"], options["resume"]
            place = Checkpoint(folder, about, every=every, resume=resume)
        job = _begin(n_replicates, options["random_state"], place)
        if advance is None:
            unit = f" {task.name.split()[-1]}"
            advance = stack.enter_context(
                progress_bar(job.n_asked, task.name, unit, options["verbose"], initial=len(job))
            )
        else:
            advance(len(job))
        stack.enter_context(first_ctrl_c(partial(_interrupt, job)))
        hint = _HINT if checkpoint is None else _HINT_OF_FOLDER.format(folder)
        run = _run_here if client is None else partial(_run_on, client, hint)

        def keep(first: int, arrays: dict[str, Array]) -> None:
            advance(job.keep(first, arrays))
            if place is not None and place.due():
                _save(job, place)

        try:
            sizes = _Sizes(batch_size, task.smallest_batch(local=client is None))
            run(task, job, sizes, options["n_threads"], keep)
        finally:
            if place is not None and place.saved != len(job):
                _save(job, place)
    if job.interrupted and not len(job):
        raise KeyboardInterrupt
    return job


def check_positive(name: str, value: Any) -> None:
    """Refuse a number of replicates that is not a positive integer."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {shown(value)}; a positive integer is needed.")


# Finished replicates and their checkpoint ------------------------------------------------------


def _begin(n: int, random_state: Any, place: Checkpoint | None) -> Replicates:
    """Return the replicates of the last checkpoint, or none."""
    checkpoint = None if place is None else place.load()
    job = Replicates(int(n), SeedSequence(0), np.zeros(n, bool))
    if checkpoint is None:
        job.seed = seed_of(random_state)
        return job
    numbers, arrays = checkpoint
    saved = SeedSequence(numbers["entropy"], spawn_key=tuple(numbers["spawn_key"]))
    job.seed = saved if random_state is None else seed_of(random_state)
    if (_entropy(job.seed), job.seed.spawn_key) != (_entropy(saved), saved.spawn_key):
        raise CheckpointError(
            f"{place and place.folder} holds replicates of random_state={saved.entropy}, and it is "
            f"{job.seed.entropy} now: give the same, or None."
        )
    done = arrays.pop("done")[:n]
    job.done[: done.size] = done
    for name, rows in arrays.items():
        job.rows[name] = np.zeros((n, *rows.shape[1:]), rows.dtype)
        job.rows[name][: done.size] = rows[:n]
    return job


def _save(job: Replicates, place: Checkpoint) -> None:
    last = int(job.numbers[-1]) + 1 if len(job) else 0
    numbers = {"entropy": _entropy(job.seed), "spawn_key": job.seed.spawn_key}
    arrays = {name: rows[:last] for name, rows in job.rows.items()}
    place.save(len(job), numbers, {"done": job.done[:last], **arrays})


def _entropy(seed: SeedSequence) -> Any:
    """Return the entropy of a seed in the form that JSON stores."""
    entropy: Any = seed.entropy
    return [int(word) for word in entropy] if hasattr(entropy, "__len__") else int(entropy)


def _interrupt(job: Replicates) -> None:
    job.interrupted = True
    print_message("interrupted: finishing the current work (press Ctrl-C again to stop at once)")


class _Sizes:
    """Chooses the number of replicates of a batch."""

    def __init__(self, size: int | None, least: int = 1):
        self.size, self.settled, self.least = size or least, size is not None, least

    def note(self, n: int, seconds: float) -> None:
        """Update the estimate from the seconds of a batch of n replicates."""
        if self.settled:
            return
        wanted = int(n * _BATCH_SECONDS / max(seconds, 1e-9))
        self.settled = seconds >= _LEAST_SECONDS
        self.size = max(self.least, min(wanted, _GROWTH * n))

    def cut(self, done: NDArray[np.bool_], share: int = 1) -> Iterator[range]:
        """Split the remaining replicates into batches, none larger than a share of them."""
        edges = np.flatnonzero(np.diff(np.concatenate(([True], done, [True]))))
        most = max(1, -(-int(np.count_nonzero(~done)) // share))
        for first, last in edges.reshape(-1, 2).tolist():
            size = min(self.size, most)
            for begin in range(first, last, size):
                yield range(begin, min(begin + size, last))


# Execution here or on a cluster ----------------------------------------------------------------


def _run_here(
    task: ReplicateTask, job: Replicates, sizes: _Sizes, n_threads: int | None, keep: Any
) -> None:
    threads = resolve_threads(n_threads)
    with single_blas_thread():
        while not job.interrupted and not job.done.all():
            numbers = next(sizes.cut(job.done))
            begin = time.perf_counter()
            arrays = task.run(numbers, job.seed, threads)
            sizes.note(len(numbers), time.perf_counter() - begin)
            keep(numbers.start, arrays)


def run_batch(
    numbers: range, seed: SeedSequence, n_threads: int, level: str, settings: dict[str, Any]
) -> tuple[float, dict[str, Array]]:
    """Run a batch of replicates on a worker; return its seconds and results."""
    take_level(level)
    begin = time.perf_counter()
    with single_blas_thread():
        arrays = settings["task"].run(numbers, seed, n_threads)
    return time.perf_counter() - begin, arrays


def _check_file(task: ReplicateTask, infos: dict[str, WorkerInfo]) -> None:
    """Refuse workers that cannot read the file of a task."""
    path, _ = task.file()
    blind = [worker for worker, info in infos.items() if path and not info.sees_store]
    if blind:
        raise ClusterError(
            f"{len(blind)} of {len(infos)} workers, such as {blind[0]}, cannot read {path}: put it "
            "where all of them can, under the same path, or pass nmfscale.read_counts of it, "
            "which is sent to them."
        )


class _Interrupted(Exception):
    """Raised when Ctrl-C is pressed while batches run on a cluster."""


def _run_on(
    client: Any, hint: str, task: ReplicateTask, job: Replicates, sizes: _Sizes,
    n_threads: int | None, keep: Any,
) -> None:  # fmt: skip
    patience = task.patience * sizes.least
    retry = replace(RetryPolicy(), task=max(patience, RetryPolicy.task))
    pool = WorkerPool(client, {"task": task}.__getitem__, retry, hint)
    with suppress(_Interrupted), pool.working():
        infos = preflight(pool, *task.file())
        _check_file(task, infos)
        args = job.seed, threads_of_task(pool, infos, n_threads), common_level(infos)
        while not job.interrupted and not job.done.all():
            slots = sum(pool.wait_for_workers().values())
            pieces = list(sizes.cut(job.done, slots))
            # one replicate for each worker until their duration is known
            pieces = pieces if sizes.settled else pieces[:slots]
            tasks = [
                Task(f"{task.name} {piece.start} to {piece.stop - 1}", (piece, *args), i, ("task",))
                for i, piece in enumerate(pieces)
            ]

            def note(i: int, result: Any, pieces: list[range] = pieces) -> None:
                seconds, arrays = result
                sizes.note(len(pieces[i]), seconds)
                keep(pieces[i].start, arrays)
                if job.interrupted:
                    raise _Interrupted

            with pool.batch(task.name.replace(" ", "-"), run_batch, tasks) as batch:
                batch.send_all()
                batch.results(note)
