"""Texts: a folder of files, a column of a table, JSON lines, lines of a file, or a list."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...counts.names import shown
from ...storage.atomic import user_path
from ..sources.name_files import opened_text
from .texts_in_memory import Document, Documents, texts_in_memory

# A text may be longer than the 128 kB that the csv module allows for a cell.
_LONGEST_CELL = 2**31 - 1
TABLE_SUFFIXES = {".csv": ",", ".tsv": "\t"}
JSON_SUFFIXES = (".jsonl", ".ndjson")
# Cells of a table without a value, as pandas and R write and read them: empty texts.
_MISSING = {"NaN", "nan", "NA", "N/A", "<NA>", "null", "NULL"}
# Records of JSON lines of which one must have the keys that are asked for.
_RECORDS = 1000


class Decoding(NamedTuple):
    """How bytes become text: an encoding, and what is done about bytes that are not text in it."""

    encoding: str = "utf-8"
    errors: str = "strict"

    @property
    def codec(self) -> str:
        """Encoding that skips a byte order mark of UTF-8."""
        is_utf8 = self.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        return "utf-8-sig" if is_utf8 else self.encoding

    def refusal(self, where: str, error: UnicodeDecodeError) -> ValueError:
        """Return an error that names the place and the remedies."""
        byte = error.object[error.start]
        return ValueError(
            f"{where}: 0x{byte:02x} is not {self.encoding.upper()} ({error.reason}). Give the "
            "encoding of the texts, such as encoding='latin-1', or decode_error='replace'."
        )


def documents_of(
    source: Any, decoding: Decoding, *, names: Any = None, labels: str | None = None,
    pattern: str | None = None,
) -> Documents:  # fmt: skip
    """Return the texts of a source, after checks that need no complete read.

    `names` and `labels` are columns of a table, or keys of JSON lines; for texts in memory, `names`
    are the names themselves. `pattern` selects the files of a folder by name.
    """
    if not isinstance(source, str | os.PathLike):
        _refuse_choices("a list of texts", groups=labels, pattern=pattern)
        return texts_in_memory(source, names)
    if names is not None and not isinstance(names, str):
        raise ValueError(f"names={shown(names)}: for a file, the name of a column is needed.")
    path, column = _path_and_column(os.fspath(source))
    if path.is_dir():
        _refuse_choices(f"the folder {path}", names=names, groups=labels)
        return FolderOfTexts(path, decoding, pattern)
    _refuse_choices(f"the file {path}", pattern=pattern)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in TABLE_SUFFIXES:
        return TableOfTexts(path, column, decoding, names, labels)
    if suffix in JSON_SUFFIXES:
        return JsonLines(path, column, decoding, names, labels)
    if column is not None or suffix not in ("", ".txt"):
        raise ValueError(
            f"{path} is not a folder, and does not end with .csv, .tsv, .jsonl or .txt (one text "
            "on each line): these are the sources of texts."
        )
    _refuse_choices(f"{path}, a file of lines", names=names, groups=labels)
    return LinesOfTexts(path, decoding)


def _path_and_column(spec: str) -> tuple[Path, str | None]:
    """Split FILE:COLUMN at a colon after which there is no part of an existing path."""
    ends = [len(spec), *(at for at in range(len(spec) - 1, 0, -1) if spec[at] == ":")]
    for end in ends:
        path = user_path(spec[:end])
        if path.exists():
            if not path.is_file() and not path.is_dir():
                raise ValueError(f"{path} is a pipe, a socket or a device: pass a file or folder.")
            return path, spec[end + 1 :] or None
    raise FileNotFoundError(
        f"{spec}: there is no such file or folder. Texts themselves are passed as a list."
    )


def _refuse_choices(what: str, **choices: str | None) -> None:
    for name, value in choices.items():
        if value is not None:
            use = "selects files of a folder" if name == "pattern" else "names a column of a table"
            raise ValueError(f"{name}={value!r} {use}, and does not apply to {what}.")


class FolderOfTexts(Documents):
    """Files of a folder and its subfolders, in the order of their paths, which are their names.

    If all files are in subfolders, those at the top are labels, as for scikit-learn's `load_files`.
    """

    unit = "documents"
    has_names = True

    def __init__(self, path: Path, decoding: Decoding, pattern: str | None):
        self.subject, self._root, self._decoding = str(path), path, decoding
        self._files = []
        for folder, inside, files in os.walk(path):
            inside[:] = [name for name in inside if not name.startswith(".")]
            self._files += [
                os.path.relpath(os.path.join(folder, name), path) for name in files
                if not name.startswith(".") and (pattern is None or fnmatch(name, pattern))
            ]  # fmt: skip
        self._files.sort(key=lambda name: name.split(os.sep))
        self.total = len(self._files)
        if not self._files:
            which = "no file" if pattern is None else f"no file whose name matches {pattern!r}"
            raise ValueError(f"{path} has {which}: texts are files of the folder and subfolders.")
        self.has_labels = all(os.sep in name for name in self._files)
        self.columns = ("folder",) if self.has_labels else ()

    def __iter__(self) -> Iterator[Document]:  # noqa: D105
        for i, name in enumerate(self._files):
            text = self._text_of(self._root / name)
            label = name.split(os.sep)[0] if self.has_labels else None
            values = (label,) if self.has_labels else ()
            yield Document(text, i + 1, name.replace(os.sep, "/"), label, values)

    def _text_of(self, path: Path) -> str:
        if not path.is_file():
            raise ValueError(f"{path} is a pipe, a socket or a broken link: remove it.")
        with _damage_named(path), opened_text(path) as file:
            data = file.read()
        try:
            text = data.decode(self._decoding.codec, self._decoding.errors)
        except UnicodeDecodeError as error:
            raise self._decoding.refusal(f"{path}, byte {error.start}", error) from None
        if "\0" in text:
            raise ValueError(
                f"{path} is not a text: it has a byte of value 0. Leave it out by "
                "pattern='*.txt', or give its encoding, such as encoding='utf-16'."
            )
        return text


class FileOfTexts(Documents):
    """A file with one text in each record; progress is measured in bytes of the file."""

    def __init__(self, path: Path, decoding: Decoding):
        self.path, self.subject, self._decoding = path, str(path), decoding
        self.total = path.stat().st_size
        if not self.total:
            raise ValueError(f"{path} is empty.")

    @contextmanager
    def _opened(self) -> Iterator[tuple[IO[str], Any]]:
        """Open the file; also return its raw stream, which knows how much was read."""
        codec, errors = self._decoding.codec, self._decoding.errors
        with (
            _damage_named(self.path), opened_text(self.path) as file,
            io.TextIOWrapper(file, codec, errors, newline="") as text,
        ):  # fmt: skip
            # a gzip stream wraps a buffered file, which wraps the raw one
            yield text, getattr(file, "fileobj", file)

    def _where(self, line: int) -> str:
        return f"{self.path}, line {line:,}"


class TableOfTexts(FileOfTexts):
    """A column of a .csv or .tsv file with a header."""

    def __init__(
        self, path: Path, column: str | None, decoding: Decoding, names: str | None,
        labels: str | None,
    ):  # fmt: skip
        super().__init__(path, decoding)
        self._delimiter = TABLE_SUFFIXES[Path(path.name.lower().removesuffix(".gz")).suffix]
        self._header = next(self._rows())[1]
        if len(self._header) == 1 and self._delimiter == "," and ";" in self._header[0]:
            self._delimiter = ";"
            self._header = next(self._rows())[1]
        self._at = self._place(column, f"{path}:COLUMN")
        self._names, self._labels = (
            None if column_name is None else self._place(column_name, f"{which}=COLUMN")
            for which, column_name in (("names", names), ("groups", labels))
        )
        self.has_names, self.has_labels = names is not None, labels is not None
        self._kept = [at for at in range(len(self._header)) if at not in (self._at, self._names)]
        self.columns = tuple(self._header[at] for at in self._kept)

    def _place(self, column: str | None, how: str) -> int:
        """Return the position of a column in the header."""
        columns = ", ".join(map(repr, self._header))
        if column is None:
            raise ValueError(
                f"{self.path} is a table: say which column has the texts, as {how}. Columns: "
                f"{columns}."
            )
        if self._header.count(column) != 1:
            n = self._header.count(column) or "no"
            raise ValueError(
                f"{self.path} has {n} column{'s' * (n != 'no')} {column!r} in its first line; "
                f"columns: {columns}."
            )
        return self._header.index(column)

    def _rows(self) -> Iterator[tuple[int, list[str], int]]:
        """Yield line number, cells and bytes read of each row."""
        before = csv.field_size_limit(_LONGEST_CELL)
        line = 0
        try:
            with self._opened() as (text, raw):
                rows = csv.reader(text, delimiter=self._delimiter, strict=True)
                for row in rows:
                    line = rows.line_num
                    if row:
                        yield line, row, raw.tell()
        except csv.Error as error:
            raise ValueError(
                f"{self._where(line + 1)}: {error}. Double a quotation mark inside a cell, and put "
                "quotation marks around the cell."
            ) from None
        except UnicodeDecodeError as error:
            raise self._decoding.refusal(f"{self._where(line)} or later", error) from None
        finally:
            csv.field_size_limit(before)

    def __iter__(self) -> Iterator[Document]:  # noqa: D105
        rows = self._rows()
        next(rows)
        for line, row, done in rows:
            if len(row) != len(self._header):
                raise ValueError(
                    f"{self._where(line)}: the row that ends there has {len(row)} cells, and the "
                    f"header has {len(self._header)}. Put quotation marks around texts with "
                    f"{'a tab' if self._delimiter == chr(9) else repr(self._delimiter)}."
                )
            name, label = (None if at is None else row[at] for at in (self._names, self._labels))
            text = "" if row[self._at].strip() in _MISSING else row[self._at]
            yield Document(text, done, name, label, tuple(row[at] for at in self._kept))


class LinesOfTexts(FileOfTexts):
    """Lines of a file: a text each."""

    def __iter__(self) -> Iterator[Document]:  # noqa: D105
        for _, line, done in self._lines():
            yield Document(line, done)

    def _lines(self) -> Iterator[tuple[int, str, int]]:
        number = 0
        try:
            with self._opened() as (text, raw):
                for line in text:
                    number += 1
                    if "\0" in line:
                        raise ValueError(f"{self._where(number)}: not a text, it has a byte 0.")
                    yield number, line, raw.tell()
        except UnicodeDecodeError as error:
            raise self._decoding.refusal(f"{self._where(number + 1)} or later", error) from None


class JsonLines(LinesOfTexts):
    """A key of the JSON objects in the lines of a file; null, or no such key, is an empty text."""

    def __init__(
        self, path: Path, key: str | None, decoding: Decoding, names: str | None,
        labels: str | None,
    ):  # fmt: skip
        super().__init__(path, decoding)
        self._key, self._names, self._labels = key, names, labels
        self.has_names, self.has_labels = names is not None, labels is not None
        records = [record for _, record, _ in islice(self._records(), _RECORDS)]
        if not records:
            raise ValueError(f"{path} has no JSON lines: it is empty.")
        there = ", ".join(map(repr, records[0]))
        if key is None:
            raise ValueError(
                f"{path} has JSON lines: say which key has the texts, as {path}:KEY. Keys of the "
                f"first line: {there}."
            )
        for wanted in filter(None, (key, names, labels)):
            if not any(wanted in record for record in records):
                raise ValueError(
                    f"{path}: none of the first {len(records):,} records has the key {wanted!r}; "
                    f"keys of the first: {there}."
                )
        self.columns = tuple(column for column in records[0] if column not in (key, names))

    def _records(self) -> Iterator[tuple[int, dict[str, Any], int]]:
        """Yield line number, object and bytes read of each line that is not empty."""
        for number, line, done in self._lines():
            if line.strip():
                yield number, self._object(number, line), done

    def _object(self, number: int, line: str) -> dict[str, Any]:
        try:
            document = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self._where(number)} is not JSON: {error}.") from None
        if not isinstance(document, dict):
            raise ValueError(f"{self._where(number)} is {shown(document)}: an object is needed.")
        return document

    def __iter__(self) -> Iterator[Document]:  # noqa: D105
        keys = self._key, self._names, self._labels
        for number, record, done in self._records():
            text, name, label = (None if key is None else record.get(key) for key in keys)
            text = None if isinstance(text, float) and text != text else text  # NaN, of pandas
            if text is not None and not isinstance(text, str):
                raise ValueError(f"{self._where(number)}: {self._key!r} is {shown(text)}, no text.")
            if self.has_names and name is None:
                raise ValueError(
                    f"{self._where(number)} has no {self._names!r}, the name of a text."
                )
            values = tuple(map(record.get, self.columns))
            # an empty label, as of an empty cell of a table
            label = None if not self.has_labels else "" if label is None else str(label)
            yield Document(text or "", done, None if name is None else str(name), label, values)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Name the file in errors of its compression."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read: its gzip stream is damaged or was cut off ({error})."
        ) from error
