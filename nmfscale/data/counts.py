"""Counts in memory, and the one place where a matrix of counts is checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from . import placing
from .caller import warn_caller
from .compressed import CHUNK, CompressedRows, EntryNames, compressed_rows, row_chunks
from .dask_rows import DaskRows, is_dask_array
from .sizes import parse_bytes
from .table import CountTable, RowRange, labels_of, totals_of_rows

Whole = Literal["warn", "allow", "require"]


class Counts(CountTable):
    """Counts in memory.

    Made by :func:`as_counts` and :func:`read_counts`. The arrays are compressed sparse rows:
    no negative, infinite or missing value, no explicit zero, no duplicate entry; the column
    numbers within a row need not be sorted. They are read-only views of the arrays that were
    given wherever those could be used as they are.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Compressed sparse rows; index types int32 or int64, also mixed.
    shape : tuple of int
        Number of samples and of features.
    has_sorted_indices : bool, default=False
        Whether the column numbers rise within every row.
    **about
        Names, groups, notes and the first fraction, as :class:`CountTable` takes them.

    Notes
    -----
    Every parameter is also an attribute of the same name.

    Examples
    --------
    >>> from nmfscale import as_counts
    >>> counts = as_counts([[0, 2, 1], [3, 0, 0]])
    >>> counts.shape, counts.nnz, counts.row_totals.tolist()
    ((2, 3), 3, [3.0, 3.0])
    >>> counts.take_rows().toarray()
    array([[0., 2., 1.],
           [3., 0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        indptr: NDArray[Any],
        indices: NDArray[Any],
        data: NDArray[Any],
        shape: tuple[int, int],
        *,
        has_sorted_indices: bool = False,
        **about: Any,
    ) -> None:
        super().__init__(shape, **about)
        self.indptr = _read_only(indptr)
        self.indices = _read_only(indices)
        self.data = _read_only(data)
        self.has_sorted_indices = has_sorted_indices
        self._layout: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the layout, as large as the counts, which follows from them."""
        return {**self.__dict__, "_layout": None}

    @property
    def nnz(self) -> int:
        """Number of nonzero counts."""
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the counts: uint8, uint16, uint32, int32, int64, float32 or float64."""
        return self.data.dtype

    @cached_property
    def row_nnz(self) -> NDArray[np.int64]:
        """Number of nonzero counts of each sample, (n_samples,)."""
        return np.diff(self.indptr).astype(np.int64)

    @cached_property
    def column_nnz(self) -> NDArray[np.int64]:
        """Number of nonzero counts of each feature, (n_features,)."""
        found = np.zeros((1, self.shape[1]), np.int64)
        whole = np.array([0, self.nnz])  # rows do not matter here: one of all entries
        placing.count_columns(whole, self.indices, whole[:1], np.array([0, 1]), found, 1)
        return found[0]

    @cached_property
    def row_totals(self) -> NDArray[np.float64]:
        """Sum of the counts of each sample, (n_samples,)."""
        totals = np.zeros(self.shape[0])
        for first, indptr, _, data in self.chunks():
            totals[first : first + len(indptr) - 1] = totals_of_rows(indptr, data)
        return totals

    @cached_property
    def column_totals(self) -> NDArray[np.float64]:
        """Sum of the counts of each feature, (n_features,)."""
        size = self.shape[1]
        totals = np.zeros(size)
        for start, stop in self._entry_chunks():
            part = slice(start, stop)
            totals += np.bincount(self.indices[part], weights=self.data[part], minlength=size)
        return totals

    @cached_property
    def largest(self) -> float:
        """The largest count."""
        return float(self.data.max()) if self.nnz else 0.0

    def chunks(self) -> Iterator[RowRange]:  # noqa: D102
        for first, last in row_chunks(self.indptr, CHUNK):
            start, stop = int(self.indptr[first]), int(self.indptr[last])
            indptr = self.indptr[first : last + 1] - start
            yield RowRange(first, indptr, self.indices[start:stop], self.data[start:stop])

    def take_rows(self, rows: NDArray[Any] | None = None) -> sp.csr_array:  # noqa: D102
        if rows is None:
            stored = self.data.astype(np.float32), self.indices, self.indptr
            matrix = sp.csr_array(stored, shape=self.shape)
        else:
            whole = sp.csr_array((self.data, self.indices, self.indptr), shape=self.shape)
            matrix = whole[rows].astype(np.float32)
        return matrix if self.has_sorted_indices else matrix.sorted_indices()

    def large_counts(self, above: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # noqa: D102
        chunks = self.chunks() if self.largest > above else ()
        large = [self.data[:0], *(data[data > above] for *_, data in chunks)]
        values, times = np.unique(np.concatenate(large).astype(np.int64), return_counts=True)
        return values, times

    def layout(self, n_threads: int = 1) -> Any:  # noqa: D102
        if self._layout is None:
            from .layout import Layout
            from .row_sources import MemoryRows

            # The reader does not hold the counts: no cycle, all go with the last name.
            reader = MemoryRows(self.indptr, self.indices, self.data, self.shape)
            self._layout = Layout(
                self, reader, n_threads, has_sorted_indices=self.has_sorted_indices
            )
        return self._layout

    def _entry_chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of entries, so that bincount's conversions stay small."""
        step = max(CHUNK, self.shape[1])
        for start in range(0, self.nnz, step):
            yield start, min(start + step, self.nnz)


def as_counts(
    X: Any,
    *,
    layer: str | None = None,
    integer: Whole = "warn",
    whom: str = "X",
    in_memory: bool = True,
    memory_limit: int | float | str | None = None,
) -> CountTable:
    """Check a matrix of counts and bring it into compressed sparse rows.

    Parameters
    ----------
    X : array-like, sparse matrix or array, AnnData, DataFrame, dask array, path or CountTable
        Counts, samples x features (n_samples, n_features). It is never written to, and its
        arrays are used as they are if they are compressed sparse rows without duplicates and
        explicit zeros. A packed store is opened, another path read by :func:`read_counts`.
    layer : str, optional
        Layer of an AnnData object (or .h5ad file) to use in place of ``X``.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers: warn once, say nothing, or refuse.
    whom : str, default="X"
        Name of the asking estimator or file, for messages.
    in_memory : bool, default=True
        Whether a file is read into memory. If not, or for a packed store, it is read a block of
        rows at a time when counts are needed; likewise an AnnData object opened with ``backed``,
        and dask arrays.
    memory_limit : int, float or str, default=None
        Bytes, or text such as "2GB". A quarter of them, 1 GiB by default, is used to bring text
        and compressed columns of a file that is not read into memory into the order of rows.

    Returns
    -------
    CountTable
        The counts in their own type, with the names found in a DataFrame or AnnData object:
        :class:`Counts` in memory, :class:`StoredCounts` of a packed store.

    Raises
    ------
    ValueError
        If a count is negative, infinite, missing, complex or above 2**53, if there is no row
        or no column, if the input is not two-dimensional, or if a sparse structure is corrupt.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.data.counts import as_counts
    >>> counts = as_counts(np.array([[0, 2, 1], [3, 0, 0]]))
    >>> counts
    <Counts 2 x 3, 3 nonzero, int64>
    >>> counts.column_totals
    array([3., 2., 1.])
    """
    check_whole(integer)
    if memory_limit is not None:
        parse_bytes(memory_limit)
    if isinstance(X, (str, os.PathLike)):
        return _file_counts(Path(X), layer, integer, in_memory, memory_limit)
    if _is_annotated(X) and not in_memory and X.isbacked and not X.is_view:
        counts = _file_counts(Path(X.filename), layer, integer, in_memory, memory_limit)
        # the object's names may have been changed since it was opened
        counts.sample_names = labels_of(X.obs_names, X.n_obs, "obs_names", "row")
        counts.feature_names = labels_of(X.var_names, X.n_vars, "var_names", "column")
        return counts
    counts = _object_counts(X, layer, whom, in_memory)
    if counts is not X or integer == "require":
        holder = "X" if whom == "X" else f"X passed to {whom}"
        mind_fraction(counts.first_fraction, integer, holder)
    return counts


def _is_annotated(X: Any) -> bool:
    anndata = sys.modules.get("anndata")
    return anndata is not None and isinstance(X, anndata.AnnData)


def _object_counts(X: Any, layer: str | None, whom: str, in_memory: bool) -> CountTable:
    if _is_annotated(X):
        return annotated_counts(X, layer=layer, whom=whom, in_memory=in_memory)
    if is_dask_array(X):
        return _dask_counts(X, whom, in_memory)
    if layer is not None:
        raise ValueError(
            f"layer={layer!r} needs an AnnData object or file, got {type(X).__name__}."
        )
    if isinstance(X, CountTable):
        return X
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        return checked_counts(
            _frame_matrix(X),
            whom=whom,
            sample_names=_frame_labels(getattr(X, "index", None)),
            feature_names=_frame_labels(X.columns),
        )
    return checked_counts(X, whom=whom)


def _file_counts(
    path: Path, layer: str | None, integer: Whole, in_memory: bool, memory_limit: Any
) -> CountTable:
    from .store import StoredCounts, is_store
    from .stored import read_counts
    from .streamed import stream_counts

    counts: CountTable
    if path.is_file() and layer is None and is_store(path):
        counts = StoredCounts(path)
    elif in_memory:
        return read_counts(path, layer=layer, integer=integer)
    else:
        counts = stream_counts(path, memory_limit=memory_limit, layer=layer)
    mind_fraction(counts.first_fraction, integer, str(path))
    return counts


def _dask_counts(X: Any, whom: str, in_memory: bool, **names: Any) -> CountTable:
    from .streamed import StreamedCounts

    stream = DaskRows(X, **names)
    if in_memory:
        return checked_counts(stream.rows(0, stream.shape[0]), whom=whom, **names)
    return StreamedCounts(stream)


def checked_counts(
    matrix: Any,
    *,
    whom: str = "X",
    sample_names: Any = None,
    feature_names: Any = None,
    groups: Any = None,
    notes: Sequence[str] = (),
) -> Counts:
    """Check a plain matrix, dense or sparse, unless that is done, and attach its names."""
    # part of an AnnData object that is in a file
    rows = matrix.to_memory() if hasattr(matrix, "to_memory") else matrix
    if not isinstance(rows, CompressedRows):
        rows = compressed_rows(rows, EntryNames(whom, sample_names, feature_names))
    return Counts(
        rows.indptr,
        rows.indices,
        rows.data,
        rows.shape,
        sample_names=sample_names,
        feature_names=feature_names,
        groups=groups,
        notes=[*notes, *rows.notes],
        has_sorted_indices=rows.has_sorted_indices,
        first_fraction=rows.first_fraction,
    )


def annotated_counts(
    adata: Any,
    *,
    layer: str | None = None,
    raw: bool = False,
    groups: str | None = None,
    whom: str = "X",
    in_memory: bool = True,
) -> CountTable:
    """Check the counts of an AnnData object: its X, a layer, or the X of its raw."""
    if raw and layer is not None:
        raise ValueError(f"layer={layer!r} and raw=True exclude each other: raw has no layers.")
    known = ", ".join(map(repr, adata.layers)) or "none"
    if raw and adata.raw is None:
        raise ValueError(f"The AnnData object has no raw; its layers: {known}.")
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"No layer {layer!r} in the AnnData object; its layers: {known}.")
    source = adata.raw if raw else adata
    matrix = source.X if layer is None else adata.layers[layer]
    if matrix is None:
        raise ValueError(f"The AnnData object has no X; choose one of its layers: {known}.")
    names = {
        "sample_names": adata.obs_names,
        "feature_names": source.var_names,
        "groups": None if groups is None else _group_labels(adata.obs, groups),
    }
    if is_dask_array(matrix):
        return _dask_counts(matrix, whom, in_memory, **names)
    return checked_counts(matrix, whom=whom, **names)


def _group_labels(obs: Any, column: str) -> NDArray[Any]:
    if column not in obs.columns:
        known = ", ".join(map(repr, obs.columns)) or "none"
        raise ValueError(f"No column {column!r} in obs; its columns: {known}.")
    labels = obs[column].astype(object).to_numpy(copy=True)
    labels[obs[column].isna().to_numpy()] = "missing"
    return labels


def _frame_matrix(frame: Any) -> Any:
    """Return the numbers of a DataFrame, sparse if all its columns are."""
    dtypes = list(frame.dtypes)
    sparse = [dtype for dtype in dtypes if type(dtype).__name__ == "SparseDtype"]
    if dtypes and len(sparse) == len(dtypes) and all(dtype.fill_value == 0 for dtype in sparse):
        return frame.sparse.to_coo()
    try:
        if dtypes and all(isinstance(dtype, np.dtype) for dtype in dtypes):
            return frame.to_numpy(dtype=np.result_type(*dtypes))
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return frame.to_numpy()


def _frame_labels(index: Any) -> Any:
    """Names of an index; None for the numbering that pandas makes up."""
    return None if index is None or type(index).__name__ == "RangeIndex" else list(map(str, index))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """View an array so that the caller's memory cannot be written through it."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_whole(integer: Any) -> None:
    """Refuse a word that does not say what to do about counts that are not whole numbers."""
    if integer not in ("warn", "allow", "require"):
        raise ValueError(f"integer={integer!r} is not one of 'warn', 'allow', 'require'.")


def mind_fraction(first_fraction: str | None, integer: Whole, holder: str) -> None:
    """Warn of, or refuse, counts that are not whole numbers, of the object or file `holder`."""
    if first_fraction is None or integer == "allow":
        return
    message = (
        f"{holder} holds counts that are not whole numbers: {first_fraction}. "
        "Pass the raw counts (for AnnData: perhaps in a layer or raw)"
    )
    if integer == "require":
        raise ValueError(f"{message}.")
    warn_caller(f"{message}, or integer='allow' to have these fitted as they are.")
