"""Parts of AnnData objects by name: the object itself, columns of obs and var, masks."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import matched, shown
from ..readers.objects import is_annotated, is_mudata, part_of_annotated
from .keys import is_result

Array = NDArray[Any]


def annotated(data: Any, mod: Any = None) -> Any:
    """Return the object that results are read from: `data`, or a modality of MuData.

    A list of modalities, or None if the MuData object has results of several modalities, returns
    the MuData object itself.
    """
    if is_mudata(data):
        names = list(data.mod)
        if isinstance(mod, list | tuple):
            return _with_modalities(data, mod)
        if mod is None and has_results(data):
            return data
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


def _with_modalities(mdata: Any, mod: Any) -> Any:
    """Return a MuData object; refuse modalities that it lacks, or that are given twice."""
    names = list(mdata.mod)
    for at, name in enumerate(mod):
        if name not in names or name in mod[:at]:
            problem = "is given twice" if name in names else "is not one of them"
            raise ValueError(
                f"mod={shown(mod)}: {shown(name)} {problem}; the MuData object has the modalities "
                f"{', '.join(map(repr, names))}{_perhaps(name, names)}."
            )
    if not mod:
        raise ValueError("mod is empty: names of modalities are needed, such as mod=['rna', 'adt']")
    return mdata


def has_results(mdata: Any) -> bool:
    """Whether a MuData object itself holds a fit or a result of several modalities."""
    return any(is_result(value) for value in mdata.uns.values())


def given_modalities(holder: Any, mod: Any) -> None:
    """Refuse a MuData object without names of modalities, which a new fit needs."""
    if is_mudata(holder) and mod is None:
        names = list(holder.mod)
        raise ValueError(
            f"mod is needed: the MuData object has the modalities {', '.join(map(repr, names))}; "
            f"mod={names[0]!r} fits one, and mod={names!r} all of them together."
        )


def is_object(data: Any) -> bool:
    """Whether an argument is an AnnData or MuData object."""
    return is_annotated(data) or is_mudata(data)


def only_modality(data: Any) -> Any:
    """Return an AnnData object, a MuData object with results, or its only modality."""
    if is_mudata(data) and len(data.mod) != 1 and not has_results(data):
        names = ", ".join(map(repr, data.mod))
        raise ValueError(f"the MuData object has several modalities: {names}. Pass one of them.")
    return annotated(data)


def writable(data: Any, mod: Any, copy: bool) -> tuple[Any, Any]:
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
    symbols = column_of_features(only_modality(source), gene_symbols, "gene_symbols").astype(object)
    return symbols.where(symbols.notna(), symbols.index).astype(str)


def column_of_features(holder: Any, name: str, argument: str) -> Any:
    """Return a column of var, by the name of the feature in a fit.

    Of a MuData object, modalities without the column have the names of their variables.
    """
    if not is_mudata(holder):
        return column(holder, name, argument, "var")
    import pandas as pd

    tables = {label: adata.var for label, adata in holder.mod.items()}
    if not any(name in var for var in tables.values()):
        raise ValueError(
            f"{argument}={name!r} is not a column of var of any modality of the MuData object."
        )
    columns = []
    for label, var in tables.items():
        values = var[name].astype(object) if name in var else var.index.to_series()
        columns += [values, values.set_axis([f"{label}:{own}" for own in var.index])]
    values = pd.concat(columns).rename(name)
    return values[~values.index.duplicated()]


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
