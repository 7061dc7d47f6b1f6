"""Files that appear whole or not at all, and the version that writes them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

# What a file is called until it is complete; a process that is killed may leave one behind.
UNFINISHED = ".part-"
_OPEN_FILES = "/proc/self/fd"


@contextmanager
def whole_file(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a path beside `target`, of the same suffixes, and move it into place at the end.

    What was written is on the disk before it gets its name, and the name before this returns,
    unless it need not outlast the machine (`durable`). If the block fails, what was written is
    removed and `target` is as it was.

    Raises
    ------
    OSError
        If `target` is a folder, a device, a pipe or a socket, or cannot be written.
    """
    check_replaceable(target)
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


def check_replaceable(target: Path) -> None:
    """Refuse to put a file in the place of anything that is there and is no file."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file in it.")
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is a device, a pipe or a socket; give the name of a file.")


@contextmanager
def whole_stream(target: Path) -> Iterator[BinaryIO]:
    """Give a file to read and write that gets its name at the end, as with `whole_file`.

    Where the system has files without a name, a process that is killed leaves nothing behind.
    """
    nameless = _nameless(target.parent)
    if nameless is None:
        with whole_file(target) as part, open(part, "xb+", buffering=0) as raw:
            yield raw
        return
    with nameless, whole_file(target) as part:
        yield nameless
        # given a folder, even one that does not matter, the link of /proc is followed
        number = nameless.fileno()
        os.link(f"{_OPEN_FILES}/{number}", part, src_dir_fd=number, follow_symlinks=True)


def _nameless(folder: Path) -> BinaryIO | None:
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_OPEN_FILES):
        return None
    try:
        return open(folder, "rb+", buffering=0, opener=_open_nameless)
    except OSError:  # a file system without; or whole_file says what is wrong
        return None


def _open_nameless(folder: str, flags: int) -> int:
    return os.open(folder, flags | os.O_TMPFILE, 0o666)


@cache
def package_version() -> str:
    """Return the version of the package, for the record in a file."""
    try:
        return version("nmfscale")
    except PackageNotFoundError:
        return "unknown"
