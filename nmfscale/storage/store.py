"""The packed store: counts in one HDF5 file, in SELL-16, the format that the kernels read.

Format 2.  Root attributes: ``format`` = "nmfscale-counts", ``format_version`` = 2,
``nmfscale_version`` and, written last, ``complete`` = 1.  Text has a fixed length.

=====================  ==========================================================================
``about``              JSON, as bytes: ``shape``, ``nnz``, ``dtype`` (of the checked counts),
                       ``slice_dtype``, ``largest``, ``notes``, ``source`` (where the counts come
                       from), ``first_fraction`` (null if all counts are integers), ``of_text``
                       (true if features are words; otherwise not there) and ``parts``: which of
                       ``values``, ``names/...``, ``obs`` and ``measured`` the file has
``rows/nnz``           (n,) int64, number of nonzero counts of each sample; ``rows/totals`` float64,
                       their sum
``columns/nnz``        (m,) int64, the same for each feature; ``columns/totals`` float64
``values/value``       the distinct counts, and ``values/times``, how often each occurs; only if
                       nearly all counts are below 65,536
``large/value``        the counts that are split into pieces, and ``large/times``
``names/sample``       and ``names/feature``, ``names/group``: ``text`` and ``ends`` of the names,
                       if there are names
``obs``                columns with a value for each sample: see `nmfscale.storage.label_tables`
``measured/features``  (n_batches, m) uint8, 1 for the features that were measured in a batch, and
                       ``measured/batch`` (n,) int64: see `measured` of `CountMatrix`
``blocks/000000``      rows ``start:stop`` (attributes), ``rows_index``, ``rows_count``,
                       ``rows_offset``, and ``columns_index`` and so on: see `SellBlock`
=====================  ==========================================================================

The blocks, and the order of rows and columns in them, are those of `nmfscale.counts.blocks`; they
follow from ``rows/nnz`` and ``columns/nnz``.  Arrays are contiguous and uncompressed, so that a
block is read directly from the file while the processor works on the previous one.  Both orders
together take 6 bytes for each nonzero count, if counts and numbers of features are small.
`nmfscale.storage.arrays` describes the checksums and the names.

Format 1 can be read, too.  Its numbers are root attributes, it does not list its parts, and its
checksums do not cover shapes: a renamed part is detected, deleted names are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.base import CountMatrix, RowRange, row_chunks
from ..counts.blocks import (
    block_orders,
    column_order_of,
    cut_panels,
    panel_entries,
    prefetched,
)
from ..counts.cached import cached_property
from ..counts.memory import Counts
from ..counts.panels import bytes_of_panels, stacked
from ..counts.sell import LANES, SellBlock
from ..counts.validation import CHUNK, canonical_type_of
from .arrays import DamagedFileError, damaged, read_attribute, read_checked, read_json, read_names
from .atomic import file_id, retry, user_path
from .hdf5 import find, format_of, has_signature, is_transient, read_file, shape_of
from .label_tables import read_table
from .store_blocks import (
    ORDERS,
    BlockFile,
    ColumnChecksums,
    DamagedStoreError,
    NoStoreError,
    StoredBlock,
    stored_block,
)

Array = NDArray[Any]
FORMAT, FORMAT_VERSION = "nmfscale-counts", 2
# Parts that a store may lack, and the attributes of counts that hold them.
VALUES = "values"
NAMES = {
    "names/sample": "sample_names", "names/feature": "feature_names", "names/group": "groups",
}  # fmt: skip
OBS, MEASURED = "obs", "measured"
_ALWAYS = {"about", "blocks", "columns", "large", "rows"}


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether a file declares the format of a packed store."""
    return format_of(path) == FORMAT


def open_store(path: str | os.PathLike[str]) -> StoredCounts | None:
    """Open the packed store at a path; None if the file does not declare that format."""
    if not retry(Path(path), lambda: has_signature(Path(path))):
        return None
    try:
        return StoredCounts(path)
    except NoStoreError:
        return None


def _type_of(dtype: np.dtype[Any], largest: float) -> np.dtype[Any]:
    """Return the dtype of the counts of a store that declares `dtype`.

    The first stores declared the dtype of the source file. Counts in memory may not have this
    dtype, and it may be too narrow for sums of duplicates.
    """
    dtype = canonical_type_of(dtype)
    if dtype.kind != "f" and largest > np.iinfo(dtype).max:
        return np.dtype(np.int64)
    return dtype


def _about(file: Any) -> dict[str, Any]:
    """Read the description of a store of any format, in the form of the newest format."""
    writer = read_attribute(file, "nmfscale_version", "S")
    if "complete" not in file.attrs or read_attribute(file, "complete") != 1:
        raise damaged(file, "it was not finished")
    version = read_attribute(file, "format_version")
    if version > FORMAT_VERSION:
        raise DamagedFileError(
            f"{file.filename} has format {version}, written by nmfscale {writer}; this version "
            f"reads up to {FORMAT_VERSION}"
        )
    about = read_json(file, "about")
    if version >= 2:
        return about
    parts = [part for part in (VALUES, *NAMES) if find(file, part) is not None]
    about |= {
        "shape": shape_of(read_attribute(file, "shape", shape=(2,)), file), "parts": parts,
        "nnz": int(read_attribute(file, "nnz")), "largest": read_attribute(file, "largest", "f"),
        "dtype": read_attribute(file, "dtype", "S"),
        "slice_dtype": read_attribute(file, "slice_dtype", "S"),
    }  # fmt: skip
    known = _ALWAYS | {part.split("/")[0] for part in parts}
    unknown = [name for name in file if name not in known]
    unknown += [f"names/{name}" for name in file.get("names", ()) if f"names/{name}" not in NAMES]
    if unknown:
        raise damaged(file, f"its part {unknown[0]!r} does not belong to its format")
    if VALUES not in parts and about["slice_dtype"] in ("uint8", "uint16"):
        raise damaged(file, f"it lacks {VALUES}, which stores with counts of this type have")
    return about


def _pair(file: Any, group: str) -> tuple[Array, Array]:
    """Read distinct counts, and how often each of them occurs."""
    values = read_checked(file, f"{group}/value", (None,), ("int64",))
    return values, read_checked(file, f"{group}/times", values.shape, ("int64",))


class StoredLayout:
    """The layout of a packed store, with the interface of `Layout`; a visit reads the blocks."""

    def __init__(self, path: Path, file: Any, counts: StoredCounts, about: dict[str, Any]):
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
            found = [self._read(i, "columns", None).slices(which) for i in numbers]
        else:
            found = [self.file.read_columns(block.column_place, which) for block in self.blocks]
            if not self.column_checksums.done:
                self.column_checksums.add(which, ColumnChecksums.of(found))
        firsts = [block.first for block in self.blocks]
        return stacked(list(zip(firsts, found, strict=True)), len(self.row_order), 1)

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


class StoredCounts(CountMatrix):
    """Counts in a packed store, read block by block when they are needed.

    Parameters
    ----------
    path : str or path-like
        A file written by ``nmfscale store`` or :func:`nmfscale.write_store`. It is opened
        read-only.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    DamagedStoreError
        If the file is not a complete packed store.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from nmfscale import StoredCounts, write_store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "counts.nmf")
    ...     _ = write_store(np.array([[0, 2, 1], [3, 0, 0]]), path)
    ...     StoredCounts(path)
    <StoredCounts 2 x 3, 3 nonzero, int64>
    """

    from_file = True

    def __init__(self, path: str | os.PathLike[str]):
        # absolute: the current folder may change before blocks are read
        self.path = user_path(path).absolute()
        with self.path.open("rb"):
            pass
        self._is_store = False
        try:
            read_file(self.path, self._open)
        except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            if is_transient(error):
                raise
            if not self._is_store:
                what = "is not a packed store of counts, or is damaged"
                raise NoStoreError(f"{path} {what}.") from error
            known = isinstance(error, DamagedFileError)
            why = error if known else f"{path} is damaged or incomplete: {error}"
            raise DamagedStoreError(f"{why}. Pack the counts again.") from error

    def _open(self, file: Any) -> None:
        self._is_store = "format" in file.attrs and read_attribute(file, "format", "S") == FORMAT
        if not self._is_store:
            raise KeyError("it has another format")
        about = _about(file)
        n, m = (int(size) for size in about["shape"])
        sizes = {"names/sample": n, "names/feature": m, "names/group": n}
        there = [part for part in NAMES if part in about["parts"]]
        names: dict[str, Any] = {
            NAMES[part]: read_names(file, part, (sizes[part],)) for part in there
        }
        if OBS in about["parts"]:
            names["obs"] = read_table(file, OBS, n)
        if MEASURED in about["parts"]:
            features = read_checked(file, f"{MEASURED}/features", (None, m), ("uint8",))
            batch = read_checked(file, f"{MEASURED}/batch", (n,), ("int64",))
            if batch.size and not 0 <= batch.min() <= batch.max() < len(features):
                raise damaged(file, f"{MEASURED}/batch has numbers of batches that do not exist")
            names["measured"] = features.astype(bool), batch
        super().__init__(
            (n, m), notes=about["notes"], first_fraction=about["first_fraction"],
            of_text=about.get("of_text", False), **names,
        )  # fmt: skip
        self._nnz, self.largest = int(about["nnz"]), float(about["largest"])
        self._dtype = _type_of(np.dtype(about["dtype"]), self.largest)
        self.source = about["source"]
        for which, size in zip(ORDERS, (n, m), strict=True):
            for what, kind in (("nnz", "int64"), ("totals", "float64")):
                array = read_checked(file, f"{which}/{what}", (size,), (kind,))
                setattr(self, f"{which[:-1]}_{what}", array)
            if getattr(self, f"{which[:-1]}_nnz").sum() != self._nnz:
                raise damaged(file, f"{which}/nnz do not add up to {self._nnz} counts")
        self._layout = StoredLayout(self.path, file, self, about)

    def __getstate__(self) -> dict[str, Any]:
        """Include the layout: it holds the positions of the blocks in the file."""
        return self.__dict__

    def _count_values(self, above: float) -> tuple[Array, Array]:
        values, times = self._layout.count_values() or self._layout.large
        order = np.argsort(values)
        return values[order], times[order]

    def _pieces(self, start: int, stop: int, wanted: Array | None = None) -> Iterator[RowRange]:
        blocks = self._layout.blocks
        there = [i for i, block in enumerate(blocks) if block.start < stop and start < block.stop]
        for block, slices in self._layout.visit("rows", there):
            low, high = max(start, block.start), min(stop, block.stop)
            sizes = self.row_nnz[low:high]
            if wanted is not None:
                sizes = np.where(wanted[low:high], sizes, 0)
            lanes = self._lanes_of(block.number)[low - block.start : high - block.start]
            for first, last in row_chunks(np.append(0, np.cumsum(sizes)), CHUNK):
                filled = sizes[first:last] > 0
                yield self._compressed(slices, low + first, lanes[first:last], filled)

    def _lanes_of(self, number: int) -> Array:
        """Return the lane of each row of a block."""
        order = self._layout.orders[number]
        lanes = np.flatnonzero(order >= 0)
        out = np.empty(len(lanes), np.int64)
        out[order[lanes]] = lanes
        return out

    def _compressed(self, slices: SellBlock, first: int, lanes: Array, filled: Array) -> RowRange:
        """Convert the rows in some lanes of a block to compressed rows, numbered from `first`.

        Rows that are False in `filled` are left empty.
        """
        widths = np.where(filled, np.diff(slices.offset)[lanes // LANES], 0)
        ends = np.cumsum(widths)
        begin = slices.offset[lanes // LANES] * LANES + lanes % LANES
        at = np.repeat(begin - LANES * (ends - widths), widths) + LANES * np.arange(ends[-1])
        row = np.repeat(np.arange(len(lanes)), widths)
        there = slices.count[at] > 0  # 0 is padding
        at, row = at[there], row[there]
        column = self._layout.column_order[slices.index[at]]
        data = slices.count[at].astype(self.dtype if self.dtype.kind == "f" else np.int64)
        # summing duplicates joins the pieces of split counts
        matrix = sp.coo_array((data, (row, column)), shape=(len(lanes), self.shape[1])).tocsr()
        matrix.sort_indices()
        return RowRange(first, matrix.indptr, matrix.indices, matrix.data.astype(self.dtype))

    def in_memory(self) -> Counts:
        """Read all counts into memory.

        Returns
        -------
        Counts
            With dtype :attr:`dtype` and sorted columns.
        """
        rows = self.take_rows()
        return Counts(
            rows.indptr, rows.indices, rows.data, self.shape,
            has_sorted_indices=True, first_fraction=self.first_fraction, **self._described(),
        )  # fmt: skip

    def verify(self) -> None:
        """Read all blocks and verify their checksums.

        Raises
        ------
        DamagedStoreError
            If a block does not match its checksums.
        """
        self._layout.file.checked.clear()
        for which in ORDERS:
            for _ in self._layout.visit(which):
                pass
