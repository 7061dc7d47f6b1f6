"""CountMatrix: what a fit needs to know about counts, in memory or in files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from ..kernels.functions import log_gamma, xlogy
from ..terminal import visible, visible_name
from .cached import cached_property
from .label_table import LabelTable, MeasuredOfSamples, part_of_measured, rows_of, taken
from .names import checked_names
from .row_ranges import RowRange

Array = NDArray[Any]

# Functions of integer counts below this are looked up in a table: there are few distinct values.
_MOST_TABULATED = 1 << 16
# A sample with a smaller sum of counts would have loadings near the floor of a fit, 1e-10.
LEAST_TOTAL = 1e-9


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
    obs : LabelTable or callable, optional
        Columns with a value for each sample, or a function without arguments that reads them.
    notes : sequence of str, default=()
        What was changed or left out when the counts were read, for :meth:`report`.
    first_fraction : str, optional
        Position and value of the first count that is not an integer.
    measured : tuple of two ndarrays, optional
        Which features were measured in which panels of samples, (n_panels, n_features), bool, and
        the panel of each sample, (n_samples,), a number of a row; None means everything. Set by an
        outer join of files with different features. Other entries are missing, not counts of 0.
    of_text : bool, default=False
        Whether features are words, so that other texts may have a different vocabulary: a word
        that they lack occurs in them 0 times.
    modalities : array-like of shape (n_features,), optional
        Label of the modality of each feature, such as "rna", as
        :func:`nmfscale.join_modalities` sets it.
    feature_weights : array-like of shape (n_features,), optional
        Positive weight of each feature in the log-likelihood of a fit, ``sum_ij w_j log p(x_ij)``;
        None means 1. Counts stay as they are: a fit of :class:`nmfscale.PoissonNMF` or
        :class:`nmfscale.TopicModel` uses the weights, other models refuse them.

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
    measured = MeasuredOfSamples()
    _nnz: int
    _dtype: np.dtype[Any]
    # If these are columns of other counts: their numbers there, -1 for columns without counts.
    columns_taken: Any = None
    _modalities: Any = None
    _feature_weights: Any = None
    # If counts were read with NaN as missing entries: a sparse mask (n, m) of these.
    nan_entries: Any = None
    _layout: Any = None

    def __init__(
        self, shape: tuple[int, int], *, sample_names: ArrayLike | None = None,
        feature_names: ArrayLike | None = None, groups: ArrayLike | None = None,
        obs: LabelTable | Callable[[], LabelTable | None] | None = None, notes: Sequence[str] = (),
        first_fraction: str | None = None, measured: tuple[Array, Array] | None = None,
        of_text: bool = False, modalities: ArrayLike | None = None,
        feature_weights: ArrayLike | None = None,
    ) -> None:  # fmt: skip
        self.shape = shape
        self._obs = obs
        self.sample_names = sample_names
        self.feature_names = feature_names
        self.groups = labels_of(groups, shape[0], "groups", "row")
        self.notes = tuple(notes)
        self.first_fraction = first_fraction
        self.measured, self.of_text = measured, bool(of_text)
        self.modalities, self.feature_weights = modalities, feature_weights

    @property
    def sample_names(self) -> Any:
        """Names of the rows (n,), or None; names that are set are checked."""
        return self._sample_names

    @sample_names.setter
    def sample_names(self, names: Any) -> None:
        self._sample_names = checked_names(names, self.shape[0], "sample_names", "row")

    @property
    def feature_names(self) -> Any:
        """Names of the columns (m,), or None; names that are set are checked."""
        return self._feature_names

    @feature_names.setter
    def feature_names(self, names: Any) -> None:
        self._feature_names = checked_names(names, self.shape[1], "feature_names", "column")

    @property
    def modalities(self) -> Any:
        """Modality of each column (m,), or None."""
        return self._modalities

    @modalities.setter
    def modalities(self, labels: Any) -> None:
        self._modalities = labels_of(labels, self.shape[1], "modalities", "column")

    @property
    def feature_weights(self) -> Any:
        """Weight of each column (m,) in a fit, float64; None if all are 1."""
        return self._feature_weights

    @feature_weights.setter
    def feature_weights(self, weights: Any) -> None:
        weights = labels_of(weights, self.shape[1], "feature_weights", "column")
        if weights is not None:
            weights = weights.astype(np.float64)
            wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
            if wrong.size:
                raise ValueError(
                    f"feature_weights[{int(wrong[0])}]={weights[wrong[0]]:g}: weights are "
                    "positive, finite numbers; leave features out to give them no weight."
                )
            weights = None if (weights == 1).all() else weights
        self._feature_weights = weights

    @property
    def obs(self) -> Any:
        """Columns with a value for each sample, read at the first use; None if there are none."""
        if callable(self._obs):
            self._obs = self._obs()
        return self._obs or None

    @obs.setter
    def obs(self, table: Any) -> None:
        self._obs = table

    def _described(self, rows: Array | None = None, columns: Array | None = None) -> dict[str, Any]:
        """Return names, groups, obs, notes and so on of some rows and columns, or of all.

        They are keyword arguments of the constructor.
        """
        obs = self._obs
        if rows is not None and obs is not None:
            obs = partial(rows_of, obs, rows)
        # columns -1 are new ones, whose modality nothing says
        known = columns is None or not (np.asarray(columns) < 0).any()
        return {
            "sample_names": taken(self.sample_names, rows),
            "feature_names": taken(self.feature_names, columns),
            "groups": taken(self.groups, rows), "obs": obs, "notes": self.notes,
            "measured": part_of_measured(self.measured, rows, columns), "of_text": self.of_text,
            "modalities": taken(self.modalities, columns) if known else None,
            "feature_weights": taken(self.feature_weights, columns) if known else None,
        }  # fmt: skip

    @property
    def nnz(self) -> int:
        """Number of nonzero counts."""
        return self._nnz

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the counts: uint8, uint16, uint32, int32, int64, float32 or float64."""
        return self._dtype

    @abstractmethod
    def _pieces(self, start: int, stop: int, wanted: Array | None = None) -> Iterator[RowRange]:
        """Yield rows start:stop; rows that are False in the mask `wanted` may be left empty."""

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[RowRange]:
        """Read the table, or rows start:stop of it, in pieces.

        Parameters
        ----------
        start : int, default=0
            The first row.
        stop : int, default=None
            The row after the last; None reads to the end.

        Returns
        -------
        iterator of RowRange
            Consecutive ranges of rows, small compared with the table: first row, index pointers
            from 0, column numbers and counts.
        """
        return self._pieces(start, self.shape[0] if stop is None else stop)

    def row_sums(self, function: Callable[[Array], Array]) -> NDArray[np.float64]:
        """Sum a function of the counts over each row's nonzeros.

        Parameters
        ----------
        function : callable
            Takes float64 counts of shape (n,), and returns its values at each of them.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            The sums, added in the stored order of each row's entries.
        """
        from . import _sell  # late, so that uncompiled sources reach the error that explains it

        out = np.zeros(self.shape[0])
        table = None
        if self.is_integer and self.largest < _MOST_TABULATED:
            table = function(np.arange(self.largest + 1))
        for first, indptr, _, data in self.chunks():
            n_rows = len(indptr) - 1
            if table is not None:
                pointers = indptr.astype(np.int64, copy=False)
                _sell.sum_rows(pointers, data, table, out[first : first + n_rows])
                continue
            values = function(data.astype(np.float64))
            rows = np.repeat(np.arange(n_rows), np.diff(indptr))
            out[first : first + n_rows] = np.bincount(rows, weights=values, minlength=n_rows)
        return out

    @cached_property
    def row_log_factorials(self) -> NDArray[np.float64]:
        """Sum of log x! over the counts of each sample, (n_samples,)."""
        return self.row_sums(lambda x: log_gamma(x + 1))

    @cached_property
    def row_x_log_x(self) -> NDArray[np.float64]:
        """Sum of x log x over the counts of each sample, (n_samples,)."""
        return self.row_sums(lambda x: xlogy(x, x))

    def take_rows(self, rows: Array | None = None) -> Any:
        """Read some rows.

        Parameters
        ----------
        rows : ndarray of int, default=None
            Numbers of the rows in rising order; None reads all.

        Returns
        -------
        scipy.sparse.csr_array
            The rows, with sorted column numbers and the dtype of the counts.
        """
        wanted = None
        if rows is not None:
            wanted = np.zeros(self.shape[0], bool)
            wanted[rows] = True
        matrices = []
        for piece in self._pieces(0, self.shape[0], wanted):
            matrix = piece.matrix(self.shape[1])
            if wanted is not None:
                matrix = matrix[wanted[piece.first : piece.first + matrix.shape[0]]]
            matrices.append(matrix)
        matrix = sp.csr_array(sp.vstack(matrices, format="csr"))
        matrix.sort_indices()
        return matrix

    @abstractmethod
    def _count_values(self, above: float) -> tuple[Array, Array]:
        """Return distinct counts in rising order, at least all above a limit, and their numbers."""

    def large_counts(self, above: float) -> tuple[Array, Array]:
        """Return the distinct counts above a limit, and how often each occurs.

        Parameters
        ----------
        above : float
            The limit.

        Returns
        -------
        values, times : ndarray of int64
            The distinct counts above the limit in rising order, and how often each occurs.
        """
        values, times = self._count_values(above)
        return values[values > above], times[values > above]

    def _make_layout(self, n_threads: int) -> Any:
        """Build the layout of the counts, unless the constructor has set it."""
        raise NotImplementedError

    def layout(self, n_threads: int = 1) -> Any:
        """Return the blocks of rows that the kernels read, by rows and by columns; built once.

        Parameters
        ----------
        n_threads : int, default=1
            Number of threads that build them; the blocks do not depend on it.

        Returns
        -------
        Layout
            See ``nmfscale.counts.blocks``.
        """
        if self._layout is None:
            self._layout = self._make_layout(n_threads)
        return self._layout

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the layout: it is as large as the counts, and can be built from them."""
        return {**self.__dict__, "_layout": None}

    @property
    def is_integer(self) -> bool:
        """Whether every count is an integer."""
        return self.first_fraction is None

    @cached_property
    def total(self) -> float:
        """Sum of all counts."""
        return float(self.row_totals.sum())

    @cached_property
    def median_total(self) -> float:
        """Median total of the samples with counts; 0 if there are none."""
        totals = self.row_totals[self.row_nnz > 0]
        return float(np.median(totals)) if totals.size else 0.0

    @property
    def n_empty_rows(self) -> int:
        """Number of samples without counts."""
        return int(np.count_nonzero(self.row_nnz == 0))

    @property
    def n_empty_columns(self) -> int:
        """Number of features without counts."""
        return int(np.count_nonzero(self.column_nnz == 0))

    def report(self) -> str:
        """Describe the counts.

        Returns
        -------
        str
            Several lines: shape, nonzeros, kind and size of the counts, empty rows and
            columns, duplicate names, and what was changed when the counts were read.
        """
        n_rows, n_columns = self.shape
        kind = "integer" if self.is_integer else f"not integer ({self.first_fraction})"
        lines = [
            f"samples x features  {n_rows:,} x {n_columns:,}",
            f"nonzero counts      {self.nnz:,} ({self.nnz / (n_rows * n_columns):.3%})",
            f"counts              {kind}, {self.dtype}, total {self.total:,.12g}, "
            f"largest {self.largest:,.12g}",
            f"counts a sample     median {self.median_total:,.12g}",
            f"empty               {self.n_empty_rows:,} rows, {self.n_empty_columns:,} columns",
        ]
        for what, names in (("sample", self.sample_names), ("feature", self.feature_names)):
            if names is None:
                lines.append(f"{what + ' names':<20}none")
            else:
                different = len(set(names.tolist()))
                how = "all" if different == names.size else f"only {different:,}"
                lines.append(f"{what + ' names':<20}{names.size:,}, {how} different")
        if self.groups is not None:
            lines.append(f"groups              {len(set(self.groups.tolist())):,}")
        if self.obs:
            lines.append(f"columns of obs      {', '.join(map(visible_name, self.obs))}")
        lines.extend(f"note                {note}" for note in self.notes)
        return visible("\n".join(lines))

    def __repr__(self) -> str:
        """Shape, number of nonzero counts and their type."""
        n_rows, n_columns = self.shape
        return f"<{type(self).__name__} {n_rows} x {n_columns}, {self.nnz} nonzero, {self.dtype}>"


def totals_of_rows(rows: RowRange) -> NDArray[np.float64]:
    """Sum the counts of every row of a range, in their stored order."""
    indptr, data = rows.indptr, rows.data
    totals = np.zeros(len(indptr) - 1)
    # Empty rows are left out: reduceat would give them their neighbour's first count.
    length = np.diff(indptr)
    filled = np.flatnonzero(length)
    if not filled.size:
        return totals
    dtype = np.dtype(np.float64)
    # integers whose sums cannot overflow are not converted: that would cost more than the additions
    if data.dtype.kind in "iu" and int(data.max()) * int(length.max()) <= np.iinfo(data.dtype).max:
        dtype = data.dtype
    totals[filled] = np.add.reduceat(data, indptr[filled], dtype=dtype)
    return totals


def labels_of(labels: Any, size: int, name: str, of: str) -> NDArray[Any] | None:
    """Return labels as an array with one entry for each row or column; None stays None."""
    if labels is None:
        return None
    if (labels := np.asarray(labels)).shape != (size,):
        raise ValueError(f"{name} has shape {labels.shape}, but there are {size} {of}s.")
    return labels


def check_totals(counts: CountMatrix, holder: str) -> None:
    """Refuse rows whose sum of counts is so small that a fit cannot tell it from 0."""
    if counts.is_integer:
        return
    totals = counts.row_totals
    small = np.flatnonzero((totals > 0) & (totals < LEAST_TOTAL))
    if small.size:
        i = int(small[0])
        name = "" if counts.sample_names is None else f" ({str(counts.sample_names[i])!r})"
        more = f" (and those of {small.size - 1:,} other rows)" if small.size > 1 else ""
        raise ValueError(
            f"{holder}: the counts of row {i}{name} add up to {totals[i]:.3g}{more}. A fit cannot "
            f"tell sums below {LEAST_TOTAL:g} from 0. Multiply all counts by the same number (such "
            "as 2.0**100), or set the counts of the row to 0."
        )
