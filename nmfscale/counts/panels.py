"""Column panels: neighbouring slices of the columns of all blocks, as one `SellBlock`."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._sell import append_lanes, measure_lanes
from .sell import LANES, SellBlock, empty_block, largest_of, offsets_of

Array = NDArray[Any]

# Panels that are in memory at a time: one in use, the next, and the stretches it is made of.
_PANELS_AT_HAND = 3
_INDEX_BYTES = 4


def stacked(stretches: Sequence[tuple[int, SellBlock]], n_others: int, n_threads: int) -> SellBlock:
    """Return the columns of all blocks together, from the first lane and the columns of each.

    The result is that of `SellBuilder.columns` for all rows: entries in the order of the lanes,
    pieces of large counts behind them, no padding between blocks.
    """
    n_lanes = LANES * (len(stretches[0][1].offset) - 1)
    length = np.zeros((2, n_lanes), np.int64)
    count_dtype = stretches[0][1].count.dtype
    most = int(largest_of(count_dtype)) if count_dtype.kind == "u" else 0
    for _, columns in stretches:
        measure_lanes(columns.index, columns.count, columns.offset, most, length, n_threads)
    offset = offsets_of(length.sum(axis=0), n_lanes)
    out = empty_block(offset, n_others, count_dtype)
    place = np.array([np.zeros(n_lanes, np.int64), length[0]])
    for first, columns in stretches:
        append_lanes(
            columns.index, columns.count, columns.offset, most, first, place, offset, out.index,
            out.count, n_threads,
        )  # fmt: skip
    return out


def panel_slices(steps: Array, most: int) -> list[slice]:
    """Cut slices of `steps` steps each into panels of at most `most` entries, or of one slice."""
    ends = np.cumsum(steps, dtype=np.int64) * LANES
    cuts, done = [0], 0
    while cuts[-1] < len(steps):
        last = int(np.searchsorted(ends, done + most, side="right"))
        cuts.append(max(cuts[-1] + 1, last))
        done = int(ends[cuts[-1] - 1])
    return [slice(*cut) for cut in zip(cuts[:-1], cuts[1:], strict=True)]


def bytes_of_panels(n_entries: int, count_dtype: np.dtype[Any], per_count: int = 0) -> int:
    """Return the bytes that a visit needs of panels of at most so many entries.

    `per_count` are needed for each entry of the panel in use.
    """
    return n_entries * (_PANELS_AT_HAND * (_INDEX_BYTES + count_dtype.itemsize) + per_count)


class ColumnFile:
    """Columns of blocks in a temporary file, which has no name and goes with this object."""

    def __init__(self, blocks: Iterator[SellBlock]):
        folder = tempfile.gettempdir()
        self._file = tempfile.TemporaryFile(dir=folder)
        weakref.finalize(self, self._file.close)
        self._places: list[tuple[int, SellBlock]] = []
        self.bytes_read = 0
        for columns in blocks:
            at = self._file.tell()
            try:
                for array in (columns.index, columns.count):
                    self._file.write(array.data)
                self._file.flush()
            except OSError as error:
                with suppress(OSError):  # the end of the file would fail later, in no function
                    self._file.close()
                n_bytes = columns.index.nbytes + columns.count.nbytes
                raise OSError(
                    error.errno,
                    f"cannot keep the columns of the counts in {folder} ({error.strerror}): a "
                    f"block takes {n_bytes:,} bytes. Make room there, set TMPDIR to a folder with "
                    "more, or raise memory_limit",
                ) from error
            none = SellBlock(
                columns.index[:0].copy(), columns.count[:0].copy(), columns.offset, columns.n_others
            )
            self._places.append((at, none))

    def entries_of_slices(self) -> Array:
        """Return the number of SELL entries of each slice, summed over the blocks, (n_slices,)."""
        entries = [np.diff(columns.offset) for _, columns in self._places]
        return np.asarray(np.sum(entries, axis=0))

    def read(self, panel: slice) -> Iterator[SellBlock]:
        """Read some slices of every block, one block after the other."""
        for at, columns in self._places:
            offset = columns.offset[panel.start : panel.stop + 1]
            first, n_entries = int(offset[0]) * LANES, int(offset[-1] - offset[0]) * LANES
            whole = int(columns.offset[-1]) * LANES
            index, count = columns.index.dtype, columns.count.dtype
            self._file.seek(at + first * index.itemsize)
            arrays = [np.fromfile(self._file, index, n_entries)]
            self._file.seek(at + whole * index.itemsize + first * count.itemsize)
            arrays.append(np.fromfile(self._file, count, n_entries))
            self.bytes_read += arrays[0].nbytes + arrays[1].nbytes
            yield SellBlock(arrays[0], arrays[1], offset - offset[0], columns.n_others)
