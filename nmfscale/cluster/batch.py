"""One round of tasks on a cluster: what is out, what came back, what has to go out again.

Dask restarts what a dead worker was doing.  What it leaves to its users is here: workers that stall
without dying, tasks that kill their worker, results and data that went with a worker.
"""

from __future__ import annotations

import queue
import statistics
import time
from asyncio import CancelledError as LoopCancelledError
from collections import defaultdict, deque
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..counts.warn import warn_caller
from .tasks import (
    BlockFailedError,
    MissingArraysError,
    Task,
    TaskResult,
    UnfitWorkerError,
    WorkerDiedError,
)

# Seconds without a result from the scheduler before it counts as lost.
RPC_TIMEOUT = 30
PULSE = 0.1


def futures_of(task: Task) -> list[Any]:
    """Return the results of other tasks that a task takes."""
    return [arg for arg in task.args if hasattr(arg, "add_done_callback")]


@dataclass
class Attempt:
    """A task that is out: one of perhaps several copies."""

    number: int
    future: Any
    places: list[str]
    fetch_seconds: float = 2.0
    since: float = field(default_factory=time.monotonic)
    ended: float = 0.0


class TaskBatch:
    """Tasks that are out, and their results."""

    def __init__(
        self, pool: Any, name: str, function: Any, tasks: list[Task], keep: bool, even: bool
    ):
        self.pool, self.name, self.function, self.tasks, self.keep = (
            pool,
            name,
            function,
            tasks,
            keep,
        )
        self.even = even
        self.stem = f"{name}-{pool.next_batch()}"
        self.landed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.attempts_out: dict[str, Attempt] = {}
        self.answered: dict[int, Any] = {}
        self.failures = dict.fromkeys(range(len(tasks)), 0)
        self.sends = [set(task.sends) for task in tasks]
        # tasks whose worker died: innocent ones too, so that each is tried alone
        self.suspects: deque[int] = deque()
        self.last_answer = self.last_copy = self.last_look = time.monotonic()
        self.n_submitted = 0

    def __enter__(self) -> TaskBatch:
        """Return the round."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel what is still out."""
        futures = [f.future for f in self.attempts_out.values() if f.future.status == "pending"]
        self.attempts_out = {}
        if futures and self.pool.client.status == "running":
            self.pool.client.cancel(futures, force=True)

    def send_all(self) -> list[Any]:
        """Send every task out and return their futures."""
        self.placement = self.pool.placement((task.affinity for task in self.tasks), self.even)
        together: dict[str, list[int]] = defaultdict(list)
        for number, task in enumerate(self.tasks):
            together[self.placement[task.affinity]].append(number)
        for affinity, numbers in together.items():
            self.send(numbers, [affinity])
        by_number = {attempt.number: attempt.future for attempt in self.attempts_out.values()}
        return [by_number[number] for number in range(len(self.tasks))]

    def needs_care(self) -> bool:
        """Whether something that is out will perhaps not give a result by itself."""
        here = self.pool.workers()
        return any(
            attempt.future.status not in ("pending", "finished")
            or (attempt.future.status == "pending" and not here.keys() & set(attempt.places))
            for attempt in self.attempts_out.values()
        )

    def results(self) -> list[Any]:
        """Wait for all results, with copies of what is late and new ones of what fails."""
        while len(self.answered) < len(self.tasks):
            if not self.attempts_out:
                self.submit(self.suspects.popleft())
            keys = self.completed()
            if not keys:
                self.watch()
            elif not self.complete_together(keys):
                for key in keys:
                    self.complete(key)
        return [self.answered[number] for number in range(len(self.tasks))]

    def completed(self) -> list[str]:
        """Return the keys that are done, after a while if there are none yet."""
        keys = []
        with suppress(queue.Empty):
            keys.append(self.landed.get(timeout=PULSE))
            while True:
                keys.append(self.landed.get_nowait())
        return keys

    def complete_together(self, keys: list[str]) -> bool:
        """Fetch several results at once; whether that went as smoothly as it should."""
        attempts_out = [self.attempts_out[key] for key in keys if key in self.attempts_out]
        smooth = all(attempt.future.status == "finished" for attempt in attempts_out)
        if self.keep or len(attempts_out) < 2 or not smooth:
            return False
        results = self.pool.fetch_together([attempt.future for attempt in attempts_out])
        if results is None:
            return False
        for attempt, result in zip(attempts_out, results, strict=True):
            del self.attempts_out[attempt.future.key]
            if attempt.number not in self.answered:
                self.keep_result(attempt.number, result)
        return True

    def submit(self, number: int, avoid: str | None = None) -> None:
        """Send one task out, perhaps once more."""
        task, workers = self.tasks[number], self.pool.wait_for_workers()
        affinity = self.placement[task.affinity]
        places = [affinity] if affinity in workers and affinity != avoid else []
        places = places or [worker for worker in workers if worker != avoid] or list(workers)
        self.send([number], places)

    def send(self, numbers: list[int], places: list[str]) -> None:
        """Send tasks out to these workers if possible: many at once cost the scheduler less."""
        tasks = [self.tasks[number] for number in numbers]
        given = []
        for number, task in zip(numbers, tasks, strict=True):
            sent = {name: self.pool.sent(name, places) for name in self.sends[number]}
            given.append(None if futures_of(task) else sent)
        keys = []
        for number in numbers:
            self.n_submitted += 1
            keys.append(f"{self.stem}-{number}-{self.n_submitted}")
        futures = self.pool.client.map(
            self.pool.perform, [self.function] * len(tasks), [task.args for task in tasks], given,
            key=keys, pure=False, workers=places, allow_other_workers=not self.pool.excluded,
            # results are combined as soon as they are there, so that few of them wait
            priority=0 if self.even else 1,
        )  # fmt: skip
        for number, future in zip(numbers, futures, strict=True):
            self.await_again(Attempt(number, future, places))

    def await_again(self, attempt: Attempt) -> None:
        """Count a task as out until its future is done."""

        def note(done: Any) -> None:
            attempt.ended = time.monotonic()
            self.landed.put(done.key)

        self.attempts_out[attempt.future.key] = attempt
        attempt.future.add_done_callback(note)

    def complete(self, key: str) -> None:
        """Take a result, or what came in its place."""
        attempt = self.attempts_out.pop(key, None)
        if attempt is None:
            return
        number, future = attempt.number, attempt.future
        if number in self.answered:
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
                self.await_again(attempt)
        except (CancelledError, LoopCancelledError, TimeoutError, OSError) as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost":
                raise self.pool.scheduler_lost("its connection broke") from error
            self.fail(number, error)

    def take(self, attempt: Attempt) -> None:
        """Keep a result, and cancel other copies of the task."""
        number = attempt.number
        if self.keep:
            self.last_answer = time.monotonic()
            self.pool.seconds[self.name].append(attempt.ended - attempt.since)
            self.answered[number] = attempt.future
            self.cancel_copies(number)
            return
        try:
            result = attempt.future.result(timeout=attempt.fetch_seconds)
        except TimeoutError as error:
            attempt.fetch_seconds *= 2
            key = attempt.future.key
            holders = self.pool.holders([key]).get(key, set()) - self.pool.silent()
            if not holders:  # its worker died since
                self.submit(number)
            elif attempt.fetch_seconds < self.pool.retry.task / 4:
                self.await_again(attempt)
            else:  # nobody reaches its worker
                error.__dict__["worker"] = min(holders)
                self.fail(number, error)
            return
        except Exception as error:
            if attempt.future.status != "error":
                raise
            # the result was lost on its way, and its task failed when Dask did it again
            self.fail(number, error)
            return
        self.keep_result(number, result)

    def keep_result(self, number: int, result: TaskResult) -> None:
        """Keep a result, and note who gave it."""
        self.last_answer = time.monotonic()
        self.pool.seconds[self.name].append(result.seconds)
        self.pool.prefer(self.tasks[number].affinity, result.worker)
        self.pool.mark_ok(result.worker)
        self.answered[number] = result.value
        self.cancel_copies(number)

    def cancel_copies(self, number: int) -> None:
        """Cancel what is still out of a task that has its result."""
        copies = [f.future for f in self.attempts_out.values() if f.number == number]
        if copies:
            self.pool.client.cancel(copies, force=True)

    def fail(self, number: int, error: BaseException) -> None:
        """Try again what may go better next time; give up the rest."""
        worker, self.last_answer = getattr(error, "worker", None), time.monotonic()
        taken = futures_of(self.tasks[number])
        if any(future.status not in ("pending", "finished") for future in taken):
            raise self.answers_lost("to be made again") from error
        if isinstance(error, MissingArraysError):
            if taken:
                raise self.answers_lost("to be made again, from what was not sent along") from error
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
        self.failures[number] += 1
        kind = type(error).__name__
        passing = isinstance(error, (OSError, MemoryError, CancelledError, LoopCancelledError))
        if not passing and kind not in ("KilledWorker", "NoValidWorkerError", "MissingArraysError"):
            raise error
        if self.failures[number] >= self.pool.retry.attempts:
            raise BlockFailedError(
                f"{self.tasks[number].label} failed {self.failures[number]} times, the last time "
                f"with {kind}: {error}. {self.pool.hint}".strip()
            ) from error
        if kind == "KilledWorker":
            self.suspects.append(number)
        elif not any(attempt.number == number for attempt in self.attempts_out.values()):
            self.submit(number, avoid=worker)

    def watch(self) -> None:
        """Nothing has come back for a while: look after what is out."""
        now, retry = time.monotonic(), self.pool.retry
        quiet = now - self.last_answer
        if quiet < min(retry.late, 1.0):
            return
        if not self.pool.workers():
            self.pool.wait_for_workers()
            self.last_answer = time.monotonic()
            return
        self.rescue()
        self.pass_over()
        known = self.pool.seconds[self.name]
        usual = statistics.median(known) if known else None
        if quiet > max(retry.task, 5 * (usual or 0.0)):
            self.give_up(quiet)
        elif (
            usual is not None
            and min(quiet, now - self.last_copy) > max(retry.late, 2 * usual)
            and not self.suspects
        ):
            self.copy()

    def rescue(self) -> None:
        """Send out again what waits for workers that are gone.

        A scheduler that had no workers for a moment forgets that others would do as well.
        """
        here = self.pool.workers()
        waiting = [key for key, f in self.attempts_out.items() if not here.keys() & set(f.places)]
        out = {attempt.number for attempt in self.attempts_out.values()}
        taken = [future for number in out for future in futures_of(self.tasks[number])]
        lost = {future.key for future in taken if future.status == "lost"}
        busy = self.pool.busy() if waiting or lost else {}
        if lost and lost.isdisjoint(busy):
            raise self.answers_lost("gone with their workers")
        done = self.pool.holders(waiting) if waiting else {}
        for key in waiting:
            if key not in busy and not done.get(key):
                attempt = self.attempts_out.pop(key)
                out = {other.number for other in self.attempts_out.values()}
                self.pool.client.cancel([attempt.future], force=True)
                if not out:  # alone, so that no other task has killed the worker
                    self.fail(attempt.number, WorkerDiedError("its worker died"))
                elif attempt.number not in out:
                    self.submit(attempt.number)
                self.last_copy = time.monotonic()

    def answers_lost(self, where: str) -> BlockFailedError:
        """Return what to raise when results that tasks need are gone."""
        error = BlockFailedError(f"results are {where}. {self.pool.hint}".strip())
        error.answers_lost = True
        return error

    def pass_over(self) -> None:
        """Do without workers that give no sign of life, long before the scheduler does."""
        if time.monotonic() - self.last_look < 1.0:
            return
        self.last_look = time.monotonic()
        silent = self.pool.silent()
        if not silent:
            return
        self.pool.mark_slow(silent)
        out = {attempt.number for attempt in self.attempts_out.values()}
        taken = [future.key for number in out for future in futures_of(self.tasks[number])]
        if self.pool.only_at(silent, taken):
            raise self.answers_lost("at workers that are silent")
        self.placement = self.pool.placement((task.affinity for task in self.tasks), self.even)
        lost = self.pool.forget_all_at(silent)
        blind = {number for number in out if self.sends[number] & lost}
        gone = [key for key, attempt in self.attempts_out.items() if attempt.number in blind]
        self.pool.client.cancel([self.attempts_out.pop(key).future for key in gone], force=True)
        busy = self.pool.busy()
        places: dict[int, set[str]] = defaultdict(set)
        for key, attempt in self.attempts_out.items():
            places[attempt.number].add(busy.get(key, ""))
        for number in sorted(blind | {n for n, found in places.items() if found <= silent}):
            self.submit(number)

    def copy(self) -> None:
        """Start what is out once more at other workers: the first result counts."""
        self.last_copy = time.monotonic()
        busy = self.pool.busy()
        out: dict[int, list[str]] = defaultdict(list)
        for key, attempt in self.attempts_out.items():
            out[attempt.number].append(key)
        alone = {number: busy.get(keys[0]) for number, keys in out.items() if len(keys) == 1}
        self.pool.mark_slow(worker for worker in alone.values() if worker is not None)
        self.placement = self.pool.placement((task.affinity for task in self.tasks), self.even)
        for number, worker in alone.items():
            self.submit(number, avoid=worker)

    def give_up(self, quiet: float) -> None:
        """Count what is out as failed."""
        self.last_answer = self.last_copy = time.monotonic()
        attempts_out, self.attempts_out = list(self.attempts_out.values()), {}
        self.pool.client.cancel([attempt.future for attempt in attempts_out], force=True)
        error = TimeoutError(f"no answer in {quiet:.0f} s")
        for number in sorted({attempt.number for attempt in attempts_out} - set(self.answered)):
            self.fail(number, error)
