"""Parts of AnnData objects by name: the object itself, columns of obs and var, masks."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import matched, shown
from ..readers.formats.h5ad import check_one_modality
from ..readers.objects import is_annotated, is_mudata, part_of_annotated

Array = NDArray[Any]


def annotated(data: Any, mod: str | None = None) -> Any:
    """Return the AnnData object that results are read from: `data`, or a modality of MuData."""
    check_one_modality(mod, "mod")
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


def column(
    adata: Any, name_or_values: Any, argument: str, axis: str = "obs", whole: Any = None
) -> Any:
    """Return a column of obs or var that is given by name; other arguments stay as they are.

    `whole` may be the MuData object whose modality `adata` is: it has further columns of obs.
    """
    if not isinstance(name_or_values, str):
        return name_or_values
    frame, shared = getattr(adata, axis), shared_obs(whole) if axis == "obs" else {}
    if name_or_values in frame.columns:
        return frame[name_or_values]
    if name_or_values in shared:
        return matched(
            shared[name_or_values], adata.obs_names.to_numpy(), argument, subject="the modality"
        )
    columns, of = list(map(str, frame.columns)), f"adata.{axis}"
    if len(shared):
        columns, of = [*columns, *map(str, shared)], "obs of the modality or of the MuData object"
    raise ValueError(
        f"{argument}={name_or_values!r} is not a column of {of}; its columns: "
        f"{', '.join(map(repr, columns)) or 'none'}{_perhaps(name_or_values, columns)}."
    )


def symbols_of(source: Any, gene_symbols: str | None) -> Any:
    """Return a column of var with symbols of features; None without one.

    The name of a feature takes the place of a missing symbol.
    """
    if gene_symbols is None:
        return None
    if not is_object(source):
        raise ValueError(
            f"gene_symbols={gene_symbols!r} is the name of a column of var of an AnnData object, "
            f"and there is a {type(source).__name__} in its place."
        )
    symbols = column(only_modality(source), gene_symbols, "gene_symbols", "var").astype(object)
    return symbols.where(symbols.notna(), symbols.index).astype(str)


def shared_obs(whole: Any) -> Any:
    """Return obs of a MuData object, whose columns belong to all modalities; others have none."""
    return whole.obs if is_mudata(whole) else {}


def masks_of(
    adata: Any, mask_obs: Any = None, mask_var: Any = None, raw: bool = False, whole: Any = None
) -> tuple[Array | None, Array | None]:
    """Return masks of observations and of variables, or None for all of them.

    Masks are given as in :func:`nmfscale.as_counts`, `whole` as in :func:`column`.
    """
    if isinstance(mask_obs, str) and mask_obs not in adata.obs and mask_obs in shared_obs(whole):
        mask_obs = column(adata, mask_obs, "mask_obs", whole=whole)
    masks = {"mask_obs": mask_obs, "mask_var": mask_var}
    masks = {name: mask for name, mask in masks.items() if mask is not None}
    part = part_of_annotated(adata, masks, raw, "adata")
    n_vars = (adata.raw if raw else adata).n_vars
    return _as_mask(part.rows, adata.n_obs), _as_mask(part.columns, n_vars)


def _as_mask(positions: Array | None, size: int) -> Array | None:
    if positions is None or len(positions) == size:
        return None
    mask = np.zeros(size, bool)
    mask[positions] = True
    return mask


def _perhaps(name: Any, names: list[str]) -> str:
    near = get_close_matches(str(name), names, 1) if name is not None else []
    return f"; perhaps {near[0]!r}" if near else ""
