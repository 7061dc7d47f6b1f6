"""Files that appear whole or not at all, and the version that writes them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# What a file is called until it is complete; a process that is killed may leave one behind.
UNFINISHED = ".part-"


@contextmanager
def whole_file(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a path beside `target`, of the same suffixes, and move it into place at the end.

    What was written is on the disk before it gets its name, and the name before this returns,
    unless it need not outlast the machine (`durable`). If the block fails, what was written is
    removed and `target` is as it was.
    """
    part = target.with_name(f"{UNFINISHED}{secrets.token_hex(6)}-{target.name}")
    try:
        yield part
        if not durable:
            os.replace(part, target)
            return
        with open(part, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(part, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        part.unlink(missing_ok=True)


@cache
def package_version() -> str:
    """Return the version of the package, for the record in a file."""
    try:
        return version("nmfscale")
    except PackageNotFoundError:
        return "unknown"
