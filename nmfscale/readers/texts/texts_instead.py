"""Texts where counts are expected: what the error says to do with them."""

from __future__ import annotations

import csv
import json
import os
from itertools import islice
from pathlib import Path
from statistics import fmean

from ..sources.name_files import opened_text
from .documents import JSON_SUFFIXES, TABLE_SUFFIXES

# Mean number of words in texts; names of samples and features usually have fewer.
_WORDS = 2.0
_LINES, _BYTES = 20, 1 << 16


def texts_instead(path: Path) -> str | None:
    """Return an error message if a path, which has no counts, seems to have texts; else None."""
    try:
        place = _place_of_texts(path)
    except (OSError, EOFError, ValueError, IndexError, AttributeError, csv.Error):
        return None
    if place is None:
        return None
    return (
        f"{path} has texts, not counts: count their words first, by "
        f"nmfscale.text_counts({place!r}), and pass the result."
    )


def _place_of_texts(path: Path) -> str | None:
    """Return the source of `text_counts` for a path, such as FILE.csv:COLUMN."""
    if path.is_dir():
        files = islice((file for _, _, files in os.walk(path) for file in files), 1000)
        suffixes = {Path(file.removesuffix(".gz")).suffix.lower() for file in files}
        return str(path) if ".txt" in suffixes and ".mtx" not in suffixes else None
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    with opened_text(path) as file:
        lines = file.read(_BYTES).decode("utf-8-sig", "replace").splitlines()[:_LINES]
    if suffix in JSON_SUFFIXES:
        first = json.loads(lines[0])
        key = max(first, key=lambda key: _n_words(first[key]))
        return f"{path}:{key}" if isinstance(first[key], str) else None
    if suffix in TABLE_SUFFIXES:
        header, *rows = csv.reader(lines, delimiter=TABLE_SUFFIXES[suffix])
        columns = list(zip(*(row for row in rows if len(row) == len(header)), strict=True))
        words = [fmean(map(_n_words, column)) for column in columns]
        n_numbers = sum(n_words <= 0.5 for n_words in words)
        if not words or max(words) < _WORDS or 2 * n_numbers > len(columns):
            return None
        return f"{path}:{header[words.index(max(words))]}"
    words = [_n_words(line) for line in lines if line.strip()]
    return str(path) if suffix == ".txt" and words and fmean(words) >= _WORDS else None


def _n_words(value: object) -> int:
    """Return the number of words without digits in a text; 0 for other values."""
    if not isinstance(value, str):
        return 0
    return sum(any(map(str.isalpha, word)) for word in value.split())
