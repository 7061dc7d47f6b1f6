"""Answers of tasks on a cluster, combined in a fixed tree.

Tasks and tree go out as one graph, so that nothing waits for the driver between two levels.  As
soon as something is not as it should be, the tree is taken back and worked through level by level,
with all the care of a `TaskBatch`.
"""

from __future__ import annotations

import statistics
import time
from asyncio import CancelledError as LoopCancelledError
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from itertools import count
from typing import Any

from .batch import TaskBatch
from .tasks import BlockFailedError, Task, TaskResult


class TreeReduction:
    """Runs tasks and combines their results, at most `fan_in` at a time, neighbours first.

    `function` is what tasks run; `combine` takes several of its results and gives one; both pure.
    """

    def __init__(
        self, pool: Any, name: str, function: Callable[..., Any], combine: Callable[..., Any],
        fan_in: int,
    ):  # fmt: skip
        self.pool, self.name = pool, name
        self.function, self.combine, self.fan_in = function, combine, fan_in

    def result(self, tasks: list[Task]) -> Any:
        """Run tasks and return the one result that theirs come to."""
        retry, begin = self.pool.retry, time.monotonic()
        for attempt in count(1):
            try:
                with self.pool.batch(self.name, self.function, tasks, keep=True) as leaves:
                    result = self._at_once(leaves)
                    return self._level_by_level(leaves) if result is None else result.value
            except BlockFailedError as error:
                # results that the tree needs may have gone with their workers
                gone = isinstance(error.__cause__, (CancelledError, LoopCancelledError))
                if not (gone or error.results_lost):
                    raise
                # workers that die all the time do not count as failures of these tasks
                if attempt >= retry.attempts and (gone or time.monotonic() - begin > retry.workers):
                    raise
        raise AssertionError("unreachable")

    def _above(self, level: list[Any], placement: list[int], keep: bool = True) -> TaskBatch:
        """Return the batch that combines the results of a level, each where its first is."""
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
        """Submit everything; None as soon as it takes long or something fails."""
        pool, since, n_done = self.pool, time.monotonic(), 0
        level, placement = leaves.send_all(), [task.affinity for task in leaves.tasks]
        with ExitStack() as stack:
            batches = [leaves]
            while len(batches) == 1 or len(level) > 1:
                batches.append(stack.enter_context(self._above(level, placement)))
                level, placement = batches[-1].send_all(), placement[:: self.fan_in]
            known = pool.seconds[leaves.name]
            median = statistics.median(known) if known else pool.retry.task / 2
            while not batches[-1].completed():
                if leaves.done_keys.qsize() > n_done:
                    n_done, since = leaves.done_keys.qsize(), time.monotonic()
                late = time.monotonic() - since > max(pool.retry.late, 2 * median)
                if late or pool.silent() or any(each.is_stuck() for each in batches):
                    return None
            results = pool.fetch_together(level) if level[0].status == "finished" else None
            if results is None:
                return None
            attempts = leaves.running.values()
            pool.seconds[leaves.name].extend(each.ended - each.since for each in attempts)
            found: TaskResult = results[0]
            return found

    def _level_by_level(self, leaves: TaskBatch) -> Any:
        level, placement = leaves.results(), [task.affinity for task in leaves.tasks]
        while True:
            last = len(level) <= self.fan_in
            with self._above(level, placement, keep=not last) as above:
                above.send_all()
                level, placement = above.results(), placement[:: self.fan_in]
            if last:
                return level[0]
