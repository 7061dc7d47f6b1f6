"""How many threads a computation uses: ours is told, other libraries' are held back."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from numbers import Integral
from pathlib import Path

from threadpoolctl import ThreadpoolController

_VARIABLE = "NMFSCALE_NUM_THREADS"


def resolve_threads(n_threads: int | None = None) -> int:
    """Return the number of threads to use.

    ``OMP_NUM_THREADS`` has no say here: the number is handed to every parallel loop, so that a
    process whose environment asks for one thread (a Dask worker, for instance) still uses the
    processors it was given.

    Parameters
    ----------
    n_threads : int, optional
        A positive number is taken as it is, even beyond the number of processors. ``-1`` means
        all processors, ``-2`` all but one, and so on, never less than one. None means the
        environment variable ``NMFSCALE_NUM_THREADS``, which is read by the same rules, or
        :func:`available_processors` if it is unset or empty.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    ValueError
        If ``n_threads``, or the environment variable, is 0 or no integer.

    Examples
    --------
    >>> from nmfscale.solve.threads import available_processors, resolve_threads
    >>> resolve_threads(3)
    3
    >>> resolve_threads(-1) == available_processors()
    True
    """
    name: str = "n_threads"
    given: object = n_threads
    if given is None:
        text = os.environ.get(_VARIABLE, "").strip()
        if not text:
            return available_processors()
        name, given = f"The environment variable {_VARIABLE}", _integer_or_text(text)
    if isinstance(given, bool) or not isinstance(given, Integral) or given == 0:
        raise ValueError(
            f"{name} is {given!r}; pass a positive number of threads, or -1 for all processors."
        )
    number = int(given)
    return number if number > 0 else max(1, available_processors() + 1 + number)


def available_processors() -> int:
    """Return the number of processors this process may use.

    The smaller of the processors it is bound to and, on Linux, the processor time its control
    groups (versions 1 and 2) allow it, rounded up to whole processors.

    Returns
    -------
    int
        At least 1.
    """
    # macOS and Windows bind processes to no processors that Python could tell.
    bound = getattr(os, "sched_getaffinity", None)
    count = len(bound(0)) if bound else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _group_quota())))


@contextmanager
def limit_blas(n_threads: int) -> Iterator[None]:
    """Hold the threads of BLAS, and of other libraries' OpenMP loops, to `n_threads` inside."""
    with _libraries(len(sys.modules)).limit(limits=n_threads):
        yield


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Return the libraries that have threads; looked for again when modules were imported since."""
    return ThreadpoolController()


def _integer_or_text(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _group_quota(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float:
    """Processors that the control groups of this process allow, infinity if they do not say."""
    allowed = [math.inf]
    for line in _text(membership).splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree; version 1 has one tree for each set of controllers.
        tree = root / controllers if controllers else root
        group = tree / path.lstrip("/")
        # Inside a container the path may be that of the host, and only the root is there.
        for folder in (group, *group.parents):
            allowed.append(_folder_quota(folder))
            if folder == tree:
                break
    return min(allowed)


def _folder_quota(folder: Path) -> float:
    """Quota / period of one control group."""
    fields = _text(folder / "cpu.max").split() or [
        _text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    try:
        quota, period = (float(field) for field in fields)
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
