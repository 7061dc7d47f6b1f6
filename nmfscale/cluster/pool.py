"""The workers of a Dask cluster: which are there, where tasks run, which data they have received.

Tasks are pure functions, and are retried until they are done. This module knows no models.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from asyncio import CancelledError as LoopCancelledError
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
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

# Seconds to wait for the result of a probe of a worker.
_PROBE_TIMEOUT = 10
# A worker that uses more than this share of its memory gets no more tasks.
_BUSY = 0.8


def active_client() -> Any:
    """Return the active client that a fit can wait for; None without one, or inside a task."""
    if "distributed" not in sys.modules or in_task():
        return None
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return None
    # a fit blocks until results arrive, and would block the event loop of an asynchronous client
    return None if client.status in ("closed", "closing") or client.asynchronous else client


def in_task(*, of_pool: bool = False) -> bool:
    """Whether this code runs in a task of a worker; with `of_pool`, in one that takes a slot."""
    from distributed import get_worker
    from distributed.threadpoolexecutor import thread_state

    try:
        get_worker()
    except ValueError:
        return False
    return not of_pool or getattr(thread_state, "proceed", False)


def worker_memory() -> int | None:
    """Return the memory limit in bytes of this task's worker, or None without a limit."""
    from distributed import get_worker

    limit = get_worker().memory_manager.memory_limit
    return int(limit) if limit else None


def memory_of_task() -> int | None:
    """Return how many bytes the process may use with this task's share of the free memory.

    None outside of a task, or if its worker has no limit.
    """
    if "distributed" not in sys.modules or not in_task():
        return None
    import psutil
    from distributed import get_worker

    limit, held = worker_memory(), psutil.Process().memory_info().rss
    if limit is None:
        return None
    return held + max(0, int(_BUSY * limit) - held) // int(get_worker().state.nthreads)


def perform(function: Callable[..., Any], args: tuple[Any, ...], data: Any) -> TaskResult:
    """Run a task on a worker; `data`, unless None, is its last argument."""
    from distributed import get_worker

    worker, begin = str(get_worker().address), time.monotonic()
    args = tuple(arg.value if isinstance(arg, TaskResult) else arg for arg in args)
    try:
        value = function(*args) if data is None else function(*args, data)
    except Exception as error:
        error.__dict__["worker"] = worker
        raise
    return TaskResult(value, worker, time.monotonic() - begin)


def _in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start work that may block forever; the list receives its result, or its exception."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except (Exception, LoopCancelledError, CancelledError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


# What calls of a client raise if it is closed meanwhile, depending on the moment.
_OF_CLOSED = RuntimeError, AttributeError, OSError, CancelledError, LoopCancelledError


class WorkerPool:
    """The workers of a client's cluster.

    `fetch(name)` returns the data to send to workers under this name. `hint` tells users in
    messages how to resume the computation.
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
        # fetch results directly from workers; through the scheduler if they cannot be reached
        self._direct, self._fetch_seconds = True, 10.0
        self._seen: tuple[float, dict[str, int]] = (-1e9, {})
        self._silent: tuple[float, set[str]] = (-1e9, set())

    perform = staticmethod(perform)

    def workers(self) -> dict[str, int]:
        """Return the workers that are not excluded, and how many tasks each runs at a time."""
        at, cores = self._seen
        if time.monotonic() - at > 1.0:
            cores = self._ask(self.client.scheduler.ncores, workers=None)
            self._seen = time.monotonic(), cores
        return {worker: n for worker, n in cores.items() if worker not in self.excluded}

    def busy(self) -> dict[str, str]:
        """Return the worker of each key that is being computed."""
        processing = self._ask(self.client.scheduler.processing, workers=None)
        return {str(key): worker for worker, keys in processing.items() for key in keys}

    def silent(self) -> set[str]:
        """Return the workers without a recent heartbeat, while other workers had one."""
        at, silent = self._silent
        if time.monotonic() - at > 1.0:
            workers = self._ask(self.client.scheduler.identity)["workers"]
            heard = {worker: info["last_seen"] for worker, info in workers.items()}
            last = max(heard.values(), default=0.0)
            # with more workers, the scheduler asks for heartbeats less often
            most = max(self.retry.silent, 3 + 3 * len(heard) / 200)
            silent = {worker for worker, when in heard.items() if last - when > most}
            self._silent = time.monotonic(), silent
        return silent

    def holders(self, keys: Iterable[str]) -> dict[str, set[str]]:
        """Return the workers that have the result of each key."""
        holders = self._ask(self.client.scheduler.who_has, keys=list(keys))
        return {str(key): set(workers) for key, workers in holders.items()}

    def only_at(self, workers: set[str], keys: Iterable[str]) -> set[str]:
        """Return the keys whose results no other workers have."""
        return {
            key for key, holders in self.holders(keys).items() if holders and holders <= workers
        }

    def fetch_together(self, futures: list[Any]) -> list[TaskResult] | None:
        """Return the results of finished futures, or None if one of them cannot be fetched."""
        # gather may block forever if the worker of a result died
        thread, outcome = _in_background(
            lambda: self.client.gather(futures, errors="raise", direct=self._direct)
        )
        deadline = time.monotonic() + self._fetch_seconds
        while thread.is_alive():
            thread.join(PULSE)
            if any(future.status != "finished" for future in futures) or self.silent():
                break
            if time.monotonic() > deadline:
                self._fetch_seconds *= 2
                outcome = outcome or [TimeoutError()]
                break
        if outcome and not isinstance(outcome[0], BaseException):
            results: list[TaskResult] = outcome[0]
            return results
        self._direct = self._direct and not outcome
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Release sent data at the end; a client that is closed counts as a lost scheduler."""
        try:
            yield
        except (Exception, LoopCancelledError) as error:
            # by name, because only newer versions of Dask have this class
            closed = type(error).__name__ == "ClosedClientError" or isinstance(error, _OF_CLOSED)
            if not closed or isinstance(error, ClusterError) or self.client.status == "running":
                raise
            raise self.scheduler_lost("the client is closed") from error
        finally:
            self.forget_all()

    def _ask(self, question: Any, **options: Any) -> Any:
        if self.client.status in ("closed", "closing"):
            raise self.scheduler_lost("the client is closed")
        try:
            return self.client.sync(question, callback_timeout=RPC_TIMEOUT, **options)
        except (OSError, TimeoutError, LoopCancelledError, CancelledError) as error:
            raise self.scheduler_lost(str(error) or type(error).__name__) from error

    def scheduler_lost(self, why: str) -> SchedulerLostError:
        """Return the error for a scheduler that does not answer."""
        return SchedulerLostError(f"the scheduler does not answer ({why}). {self.hint}".strip())

    def wait_for_workers(self) -> dict[str, int]:
        """Return the workers; wait until there is at least one."""
        begin, told = time.monotonic(), False
        while not (workers := self.workers()):
            if time.monotonic() - begin > self.retry.workers:
                raise NoWorkersError(f"no worker for {self.retry.workers:g} s. {self.hint}".strip())
            if not told:
                warn_caller(f"no workers: waiting up to {self.retry.workers:g} s for one")
                told = True
            time.sleep(min(0.5, self.retry.workers / 4))
        if told:  # a worker that dies while its nanny starts it is not restarted: let it settle
            time.sleep(1.0)
        return workers

    def each(self, function: Callable[..., Any], *args: Any, seconds: float = 30) -> dict[str, Any]:
        """Run a function on every worker; return each worker's result or exception."""
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
                    raise TimeoutError("no answer in time")
                out[worker] = future.result(timeout=_PROBE_TIMEOUT)
            except (CancelledError, LoopCancelledError):
                out[worker] = WorkerDiedError("it died")
            except Exception as error:
                out[worker] = error
        self.client.cancel(list(futures.values()), force=True)
        return out

    def tell_all(self, function: Callable[..., Any], *args: Any, seconds: float = 1.0) -> None:
        """Run a function on all workers that can be reached in time; do not wait for results."""
        if self.client.status == "running":
            # client.run may block as long as the connection to a worker is down
            tell = partial(self.client.run, function, *args, on_error="ignore")
            _in_background(tell)[0].join(seconds)

    def placement(self, numbers: Iterable[int], even: bool = True) -> dict[int, str]:
        """Return the worker for each task: the one that ran it before, unless it is slow.

        With `even`, no worker gets more tasks than its share.
        """
        workers, ready = self._ready()
        numbers = sorted(set(numbers))
        slots = [worker for worker in ready for _ in range(workers[worker])]
        n_slots = len(slots)
        if self._placement.keys().isdisjoint(numbers):
            # consecutive tasks on the same worker, because trees combine neighbours; the last
            # task is small, so its worker gets the remainder
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
            worker = min(ready, key=lambda candidate: load[candidate] / workers[candidate])
            load[worker] += 1
            self._placement[number] = worker
        return {number: self._placement[number] for number in numbers}

    def note_done(self, number: int, worker: str) -> None:
        """Record the worker that has run a task, which therefore is not slow."""
        self._placement[number] = worker
        self._slow_until.pop(worker, None)

    def mark_slow(self, workers: Iterable[str]) -> None:
        """Prefer other workers to these for a while."""
        self._slow_until.update(dict.fromkeys(workers, time.monotonic() + self.retry.task))

    def ready(self) -> dict[str, int]:
        """Return the workers that are not slow, and how many tasks each runs at a time."""
        workers, ready = self._ready()
        return {worker: workers[worker] for worker in ready}

    def _ready(self) -> tuple[dict[str, int], list[str]]:
        """Return all workers, and those that are not slow (all if every one is); wait for one."""
        workers, now = self.wait_for_workers(), time.monotonic()
        return workers, [w for w in workers if self._slow_until.get(w, 0.0) <= now] or [*workers]

    def sent(self, name: str, targets: list[str]) -> Any:
        """Return the future of the data with a name; send the data if needed, or lost."""
        future = self._sent.get(name)
        if future is None or future.status in ("cancelled", "lost"):
            self._sent[name] = future = self._send(self.fetch(name), targets)
        return future

    def _send(self, data: Any, targets: list[str]) -> Any:
        """Send data to one of `targets`, or to another worker if it does not answer."""
        end = time.monotonic() + self.retry.task
        for attempt in count(1):
            _, ready = self._ready()
            worker = next((w for w in targets if w in ready), ready[0])
            # scatter may block as long as the connection to the worker is down
            send = partial(self.client.scatter, [data], hash=False, workers=[worker])
            thread, outcome = _in_background(send)
            while thread.is_alive() and worker not in self.silent():
                thread.join(1.0)
            if outcome and not isinstance(outcome[0], BaseException):
                return outcome[0][0]
            self.mark_slow([worker])
            if attempt >= 2 * self.retry.attempts and time.monotonic() > end:
                break
            # if all workers die at once, new ones may start within seconds
            time.sleep(min(1.0, 0.05 * attempt))
        why = outcome[0] if outcome else "no answer"
        raise ClusterError(f"data cannot be sent to the workers ({why}). {self.hint}".strip())

    def forget_all_at(self, workers: set[str]) -> set[str]:
        """Forget sent data that only these workers have; return the names."""
        keys = {future.key: name for name, future in self._sent.items()}
        lost = {keys[key] for key in self.only_at(workers, keys)}
        self.forget(lost)
        return lost

    def forget(self, names: Iterable[str]) -> None:
        """Let workers release the data sent under these names."""
        for name in names:
            self._sent.pop(name, None)

    def forget_all(self, but: str | None = None) -> None:
        """Let workers release all sent data, except under names that start with `but`."""
        self.forget([name for name in self._sent if but is None or not name.startswith(but)])

    def run(self, name: str, function: Callable[..., Any], tasks: list[Task]) -> list[Any]:
        """Run tasks, and return their results in order.

        The function must be pure: it may run several times, and on several workers at once.  Its
        exceptions are raised here; faults of a worker or its files raise a ClusterError.
        """
        with self.batch(name, function, tasks) as batch:
            batch.send_all()
            return batch.results()

    def batch(
        self, name: str, function: Callable[..., Any], tasks: list[Task], *, keep: bool = False,
        even: bool = True,
    ) -> TaskBatch:  # fmt: skip
        """Return a batch of tasks that are not submitted yet; `even` is as in `placement`.

        With `keep`, results stay on the workers, and the batch returns futures.
        """
        return TaskBatch(self, f"nmfscale-{name}", function, tasks, keep, even)

    def reduce(
        self, name: str, function: Callable[..., Any], tasks: list[Task],
        combine: Callable[..., Any], fan_in: int,
    ) -> Any:  # fmt: skip
        """Run tasks and combine their results on the workers, in a fixed tree of neighbours."""
        return TreeReduction(self, name, function, combine, fan_in).result(tasks)
