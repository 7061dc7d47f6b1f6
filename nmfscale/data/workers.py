"""Pure tasks on the workers of a Dask cluster, again and elsewhere until each has its answer.

Dask restarts what a dead worker was doing.  What it leaves to its users is here: workers that stall
without dying, tasks that kill their worker, data that were sent and are lost, a scheduler that is
gone.  Nothing is known here of models.
"""

from __future__ import annotations

import queue
import secrets
import statistics
import sys
import threading
import time
import warnings
from asyncio import CancelledError as LoopCancelledError
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Seconds without an answer from the scheduler before it counts as lost.
_RPC_TIMEOUT = 30
_PULSE = 0.1
# ... and for several answers at once, before they are fetched one by one.
_TOGETHER_TIMEOUT = 10


class ClusterError(RuntimeError):
    """A computation on a cluster cannot go on."""


class NoWorkersError(ClusterError):
    """All workers are gone and none came back."""


class SchedulerLostError(ClusterError):
    """The scheduler is gone, and with it all that it was told."""


class BlockFailedError(ClusterError):
    """One task failed again and again."""

    answers_lost = False


class WorkerDiedError(OSError):
    """The worker of a task died."""


class UnfitWorkerError(RuntimeError):
    """A worker cannot do what the others do; tasks that raise it are tried elsewhere."""


class MissingArraysError(LookupError):
    """A task needs arrays of these names, which were not sent along."""


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds, and how often to try.

    Attributes
    ----------
    workers : float, default=300
        For a worker to come (back) when there is none.
    attempts : int, default=3
        Failures of one task before the computation is given up.
    task : float, default=60
        Without any answer before tasks are given up and tried again; five times the usual if that
        is longer.
    silent : float, default=5
        Without a sign of life from a worker, when others gave some, before it is passed over.
    late : float, default=1
        Without any answer before a second copy of what is out is started; twice the usual if that
        is longer.
    """

    workers: float = 300.0
    attempts: int = 3
    task: float = 60.0
    silent: float = 5.0
    late: float = 1.0


class Job(NamedTuple):
    """One task of a round.

    Attributes
    ----------
    label : str
        For messages.
    args : tuple
        Of the function, which gets a dict of what was sent as its last argument.
    home : int
        Jobs of the same number are sent to the same worker if possible.
    sends : tuple of str
        Names of what is sent along.
    """

    label: str
    args: tuple[Any, ...]
    home: int
    sends: tuple[str, ...] = ()


class Answer(NamedTuple):
    """What a task returned, where, and how many seconds it took."""

    value: Any
    worker: str
    seconds: float


def active_client() -> Any:
    """Return the client that is active in this process, None if there is none or in a task."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client, get_worker

    try:
        get_worker()
    except ValueError:
        try:
            return default_client()
        except ValueError:
            return None
    return None


def worker_memory() -> int | None:
    """Return the bytes that the worker of this task may hold, None if there is no limit."""
    from distributed import get_worker

    limit = get_worker().memory_manager.memory_limit
    return int(limit) if limit else None


def perform(function: Callable[..., Any], args: tuple[Any, ...], given: Any) -> Answer:
    """Run a task on a worker."""
    from distributed import get_worker

    worker, begin = str(get_worker().address), time.monotonic()
    args = tuple(arg.value if isinstance(arg, Answer) else arg for arg in args)
    try:
        value = function(*args) if given is None else function(*args, given)
    except Exception as error:
        error.__dict__["worker"] = worker
        raise
    return Answer(value, worker, time.monotonic() - begin)


class Crew:
    """The workers that a client's scheduler knows.

    Parameters
    ----------
    client : distributed.Client
        Only this is used, whoever started the cluster.
    fetch : callable
        Called with a name, returns what is to be sent under it.
    patience : Patience
    remedy : str
        How the computation can be taken up again, for messages.
    """

    def __init__(
        self,
        client: Any,
        fetch: Callable[[str], Any],
        patience: Patience | None = None,
        remedy: str = "",
    ):
        self.client, self.fetch, self.remedy = client, fetch, remedy
        self.patience = patience or Patience()
        self.run_name, self._n_rounds = secrets.token_hex(4), 0
        self.seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=64))
        self.unfit: set[str] = set()
        self._behind: dict[str, float] = {}
        self._homes: dict[int, str] = {}
        self._sent: dict[str, Any] = {}
        self._seen: tuple[float, dict[str, int]] = (-1e9, {})
        self._silent: tuple[float, set[str]] = (-1e9, set())

    def workers(self) -> dict[str, int]:
        """Addresses of the workers that are fit, and how many tasks each does at a time."""
        at, found = self._seen
        if time.monotonic() - at > 1.0:
            found = self._ask(self.client.scheduler.ncores, workers=None)
            self._seen = time.monotonic(), found
        return {worker: n for worker, n in found.items() if worker not in self.unfit}

    def busy(self) -> dict[str, str]:
        """For every key that is being worked on, the worker."""
        found = self._ask(self.client.scheduler.processing, workers=None)
        return {str(key): worker for worker, keys in found.items() for key in keys}

    def silent(self) -> set[str]:
        """Return the workers that were not heard of lately, though others were."""
        at, found = self._silent
        if time.monotonic() - at > 1.0:
            known = self._ask(self.client.scheduler.identity)["workers"]
            heard = {worker: each["last_seen"] for worker, each in known.items()}
            last = max(heard.values(), default=0.0)
            found = {w for w, when in heard.items() if last - when > self.patience.silent}
            self._silent = time.monotonic(), found
        return found

    def holders(self, keys: Iterable[str]) -> dict[str, set[str]]:
        """For every key, the workers that have its answer."""
        found = self._ask(self.client.scheduler.who_has, keys=list(keys))
        return {str(key): set(workers) for key, workers in found.items()}

    def only_at(self, workers: set[str], keys: Iterable[str]) -> set[str]:
        """Return the keys whose answers these workers have and no other."""
        return {key for key, found in self.holders(keys).items() if found and found <= workers}

    def fetch_together(self, futures: list[Any]) -> list[Answer] | None:
        """Return the answers of futures that are done, None if one of them is not to be had."""
        found: list[list[Answer]] = []

        def fetch() -> None:
            with suppress(Exception):
                found.append(self.client.gather(futures, errors="raise"))

        # it may wait for ever for an answer whose worker died
        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        deadline = time.monotonic() + _TOGETHER_TIMEOUT
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(_PULSE)
            if any(future.status != "finished" for future in futures) or self.silent():
                break
        return found[0] if found else None

    def _ask(self, question: Any, **options: Any) -> Any:
        if self.client.status in ("closed", "closing"):
            raise self.lost("the client is closed")
        try:
            return self.client.sync(question, callback_timeout=_RPC_TIMEOUT, **options)
        except (OSError, TimeoutError, LoopCancelledError, CancelledError) as error:
            raise self.lost(str(error) or type(error).__name__) from error

    def lost(self, why: str) -> SchedulerLostError:
        """Return what to raise when the scheduler does not answer."""
        return SchedulerLostError(f"the scheduler does not answer ({why}). {self.remedy}".strip())

    def wait_for_workers(self) -> dict[str, int]:
        """Return the workers, as soon as there are any."""
        begin, told = time.monotonic(), False
        while not (found := self.workers()):
            if time.monotonic() - begin > self.patience.workers:
                raise NoWorkersError(
                    f"no worker for {self.patience.workers:g} s. {self.remedy}".strip()
                )
            if not told:
                warnings.warn(
                    f"no workers: waiting up to {self.patience.workers:g} s for one", stacklevel=2
                )
                told = True
            time.sleep(min(0.5, self.patience.workers / 4))
        if told:  # a worker that dies while its nanny still starts it does not come back
            time.sleep(1.0)
        return found

    def each(self, function: Callable[..., Any], *args: Any, seconds: float = 30) -> dict[str, Any]:
        """Run a function on every worker: its result, or its exception."""
        futures = {
            worker: self.client.submit(
                function, *args, workers=[worker], allow_other_workers=False, pure=False,
                key=f"nmfscale-probe-{secrets.token_hex(8)}",
            )
            for worker in self.wait_for_workers()
        }  # fmt: skip
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(
            future.status == "pending" and worker in self.workers().keys() - self.silent()
            for worker, future in futures.items()
        ):
            time.sleep(_PULSE / 5)
        out = {}
        for worker, future in futures.items():
            try:
                if future.status == "pending":
                    raise TimeoutError("no answer, or no sign of life")
                out[worker] = future.result(timeout=_TOGETHER_TIMEOUT)
            except (CancelledError, LoopCancelledError):
                out[worker] = WorkerDiedError("it died")
            except Exception as error:
                out[worker] = error
        self.client.cancel(list(futures.values()), force=True)
        return out

    def homes(self, numbers: Iterable[int]) -> dict[int, str]:
        """Say where jobs should run: where they did before, evenly, not at workers that lag."""
        workers = self.wait_for_workers()
        ready = [w for w in workers if not self.lags(w)] or list(workers)
        numbers = sorted(set(numbers))
        most = -(-len(numbers) // len(ready))
        load = dict.fromkeys(ready, 0)
        homeless = []
        for number in numbers:
            home = self._homes.get(number)
            if home in load and load[home] < most:
                load[home] += 1
            else:
                homeless.append(number)
        for number in homeless:
            home = min(ready, key=lambda worker: load[worker])
            load[home] += 1
            self._homes[number] = home
        return {number: self._homes[number] for number in numbers}

    def settle(self, number: int, worker: str) -> None:
        """Note where a job was done."""
        self._homes[number] = worker

    def fall_behind(self, workers: Iterable[str]) -> None:
        """Give these workers less to do for a while."""
        self._behind.update(dict.fromkeys(workers, time.monotonic() + self.patience.task))

    def catch_up(self, worker: str) -> None:
        """Note that a worker does what it should."""
        self._behind.pop(worker, None)

    def lags(self, worker: str) -> bool:
        """Whether a worker fell behind lately."""
        return self._behind.get(worker, 0.0) > time.monotonic()

    def sent(self, name: str, places: list[str]) -> Any:
        """Return the future of what is sent under a name, sent again if it is lost."""
        future = self._sent.get(name)
        if future is None or future.status in ("cancelled", "lost"):
            self._sent[name] = future = self._send(self.fetch(name), places)
        return future

    def _send(self, data: Any, places: list[str]) -> Any:
        """Send data to a worker, one of `places` at first, or to another if it does not answer."""
        for _ in range(2 * self.patience.attempts):
            workers = self.wait_for_workers()
            ready = [w for w in workers if not self.lags(w)] or list(workers)
            worker = next((w for w in places if w in ready), ready[0])
            found: list[Any] = []

            def send(worker: str = worker, found: list[Any] = found) -> None:
                try:
                    found.extend(self.client.scatter([data], hash=False, workers=[worker]))
                except Exception as error:
                    found.append(error)

            # it may wait as long as the worker's link is down
            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            while thread.is_alive() and worker not in self.silent():
                thread.join(1.0)
            if found and not isinstance(found[0], Exception):
                return found[0]
            self.fall_behind([worker])
        why = found[0] if found else "no answer"
        raise ClusterError(f"data cannot be sent to the workers ({why}). {self.remedy}".strip())

    def forget_all_at(self, workers: set[str]) -> set[str]:
        """Forget what was sent and is at these workers only; return its names."""
        keys = {future.key: name for name, future in self._sent.items()}
        lost = {keys[key] for key in self.only_at(workers, keys)}
        self.forget(lost)
        return lost

    def forget(self, names: Iterable[str]) -> None:
        """Let workers drop what was sent under these names."""
        for name in names:
            self._sent.pop(name, None)

    def forget_all(self, but: str | None = None) -> None:
        """Let workers drop what was sent, except under names that begin so."""
        self.forget([name for name in self._sent if but is None or not name.startswith(but)])

    def run(
        self, name: str, function: Callable[..., Any], jobs: list[Job], *, keep: bool = False
    ) -> list[Any]:
        """Run jobs and return what they answer, in order.

        Parameters
        ----------
        name : str
            On the dashboard.
        function : callable
            Pure: it may run several times, at several places at once.
        jobs : list of Job
        keep : bool, default=False
            Leave answers with the workers and return futures.

        Raises
        ------
        ClusterError
            If a job cannot be done: see its subclasses.
        Exception
            Whatever the function raises that is no trouble of the worker or its files.
        """
        self._n_rounds += 1
        round_ = _Round(self, f"nmfscale-{name}", function, jobs, keep)
        try:
            return round_.answers()
        finally:
            round_.clear()

    def reduce(
        self, name: str, function: Callable[..., Any], jobs: list[Job],
        combine: Callable[..., Any], fan_in: int,
    ) -> Any:  # fmt: skip
        """Run jobs and combine their answers, neighbours first, in a fixed tree on the workers."""
        for attempt in range(self.patience.attempts):
            try:
                level = self.run(name, function, jobs, keep=True)
                while True:
                    last = len(level) <= fan_in
                    together = [
                        Job(f"{name} {i}", tuple(level[i : i + fan_in]), i)
                        for i in range(0, len(level), fan_in)
                    ]
                    level = self.run(f"{name}-tree", combine, together, keep=not last)
                    if last:
                        return level[0]
            except BlockFailedError as error:
                # answers that the tree needs may have gone with their workers
                gone = isinstance(error.__cause__, (CancelledError, LoopCancelledError))
                if not (gone or error.answers_lost) or attempt == self.patience.attempts - 1:
                    raise
        raise AssertionError("unreachable")

    @property
    def round_name(self) -> str:
        """Name of the present round."""
        return f"{self.run_name}-{self._n_rounds}"


@dataclass
class _Flight:
    """A job that is out: one of perhaps several copies."""

    number: int
    future: Any
    places: list[str]
    fetch_seconds: float = 2.0
    since: float = field(default_factory=time.monotonic)


class _Round:
    """Jobs that are out, and what came back."""

    def __init__(self, crew: Crew, name: str, function: Any, jobs: list[Job], keep: bool):
        self.crew, self.name, self.function, self.jobs, self.keep = crew, name, function, jobs, keep
        self.landed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.flights: dict[str, _Flight] = {}
        self.answered: dict[int, Any] = {}
        self.failures = dict.fromkeys(range(len(jobs)), 0)
        self.sends = [set(job.sends) for job in jobs]
        # jobs whose worker died: innocent ones too, so that each is tried alone
        self.suspects: deque[int] = deque()
        self.last_answer = self.last_copy = self.last_look = time.monotonic()
        self.n_submitted = 0

    def answers(self) -> list[Any]:
        """Submit everything and wait for all answers."""
        self.homes = self.crew.homes(job.home for job in self.jobs)
        together: dict[str, list[int]] = defaultdict(list)
        for number, job in enumerate(self.jobs):
            together[self.homes[job.home]].append(number)
        for home, numbers in together.items():
            self.send(numbers, [home])
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
            keys.append(self.landed.get(timeout=_PULSE))
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
            plain = any(hasattr(arg, "add_done_callback") for arg in job.args)
            sent = {name: self.crew.sent(name, places) for name in self.sends[number]}
            given.append(None if plain else sent)
        keys = []
        for number in numbers:
            self.n_submitted += 1
            keys.append(f"{self.name}-{self.crew.round_name}-{number}-{self.n_submitted}")
        futures = self.crew.client.map(
            perform, [self.function] * len(jobs), [job.args for job in jobs], given, key=keys,
            pure=False, workers=places, allow_other_workers=not self.crew.unfit,
        )  # fmt: skip
        for number, future in zip(numbers, futures, strict=True):
            self.await_again(_Flight(number, future, places))

    def await_again(self, flight: _Flight) -> None:
        """Count a job as out until its future is done."""
        self.flights[flight.future.key] = flight
        flight.future.add_done_callback(lambda done: self.landed.put(done.key))

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
                self.fail(number, future.exception(timeout=_RPC_TIMEOUT))
            elif future.status == "cancelled":
                future.result(timeout=_RPC_TIMEOUT)
            elif future.status == "lost":
                self.submit(number)
            else:
                self.await_again(flight)
        except (CancelledError, LoopCancelledError, TimeoutError, OSError) as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost":
                raise self.crew.lost("its connection broke") from error
            self.fail(number, error)

    def take(self, flight: _Flight) -> None:
        """Keep an answer, and cancel other copies of the job."""
        number = flight.number
        if self.keep:
            self.last_answer = time.monotonic()
            self.crew.seconds[self.name].append(self.last_answer - flight.since)
            self.answered[number] = flight.future
            self.cancel_copies(number)
            return
        try:
            answer = flight.future.result(timeout=flight.fetch_seconds)
        except TimeoutError:
            flight.fetch_seconds *= 2
            key = flight.future.key
            if self.crew.holders([key]).get(key, set()) - self.crew.silent():
                self.await_again(flight)
            else:  # its worker died since
                self.submit(number)
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
        if isinstance(error, MissingArraysError):
            if any(hasattr(arg, "key") for arg in self.jobs[number].args):
                raise self.lost("to be made again, from what was not sent along") from error
            if error.args[0] not in self.sends[number]:
                self.sends[number].add(error.args[0])
                self.submit(number)
                return
        elif isinstance(error, UnfitWorkerError) and worker:
            warnings.warn(f"worker {worker} is left out: {error}", stacklevel=2)
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
        busy = self.crew.busy() if waiting else {}
        for key in waiting:
            if key not in busy:
                flight = self.flights.pop(key)
                out = {other.number for other in self.flights.values()}
                self.crew.client.cancel([flight.future], force=True)
                if not out:  # alone, so that no other task has killed the worker
                    self.fail(flight.number, WorkerDiedError("its worker died"))
                elif flight.number not in out:
                    self.submit(flight.number)
                self.last_copy = time.monotonic()

    def lost(self, where: str) -> BlockFailedError:
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
        args = [arg for number in out for arg in self.jobs[number].args]
        if self.crew.only_at(silent, [arg.key for arg in args if hasattr(arg, "key")]):
            raise self.lost("at workers that are silent")
        self.homes = self.crew.homes(job.home for job in self.jobs)
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
        self.homes = self.crew.homes(job.home for job in self.jobs)
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

    def clear(self) -> None:
        """Cancel what is still out."""
        futures = [flight.future for flight in self.flights.values()]
        self.flights = {}
        if futures and self.crew.client.status == "running":
            self.crew.client.cancel(futures, force=True)
