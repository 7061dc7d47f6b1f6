"""Counts of an AnnData object: one of its matrices, checked to be counts, with masks applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.integers import IntegerPolicy
from ..counts.logarithms import check_fractions
from ..counts.names import name_array, names_of
from ..models.arguments.names import with_modality
from ..readers.objects import whole_matrices
from ..readers.open import open_counts
from ..readers.streams.columns import select_columns
from ..readers.streams.file_counts import FileCounts
from ..readers.streams.thinning import PartOfCounts

Array = NDArray[Any]


def counts_of(
    adata: Any, layer: str | None, raw: bool, integer: IntegerPolicy = "warn",
    memory_limit: Any = None, data_weights: Any = None, subject: str = "adata",
) -> CountMatrix:  # fmt: skip
    """Return the counts of an AnnData object; refuse logarithms of counts.

    Counts in a file, or in a dask array, are read block by block. If `data_weights` is "nan", NaN
    are missing entries.
    """
    counts = open_counts(
        adata, layer=layer, raw=raw, integer="allow", subject=subject, in_memory=False,
        memory_limit=memory_limit, nan=isinstance(data_weights, str) and data_weights == "nan",
    )  # fmt: skip
    if counts.first_fraction is None or integer == "allow":
        return counts
    place = ".raw.X" if raw else ".X" if layer is None else f".layers[{layer!r}]"
    whole = whole_matrices(adata, layer, raw)
    others = [f"{name}, whole numbers" for name in whole]
    check_fractions(counts, integer, subject + place, others, _remedy(whole))
    return counts


def _remedy(whole: list[str]) -> str:
    if not whole:
        return (
            "No layer and no raw holds whole numbers: keep the counts before normalising, by "
            "adata.layers['counts'] = adata.X.copy()."
        )
    choices = [
        "raw=True" if name == "raw/X" else f"layer={name.removeprefix('layers/')!r}"
        for name in whole if name != "X"
    ]  # fmt: skip
    if "X" in whole:
        choices.insert(0, "neither layer nor raw, for adata.X")
    are = ", which holds" if len(choices) == 1 else ", which hold"
    return f"Pass {' or '.join(choices)}{are} whole numbers."


def selected(counts: CountMatrix, obs: Array | None, var: Array | None) -> CountMatrix:
    """Return the counts of the observations and variables in two masks; None means all."""
    if var is not None:
        counts = select_columns(counts, np.flatnonzero(var))
    if obs is not None:
        part, taken = PartOfCounts(counts, np.flatnonzero(obs)), counts.columns_taken
        counts = FileCounts(part) if counts.from_file else part.in_memory()
        counts.columns_taken = taken
    return counts


def with_features_of(model: Any, counts: CountMatrix) -> CountMatrix:
    """Return the counts of the variables that a fit has, in their own order."""
    var = features_in(model, counts)
    return selected(counts, None, None if var.all() else var)


def features_in(model: Any, counts: CountMatrix) -> Array:
    """Return a mask of the features of counts that a fit has, by name and modality."""
    names, other = name_array(names_of(model, 1)), name_array(counts.feature_names)
    modalities = getattr(model, "modalities_", None)
    if modalities is not None and counts.modalities is not None:
        names, other = with_modality(names, modalities), with_modality(other, counts.modalities)
    of_fit = set(names)
    return np.array([name in of_fit for name in other])


def weights_of(adata: Any, data_weights: Any, counts: CountMatrix, raw: bool) -> Any:
    """Return weights of the entries of all observations and variables.

    They are given as the name of a layer, "nan" or an array; `counts` are those of `adata`.
    """
    if not isinstance(data_weights, str):
        return data_weights
    if data_weights == "nan":
        return counts.nan_entries
    if data_weights not in adata.layers:
        layers = ", ".join(repr(name) for name in adata.layers if name is not None) or "none"
        raise ValueError(
            f"data_weights={data_weights!r} is neither 'nan' nor a layer of adata; its layers: "
            f"{layers}."
        )
    if raw:
        raise ValueError(
            f"data_weights={data_weights!r} is a layer, and raw=True chooses adata.raw.X, "
            "which has other "
            "variables: give an array with a column for each of these."
        )
    weights = adata.layers[data_weights]
    return weights.compute() if hasattr(weights, "compute") else weights


def of_fit(params: Mapping[str, Any], layer: Any, raw: Any) -> dict[str, Any]:
    """Return the choice of a matrix: as given, or by default that of the fit."""
    if layer is None and raw is None:
        layer, raw = params.get("layer"), params.get("raw", False)
    raw = raw if isinstance(raw, Mapping) else bool(raw)
    choice = {"layer": layer, "raw": raw}
    several = {"mod": list(params["mod"]), "modality_weights": "counts"} if "mod" in params else {}
    return choice | several
