"""Parts of AnnData objects by name: the object itself, columns of obs and var, masks."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import shown, such_as
from ..readers.objects import is_annotated, is_mudata

Array = NDArray[Any]


def annotated(data: Any, mod: str | None = None) -> Any:
    """Return the AnnData object that results are read from: `data`, or a modality of MuData."""
    if is_mudata(data):
        names = list(data.mod)
        if mod is None and len(names) == 1:
            mod = names[0]
        if mod not in data.mod:
            problem = "is needed" if mod is None else f"is {shown(mod)}"
            raise ValueError(
                f"mod {problem}: the MuData object has the modalities {', '.join(map(repr, names))}"
                f"{_perhaps(mod, names)}."
            )
        return data.mod[mod]
    if is_annotated(data):
        if mod is not None:
            raise ValueError(f"mod={shown(mod)} is for MuData objects, and this is an AnnData.")
        return data
    remedy = "pass an AnnData object, or a MuData object and mod="
    if isinstance(data, str | os.PathLike):
        remedy = "open it with anndata.read_h5ad(path, backed='r'), or pass the path to fit()"
    elif hasattr(type(data), "tables"):
        remedy = "pass one of its tables, as sdata.tables['table']"
    raise TypeError(f"adata is a {type(data).__name__}: {remedy}.")


def is_object(data: Any) -> bool:
    """Whether an argument is an AnnData or MuData object."""
    return is_annotated(data) or is_mudata(data)


def only_modality(data: Any) -> Any:
    """Return an AnnData object, or the only modality of a MuData object."""
    if is_mudata(data) and len(data.mod) != 1:
        names = ", ".join(map(repr, data.mod))
        raise ValueError(f"the MuData object has several modalities: {names}. Pass one of them.")
    return annotated(data)


def writable(data: Any, mod: str | None, copy: bool) -> tuple[Any, Any]:
    """Return the AnnData object that results are written to, and what a tool returns.

    A view becomes an object of its own, as in scanpy. With `copy`, results are written to a copy of
    `data`, which is returned; otherwise None is returned.
    """
    adata = annotated(data, mod)
    if adata.is_view and adata.isbacked:
        raise ValueError(
            "adata is a view of an object in a file, which cannot take results: pass "
            "adata.to_memory(), or the whole object with mask_obs= and mask_var=."
        )
    if copy:
        if adata.isbacked:
            raise ValueError(
                "copy=True would read the whole file of adata: leave copy out, or pass "
                "adata.to_memory()."
            )
        data = data.copy()
        return annotated(data, mod), data
    if adata.is_view:
        adata._init_as_actual(adata.copy())
    return adata, None


def column(adata: Any, given: Any, argument: str, axis: str = "obs") -> Any:
    """Return a column of obs or var that is given by name; other arguments stay as they are."""
    if not isinstance(given, str):
        return given
    frame = getattr(adata, axis)
    if given not in frame.columns:
        known = list(map(str, frame.columns))
        raise ValueError(
            f"{argument}={given!r} is not a column of adata.{axis}; its columns: "
            f"{', '.join(map(repr, known)) or 'none'}{_perhaps(given, known)}."
        )
    return frame[given]


def mask_of(adata: Any, given: Any, argument: str, axis: str) -> Array | None:
    """Return a mask of observations or variables, or None for all of them.

    `given` is None, an array of booleans, or the name of a boolean column.
    """
    if given is None:
        return None
    values = column(adata, given, argument, axis)
    array = np.asarray(values)
    n = len(getattr(adata, axis))
    if array.shape != (n,):
        what = "observations" if axis == "obs" else "variables"
        raise ValueError(
            f"{argument} has shape {array.shape}, and adata has {n:,} {what}: give one boolean for "
            f"each, or the name of a column of adata.{axis}."
        )
    if array.dtype == object and all(isinstance(each, bool | np.bool_) for each in array.tolist()):
        array = array.astype(bool)
    if array.dtype != bool:
        raise ValueError(
            f"{argument} holds {array.dtype}, such as {such_as(values)}: booleans are needed."
        )
    if not array.any():
        raise ValueError(f"{argument} selects nothing: all of its {n:,} values are False.")
    return None if array.all() else array


def _perhaps(given: Any, known: list[str]) -> str:
    near = get_close_matches(str(given), known, 1) if given is not None else []
    return f"; perhaps {near[0]!r}" if near else ""
