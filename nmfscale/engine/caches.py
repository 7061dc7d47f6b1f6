"""What a process keeps for the fits that it works for: recent arrays, open files, a buffer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..counts.aligned import aligned_copy
from ..counts.sell import SellBlock
from ..storage.arrays import Arrays
from ..storage.store_blocks import BlockFile
from .lineage import Ref
from .protocol import Array


class LRUCache:
    """Cache of recent arrays of this process; the least recently used are evicted first."""

    def __init__(self) -> None:
        self.most_bytes, self.n_bytes_held = 0, 0
        self._items: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> Any:
        """Return the value of a key, or None."""
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key][0]

    def put(self, key: tuple[Any, ...], value: Any, n_bytes: int) -> None:
        """Store a value, given its size in bytes."""
        with self._lock:
            if key not in self._items:
                self._items[key], self.n_bytes_held = (value, n_bytes), self.n_bytes_held + n_bytes
            while self.n_bytes_held > self.most_bytes and len(self._items) > 1:
                self.n_bytes_held -= self._items.popitem(last=False)[1][1]

    def forget(self, run: str) -> None:
        """Delete all entries of a fit."""
        with self._lock:
            for key in [key for key in self._items if key[0].startswith(run)]:
                self.n_bytes_held -= self._items.pop(key)[1]


class WholeArrays:
    """Row arrays of all rows in this process: for each fit, the newest array of each name.

    They may be larger than the cache, and concurrent tasks share them.
    """

    def __init__(self) -> None:
        self._items: dict[tuple[str, str], tuple[str, Array]] = {}
        self._lock = threading.Lock()

    def get(self, run: str, name: str, ref: Ref, load: Callable[[Ref], Arrays]) -> Array:
        """Return the array of a name, and load it if it is not stored."""
        with self._lock:
            entry = self._items.get((run, name))
            if entry is None or entry[0] != ref.name:
                entry = None
                self._items.pop((run, name), None)
                entry = ref.name, aligned_copy(load(ref)["array"])
                self._items[run, name] = entry
            return entry[1]

    def forget(self, run: str) -> None:
        """Delete all entries of a fit."""
        with self._lock:
            for key in [key for key in self._items if key[0].startswith(run)]:
                del self._items[key]


class CountsCache:
    """Counts of blocks in this process; they stay until the fit ends, as long as there is room.

    Passes visit the blocks in the same order: a cache that evicted some would have none in time.
    """

    def __init__(self) -> None:
        self.most_bytes, self.n_bytes_held = 0, 0
        self._items: dict[tuple[Any, ...], tuple[SellBlock, int]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> SellBlock | None:
        """Return the counts of a key, or None."""
        entry = self._items.get(key)
        return None if entry is None else entry[0]

    def has_room(self, n_bytes: int) -> bool:
        """Whether counts of this size can be stored."""
        return self.n_bytes_held + n_bytes <= self.most_bytes

    def put(self, key: tuple[Any, ...], counts: SellBlock, n_bytes: int) -> None:
        """Store counts if there is room."""
        with self._lock:
            if key not in self._items and self.has_room(n_bytes):
                self._items[key] = counts, n_bytes
                self.n_bytes_held += n_bytes

    def forget(self, run: str) -> None:
        """Delete all entries of a fit."""
        with self._lock:
            for key in [key for key in self._items if key[0].startswith(run)]:
                self.n_bytes_held -= self._items.pop(key)[1]


RECENT, WHOLE, COUNTS = LRUCache(), WholeArrays(), CountsCache()
_spare_buffers: list[Array] = []


def forget_run(run: str) -> None:
    """Delete all that this process caches of a fit."""
    RECENT.forget(run)
    WHOLE.forget(run)
    COUNTS.forget(run)
    _spare_buffers.clear()


@lru_cache(maxsize=8)
def block_file(path: str, count_dtype: str, mark: tuple[int, ...]) -> BlockFile:
    """Return the open file of a packed store, given its path, type of counts and mark."""
    return BlockFile(Path(path), np.dtype(count_dtype), mark)


def take_buffer(n_bytes: int) -> Array:
    """Return a buffer of at least this many bytes, that of an earlier task if possible."""
    while _spare_buffers:
        with suppress(IndexError):  # another thread may have taken the last one
            if len(buffer := _spare_buffers.pop()) >= n_bytes:
                return buffer
    return np.empty(n_bytes, np.uint8)


def return_buffers(buffers: Iterable[Array]) -> None:
    """Keep buffers for later tasks."""
    _spare_buffers.extend(buffers)
