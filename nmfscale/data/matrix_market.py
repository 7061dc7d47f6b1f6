"""Matrix Market files: coordinate and array, general and symmetric, plain or gzip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .number_lines import NumberLines, Piece, positions
from .row_sources import Workspace
from .sorted_rows import SortedRows, Triplets
from .structure import check_shape, index_type

Array = NDArray[Any]

_INTEGER = ("integer", "unsigned-integer", "pattern")
_REAL = ("real", "double")


class Header(NamedTuple):
    """What the first lines say."""

    layout: str
    field: str
    symmetric: bool
    shape: tuple[int, int]
    n_entries: int

    @property
    def dtype(self) -> type[np.generic]:
        """Type of all numbers of the file, positions too."""
        return np.float64 if self.field in _REAL else np.int64


def matrix_market_shape(path: Path) -> tuple[int, int]:
    """Return the number of rows and columns that the header of a file gives."""
    with NumberLines(path, "Matrix Market") as lines:
        return _header(lines).shape


def matrix_market_rows(path: Path, workspace: Workspace, transposed: bool) -> SortedRows:
    """Return the rows of a file, or its columns; only the header is read at once."""
    with NumberLines(path, "Matrix Market") as lines:
        header = _header(lines)
    shape = header.shape[::-1] if transposed else header.shape
    check_shape(shape)
    place = path.absolute()

    def triplets() -> Iterator[Triplets]:
        with NumberLines(path, "Matrix Market", workspace.memory_limit, place) as lines:
            header = _header(lines)
            read = _coordinates if header.layout == "coordinate" else _array
            for rows, columns, values in read(lines, header):
                yield (columns, rows, values) if transposed else (rows, columns, values)

    dtype = np.dtype(np.float64) if header.field in _REAL else None
    return SortedRows(shape, triplets, workspace, dtype)


def _header(lines: NumberLines) -> Header:
    words = lines.header_line().lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise lines.fault("expected '%%MatrixMarket matrix coordinate integer general' or alike")
    layout, field, symmetry = words[2:]
    if field == "complex":
        raise lines.fault("Complex data not supported")
    if layout not in ("coordinate", "array") or field not in (*_INTEGER, *_REAL):
        raise lines.fault(f"{layout!r} of {field!r} is no known kind of table")
    if symmetry not in ("general", "symmetric"):
        raise lines.fault(f"a table of counts cannot be {symmetry!r}")
    text = lines.header_line()
    while not text or text.startswith("%"):
        text = lines.header_line()
    n_sizes = 3 if layout == "coordinate" else 2
    sizes = text.split()
    if len(sizes) != n_sizes or not all(size.isascii() and size.isdigit() for size in sizes):
        raise lines.fault(f"expected {n_sizes} sizes, found {text[:60]!r}")
    n_rows, n_columns, *n_entries = map(int, sizes)
    lines.check_declared_size((n_rows, n_columns))
    symmetric = symmetry == "symmetric"
    if symmetric and n_rows != n_columns:
        raise lines.fault("a symmetric table must be square")
    n_stored = n_rows * (n_rows + 1) // 2 if symmetric else n_rows * n_columns
    return Header(layout, field, symmetric, (n_rows, n_columns), (n_entries or [n_stored])[0])


def _coordinates(lines: NumberLines, header: Header) -> Iterator[Triplets]:
    n_found = 0
    n_fields = 2 if header.field == "pattern" else 3
    for piece in lines.pieces(n_fields, header.dtype):
        n_found += len(piece.numbers)
        lines.check_number_of_entries(n_found, header.n_entries, end=False)
        rows, columns = positions(lines, piece, header.shape)
        if n_fields == 2:
            values = np.ones(rows.size, dtype=np.int64)
        else:
            values = piece.numbers[:, 2].copy()
        yield rows, columns, values
        if header.symmetric:
            yield from _mirrored(lines, piece, rows, columns, values)
    lines.check_number_of_entries(n_found, header.n_entries, end=True)


def _mirrored(
    lines: NumberLines, piece: Piece, rows: Array, columns: Array, values: Array
) -> Iterator[Triplets]:
    """Yield what lies above the diagonal, where the file must hold nothing."""
    if (columns > rows).any():
        at = int(np.argmax(columns > rows))
        raise lines.fault("a symmetric table stores nothing above its diagonal", piece.line_of(at))
    below = rows > columns
    yield columns[below], rows[below], values[below]


def _array(lines: NumberLines, header: Header) -> Iterator[Triplets]:
    """All values column by column, of a symmetric table from the diagonal down."""
    if header.field == "pattern":
        raise lines.fault("an array cannot be a 'pattern'")
    n_rows, n_columns = header.shape
    n_found = 0
    for piece in lines.pieces(1, header.dtype):
        values = piece.numbers[:, 0]
        stored = np.flatnonzero(values)
        numbers = n_found + stored
        n_found += values.size
        lines.check_number_of_entries(n_found, header.n_entries, end=False)
        if header.symmetric:
            lengths = np.arange(n_rows, 0, -1)
            firsts = np.concatenate(([0], np.cumsum(lengths)))
            columns = np.searchsorted(firsts, numbers, side="right") - 1
            rows = numbers - firsts[columns] + columns
        else:
            columns, rows = np.divmod(numbers, n_rows)
        narrow = index_type(max(n_rows, n_columns))
        rows, columns, values = rows.astype(narrow), columns.astype(narrow), values[stored]
        yield rows, columns, values
        if header.symmetric:
            yield from _mirrored(lines, piece, rows, columns, values)
    lines.check_number_of_entries(n_found, header.n_entries, end=True)
