"""Reads the counts of blocks for a task on a worker, the next ones meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from ..counts.blocks import prefetched
from ..counts.sell import SellBlock
from ..storage.store_blocks import StoredBlock
from .caches import COUNTS, block_file, return_buffers, take_buffer
from .protocol import Array

if TYPE_CHECKING:
    from .worker import RunConfig


class BlockReader:
    """Reads blocks from the store in the order of `plan`, the next one in a thread.

    Counts for which there is room stay in memory for later tasks of the fit. Others are overwritten
    when the next block but one is read. Blocks that the plan lacks can be read as well.
    """

    def __init__(self, config: RunConfig, plan: Sequence[tuple[StoredBlock, str]] = ()):
        self._store, self._fit = config.store, config.fit
        self._plan = () if config.store is None else plan
        self._left = deque((block.number, order) for block, order in self._plan)
        self._buffers: list[Array] = []
        self._ahead = prefetched(self._planned())

    def read(self, block: StoredBlock, order: str) -> SellBlock:
        """Return the counts of a block by "rows" or by "columns"."""
        wanted = block.number, order
        while wanted in self._left:  # those before it are not needed: their results were cached
            counts = next(self._ahead)
            if self._left.popleft() == wanted:
                return counts
        return self._kept(block, order) or self._into(block, order, None)

    def close(self) -> None:
        """Wait for the thread, and keep the buffers for other tasks."""
        self._ahead.close()
        return_buffers(self._buffers)

    def _planned(self) -> Iterator[SellBlock]:
        assert self._store is not None
        block_file(*self._store).check_unchanged()
        largest = max((block.nbytes(order) for block, order in self._plan), default=0)
        numbers = cycle(range(2))
        for block, order in self._plan:
            counts = self._kept(block, order)
            if counts is None:
                number = next(numbers)
                if number == len(self._buffers):
                    self._buffers.append(take_buffer(largest))
                counts = self._into(block, order, self._buffers[number])
            yield counts

    def _kept(self, block: StoredBlock, order: str) -> SellBlock | None:
        """Return counts that stay in memory; read them if there is room; None without room."""
        key, n_bytes = (self._fit, block.number, order), block.nbytes(order)
        counts = COUNTS.get(key)
        if counts is None and COUNTS.has_room(n_bytes):
            counts = self._into(block, order, None)
            COUNTS.put(key, counts, n_bytes)
        return counts

    def _into(self, block: StoredBlock, order: str, buffer: Array | None) -> SellBlock:
        assert self._store is not None
        return block_file(*self._store).read(block, order, buffer)
