"""The workers of a Dask cluster, and pure tasks on them: again and elsewhere until answered.

Nothing is known here of models.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from asyncio import CancelledError as LoopCancelledError
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from ..counts.warn import warn_caller
from .batch import PULSE, RPC_TIMEOUT, Round
from .reduction import Tree
from .tasks import (
    Answer,
    ClusterError,
    Job,
    NoWorkersError,
    Patience,
    SchedulerLostError,
    WorkerDiedError,
)

# For what a worker says of itself, in seconds.
_PROBE_TIMEOUT = 10


def active_client() -> Any:
    """Return the client that is active, None if there is none to wait for or this is a task."""
    if "distributed" not in sys.modules or in_task():
        return None
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return None
    # a fit waits for answers, which one that is asynchronous gets only when nobody waits
    return None if client.status in ("closed", "closing") or client.asynchronous else client


def in_task(*, of_pool: bool = False) -> bool:
    """Whether this is a task of a worker; `of_pool`: one that keeps other tasks waiting."""
    from distributed import get_worker
    from distributed.threadpoolexecutor import thread_state

    try:
        get_worker()
    except ValueError:
        return False
    return not of_pool or getattr(thread_state, "proceed", False)


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
        # not by way of the scheduler, unless workers cannot be reached from here
        self._direct, self._fetch_seconds = True, 10.0
        self._seen: tuple[float, dict[str, int]] = (-1e9, {})
        self._silent: tuple[float, set[str]] = (-1e9, set())

    perform = staticmethod(perform)

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
            # the more workers there are, the less often the scheduler wants to hear of each
            most = max(self.patience.silent, 3 + 3 * len(heard) / 200)
            found = {worker for worker, when in heard.items() if last - when > most}
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
        failed: list[Exception] = []

        def fetch() -> None:
            try:
                found.append(self.client.gather(futures, errors="raise", direct=self._direct))
            except Exception as error:
                failed.append(error)

        # it may wait for ever for an answer whose worker died
        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        deadline = time.monotonic() + self._fetch_seconds
        while thread.is_alive():
            thread.join(PULSE)
            if any(future.status != "finished" for future in futures) or self.silent():
                break
            if time.monotonic() > deadline:
                self._fetch_seconds *= 2
                failed.append(TimeoutError())
                break
        if found:
            return found[0]
        self._direct = self._direct and not failed
        return None

    def _ask(self, question: Any, **options: Any) -> Any:
        if self.client.status in ("closed", "closing"):
            raise self.scheduler_lost("the client is closed")
        try:
            return self.client.sync(question, callback_timeout=RPC_TIMEOUT, **options)
        except (OSError, TimeoutError, LoopCancelledError, CancelledError) as error:
            raise self.scheduler_lost(str(error) or type(error).__name__) from error

    def scheduler_lost(self, why: str) -> SchedulerLostError:
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
                warn_caller(f"no workers: waiting up to {self.patience.workers:g} s for one")
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
            time.sleep(PULSE / 5)
        out = {}
        for worker, future in futures.items():
            try:
                if future.status == "pending":
                    raise TimeoutError("no answer, or no sign of life")
                out[worker] = future.result(timeout=_PROBE_TIMEOUT)
            except (CancelledError, LoopCancelledError):
                out[worker] = WorkerDiedError("it died")
            except Exception as error:
                out[worker] = error
        self.client.cancel(list(futures.values()), force=True)
        return out

    def tell_all(self, function: Callable[..., Any], *args: Any, seconds: float = 1.0) -> None:
        """Run a function on all workers that answer in time; whether any did is not known."""

        def tell() -> None:
            with suppress(Exception, LoopCancelledError, CancelledError):
                self.client.run(function, *args, on_error="ignore")

        if self.client.status == "running":
            # it may wait as long as the link of a worker is down
            thread = threading.Thread(target=tell, daemon=True)
            thread.start()
            thread.join(seconds)

    def homes(self, numbers: Iterable[int], even: bool = True) -> dict[int, str]:
        """Say where jobs should run: where they did before, not at workers that lag.

        If it has to be `even`, no worker has more of them than its share.
        """
        workers = self.wait_for_workers()
        ready = [w for w in workers if not self.lags(w)] or list(workers)
        numbers = sorted(set(numbers))
        slots = [worker for worker in ready for _ in range(workers[worker])]
        n_slots = len(slots)
        if self._homes.keys().isdisjoint(numbers):
            # neighbours together, as trees join them; one more where the last is, a small one
            places = (((i + 1) * n_slots - 1) // len(numbers) for i in range(len(numbers)))
            self._homes |= {n: slots[at] for n, at in zip(numbers, places, strict=True)}
        load = dict.fromkeys(ready, 0)
        most = {w: -(-len(numbers) * workers[w] // n_slots) for w in ready}
        homeless = []
        for number in numbers:
            home = self._homes.get(number)
            if home in load and not (even and load[home] >= most[home]):
                load[home] += 1
            else:
                homeless.append(number)
        for number in homeless:
            home = min(ready, key=lambda worker: load[worker] / workers[worker])
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

    def run(self, name: str, function: Callable[..., Any], jobs: list[Job]) -> list[Any]:
        """Run jobs and return what they answer, in order.

        Parameters
        ----------
        name : str
            On the dashboard.
        function : callable
            Pure: it may run several times, at several places at once.
        jobs : list of Job

        Raises
        ------
        ClusterError
            If a job cannot be done: see its subclasses.
        Exception
            Whatever the function raises that is no trouble of the worker or its files.
        """
        with self.round(name, function, jobs) as round_:
            round_.send_all()
            return round_.answers()

    def round(
        self, name: str, function: Callable[..., Any], jobs: list[Job], *, keep: bool = False,
        even: bool = True,
    ) -> Round:  # fmt: skip
        """Return a round of jobs, none of which has been sent yet; see `homes` for `even`.

        With `keep` answers stay with the workers, and futures are returned.
        """
        return Round(self, f"nmfscale-{name}", function, jobs, keep, even)

    def reduce(
        self, name: str, function: Callable[..., Any], jobs: list[Job],
        combine: Callable[..., Any], fan_in: int,
    ) -> Any:  # fmt: skip
        """Run jobs and combine their answers, neighbours first, in a fixed tree on the workers."""
        return Tree(self, name, function, combine, fan_in).answer(jobs)

    def next_round(self) -> str:
        """Return a name for one more round."""
        self._n_rounds += 1
        return f"{self.run_name}-{self._n_rounds}"
