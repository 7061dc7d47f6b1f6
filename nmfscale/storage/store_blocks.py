"""Blocks of a packed store, read straight from where they are in the file.

What is said here of a block is small and fits in a message: whoever sees the file can read it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..counts.sell import LANES, SellBlock
from .arrays import DamagedFileError
from .atomic import file_id, read_into, retry

Array = NDArray[Any]
ORDERS = "rows", "columns"
PARTS = "index", "count", "offset"


class DamagedStoreError(DamagedFileError):
    """A file is no packed store, or not complete, or its numbers are not those written."""


class NoStoreError(DamagedStoreError):
    """A file does not say that it is a packed store."""


class Extent(NamedTuple):
    """Where an array is in the file, its checksum, and the checksum that it begins with."""

    offset: int
    size: int
    dtype: np.dtype[Any]
    crc32: int
    start_crc32: int


@dataclass(frozen=True)
class StoredBlock:
    """Rows ``start:stop`` of a packed store, lanes ``first:last``; where their slices are.

    Attributes
    ----------
    extents : dict of Extent
        Of ``rows_index``, ``rows_count`` and so on.
    n_others : dict of int
        Number of columns, for the rows, and of lanes, for the columns.
    n_column_lanes : int
    """

    number: int
    start: int
    stop: int
    first: int
    last: int
    extents: dict[str, Extent]
    n_others: dict[str, int]
    n_column_lanes: int

    def nbytes(self, which: str) -> int:
        """Bytes of the rows or of the columns."""
        return sum(self.extents[f"{which}_{p}"].size for p in PARTS)


class BlockFile:
    """Reads blocks of a store and checks each array when it is first read.

    Parameters
    ----------
    path : Path
    count_dtype : dtype
        Of the slices' counts.
    mark : tuple of int
        What `file_id` the file was when the extents were looked up.
    """

    def __init__(self, path: Path, count_dtype: np.dtype[Any], mark: tuple[int, ...]):
        self.path, self.count_dtype, self.mark = path, count_dtype, mark
        self.bytes_read = 0
        self.checked = set[tuple[int, str]]()

    def read(self, block: StoredBlock, which: str, buffer: Array | None = None) -> SellBlock:
        """Read the "rows" or the "columns" of a block, into `buffer` if there is one."""
        if buffer is None:
            buffer = np.empty(block.nbytes(which), np.uint8)
        pieces, first = {}, 0
        for part in PARTS[::-1]:  # int64 first, so that every array is aligned
            size = block.extents[f"{which}_{part}"].size
            pieces[f"{which}_{part}"] = buffer[first : first + size]
            first += size
        retry(self.path, lambda: self._fill(block, pieces))
        for name, piece in pieces.items():
            if (block.number, name) not in self.checked:
                self._check(block, name, piece)
        index, count, offset = (
            pieces[f"{which}_{part}"].view(block.extents[f"{which}_{part}"].dtype) for part in PARTS
        )
        slices = SellBlock(index, count, offset, block.n_others[which])
        if (block.number, which) not in self.checked:
            self._check_slices(slices, block, which)
        return slices

    def _fill(self, block: StoredBlock, pieces: dict[str, Array]) -> None:
        with self.path.open("rb", buffering=0) as file:
            if file_id(os.fstat(file.fileno())) != self.mark:
                raise DamagedStoreError(
                    f"{self.path} was changed while it was in use; pack it again and start anew."
                )
            for name, piece in pieces.items():
                first = block.extents[name].offset
                n_read = read_into(file.fileno(), piece.data, first)
                if n_read < len(piece):
                    raise DamagedStoreError(
                        f"{self.path} ends at {first + n_read} bytes: it was cut."
                    )
                self.bytes_read += n_read

    def _check(self, block: StoredBlock, name: str, piece: Array) -> None:
        """Compare an array with its checksum when it is first read."""
        extent = block.extents[name]
        if zlib.crc32(piece.data, extent.start_crc32) != extent.crc32:
            raise DamagedStoreError(
                f"{self.path}: blocks/{block.number:06d}/{name} is damaged (its checksum differs); "
                "pack the counts again."
            )
        self.checked.add((block.number, name))

    def _check_slices(self, slices: SellBlock, block: StoredBlock, which: str) -> None:
        """Refuse what the kernels would follow out of their arrays, whoever wrote it."""
        steps = slices.offset[-1]
        sound = (
            slices.offset[0] == 0
            and np.all(np.diff(slices.offset) >= 0)
            and len(slices.index) == steps * LANES
            and (not steps or 0 <= slices.index.min() <= slices.index.max() < slices.n_others)
            and bool(np.all(np.isfinite(slices.count)) and (not steps or slices.count.min() >= 0))
        )
        if not sound:
            raise DamagedStoreError(
                f"{self.path}: blocks/{block.number:06d} holds {which} that are no counts of its "
                "rows and columns; pack the counts again."
            )
        self.checked.add((block.number, which))
