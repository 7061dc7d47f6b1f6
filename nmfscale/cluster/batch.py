"""One round of tasks on a cluster: what is out, what came back, what has to go out again.

Dask restarts what a dead worker was doing.  What it leaves to its users is here: workers that stall
without dying, tasks that kill their worker, answers and data that went with a worker.
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
    Answer,
    BlockFailedError,
    Job,
    MissingArraysError,
    UnfitWorkerError,
    WorkerDiedError,
)

# Seconds without an answer from the scheduler before it counts as lost.
RPC_TIMEOUT = 30
PULSE = 0.1


def futures_of(job: Job) -> list[Any]:
    """Return the answers of other jobs that a job takes."""
    return [arg for arg in job.args if hasattr(arg, "add_done_callback")]


@dataclass
class Flight:
    """A job that is out: one of perhaps several copies."""

    number: int
    future: Any
    places: list[str]
    fetch_seconds: float = 2.0
    since: float = field(default_factory=time.monotonic)
    ended: float = 0.0


class Round:
    """Jobs that are out, and what came back."""

    def __init__(
        self, crew: Any, name: str, function: Any, jobs: list[Job], keep: bool, even: bool
    ):
        self.crew, self.name, self.function, self.jobs, self.keep = crew, name, function, jobs, keep
        self.even = even
        self.stem = f"{name}-{crew.next_round()}"
        self.landed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.flights: dict[str, Flight] = {}
        self.answered: dict[int, Any] = {}
        self.failures = dict.fromkeys(range(len(jobs)), 0)
        self.sends = [set(job.sends) for job in jobs]
        # jobs whose worker died: innocent ones too, so that each is tried alone
        self.suspects: deque[int] = deque()
        self.last_answer = self.last_copy = self.last_look = time.monotonic()
        self.n_submitted = 0

    def __enter__(self) -> Round:
        """Return the round."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel what is still out."""
        futures = [f.future for f in self.flights.values() if f.future.status == "pending"]
        self.flights = {}
        if futures and self.crew.client.status == "running":
            self.crew.client.cancel(futures, force=True)

    def send_all(self) -> list[Any]:
        """Send every job out and return their futures."""
        self.homes = self.crew.homes((job.home for job in self.jobs), self.even)
        together: dict[str, list[int]] = defaultdict(list)
        for number, job in enumerate(self.jobs):
            together[self.homes[job.home]].append(number)
        for home, numbers in together.items():
            self.send(numbers, [home])
        by_number = {flight.number: flight.future for flight in self.flights.values()}
        return [by_number[number] for number in range(len(self.jobs))]

    def needs_care(self) -> bool:
        """Whether something that is out will perhaps not give an answer by itself."""
        here = self.crew.workers()
        return any(
            flight.future.status not in ("pending", "finished")
            or (flight.future.status == "pending" and not here.keys() & set(flight.places))
            for flight in self.flights.values()
        )

    def answers(self) -> list[Any]:
        """Wait for all answers, with copies of what is late and new ones of what fails."""
        while len(self.answered) < len(self.jobs):
            if not self.flights:
                self.submit(self.suspects.popleft())
            keys = self.landings()
            if not keys:
                self.watch()
            elif not self.land_together(keys):
                for key in keys:
                    self.land(key)
        return [self.answered[number] for number in range(len(self.jobs))]

    def landings(self) -> list[str]:
        """Return the keys that are done, after a while if there are none yet."""
        keys = []
        with suppress(queue.Empty):
            keys.append(self.landed.get(timeout=PULSE))
            while True:
                keys.append(self.landed.get_nowait())
        return keys

    def land_together(self, keys: list[str]) -> bool:
        """Fetch several answers at once; whether that went as smoothly as it should."""
        flights = [self.flights[key] for key in keys if key in self.flights]
        smooth = all(flight.future.status == "finished" for flight in flights)
        if self.keep or len(flights) < 2 or not smooth:
            return False
        answers = self.crew.fetch_together([flight.future for flight in flights])
        if answers is None:
            return False
        for flight, answer in zip(flights, answers, strict=True):
            del self.flights[flight.future.key]
            if flight.number not in self.answered:
                self.keep_answer(flight.number, answer)
        return True

    def submit(self, number: int, avoid: str | None = None) -> None:
        """Send one job out, perhaps once more."""
        job, workers = self.jobs[number], self.crew.wait_for_workers()
        home = self.homes[job.home]
        places = [home] if home in workers and home != avoid else []
        places = places or [worker for worker in workers if worker != avoid] or list(workers)
        self.send([number], places)

    def send(self, numbers: list[int], places: list[str]) -> None:
        """Send jobs out to these workers if possible: many at once cost the scheduler less."""
        jobs = [self.jobs[number] for number in numbers]
        given = []
        for number, job in zip(numbers, jobs, strict=True):
            sent = {name: self.crew.sent(name, places) for name in self.sends[number]}
            given.append(None if futures_of(job) else sent)
        keys = []
        for number in numbers:
            self.n_submitted += 1
            keys.append(f"{self.stem}-{number}-{self.n_submitted}")
        futures = self.crew.client.map(
            self.crew.perform, [self.function] * len(jobs), [job.args for job in jobs], given,
            key=keys, pure=False, workers=places, allow_other_workers=not self.crew.unfit,
            # answers are combined as soon as they are there, so that few of them wait
            priority=0 if self.even else 1,
        )  # fmt: skip
        for number, future in zip(numbers, futures, strict=True):
            self.await_again(Flight(number, future, places))

    def await_again(self, flight: Flight) -> None:
        """Count a job as out until its future is done."""

        def note(done: Any) -> None:
            flight.ended = time.monotonic()
            self.landed.put(done.key)

        self.flights[flight.future.key] = flight
        flight.future.add_done_callback(note)

    def land(self, key: str) -> None:
        """Take an answer, or what came in its place."""
        flight = self.flights.pop(key, None)
        if flight is None:
            return
        number, future = flight.number, flight.future
        if number in self.answered:
            return
        try:
            if future.status == "finished":
                self.take(flight)
            elif future.status == "error":
                self.fail(number, future.exception(timeout=RPC_TIMEOUT))
            elif future.status == "cancelled":
                future.result(timeout=RPC_TIMEOUT)
            elif future.status == "lost":
                self.submit(number)
            else:
                self.await_again(flight)
        except (CancelledError, LoopCancelledError, TimeoutError, OSError) as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost":
                raise self.crew.scheduler_lost("its connection broke") from error
            self.fail(number, error)

    def take(self, flight: Flight) -> None:
        """Keep an answer, and cancel other copies of the job."""
        number = flight.number
        if self.keep:
            self.last_answer = time.monotonic()
            self.crew.seconds[self.name].append(flight.ended - flight.since)
            self.answered[number] = flight.future
            self.cancel_copies(number)
            return
        try:
            answer = flight.future.result(timeout=flight.fetch_seconds)
        except TimeoutError as error:
            flight.fetch_seconds *= 2
            key = flight.future.key
            holders = self.crew.holders([key]).get(key, set()) - self.crew.silent()
            if not holders:  # its worker died since
                self.submit(number)
            elif flight.fetch_seconds < self.crew.patience.task / 4:
                self.await_again(flight)
            else:  # nobody reaches its worker
                error.__dict__["worker"] = min(holders)
                self.fail(number, error)
            return
        except Exception as error:
            if flight.future.status != "error":
                raise
            # the answer was lost on its way, and its task failed when Dask did it again
            self.fail(number, error)
            return
        self.keep_answer(number, answer)

    def keep_answer(self, number: int, answer: Answer) -> None:
        """Keep an answer, and note who gave it."""
        self.last_answer = time.monotonic()
        self.crew.seconds[self.name].append(answer.seconds)
        self.crew.settle(self.jobs[number].home, answer.worker)
        self.crew.catch_up(answer.worker)
        self.answered[number] = answer.value
        self.cancel_copies(number)

    def cancel_copies(self, number: int) -> None:
        """Cancel what is still out of a job that has its answer."""
        copies = [f.future for f in self.flights.values() if f.number == number]
        if copies:
            self.crew.client.cancel(copies, force=True)

    def fail(self, number: int, error: BaseException) -> None:
        """Try again what may go better next time; give up the rest."""
        worker, self.last_answer = getattr(error, "worker", None), time.monotonic()
        taken = futures_of(self.jobs[number])
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
            self.crew.unfit.add(worker)
            self.crew.wait_for_workers()
            self.submit(number, avoid=worker)
            return
        self.failures[number] += 1
        kind = type(error).__name__
        passing = isinstance(error, (OSError, MemoryError, CancelledError, LoopCancelledError))
        if not passing and kind not in ("KilledWorker", "NoValidWorkerError", "MissingArraysError"):
            raise error
        if self.failures[number] >= self.crew.patience.attempts:
            raise BlockFailedError(
                f"{self.jobs[number].label} failed {self.failures[number]} times, the last time "
                f"with {kind}: {error}. {self.crew.remedy}".strip()
            ) from error
        if kind == "KilledWorker":
            self.suspects.append(number)
        elif not any(flight.number == number for flight in self.flights.values()):
            self.submit(number, avoid=worker)

    def watch(self) -> None:
        """Nothing has come back for a while: look after what is out."""
        now, patience = time.monotonic(), self.crew.patience
        quiet = now - self.last_answer
        if quiet < min(patience.late, 1.0):
            return
        if not self.crew.workers():
            self.crew.wait_for_workers()
            self.last_answer = time.monotonic()
            return
        self.rescue()
        self.pass_over()
        known = self.crew.seconds[self.name]
        usual = statistics.median(known) if known else None
        if quiet > max(patience.task, 5 * (usual or 0.0)):
            self.give_up(quiet)
        elif (
            usual is not None
            and min(quiet, now - self.last_copy) > max(patience.late, 2 * usual)
            and not self.suspects
        ):
            self.copy()

    def rescue(self) -> None:
        """Send out again what waits for workers that are gone.

        A scheduler that had no workers for a moment forgets that others would do as well.
        """
        here = self.crew.workers()
        waiting = [key for key, f in self.flights.items() if not here.keys() & set(f.places)]
        out = {flight.number for flight in self.flights.values()}
        taken = [future for number in out for future in futures_of(self.jobs[number])]
        lost = {future.key for future in taken if future.status == "lost"}
        busy = self.crew.busy() if waiting or lost else {}
        if lost and lost.isdisjoint(busy):
            raise self.answers_lost("gone with their workers")
        done = self.crew.holders(waiting) if waiting else {}
        for key in waiting:
            if key not in busy and not done.get(key):
                flight = self.flights.pop(key)
                out = {other.number for other in self.flights.values()}
                self.crew.client.cancel([flight.future], force=True)
                if not out:  # alone, so that no other task has killed the worker
                    self.fail(flight.number, WorkerDiedError("its worker died"))
                elif flight.number not in out:
                    self.submit(flight.number)
                self.last_copy = time.monotonic()

    def answers_lost(self, where: str) -> BlockFailedError:
        """Return what to raise when answers that jobs need are gone."""
        error = BlockFailedError(f"answers are {where}. {self.crew.remedy}".strip())
        error.answers_lost = True
        return error

    def pass_over(self) -> None:
        """Do without workers that give no sign of life, long before the scheduler does."""
        if time.monotonic() - self.last_look < 1.0:
            return
        self.last_look = time.monotonic()
        silent = self.crew.silent()
        if not silent:
            return
        self.crew.fall_behind(silent)
        out = {flight.number for flight in self.flights.values()}
        taken = [future.key for number in out for future in futures_of(self.jobs[number])]
        if self.crew.only_at(silent, taken):
            raise self.answers_lost("at workers that are silent")
        self.homes = self.crew.homes((job.home for job in self.jobs), self.even)
        lost = self.crew.forget_all_at(silent)
        blind = {number for number in out if self.sends[number] & lost}
        gone = [key for key, flight in self.flights.items() if flight.number in blind]
        self.crew.client.cancel([self.flights.pop(key).future for key in gone], force=True)
        busy = self.crew.busy()
        places: dict[int, set[str]] = defaultdict(set)
        for key, flight in self.flights.items():
            places[flight.number].add(busy.get(key, ""))
        for number in sorted(blind | {n for n, found in places.items() if found <= silent}):
            self.submit(number)

    def copy(self) -> None:
        """Start what is out once more at other workers: the first answer counts."""
        self.last_copy = time.monotonic()
        busy = self.crew.busy()
        out: dict[int, list[str]] = defaultdict(list)
        for key, flight in self.flights.items():
            out[flight.number].append(key)
        alone = {number: busy.get(keys[0]) for number, keys in out.items() if len(keys) == 1}
        self.crew.fall_behind(worker for worker in alone.values() if worker is not None)
        self.homes = self.crew.homes((job.home for job in self.jobs), self.even)
        for number, worker in alone.items():
            self.submit(number, avoid=worker)

    def give_up(self, quiet: float) -> None:
        """Count what is out as failed."""
        self.last_answer = self.last_copy = time.monotonic()
        flights, self.flights = list(self.flights.values()), {}
        self.crew.client.cancel([flight.future for flight in flights], force=True)
        error = TimeoutError(f"no answer in {quiet:.0f} s")
        for number in sorted({flight.number for flight in flights} - set(self.answered)):
            self.fail(number, error)
