"""Counts of objects in memory: AnnData, DataFrame, dask arrays, matrices."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.foreign import ObjectTypeError, known_matrix
from ..counts.label_table import rows_of
from ..counts.memory import checked_counts
from ..counts.names import names_of, places_of
from ..counts.nan_entries import NanEntries
from ..counts.validation import EntryNames, rows_of_sparse
from .formats.formats import ANNOTATED, NAN, check_choices
from .formats.h5ad import chosen_modality
from .sources.frames import labels_in, table_of_frame
from .sources.masks import Described, described, table_column
from .streams.columns import select_columns
from .streams.dask_array import DaskRows, is_dask_array
from .streams.file_counts import FileCounts
from .streams.stream import subject_of
from .streams.thinning import PartOfCounts

# Rows of a matrix that show whether it holds whole numbers.
_LOOKED_AT = 100


def is_annotated(X: Any) -> bool:
    """Whether an object is an AnnData object; does not import anndata."""
    anndata = sys.modules.get("anndata")
    return anndata is not None and isinstance(X, anndata.AnnData)


def is_mudata(X: Any) -> bool:
    """Whether an object is a MuData object; does not import mudata."""
    mudata = sys.modules.get("mudata")
    return mudata is not None and isinstance(X, mudata.MuData)


def known_object(X: Any, subject: str, modality: str | None = None) -> Any:
    """Return an AnnData object or a matrix; refuse other objects (`subject` in messages)."""
    if modality is not None:
        if not is_mudata(X):
            raise ValueError(f"modality={modality!r} is for MuData objects and files.")
        return _modality(X, chosen_modality(subject, list(X.mod), modality))
    if is_annotated(X):
        return X
    if not is_mudata(X):
        return known_matrix(X, subject)
    names = list(X.mod)
    if len(names) == 1:
        return _modality(X, names[0])
    modalities = ", ".join(map(repr, names)) or "none"
    example = f"mdata[{names[0]!r}]" if names else "an AnnData object"
    raise ObjectTypeError(
        f"{subject} is a MuData object with several modalities: {modalities}. Pass one of them, as "
        f"{example}, or choose modality=."
    )


def _modality(mdata: Any, name: str) -> Any:
    """Return a modality of a MuData object, with the columns of obs that all modalities share.

    Counts are not copied.
    """
    adata, shared = mdata.mod[name], getattr(mdata, "obs", {})
    copies = tuple(f"{modality_name}:" for modality_name in mdata.mod)  # of columns of modalities
    columns = [
        column for column in shared
        if column not in adata.obs and not str(column).startswith(copies)
    ]  # fmt: skip
    if not columns or adata.isbacked:
        return adata
    places = places_of(mdata.obs_names, adata.obs_names, "obs", subject="the modality")
    table = shared[columns] if places is None else shared[columns].iloc[places]
    return type(adata)(
        adata.X, obs=adata.obs.join(table), var=adata.var, uns=dict(adata.uns), raw=adata.raw,
        layers={layer: adata.layers[layer] for layer in _layers(adata)},
    )  # fmt: skip


class _Table(NamedTuple):
    """Counts to be checked, with the names of samples and so on, and their name in messages.

    `part` holds the options that choose names and subsets after the check.
    """

    matrix: Any
    about: dict[str, Any]
    subject: str
    part: dict[str, Any] = {}


def object_counts(
    X: Any, choices: dict[str, Any], subject: str, in_memory: bool, part: dict[str, Any]
) -> CountMatrix:
    """Return the checked counts of an object.

    `choices` select a matrix of an AnnData object, and say whether NaN are missing entries. `part`
    holds the options that choose names and subsets: NAMES and MASKS.
    """
    check_choices(choices, ANNOTATED if is_annotated(X) else (), type(X).__name__)
    if isinstance(X, CountMatrix):
        return part_of_counts(X, part)
    table, nan = _table_of(X, choices, subject, part), NAN in choices
    counts: CountMatrix
    if is_dask_array(table.matrix):
        stream = DaskRows(table.matrix, **table.about)
        stream.missing = NanEntries() if nan else None
        counts = stream.in_memory() if in_memory else FileCounts(stream)
    else:
        counts = checked_counts(table.matrix, subject=table.subject, nan=nan, **table.about)
    return part_of_counts(counts, table.part)


def _table_of(X: Any, choices: dict[str, Any], subject: str, part: dict[str, Any]) -> _Table:
    """Return the chosen matrix of an object; only the chosen entries are checked."""
    if is_annotated(X):
        return _annotated_table(X, choices, subject, part)
    if not hasattr(X, "columns") or not hasattr(X, "to_numpy"):
        if len(getattr(X, "shape", ())) != 2:  # a list of rows, or no matrix
            return _Table(X, {}, subject, part)
        subset = described(part, X.shape, holder_of(subject))
        return _Table(_chosen(X, subset, subject), subset.about(), subject)
    names: dict[str, Any] = {"sample_names": names_of(X), "feature_names": names_of(X, 1)}
    if not hasattr(X, "iloc"):  # a DataFrame of polars
        return _Table(_frame_matrix(X), names, subject, part)
    subset = described(part, X.shape, holder_of(subject), **names)
    X = X if subset.rows is None else X.iloc[subset.rows]
    X = X if subset.columns is None else X.iloc[:, subset.columns]
    return _Table(_frame_matrix(X), subset.about(), subject)


def holder_of(subject: str) -> str:
    """Return the name of an object in messages: X, or X passed to an estimator."""
    return EntryNames(subject).holder


def part_of_counts(counts: CountMatrix, part: dict[str, Any]) -> CountMatrix:
    """Return counts with the names, samples and features that options choose."""
    if not part:
        return counts
    holder = subject_of(counts)
    subset = described(
        part, counts.shape, holder, sample_names=counts.sample_names,
        feature_names=counts.feature_names,
        obs=None if counts._obs is None else lambda: counts.obs,
    )  # fmt: skip
    named = copy_of(counts)
    named.sample_names, named.feature_names = subset.sample_names, subset.feature_names
    if counts.from_file:
        if subset.rows is not None:
            named = FileCounts(PartOfCounts(named, subset.rows))
        chosen = named if subset.columns is None else select_columns(named, subset.columns)
    elif subset.rows is None and subset.columns is None:
        return named
    else:
        matrix = named.take_rows(subset.rows)
        matrix = matrix if subset.columns is None else matrix[:, subset.columns]
        chosen = checked_counts(matrix, **named._described(subset.rows, subset.columns))
    if counts.nan_entries is not None:
        mask = counts.nan_entries if subset.rows is None else counts.nan_entries[subset.rows]
        chosen.nan_entries = mask if subset.columns is None else mask[:, subset.columns]
    chosen.columns_taken = None
    return chosen


def with_groups(counts: CountMatrix, groups: str | None = None) -> CountMatrix:
    """Return counts whose groups are a column of their obs."""
    if groups is not None:
        table = None if counts.obs is None else lambda: counts.obs
        labels = table_column(table, groups, "groups", "obs", subject_of(counts))
        counts = copy_of(counts)
        counts.groups = np.array(
            ["missing" if label is None else label for label in labels.tolist()], labels.dtype
        )
    return counts


def copy_of(counts: CountMatrix) -> CountMatrix:
    """Return counts whose names can be set; the counts themselves are shared."""
    copied = object.__new__(type(counts))
    copied.__dict__.update(counts.__dict__)
    return copied


def _chosen(matrix: Any, subset: Described, subject: str) -> Any:
    """Return the chosen part of a matrix."""
    if subset.rows is None and subset.columns is None:
        return matrix
    if hasattr(matrix, "to_memory") and subset.rows is None:  # of an AnnData object in a file
        matrix = matrix.to_memory()
    if sp.issparse(matrix):
        rows, shape = rows_of_sparse(matrix, EntryNames(subject))
        matrix = rows.matrix(shape[1])
    matrix = matrix if subset.rows is None else matrix[subset.rows]
    return matrix if subset.columns is None else matrix[:, subset.columns]


def _annotated_table(
    adata: Any, choices: dict[str, Any], subject: str, part: dict[str, Any]
) -> _Table:
    """Return the X of an AnnData object, a layer, or the X of its raw."""
    layer, raw, groups = choices.get("layer"), choices.get("raw", False), choices.get("groups")
    if raw and layer is not None:
        raise ValueError(f"layer={layer!r} and raw=True exclude each other: raw has no layers.")
    layers = ", ".join(map(repr, _layers(adata))) or "none"
    if raw and adata.raw is None:
        raise ValueError(f"The AnnData object has no raw; its layers: {layers}.")
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"No layer {layer!r} in the AnnData object; its layers: {layers}.")
    source = adata.raw if raw else adata
    matrix = source.X if layer is None else adata.layers[layer]
    if matrix is None:
        raise ValueError(f"The AnnData object has no X; choose one of its layers: {layers}.")
    subset = part_of_annotated(adata, part, raw, holder_of(subject))
    labels = None if groups is None else labels_in(adata.obs, groups)
    others = [f"{name} is there too" for name in other_matrices(adata, layer, raw)]
    if not is_dask_array(matrix) and others:
        subject = f"{subject} ({'; '.join(others)})"
    about = subset.about() | {
        "groups": subset.of_rows(labels), "obs": table_of_samples(adata, subset.rows)
    }  # fmt: skip
    return _Table(_chosen(matrix, subset, subject), about, subject)


def part_of_annotated(adata: Any, part: dict[str, Any], raw: bool, holder: str) -> Described:
    """Return the names of an AnnData object, and the parts of it that options choose."""
    source = adata.raw if raw else adata
    return described(
        part, (adata.n_obs, source.n_vars), holder, sample_names=adata.obs_names,
        feature_names=source.var_names, obs=partial(table_of_frame, adata.obs),
        var=partial(table_of_frame, source.var),
    )  # fmt: skip


def table_of_samples(adata: Any, rows: NDArray[Any] | None = None) -> Any:
    """Return a function that returns the columns of obs, of some samples or of all."""
    table = partial(table_of_frame, adata.obs.copy(deep=False))
    return table if rows is None else partial(rows_of, table, rows)


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


def whole_matrices(adata: Any, layer: str | None = None, raw: bool = False, **_: Any) -> list[str]:
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
