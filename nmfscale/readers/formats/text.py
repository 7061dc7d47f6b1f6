"""Matrix Market and bag-of-words files, plain or gzip, parsed in pieces of bounded size."""

from __future__ import annotations

import codecs
import gzip
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...counts.structure import check_shape, index_type
from ...counts.validation import LARGEST_COUNT
from ...storage.atomic import retry
from ...storage.hdf5 import strings
from ..sources.external_sort import SortedRows
from ..sources.name_files import is_packed, lines_of, opened_text
from ..sources.sources import MemoryLimits, Triplets

Array = NDArray[Any]

# Parsing a piece takes about 12 times its size in memory.
_PIECE = 2**21
_SMALLEST_PIECE = 2**14
_LONGEST_HEADER_LINE = 2**20
_DEFLATE_RATIO = 1032


class Piece(NamedTuple):
    """Numbers of some lines, (n_lines, n_fields), with the position of the lines in the file."""

    numbers: Array
    first_line: int
    filled: Array

    def line_of(self, at: int) -> int:
        """Return the number of the line, starting at 1, that holds row `at` of the numbers."""
        return self.first_line + int(np.flatnonzero(self.filled)[at])


class NumberLines:
    """A text file that is read once from its beginning; a context manager.

    `kind` names the format in messages, and `line` is the number of lines read so far. Messages
    show `path`; the file is opened at `place`, its absolute path, because the current folder may
    have changed.
    """

    def __init__(self, path: Path, memory_limit: int = 2**30, place: Path | None = None) -> None:
        self.kind = "docword" if is_docword(path) else "Matrix Market"
        self.path, self.line, self._place = path, 0, place or path
        self._piece_bytes = min(_PIECE, max(_SMALLEST_PIECE, memory_limit // 64))
        self._packed, self._at = is_packed(self._place), 0
        self._file = opened_text(self._place)

    def __enter__(self) -> NumberLines:
        """Return the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def fault(self, what: str, line: int | None = None) -> ValueError:
        """Return an error that names the file and the line."""
        at = self.line if line is None else line
        return ValueError(f"{self.path} is not a readable {self.kind} file (line {at}: {what}).")

    def header_line(self) -> str:
        """Return the next line; raise an error at the end of the file."""
        self.line += 1
        text = self._read(_LONGEST_HEADER_LINE, line=True)
        if self.line == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if not text:
            raise self.fault("the file ends here")
        if len(text) == _LONGEST_HEADER_LINE:
            raise self.fault("too long a line")
        return text.decode("utf-8", "replace").strip()

    def pieces(self, n_fields: int, dtype: type[np.generic]) -> Iterator[Piece]:
        """Parse the rest of the file: lines with `n_fields` numbers each, or blank lines."""
        rest = b""
        while True:
            block = self._read(self._piece_bytes)
            text = rest + block
            cut = text.rfind(b"\n") + 1 if block else len(text)
            if block and not cut and len(text) > self._piece_bytes:
                raise self.fault("too long a line", self.line + 1)
            text, rest = text[:cut], text[cut:]
            if text:
                yield self._parsed(text, n_fields, dtype)
                self.line += text.count(b"\n")
            if not block:
                return

    def check_declared_size(self, sizes: tuple[int, ...]) -> None:
        """Refuse numbers of rows or columns that are too large for the length of the file."""
        n_bytes = self._place.stat().st_size * (_DEFLATE_RATIO if self._packed else 1)
        for size in sizes:
            if size > 2**24 + 64 * n_bytes:
                raise self.fault(f"the size {size:,} is too large for a file of this length")

    def check_number_of_entries(self, n_entries: int, declared: int, end: bool) -> None:
        """Refuse more entries than the header declares and, at the end of the file, fewer."""
        if n_entries > declared or (end and n_entries < declared):
            raise self.fault(
                f"{n_entries:,} entries, but the header says {declared:,}; was it cut off?"
            )

    def _read(self, n_bytes: int, line: bool = False) -> bytes:
        def attempt() -> bytes:
            if self._file.closed:
                self._file = opened_text(self._place)
                self._file.seek(self._at)
            try:
                return self._file.readline(n_bytes) if line else self._file.read(n_bytes)
            except OSError:
                self._file.close()
                raise

        try:
            text: bytes = retry(self.path, attempt)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self.fault(f"the gzip stream is damaged or was cut off: {error}") from error
        self._at += len(text)
        return text

    def _parsed(self, text: bytes, n_fields: int, dtype: type[np.generic]) -> Piece:
        raw = np.frombuffer(text, dtype=np.uint8)
        starts = raw > 32
        blank = ~starts
        starts[1:] &= blank[:-1]
        words = np.flatnonzero(starts)
        ends = np.flatnonzero(raw == 10)
        if raw[-1] != 10:
            ends = np.append(ends, raw.size)
        lengths = np.diff(np.searchsorted(words, ends), prepend=0)
        filled = lengths > 0
        wrong = np.flatnonzero(filled & (lengths != n_fields))
        numbers = self._converted(text, dtype) if words.size and not wrong.size else None
        if words.size and (numbers is None or numbers.size != words.size):
            at = int(wrong[0]) if wrong.size else self._first_wrong(text, dtype)
            line = text.split(b"\n", at + 1)[at][:60].decode("utf-8", "replace").strip()
            parsed = None if wrong.size else _numbers(line, np.float64)
            broken = parsed is not None and bool((parsed != np.rint(parsed)).any())
            what = f"expected {n_fields}{' whole' * broken} numbers, found {line!r}"
            raise self.fault(what, self.line + at + 1)
        if numbers is None:
            numbers = np.empty(0, dtype=dtype)
        return Piece(numbers.reshape(-1, n_fields), self.line + 1, filled)

    @staticmethod
    def _converted(text: bytes, dtype: type[np.generic]) -> Array | None:
        """Return the numbers in a text, or None if it holds anything else."""
        numbers = _numbers(text, dtype)
        if numbers is not None or dtype is not np.int64:
            return numbers
        # 2.0 is an integer, too
        numbers = _numbers(text, np.float64)
        if numbers is None or not (numbers == np.rint(numbers)).all():
            return None
        # a float this large may be a rounded number above the limit: replace it by one
        exact = np.abs(numbers) < LARGEST_COUNT
        return np.where(exact, numbers, LARGEST_COUNT + 2).astype(np.int64)

    def _first_wrong(self, text: bytes, dtype: type[np.generic]) -> int:
        """Return the first line that does not hold numbers, if one is known to exist."""
        lines = text.split(b"\n")
        for at, line in enumerate(lines):
            if line.strip() and self._converted(line, dtype) is None:
                return at
        return len(lines) - 1


def _numbers(text: bytes | str, dtype: type[np.generic]) -> Array | None:
    """Return the numbers in a text, parsed as `dtype`, or None if it holds anything else."""
    with warnings.catch_warnings():
        # Up to NumPy 2.2, fromstring warns instead of raising an error.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text, dtype=dtype, sep=" ")
        except (ValueError, DeprecationWarning):
            return None


def positions(lines: NumberLines, piece: Piece, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return row and column numbers, starting at 0, from the first two fields; check the range."""
    indices = []
    for field, size in enumerate(shape):
        numbers = piece.numbers[:, field]
        with np.errstate(invalid="ignore"):
            sound = (numbers >= 1) & (numbers <= size)
            if numbers.dtype.kind == "f":
                sound &= numbers == np.rint(numbers)
        if not sound.all():
            at = int(np.argmin(sound))
            raise lines.fault(
                f"{('row', 'column')[field]} number {numbers[at]:.17g} is outside 1 to {size}",
                piece.line_of(at),
            )
        indices.append((numbers - 1).astype(index_type(size)))
    return indices[0], indices[1]


_INTEGER = ("integer", "unsigned-integer", "pattern")
_REAL = ("real", "double")


class Header(NamedTuple):
    """The contents of a file's header."""

    layout: str
    field: str
    symmetric: bool
    shape: tuple[int, int]
    n_entries: int

    @property
    def dtype(self) -> type[np.generic]:
        """Dtype for all numbers of the file, including positions."""
        return np.float64 if self.field in _REAL else np.int64


def shape_of_text(path: Path) -> tuple[int, int]:
    """Return the numbers of rows and columns in the header of a file."""
    with NumberLines(path) as lines:
        return _header(lines).shape


def rows_of_text(path: Path, limits: MemoryLimits, transposed: bool = False) -> SortedRows:
    """Return the rows of a file, or its columns if `transposed`; reads only the header now."""
    with NumberLines(path) as lines:
        header = _header(lines)
    shape = header.shape[::-1] if transposed else header.shape
    check_shape(shape)
    place = path.absolute()

    def triplets() -> Iterator[Triplets]:
        with NumberLines(path, limits.sort, place) as lines:
            header = _header(lines)
            read = _coordinates if header.layout == "coordinate" else _array
            for rows, columns, values in read(lines, header):
                yield (columns, rows, values) if transposed else (rows, columns, values)

    dtype = np.dtype(np.float64) if header.field in _REAL else None
    return SortedRows(shape, triplets, limits, dtype)


def is_docword(path: Path) -> bool:
    """Whether a file has the name of a UCI bag of words."""
    name = path.name.lower()
    return name.startswith("docword.") and name.endswith((".txt", ".txt.gz"))


def _header(lines: NumberLines) -> Header:
    if lines.kind == "docword":
        declared = []
        for what in ("documents", "words", "entries"):
            text = lines.header_line()
            if not (text.isascii() and text.isdigit()):
                raise lines.fault(f"expected the number of {what}, found {text[:60]!r}")
            declared.append(int(text))
        n_rows, n_columns, n_stored = declared
        lines.check_declared_size((n_rows, n_columns))
        return Header("coordinate", "integer", False, (n_rows, n_columns), n_stored)
    words = lines.header_line().lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise lines.fault("expected '%%MatrixMarket matrix coordinate integer general' or similar")
    layout, field, symmetry = words[2:]
    if field == "complex":
        raise lines.fault("Complex data not supported")
    if layout not in ("coordinate", "array") or field not in (*_INTEGER, *_REAL):
        raise lines.fault(f"{layout!r} of {field!r} is not a known kind of table")
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
        ones = np.ones(rows.size if n_fields == 2 else 0, dtype=np.int64)
        values = ones if n_fields == 2 else piece.numbers[:, 2].copy()
        yield rows, columns, values
        if header.symmetric:
            yield from _mirrored(lines, piece, rows, columns, values)
    lines.check_number_of_entries(n_found, header.n_entries, end=True)


def _mirrored(
    lines: NumberLines, piece: Piece, rows: Array, columns: Array, values: Array
) -> Iterator[Triplets]:
    """Yield the entries above the diagonal of a symmetric table; the file must not hold them."""
    if (columns > rows).any():
        at = int(np.argmax(columns > rows))
        raise lines.fault("a symmetric table stores nothing above its diagonal", piece.line_of(at))
    below = rows > columns
    yield columns[below], rows[below], values[below]


def _array(lines: NumberLines, header: Header) -> Iterator[Triplets]:
    """Yield the nonzeros of an array, stored by columns; if symmetric, from the diagonal down."""
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


def vocabulary_beside(path: Path, n_words: int) -> NDArray[np.object_] | None:
    """Return the words in the vocab file beside a docword file, or None if there is none."""
    stem = "vocab" + path.name[len("docword") :].removesuffix(".gz")
    for beside in (path.with_name(stem), path.with_name(f"{stem}.gz")):
        if beside.is_file():
            lines = lines_of(beside)
            if len(lines) != n_words:
                what = f"{len(lines)} words, but {path} has {n_words}"
                raise ValueError(f"{beside} has {what}.")
            return strings(lines)
    return None
