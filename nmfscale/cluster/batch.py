"""One batch of tasks on a cluster: which tasks run, which are done, and which must run again.

Dask restarts the tasks of a dead worker.  This module handles the cases that Dask leaves to its
users: workers that stall without dying, tasks that kill their worker, and results and data that
are lost with a worker.
"""

from __future__ import annotations

import queue
import statistics
import time
from asyncio import CancelledError as LoopCancelledError
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from ..counts.warn import warn_caller
from .tasks import (
    BlockFailedError,
    MissingArraysError,
    Task,
    TaskResult,
    UnfitWorkerError,
    WorkerDiedError,
)

if TYPE_CHECKING:
    from .pool import WorkerPool

# Seconds without an answer from the scheduler after which it counts as lost.
RPC_TIMEOUT = 30
# Seconds between checks of what has finished.
PULSE = 0.1


def futures_of(task: Task) -> list[Any]:
    """Return the arguments of a task that are futures: results of other tasks."""
    return [arg for arg in task.args if hasattr(arg, "add_done_callback")]


@dataclass
class Attempt:
    """One submission of a task; several copies of a task may run at once."""

    number: int
    future: Any
    targets: list[str]
    fetch_seconds: float = 2.0
    since: float = field(default_factory=time.monotonic)
    ended: float = 0.0


class TaskBatch:
    """Tasks that run on a cluster, and their results."""

    def __init__(
        self, pool: WorkerPool, name: str, function: Any, tasks: list[Task], keep: bool, even: bool
    ):
        self.pool, self.name, self.function, self.tasks = pool, name, function, tasks
        self.keep, self.even = keep, even
        self.key_prefix = f"{name}-{pool.run_name}-{next(pool.batch_numbers)}"
        self.done_keys: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.running: dict[str, Attempt] = {}
        self.values: dict[int, Any] = {}
        self.note: Callable[[int, Any], None] | None = None
        self.failures = dict.fromkeys(range(len(tasks)), 0)
        self.sends = [set(task.sends) for task in tasks]
        # Tasks whose worker died. Any of them may have killed it, so each is tried alone.
        self.suspects: deque[int] = deque()
        # How often the scheduler forgot each task, because its worker or one with its data died.
        self.forgotten = dict.fromkeys(range(len(tasks)), 0)
        self.last_result_at = self.last_copy_at = self.last_check_at = time.monotonic()
        self.submissions = count(1)
        # how long a task may take as long as none is done
        self.first_seconds = pool.retry.task * max((task.n_blocks for task in tasks), default=1)

    def __enter__(self) -> TaskBatch:
        """Return the batch."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel the tasks that still run."""
        futures = [f.future for f in self.running.values() if f.future.status == "pending"]
        self.running = {}
        if futures and self.pool.client.status == "running":
            self.pool.client.cancel(futures, force=True)

    def send_all(self) -> list[Any]:
        """Submit every task and return their futures."""
        self.placement = self.pool.placement((task.affinity for task in self.tasks), self.even)
        together: dict[str, list[int]] = defaultdict(list)
        for number, task in enumerate(self.tasks):
            together[self.placement[task.affinity]].append(number)
        for worker, numbers in together.items():
            self.send(numbers, [worker])
        by_number = {attempt.number: attempt.future for attempt in self.running.values()}
        return [by_number[number] for number in range(len(self.tasks))]

    def inputs(self) -> list[Any]:
        """Return the results of other tasks that the unfinished tasks need."""
        unfinished = {attempt.number for attempt in self.running.values()}
        return [future for number in unfinished for future in futures_of(self.tasks[number])]

    def is_stuck(self) -> bool:
        """Whether a running task may never finish: it failed, or its workers are gone."""
        here = self.pool.workers()
        return any(
            attempt.future.status not in ("pending", "finished")
            or (attempt.future.status == "pending" and not here.keys() & set(attempt.targets))
            for attempt in self.running.values()
        )

    def results(self, note: Callable[[int, Any], None] | None = None) -> list[Any]:
        """Wait for all results; start second copies of slow tasks, and resubmit failed ones.

        With `note`, each result is passed to `note(number, result)` as soon as it arrives, and the
        returned list has None in its place.
        """
        self.note = note
        while len(self.values) < len(self.tasks):
            if not self.running:
                self.submit(self.suspects.popleft())
            keys = self.completed()
            if not keys:
                self.check_progress()
            elif not self.complete_together(keys):
                for key in keys:
                    self.complete(key)
        return [self.values[number] for number in range(len(self.tasks))]

    def completed(self) -> list[str]:
        """Return the keys of finished tasks; wait a moment if there are none yet."""
        keys = []
        with suppress(queue.Empty):
            keys.append(self.done_keys.get(timeout=PULSE))
            while True:
                keys.append(self.done_keys.get_nowait())
        return keys

    def complete_together(self, keys: list[str]) -> bool:
        """Fetch the results of several finished tasks at once; return whether that succeeded."""
        attempts = [self.running[key] for key in keys if key in self.running]
        finished = all(attempt.future.status == "finished" for attempt in attempts)
        if self.keep or len(attempts) < 2 or not finished:
            return False
        results = self.pool.fetch_together([attempt.future for attempt in attempts])
        if results is None:
            return False
        for attempt, result in zip(attempts, results, strict=True):
            del self.running[attempt.future.key]
            if attempt.number not in self.values:
                self.keep_result(attempt.number, result)
        return True

    def submit(self, number: int, avoid: str | None = None) -> None:
        """Submit one task, again if it was submitted before; not to worker `avoid` if possible."""
        workers = self.pool.wait_for_workers()
        preferred = self.placement[self.tasks[number].affinity]
        targets = [preferred] if preferred in workers and preferred != avoid else []
        targets = targets or [worker for worker in workers if worker != avoid] or list(workers)
        self.send([number], targets)

    def send(self, numbers: list[int], targets: list[str]) -> None:
        """Submit tasks, preferably to `targets`; together, which costs the scheduler less."""
        tasks = [self.tasks[number] for number in numbers]
        data = []
        for number, task in zip(numbers, tasks, strict=True):
            sent = {name: self.pool.sent(name, targets) for name in self.sends[number]}
            data.append(None if futures_of(task) else sent)
        keys = [f"{self.key_prefix}-{number}-{next(self.submissions)}" for number in numbers]
        futures = self.pool.client.map(
            self.pool.perform, [self.function] * len(tasks), [task.args for task in tasks], data,
            key=keys, pure=False, workers=targets, allow_other_workers=not self.pool.excluded,
            # combining has priority: results are combined as they arrive, so that few accumulate
            priority=0 if self.even else 1,
        )  # fmt: skip
        for number, future in zip(numbers, futures, strict=True):
            self.track(Attempt(number, future, targets))

    def track(self, attempt: Attempt) -> None:
        """Record the end of a task in `done_keys`."""

        def note(done: Any) -> None:
            attempt.ended = time.monotonic()
            self.done_keys.put(done.key)

        self.running[attempt.future.key] = attempt
        attempt.future.add_done_callback(note)

    def complete(self, key: str) -> None:
        """Handle a finished future: keep its result, or deal with its failure."""
        attempt = self.running.pop(key, None)
        if attempt is None:
            return
        number, future = attempt.number, attempt.future
        if number in self.values:
            return
        try:
            if future.status == "finished":
                self.take(attempt)
            elif future.status == "error":
                self.fail(number, future.exception(timeout=RPC_TIMEOUT))
            elif future.status == "cancelled":
                future.result(timeout=RPC_TIMEOUT)
            elif future.status == "lost":
                self.submit(number)
            else:
                self.track(attempt)
        except (CancelledError, LoopCancelledError, TimeoutError, OSError) as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost":
                raise self.pool.scheduler_lost("its connection broke") from error
            self.fail(number, error)

    def take(self, attempt: Attempt) -> None:
        """Keep a result, and cancel other copies of the task."""
        number = attempt.number
        if self.keep:
            self.last_result_at = time.monotonic()
            self.pool.seconds[self.name].append(attempt.ended - attempt.since)
            self.values[number] = attempt.future
            self.cancel_copies(number)
            return
        try:
            result = attempt.future.result(timeout=attempt.fetch_seconds)
        except TimeoutError as error:
            attempt.fetch_seconds *= 2
            key = attempt.future.key
            holders = self.pool.holders([key]).get(key, set()) - self.pool.silent()
            if not holders:  # its worker has died meanwhile
                self.submit(number)
            elif attempt.fetch_seconds < self.pool.retry.task / 4:
                self.track(attempt)
            else:  # its worker cannot be reached
                error.__dict__["worker"] = min(holders)
                self.fail(number, error)
            return
        except Exception as error:
            if attempt.future.status != "error":
                raise
            # the result was lost in transfer, and its task failed when Dask ran it again
            self.fail(number, error)
            return
        self.keep_result(number, result)

    def keep_result(self, number: int, result: TaskResult) -> None:
        """Keep a result, and record which worker computed it."""
        self.last_result_at = time.monotonic()
        self.pool.seconds[self.name].append(result.seconds)
        self.pool.note_done(self.tasks[number].affinity, result.worker)
        self.values[number] = None if self.note else result.value
        self.cancel_copies(number)
        if self.note:
            self.note(number, result.value)

    def cancel_copies(self, number: int) -> None:
        """Cancel the other copies of a task whose result has arrived."""
        copies = [f.future for f in self.running.values() if f.number == number]
        if copies:
            self.pool.client.cancel(copies, force=True)

    def fail(self, number: int, error: BaseException) -> None:
        """Resubmit a task whose failure may pass; raise other errors, and after too many tries."""
        worker, self.last_result_at = getattr(error, "worker", None), time.monotonic()
        inputs = futures_of(self.tasks[number])
        if any(future.status not in ("pending", "finished") for future in inputs):
            raise self.results_lost("lost and must be computed again") from error
        if isinstance(error, MissingArraysError):
            if inputs:
                raise self.results_lost("lost, and need arrays that were not sent") from error
            if error.args[0] not in self.sends[number]:
                self.sends[number].add(error.args[0])
                self.submit(number)
                return
        elif isinstance(error, UnfitWorkerError) and worker:
            warn_caller(f"worker {worker} is left out: {error}")
            self.pool.excluded.add(worker)
            self.pool.wait_for_workers()
            self.submit(number, avoid=worker)
            return
        kind, again = type(error).__name__, self.pool.retry.attempts
        was_forgotten = isinstance(error, (CancelledError, LoopCancelledError))
        if was_forgotten and self.forgotten[number] < again:
            # not counted as a failure, unless it recurs: then this task may kill its workers
            self.forgotten[number] += 1
            self.submit(number)
            return
        self.failures[number] += 1
        passing = was_forgotten or isinstance(error, (OSError, MemoryError))
        if not passing and kind not in ("KilledWorker", "NoValidWorkerError", "MissingArraysError"):
            raise error
        if self.failures[number] >= again:
            raise BlockFailedError(
                f"{self.tasks[number].label} failed {self.failures[number]} times, the last time "
                f"with {kind}: {error}. {self.pool.hint}".strip()
            ) from error
        if kind == "KilledWorker" or was_forgotten:
            self.suspects.append(number)
        elif not any(attempt.number == number for attempt in self.running.values()):
            self.submit(number, avoid=worker)

    def check_progress(self) -> None:
        """If no result has arrived for a while, look for lost, slow and stalled tasks."""
        now, retry = time.monotonic(), self.pool.retry
        idle = now - self.last_result_at
        if idle < min(retry.late, 1.0):
            return
        if not self.pool.workers():
            self.pool.wait_for_workers()
            self.last_result_at = time.monotonic()
            return
        self.resubmit_lost()
        self.avoid_silent_workers()
        seconds = self.pool.seconds[self.name]
        median = statistics.median(seconds) if seconds else None
        if idle > (self.first_seconds if median is None else max(retry.task, 5 * median)):
            self.time_out(idle)
        elif (
            median is not None
            and min(idle, now - self.last_copy_at) > max(retry.late, 2 * median)
            and not self.suspects
        ):
            self.start_copies()

    def resubmit_lost(self) -> None:
        """Resubmit tasks that wait for workers that are gone.

        A scheduler that had no workers for a moment forgets that other workers may run the tasks.
        """
        here = self.pool.workers()
        waiting = [key for key, f in self.running.items() if not here.keys() & set(f.targets)]
        lost = {future.key for future in self.inputs() if future.status == "lost"}
        busy = self.pool.busy() if waiting or lost else {}
        if lost and lost.isdisjoint(busy):
            raise self.results_lost("gone with their workers")
        done = self.pool.holders(waiting) if waiting else {}
        keys = [key for key in waiting if key not in busy and not done.get(key)]
        gone = [self.running.pop(key) for key in keys]
        if not gone:
            return
        self.pool.client.cancel([attempt.future for attempt in gone], force=True)
        self.last_copy_at = time.monotonic()
        lost_tasks = {attempt.number for attempt in gone}
        left = {attempt.number for attempt in self.running.values()}
        for number in sorted(lost_tasks):
            if left | lost_tasks == {number}:  # it ran alone: no other task has killed the worker
                self.fail(number, WorkerDiedError("its worker died"))
            elif number not in left:
                self.submit(number)

    def results_lost(self, where: str) -> BlockFailedError:
        """Return the error for results that tasks need and that are lost; `where` completes it."""
        error = BlockFailedError(f"results are {where}. {self.pool.hint}".strip())
        error.results_lost = True
        return error

    def avoid_silent_workers(self) -> None:
        """Stop using workers that have fallen silent, long before the scheduler gives them up."""
        if time.monotonic() - self.last_check_at < 1.0:
            return
        self.last_check_at = time.monotonic()
        silent = self.pool.silent()
        if not silent:
            return
        self.pool.mark_slow(silent)
        unfinished = {attempt.number for attempt in self.running.values()}
        if self.pool.only_at(silent, [future.key for future in self.inputs()]):
            raise self.results_lost("at workers that are silent")
        self.placement = self.pool.placement((task.affinity for task in self.tasks), self.even)
        lost = self.pool.forget_all_at(silent)
        without_data = {number for number in unfinished if self.sends[number] & lost}
        gone = [key for key, attempt in self.running.items() if attempt.number in without_data]
        self.pool.client.cancel([self.running.pop(key).future for key in gone], force=True)
        busy = self.pool.busy()
        workers: dict[int, set[str]] = defaultdict(set)
        for key, attempt in self.running.items():
            workers[attempt.number].add(busy.get(key, ""))
        for number in sorted(without_data | {n for n, hosts in workers.items() if hosts <= silent}):
            self.submit(number)

    def start_copies(self) -> None:
        """Start second copies of running tasks on workers without tasks; the first result counts.

        Other workers have to finish their tasks first, and kernels may use all their threads.
        """
        busy = self.pool.busy()
        idle = sorted(self.pool.ready().keys() - set(busy.values()))
        if not idle:
            return
        self.last_copy_at = time.monotonic()
        copies: dict[int, list[str]] = defaultdict(list)
        for key, attempt in self.running.items():
            copies[attempt.number].append(key)
        single = {number: busy.get(keys[0]) for number, keys in copies.items() if len(keys) == 1}
        self.pool.mark_slow(worker for worker in single.values() if worker is not None)
        self.placement = self.pool.placement((task.affinity for task in self.tasks), self.even)
        for number in single:
            self.send([number], idle)

    def time_out(self, idle: float) -> None:
        """Count all running tasks as failed."""
        self.last_result_at = self.last_copy_at = time.monotonic()
        attempts, self.running = list(self.running.values()), {}
        self.pool.client.cancel([attempt.future for attempt in attempts], force=True)
        error = TimeoutError(f"no answer in {idle:.0f} s")
        for number in sorted({attempt.number for attempt in attempts} - set(self.values)):
            self.fail(number, error)
