"""Files of 10x Genomics' Cell Ranger: .h5 files of versions 2 and 3, and folders with .mtx files.

The .h5 files hold genes x cells as compressed columns. These are the compressed rows of cells x
genes, so nothing needs conversion.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.label_table import LabelTable
from ...storage.hdf5 import find, guarded_hdf5, is_group, need, shape_of, strings, values_of
from ..sources.name_files import Features
from ..sources.sources import CompressedGroup, MemoryLimits, OpenedTable, column_of
from .names_beside import mtx_files

GENES = "Gene Expression"


def genome_groups(file: Any) -> list[str]:
    """Return the names of the groups that Cell Ranger 2 writes, one for each genome."""
    parts = {"data", "indices", "indptr", "shape"}
    nodes = {name: find(file, name) for name in file}
    return [name for name, node in nodes.items() if is_group(node) and parts <= set(node)]


def open_tenx_h5(
    path: Path, _limits: MemoryLimits, *, genome: str | None = None, feature_type: str | None = None
) -> OpenedTable:
    """Open the matrix of a file of Cell Ranger 2 or 3."""
    with guarded_hdf5(path) as file:
        columns = find(file, "matrix/features")
        if columns is not None:
            group, places = need(file, "matrix"), ("id", "name")
        else:
            group = need(file, _one_genome(path, genome_groups(file), genome))
            columns, places, genome = group, ("genes", "gene_names"), None
        n_features, n_cells = shape_of(values_of(need(group, "shape")), group)
        if columns is group and not {"barcodes", "genes"} & set(group):
            barcodes, features = None, None
        else:
            barcodes = _texts(group, "barcodes", n_cells)
            ids, symbols = (_texts(columns, name, n_features) for name in places)
            types, genomes = (
                _texts(columns, name, n_features) if name in columns else None
                for name in ("feature_type", "genome")
            )
            features = Features(ids, symbols, types, genomes)
        selection = select_features(path, features, feature_type, genome)
        rows = CompressedGroup(group, (n_cells, n_features), path.absolute())
    return OpenedTable(path, rows, str(path), sample_names=barcodes, **selection)


def _texts(group: Any, name: str, size: int) -> NDArray[np.object_]:
    node = need(group, name)
    return strings(column_of(values_of(node), node, size))


def _one_genome(path: Path, genomes: list[str], genome: str | None) -> str:
    if genome is None and len(genomes) == 1:
        return genomes[0]
    if genome not in genomes:
        asked = "holds several genomes" if genome is None else f"has no genome {genome!r}"
        raise ValueError(f"{path} {asked}; choose genome= from {', '.join(genomes)}.")
    return genome


def select_features(
    path: Path, features: Features | None, feature_type: str | None, genome: str | None = None
) -> dict[str, Any]:
    """Select the columns with a type and genome; by default, gene expression if there is any."""
    if features is None:
        if feature_type not in (None, "all"):
            _where(path, None, feature_type, "feature_type")
        return {"notes": ["the file has no barcodes and no genes: no names"]}
    keep = np.ones(len(features.ids), dtype=bool)
    notes = []
    if feature_type is None and features.types is not None and GENES in features.types:
        keep = features.types == GENES
        others = sorted(Counter(features.types[~keep].tolist()).items())
        left_out = "were left out (feature_type='all')"
        notes = [f"{number:,} features of type {other!r} {left_out}" for other, number in others]
    elif feature_type not in (None, "all"):
        keep = _where(path, features.types, feature_type, "feature_type")
    if genome is not None:
        keep = keep & _where(path, features.genomes, genome, "genome")
    names = distinct_names(features.symbols[keep], features.ids[keep])
    columns = None if keep.all() else np.flatnonzero(keep)
    var = partial(_table_of, features, keep)
    return {"columns": columns, "feature_names": names, "notes": notes, "var": var}


def _table_of(features: Features, keep: NDArray[Any]) -> LabelTable:
    """Return the table of some features; scanpy calls the identifiers gene_ids."""
    columns = {
        "id": features.ids, "name": features.symbols, "gene_ids": features.ids,
        "feature_type": features.types, "genome": features.genomes,
    }  # fmt: skip
    there = {name: values for name, values in columns.items() if values is not None}
    return LabelTable({name: values[keep] for name, values in there.items()})


def _where(path: Path, labels: NDArray[Any] | None, wanted: str | None, choice: str) -> Any:
    values = [] if labels is None else sorted(set(labels.tolist()))
    if labels is None or wanted not in values:
        choices = ", ".join(map(repr, values)) or "none"
        raise ValueError(f"{path} has no features with {choice}={wanted!r}; it has: {choices}.")
    return labels == wanted


def distinct_names(symbols: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """Return gene symbols; append the identifier to symbols that several genes share."""
    times, names = Counter(symbols.tolist()), symbols.copy()
    for at in np.flatnonzero(symbols != ids):
        if times[symbols[at]] > 1:
            names[at] = f"{symbols[at]}_{ids[at]}"
    return names


# Folders with a matrix.mtx --------------------------------------------------------------------


def find_mtx(folder: Path, genome: str | None = None) -> Path:
    """Return the single .mtx file of a folder, or of its subfolder with the name of a genome."""
    genomes = sorted(below.name for below in folder.iterdir() if mtx_files(below))
    if genome is not None and genome not in genomes:
        choices = ", ".join(genomes) or "none"
        raise ValueError(
            f"{folder} has no folder genome={genome!r} with a matrix.mtx in it; it has: {choices}."
        )
    within = folder if genome is None else folder / genome
    files = mtx_files(within)
    if not files and genomes == ["alevin"]:  # the folders of alevin-fry
        files = mtx_files(folder / "alevin")
    # STARsolo also writes matrices with other counts of the same reads
    files = [path for path in files if not path.name.startswith("UniqueAndMult-")] or files
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        choice = f"; choose genome= from {', '.join(genomes)}" if genomes and not files else ""
        remedy = "; pass the path of one of them" if files else choice
        raise ValueError(
            f"{within} is a folder; expected one matrix.mtx or matrix.mtx.gz in it, found "
            f"{names}{remedy}."
        )
    return files[0]
