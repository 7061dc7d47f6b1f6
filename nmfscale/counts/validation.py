"""Any matrix to checked arrays of compressed sparse rows.

A structure is checked before compiled code of others touches it: an index out of range would
otherwise write outside an array.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .structure import check_parts, check_shape, index_type

Array = NDArray[Any]

# Whole numbers beyond this are not exact in float64.
LARGEST_COUNT = 2**53

# Entries examined at a time: their temporaries stay in the processor's cache.
CHUNK = 2**18

_TO_NUMBERS = "Convert the data to numbers first."
_TEXT_TO_NUMBERS = (
    "Convert the data to numbers first: texts have to be counted, "
    "for example by scikit-learn's CountVectorizer."
)


class EntryTypeError(TypeError, ValueError):
    """An entry of an object array is not a number (a TypeError for scikit-learn's sake)."""


class EntryNames(NamedTuple):
    """Who asks, what rows and columns are called, and which row a piece begins with."""

    whom: str
    sample_names: Any = None
    feature_names: Any = None
    first_row: int = 0

    def entry(self, row: int, column: int, value: Any) -> str:
        """Name one entry by its numbers, its names where known, and its value."""
        row += self.first_row
        of_row, of_column = (
            "" if names is None or at >= len(names) else f" ({str(names[at])!r})"
            for names, at in ((self.sample_names, row), (self.feature_names, column))
        )
        return f"row {row}{of_row}, column {column}{of_column} holds {value!s}"


class CompressedRows(NamedTuple):
    """Counts without duplicates and explicit zeros, and what was found or changed."""

    indptr: Array
    indices: Array
    data: Array
    shape: tuple[int, int]
    has_sorted_indices: bool
    first_fraction: str | None
    notes: list[str]


class Findings(NamedTuple):
    """What one pass over the entries tells."""

    rising: bool
    n_zeros: int
    first_fraction: str | None


def compressed_rows(matrix: Any, names: EntryNames, *, sort: bool = False) -> CompressedRows:
    """Convert a dense or sparse matrix, check every entry, and bring it into canonical form."""
    if sp.issparse(matrix):
        indptr, indices, data, shape = rows_of_sparse(matrix, names)
    else:
        array = _as_dense(matrix, names)
        indptr, indices, data = rows_of_blocks(array)
        data, shape = working_type(data), array.shape
    return canonical_rows(indptr, indices, data, shape, names, sort=sort)


def canonical_rows(
    indptr: Array, indices: Array, data: Array, shape: tuple[int, int], names: EntryNames,
    *, sort: bool = False,
) -> CompressedRows:  # fmt: skip
    """Check every value of sound compressed rows; add up duplicates, drop zeros, maybe sort."""
    notes = []
    findings = _examine(indptr, indices, data, names)
    if not findings.rising and _has_duplicates(indptr, indices, shape):
        n_stored = data.size
        indptr, indices, data = _sum_duplicates(indptr, indices, data, shape)
        findings = _examine(indptr, indices, data, names)
        notes.append(f"{n_stored - data.size:,} duplicate entries were added up")
    if findings.n_zeros:
        indptr, indices, data = _drop_zeros(indptr, indices, data, shape)
        notes.append(f"{findings.n_zeros:,} explicit zeros were left out")
    rising = findings.rising
    if sort and not rising:
        indptr, indices, data = sort_columns(indptr, indices, data, shape)
        rising = True
    data = _canonical_type(data)
    return CompressedRows(indptr, indices, data, shape, rising, findings.first_fraction, notes)


def rows_of_sparse(matrix: Any, names: EntryNames) -> tuple[Array, Array, Array, tuple[int, int]]:
    """Row pointers, column numbers, values and shape of a sparse matrix of any format."""
    if matrix.ndim != 2:
        _refuse_dimensions(matrix.ndim, matrix, names)
    check_shape(matrix.shape)
    check_kind(matrix.dtype, names, None)
    check_parts(matrix, names.whom)
    rows = _rows_of_triplets(matrix, names) if matrix.format == "coo" else matrix.tocsr()
    n_stored = int(rows.indptr[-1])
    indptr, indices = (_index_array(numbers) for numbers in (rows.indptr, rows.indices[:n_stored]))
    data = np.ascontiguousarray(rows.data[:n_stored])
    if data.dtype.kind == "O":
        data = _numbers(data, names)
    return indptr, indices, working_type(data), (int(matrix.shape[0]), int(matrix.shape[1]))


def _rows_of_triplets(matrix: Any, names: EntryNames) -> Any:
    """CSR of a COO matrix; duplicates stay side by side.

    SciPy adds them up unseen, in the matrix's own, maybe narrow, type.
    """
    values = _numbers(matrix.data, names) if matrix.dtype.kind == "O" else matrix.data
    values = working_type(values)
    rows = sp.coo_array((values, (matrix.row, matrix.col)), shape=matrix.shape).tocsr()
    if rows.nnz == values.size:
        return rows
    order = np.argsort(matrix.row, kind="stable")
    indptr = np.zeros(matrix.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(matrix.row, minlength=matrix.shape[0]), out=indptr[1:])
    return sp.csr_array((values[order], matrix.col[order], indptr), shape=matrix.shape)


def rows_of_blocks(
    matrix: Any, n_entries: int = CHUNK, start: int = 0, stop: int | None = None
) -> tuple[Array, Array, Array]:
    """Compress rows of a dense matrix that can be sliced, an array or an HDF5 dataset."""
    n_columns = matrix.shape[1]
    stop = matrix.shape[0] if stop is None else stop
    step = max(1, n_entries // n_columns)
    narrow = index_type(n_columns)
    lengths, columns, values = [], [], []
    for first in range(start, max(stop, start + 1), step):  # one block at least, maybe empty
        block = np.asarray(matrix[first : min(first + step, stop)])
        stored = block != 0
        lengths.append(np.count_nonzero(stored, axis=1))
        columns.append(np.nonzero(stored)[1].astype(narrow))
        values.append(block[stored])
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    indices = np.concatenate(columns)
    columns.clear()
    return indptr.astype(index_type(indices.size)), indices, np.concatenate(values)


# ---------------------------------------------------------------------------
# Checks of what was given


def _as_dense(matrix: Any, names: EntryNames) -> Array:
    """Return a two-dimensional array of real numbers, not copied if it is one."""
    if hasattr(matrix, "dask") and hasattr(matrix, "compute"):
        raise TypeError(
            f"{names.whom} is a dask collection; pass its .compute() to hold it in memory."
        )
    if isinstance(matrix, np.ma.MaskedArray) and np.ma.getmaskarray(matrix).any():
        raise ValueError(f"{names.whom} has masked entries; fill them (.filled) before the fit.")
    array = np.asarray(matrix)
    check_kind(array.dtype, names, array)
    if array.dtype.kind == "O" and array.ndim:
        array = _numbers(array, names)
    if array.ndim != 2:
        _refuse_dimensions(array.ndim, array, names)
    check_shape(array.shape)
    return array


def check_kind(dtype: np.dtype[Any], names: EntryNames, array: Array | None) -> None:
    """Refuse a type that is no real number, naming the first entry where it is known."""
    if dtype.kind in "biufO":
        return
    first = ""
    if array is not None and array.ndim == 2 and array.size:
        first = f" ({names.entry(0, 0, reprlib.repr(array[:1, :1].tolist()[0][0]))})"
    if dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {names.whom} has dtype {dtype}{first}. "
            "Pass its real part if that is what was counted."
        )
    raise ValueError(
        f"{names.whom} has dtype {dtype}{first}: dtype='numeric' is not compatible with it. "
        f"{_TEXT_TO_NUMBERS if dtype.kind in 'SUT' else _TO_NUMBERS}"
    )


def _refuse_dimensions(ndim: int, array: Any, names: EntryNames) -> NoReturn:
    if ndim < 2:
        what = "scalar" if ndim == 0 else "1D"
        if ndim == 0 and array.dtype.kind == "O":
            found = array.item()
            remedy = " Pass adata.raw.X or adata.raw.to_adata()." * hasattr(found, "to_adata")
            raise ValueError(
                f"Expected 2D array, got scalar array instead: {names.whom} is a "
                f"{type(found).__name__}, which is no matrix of counts that is known here.{remedy}"
            )
        raise ValueError(
            f"Expected 2D array, got {what} array instead:\narray={array}.\n"
            "Reshape your data either using array.reshape(-1, 1) if it has a single feature "
            "or array.reshape(1, -1) if it contains a single sample."
        )
    raise ValueError(
        f"Found array with dim {ndim} (shape={array.shape}), while {names.whom} expects 2: "
        "samples x features. Reshape your data."
    )


def _numbers(array: Array, names: EntryNames) -> Array:
    """float64 of an object array, or an error that names the entry that is no number."""
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        for at, value in np.ndenumerate(array):
            try:
                float(value)
            except (TypeError, ValueError) as error:
                shown = reprlib.repr(value)  # a text may be a whole document
                where = names.entry(*at, shown) if len(at) == 2 else f"entry {at[0]} holds {shown}"
                is_text = isinstance(value, (str, bytes))
                why, remedy = ("", _TEXT_TO_NUMBERS) if is_text else (f" ({error})", _TO_NUMBERS)
                raise EntryTypeError(
                    f"{names.whom} has an entry that is no number: {where}{why}. {remedy}"
                ) from None
        raise


# ---------------------------------------------------------------------------
# Checks of the entries


def row_chunks(indptr: Array, n_entries: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `n_entries` entries each."""
    cuts = np.searchsorted(indptr, np.arange(n_entries, int(indptr[-1]), n_entries))
    edges = np.unique(np.concatenate(([0], cuts, [len(indptr) - 1]))).tolist()
    return zip(edges[:-1], edges[1:], strict=True)


def _examine(indptr: Array, indices: Array, data: Array, names: EntryNames) -> Findings:
    """Refuse what cannot be a count; find out about order, zeros and fractions."""
    rising, n_zeros, first_fraction = True, 0, None
    for first, last in row_chunks(indptr, CHUNK):
        start, stop = int(indptr[first]), int(indptr[last])
        if start == stop:
            continue
        values, columns = data[start:stop], indices[start:stop]
        with np.errstate(invalid="ignore"):
            least, most = values.min().item(), values.max().item()
        if not (least >= 0 and most <= LARGEST_COUNT):
            _refuse_value(indptr, indices, data, start, stop, names)
        if least == 0:
            n_zeros += values.size - int(np.count_nonzero(values))
        if first_fraction is None and data.dtype.kind == "f":
            whole = np.rint(values) == values
            if not whole.all():
                at = start + int(np.argmin(whole))
                first_fraction = names.entry(*_row_and_column(indptr, indices, at), data[at])
        if rising:
            rises = columns[1:] > columns[:-1]
            # From the last entry of a row to the first of the next, any step is fine.
            ends = indptr[first + 1 : last] - start
            rises[ends[(ends > 0) & (ends < stop - start)] - 1] = True
            rising = bool(rises.all())
    return Findings(rising, n_zeros, first_fraction)


def _row_and_column(indptr: Array, indices: Array, at: int) -> tuple[int, int]:
    return int(np.searchsorted(indptr, at, side="right")) - 1, int(indices[at])


def _refuse_value(
    indptr: Array, indices: Array, data: Array, start: int, stop: int, names: EntryNames
) -> NoReturn:
    """Name the first entry of the range that cannot be a count."""
    values = data[start:stop]
    refusals = (
        (np.isnan, f"Input X contains NaN, passed to {names.whom}", "leave out or fill in its row"),
        (np.isinf, f"Input X contains infinity, passed to {names.whom}", "correct the entry"),
        (
            lambda counts: counts < 0,
            f"Negative values in data passed to {names.whom}",
            "pass the raw counts, not scaled or log-transformed values",
        ),
        (
            lambda counts: counts > LARGEST_COUNT,
            f"A count above 2**53 passed to {names.whom}",
            "rescale the counts",
        ),
    )
    for test, fault, remedy in refusals:
        found = np.flatnonzero(test(values))
        if found.size:
            at = start + int(found[0])
            where = names.entry(*_row_and_column(indptr, indices, at), data[at])
            raise ValueError(f"{fault}: {where}; {remedy}.")
    raise AssertionError("no entry to refuse")


# ---------------------------------------------------------------------------
# Canonical form, always in copies


def _has_duplicates(indptr: Array, indices: Array, shape: tuple[int, int]) -> bool:
    """Whether a column number stands twice in a row, in linear time also for unsorted rows."""
    for first, last in row_chunks(indptr, max(CHUNK, shape[1])):
        start, stop = int(indptr[first]), int(indptr[last])
        unread = np.empty(stop - start, dtype=np.int8)
        part = unread, indices[start:stop], indptr[first : last + 1] - start
        pattern = sp.csr_array(part, shape=(last - first, shape[1]))
        if not pattern.tocsc().has_canonical_format:
            return True
    return False


def _copied(indptr: Array, indices: Array, data: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix that SciPy may change in place."""
    return sp.csr_array((data.copy(), indices.copy(), indptr.copy()), shape=shape)


def _sum_duplicates(
    indptr: Array, indices: Array, data: Array, shape: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """Return rows whose duplicates are added up, in the type of the counts or one that is exact.

    Sums above 2**53 stay, for the checks of entries to refuse.
    """
    whole = data.dtype.kind != "f" or bool((np.rint(data) == data).all())
    rows = _copied(indptr, indices, data.astype(np.float64, copy=False), shape)
    rows.sum_duplicates()
    sums = rows.data
    if whole and sums.max() <= LARGEST_COUNT:
        # float64 rounds 2**53 + 1 to 2**53
        exact = _copied(indptr, indices, data.astype(np.int64, copy=False), shape)
        exact.sum_duplicates()
        sums = exact.data
    if sums.max() <= LARGEST_COUNT:
        sums = sums.astype(np.float64, copy=False) if data.dtype.kind == "f" else sums
        narrow = sums.astype(data.dtype)
        sums = narrow if (narrow == sums).all() else sums
    return rows.indptr, rows.indices, sums


def _drop_zeros(
    indptr: Array, indices: Array, data: Array, shape: tuple[int, int]
) -> tuple[Array, Array, Array]:
    rows = _copied(indptr, indices, data, shape)
    rows.eliminate_zeros()
    return rows.indptr, rows.indices, rows.data


def sort_columns(
    indptr: Array, indices: Array, data: Array, shape: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """Return copies with the entries of every row by column."""
    rows = _copied(indptr, indices, data, shape)
    rows.sort_indices()
    return rows.indptr, rows.indices, rows.data


def _index_array(numbers: Array) -> Array:
    """int32 or int64, contiguous and in native byte order."""
    if numbers.dtype in (np.int32, np.int64):
        return np.ascontiguousarray(numbers)
    return np.ascontiguousarray(numbers, dtype=np.int64)


def working_type(data: Array) -> Array:
    """Give the counts a type to work with: native byte order, no bool, no odd float."""
    if data.dtype.kind == "b":
        return data.view(np.uint8)
    if data.dtype.kind == "f" and data.dtype.itemsize not in (4, 8):
        with np.errstate(over="ignore"):
            return data.astype(np.float32 if data.dtype.itemsize == 2 else np.float64)
    return data.astype(data.dtype.newbyteorder("="), copy=False)


def _canonical_type(data: Array) -> Array:
    """One of the seven types that kernels read; checked counts only, so views suffice."""
    same = {"int8": np.uint8, "int16": np.uint16, "uint64": np.int64}.get(data.dtype.name)
    return data if same is None else data.view(same)


def canonical_type_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that counts of a type have once they were checked."""
    return _canonical_type(working_type(np.empty(0, dtype))).dtype
