"""Loom files: a dense matrix of features x samples in HDF5, with attributes of both."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...counts.label_table import LabelTable
from ...storage.hdf5 import find, guarded_hdf5, need, strings, values_of
from ..sources.sources import DenseDataset, MemoryLimits, OpenedTable
from .h5ad import with_missing

# Attributes that hold names, the first that a file has.
_CELLS = "CellID", "obs_names", "cell_id", "cell_names", "barcode", "barcodes"
_GENES = "Gene", "var_names", "gene_names", "gene_name", "Name", "Accession"


def open_loom(
    path: Path, limits: MemoryLimits, *, layer: str | None = None, groups: str | None = None
) -> OpenedTable:
    """Open the matrix or a layer, with names of samples and features."""
    with guarded_hdf5(path) as file:
        layers = [*(find(file, "layers") or ())]
        if layer is not None and layer not in layers:
            choices = ", ".join(map(repr, layers)) or "none"
            raise ValueError(f"{path} has no layer {layer!r}; its layers: {choices}.")
        node = need(file, "matrix" if layer is None else f"layers/{layer}")
        rows = DenseDataset(node, path.absolute(), limits.sort, transposed=True)
        n, m = rows.shape
    obs = partial(read_attributes, path.absolute(), "col_attrs", n)
    var = partial(read_attributes, path.absolute(), "row_attrs", m)
    samples, features = obs(), var()
    if groups is not None and groups not in samples:
        choices = ", ".join(map(repr, samples)) or "none"
        raise ValueError(f"{path}: no column {groups!r} in col_attrs; its columns: {choices}.")
    return OpenedTable(
        path, rows, str(path), sample_names=_names(samples, _CELLS),
        feature_names=_names(features, _GENES), obs=obs, var=var,
        groups=None if groups is None else with_missing(samples[groups]),
    )  # fmt: skip


def read_attributes(path: Path, name: str, size: int) -> LabelTable:
    """Return the attributes with a value for each sample or feature."""
    columns: dict[str, Any] = {}
    with guarded_hdf5(path) as file:
        group = find(file, name)
        for column in group if group is not None else ():
            with suppress(AttributeError, LookupError, TypeError, ValueError):
                values = np.asarray(values_of(need(group, column)))
                if values.shape == (size,):
                    columns[column] = strings(values) if values.dtype.kind in "OSU" else values
    return LabelTable(columns)


def _names(table: LabelTable, places: tuple[str, ...]) -> Any:
    return next((strings(table[place]) for place in places if place in table), None)
