"""The layout of a packed store: its blocks, read from the file when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.blocks import (
    block_orders,
    column_order_of,
    cut_panels,
    panel_entries,
    prefetched,
)
from ..counts.cached import cached_property
from ..counts.panels import bytes_of_panels, stacked
from ..counts.sell import LANES, SellBlock
from .arrays import damaged, read_checked
from .atomic import file_id
from .store_blocks import ORDERS, BlockFile, ColumnChecksums, StoredBlock, stored_block

Array = NDArray[Any]
# The part with the distinct counts, which a store with many large counts lacks.
VALUES = "values"


def _pair(file: Any, group: str) -> tuple[Array, Array]:
    """Read distinct counts, and how often each of them occurs."""
    values = read_checked(file, f"{group}/value", (None,), ("int64",))
    return values, read_checked(file, f"{group}/times", values.shape, ("int64",))


class StoredLayout:
    """The layout of a packed store, with the interface of `Layout`; a visit reads the blocks."""

    def __init__(self, path: Path, file: Any, counts: CountMatrix, about: dict[str, Any]):
        self.path, self.shape = path, counts.shape
        self.count_dtype = np.dtype(about["slice_dtype"])
        self.file = BlockFile(path, self.count_dtype, file_id(path.stat()))
        self.column_order = column_order_of(counts)
        self.blocks, self.orders = [], []
        for i, place in enumerate(block_orders(counts.row_nnz)):
            self.blocks.append(stored_block(file, i, *place, counts.shape, self.count_dtype))
            self.orders.append(place[-1])
        if len(file["blocks"]) != len(self.blocks):
            raise damaged(file, f"it has {len(file['blocks'])} blocks, not {len(self.blocks)}")
        pairs = zip(self.blocks, self.orders, strict=True)
        rows = [np.where(order < 0, -1, order + block.start) for block, order in pairs]
        self.row_order = np.concatenate(rows)
        self.large = _pair(file, "large")
        self._values = None
        if VALUES in about["parts"]:
            self._values = _pair(file, VALUES)
            if self._values[1].sum() != counts.nnz:
                raise damaged(file, f"{VALUES}/times do not add up to {counts.nnz} counts")
        self._kept: dict[tuple[int, str], SellBlock] | None = None
        self._buffers: list[Array] | None = None
        self._panel_entries = panel_entries(counts)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out blocks in memory, which can be read again."""
        state = {**self.__dict__, "_kept": None if self._kept is None else {}, "_buffers": None}
        for name in ("whole_columns", "column_checksums"):
            state.pop(name, None)
        return state

    @property
    def kept(self) -> bool:
        """Whether blocks stay in memory once they are read."""
        return self._kept is not None

    @property
    def bytes_read(self) -> int:
        """Bytes of counts read so far."""
        return self.file.bytes_read

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks in the file, in both orders."""
        return sum(block.nbytes(which) for block in self.blocks for which in ORDERS)

    @property
    def buffer_bytes(self) -> int:
        """Bytes that a visit needs: two buffers for the largest block (see `visit`)."""
        largest = max(block.nbytes(which) for block in self.blocks for which in ORDERS)
        return 2 * largest

    def keep(self) -> None:
        """Keep blocks in memory from their next read on."""
        self._kept = {} if self._kept is None else self._kept
        self._buffers = None

    def visit(
        self, which: str, numbers: Sequence[int] | None = None
    ) -> Iterator[tuple[StoredBlock, SellBlock]]:
        """Yield blocks with their "rows" or "columns", and read the next one meanwhile.

        `numbers` are those of consecutive blocks, by default all. A block's arrays are overwritten
        when the next block but one is read.
        """
        numbers = range(len(self.blocks)) if numbers is None else numbers
        if self._kept is not None and all((i, which) in self._kept for i in numbers):
            for i in numbers:
                yield self.blocks[i], self._kept[i, which]
            return
        # set to None while they are in use, so that a simultaneous visit allocates its own
        buffers, self._buffers = self._buffers, None
        if buffers is None and self._kept is None:
            buffers = [np.empty(self.buffer_bytes // 2, np.uint8) for _ in range(2)]
        try:
            slices = (self._read(i, which, buffers) for i in numbers)
            yield from zip([self.blocks[i] for i in numbers], prefetched(slices), strict=True)
        finally:
            self._buffers = buffers

    def visit_both(self) -> Iterator[tuple[StoredBlock, SellBlock, SellBlock]]:
        """Yield blocks with their rows and columns, whose arrays are overwritten as in `visit`."""
        rows, columns = (self.visit(which) for which in ORDERS)
        for (block, one), (_, other) in zip(rows, columns, strict=True):
            yield block, one, other

    def _read(self, i: int, which: str, buffers: list[Array] | None) -> SellBlock:
        if self._kept is None or buffers is not None:
            buffer = None if buffers is None else buffers[i % 2]
            return self.file.read(self.blocks[i], which, buffer)
        if (i, which) not in self._kept:
            self._kept[i, which] = self.file.read(self.blocks[i], which)
        return self._kept[i, which]

    @cached_property
    def whole_columns(self) -> SellBlock:
        """The columns of a store of one block, which stays in memory."""
        assert len(self.blocks) == 1
        self.keep()
        return next(self.visit("columns"))[1]

    @cached_property
    def panels(self) -> list[slice]:
        """Slices of the columns that make a panel, about as large as a block."""
        steps = [np.diff(self.file.read_offset(block)) for block in self.blocks]
        return cut_panels(np.sum(steps, axis=0))

    @cached_property
    def column_checksums(self) -> ColumnChecksums:
        """Checksums of the panels that were read, until all were."""
        return ColumnChecksums(self.file, self.blocks, self.panels)

    def panel(self, which: slice) -> SellBlock:
        """Return some slices of the columns over all blocks; indices are lanes of all rows."""
        if self._kept is not None:
            numbers = range(len(self.blocks))
            slices = [self._read(i, "columns", None).slices(which) for i in numbers]
        else:
            slices = [self.file.read_columns(block.column_place, which) for block in self.blocks]
            if not self.column_checksums.done:
                self.column_checksums.add(which, ColumnChecksums.of(slices))
        firsts = [block.first for block in self.blocks]
        return stacked(list(zip(firsts, slices, strict=True)), len(self.row_order), 1)

    def panel_bytes(self, per_count: int = 0) -> int:
        """Return the bytes that a visit of panels needs, and `per_count` for each count in use."""
        if len(self.blocks) == 1:
            return 0
        return bytes_of_panels(self._panel_entries, self.count_dtype, per_count)

    def visit_panels(self) -> Iterator[tuple[slice, SellBlock]]:
        """Yield slices of the columns, and these columns over all blocks, panel after panel.

        The next panel is read while this one is in use.
        """
        if len(self.blocks) == 1:
            yield slice(0, len(self.column_order) // LANES), self.whole_columns
            return
        yield from zip(self.panels, prefetched(map(self.panel, self.panels)), strict=True)

    def count_values(self) -> tuple[Array, Array] | None:
        """Return the values of the counts and how often each occurs; None if many are large."""
        return self._values
