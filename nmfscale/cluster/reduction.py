"""Reduction on a cluster: the results of tasks are combined in a fixed tree.

All tasks and combinations are submitted at once, so that no level of the tree waits for the client.
As soon as a task fails or takes long, the tree is cancelled and processed level by level instead,
with the fault tolerance of a `TaskBatch`.
"""

from __future__ import annotations

import statistics
import time
from asyncio import CancelledError as LoopCancelledError
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

from .batch import TaskBatch
from .tasks import BlockFailedError, Task, TaskResult

if TYPE_CHECKING:
    from .pool import WorkerPool


class TreeReduction:
    """Runs tasks and combines their results in a tree, `fan_in` neighbours at a time.

    Tasks run `function`; `combine` takes several of its results and returns one. Both must be pure.
    """

    def __init__(
        self, pool: WorkerPool, name: str, function: Callable[..., Any],
        combine: Callable[..., Any], fan_in: int,
    ):  # fmt: skip
        self.pool, self.name = pool, name
        self.function, self.combine, self.fan_in = function, combine, fan_in

    def result(self, tasks: list[Task]) -> Any:
        """Run tasks, and return the combination of all results."""
        retry, begin = self.pool.retry, time.monotonic()
        for attempt in count(1):
            try:
                with self.pool.batch(self.name, self.function, tasks, keep=True) as leaves:
                    result = self._at_once(leaves)
                    return self._level_by_level(leaves) if result is None else result.value
            except BlockFailedError as error:
                # results that the tree needs may be lost with their workers
                gone = isinstance(error.__cause__, (CancelledError, LoopCancelledError))
                if not (gone or error.results_lost):
                    raise
                # workers that keep dying do not count as failures of these tasks
                if attempt >= retry.attempts and (gone or time.monotonic() - begin > retry.workers):
                    raise
        raise AssertionError("unreachable")

    def _above(self, level: list[Any], placement: list[int], keep: bool = True) -> TaskBatch:
        """Return the batch that combines a level's results, each on the worker of its first."""
        size = self.fan_in
        tasks = [
            Task(f"{self.name} {i}", tuple(level[i : i + size]), placement[i])
            for i in range(0, len(level), size)
        ]
        made: TaskBatch = self.pool.batch(
            f"{self.name}-tree", self.combine, tasks, keep=keep, even=False
        )
        return made

    def _at_once(self, leaves: TaskBatch) -> TaskResult | None:
        """Submit the whole tree; return None as soon as it takes long or a task fails."""
        pool, since, n_done = self.pool, time.monotonic(), 0
        level, placement = leaves.send_all(), [task.affinity for task in leaves.tasks]
        with ExitStack() as stack:
            batches = [leaves]
            while len(batches) == 1 or len(level) > 1:
                batches.append(stack.enter_context(self._above(level, placement)))
                level, placement = batches[-1].send_all(), placement[:: self.fan_in]
            seconds = pool.seconds[leaves.name]
            median = statistics.median(seconds) if seconds else leaves.first_seconds / 2
            while not batches[-1].completed():
                if leaves.done_keys.qsize() > n_done:
                    n_done, since = leaves.done_keys.qsize(), time.monotonic()
                late = time.monotonic() - since > max(pool.retry.late, 2 * median)
                if late or pool.silent() or any(batch.is_stuck() for batch in batches):
                    return None
            results = pool.fetch_together(level) if level[0].status == "finished" else None
            if results is None:
                return None
            attempts = leaves.running.values()
            pool.seconds[leaves.name].extend(attempt.ended - attempt.since for attempt in attempts)
            root: TaskResult = results[0]
            return root

    def _level_by_level(self, leaves: TaskBatch) -> Any:
        level, placement = leaves.results(), [task.affinity for task in leaves.tasks]
        while True:
            last = len(level) <= self.fan_in
            with self._above(level, placement, keep=not last) as above:
                above.send_all()
                level, placement = above.results(), placement[:: self.fan_in]
            if last:
                return level[0]
