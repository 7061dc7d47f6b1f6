"""The orientation of a .mtx file, and the files of names beside it.

A Matrix Market file does not say whether its rows are samples or features. This is inferred from
the numbers of names in the files beside it, and from the names of these files (10x Genomics,
STARsolo, kallisto|bustools, alevin-fry, Parse Biosciences, GEO).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..sources.name_files import Features, NameFile, is_csv, read_name_file

_ENDINGS = (".tsv", ".txt", ".csv", ".bed")
# Words in the names of files with samples' and features' names, the best first.
_SAMPLES = ("cell_metadata", "barcodes", "barcode", "cell_barcodes", "cell_names", "cells")
_FEATURES = ("features", "feature", "all_genes", "genes", "gene", "gene_names", "peaks")
# 10x Genomics and STARsolo write these features x samples, ...
_TRANSPOSED = ("matrix", r"uniqueandmult-\w+", "spliced", "unspliced", "ambiguous")
_COUNTS = (*_TRANSPOSED, "counts", "count_matrix", "dge")
# ... kallisto|bustools and alevin-fry write these samples x features.
_BY_SAMPLES = re.compile(r"(?:^|[._-])(?:cells_x_(?:genes|tcc)\b|quants_mat$)", re.I)


class NamesBeside(NamedTuple):
    """Names from the files beside a matrix; `transposed` says that it is features x samples."""

    transposed: bool
    samples: NDArray[Any] | None
    features: Features | None
    notes: list[str]


class _Files(NamedTuple):
    """Files of names of samples, of features, and of feature symbols.

    `transposed` is the orientation that their names imply, or None.
    """

    samples: NameFile | None
    features: NameFile | None
    symbols: NameFile | None
    transposed: bool | None

    def sides(self) -> Iterator[tuple[NameFile, int]]:
        for file, side in ((self.samples, 0), (self.features, 1), (self.symbols, 1)):
            if file is not None:
                yield file, side

    def fit(self, shape: tuple[int, int]) -> bool:
        """Whether the files match samples x features of this shape."""
        return all(file.fits(shape[side]) for file, side in self.sides())

    def n_heads(self, shape: tuple[int, int]) -> int:
        """Count the files whose first line would be a header with this shape."""
        return sum(len(file.rows) > shape[side] for file, side in self.sides())


def find_names(
    path: Path, shape: tuple[int, int], transpose: bool | None, in_folder: bool
) -> NamesBeside:
    """Determine the orientation of a .mtx file from its shape, and read the names beside it.

    `transpose` is the caller's choice, or None. A file that was found `in_folder`, or that has a
    name of 10x Genomics, is never assumed to be samples x features without evidence.
    """
    stem = _stem(path)
    notes: list[str] = []
    files = _by_stem(path.parent, stem) or _by_words(path, stem, shape, notes)
    there = list(files.sides())
    choices = [orientation for orientation in (False, True) if transpose in (None, orientation)]
    fitting = [orientation for orientation in choices if files.fit(_turned(shape, orientation))]
    if not fitting:
        raise ValueError(_contradiction(path, shape, transpose, there))
    # prefer the orientation in which lines that look like headers are headers
    most = max(files.n_heads(_turned(shape, orientation)) for orientation in fitting)
    fitting = [
        orientation for orientation in fitting if files.n_heads(_turned(shape, orientation)) == most
    ]
    transposed = fitting[0]
    if len(fitting) == 2:
        declared = files.transposed
        if declared is None and (there or in_folder or _word(stem, _COUNTS) == "matrix"):
            raise ValueError(_unsettled(path, shape, there))
        transposed = bool(declared)
        if there or declared is None:
            side = "features" if transposed else "samples"
            why = "the numbers of names fit both" if there else "there are no names beside it"
            notes.append(f"rows of the file were assumed to be {side}: {why} (transpose=)")
    n_samples, n_features = _turned(shape, transposed)
    features = None if files.features is None else files.features.features(n_features)
    if files.symbols is not None:
        symbols = files.symbols.features(n_features).symbols
        features = Features(symbols if features is None else features.ids, symbols)
    if files.samples is not None and features is None:
        notes.append("there is no file of features beside it: their names and types are unknown")
    samples = None if files.samples is None else files.samples.names(n_samples)
    return NamesBeside(transposed, samples, features, notes)


def _turned(shape: tuple[int, int], transposed: bool) -> tuple[int, int]:
    return (shape[1], shape[0]) if transposed else shape


_REMEDY = (
    "pass transpose=True if its rows are features, as 10x writes them, or transpose=False if they "
    "are samples."
)


def _contradiction(
    path: Path, shape: tuple[int, int], transpose: bool | None, there: list[tuple[NameFile, int]]
) -> str:
    shape, how = _turned(shape, bool(transpose)), " (transposed)" if transpose else ""
    sizes = " and ".join(f"{len(file.rows)} {('barcodes', 'features')[at]}" for file, at in there)
    names = ", ".join(file.path.name for file, _ in there)
    remedy = "" if transpose is None else "leave transpose= out, or "
    return (
        f"{path} has shape {shape}{how}, but the files beside it name {sizes} ({names}): {remedy}"
        "correct or remove the file that belongs to another matrix."
    )


def _unsettled(path: Path, shape: tuple[int, int], there: list[tuple[NameFile, int]]) -> str:
    beside = ", ".join(file.path.name for file, _ in there) or "no barcodes, features or genes"
    why = "as many rows as columns" if shape[0] == shape[1] else f"shape {shape}"
    return (
        f"{path} has {why}, and {beside} beside it, so its rows may be samples or features; "
        f"{_REMEDY}"
    )


# Search for files -----------------------------------------------------------------------------


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0]


def _by_stem(folder: Path, stem: str) -> _Files | None:
    """Find the files of names that kallisto|bustools and alevin-fry write beside their matrices."""
    # the matrices of mature, nascent and ambiguous reads share their names
    for base in filter(None, (stem, stem.rpartition(".")[0])):
        samples = _first(folder, f"{base}.barcodes.txt", f"{base}_rows.txt")
        features = _first(folder, f"{base}.genes.txt", f"{base}.ec.txt", f"{base}_cols.txt")
        if (samples and features) or (_BY_SAMPLES.search(stem) and (samples or features)):
            return _Files(samples, features, _first(folder, f"{base}.genes.names.txt"), False)
    return None


def _first(folder: Path, *names: str) -> NameFile | None:
    """Read the first of some files that exists, plain or gzip; None if none does."""
    paths = (folder / file_name for name in names for file_name in (name, f"{name}.gz"))
    return next((read_name_file(path) for path in paths if path.is_file()), None)


def _by_words(path: Path, stem: str, shape: tuple[int, int], notes: list[str]) -> _Files:
    """Find files named like the matrix, but with a word such as "barcodes" in place of "matrix"."""
    (samples, certain), (features, also) = (
        _nearest(path, stem, words, notes) for words in (_SAMPLES, _FEATURES)
    )
    files = _Files(samples, features, None, None)
    if not any(files.fit(_turned(shape, orientation)) for orientation in (False, True)):
        for file, is_own in ((samples, certain), (features, also)):
            if file is not None and not is_own:
                notes.append(f"{file.path.name} has {len(file.rows):,} lines, and was not used")
        samples, features = samples if certain else None, features if also else None
    paths = [file.path for file in (samples, features) if file is not None]
    words = {_word(_stem(other), (*_SAMPLES, *_FEATURES)) for other in paths}
    transposed = None
    # Parse Biosciences too
    if _BY_SAMPLES.search(stem) or words & {"cell_metadata", "all_genes"}:
        transposed = False
    elif paths and _word(stem, _TRANSPOSED) and not any(map(is_csv, paths)):
        transposed = True
    return _Files(samples, features, None, transposed)


def _nearest(
    path: Path, stem: str, words: tuple[str, ...], notes: list[str]
) -> tuple[NameFile | None, bool]:
    """Find the file with one of the words whose name is closest to that of the matrix.

    Return it, or None, and whether it certainly belongs to this matrix.
    """
    own, ranked = _rest(stem, _COUNTS), []
    is_tenx = bool(_word(stem, _TRANSPOSED))
    for other in _files_of(path.parent):
        name = other.name.lower().removesuffix(".gz")
        word = _word(_stem(other), (*_SAMPLES, *_FEATURES))
        if word not in words or not name.endswith(_ENDINGS) or not other.is_file():
            continue
        rest = _rest(_stem(other), (word,))
        ending = next(at for at, end in enumerate(_ENDINGS) if name.endswith(end))
        # 0: its own file; 1: a file shared by several matrices; 2: any name, if it is the only one
        rank = 0 if rest == own else 1 if set(rest) <= set(own) else 2
        if rank == 0 and not own and not is_tenx and ending > 0:
            rank = 1  # a list of a few genes, perhaps
        ranked.append((rank, words.index(word), ending, other.suffix == ".gz", other))
    if not ranked:
        return None, True
    rank, *_, best = min(ranked)
    stems = {_stem(candidate[-1]) for candidate in ranked}
    is_only = len(stems) == 1 and len(mtx_files(path.parent)) == 1
    if rank == 2 and not (is_only and is_tenx):
        return None, True
    try:
        return read_name_file(best), rank == 0
    except ValueError as error:
        if rank < 2:
            raise
        notes.append(f"{best.name} was not used: {error}")
        return None, True


def _files_of(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except PermissionError:  # a readable file may be in a folder that cannot be listed
        return []


def _word(stem: str, words: tuple[str, ...]) -> str:
    """Return the last of the words that occurs in a name, in lower case, or ""."""
    matches = _matches(stem, words)
    return matches[-1][0].lower() if matches else ""


def _rest(stem: str, words: tuple[str, ...]) -> list[str]:
    """Split a name into parts, without the last of the words that occurs in it."""
    matches = _matches(stem, words)
    if matches:
        stem = f"{stem[: matches[-1].start()]} {stem[matches[-1].end() :]}"
    parts = re.split(r"[\s._-]+", stem.lower())
    # a GEO series (GSE...) has one file of features for all of its samples
    other = {"", "matrix", "count", "counts"}
    return [part for part in parts if part not in other and not re.fullmatch(r"gse\d+", part)]


def _matches(stem: str, words: tuple[str, ...]) -> list[re.Match[str]]:
    either = "|".join(sorted(words, key=len, reverse=True))
    return list(re.finditer(rf"(?<![a-z])(?:{either})(?![a-z])|(?:{either})$", stem, re.I))


def mtx_files(folder: Path) -> list[Path]:
    """Return the .mtx files of a folder, plain or gzip; the plain one if both exist."""
    files = {_stem(path): path for end in ("mtx.gz", "mtx") for path in folder.glob(f"*.{end}")}
    return sorted(files.values())
