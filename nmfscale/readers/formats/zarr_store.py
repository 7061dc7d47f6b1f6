"""AnnData objects in zarr stores of formats 2 and 3, read by rows; obs and var by anndata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.row_ranges import RowRange
from ...counts.structure import check_pointers, check_shape, corrupt, index_type
from ...counts.validation import rows_of_blocks
from ...storage.atomic import retry
from ..sources.external_sort import SortedRows
from ..sources.frames import labels_in, table_of_frame
from ..sources.sources import (
    SLICE,
    CompressedGroup,
    MemoryLimits,
    OpenedTable,
    RowReader,
    check_number_type,
)
from .h5ad import chosen_modality

Array = NDArray[Any]
METADATA = "zarr.json", ".zgroup", ".zarray", ".zmetadata"
# Bytes of a band of chunks of a dense array that is kept in memory.
_BAND_BYTES = 2**27


def is_zarr(path: Path) -> bool:
    """Whether a folder is a zarr store."""
    return path.is_dir() and any((path / name).is_file() for name in METADATA)


def open_zarr(
    path: Path, limits: MemoryLimits, *, layer: str | None = None, raw: bool = False,
    groups: str | None = None, modality: str | None = None,
) -> OpenedTable:  # fmt: skip
    """Open X, a layer, or the X of raw, with names and the labels in one column of obs."""
    if raw and layer is not None:
        raise ValueError(f"{path}: layer={layer!r} and raw=True exclude each other.")
    path = path.absolute()
    root = _root_of(path, modality)
    matrices = [name for name in ("X", "raw/X") if name in root]
    matrices += [f"layers/{name}" for name in (root["layers"] if "layers" in root else ())]
    name = "raw/X" if raw else "X" if layer is None else f"layers/{layer}"
    if name not in matrices:
        raise ValueError(f"{path} has no {name}; its matrices: {', '.join(matrices) or 'none'}.")
    with _zarr_errors(path):
        rows = _rows(root[name], path, limits)
        obs, var = (_read_element(root[place]) for place in ("obs", "raw/var" if raw else "var"))
    for frame, of, size in ((obs, "rows", rows.shape[0]), (var, "columns", rows.shape[1])):
        if len(frame) != size:
            raise ValueError(f"{path}: {name} has {size:,} {of}, but {len(frame):,} names.")
    others = [f"{other} is there too" for other in matrices if other != name]
    return OpenedTable(
        path, rows, f"{path} ({'; '.join([name, *others])})", sample_names=obs.index,
        feature_names=var.index, groups=None if groups is None else labels_in(obs, groups),
        obs=partial(table_of_frame, obs), var=partial(table_of_frame, var),
    )  # fmt: skip


def read_zarr_obs(path: Path) -> tuple[Array, Any]:
    """Return the names of the samples of a store, and the columns of obs."""
    frame = _read_element(_root_of(path.absolute(), None)["obs"])
    return np.asarray(frame.index, object), table_of_frame(frame)


def _root_of(path: Path, modality: str | None) -> Any:
    """Return the group of an AnnData object in a store."""
    try:
        import zarr
    except ImportError as error:
        raise ImportError(
            f"{path} is a zarr store, which needs zarr and anndata: pip install 'nmfscale[zarr]'."
        ) from error
    with _zarr_errors(path):
        root: Any = zarr.open(str(path), mode="r")
    if not hasattr(root, "keys"):
        raise ValueError(f"{path} is a zarr array, not an AnnData object: read it with zarr.open.")
    members = set(root)
    if {"obs", "var"} <= members and "mod" not in members:
        if modality is not None:
            raise ValueError(f"modality={modality!r}: {path} holds a single AnnData object.")
        return root
    if "mod" in members:
        return root[f"mod/{chosen_modality(str(path), list(root['mod']), modality)}"]
    if "tables" in members:
        tables = ", ".join(f"{path}/tables/{name}" for name in root["tables"])
        raise ValueError(f"{path} is a SpatialData store; pass the path of a table: {tables}.")
    parts = ", ".join(sorted(members)) or "nothing"
    raise ValueError(f"{path} is not an AnnData object (X, obs, var); it holds: {parts}.")


def _read_element(node: Any) -> Any:
    """Return the DataFrame in a group; anndata knows the encodings of all versions."""
    try:
        from anndata.io import read_elem
    except ImportError as error:
        raise ImportError("zarr stores need anndata: pip install 'nmfscale[zarr]'.") from error
    return read_elem(node)


@contextmanager
def _zarr_errors(path: Path) -> Iterator[None]:
    """Convert errors of zarr and its codecs to errors that name the store."""
    try:
        yield
    except (OSError, ValueError) as error:
        if str(path) in str(error) or isinstance(error, OSError):
            raise
        raise ValueError(f"{path} is damaged: {error}") from error
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged, or does not follow its format ({type(error).__name__}: {error})."
        ) from error


def _rows(node: Any, path: Path, limits: MemoryLimits) -> RowReader:
    """Return a reader for the rows of a dense array or a sparse group, samples x features."""
    if not hasattr(node, "keys"):
        return ZarrDense(node, path)
    encoding = str(node.attrs.get("encoding-type", ""))
    if encoding[:3] not in ("csr", "csc"):
        fault = f"{node.path} is a group with encoding {encoding!r}"
        raise ValueError(f"{path}: {fault}; expected a dense array, csr_matrix or csc_matrix.")
    n, m = (int(size) for size in node.attrs["shape"])
    if encoding[:3] == "csr":
        return ZarrCompressed(node, (n, m), path)
    columns = ZarrCompressed(node, (m, n), path)
    triplets = partial(columns.transposed, min(SLICE // 4, limits.sort // 256))
    return SortedRows((n, m), triplets, limits, columns.dtype, columns.close)


class _ZarrReader:
    """Reads arrays of a store, again after errors of the disk or network that may pass."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, attach: Callable[[Any], None], from_arrays: Callable[[], Any]) -> Any:
        """Return `from_arrays()`."""

        def attempt() -> Any:
            with _zarr_errors(self._path):
                return from_arrays()

        return retry(self._path, attempt)

    def close(self) -> None:
        """Do nothing: zarr keeps no files open."""


class ZarrCompressed(CompressedGroup):
    """Compressed rows in a group of a store: the arrays `data`, `indices` and `indptr`."""

    def __init__(self, group: Any, shape: tuple[int, int], path: Path) -> None:
        self.shape, self.subject = shape, f"{path} (/{group.path})"
        check_shape(shape)
        self._data, self._indices, self._indptr = (
            group[name] for name in ("data", "indices", "indptr")
        )
        check_number_type(self._data, self.subject)
        self._reader: Any = _ZarrReader(path)
        arrays = self._indptr, self._indices, self._data
        with _zarr_errors(path):
            self.n_stored = check_pointers(*arrays, shape[0], self.subject)
            missing = self._data.nchunks - self._data.nchunks_initialized
        # zarr reads missing chunks as zeros, without an error
        if missing or self.n_stored != self._data.shape[0]:
            raise corrupt(self.subject, f"{missing} chunks of data, or some of indptr, are missing")
        self.dtype = self._data.dtype
        itemsize = self.dtype.itemsize + np.dtype(index_type(shape[1])).itemsize
        self.n_bytes = self.n_stored * itemsize


class ZarrDense:
    """Rows of a two-dimensional array of a store, decoded in bands of whole chunks."""

    def __init__(self, array: Any, path: Path) -> None:
        where = f"{path} (/{array.path})"
        check_shape(array.shape)
        check_number_type(array, where)
        self.shape, self.dtype = (int(array.shape[0]), int(array.shape[1])), array.dtype
        self._array, self._reader = array, _ZarrReader(path)
        width = max(1, self.shape[1] * self.dtype.itemsize)
        height = int(array.chunks[0])
        # a chunk is decoded more than once only if a band of chunks is too large
        fitting = max(1, _BAND_BYTES // width)
        self._height = height * max(1, fitting // height) if height <= fitting else fitting
        self._band: tuple[int, Array] | None = None

    def entry_counts(self, start: int, stop: int) -> Array:
        """Return the number of columns for every row: an upper bound, as zeros are unknown."""
        return np.full(stop - start, self.shape[1], dtype=np.int64)

    def read(self, start: int, stop: int) -> RowRange:
        """Return the nonzero entries of rows start:stop."""
        bands = range(start // self._height, -(-max(stop, start + 1) // self._height))
        parts = []
        for band in bands:
            first = band * self._height
            rows = self._rows_of_band(band)[max(start - first, 0) : max(stop - first, 0)]
            parts.append(rows_of_blocks(rows))
        lengths = np.concatenate([np.diff(part.indptr) for part in parts])
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        indices, data = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "data")
        )
        return RowRange(start, indptr.astype(index_type(data.size)), indices, data)

    def _rows_of_band(self, band: int) -> Array:
        last = self._band
        if last is None or last[0] != band:
            last = self._band = None  # free it first: one band in memory, not two
            first = band * self._height
            stop = min(first + self._height, self.shape[0])
            rows = self._reader.read(lambda _: None, lambda: self._array[first:stop])
            last = self._band = band, np.asarray(rows)
        return last[1]

    def close(self) -> None:
        """Do nothing: zarr keeps no files open."""
