"""Counts of objects in memory: AnnData, DataFrame, dask arrays, matrices."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.foreign import ObjectTypeError, known_matrix
from ..counts.memory import checked_counts
from ..counts.names import names_of
from .dask_array import DaskRows, is_dask_array
from .file_counts import FileCounts
from .formats import ANNOTATED, check_choices

# Rows of a matrix that show whether it holds whole numbers.
_LOOKED_AT = 100
# Logarithms of counts are smaller, log1p of the largest 32-bit number is 22; of other fractions,
# such as counts corrected for ambient RNA, some are larger.
_MOST_LOG = 25


def is_annotated(X: Any) -> bool:
    """Whether an object is an AnnData object; does not import anndata."""
    anndata = sys.modules.get("anndata")
    return anndata is not None and isinstance(X, anndata.AnnData)


def is_mudata(X: Any) -> bool:
    """Whether an object is a MuData object; does not import mudata."""
    mudata = sys.modules.get("mudata")
    return mudata is not None and isinstance(X, mudata.MuData)


def known_object(X: Any, subject: str) -> Any:
    """Return an AnnData object or a matrix; refuse other objects (`subject` in messages)."""
    if is_annotated(X):
        return X
    if not is_mudata(X):
        return known_matrix(X, subject)
    names = list(X.mod)
    if len(names) == 1:
        return X.mod[names[0]]
    known = ", ".join(map(repr, names)) or "none"
    example = f"mdata[{names[0]!r}]" if names else "an AnnData object"
    raise ObjectTypeError(
        f"{subject} is a MuData object with several modalities: {known}. Pass one of them, as "
        f"{example}."
    )


def object_counts(X: Any, choices: dict[str, Any], subject: str, in_memory: bool) -> CountMatrix:
    """Return the checked counts of an object; `choices` select a matrix of an AnnData object."""
    if is_annotated(X):
        check_choices(choices, ANNOTATED, type(X).__name__)
        return annotated_counts(X, **choices, subject=subject, in_memory=in_memory)
    check_choices(choices, (), type(X).__name__)
    if is_dask_array(X):
        return _dask_counts(X, subject, in_memory)
    if isinstance(X, CountMatrix):
        return X
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        return checked_counts(
            _frame_matrix(X),
            subject=subject,
            sample_names=names_of(X),
            feature_names=names_of(X, 1),
        )
    return checked_counts(X, subject=subject)


def _dask_counts(X: Any, subject: str, in_memory: bool, **names: Any) -> CountMatrix:
    stream = DaskRows(X, **names)
    if in_memory:
        return checked_counts(stream.rows(0, stream.shape[0]), subject=subject, **names)
    return FileCounts(stream)


def annotated_counts(
    adata: Any, *, layer: str | None = None, raw: bool = False, groups: str | None = None,
    subject: str = "X", in_memory: bool = True,
) -> CountMatrix:  # fmt: skip
    """Return the checked counts of an AnnData object: its X, a layer, or the X of its raw."""
    if raw and layer is not None:
        raise ValueError(f"layer={layer!r} and raw=True exclude each other: raw has no layers.")
    known = ", ".join(map(repr, _layers(adata))) or "none"
    if raw and adata.raw is None:
        raise ValueError(f"The AnnData object has no raw; its layers: {known}.")
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"No layer {layer!r} in the AnnData object; its layers: {known}.")
    source = adata.raw if raw else adata
    matrix = source.X if layer is None else adata.layers[layer]
    if matrix is None:
        raise ValueError(f"The AnnData object has no X; choose one of its layers: {known}.")
    names = {
        "sample_names": adata.obs_names,
        "feature_names": source.var_names,
        "groups": None if groups is None else _group_labels(adata.obs, groups),
    }
    if is_dask_array(matrix):
        return _dask_counts(matrix, subject, in_memory, **names)
    others = [f"{name} is there too" for name in other_matrices(adata, layer, raw)]
    subject = f"{subject} ({'; '.join(others)})" if others else subject
    return checked_counts(matrix, subject=subject, **names)


def _layers(adata: Any) -> list[str]:
    """Return the names of the layers; from anndata 0.13 on, X is the layer None."""
    return [name for name in adata.layers if name is not None]


def other_matrices(adata: Any, layer: str | None = None, raw: bool = False, **_: Any) -> list[str]:
    """Return the names of the matrices of an AnnData object except the chosen one."""
    chosen = "raw/X" if raw else "X" if layer is None else f"layers/{layer}"
    # X of a view would be copied
    has_x = chosen != "X" and not adata.is_view and adata.X is not None
    there = [*["X"] * has_x, *["raw/X"] * (adata.raw is not None)]
    there += [f"layers/{name}" for name in _layers(adata)]
    return [name for name in there if name != chosen]


def whole_matrices(adata: Any, layer: str | None = None, raw: bool = False) -> list[str]:
    """Return the names of the matrices except the chosen one whose first rows are whole numbers."""
    return [name for name in other_matrices(adata, layer, raw) if _is_whole(_matrix(adata, name))]


def _matrix(adata: Any, name: str) -> Any:
    """Return a matrix by the name that `other_matrices` returns."""
    part, _, layer = name.partition("/")
    return adata.layers[layer] if part == "layers" else adata.raw.X if part == "raw" else adata.X


def _is_whole(matrix: Any) -> bool:
    rows = matrix[:_LOOKED_AT]
    rows = rows.compute() if hasattr(rows, "compute") else rows
    values = np.asarray(rows.data if hasattr(rows, "nnz") else rows)
    return values.dtype.kind in "buif" and bool((np.mod(values, 1) == 0).all())


def looks_logarithmic(counts: CountMatrix) -> bool:
    """Whether counts look like logarithms: fractions, of which none is large."""
    return counts.first_fraction is not None and counts.largest < _MOST_LOG


def _group_labels(obs: Any, column: str) -> NDArray[Any]:
    if column not in obs.columns:
        known = ", ".join(map(repr, obs.columns)) or "none"
        raise ValueError(f"No column {column!r} in obs; its columns: {known}.")
    labels = obs[column].astype(object).to_numpy(copy=True)
    labels[obs[column].isna().to_numpy()] = "missing"
    return labels


def _frame_matrix(frame: Any) -> Any:
    """Return the values of a DataFrame as a matrix, sparse if all its columns are."""
    dtypes = list(frame.dtypes)
    sparse = [dtype for dtype in dtypes if type(dtype).__name__ == "SparseDtype"]
    if dtypes and len(sparse) == len(dtypes) and all(dtype.fill_value == 0 for dtype in sparse):
        return frame.sparse.to_coo()
    try:
        if dtypes and all(isinstance(dtype, np.dtype) for dtype in dtypes):
            return frame.to_numpy(dtype=np.result_type(*dtypes))
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return frame.to_numpy()
