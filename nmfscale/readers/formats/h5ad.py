"""AnnData files (.h5ad), read without anndata: the current layout and all since version 0.5."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.label_table import Coded, LabelTable
from ...counts.names import places_of, shown
from ...storage.hdf5 import (
    checked_dataset,
    find,
    guarded_hdf5,
    is_group,
    need,
    shape_of,
    strings,
    text_of,
    values_of,
)
from ..sources.external_sort import SortedRows
from ..sources.sources import (
    SLICE,
    CompressedGroup,
    DenseDataset,
    MemoryLimits,
    OpenedTable,
    column_of,
)

# Errors of columns that are damaged or no labels.
_UNREADABLE = ArithmeticError, AttributeError, LookupError, TypeError, ValueError


def open_h5ad(
    path: Path, limits: MemoryLimits, *, layer: str | None = None, raw: bool = False,
    groups: str | None = None, within: str = "/",
) -> OpenedTable:  # fmt: skip
    """Open X, a layer, or the X of raw, with names and the labels in one column of obs.

    `within` is the group of the AnnData object in the file.
    """
    if raw and layer is not None:
        raise ValueError(f"{path}: layer={layer!r} and raw=True exclude each other.")
    with guarded_hdf5(path) as whole, ExitStack() as failed:
        file = need(whole, within)
        name = "X" if layer is None else f"layers/{layer}"
        matrices = _matrices(file)
        if raw:
            # Up to AnnData 0.6, "raw.X" is a dataset at the top level of the file.
            name = "raw.X" if "raw.X" in file else "raw/X"
        if name not in matrices:
            raise ValueError(f"{path} has no {name}; its matrices: {', '.join(matrices)}.")
        node = need(file, name)
        others = [f"{other} is there too" for other in matrices if other != name]
        rows = _rows(node, path.absolute(), limits)
        failed.callback(rows.close)
        shape = rows.shape
        obs, var = need(file, "obs"), need(file, name[:-1] + "var" if raw else "var")
        names: dict[str, Any] = {
            "sample_names": strings(_index(obs, shape[0])),
            "feature_names": strings(_index(var, shape[1])),
            "groups": None if groups is None else with_missing(_labels(obs, groups, shape[0])),
            "obs": partial(read_table, path.absolute(), obs.name, shape[0]),
            "var": partial(read_table, path.absolute(), var.name, shape[1]),
        }
        failed.pop_all()
        return OpenedTable(path, rows, f"{path} ({'; '.join([name, *others])})", **names)


def open_h5mu(
    path: Path, limits: MemoryLimits, *, modality: str | None = None, groups: str | None = None,
    **choices: Any,
) -> OpenedTable:  # fmt: skip
    """Open a modality of a MuData file, as an AnnData file with the columns of obs of both."""
    with guarded_hdf5(path) as file:
        within = f"mod/{chosen_modality(str(path), _modalities(file), modality)}"
        of_whole = groups is not None and groups not in _columns(need(file, f"{within}/obs"))
    table = open_h5ad(path, limits, within=within, groups=None if of_whole else groups, **choices)
    samples = np.asarray(table.sample_names)
    if of_whole:
        with guarded_hdf5(path) as file:
            labels = _shared_columns(need(file, "obs"), samples)(str(groups))
        table = table._replace(groups=with_missing(labels))
    return table._replace(obs=partial(_both_tables, path, samples, table.obs))


def _shared_columns(obs: Any, samples: NDArray[Any]) -> Callable[[str], NDArray[Any]]:
    """Return a function that reads columns of obs of a MuData file for samples of a modality."""
    names = strings(_index(obs, None))
    places = places_of(names, samples, "obs", subject="the modality")

    def read(column: str) -> NDArray[Any]:
        values = _labels(obs, column, len(names))
        return values if places is None else values[places]

    return read


def _both_tables(path: Path, samples: NDArray[Any], own: Any) -> LabelTable:
    """Return the columns of obs of a modality, and those that belong to all modalities."""
    columns: dict[str, Any] = dict(own().columns)
    with guarded_hdf5(path) as file, suppress(*_UNREADABLE):
        copies = tuple(f"{name}:" for name in _modalities(file))  # of columns of modalities
        obs = need(file, "obs")
        shared = [
            name for name in _columns(obs)
            if name not in columns and not name.startswith(copies)
        ]  # fmt: skip
        if shared:
            read = _shared_columns(obs, samples)
            for name in shared:
                with suppress(*_UNREADABLE):
                    columns[name] = read(name)
    return LabelTable(columns)


def modalities(path: Path) -> list[str]:
    """Return the names of the modalities of a MuData file; other files have none."""
    with guarded_hdf5(path) as file:
        return _modalities(file)


def _modalities(file: Any) -> list[str]:
    return list(find(file, "mod") or ())


def chosen_modality(
    holder: str, names: list[str], modality: str | None, argument: str = "modality"
) -> str:
    """Return the modality that is asked for, or the only one."""
    check_one_modality(modality, argument, f"{holder}: ")
    if modality is None and len(names) == 1:
        return names[0]
    if modality not in names:
        asked = "has several modalities" if modality is None else f"has no modality {modality!r}"
        remedy = f"choose {argument}= from {', '.join(names)}" if names else "it has none"
        raise ValueError(f"{holder} {asked}; {remedy}.")
    return modality


def check_one_modality(modality: Any, argument: str, holder: str = "") -> None:
    """Refuse several modalities."""
    if modality is not None and not isinstance(modality, str):
        raise ValueError(
            f"{holder}{argument}={shown(modality)}: one name is needed. "
            "Several modalities are fitted together by fit(mdata, modality=[...]) of a model."
        )


def matrix_names(path: Path) -> list[str]:
    """Return the names of the matrices of a file: X, that of raw, and layers."""
    with guarded_hdf5(path) as file:
        return _matrices(file)


def _matrices(file: Any) -> list[str]:
    names = [part for part in ("X", "raw/X", "raw.X") if find(file, part) is not None]
    return names + [f"layers/{layer}" for layer in find(file, "layers") or ()]


def read_obs(path: Path, column: str | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the names of a file's samples, and their labels in a column of obs (or None)."""
    with guarded_hdf5(path) as file:
        obs = need(file, "obs")
        if column is None:
            columns = ", ".join(_columns(obs))
            raise ValueError(f"{path}: add a column of obs, as {path}:COLUMN; columns: {columns}.")
        size = len(_index(obs, None))
        return strings(_index(obs, size)), _labels(obs, column, size)


def read_names(path: Path, part: str = "") -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the names of observations and variables; `part` is a modality of an .h5mu file."""
    with guarded_hdf5(path) as file:
        root = need(file, part) if part else file
        obs, var = (strings(_index(need(root, name), None)) for name in ("obs", "var"))
        return obs, var


def read_table(path: Path, name: str, size: int) -> LabelTable:
    """Return the columns of obs or var; those that are damaged or no labels are left out."""
    columns: dict[str, Any] = {}
    with guarded_hdf5(path) as file:
        frame = need(file, name)
        for column in _columns(frame):
            with suppress(*_UNREADABLE):
                columns[column] = _coded_or_values(frame, column, size)
    return LabelTable(columns)


def _coded_or_values(frame: Any, column: str, size: int) -> Coded | NDArray[Any]:
    node = find(frame, column) if is_group(frame) else None
    if node is None or not is_group(node) or "codes" not in node:
        return _labels(frame, column, size)
    codes, categories = _values(need(node, "codes"), size), _values(need(node, "categories"))
    _check_codes(codes, node, categories)
    return Coded(codes, strings(_with_text(categories)))


def obs_columns(path: Path) -> list[str]:
    """Return the names of the columns of obs."""
    with guarded_hdf5(path) as file:
        return _columns(need(file, "obs"))


def _columns(obs: Any) -> list[str]:
    """Return the names of the columns of obs or var.

    anndata lists them, because a column "T/NK" is an entry "NK" of a group "T".
    """
    names = [*(obs if is_group(obs) else _fields(obs))]
    index = text_of(obs.attrs["_index"]) if is_group(obs) else "index"
    if is_group(obs) and "column-order" in obs.attrs:
        listed = [text_of(name) for name in np.ravel(obs.attrs["column-order"]).tolist()]
        nested = [name for name in listed if "/" in name and find(obs, name) is not None]
        groups = {name.split("/")[0] for name in nested} - {*listed}
        names = [name for name in names if name not in groups] + nested
    return [name for name in names if name not in ("__categories", "_index", index)]


def _rows(
    node: Any, path: Path, limits: MemoryLimits
) -> DenseDataset | CompressedGroup | SortedRows:
    """Return a reader for the rows of a dense dataset or a sparse group, samples x features."""
    if not is_group(node):
        shape_of(node.shape, node)
        return DenseDataset(node, path, limits.sort)
    sizes = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    shape = shape_of(sizes, node)
    encoding = text_of(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))
    if encoding[:3] not in ("csr", "csc"):
        fault = f"{node.name} is a group with encoding {encoding!r}"
        raise ValueError(f"{path}: {fault}; expected a dense dataset, csr_matrix or csc_matrix.")
    if encoding[:3] == "csr":
        return CompressedGroup(node, shape, path)
    columns = CompressedGroup(node, shape[::-1], path)
    n_entries = min(SLICE // 4, limits.sort // 256)
    triplets = partial(columns.transposed, n_entries)
    return SortedRows(shape, triplets, limits, columns.dtype, columns.close)


def _index(frame: Any, size: int | None) -> Any:
    """Return the row names of obs or var: a group of columns, or up to 0.6 a compound dataset."""
    if is_group(frame):
        return _values(need(frame, text_of(frame.attrs["_index"])), size)
    fields = _fields(frame)
    name = "index" if "index" in fields else fields[0]
    return column_of(checked_dataset(frame)[name], frame, size)


def _fields(frame: Any) -> tuple[str, ...]:
    if frame.dtype.names is None:
        raise ValueError(f"{frame.file.filename}: {frame.name} is not a table with names.")
    return frame.dtype.names


def _labels(frame: Any, column: str, size: int) -> NDArray[Any]:
    """Return a column of obs or var, codes replaced by categories; None for missing labels."""
    columns = {*_columns(frame), *(frame if is_group(frame) else _fields(frame))}
    if column not in columns:
        of, names = frame.name.strip("/"), ", ".join(_columns(frame))
        raise ValueError(
            f"{frame.file.filename}: no column {column!r} in {of}; its columns: {names}."
        )
    if is_group(frame):
        values = _values(need(frame, column), size)
    else:
        values = column_of(checked_dataset(frame)[column], frame, size)
        categories = find(frame.file, f"uns/{column}_categories")
        if categories is not None:
            values = _decoded(values, categories, _values(categories))
    values = _with_text(values)
    missing = np.fromiter((v is None or v != v for v in values.tolist()), bool, len(values))
    if missing.any():
        values = values.astype(object)
        values[missing] = None
    return values


def with_missing(labels: NDArray[Any]) -> NDArray[Any]:
    """Replace None by the label "missing", as for AnnData objects in memory."""
    if labels.dtype.kind != "O":
        return labels
    return np.array(["missing" if label is None else label for label in labels.tolist()], object)


def _values(node: Any, size: int | None = None) -> NDArray[Any]:
    """Return one column of a data frame, in any encoding; it may have any length without `size`."""
    if is_group(node):
        if "codes" in node:
            return _decoded(_values(need(node, "codes"), size), node, _values(node["categories"]))
        values = _values(need(node, "values"), size).astype(object)
        values[_values(need(node, "mask"), len(values)).astype(bool)] = None
        return values
    values = column_of(values_of(node), node, size)
    if "categories" in node.attrs:
        values = _decoded(values, node, _values(node.file[node.attrs["categories"]]))
    return values


def _check_codes(codes: NDArray[Any], node: Any, categories: NDArray[Any]) -> None:
    """Refuse codes that are not numbers of categories, or -1 for missing values."""
    if codes.dtype.kind not in "iu":
        raise ValueError(f"{node.file.filename}: {node.name} has codes of type {codes.dtype}.")
    if codes.size and not (codes.min() >= -1 and codes.max() < categories.size):
        fault = f"codes {codes.min()} to {codes.max()}, but {categories.size} categories"
        raise ValueError(f"{node.file.filename}: {node.name} has {fault}.")


def _decoded(codes: NDArray[Any], node: Any, categories: NDArray[Any]) -> NDArray[Any]:
    _check_codes(codes, node, categories)
    # The code of a missing value, -1, selects the last entry.
    return np.append(_with_text(categories).astype(object), np.array([None]))[codes]


def _with_text(values: NDArray[Any]) -> NDArray[Any]:
    """Decode bytes to text; numbers stay numbers."""
    if values.dtype.kind not in "OS":
        return values
    return np.array([text_of(v) if isinstance(v, bytes) else v for v in values.tolist()], object)
