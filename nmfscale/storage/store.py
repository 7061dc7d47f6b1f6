"""The packed store: counts in one HDF5 file, in SELL-16, the format that the kernels read.

Format 2.  Root attributes: ``format`` = "nmfscale-counts", ``format_version`` = 2,
``nmfscale_version`` and, written last, ``complete`` = 1.  Text has a fixed length.

=====================  ==========================================================================
``about``              JSON, as bytes: ``shape``, ``nnz``, ``dtype`` (of the checked counts),
                       ``slice_dtype``, ``largest``, ``notes``, ``source`` (where the counts come
                       from), ``first_fraction`` (null if all counts are integers), ``of_text``
                       (true if features are words; otherwise not there) and ``parts``: which of
                       ``values``, ``names/...``, ``obs``, ``feature_weights`` and ``measured`` the
                       file has
``rows/nnz``           (n,) int64, number of nonzero counts of each sample; ``rows/totals`` float64,
                       their sum
``columns/nnz``        (m,) int64, the same for each feature; ``columns/totals`` float64
``values/value``       the distinct counts, and ``values/times``, how often each occurs; only if
                       nearly all counts are below 65,536
``large/value``        the counts that are split into pieces, and ``large/times``
``names/sample``       and ``names/feature``, ``names/group``, ``names/modality``: ``text`` and
                       ``ends`` of the names, if there are names
``obs``                columns with a value for each sample: see `nmfscale.storage.label_tables`
``feature_weights``    (m,) float64: see `feature_weights` of `CountMatrix`
``measured/features``  (n_panels, m) uint8, 1 for the features that were measured in a panel, and
                       ``measured/panel`` (n,) int64: see `measured` of `CountMatrix`
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.memory import Counts
from ..counts.row_ranges import RowRange, row_chunks
from ..counts.sell import LANES, SellBlock
from ..counts.validation import CHUNK, canonical_type_of
from .arrays import DamagedFileError, damaged, read_attribute, read_checked, read_json, read_names
from .atomic import retry, user_path
from .hdf5 import find, format_of, has_signature, is_transient, read_file, shape_of
from .label_tables import read_table
from .store_blocks import ORDERS, DamagedStoreError, NoStoreError
from .stored_layout import VALUES, StoredLayout

Array = NDArray[Any]
FORMAT, FORMAT_VERSION = "nmfscale-counts", 2
# Parts that a store may lack, besides VALUES, and the attributes of counts that hold them.
NAMES = {
    "names/sample": "sample_names", "names/feature": "feature_names", "names/group": "groups",
    "names/modality": "modalities",
}  # fmt: skip
OBS, MEASURED, WEIGHTS = "obs", "measured", "feature_weights"
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
    allowed = _ALWAYS | {part.split("/")[0] for part in parts}
    unknown = [name for name in file if name not in allowed]
    unknown += [f"names/{name}" for name in file.get("names", ()) if f"names/{name}" not in NAMES]
    if unknown:
        raise damaged(file, f"its part {unknown[0]!r} does not belong to its format")
    if VALUES not in parts and about["slice_dtype"] in ("uint8", "uint16"):
        raise damaged(file, f"it lacks {VALUES}, which stores with counts of this type have")
    return about


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
    >>> from nmfscale import write_store
    >>> from nmfscale.results import StoredCounts
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
            is_damaged = isinstance(error, DamagedFileError)
            why = error if is_damaged else f"{path} is damaged or incomplete: {error}"
            raise DamagedStoreError(f"{why}. Pack the counts again.") from error

    def _open(self, file: Any) -> None:
        self._is_store = "format" in file.attrs and read_attribute(file, "format", "S") == FORMAT
        if not self._is_store:
            raise KeyError("it has another format")
        about = _about(file)
        n, m = (int(size) for size in about["shape"])
        sizes = {
            "names/sample": n, "names/feature": m, "names/group": n, "names/modality": m
        }  # fmt: skip
        there = [part for part in NAMES if part in about["parts"]]
        names: dict[str, Any] = {
            NAMES[part]: read_names(file, part, (sizes[part],)) for part in there
        }
        if OBS in about["parts"]:
            names["obs"] = read_table(file, OBS, n)
        if MEASURED in about["parts"]:
            features = read_checked(file, f"{MEASURED}/features", (None, m), ("uint8",))
            panel = read_checked(file, f"{MEASURED}/panel", (n,), ("int64",))
            if panel.size and not 0 <= panel.min() <= panel.max() < len(features):
                raise damaged(file, f"{MEASURED}/panel has numbers of panels that do not exist")
            names["measured"] = features.astype(bool), panel
        if WEIGHTS in about["parts"]:
            names[WEIGHTS] = read_checked(file, WEIGHTS, (m,), ("float64",))
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
