"""Checks of shapes, of non-negative arrays, and of the index arrays of sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .foreign import refuse_annotated

Array = NDArray[Any]


def index_type(largest: int) -> type[np.signedinteger[Any]]:
    """Return the smallest index dtype, int32 or int64, that holds `largest`."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse a table without rows or columns."""
    for size, what in zip(shape, ("sample", "feature"), strict=True):
        if size == 0:
            message = f"Found array with 0 {what}(s) (shape={tuple(shape)})"
            raise ValueError(f"{message} while a minimum of 1 is required.")


def corrupt(subject: str, what: str) -> ValueError:
    """Return the error for a sparse matrix with invalid index arrays."""
    return ValueError(f"Corrupt sparse matrix {subject}: {what}.")


def check_parts(matrix: Any, subject: str) -> None:
    """Check the index arrays of a sparse matrix."""
    n_rows, n_columns = matrix.shape
    if matrix.format == "coo":
        if not len(matrix.row) == len(matrix.col) == len(matrix.data):
            raise corrupt(subject, "row, col and data differ in length")
        check_range(matrix.row, n_rows, "row", subject)
        check_range(matrix.col, n_columns, "col", subject)
    elif matrix.format in ("csr", "csc", "bsr"):
        height, width = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        sizes = (n_rows // height, n_columns // width)
        n_major, n_minor = sizes[::-1] if matrix.format == "csc" else sizes
        last = check_pointers(matrix.indptr, matrix.indices, matrix.data, n_major, subject)
        check_rising(matrix.indptr, subject)
        check_range(matrix.indices[:last], n_minor, "indices", subject)


def check_pointers(indptr: Any, indices: Any, data: Any, n_major: int, subject: str) -> int:
    """Check dtypes and sizes of index arrays or HDF5 datasets; return the last pointer."""
    for numbers, name in ((indptr, "indptr"), (indices, "indices")):
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise corrupt(subject, f"{name} is not a 1-d array of integers")
    if indptr.shape[0] != n_major + 1:
        raise corrupt(subject, f"indptr has {indptr.shape[0]} entries, not {n_major + 1}")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise corrupt(subject, f"indptr starts at {first}, not at 0")
    if not 0 <= last <= min(indices.shape[0], data.shape[0]):
        sizes = f"{indices.shape[0]} indices and {data.shape[0]} values"
        raise corrupt(subject, f"indptr ends at {last}, but there are {sizes}")
    return last


def check_rising(indptr: Array, subject: str, offset: int = 0) -> None:
    """Check that pointers never fall; the first of them is entry `offset` of the whole array."""
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if falls.size:
        raise corrupt(subject, f"indptr falls after entry {offset + int(falls[0])}")


def check_range(numbers: Array, size: int, what: str, subject: str, offset: int = 0) -> None:
    """Check that indices are from 0 to size - 1; the first is entry `offset` of the whole array."""
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        at = int(np.flatnonzero((numbers < 0) | (numbers >= size))[0])
        entry = f"entry {offset + at} of {what} is {numbers[at]}"
        raise corrupt(subject, f"{entry}, outside 0 to {size - 1}")


def non_negative(
    values: ArrayLike, name: str, shape: tuple[int | None, ...], *, most: float = np.inf,
    axes: str = "",
) -> Array:  # fmt: skip
    """Check the shape of an array, and that its entries are finite, not negative and below `most`.

    An axis of length None may have any length but 0. `axes` describes the shape in messages.
    Returns float32 arrays unchanged, others as float64.
    """
    refuse_annotated(values, name)
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} has type {array.dtype}; pass real numbers.")
    if array.dtype != np.float32:
        array = array.astype(np.float64, copy=False)
    if array.ndim != len(shape) or any(
        size == 0 or length not in (None, size)
        for size, length in zip(array.shape, shape, strict=True)
    ):
        lengths = ["at least 1" if length is None else str(length) for length in shape]
        wanted = f"({', '.join(lengths)}{',' if len(shape) == 1 else ''})"
        wanted = f"{axes} = {wanted}" if axes else wanted
        raise ValueError(f"{name} has shape {array.shape}; it needs {wanted}.")
    # The common case takes two passes: a NaN makes the minimum NaN.
    lowest, highest = array.min(), array.max()
    if not (lowest >= 0.0 and highest < most):
        where = tuple(int(i) for i in np.argwhere(~((array >= 0.0) & (array < most)))[0])
        limit = "" if most == np.inf else f" and below {most:g}"
        raise ValueError(
            f"{name}[{', '.join(map(str, where))}] is {array[where]}; "
            f"all entries must be finite and not negative{limit}."
        )
    return array


def nonnegative_matrix(values: Any, name: str, axes: str, example: str) -> np.ndarray:
    """Return `values` as a non-empty, finite, non-negative float64 matrix."""
    try:
        if hasattr(type(values), "obs_names"):  # NumPy would convert an AnnData object row by row
            raise TypeError
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        remedy = "call its toarray()" if hasattr(values, "toarray") else f"pass {example}"
        raise ValueError(
            f"{name} must be a dense matrix of numbers ({axes}); got {type(values).__name__}: "
            f"{remedy}."
        ) from error
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must be a non-empty matrix ({axes}); got shape {matrix.shape}.")
    bad = ~(np.isfinite(matrix) & (matrix >= 0))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must be finite and non-negative; row {row}, column {column} holds "
            f"{matrix[row, column]}."
        )
    return matrix
