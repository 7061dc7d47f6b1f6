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

    answers_lost = False


class WorkerDiedError(OSError):
    """The worker of a task died."""


class UnfitWorkerError(RuntimeError):
    """A worker cannot do what the others do; tasks that raise it are tried elsewhere."""


class MissingArraysError(LookupError):
    """A task needs arrays of these names, which were not sent along."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait, in seconds, and how often to try.

    Attributes
    ----------
    workers : float, default=300
        For a worker to come (back) when there is none.
    attempts : int, default=3
        Failures of one task before the computation is given up.
    task : float, default=60
        Without any result before tasks are given up and tried again; five times the usual if that
        is longer.
    silent : float, default=5
        Without a sign of life from a worker, when others gave some, before it is passed over.
    late : float, default=1
        Without any result before a second copy of what is out is started, or a tree is worked
        through level by level; twice what tasks usually took if that is longer.
    """

    workers: float = 300.0
    attempts: int = 3
    task: float = 60.0
    silent: float = 5.0
    late: float = 1.0


class Task(NamedTuple):
    """One task of a round.

    Attributes
    ----------
    label : str
        For messages.
    args : tuple
        Of the function, which gets a dict of what was sent as its last argument, unless one of them
        is the result of another task, a future.
    affinity : int
        Jobs of the same number are sent to the same worker if possible.
    sends : tuple of str
        Names of what is sent along.
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
