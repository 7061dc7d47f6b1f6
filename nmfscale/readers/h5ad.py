"""AnnData files (.h5ad), read without anndata: its current layout and those since 0.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..storage.hdf5 import (
    checked_dataset,
    find,
    is_group,
    need,
    opened_hdf5,
    shape_of,
    strings,
    values_of,
)
from .external_sort import SortedRows
from .sources import SLICE, CompressedGroup, DenseDataset, OpenedTable, RowReader, Workspace


def open_h5ad(
    path: Path,
    workspace: Workspace,
    *,
    layer: str | None = None,
    raw: bool = False,
    groups: str | None = None,
) -> OpenedTable:
    """Open X, a layer or the X of raw, with names and the labels of one column of obs."""
    if raw and layer is not None:
        raise ValueError(f"{path}: layer={layer!r} and raw=True exclude each other.")
    with opened_hdf5(path) as file:
        name = "X" if layer is None else f"layers/{layer}"
        matrices = _matrices(file)
        if raw:
            # Up to AnnData 0.6 the dot is part of a name at the top of the file.
            name = "raw.X" if "raw.X" in file else "raw/X"
        if name not in matrices:
            raise ValueError(f"{path} has no {name}; its matrices: {', '.join(matrices)}.")
        var = need(file, name[:-1] + "var" if raw else "var")
        others = [f"{other} is there too" for other in matrices if other != name]
        return OpenedTable(
            path,
            _rows(need(file, name), path.absolute(), workspace),
            f"{path} ({'; '.join([name, *others])})",
            sample_names=strings(_index(need(file, "obs"))),
            feature_names=strings(_index(var)),
            groups=None if groups is None else _labels(file, groups),
        )


def _matrices(file: Any) -> list[str]:
    """Names of the tables of numbers in the file."""
    layers = [f"layers/{layer}" for layer in find(file, "layers") or ()]
    return [name for name in ("X", "raw/X", "raw.X") if find(file, name) is not None] + layers


def _rows(node: Any, path: Path, workspace: Workspace) -> RowReader:
    """Rows of a dense dataset or a sparse group, samples x features."""
    if not is_group(node):
        return DenseDataset(node, path, workspace.memory_limit)
    encoding = _text(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))
    if encoding[:3] not in ("csr", "csc"):
        raise ValueError(
            f"{path}: {node.name} is a group with encoding {encoding!r}; "
            "expected a dense dataset, csr_matrix or csc_matrix."
        )
    sizes = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    shape = shape_of(sizes, node)
    if encoding[:3] == "csr":
        return CompressedGroup(node, shape, path)
    columns = CompressedGroup(node, shape[::-1], path)
    return SortedRows(
        shape,
        lambda: columns.transposed(min(SLICE // 4, workspace.memory_limit // 256)),
        workspace,
        columns.dtype,
        columns.close,
    )


def _index(frame: Any) -> Any:
    """Row names of obs or var: a group of columns, or (up to 0.6) one compound dataset."""
    if is_group(frame):
        return _values(need(frame, _text(frame.attrs["_index"])))
    fields = _fields(frame)
    return checked_dataset(frame)["index" if "index" in fields else fields[0]]


def _fields(frame: Any) -> tuple[str, ...]:
    if frame.dtype.names is None:
        raise ValueError(f"{frame.file.filename}: {frame.name} is no table with names.")
    return frame.dtype.names


def _labels(file: Any, column: str) -> NDArray[Any]:
    """One column of obs, its categories written out."""
    obs = need(file, "obs")
    known = list(obs if is_group(obs) else _fields(obs))
    if column not in known:
        names = ", ".join(name for name in known if name != "__categories")
        raise ValueError(f"{file.filename}: no column {column!r} in obs; its columns: {names}.")
    if is_group(obs):
        values = _values(need(obs, column))
    else:
        values = checked_dataset(obs)[column]
        categories = find(file, f"uns/{column}_categories")
        if categories is not None:
            values = _decoded(values, values_of(categories))
    return _with_text(values)


def _values(node: Any) -> NDArray[Any]:
    """One column of a data frame in any of its encodings."""
    if is_group(node):
        if "codes" in node:
            return _decoded(values_of(need(node, "codes")), _values(need(node, "categories")))
        values = values_of(need(node, "values")).astype(object)
        values[values_of(need(node, "mask"))] = "missing"
        return values
    if "categories" in node.attrs:
        return _decoded(values_of(node), values_of(node.file[node.attrs["categories"]]))
    return values_of(node)


def _decoded(codes: NDArray[Any], categories: NDArray[Any]) -> NDArray[Any]:
    if codes.size and not (codes.min() >= -1 and codes.max() < categories.size):
        raise ValueError(
            f"A categorical column has codes {codes.min()} to {codes.max()}, but "
            f"{categories.size} categories."
        )
    # The code of a missing value, -1, finds the last entry.
    return np.append(_with_text(categories).astype(object), "missing")[codes]


def _with_text(values: NDArray[Any]) -> NDArray[Any]:
    """Decode bytes; numbers stay numbers."""
    if values.dtype.kind not in "OS":
        return values
    texts = [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]
    return np.array(texts, dtype=object)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
