"""Text files, plain or gzip: their lines, and the names of samples and features in them."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from numpy.typing import NDArray

from ...storage.atomic import retry
from ...storage.hdf5 import strings
from .sources import NamedFileError

Array = NDArray[Any]

_GZIP = b"\x1f\x8b"
# UTF-32 comes first, because its mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Column headers, the best first. R names a column without a header x or V1.
_SAMPLES = (
    "bc_wells", "barcode", "barcodes", "cell_barcode", "cell_id", "cell", "cells", "index", "x",
    "v1",
)  # fmt: skip
_IDS = ("gene_id", "gene_ids", "ensembl_id", "ensembl", "feature_id", "id", "ids")
SYMBOLS = (
    "gene_name", "gene_names", "gene_symbol", "gene_symbols", "gene_short_name", "symbol",
    "symbols", "name", "names", "gene", "genes", "feature", "features", "index", "x", "v1",
)  # fmt: skip
_TYPES = ("feature_type", "feature_types", "type")
HEADS = {*_SAMPLES, *_IDS, *SYMBOLS, *_TYPES}


def is_packed(path: Path) -> bool:
    """Whether a file is a gzip stream, by its first bytes, not its name."""
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


def opened_text(path: Path) -> IO[bytes]:
    """Open a text file, plain or gzip."""
    return cast(IO[bytes], gzip.open(path) if is_packed(path) else path.open("rb"))


def text_of_file(path: Path) -> str:
    """Return the text of a file in UTF-8, or in the encoding of its byte order mark.

    No other encoding is guessed.
    """
    if not path.exists():  # reading would retry for some time if the file is missing
        raise FileNotFoundError(f"No such file: {path}")

    def attempt() -> bytes:
        with opened_text(path) as file:
            return file.read()

    try:
        return _decoded(path, retry(path, attempt))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise NamedFileError(
            f"{path} cannot be read: its gzip stream is damaged or was cut off ({error}). "
            "Copy or download it again."
        ) from error


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file, without blank lines at its end."""
    lines = text_of_file(path).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file by its byte order mark, or UTF-8."""
    with opened_text(path) as file:
        return _encoding(file.read(max(len(mark) for mark, _ in _MARKS)))


def _encoding(data: bytes) -> str:
    return next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")


def _decoded(path: Path, data: bytes) -> str:
    encoding = _encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NamedFileError(
            f"{path} is not {encoding.upper()} ({error.reason} at byte {error.start}): save it as "
            f"UTF-8. The byte is in line {line}; if the file is Latin-1: iconv -f LATIN1 -t UTF-8."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise NamedFileError(
            f"{path}, line {line}: there is a byte of value 0. Save the file as UTF-8; it may be "
            "UTF-16 without a byte order mark."
        )
    return text


class Features(NamedTuple):
    """Identifiers and symbols of features, with types and genomes if the file has them."""

    ids: Array
    symbols: Array
    types: Array | None = None
    genomes: Array | None = None


class NameFile(NamedTuple):
    """A file with names of samples or features: the fields of its lines."""

    path: Path
    rows: list[list[str]]

    def fits(self, size: int) -> bool:
        """Whether the file has `size` lines, one for each row or column, perhaps below a header."""
        return len(self.rows) == size or (len(self.rows) == size + 1 and self._has_head())

    def names(self, size: int) -> Array:
        """Return the names of `size` samples."""
        head, rows = self._body(size)
        at = _place(head, _SAMPLES)
        return strings(self._column(rows, 0 if at is None else at, "name"))

    def features(self, size: int) -> Features:
        """Return identifiers, symbols and types of `size` features."""
        head, rows = self._body(size)
        if head:
            places = [_place(head, heads) for heads in (_IDS, SYMBOLS, _TYPES)]
            if places[:2] == [None, None]:
                places[0] = 0
        elif all(len(row) > 2 and row[1].isdigit() and row[2].isdigit() for row in rows):
            rows = [[f"{row[0]}:{row[1]}-{row[2]}"] for row in rows]  # genomic intervals
            places = [0, None, None]
        else:  # the columns of 10x Genomics: identifier, symbol, type
            width = max(map(len, rows))
            places = [at if at < width else None for at in range(3)]
        ids, symbols, types = (
            [] if at is None else self._column(rows, at, what)
            for at, what in zip(places, ("identifier", "symbol", "type"), strict=True)
        )
        ids, symbols = ids or symbols, symbols or ids
        both = list(zip(ids, symbols, strict=True))
        return Features(
            strings(id_ or symbol for id_, symbol in both),
            strings(symbol or id_ for id_, symbol in both),
            strings(types) if types else None,
        )

    def _has_head(self) -> bool:
        first = [field.strip().lower() for field in self.rows[0]]
        return bool(HEADS.intersection(first)) or (len(first) > 1 and not first[0])

    def _body(self, size: int) -> tuple[list[str], list[list[str]]]:
        """Return the header, empty if there is none, and the lines below it."""
        head, rows = ([], self.rows) if len(self.rows) == size else (self.rows[0], self.rows[1:])
        if head and all(len(row) == len(head) + 1 for row in rows):
            head = ["", *head]  # R writes no header for row names
        first = [row[0] for row in rows]
        numbered = first in ([str(i + start) for i in range(size)] for start in (0, 1))
        if numbered and (head or is_csv(self.path)) and all(len(row) > 1 for row in rows):
            head, rows = head[1:], [row[1:] for row in rows]
        return [field.strip().lower() for field in head], rows

    def _column(self, rows: list[list[str]], at: int, what: str) -> list[str]:
        """Return one field of every line; raise an error if a line lacks it."""
        short = next((i for i, row in enumerate(rows) if len(row) <= at), None)
        if short is None:
            return [row[at] for row in rows]
        longest = max(range(len(rows)), key=lambda i: len(rows[i]))
        first = len(self.rows) - len(rows) + 1
        raise NamedFileError(
            f"{self.path}, line {first + short}: {rows[short]} lacks the {what}, which other lines "
            f"have, such as line {first + longest}: {rows[longest]}. Complete the line, or remove "
            f"the {what}s from all lines."
        )


def _place(head: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((head.index(name) for name in wanted if name in head), None)


def is_csv(path: Path) -> bool:
    """Whether a file has a name of comma-separated values."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def read_name_file(path: Path) -> NameFile:
    """Read a file of names: fields are separated by commas in a .csv file, otherwise by tabs."""
    lines = lines_of(path)
    if ".bed" in path.name.lower():
        lines = [line for line in lines if not line.startswith("#")]
    # R writes quotation marks around every name; a single one is part of the name
    if not is_csv(path) and not all(line.startswith('"') for line in lines):
        return NameFile(path, [line.split("\t") for line in lines])
    text = io.StringIO("\n".join(lines), newline="")
    rows = csv.reader(text, delimiter="," if is_csv(path) else "\t", strict=True)
    try:
        return NameFile(path, [row or [""] for row in rows])
    except csv.Error as error:
        raise NamedFileError(
            f"{path}, line {rows.line_num}: {error}; double a quotation mark inside a field, and "
            "put quotation marks around the field."
        ) from error
