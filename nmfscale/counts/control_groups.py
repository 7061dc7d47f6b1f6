"""Control groups of Linux, versions 1 and 2: the folders in which the limits of a process are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def group_folders(
    controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP
) -> Iterator[Path]:
    """Yield the folders of the groups of this process, the innermost first, up to the root.

    `controller` is "cpu" or "memory". Version 2 has one tree for all controllers, version 1 one
    tree for each set of them. Where there are no groups, no folder exists below `root`.
    """
    for line in text_of(membership).splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = root / controllers if controllers else root
        # Inside a container the path may be that of the host, and only the root is there.
        group = tree / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == tree:
                break


def text_of(path: Path) -> str:
    """Return what a file contains, nothing if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
