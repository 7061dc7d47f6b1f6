"""AnnData files (.h5ad), read without anndata: its current layout and those since 0.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .compressed import rows_of_blocks
from .hdf5 import compressed_matrix, open_hdf5, strings

# Entries of a dense matrix read at a time.
_DENSE_CHUNK = 2**22


def read_h5ad(
    path: Path, *, layer: str | None = None, raw: bool = False, groups: str | None = None
) -> dict[str, Any]:
    """Read X, a layer or the X of raw, with names and the labels of one column of obs."""
    if raw and layer is not None:
        raise ValueError(f"{path}: layer={layer!r} and raw=True exclude each other.")
    with open_hdf5(path) as file:
        name = "X" if layer is None else f"layers/{layer}"
        matrices = _matrices(file)
        if raw:
            # Up to AnnData 0.6 the dot is part of a name at the top of the file.
            name = "raw.X" if "raw.X" in file else "raw/X"
        if name not in matrices:
            raise ValueError(f"{path} has no {name}; its matrices: {', '.join(matrices)}.")
        var = file[name[:-1] + "var"] if raw else file["var"]
        others = [f"{other} is there too" for other in matrices if other != name]
        return {
            "matrix": _matrix(file[name]),
            "whom": f"{path} ({'; '.join([name, *others])})",
            "sample_names": strings(_index(file["obs"])),
            "feature_names": strings(_index(var)),
            "groups": None if groups is None else _labels(file, groups),
        }


def _matrices(file: Any) -> list[str]:
    """Names of the tables of numbers in the file."""
    layers = [f"layers/{layer}" for layer in file.get("layers", ())]
    return [name for name in ("X", "raw/X", "raw.X") if name in file] + layers


def _matrix(node: Any) -> Any:
    """Read a dense dataset or a sparse group, samples x features."""
    if not hasattr(node, "keys"):
        if node.ndim != 2:
            raise ValueError(f"{node.file.filename}: {node.name} has shape {node.shape}, not 2-d.")
        if 0 in node.shape:
            return np.empty(node.shape, dtype=node.dtype)
        indptr, indices, data = rows_of_blocks(node, _DENSE_CHUNK)
        return sp.csr_array((data, indices, indptr), shape=node.shape)
    encoding = _text(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))
    kinds = {"csr": sp.csr_array, "csc": sp.csc_array}
    if encoding[:3] not in kinds:
        raise ValueError(
            f"{node.file.filename}: {node.name} is a group with encoding {encoding!r}; "
            "expected a dense dataset, csr_matrix or csc_matrix."
        )
    shape = node.attrs["shape"] if "shape" in node.attrs else node.attrs["h5sparse_shape"]
    return compressed_matrix(node, kinds[encoding[:3]], (int(shape[0]), int(shape[1])))


def _index(frame: Any) -> Any:
    """Row names of obs or var: a group of columns, or (up to 0.6) one compound dataset."""
    if hasattr(frame, "keys"):
        return _values(frame[_text(frame.attrs["_index"])])
    fields = frame.dtype.names
    return frame["index" if "index" in fields else fields[0]]


def _labels(file: Any, column: str) -> NDArray[Any]:
    """One column of obs, its categories written out."""
    obs = file["obs"]
    known = list(obs.keys() if hasattr(obs, "keys") else obs.dtype.names)
    if column not in known:
        names = ", ".join(name for name in known if name != "__categories")
        raise ValueError(f"{file.filename}: no column {column!r} in obs; its columns: {names}.")
    if hasattr(obs, "keys"):
        values = _values(obs[column])
    else:
        values = obs[column]
        categories = file.get(f"uns/{column}_categories")
        if categories is not None:
            values = _decoded(values, categories[()])
    return _with_text(values)


def _values(node: Any) -> NDArray[Any]:
    """One column of a data frame in any of its encodings."""
    if hasattr(node, "keys"):
        if "codes" in node:
            return _decoded(node["codes"][()], _values(node["categories"]))
        values = node["values"][()].astype(object)
        values[node["mask"][()]] = "missing"
        return values
    if "categories" in node.attrs:
        return _decoded(node[()], node.file[node.attrs["categories"]][()])
    return node[()]


def _decoded(codes: NDArray[Any], categories: NDArray[Any]) -> NDArray[Any]:
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
