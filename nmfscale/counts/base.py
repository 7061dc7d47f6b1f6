"""What a fit needs to know of counts, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from .cached import cached_property
from .names import checked_names
from .warn import warn_caller

Array = NDArray[Any]

# Functions of whole counts below this are looked up: few of them differ.
_MOST_TABULATED = 1 << 16
# A sample whose counts add up to less has loadings near the floor of a fit, 1e-10.
LEAST_TOTAL = 1e-9


class RowRange(NamedTuple):
    """Rows from `first` on as compressed sparse rows: `indptr` begins with 0."""

    first: int
    indptr: Array
    indices: Array
    data: Array

    def part(self, start: int, stop: int) -> RowRange:
        """Return views of rows start:stop, counted from `first` on."""
        low, high = self.indptr[start], self.indptr[stop]
        pointers = self.indptr[start : stop + 1] - low
        return RowRange(self.first + start, pointers, self.indices[low:high], self.data[low:high])

    def parts(self, n_entries: int) -> Iterator[RowRange]:
        """Yield parts of whole rows with about `n_entries` entries each."""
        return (self.part(*rows) for rows in row_chunks(self.indptr, n_entries))

    def matrix(self, n_columns: int) -> sp.csr_array:
        """Return these rows as a matrix of SciPy."""
        shape = (len(self.indptr) - 1, n_columns)
        return sp.csr_array((self.data, self.indices, self.indptr), shape=shape)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.indptr.nbytes + self.indices.nbytes + self.data.nbytes


def row_chunks(indptr: Array, n_entries: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with about `n_entries` entries each."""
    cuts = np.searchsorted(indptr, np.arange(n_entries, int(indptr[-1]), n_entries))
    return pairwise(np.unique([0, *cuts.tolist(), len(indptr) - 1]).tolist())


class CountMatrix(ABC):
    """A table of counts, samples x features, checked and ready for a fit.

    :class:`Counts` holds one in memory, :class:`StoredCounts` reads it from a packed file.

    Parameters
    ----------
    shape : tuple of int
        Number of samples and of features.
    sample_names, feature_names : array-like, optional
        Names of the rows and of the columns: text, numbers, bytes, or tuples of them.
    groups : array-like, optional
        One label per sample.
    notes : sequence of str, default=()
        What was changed or left out on the way, for :meth:`report`.
    first_fraction : str, optional
        Where the first count that is not a whole number stands.

    Notes
    -----
    Every parameter is also an attribute of the same name.
    """

    from_file = False
    row_nnz: Any
    column_nnz: Any
    row_totals: Any
    column_totals: Any
    largest: Any
    _nnz: int
    _dtype: np.dtype[Any]
    # Which columns of other counts these are, -1 for those without counts; None if all of them.
    columns_taken: Any = None
    _layout: Any = None

    def __init__(
        self, shape: tuple[int, int], *, sample_names: Any = None, feature_names: Any = None,
        groups: Any = None, notes: Sequence[str] = (), first_fraction: str | None = None,
    ) -> None:  # fmt: skip
        self.shape = shape
        self.sample_names = checked_names(sample_names, shape[0], "sample_names", "row")
        self.feature_names = checked_names(feature_names, shape[1], "feature_names", "column")
        self.groups = labels_of(groups, shape[0], "groups", "row")
        self.notes = tuple(notes)
        self.first_fraction = first_fraction

    @property
    def nnz(self) -> int:
        """Number of nonzero counts."""
        return self._nnz

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the counts: uint8, uint16, uint32, int32, int64, float32 or float64."""
        return self._dtype

    @abstractmethod
    def _pieces(self, start: int, stop: int, wanted: Array | None = None) -> Iterator[RowRange]:
        """Yield rows start:stop; those that a mask of all rows does not want may be empty."""

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[RowRange]:
        """Read the table, or rows start:stop of it, piece by piece.

        Parameters
        ----------
        start : int, default=0
            The first row.
        stop : int, default=None
            The one after the last; None reads to the end.

        Returns
        -------
        iterator of RowRange
            Ranges of rows, one after the other, small beside the table: first row, index
            pointers from 0, column numbers and counts.
        """
        return self._pieces(start, self.shape[0] if stop is None else stop)

    def row_sums(self, function: Callable[[Array], Array]) -> NDArray[np.float64]:
        """Sum a function of the counts over each row's nonzeros.

        Parameters
        ----------
        function : callable
            Of float64 counts of shape (n,), elementwise.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            The sums, added in the order in which a row is kept.
        """
        from . import _sell  # so that sources without compiled kernels say so

        out = np.zeros(self.shape[0])
        table = None
        if self.is_integer and self.largest < _MOST_TABULATED:
            table = function(np.arange(self.largest + 1))
        for first, indptr, _, data in self.chunks():
            n_rows = len(indptr) - 1
            if table is not None:
                _sell.sum_rows(indptr, data, table, out[first : first + n_rows])
                continue
            values = function(data.astype(np.float64))
            rows = np.repeat(np.arange(n_rows), np.diff(indptr))
            out[first : first + n_rows] = np.bincount(rows, weights=values, minlength=n_rows)
        return out

    @cached_property
    def row_log_factorials(self) -> NDArray[np.float64]:
        """Sum of log x! over the counts of each sample, (n_samples,)."""
        return self.row_sums(lambda x: gammaln(x + 1))

    @cached_property
    def row_x_log_x(self) -> NDArray[np.float64]:
        """Sum of x log x over the counts of each sample, (n_samples,)."""
        return self.row_sums(lambda x: xlogy(x, x))

    def take_rows(self, rows: Array | None = None) -> Any:
        """Read some rows.

        Parameters
        ----------
        rows : ndarray of int, default=None
            Which, in rising order; by default all.

        Returns
        -------
        scipy.sparse.csr_array
            One row for each that was asked for, with sorted column numbers, in the type of the
            counts.
        """
        wanted = None
        if rows is not None:
            wanted = np.zeros(self.shape[0], bool)
            wanted[rows] = True
        found = []
        for piece in self._pieces(0, self.shape[0], wanted):
            matrix = piece.matrix(self.shape[1])
            if wanted is not None:
                matrix = matrix[wanted[piece.first : piece.first + matrix.shape[0]]]
            found.append(matrix)
        matrix = sp.csr_array(sp.vstack(found, format="csr"))
        matrix.sort_indices()
        return matrix

    @abstractmethod
    def _count_values(self, above: float) -> tuple[Array, Array]:
        """Distinct counts, all above a limit at least, rising, and how often each occurs."""

    def large_counts(self, above: float) -> tuple[Array, Array]:
        """Find the large counts.

        Parameters
        ----------
        above : float
            The limit.

        Returns
        -------
        values, times : ndarray of int64
            The distinct counts above the limit, rising, and how often each occurs.
        """
        values, times = self._count_values(above)
        return values[values > above], times[values > above]

    def _make_layout(self, n_threads: int) -> Any:
        """Arrange the counts; asked for where that is not known from the beginning."""
        raise NotImplementedError

    def layout(self, n_threads: int = 1) -> Any:
        """Return row blocks in both orders, as the kernels read them; built once.

        Parameters
        ----------
        n_threads : int, default=1
            Threads to build them with; the blocks do not depend on it.

        Returns
        -------
        Layout
            Of ``nmfscale.counts.blocks``.
        """
        if self._layout is None:
            self._layout = self._make_layout(n_threads)
        return self._layout

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the layout, as large as the counts, which follows from them."""
        return {**self.__dict__, "_layout": None}

    @property
    def is_integer(self) -> bool:
        """Whether every count is a whole number."""
        return self.first_fraction is None

    @cached_property
    def total(self) -> float:
        """Sum of all counts."""
        return float(self.row_totals.sum())

    @property
    def n_empty_rows(self) -> int:
        """Number of samples without any count."""
        return int(np.count_nonzero(self.row_nnz == 0))

    @property
    def n_empty_columns(self) -> int:
        """Number of features without any count."""
        return int(np.count_nonzero(self.column_nnz == 0))

    def report(self) -> str:
        """Describe what was found.

        Returns
        -------
        str
            Several lines: shape, nonzeros, kind and size of the counts, empty rows and
            columns, duplicate names, and what was changed on the way.
        """
        n_rows, n_columns = self.shape
        kind = "integer" if self.is_integer else f"not integer ({self.first_fraction})"
        lines = [
            f"samples x features  {n_rows:,} x {n_columns:,}",
            f"nonzero counts      {self.nnz:,} ({self.nnz / (n_rows * n_columns):.3%})",
            f"counts              {kind}, {self.dtype}, total {self.total:,.12g}, "
            f"largest {self.largest:,.12g}",
            f"empty               {self.n_empty_rows:,} rows, {self.n_empty_columns:,} columns",
        ]
        for what, names in (("sample", self.sample_names), ("feature", self.feature_names)):
            if names is None:
                lines.append(f"{what + ' names':<20}none")
            else:
                repeated = names.size - len(set(names.tolist()))
                lines.append(f"{what + ' names':<20}{names.size:,}, {repeated:,} of them repeats")
        if self.groups is not None:
            lines.append(f"groups              {len(set(self.groups.tolist())):,}")
        lines.extend(f"note                {note}" for note in self.notes)
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Shape, number of nonzero counts and their type."""
        n_rows, n_columns = self.shape
        return f"<{type(self).__name__} {n_rows} x {n_columns}, {self.nnz} nonzero, {self.dtype}>"


def totals_of_rows(rows: RowRange) -> NDArray[np.float64]:
    """Sum the counts of every row of a range, in the order in which they are kept."""
    indptr, data = rows.indptr, rows.data
    totals = np.zeros(len(indptr) - 1)
    # Empty rows are left out: reduceat would give them their neighbour's first count.
    length = np.diff(indptr)
    filled = np.flatnonzero(length)
    if not filled.size:
        return totals
    dtype = np.dtype(np.float64)
    # whole numbers whose sums cannot overflow need not be converted, which costs more than adding
    if data.dtype.kind in "iu" and int(data.max()) * int(length.max()) <= np.iinfo(data.dtype).max:
        dtype = data.dtype
    totals[filled] = np.add.reduceat(data, indptr[filled], dtype=dtype)
    return totals


def labels_of(labels: Any, size: int, name: str, of: str) -> NDArray[Any] | None:
    """Return labels as an array, one for each row or column; None stays None."""
    if labels is None:
        return None
    labels = np.asarray(labels)
    if labels.shape != (size,):
        raise ValueError(f"{name} has shape {labels.shape}, but there are {size} {of}s.")
    return labels


def check_totals(counts: CountMatrix, holder: str) -> None:
    """Refuse rows whose counts add up to next to nothing: a fit takes what is so small for 0."""
    if counts.is_integer:
        return
    totals = counts.row_totals
    small = np.flatnonzero((totals > 0) & (totals < LEAST_TOTAL))
    if small.size:
        i = int(small[0])
        name = "" if counts.sample_names is None else f" ({str(counts.sample_names[i])!r})"
        more = f", and {small.size - 1:,} other rows likewise" if small.size > 1 else ""
        raise ValueError(
            f"{holder}: the counts of row {i}{name} add up to {totals[i]:.3g}{more}; less than "
            f"{LEAST_TOTAL:g} cannot be told from 0 in a fit. Multiply all counts by one number "
            "(such as 2.0**100), or set those of the row to 0."
        )


IntegerPolicy = Literal["warn", "allow", "require"]


def check_integer(integer: Any) -> None:
    """Refuse a word that does not say what to do about counts that are not whole numbers."""
    if integer not in ("warn", "allow", "require"):
        raise ValueError(f"integer={integer!r} is not one of 'warn', 'allow', 'require'.")


def warn_fraction(
    first_fraction: str | None, integer: IntegerPolicy, holder: str, others: Sequence[str] = ()
) -> None:
    """Warn of, or refuse, counts that are not whole numbers, of the object or file `holder`.

    `others` are the matrices that it has besides.
    """
    if first_fraction is None or integer == "allow":
        return
    message = (
        f"{holder} holds counts that are not whole numbers: {first_fraction}. "
        "Pass the raw counts (for AnnData: perhaps in a layer or raw)"
    )
    also = f" It has {', '.join(others)} too." if others else ""
    if integer == "require":
        raise ValueError(f"{message}.{also}")
    warn_caller(f"{message}, or integer='allow' to have these fitted as they are.{also}")
