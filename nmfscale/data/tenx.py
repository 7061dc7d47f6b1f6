"""Files of 10x Genomics' Cell Ranger: .h5 of versions 2 and 3, and folders of .mtx files.

Both hold genes x cells by columns, which is cells x genes by rows: nothing is converted.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .hdf5 import csr_of, open_hdf5, strings

GENES = "Gene Expression"


class Features(NamedTuple):
    """Identifiers, symbols, and types and genomes where the file gives them."""

    ids: NDArray[Any]
    symbols: NDArray[Any]
    types: NDArray[Any] | None = None
    genomes: NDArray[Any] | None = None


def genome_groups(file: Any) -> list[str]:
    """Names of the groups that Cell Ranger 2 writes, one per genome."""
    parts = {"data", "indices", "indptr", "shape", "barcodes", "genes"}
    return [name for name in file if hasattr(file[name], "keys") and parts <= set(file[name])]


def read_tenx_h5(
    path: Path, *, genome: str | None = None, feature_type: str | None = None
) -> dict[str, Any]:
    """Read a matrix of Cell Ranger 2 or 3."""
    with open_hdf5(path) as file:
        if "matrix" in file:
            group = file["matrix"]
            columns = group["features"]
            types, genomes = (
                strings(columns[name][()]) if name in columns else None
                for name in ("feature_type", "genome")
            )
            ids, symbols = (strings(columns[name][()]) for name in ("id", "name"))
            features = Features(ids, symbols, types, genomes)
        else:
            group = file[_one_genome(path, genome_groups(file), genome)]
            features = Features(*(strings(group[name][()]) for name in ("genes", "gene_names")))
            genome = None
        matrix = csr_of(group, group["shape"][()][::-1])
        barcodes = strings(group["barcodes"][()])
    return {"sample_names": barcodes} | select_features(
        path, matrix, features, feature_type=feature_type, genome=genome
    )


def _one_genome(path: Path, genomes: list[str], genome: str | None) -> str:
    if genome is None and len(genomes) == 1:
        return genomes[0]
    if genome not in genomes:
        asked = "holds several genomes" if genome is None else f"has no genome {genome!r}"
        raise ValueError(f"{path} {asked}; choose genome= from {', '.join(genomes)}.")
    return genome


def select_features(
    path: Path,
    matrix: Any,
    features: Features,
    *,
    feature_type: str | None = None,
    genome: str | None = None,
) -> dict[str, Any]:
    """Keep the columns asked for; by default gene expression where other types are mixed in."""
    keep = np.ones(len(features.ids), dtype=bool)
    if keep.size != matrix.shape[1]:
        raise ValueError(f"{path} names {keep.size} features, but has {matrix.shape[1]}.")
    notes = []
    if feature_type is None and features.types is not None and GENES in features.types:
        keep = features.types == GENES
        for other, number in sorted(Counter(features.types[~keep].tolist()).items()):
            notes.append(
                f"{number:,} features of type {other!r} were left out (feature_type='all')"
            )
    elif feature_type not in (None, "all"):
        keep = _where(path, features.types, feature_type, "feature_type")
    if genome is not None:
        keep = keep & _where(path, features.genomes, genome, "genome")
    names = _distinct_names(features.symbols[keep], features.ids[keep])
    return {
        "matrix": matrix if keep.all() else matrix[:, np.flatnonzero(keep)],
        "feature_names": names,
        "notes": notes,
    }


def _where(path: Path, labels: NDArray[Any] | None, wanted: str | None, choice: str) -> Any:
    known = [] if labels is None else sorted(set(labels.tolist()))
    if labels is None or wanted not in known:
        found = ", ".join(map(repr, known)) or "none"
        raise ValueError(f"{path} has no features with {choice}={wanted!r}; it has: {found}.")
    return labels == wanted


def _distinct_names(symbols: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """Gene symbols; those that stand for several genes are told apart by the identifier."""
    times = Counter(symbols.tolist())
    names = symbols.copy()
    for at in np.flatnonzero([times[symbol] > 1 for symbol in symbols.tolist()]):
        names[at] = f"{symbols[at]}_{ids[at]}"
    return names


# ---------------------------------------------------------------------------
# The text files beside a matrix.mtx


def find_mtx(folder: Path) -> Path:
    """Return the one .mtx file of a folder."""
    found = sorted([*folder.glob("*.mtx"), *folder.glob("*.mtx.gz")])
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(
            f"{folder} is a folder; expected one matrix.mtx or matrix.mtx.gz in it, found {names}."
        )
    return found[0]


def names_beside(path: Path) -> tuple[NDArray[Any], Features] | None:
    """Barcodes and features of the .tsv files beside a .mtx file, if both are there."""
    prefix = path.name.partition("matrix.mtx")[0] if "matrix.mtx" in path.name else ""
    barcodes = _table(path.parent, prefix, "barcodes")
    features = _table(path.parent, prefix, "features") or _table(path.parent, prefix, "genes")
    if not barcodes or not features:
        return None
    columns = [strings(column) for column in zip(*features, strict=False)]
    symbols = columns[1] if len(columns) > 1 else columns[0]
    types = columns[2] if len(columns) > 2 else None
    return strings(line[0] for line in barcodes), Features(columns[0], symbols, types)


def _table(folder: Path, prefix: str, name: str) -> list[list[str]]:
    for suffix, opener in ((".tsv", open), (".tsv.gz", gzip.open)):
        path = folder / f"{prefix}{name}{suffix}"
        if path.is_file():
            with opener(path, "rt", encoding="utf-8", errors="replace") as lines:
                return [line.rstrip("\r\n").split("\t") for line in lines]
    return []
