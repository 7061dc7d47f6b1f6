"""What is said of tasks on a cluster: tasks, results, retry, and what may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class ClusterError(RuntimeError):
    """A computation on a cluster cannot go on."""


class NoWorkersError(ClusterError):
    """All workers are gone and none came back."""


class SchedulerLostError(ClusterError):
    """The scheduler is gone, and with it all that it was told."""


class BlockFailedError(ClusterError):
    """One task failed again and again."""

    results_lost = False


class WorkerDiedError(OSError):
    """The worker of a task died."""


class UnfitWorkerError(RuntimeError):
    """A worker cannot do what the others do; tasks that raise it are tried elsewhere."""


class MissingArraysError(LookupError):
    """A task needs arrays of these names, which were not sent along."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait, in seconds, and how often to try."""

    # for a worker to come (back) when there is none
    workers: float = 300.0
    # failures of one task before the computation is given up
    attempts: int = 3
    # without any result before tasks are cancelled and tried again; five times the median of tasks
    # if that is longer
    task: float = 60.0
    # without a sign of life from a worker, when others gave some, before it gets no more tasks
    silent: float = 5.0
    # without any result before a second copy of what runs is started, or a tree is combined level
    # by level; twice the median of tasks if that is longer
    late: float = 1.0


class Task(NamedTuple):
    """One task of a batch.

    `label` is for messages.  The function gets a dict of what is sent along under the names `sends`
    as its last argument, unless one of `args` is the future of another task.  Tasks of the same
    `affinity` go to the same worker if possible.
    """

    label: str
    args: tuple[Any, ...]
    affinity: int
    sends: tuple[str, ...] = ()


class TaskResult(NamedTuple):
    """What a task returned, where, and how many seconds it took."""

    value: Any
    worker: str
    seconds: float
