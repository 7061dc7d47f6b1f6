"""Free memory: what this process may still use, by the machine, its control groups and ulimits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .control_groups import MEMBERSHIP, ROOT, group_folders, text_of

# Files with the limit and the use, and the entry of memory.stat for cached files, which the system
# drops when memory is short. Version 2 of control groups, then version 1. A group above
# memory.high is slowed down.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
# Limits of `ulimit`, and psutil's names of the memory that each of them counts.
_RESOURCES = {"RLIMIT_AS": "vms", "RLIMIT_DATA": "data", "RLIMIT_RSS": "rss"}


def free_memory() -> int:
    """Return the number of bytes that this process may still use.

    This is the smallest of: the available memory of the machine, the rest of the limits of its
    control groups, as SLURM and Docker set them, and the rest of its resource limits (`ulimit`).
    """
    import psutil

    available = psutil.virtual_memory().available
    return max(0, int(min(available, _left_in_groups(), _left_of_resources())))


def _left_in_groups(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float:
    """Return the bytes left in the tightest control group of this process, or infinity."""
    folders = group_folders("memory", root, membership)
    return min((_left_in(folder) for folder in folders), default=math.inf)


def _left_in(folder: Path) -> float:
    """Return the bytes left in one control group, or infinity without a limit."""
    left = [math.inf]
    for limit, use, cached in _FILES:
        try:
            allowed, used = int(text_of(folder / limit)), int(text_of(folder / use))
        except ValueError:  # "max", or no such file
            continue
        entries = dict(
            line.split(maxsplit=1)
            for line in text_of(folder / "memory.stat").splitlines()
            if len(line.split()) == 2
        )
        left.append(allowed - max(0, used - int(entries.get(cached, 0))))
    return min(left)


def _left_of_resources() -> float:
    """Return the bytes left of the soft resource limits of this process, or infinity."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    import psutil

    held: Any = psutil.Process().memory_info()
    left = [math.inf]
    for name, counted in _RESOURCES.items():
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY:
            left.append(limit - getattr(held, counted, held.rss))
    return min(left)
