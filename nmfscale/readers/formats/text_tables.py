"""Tables of text (.csv, .tsv, .txt, also .gz): a line for each sample or for each feature."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.structure import check_shape, index_type
from ...storage.hdf5 import strings
from ..sources.external_sort import SortedRows
from ..sources.name_files import HEADS, encoding_of, is_csv, opened_text
from ..sources.sources import MemoryLimits, NamedFileError, OpenedTable, Triplets
from ..texts.texts_instead import texts_instead

Array = NDArray[Any]
SamplesIn: TypeAlias = Literal["rows", "columns"]
_SUFFIXES = ".csv", ".tsv", ".txt", ".tab"
# Entries of lines that are converted at a time.
_ENTRIES = 1 << 18
# Fields of missing counts, besides NaN, which is a number.
_MISSING = {"", "NA", "N/A"}


class _Form(NamedTuple):
    """How the lines of a table are read: `first` is the line after the header, from 1 on."""

    delimiter: str
    encoding: str
    header: list[str] | None
    named: bool
    n_fields: int
    first: int


def is_text_table(path: Path) -> bool:
    """Whether a file has the name of a table of text."""
    return path.name.lower().removesuffix(".gz").endswith(_SUFFIXES)


def open_text_table(
    path: Path, limits: MemoryLimits, *, samples_in: SamplesIn | None = None, nan: bool = False
) -> OpenedTable:
    """Open a table; its lines are read twice, first for their names.

    If `nan` is true, empty fields and NA are NaN.
    """
    if samples_in not in get_args(SamplesIn):
        argument = "" if samples_in is None else f" (samples_in={samples_in!r})"
        raise NamedFileError(
            f"{path} is a table of text, whose direction the file does not say{argument}: give "
            "samples_in='rows' if each line is a sample, such as a cell or a document, or "
            "samples_in='columns' if each line is a feature, such as a gene or a word."
        )
    place = path.absolute()
    form = _form_of(place)
    names = [fields[0] for _, fields in _lines(place, form, only_first=True)]
    of_lines = strings(names) if form.named else None
    of_fields = None if form.header is None else strings(form.header)
    in_rows = samples_in == "rows"
    shape = (len(names), form.n_fields) if in_rows else (form.n_fields, len(names))
    check_shape(shape)

    def triplets() -> Iterator[Triplets]:
        for lines, fields, values in _entries(place, form, len(names), nan):
            yield (lines, fields, values) if in_rows else (fields, lines, values)

    rows = SortedRows(shape, triplets, limits, np.dtype(np.float64))
    samples, features = (of_lines, of_fields) if in_rows else (of_fields, of_lines)
    return OpenedTable(path, rows, str(path), sample_names=samples, feature_names=features)


def read_text_table(path: Path) -> tuple[Array, Array | None, Array | None]:
    """Return the numbers of a small table, and the names of its lines and of its fields.

    The name of a line or field is None if the file has no names of them.
    """
    place = path.absolute()
    if not is_text_table(path):
        endings = ", ".join(_SUFFIXES)
        raise NamedFileError(f"{path} is no table of text: the name ends with {endings} or .gz.")
    form = _form_of(place)
    names, values = list[str](), list[Array]()
    for line, fields in _lines(place, form):
        names.append(fields[0])
        values.append(_numbers(path, line, fields[form.named :], form))
    of_lines = strings(names) if form.named else None
    return np.array(values), of_lines, None if form.header is None else strings(form.header)


def _entries(path: Path, form: _Form, n_lines: int, nan: bool) -> Iterator[Triplets]:
    """Yield the nonzero entries: numbers of lines and fields, and values."""
    kind = index_type(max(n_lines, form.n_fields))
    waiting: list[Triplets] = []
    n_waiting = 0
    for number, (line, fields) in enumerate(_lines(path, form)):
        fields = fields[form.named :]
        if nan:
            fields = ["nan" if field.strip() in _MISSING else field for field in fields]
        values = _numbers(path, line, fields, form)
        columns = np.flatnonzero(values).astype(kind)
        waiting.append((np.full(columns.size, number, kind), columns, values[columns]))
        n_waiting += columns.size
        if n_waiting >= _ENTRIES:
            yield _together(waiting)
            n_waiting = 0
    if waiting:
        yield _together(waiting)


def _together(waiting: list[Triplets]) -> Triplets:
    lines, fields, values = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
    waiting.clear()
    return lines, fields, values


def _numbers(path: Path, line: int, fields: Sequence[str], form: _Form) -> Array:
    try:
        return np.array(fields, dtype=np.float64)
    except ValueError:
        at = next(i for i, field in enumerate(fields) if not _is_number(field))
        name = "" if form.header is None else f" ({form.header[at]!r})"
        empty = not fields[at].strip()
        what = "is empty" if empty else f"holds {fields[at][:80]!r}, not a number"
        gap = ", or fit with data_weights='nan' if it is missing"
        where = f"{path}, line {line}: field {at + 1 + form.named}{name}"
        raise NamedFileError(
            texts_instead(path)
            or f"{where} {what}. Fill in the count, or remove columns that are not counts"
            f"{gap if fields[at].strip() in _MISSING else ''}."
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines(path: Path, form: _Form, only_first: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line below the header, or only the first field."""
    expected = form.n_fields + form.named
    for line, text in _text_lines(path, form.encoding):
        if line < form.first or not text.strip():
            continue
        if only_first and not text.startswith('"'):
            yield line, [text.split(form.delimiter, 1)[0]]
            continue
        fields = _split(path, line, text, form.delimiter)
        if len(fields) != expected:
            raise NamedFileError(
                texts_instead(path)
                or f"{path}, line {line}: {len(fields):,} fields, but other lines have "
                f"{expected:,}."
            )
        yield line, fields


def _split(path: Path, line: int, text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise NamedFileError(f"{path}, line {line}: {error}.") from error


def _form_of(path: Path) -> _Form:
    """Find the delimiter, the header, and whether lines begin with a name."""
    encoding = encoding_of(path)
    lines: list[tuple[int, str]] = []
    for line, text in _text_lines(path, encoding):
        if text.strip() and (lines or not text.startswith("#")):
            lines.append((line, text))
        if len(lines) == 2:
            break
    if not lines:
        raise NamedFileError(f"{path} is empty.")
    first = lines[0][1]
    usual = "," if is_csv(path) else "\t"
    delimiter = next((mark for mark in (usual, "\t", ",", ";", " ") if mark in first), usual)
    one, *rest = (_split(path, line, text, delimiter) for line, text in lines)
    two = rest[0] if rest else one
    short = bool(rest) and len(one) == len(two) - 1  # R writes no header for row names
    is_header = short or not one[0].strip() or not all(map(_is_number, one[1:] or one))
    if is_header and not rest:
        raise NamedFileError(f"{path} has a header, but no lines with counts.")
    named = (
        short or not _is_number(two[0]) or (is_header and one[0].strip().lower() in {"", *HEADS})
    )
    header = None
    if is_header:
        header = [field.strip() for field in (one if short or not named else one[1:])]
    start, n_fields = lines[1][0] if is_header else lines[0][0], len(two) - named
    if n_fields == 0 or (header is not None and len(header) != n_fields):
        line = lines[-1][0]
        fault = f"{n_fields:,} counts, but the header names {len(header or ()):,}."
        if n_fields == 0:
            fault = "a name without counts."
        raise NamedFileError(f"{path}, line {line}: {fault}")
    return _Form(delimiter, encoding, header, named, n_fields, start)


def _text_lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, plain or gzip, without line ends, and their numbers."""
    with _named(path), opened_text(path) as file:
        lines = io.TextIOWrapper(file, encoding=encoding)
        yield from enumerate((line.rstrip("\n") for line in lines), 1)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise NamedFileError(
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8; if it "
            "is Latin-1: iconv -f LATIN1 -t UTF-8."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise NamedFileError(
            f"{path} cannot be read: its gzip stream is damaged or was cut off ({error}). "
            "Copy or download it again."
        ) from error
