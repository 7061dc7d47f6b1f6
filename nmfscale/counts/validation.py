"""Conversion of any matrix to checked arrays of compressed sparse rows.

The structure of a matrix is checked before compiled code of other libraries uses it: an index out
of range could make that code write outside an array.
"""

from __future__ import annotations

import reprlib
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .foreign import ObjectTypeError, known_matrix
from .row_ranges import RowRange
from .structure import check_parts, check_shape, index_type

Array = NDArray[Any]

# Whole numbers beyond this are not exact in float64.
LARGEST_COUNT = 2**53

# Number of entries examined at a time: temporary arrays stay in the processor's cache.
CHUNK = 2**18

_TO_NUMBERS = "Convert the data to numbers first."
_TEXT_TO_NUMBERS = (
    "Convert the data to numbers first: count the words of texts, "
    "as nmfscale.text_counts(X) or scikit-learn's CountVectorizer do."
)


class EntryTypeError(TypeError, ValueError):
    """An entry of an object array is not a number (a TypeError for scikit-learn's sake)."""


class EntryNames(NamedTuple):
    """Names used in error messages: the caller or file (`subject`), the rows and the columns."""

    subject: str
    sample_names: Any = None
    feature_names: Any = None

    @property
    def holder(self) -> str:
        """What holds the counts: a file, or X, and the estimator to which it was passed."""
        return f"X passed to {self.subject}" if self._is_estimator else self.subject

    @property
    def where(self) -> str:
        """Where the counts were found: passed to an estimator, or in a file or an argument."""
        return f"{'passed to' if self._is_estimator else 'in'} {self.subject}"

    @property
    def _is_estimator(self) -> bool:
        caller = self.subject.split(" (")[0]
        return caller != "X" and caller.isidentifier()

    def entry(self, row: int, column: int, value: Any) -> str:
        """Describe one entry: row and column, with their names if known, and its value."""
        of_row, of_column = (
            "" if names is None or at >= len(names) else f" ({str(names[at])!r})"
            for names, at in ((self.sample_names, row), (self.feature_names, column))
        )
        return f"row {row}{of_row}, column {column}{of_column} holds {value!s}"


class CompressedRows(NamedTuple):
    """Checked counts without duplicates and explicit zeros, with notes on what was changed."""

    rows: RowRange
    shape: tuple[int, int]
    has_sorted_indices: bool
    first_fraction: str | None
    notes: list[str]


class Findings(NamedTuple):
    """Results of one pass over the entries; `rising` says that columns rise within every row."""

    rising: bool
    n_zeros: int
    first_fraction: str | None


def compressed_rows(
    matrix: Any, names: EntryNames, *, first: int = 0, sort: bool = False
) -> CompressedRows:
    """Check a matrix and bring it to canonical form; messages number its rows from `first`."""
    rows, shape = rows_of_matrix(matrix, names, first)
    return canonical_rows(rows, shape, names, sort=sort)


def rows_of_matrix(
    matrix: Any, names: EntryNames, first: int = 0
) -> tuple[RowRange, tuple[int, int]]:
    """Return the rows of a matrix, numbered from `first`, and its shape; values are not checked."""
    if not isinstance(matrix, list):  # lists were checked when they arrived
        matrix = known_matrix(matrix, names.subject)
    if sp.issparse(matrix):
        rows, shape = rows_of_sparse(matrix, names)
    else:
        array = _as_dense(matrix, names, first)
        rows, shape = rows_of_blocks(array), array.shape
    return rows._replace(first=first), shape


def canonical_rows(
    rows: RowRange, shape: tuple[int, int], names: EntryNames, *, sort: bool = False
) -> CompressedRows:
    """Check the values of structurally valid rows; sum duplicates, drop zeros, sort if asked."""
    notes = []
    rows = rows._replace(data=working_type(rows.data))
    findings = _examine(rows, names)
    if not findings.rising and _has_duplicates(rows, shape[1]):
        n_stored = rows.data.size
        rows = _sum_duplicates(rows, shape[1])
        findings = _examine(rows, names)
        notes.append(f"{n_stored - rows.data.size:,} duplicate entries were added up")
    if findings.n_zeros:
        rows = changed(rows, shape[1], "eliminate_zeros")
        notes.append(f"{findings.n_zeros:,} explicit zeros were left out")
    if sort and not findings.rising:
        rows = changed(rows, shape[1], "sort_indices")
    rows = rows._replace(data=_canonical_type(rows.data))
    return CompressedRows(rows, shape, sort or findings.rising, findings.first_fraction, notes)


def rows_of_sparse(matrix: Any, names: EntryNames) -> tuple[RowRange, tuple[int, int]]:
    """Return the rows and the shape of a sparse matrix of any format."""
    if matrix.ndim != 2:
        raise ValueError(f"Expected 2D array, got {matrix.ndim}D array instead. Reshape your data.")
    check_shape(matrix.shape)
    check_kind(matrix.dtype, names, None)
    check_parts(matrix, names.subject)
    rows = _rows_of_triplets(matrix, names) if matrix.format == "coo" else matrix.tocsr()
    n_stored = int(rows.indptr[-1])
    indptr, indices = (_index_array(numbers) for numbers in (rows.indptr, rows.indices[:n_stored]))
    data = np.ascontiguousarray(rows.data[:n_stored])
    if data.dtype.kind == "O":
        data = _numbers(data, names)
    n_rows, n_columns = map(int, matrix.shape)
    return RowRange(0, indptr, indices, working_type(data)), (n_rows, n_columns)


def _rows_of_triplets(matrix: Any, names: EntryNames) -> Any:
    """Return a COO matrix as CSR, with duplicates as separate entries.

    SciPy would sum them silently, in the matrix's own dtype, which may be too narrow.
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
) -> RowRange:
    """Compress the rows of a dense matrix that supports slicing: an array or HDF5 dataset."""
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
    indptr = indptr.astype(index_type(indices.size))
    return RowRange(start, indptr, indices, np.concatenate(values))


# Checks of the container ----------------------------------------------------------------------


def _as_dense(matrix: Any, names: EntryNames, first: int) -> Array:
    """Return a two-dimensional array of real numbers, without a copy if it is one already."""
    if isinstance(matrix, np.ma.MaskedArray) and np.ma.getmaskarray(matrix).any():
        raise ValueError(f"{names.holder} has masked entries; fill them (.filled) before the fit.")
    try:
        array = np.asarray(matrix)
    except (RuntimeError, TypeError) as error:
        what = (
            f"{names.holder} is a {type(matrix).__name__}, which NumPy cannot convert to an array"
        )
        raise ObjectTypeError(f"{what}: {error}") from error
    check_kind(array.dtype, names, array)
    if array.dtype.kind == "O" and array.ndim:
        array = _numbers(array, names, first)
    elif array.dtype.kind == "O":
        raise ValueError(
            f"Expected 2D array, got scalar array instead: {names.holder} is a "
            f"{type(array.item()).__name__}, which is not a supported matrix of counts."
        )
    from sklearn.utils import check_array

    checked: Array = check_array(array, dtype=None, ensure_all_finite=False)
    return checked


def check_kind(dtype: np.dtype[Any], names: EntryNames, array: Array | None) -> None:
    """Refuse a dtype that is not a real number; name the first entry if `array` is given."""
    if dtype.kind in "biufO":
        return
    first = ""
    if array is not None and array.ndim == 2 and array.size:
        first = f" ({names.entry(0, 0, reprlib.repr(array[:1, :1].tolist()[0][0]))})"
    if dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {names.holder} has dtype {dtype}{first}. "
            "Pass its real part if that holds the counts."
        )
    raise ValueError(
        f"{names.holder} has dtype {dtype}{first}: dtype='numeric' is not compatible with it. "
        f"{_TEXT_TO_NUMBERS if dtype.kind in 'SUT' else _TO_NUMBERS}"
    )


def _numbers(array: Array, names: EntryNames, first: int = 0) -> Array:
    """Convert an object array to float64; an error names the first entry that is not a number."""
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        for at, value in np.ndenumerate(array):
            try:
                float(value)
            except (TypeError, ValueError) as error:
                shown = reprlib.repr(value)  # a text may be a whole document
                where = f"entry {at[0]} holds {shown}"
                if len(at) == 2:
                    where = names.entry(first + at[0], at[1], shown)
                is_text = isinstance(value, (str, bytes))
                why, remedy = ("", _TEXT_TO_NUMBERS) if is_text else (f" ({error})", _TO_NUMBERS)
                raise EntryTypeError(
                    f"{names.holder} has an entry that is not a number: {where}{why}. {remedy}"
                ) from None
        raise


# Checks of the entries ------------------------------------------------------------------------


def _examine(rows: RowRange, names: EntryNames) -> Findings:
    """Refuse values that cannot be counts; find unsorted rows, zeros and fractions."""
    rising, n_zeros, first_fraction = True, 0, None
    for part in rows.parts(CHUNK):
        values, columns = part.data, part.indices
        if not values.size:
            continue
        with np.errstate(invalid="ignore"):
            least, most = values.min().item(), values.max().item()
        if not (least >= 0 and most <= LARGEST_COUNT):
            _refuse_value(part, names)
        if least == 0:
            n_zeros += values.size - int(np.count_nonzero(values))
        if first_fraction is None and values.dtype.kind == "f":
            whole = np.rint(values) == values
            if not whole.all():
                first_fraction = _entry(part, int(np.argmin(whole)), names)
        if rising:
            rises = columns[1:] > columns[:-1]
            # From the last entry of a row to the first of the next, columns may fall.
            ends = part.indptr[1:-1]
            rises[ends[(ends > 0) & (ends < values.size)] - 1] = True
            rising = bool(rises.all())
    return Findings(rising, n_zeros, first_fraction)


def _entry(rows: RowRange, at: int, names: EntryNames) -> str:
    """Describe entry `at` of a range of rows."""
    row = rows.first + int(np.searchsorted(rows.indptr, at, side="right")) - 1
    return names.entry(row, int(rows.indices[at]), rows.data[at])


def _refuse_value(rows: RowRange, names: EntryNames) -> NoReturn:
    """Raise an error that names the first entry of a range that cannot be a count."""
    values, subject = rows.data, names.where
    for mask, fault, remedy in (
        (
            np.isnan(values),
            f"Input X contains NaN, {subject}",
            "leave out its row, fill in a count, or take it as missing by data_weights='nan' of "
            "fit (PoissonNMF, TopicModel, SSNMF)",
        ),
        (np.isinf(values), f"Input X contains infinity, {subject}", "correct the entry"),
        (
            values < 0,
            f"Negative values in data {subject}",
            "pass the raw counts, not scaled or log-transformed values",
        ),
        (values > LARGEST_COUNT, f"A count above 2**53 {subject}", "rescale the counts"),
    ):
        if mask.any():
            raise ValueError(f"{fault}: {_entry(rows, int(mask.argmax()), names)}; {remedy}.")
    raise AssertionError("no entry to refuse")


# Canonical form; always copies ----------------------------------------------------------------


def _has_duplicates(rows: RowRange, n_columns: int) -> bool:
    """Return whether a row has a column twice; takes linear time also for unsorted rows."""
    for part in rows.parts(max(CHUNK, n_columns)):
        pattern = part._replace(data=np.empty(part.indices.size, np.int8)).matrix(n_columns)
        if not pattern.tocsc().has_canonical_format:
            return True
    return False


def changed(rows: RowRange, n_columns: int, method: str) -> RowRange:
    """Return a copy to which SciPy has applied one of its in-place methods."""
    matrix = RowRange(0, *(array.copy() for array in rows[1:])).matrix(n_columns)
    getattr(matrix, method)()
    return RowRange(rows.first, matrix.indptr, matrix.indices, matrix.data)


def _sum_duplicates(rows: RowRange, n_columns: int) -> RowRange:
    """Return rows with duplicates summed, in the dtype of the counts if that is exact.

    Sums above 2**53 are returned, too; the check of the entries refuses them.
    """
    data = rows.data
    whole = data.dtype.kind != "f" or bool((np.rint(data) == data).all())
    # int64 sums may overflow, and float64 rounds 2**53 + 1 to 2**53: check with both
    for kind in (np.float64, np.int64) if whole else (np.float64,):
        wide = rows._replace(data=data.astype(kind, copy=False))
        summed = changed(wide, n_columns, "sum_duplicates")
        if summed.data.max() > LARGEST_COUNT:
            return summed
    sums = summed.data.astype(np.float64 if data.dtype.kind == "f" else np.int64, copy=False)
    narrow = sums.astype(data.dtype)
    return summed._replace(data=narrow if (narrow == sums).all() else sums)


def _index_array(numbers: Array) -> Array:
    """Return indices as int32 or int64, contiguous and in native byte order."""
    if numbers.dtype in (np.int32, np.int64):
        return np.ascontiguousarray(numbers)
    return np.ascontiguousarray(numbers, dtype=np.int64)


def working_type(data: Array) -> Array:
    """Convert counts to a working dtype: native byte order, no bool, float32 or float64."""
    if data.dtype.kind == "b":
        return data.view(np.uint8)
    if data.dtype.kind == "f" and data.dtype.itemsize not in (4, 8):
        with np.errstate(over="ignore"):
            return data.astype(np.float32 if data.dtype.itemsize == 2 else np.float64)
    return data.astype(data.dtype.newbyteorder("="), copy=False)


def _canonical_type(data: Array) -> Array:
    """Convert checked counts to one of the seven dtypes that kernels read, by a view."""
    same = {"int8": np.uint8, "int16": np.uint16, "uint64": np.int64}.get(data.dtype.name)
    return data if same is None else data.view(same)


def canonical_type_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of checked counts that arrive with the given dtype."""
    return _canonical_type(working_type(np.empty(0, dtype))).dtype
