"""Fits to several modalities of a MuData object, which the object itself holds.

Loadings and results are in ``obsm`` and ``uns`` of the MuData object, as those of other fits in an
AnnData object; topics are in ``varm`` of each modality, with the features of that modality.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.integers import IntegerPolicy
from ..counts.names import names_of, shown, such_as
from ..models.arguments.names import with_modality
from ..readers.objects import is_mudata
from ..readers.open import counts_of_modalities
from ..storage.hdf5 import text_of
from .counts import counts_of, selected, weights_of
from .keys import explained_place, state_of_fit
from .places import masks_of
from .scheme import topics_at

Array = NDArray[Any]


class Chosen(NamedTuple):
    """Chosen counts, weights of the entries of all variables, and a mask of the chosen ones."""

    counts: CountMatrix
    data_weights: Any = None
    var: Array | None = None


def of_each(value: Any, labels: list[str], argument: str) -> dict[str, Any]:
    """Return an argument by modality; a dict has it for some modalities, others have None."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(labels, value)
    if unknown := [name for name in value if name not in labels]:
        raise ValueError(
            f"{argument} has the modality {shown(unknown[0])}, and the fit has {such_as(labels)}."
        )
    return {label: value.get(label) for label in labels}


def chosen_counts(
    adata: Any, *, mod: Any = None, layer: Any = None, raw: Any = False, mask_var: Any = None,
    integer: IntegerPolicy = "warn", memory_limit: Any = None, data_weights: Any = None,
    modality_weights: Any = None,
) -> Chosen:  # fmt: skip
    """Return counts of the chosen variables of an AnnData object.

    Of a MuData object, they are those of all its observations, side by side for the modalities
    `mod`.
    """
    if not is_mudata(adata):
        var = masks_of(adata, None, mask_var, raw)[1]
        counts = counts_of(adata, layer, raw, integer, memory_limit, data_weights)
        weights = weights_of(adata, data_weights, counts, raw)
        return Chosen(selected(counts, None, var), weights, var)
    labels = list(map(str, mod))
    if gone := [label for label in labels if label not in adata.mod]:
        raise ValueError(
            f"the MuData object has no modality {shown(gone[0])}, which is part of the fit: it has "
            f"{such_as(adata.mod)}. Add it again, or fit the others by nmfscale.tl.topics."
        )
    if data_weights is not None:
        raise ValueError(
            "data_weights are for the counts of one modality: leave them out, or join the counts "
            "by join_modalities(..., modality_weights='counts') and fit these."
        )
    if adata.isbacked:
        raise ValueError(
            "the MuData object is backed: fit several modalities of the file by "
            "nmfscale.TopicModel(...).fit(path, modality=[...]), and add the fit by "
            "nmfscale.tl.write_h5ad(model, path); or read it by mudata.read_h5mu(path)."
        )
    layers, raws = of_each(layer, labels, "layer"), of_each(raw, labels, "raw")
    parts = {}
    for label, mask in of_each(mask_var, labels, "mask_var").items():
        part = adata.mod[label]
        var = masks_of(part, None, mask, bool(raws[label]))[1]
        counts = counts_of(
            part, layers[label], bool(raws[label]), integer, memory_limit,
            subject=f"mdata[{label!r}]",
        )  # fmt: skip
        parts[label] = selected(counts, None, var)
    in_memory = not any(part.from_file for part in parts.values())
    joined = counts_of_modalities(
        labels, lambda label, **_: parts[label],
        "information" if modality_weights is None else modality_weights, "outer", {}, in_memory,
        np.asarray(adata.obs_names),
    )  # fmt: skip
    return Chosen(joined)


def mask_of_observations(holder: Any, mod: Any, mask_obs: Any, whole: Any) -> Array | None:
    """Return a mask of the observations of a fit (n_obs,), or None for all of them.

    Observations of a MuData object that have none of the modalities are not part of it.
    """
    obs = masks_of(holder, mask_obs, None, False, whole)[0]
    if not is_mudata(holder):
        return obs
    there = np.zeros(holder.n_obs, bool)
    for label in mod:
        there |= holder.obs_names.isin(holder.mod[label].obs_names)
    there = there if obs is None else there & obs
    return None if there.all() else there


def check_topics_of_each(varm: Mapping[str, Any], entry: Any, key: str, argument: str) -> None:
    """Refuse a key if ``varm`` of a modality has something else with this name.

    `varm` are those of the modalities, `entry` is what ``uns`` has with this key, both in memory or
    in a file.
    """
    earlier = modalities_of_entry(entry)
    for label, held in varm.items():
        if key in held and label not in earlier:
            raise ValueError(
                f"{argument}={key!r}: varm[{key!r}] of {label!r} is not part of a fit of "
                "several modalities with this key, and would be lost: choose another key, or "
                "rename or delete it."
            )


def modalities_of_entry(entry: Any) -> list[str]:
    """Return the modalities of a fit of several, in memory or in a file; none of other fits."""
    of_fit = state_of_fit(entry) is not None and "mod" in entry["params"]
    return list(map(text_of, entry["params"]["mod"][()])) if of_fit else []


def remove_from_each(mdata: Any, key: str) -> None:
    """Remove what an earlier fit with a key has left in its modalities."""
    for label in modalities_of_entry(entry := mdata.uns.get(key)):
        if label not in mdata.mod:
            continue
        part, place = mdata.mod[label], explained_place(key)
        if key in part.varm:
            del part.varm[key]
        if "topic_quality" in entry and place in part.var:
            del part.var[place]


def topics_of_each(model: Any, var_names: Mapping[str, Any]) -> dict[str, Array]:
    """Return topics (n_vars, K) by modality, 0 for variables that were not fitted."""
    names = full_names(names_of(model, 1), model.modalities_)
    place = {name: at for at, name in reversed(list(enumerate(names)))}
    topics = {}
    for label, variables in var_names.items():
        own = full_names(variables, [label] * len(variables))
        topics[label] = topics_at(model, np.array([place.get(name, -1) for name in own], np.intp))
    return topics


def with_measured(model: Any, counts: CountMatrix, fitted: Array) -> tuple[Any, Array]:
    """Return a fit that knows the modalities of all observations, and the panel of each (n_obs,).

    `counts` are those of all observations, `fitted` (n_obs,) marks those of the fit.
    """
    whole = np.ones((1, counts.shape[1]), bool), np.zeros(counts.shape[0], np.intp)
    features, panel = counts.measured or whole
    place = {name: at for at, name in enumerate(full_names(names_of(model, 1), model.modalities_))}
    columns = [place.get(name, -1) for name in full_names(counts.feature_names, counts.modalities)]
    of_fit, there = np.zeros((len(features), len(place)), bool), np.array(columns) >= 0
    of_fit[:, np.array(columns)[there]] = features[:, there]
    model, complete = copy.copy(model), bool(of_fit.all())
    model.measured_, model.panel_ = (None, None) if complete else (of_fit, panel[fitted])
    return model, panel


def keep_of_features(holder: Any, place: str, values: Any, mod: Any) -> None:
    """Write a Series of values by feature to ``var``, with 0 for variables that it lacks."""
    if not is_mudata(holder):
        holder.var[place] = values.reindex(holder.var_names).fillna(0.0).to_numpy()
        return
    for label in mod:
        var = holder.mod[label].var
        own = values.reindex([f"{label}:{name}" for name in var.index]).to_numpy()
        plain = values.reindex(var.index).fillna(0.0).to_numpy()
        var[place] = np.where(np.isnan(own), plain, own)


def full_names(names: Any, modalities: Any) -> list[str]:
    """Return names of features that begin with their modality, if there are modalities."""
    names = np.asarray(names, object)
    if modalities is None:
        return list(names)
    return list(with_modality(names, np.asarray(modalities, object)))
