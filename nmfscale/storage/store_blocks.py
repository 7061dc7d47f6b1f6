"""Blocks of a packed store, read directly from their positions in the file.

A `StoredBlock` describes a block in few bytes. Any process that can open the file can read the
block from this description, so a message to a worker need not contain counts.
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
from .arrays import DamagedFileError, checksum_of, damaged, located, read_attribute
from .atomic import file_id, read_into, retry
from .hdf5 import need

Array = NDArray[Any]
ORDERS = "rows", "columns"
PARTS = "index", "count", "offset"


class DamagedStoreError(DamagedFileError):
    """A file is not a packed store, is incomplete, or differs from what was written."""


class NoStoreError(DamagedStoreError):
    """A file does not declare the format of a packed store."""


class Extent(NamedTuple):
    """Position and size of an array in the file, its checksum, and the start of that checksum."""

    offset: int
    size: int
    dtype: np.dtype[Any]
    crc32: int
    start_crc32: int


@dataclass(frozen=True)
class StoredBlock:
    """Description of a block: rows ``start:stop``, lanes ``first:last``, positions of its arrays.

    `extents` has a key for each array: ``rows_index``, ``rows_count`` and so on. `n_others` bounds
    the indices: the number of columns for "rows", the number of the block's lanes for "columns".
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
        """Return the bytes of the "rows" or "columns"."""
        return sum(self.extents[f"{which}_{p}"].size for p in PARTS)


def stored_block(
    file: Any, number: int, start: int, stop: int, first: int, order: Array,
    shape: tuple[int, int], count_dtype: np.dtype[Any],
) -> StoredBlock:  # fmt: skip
    """Look up the positions of a block's arrays, and check their shapes and types."""
    name = f"blocks/{number:06d}"
    group = need(file, name)
    if (read_attribute(group, "start"), read_attribute(group, "stop")) != (start, stop):
        raise damaged(file, f"{name} does not hold rows {start}:{stop}")
    m, n_lanes = shape[1], len(order)
    n_column_lanes = -(-m // LANES) * LANES
    extents = {}
    for which, lanes in zip(ORDERS, (n_lanes, n_column_lanes), strict=True):
        size = None
        for part, types in zip(PARTS, (("uint16", "int32"), (str(count_dtype),)), strict=False):
            dataset = located(file, f"{name}/{which}_{part}", (size,), types)
            extents[f"{which}_{part}"] = _extent(dataset)
            size = dataset.shape[0]
        dataset = located(file, f"{name}/{which}_offset", (lanes // LANES + 1,), ("int64",))
        extents[f"{which}_offset"] = _extent(dataset)
    others = {"rows": m, "columns": n_lanes}
    return StoredBlock(number, start, stop, first, first + n_lanes, extents, others, n_column_lanes)


def _extent(dataset: Any) -> Extent:
    place = dataset.id.get_offset() or 0
    return Extent(place, dataset.nbytes, dataset.dtype, *checksum_of(dataset))


class BlockFile:
    """Reads blocks of a store, and checks each array when it is first read.

    `mark` is the `file_id` of the file when the extents were looked up: another file is refused.
    """

    def __init__(self, path: Path, count_dtype: np.dtype[Any], mark: tuple[int, ...]):
        self.path, self.count_dtype, self.mark = path, count_dtype, mark
        self.bytes_read = 0
        self.checked = set[tuple[int, str]]()

    def read(self, block: StoredBlock, which: str, buffer: Array | None = None) -> SellBlock:
        """Read the "rows" or the "columns" of a block, into `buffer` if one is given."""
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
                    f"{self.path} was changed while it was in use; pack it again and start again."
                )
            for name, piece in pieces.items():
                first = block.extents[name].offset
                n_read = read_into(file.fileno(), piece.data, first)
                if n_read < len(piece):
                    raise DamagedStoreError(
                        f"{self.path} ends at {first + n_read} bytes: it was cut off."
                    )
                self.bytes_read += n_read

    def _check(self, block: StoredBlock, name: str, piece: Array) -> None:
        """Compare an array with its checksum."""
        extent = block.extents[name]
        if zlib.crc32(piece.data, extent.start_crc32) != extent.crc32:
            raise DamagedStoreError(
                f"{self.path}: blocks/{block.number:06d}/{name} is damaged (its checksum differs); "
                "pack the counts again."
            )
        self.checked.add((block.number, name))

    def _check_slices(self, slices: SellBlock, block: StoredBlock, which: str) -> None:
        """Raise an error for indices with which the kernels would access memory out of bounds.

        A valid checksum does not exclude them: another program may have written the file.
        """
        n_entries = slices.offset[-1]
        sound = (
            slices.offset[0] == 0
            and np.all(np.diff(slices.offset) >= 0)
            and len(slices.index) == n_entries * LANES
            and (not n_entries or 0 <= slices.index.min() <= slices.index.max() < slices.n_others)
            and bool(np.all(np.isfinite(slices.count)))
            and (not n_entries or slices.count.min() >= 0)
        )
        if not sound:
            raise DamagedStoreError(
                f"{self.path}: blocks/{block.number:06d} holds {which} that are not counts of its "
                "rows and columns; pack the counts again."
            )
        self.checked.add((block.number, which))
