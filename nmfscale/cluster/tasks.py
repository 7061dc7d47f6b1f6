"""Tasks on a cluster, their results, the retry policy, and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class ClusterError(RuntimeError):
    """A computation on a cluster cannot continue."""

    __module__ = "nmfscale.errors"


class NoWorkersError(ClusterError):
    """All workers are gone, and none has come back."""

    __module__ = "nmfscale.errors"


class SchedulerLostError(ClusterError):
    """The scheduler is gone, and with it all submitted tasks and results."""

    __module__ = "nmfscale.errors"


class BlockFailedError(ClusterError):
    """One task failed repeatedly."""

    __module__ = "nmfscale.errors"

    results_lost = False


class WorkerDiedError(OSError):
    """The worker of a task died."""


class UnfitWorkerError(RuntimeError):
    """A worker cannot run a task as other workers do; the task is retried elsewhere."""


class MissingArraysError(LookupError):
    """A task needs arrays with these names, which were not sent with it."""


@dataclass(frozen=True)
class RetryPolicy:
    """Waiting times in seconds, and the number of attempts."""

    # wait for a worker if there is none
    workers: float = 300.0
    # failures of one task after which the computation fails
    attempts: int = 3
    # time without any result after which running tasks are cancelled and retried; five times the
    # median duration of tasks if that is longer; that of a block, as long as there is no median
    task: float = 60.0
    # time without a heartbeat, while other workers had one, after which a worker gets no new tasks
    silent: float = 5.0
    # time without any result after which second copies of running tasks are started, or a tree is
    # combined level by level; twice the median duration of tasks if that is longer
    late: float = 1.0


class Task(NamedTuple):
    """One task of a batch.

    `label` names it in messages.  The function receives a dict with the data sent under the names
    `sends` as its last argument, unless one of `args` is the future of another task.  Tasks with
    the same `affinity` run on the same worker if possible.  `n_blocks` is the size of a task.
    """

    label: str
    args: tuple[Any, ...]
    affinity: int
    sends: tuple[str, ...] = ()
    n_blocks: int = 1


class TaskResult(NamedTuple):
    """The value that a task returned, its worker, and its duration in seconds."""

    value: Any
    worker: str
    seconds: float
