"""Reads the counts of blocks for a task on a worker, the next ones meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from ..counts.blocks import prefetched
from ..counts.sell import SellBlock
from ..storage.store_blocks import StoredBlock
from .caches import COUNTS, block_file, return_buffers, take_buffer
from .protocol import Array

if TYPE_CHECKING:
    from .worker import RunConfig

# Bytes of the offset of a slice.
_OFFSET_BYTES = 8


class Read(NamedTuple):
    """Counts to read: a block by "rows" or by "columns", or some of its slices."""

    block: StoredBlock
    order: str
    slices: slice | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies these counts in a store."""
        some = self.slices
        part = () if some is None else (some.start, some.stop)
        return self.block.number, self.order, *part


class BlockReader:
    """Reads counts from the store in the order of `plan`, the next ones in a thread.

    Counts for which there is room stay in memory for later tasks of the fit. Others are overwritten
    when the next block but one is read. Counts that the plan lacks can be read as well.
    """

    def __init__(self, config: RunConfig, plan: Sequence[Read] = ()):
        self._store, self._fit = config.store, config.fit
        self._plan = () if config.store is None else plan
        self._left = deque(read.key for read in self._plan)
        self._buffers: list[Array] = []
        self._ahead = prefetched(self._planned())

    def read(self, read: Read) -> SellBlock:
        """Return counts."""
        while read.key in self._left:  # those before it are not needed: their results were cached
            counts = next(self._ahead)
            if self._left.popleft() == read.key:
                return counts
        return self._kept(read) or self._into(read, None)

    def close(self) -> None:
        """Wait for the thread, and keep the buffers for other tasks."""
        self._ahead.close()
        return_buffers(self._buffers)

    def _planned(self) -> Iterator[SellBlock]:
        assert self._store is not None
        block_file(*self._store).check_unchanged()
        whole = [read for read in self._plan if read.slices is None]
        largest = max((read.block.nbytes(read.order) for read in whole), default=0)
        numbers = cycle(range(2))
        for read in self._plan:
            counts = self._kept(read)
            if counts is None and read.slices is None:
                number = next(numbers)
                if number == len(self._buffers):
                    self._buffers.append(take_buffer(largest))
                counts = self._into(read, self._buffers[number])
            yield counts or self._into(read, None)

    def _kept(self, read: Read) -> SellBlock | None:
        """Return counts that stay in memory; read them if there is room; None without room."""
        key = self._fit, *read.key
        counts = COUNTS.get(key)
        if counts is None and COUNTS.has_room(self._least_bytes(read)):
            counts = self._into(read, None)
            COUNTS.put(key, counts, counts.nbytes)
        return counts

    def _least_bytes(self, read: Read) -> int:
        """Return the bytes of counts; of some slices, an estimate by their number."""
        n_bytes = read.block.nbytes(read.order)
        if read.slices is None:
            return n_bytes
        n_slices = read.block.extents[f"{read.order}_offset"].size // _OFFSET_BYTES
        return n_bytes * (read.slices.stop - read.slices.start) // n_slices

    def _into(self, read: Read, buffer: Array | None) -> SellBlock:
        assert self._store is not None
        file = block_file(*self._store)
        if read.slices is not None:
            return file.read_slices(read.block, read.order, read.slices)
        return file.read(read.block, read.order, buffer)
