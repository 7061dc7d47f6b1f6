"""Control groups of Linux, versions 1 and 2: the folders with the limits of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def group_folders(
    controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP
) -> Iterator[Path]:
    """Yield the folders of the groups of this process, from the innermost to the root.

    `controller` is "cpu" or "memory". Version 2 has one tree for all controllers, version 1 one
    tree for each set of controllers. Without control groups, no folder exists below `root`.
    """
    for line in text_of(membership).splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = root / controllers if controllers else root
        # In a container, the path may be the host's, and only the root exists.
        group = tree / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == tree:
                break


def text_of(path: Path) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
