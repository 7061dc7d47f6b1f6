"""Checks of shapes, of factors and of the index arrays of compressed rows, before they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def index_type(largest: int) -> type[np.signedinteger[Any]]:
    """Type of numbers up to `largest`."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse a table without rows or without columns."""
    for size, what in zip(shape, ("sample", "feature"), strict=True):
        if size == 0:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={tuple(shape)}) "
                "while a minimum of 1 is required."
            )


def check_parts(matrix: Any, whom: str) -> None:
    """Check the index arrays of a sparse matrix."""
    n_rows, n_columns = matrix.shape
    if matrix.format == "coo":
        if not len(matrix.row) == len(matrix.col) == len(matrix.data):
            raise ValueError(f"Corrupt sparse matrix {whom}: row, col and data differ in length.")
        check_range(matrix.row, n_rows, "row", whom)
        check_range(matrix.col, n_columns, "col", whom)
    elif matrix.format in ("csr", "csc", "bsr"):
        height, width = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        sizes = (n_rows // height, n_columns // width)
        sizes = sizes[::-1] if matrix.format == "csc" else sizes
        check_structure(matrix.indptr, matrix.indices, len(matrix.data), *sizes, whom)


def check_structure(
    indptr: Array, indices: Array, n_data: int, n_major: int, n_minor: int, whom: str
) -> None:
    """Check compressed rows (or columns): pointers that rise to the end, numbers in range."""
    check_index_arrays(indptr, indices, whom)
    first, last = (int(indptr[at]) if len(indptr) else 0 for at in (0, -1))
    check_ends(len(indptr), first, last, len(indices), n_data, n_major, whom)
    check_rising(indptr, whom)
    check_range(indices[:last], n_minor, "indices", whom)


def check_index_arrays(indptr: Any, indices: Any, whom: str) -> None:
    """Check that both are one-dimensional and hold integers; arrays or HDF5 datasets."""
    for numbers, name in ((indptr, "indptr"), (indices, "indices")):
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ValueError(f"Corrupt sparse matrix {whom}: {name} is no 1-d array of integers.")


def check_ends(
    n_pointers: int, first: int, last: int, n_indices: int, n_data: int, n_major: int, whom: str
) -> None:
    """Check how many pointers there are, and the first and the last of them."""
    if n_pointers != n_major + 1:
        raise ValueError(
            f"Corrupt sparse matrix {whom}: indptr has {n_pointers} entries, not {n_major + 1}."
        )
    if first != 0:
        raise ValueError(f"Corrupt sparse matrix {whom}: indptr starts at {first}, not at 0.")
    if not 0 <= last <= min(n_indices, n_data):
        raise ValueError(
            f"Corrupt sparse matrix {whom}: indptr ends at {last}, but there are "
            f"{n_indices} indices and {n_data} values."
        )


def check_rising(indptr: Array, whom: str, offset: int = 0) -> None:
    """Check a range of the pointers, the first of which is number `offset`."""
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if falls.size:
        raise ValueError(
            f"Corrupt sparse matrix {whom}: indptr falls after entry {offset + int(falls[0])}."
        )


def check_range(numbers: Array, size: int, what: str, whom: str, offset: int = 0) -> None:
    """Check that all numbers, the first being entry `offset`, lie between 0 and size - 1."""
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        first = int(np.flatnonzero((numbers < 0) | (numbers >= size))[0])
        raise ValueError(
            f"Corrupt sparse matrix {whom}: entry {offset + first} of {what} is {numbers[first]}, "
            f"outside 0 to {size - 1}."
        )


def non_negative(
    values: ArrayLike, name: str, shape: tuple[int | None, ...], *, most: float = np.inf,
    axes: str = "",
) -> Array:  # fmt: skip
    """Check one array of parameters, below `most`; an axis of length None may have any but zero.

    `axes` names them, for messages. Returns float32 as it is, anything else as float64.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} has type {array.dtype}; pass real numbers.")
    if array.dtype != np.float32:
        array = array.astype(np.float64, copy=False)
    if array.ndim != len(shape) or any(
        found == 0 or length not in (None, found)
        for found, length in zip(array.shape, shape, strict=True)
    ):
        lengths = ["at least 1" if length is None else str(length) for length in shape]
        wanted = f"({', '.join(lengths)}{',' if len(shape) == 1 else ''})"
        wanted = f"{axes} = {wanted}" if axes else wanted
        raise ValueError(f"{name} has shape {array.shape}; it needs {wanted}.")
    # One pass in the common case: a missing number makes the smallest one missing as well.
    lowest, highest = array.min(), array.max()
    if not (lowest >= 0.0 and highest < most):
        where = tuple(int(i) for i in np.argwhere(~((array >= 0.0) & (array < most)))[0])
        limit = "" if most == np.inf else f" and below {most:g}"
        raise ValueError(
            f"{name}[{', '.join(map(str, where))}] is {array[where]}; "
            f"all its numbers must be finite and not negative{limit}."
        )
    return array
