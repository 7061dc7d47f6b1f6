"""Blocks of a packed store, read directly from their positions in the file.

A `StoredBlock` describes a block in few bytes. Any process that can open the file can read the
block from this description, so a message to a worker need not contain counts.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
_ZEROS = memoryview(bytes(1 << 20))


class DamagedStoreError(DamagedFileError):
    """A file is not a packed store, is incomplete, or differs from what was written."""

    __module__ = "nmfscale.errors"


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

    def part(self, slices: slice) -> StoredBlock:
        """Return the description of some slices of its rows; lanes without a row are the last."""
        first, last = self.first + slices.start * LANES, self.first + slices.stop * LANES
        n_rows = max(0, min(self.stop - self.start, last - self.first) - slices.start * LANES)
        return replace(self, stop=self.start + n_rows, first=first, last=last)

    @property
    def column_place(self) -> SlicesPlace:
        """Where its columns are."""
        return self.place_of("columns")

    def place_of(self, which: str) -> SlicesPlace:
        """Return where its "rows" or "columns" are."""
        index, count, offset = (self.extents[f"{which}_{part}"] for part in PARTS)
        size, itemsize = index.size // index.dtype.itemsize, index.dtype.itemsize
        return SlicesPlace(
            self.number, self.first, self.last, size, itemsize, index.offset, count.offset,
            offset.offset,
        )  # fmt: skip


class SlicesPlace(NamedTuple):
    """Number and lanes of a block; entries of its slices, and where their arrays begin."""

    number: int
    first: int
    last: int
    n_entries: int
    index_bytes: int
    at_index: int
    at_count: int
    at_offset: int


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
        # The three arrays of a block share one buffer; int64 first, so that each is aligned.
        for part in PARTS[::-1]:
            size = block.extents[f"{which}_{part}"].size
            pieces[f"{which}_{part}"] = buffer[first : first + size]
            first += size
        self._fill([(block.extents[name].offset, piece) for name, piece in pieces.items()])
        for name, piece in pieces.items():
            if (block.number, name) not in self.checked:
                self._check(block, name, piece)
        index, count, offset = (
            pieces[f"{which}_{part}"].view(block.extents[f"{which}_{part}"].dtype) for part in PARTS
        )
        slices = SellBlock(index, count, offset, block.n_others[which])
        if (block.number, which) not in self.checked:
            self._check_slices(slices, block.number, which)
            self.checked.add((block.number, which))
        return slices

    def read_offset(self, block: StoredBlock, which: str = "columns") -> Array:
        """Read where the slices of the "rows" or "columns" of a block begin."""
        extent = block.extents[f"{which}_offset"]
        piece = np.empty(extent.size, np.uint8)
        self._fill([(extent.offset, piece)])
        if (block.number, f"{which}_offset") not in self.checked:
            self._check(block, f"{which}_offset", piece)
        return piece.view(extent.dtype)

    def read_slices(self, block: StoredBlock, which: str, some: slice) -> SellBlock:
        """Read some neighbouring slices of the "rows" or "columns" of a block.

        The whole block is read once before, because its checksums are those of whole arrays.
        """
        if (block.number, which) not in self.checked:
            self.read(block, which)
        return self._read_slices(block.place_of(which), which, block.n_others[which], some)

    def read_columns(self, place: SlicesPlace, some: slice) -> SellBlock:
        """Read some neighbouring slices of the columns of a block, and nothing else of it.

        Their checksums are compared by `ColumnChecksums`.
        """
        return self._read_slices(place, "columns", place.last - place.first, some)

    def _read_slices(self, place: SlicesPlace, which: str, n_others: int, some: slice) -> SellBlock:
        index_type = np.dtype(np.uint16 if place.index_bytes == 2 else np.int32)
        # the begin of each slice, and the end of the last, in entries of 16 lanes
        offset = np.empty(some.stop - some.start + 1, np.int64)
        self._fill([(place.at_offset + some.start * offset.itemsize, offset.view(np.uint8))])
        first, n_entries = int(offset[0]) * LANES, int(offset[-1] - offset[0]) * LANES
        if min(first, n_entries) < 0 or first + n_entries > place.n_entries:
            raise self._unsound(place.number, which)
        arrays = [np.empty(n_entries, dtype) for dtype in (index_type, self.count_dtype)]
        at = (place.at_index, place.at_count)
        self._fill([
            (begin + first * array.itemsize, array.view(np.uint8))
            for begin, array in zip(at, arrays, strict=True)
        ])  # fmt: skip
        slices = SellBlock(arrays[0], arrays[1], offset - offset[0], n_others)
        key = place.number, f"{which} {some.start}:{some.stop}"
        if not {key, (place.number, which)} & self.checked:
            self._check_slices(slices, place.number, which)
            self.checked.add(key)
        return slices

    def check_crc(self, block: StoredBlock, name: str, crc: int) -> None:
        """Compare the checksum of an array, as it was read, with that in the file."""
        if crc != block.extents[name].crc32:
            raise DamagedStoreError(
                f"{self.path}: blocks/{block.number:06d}/{name} is damaged (its checksum differs); "
                "pack the counts again."
            )
        self.checked.add((block.number, name))

    def _fill(self, pieces: list[tuple[int, Array]]) -> None:
        """Fill arrays of bytes from where each begins in the file."""
        retry(self.path, lambda: self._fill_once(pieces))

    def _fill_once(self, pieces: list[tuple[int, Array]]) -> None:
        with self.path.open("rb", buffering=0) as file:
            self._check_mark(os.fstat(file.fileno()))
            for first, piece in pieces:
                n_read = read_into(file.fileno(), piece.data, first)
                if n_read < len(piece):
                    raise DamagedStoreError(
                        f"{self.path} ends at {first + n_read} bytes: it was cut off."
                    )
                self.bytes_read += n_read

    def check_unchanged(self) -> None:
        """Raise an error if the file was changed; blocks in memory are then not its counts."""
        self._check_mark(retry(self.path, self.path.stat))

    def _check_mark(self, status: os.stat_result) -> None:
        if file_id(status) != self.mark:
            raise DamagedStoreError(
                f"{self.path} was changed while it was in use; pack it again and start again."
            )

    def _check(self, block: StoredBlock, name: str, piece: Array) -> None:
        """Compare an array with its checksum."""
        self.check_crc(block, name, zlib.crc32(piece.data, block.extents[name].start_crc32))

    def _check_slices(self, slices: SellBlock, number: int, which: str) -> None:
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
            raise self._unsound(number, which)

    def _unsound(self, number: int, which: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"{self.path}: blocks/{number:06d} holds {which} that are not counts of its rows and "
            "columns; pack the counts again."
        )


class ColumnChecksums:
    """Compares columns that are read a panel at a time with the checksums of whole arrays.

    Once every panel was read, by whatever process, its checksums make up those of the arrays.
    """

    _PARTS = "columns_index", "columns_count"

    def __init__(self, file: BlockFile, blocks: list[StoredBlock], panels: list[slice]):
        self._file, self._blocks, self._panels = file, blocks, panels
        self._found: dict[int, Array] = {}
        names = {(block.number, name) for block in blocks for name in self._PARTS}
        self.done = names <= file.checked

    @staticmethod
    def of(stretches: Sequence[SellBlock]) -> Array:
        """Return sizes and checksums of a panel's stretches, (n_blocks, 2, 2), int64."""
        arrays = [(columns.index, columns.count) for columns in stretches]
        return np.array([[(a.nbytes, zlib.crc32(a.data)) for a in both] for both in arrays])

    def add(self, panel: slice, checksums: Array) -> None:
        """Take those of one panel; compare all of them when it is the last."""
        self._found[panel.start] = checksums
        if self.done or len(self._found) < len(self._panels):
            return
        parts = np.array([self._found[panel.start] for panel in self._panels])
        for i, block in enumerate(self._blocks):
            for j, name in enumerate(self._PARTS):
                crc = block.extents[name].start_crc32
                for size, of_part in parts[:, i, j].tolist():
                    crc = _joined(crc, of_part, size)
                self._file.check_crc(block, name, crc)
        self.done, self._found = True, {}


def _joined(crc: int, following: int, size: int) -> int:
    """Return the checksum of bytes with checksum `crc` and `size` bytes that follow them.

    CRC-32 is linear: that of the first bytes and of zeros, less that of zeros alone, and that of
    the following bytes.
    """
    zeros = 0
    for first in range(0, size, len(_ZEROS)):
        piece = _ZEROS[: size - first]
        crc, zeros = zlib.crc32(piece, crc), zlib.crc32(piece, zeros)
    return crc ^ zeros ^ following
