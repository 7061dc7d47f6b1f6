"""Bags of words as in the UCI repository: docword.NAME.txt, with vocab.NAME.txt beside it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .hdf5 import strings
from .number_lines import NumberLines, positions
from .row_sources import Workspace
from .sorted_rows import SortedRows, Triplets
from .structure import check_shape

_SIZES = ("documents", "words", "entries")


def is_docword(path: Path) -> bool:
    """Whether the name is that of such a file."""
    name = path.name.lower()
    return name.startswith("docword.") and name.endswith((".txt", ".txt.gz"))


def docword_rows(path: Path, workspace: Workspace) -> SortedRows:
    """Return the documents of a file; only its header is read at once."""
    with NumberLines(path, "docword") as lines:
        n_documents, n_words, _ = _sizes(lines)
    shape = (n_documents, n_words)
    check_shape(shape)
    place = path.absolute()

    def triplets() -> Iterator[Triplets]:
        with NumberLines(path, "docword", workspace.memory_limit, place) as lines:
            *_, n_entries = _sizes(lines)
            n_found = 0
            for piece in lines.pieces(3, np.int64):
                n_found += len(piece.numbers)
                lines.check_number_of_entries(n_found, n_entries, end=False)
                yield *positions(lines, piece, shape), piece.numbers[:, 2].copy()
            lines.check_number_of_entries(n_found, n_entries, end=True)

    return SortedRows(shape, triplets, workspace)


def vocabulary_beside(path: Path, n_words: int) -> NDArray[np.object_] | None:
    """Words of the vocab file beside a docword file, plain or gzip, if there is one."""
    stem = "vocab" + path.name[len("docword") :].removesuffix(".gz")
    for name, opener in ((stem, open), (f"{stem}.gz", gzip.open)):
        beside = path.parent / name
        if beside.is_file():
            with opener(beside, "rt", encoding="utf-8-sig", errors="replace") as lines:
                words = strings(line.rstrip("\r\n") for line in lines)
            if words.size != n_words:
                raise ValueError(f"{beside} has {words.size} words, but {path} is about {n_words}.")
            return words
    return None


def _sizes(lines: NumberLines) -> list[int]:
    sizes = []
    for what in _SIZES:
        text = lines.header_line()
        if not (text.isascii() and text.isdigit()):
            raise lines.fault(f"expected the number of {what}, found {text[:60]!r}")
        sizes.append(int(text))
    lines.check_declared_size(tuple(sizes[:2]))
    return sizes
