"""Thread counts: our kernels' number is explicit, other libraries are limited to one."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

from .. import kernels
from ..counts.control_groups import MEMBERSHIP, ROOT, group_folders, text_of

_VARIABLE = "NMFSCALE_NUM_THREADS"
# No machine has more processors, and OpenMP aborts if the system cannot create its threads.
MOST_THREADS = 4096
# Nonzero counts times components below which a second thread saves less than 5 % of the time, and
# loses far more on a busy machine.
SMALL_WORK = 1e6


def resolve_threads(n_threads: int | None = None, work: float = math.inf) -> int:
    """Return the number of threads to use, at least 1, for `work`: nonzero counts x components.

    A positive number is used as it is, even beyond the number of processors. -1 means all
    processors, -2 all but one, and so on. None means the environment variable
    NMFSCALE_NUM_THREADS, which is read by the same rules; if it is unset or empty, one thread for
    work of less than `SMALL_WORK`, or all processors. OMP_NUM_THREADS is ignored: the number is
    passed to every parallel loop, so that a process whose environment sets one thread (a Dask
    worker, for instance) still uses the processors it was given. A process that was forked from one
    that has used several threads uses one: the threads of OpenMP do not survive a fork, and the
    process would wait for them forever.
    """
    name: str = "n_threads"
    requested: object = n_threads
    if requested is None:
        text = os.environ.get(_VARIABLE, "").strip()
        if not text:
            return _team.of(1 if work < SMALL_WORK else available_processors())
        name, requested = f"The environment variable {_VARIABLE}", _integer_or_text(text)
    number = int(requested) if isinstance(requested, Integral) else 0
    if isinstance(requested, bool) or not number or number > MOST_THREADS:
        raise ValueError(
            f"{name} is {requested!r}; pass a positive number of threads, at most "
            f"{MOST_THREADS:,}, "
            "or -1 for all processors."
        )
    return _team.of(number if number > 0 else max(1, available_processors() + 1 + number))


def available_processors() -> int:
    """Return the number of processors this process may use.

    The smaller of the processors it is bound to and, on Linux, the processor time its control
    groups (versions 1 and 2) allow it, rounded up to whole processors.
    """
    # Python cannot query processor affinity on macOS and Windows.
    bound = getattr(os, "sched_getaffinity", None)
    count = len(bound(0)) if bound else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _group_quota())))


class _Team:
    """Thread state of this process: our threads, lost in a fork, and fits that limit BLAS."""

    def __init__(self, used: bool = False) -> None:
        self.lost, self.used = used, used
        self.lock, self.n_inside = threading.Lock(), 0
        self.limit: Any = None

    def of(self, n_threads: int) -> int:
        if self.lost:
            return 1
        self.used = self.used or n_threads > 1
        return n_threads


_team = _Team()


def _begin_child() -> None:
    global _team
    _team = _Team(_team.used)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP of other libraries to one thread until the last context exits."""
    team = _team
    with team.lock:
        if not team.n_inside:
            team.limit = _libraries(len(sys.modules)).limit(limits=1)
        team.n_inside += 1
    try:
        yield
    finally:
        with team.lock:
            team.n_inside -= 1
            if not team.n_inside:
                team.limit.restore_original_limits()


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Return the libraries that have threads; search again if modules were imported since."""
    return ThreadpoolController()


def _integer_or_text(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _group_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float:
    """Return the processors that the control groups of this process allow (may be infinity)."""
    folders = group_folders("cpu", root, membership)
    return min((_folder_quota(folder) for folder in folders), default=math.inf)


def _folder_quota(folder: Path) -> float:
    """Return quota / period of a control group."""
    fields = text_of(folder / "cpu.max").split() or [
        text_of(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    try:
        quota, period = (float(field) for field in fields)
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def build_info() -> dict[str, object]:
    """Return build options of the kernels, the processor and the number of threads."""
    return {
        **kernels.build_flags(),
        "available_levels": kernels.available_levels(),
        "level": kernels.level(),
        "threads": resolve_threads(None),
    }
