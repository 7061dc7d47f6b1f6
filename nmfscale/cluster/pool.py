"""The workers of a Dask cluster, and pure tasks on them: tried again until they are done.

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
from functools import partial
from itertools import count
from typing import Any

from ..counts.warn import warn_caller
from .batch import PULSE, RPC_TIMEOUT, TaskBatch
from .reduction import TreeReduction
from .tasks import (
    ClusterError,
    NoWorkersError,
    RetryPolicy,
    SchedulerLostError,
    Task,
    TaskResult,
    WorkerDiedError,
)

# For what a worker says of itself, in seconds.
_PROBE_TIMEOUT = 10
# Above this share of its memory a worker gets no more tasks.
_BUSY = 0.8


def active_client() -> Any:
    """Return the client that is active, None if there is none to wait for or this is a task."""
    if "distributed" not in sys.modules or in_task():
        return None
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return None
    # a fit waits for results, which one that is asynchronous gets only when nobody waits
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


def memory_of_task() -> int | None:
    """Return the bytes that a worker may hold together with this task: its share of what is free.

    None where this is no task, or its worker has no limit.
    """
    if "distributed" not in sys.modules or not in_task():
        return None
    import psutil
    from distributed import get_worker

    limit, held = worker_memory(), psutil.Process().memory_info().rss
    if limit is None:
        return None
    return held + max(0, int(_BUSY * limit) - held) // int(get_worker().state.nthreads)


def perform(function: Callable[..., Any], args: tuple[Any, ...], given: Any) -> TaskResult:
    """Run a task on a worker."""
    from distributed import get_worker

    worker, begin = str(get_worker().address), time.monotonic()
    args = tuple(arg.value if isinstance(arg, TaskResult) else arg for arg in args)
    try:
        value = function(*args) if given is None else function(*args, given)
    except Exception as error:
        error.__dict__["worker"] = worker
        raise
    return TaskResult(value, worker, time.monotonic() - begin)


def _in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start work that may wait for ever; the list gets its result, or its exception."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except (Exception, LoopCancelledError, CancelledError) as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


class WorkerPool:
    """The workers that a client's scheduler knows, whoever started the cluster.

    `fetch`, called with a name, returns what is to be sent to workers under it; `hint` says in
    messages how the computation can be taken up again.
    """

    def __init__(
        self, client: Any, fetch: Callable[[str], Any], retry: RetryPolicy | None = None,
        hint: str = "",
    ):  # fmt: skip
        self.client, self.fetch, self.hint = client, fetch, hint
        self.retry = retry or RetryPolicy()
        self.run_name, self.batch_numbers = secrets.token_hex(4), count(1)
        self.seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=64))
        self.excluded: set[str] = set()
        self._slow_until: dict[str, float] = {}
        self._placement: dict[int, str] = {}
        self._sent: dict[str, Any] = {}
        # not by way of the scheduler, unless workers cannot be reached from here
        self._direct, self._fetch_seconds = True, 10.0
        self._seen: tuple[float, dict[str, int]] = (-1e9, {})
        self._silent: tuple[float, set[str]] = (-1e9, set())

    perform = staticmethod(perform)

    def workers(self) -> dict[str, int]:
        """Return the workers that are not excluded, and how many tasks each does at a time."""
        at, found = self._seen
        if time.monotonic() - at > 1.0:
            found = self._ask(self.client.scheduler.ncores, workers=None)
            self._seen = time.monotonic(), found
        return {worker: n for worker, n in found.items() if worker not in self.excluded}

    def busy(self) -> dict[str, str]:
        """Return the worker of every key that is being computed."""
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
            most = max(self.retry.silent, 3 + 3 * len(heard) / 200)
            found = {worker for worker, when in heard.items() if last - when > most}
            self._silent = time.monotonic(), found
        return found

    def holders(self, keys: Iterable[str]) -> dict[str, set[str]]:
        """Return the workers that have the result of each key."""
        found = self._ask(self.client.scheduler.who_has, keys=list(keys))
        return {str(key): set(workers) for key, workers in found.items()}

    def only_at(self, workers: set[str], keys: Iterable[str]) -> set[str]:
        """Return the keys whose results these workers have and no other."""
        return {key for key, found in self.holders(keys).items() if found and found <= workers}

    def fetch_together(self, futures: list[Any]) -> list[TaskResult] | None:
        """Return the results of futures that are done, None if one of them is not to be had."""
        # it may wait for ever for a result whose worker died
        thread, found = _in_background(
            lambda: self.client.gather(futures, errors="raise", direct=self._direct)
        )
        deadline = time.monotonic() + self._fetch_seconds
        while thread.is_alive():
            thread.join(PULSE)
            if any(future.status != "finished" for future in futures) or self.silent():
                break
            if time.monotonic() > deadline:
                self._fetch_seconds *= 2
                found = found or [TimeoutError()]
                break
        if found and not isinstance(found[0], BaseException):
            results: list[TaskResult] = found[0]
            return results
        self._direct = self._direct and not found
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
        return SchedulerLostError(f"the scheduler does not answer ({why}). {self.hint}".strip())

    def wait_for_workers(self) -> dict[str, int]:
        """Return the workers, as soon as there are any."""
        begin, told = time.monotonic(), False
        while not (found := self.workers()):
            if time.monotonic() - begin > self.retry.workers:
                raise NoWorkersError(f"no worker for {self.retry.workers:g} s. {self.hint}".strip())
            if not told:
                warn_caller(f"no workers: waiting up to {self.retry.workers:g} s for one")
                told = True
            time.sleep(min(0.5, self.retry.workers / 4))
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
        if self.client.status == "running":
            # it may wait as long as the link of a worker is down
            tell = partial(self.client.run, function, *args, on_error="ignore")
            _in_background(tell)[0].join(seconds)

    def placement(self, numbers: Iterable[int], even: bool = True) -> dict[int, str]:
        """Say where tasks should run: where they did before, not at slow workers.

        If it has to be `even`, no worker has more of them than its share.
        """
        workers, ready = self._ready()
        numbers = sorted(set(numbers))
        slots = [worker for worker in ready for _ in range(workers[worker])]
        n_slots = len(slots)
        if self._placement.keys().isdisjoint(numbers):
            # neighbours together, as trees join them; one more where the last is, a small one
            at = (((i + 1) * n_slots - 1) // len(numbers) for i in range(len(numbers)))
            self._placement |= {n: slots[slot] for n, slot in zip(numbers, at, strict=True)}
        load = dict.fromkeys(ready, 0)
        most = {w: -(-len(numbers) * workers[w] // n_slots) for w in ready}
        unplaced = []
        for number in numbers:
            worker = self._placement.get(number)
            if worker in load and not (even and load[worker] >= most[worker]):
                load[worker] += 1
            else:
                unplaced.append(number)
        for number in unplaced:
            worker = min(ready, key=lambda each: load[each] / workers[each])
            load[worker] += 1
            self._placement[number] = worker
        return {number: self._placement[number] for number in numbers}

    def note_done(self, number: int, worker: str) -> None:
        """Note where a task was done, by a worker that does what it should."""
        self._placement[number] = worker
        self._slow_until.pop(worker, None)

    def mark_slow(self, workers: Iterable[str]) -> None:
        """Give these workers less to do for a while."""
        self._slow_until.update(dict.fromkeys(workers, time.monotonic() + self.retry.task))

    def _ready(self) -> tuple[dict[str, int], list[str]]:
        """Return all workers, as soon as there are any, and those that are not slow, if any."""
        workers, now = self.wait_for_workers(), time.monotonic()
        return workers, [w for w in workers if self._slow_until.get(w, 0.0) <= now] or [*workers]

    def sent(self, name: str, targets: list[str]) -> Any:
        """Return the future of what is sent under a name, sent again if it is lost."""
        future = self._sent.get(name)
        if future is None or future.status in ("cancelled", "lost"):
            self._sent[name] = future = self._send(self.fetch(name), targets)
        return future

    def _send(self, data: Any, targets: list[str]) -> Any:
        """Send data to a worker, one of `targets` at first, or to another if it does not answer."""
        end = time.monotonic() + self.retry.task
        for attempt in count(1):
            _, ready = self._ready()
            worker = next((w for w in targets if w in ready), ready[0])
            # it may wait as long as the worker's link is down
            send = partial(self.client.scatter, [data], hash=False, workers=[worker])
            thread, found = _in_background(send)
            while thread.is_alive() and worker not in self.silent():
                thread.join(1.0)
            if found and not isinstance(found[0], BaseException):
                return found[0][0]
            self.mark_slow([worker])
            if attempt >= 2 * self.retry.attempts and time.monotonic() > end:
                break
            # where all workers die at once, others start in a few seconds
            time.sleep(min(1.0, 0.05 * attempt))
        why = found[0] if found else "no answer"
        raise ClusterError(f"data cannot be sent to the workers ({why}). {self.hint}".strip())

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

    def run(self, name: str, function: Callable[..., Any], tasks: list[Task]) -> list[Any]:
        """Run tasks and return what they return, in order.

        The function is pure: it may run several times, at several workers at once.  What it raises
        is raised, unless it is a fault of the worker or its files; that is a ClusterError.
        """
        with self.batch(name, function, tasks) as batch:
            batch.send_all()
            return batch.results()

    def batch(
        self, name: str, function: Callable[..., Any], tasks: list[Task], *, keep: bool = False,
        even: bool = True,
    ) -> TaskBatch:  # fmt: skip
        """Return a batch of tasks, none of which is submitted yet; see `placement` for `even`.

        With `keep` results stay with the workers, and futures are returned.
        """
        return TaskBatch(self, f"nmfscale-{name}", function, tasks, keep, even)

    def reduce(
        self, name: str, function: Callable[..., Any], tasks: list[Task],
        combine: Callable[..., Any], fan_in: int,
    ) -> Any:  # fmt: skip
        """Run tasks and combine their results, neighbours first, in a fixed tree on the workers."""
        return TreeReduction(self, name, function, combine, fan_in).result(tasks)
