"""Where results are kept in AnnData objects, and how they are written and read.

For a fit with the key ``topics``:

- ``obsm["X_topics"]``: loadings (n_obs, K);
- ``obsm["topics_samples"]``: a DataFrame of what a fit knows of each observation: whether it was
  part of the fit, the total of its counts, ...;
- ``obs["topics_leading"]``: the name of the leading topic of each observation;
- ``varm["topics"]``: topics (n_vars, K), 0 for variables that were not part of the fit;
- ``uns["topics"]``: ``params``, ``topic_names``, ``seed``, ``version``, ..., the dict ``model``,
  from which the estimator is made again, and the results of tools by their names, with seeds also
  ``seed_shares``.

All of it are arrays, DataFrames, numbers, text, or dicts of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import names_of, plain, such_as
from ..inference.features.seed_shares import seed_shares
from ..models.registry import PARAMETERS, model_class
from ..models.topics.topics import topic_names_of
from ..readers.objects import table_of_samples
from ..storage.plain import escaped, from_plain, kind_of, to_plain, unescaped
from ..storage.version import package_version
from .keys import (
    FITTED,
    leading_place,
    loadings_place,
    outdated,
    samples_place,
    state_of_fit,
)
from .places import is_object, only_modality

Array = NDArray[Any]
# Results that belong to a fit: those of groups are dicts by the column of the groups.
OF_GROUPS = (
    "permutation_test", "group_effects", "bootstrap_weights", "correspondence_analysis",
    "condition_features", "features_by_group",
)  # fmt: skip
OF_A_FIT = (
    "batch_effects", "differential_features", "enrichment", "score_modalities", "seed_shares",
    "topic_hierarchy", "topic_quality",
    *OF_GROUPS,
)  # fmt: skip
# Attributes with positions of samples, which change with the observations of an object.
_POSITIONS = {"empty_samples_"}


# Writing --------------------------------------------------------------------------------------


def check_readable(model: Any) -> None:
    """Refuse a model whose class `read_model` would not find, before it is fitted."""
    name = type(model).__name__
    if model_class(name) is not type(model):
        raise TypeError(
            f"model is a {name} of {type(model).__module__}, and another model has this name, so "
            "that the fit could not be read: give your class a name of its own; if you defined it "
            "again, make the model anew."
        )


def parts_of_fit(
    model: Any, loadings: Array, fitted: Array, totals: Array, obs_names: Any,
    params: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return what is kept of a fit, by part of the object ("obsm", ...), with names without key.

    `loadings` (n_obs, K) and `totals` (n_obs,) are those of all observations, `fitted` (n_obs,)
    marks those of the fit.
    """
    import pandas as pd

    table = {FITTED: fitted, "sample_totals": totals}
    obsm: dict[str, Any] = {"X_{}": loadings}
    for name in _of_samples(model):
        value = getattr(model, name, None)
        if value is None or name in ("loadings_", "sample_names_", "sample_totals_"):
            continue
        values = np.zeros((len(fitted), *value.shape[1:]), value.dtype)
        if fitted.any():
            values[fitted] = value
            if values.ndim == 1:
                table[name.rstrip("_")] = values
            else:
                obsm[f"{{}}_{name.rstrip('_')}"] = values
    obsm["{}_samples"] = pd.DataFrame(table, index=pd.Index(obs_names))
    return {
        "obs": {leading_place("{}"): leading_topics(model, loadings, totals)}, "obsm": obsm,
        "uns": {"{}": _entry(model, params)},
    }  # fmt: skip


def topics_at(model: Any, columns: Array) -> Array:
    """Return topics (n_vars, K); `columns` (n_vars,) has the feature of each variable, or -1."""
    topics = np.zeros((len(columns), len(model.components_)), model.components_.dtype)
    topics[columns >= 0] = model.components_.T[columns[columns >= 0]]
    return topics


def leading_topics(model: Any, loadings: Array, totals: Array) -> Any:
    """Return the name of the topic with the largest share of each observation, as a categorical.

    It is missing where there are no counts. Topics that lead nowhere are no categories: scanpy
    cannot draw groups without observations.
    """
    import pandas as pd

    shares = loadings * np.asarray(model.components_, np.float64).sum(axis=1)
    names = topic_names_of(model, len(model.components_))
    codes = np.where((totals > 0) & (shares.max(axis=1) > 0), shares.argmax(axis=1), -1)
    return pd.Categorical.from_codes(codes, names).remove_unused_categories()


def _of_samples(model: Any) -> list[str]:
    """Return the names of the attributes with a value for each sample."""
    return [name for name, axes in model._all_axes().items() if axes[0] == "n"]


def _entry(model: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what uns keeps of a fit."""
    of_samples = set(_of_samples(model))
    fitted = {
        name: None if name in of_samples else value for name, value in vars(model).items()
        if name.endswith("_") and not name.startswith("_") and name not in _POSITIONS
        and kind_of(value)
    }  # fmt: skip
    state = {
        "class": type(model).__name__, "parameters": model.get_params(deep=False),
        "fitted": fitted,
    }  # fmt: skip
    about = {"version": package_version(), "seed": getattr(model, "seed_", None)}
    for name in ("converged_", "stop_reason_", "n_iter_", "loglik_", "elbo_", "loss_"):
        about[name.rstrip("_")] = getattr(model, name, None)
    names = np.array(topic_names_of(model, len(model.components_)), dtype=object)
    of_seeds = {}
    if getattr(model, "seeds", None) is not None:
        with suppress(FileNotFoundError):  # of the file with the seeds, after the fit
            of_seeds["seed_shares"] = to_plain(seed_shares(model))
    return {
        "params": _simple(params | model.get_params(deep=False)), "topic_names": names,
        **_simple(about), "model": to_plain(state, keep_labels=True), **of_seeds,
    }  # fmt: skip


def _simple(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers, booleans and texts among values, and arrays and dicts of texts."""
    converted = {name: plain(value) for name, value in values.items()}
    return {
        name: value for name, value in converted.items()
        if isinstance(value, bool | float | str | dict) or _in_64_bits(value)
        or isinstance(value, np.ndarray) and value.dtype == object
    }  # fmt: skip


def _in_64_bits(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def keep(adata: Any, key: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the parts of a fit to an AnnData object; results of an earlier fit are removed."""
    for part, name in outdated(key):
        held = getattr(adata, part)
        if name in held:
            del held[name]
    for part, values in parts.items():
        for name, value in values.items():
            getattr(adata, part)[name.format(key)] = value


def keep_result(adata: Any, key: str, value: Any, *place: str) -> None:
    """Write a result to uns: ``uns[key][place[0]]``, or a dict inside it.

    A column of groups may have any name, which is escaped, so that files can hold it.
    """
    parts = entry_of(adata, key) if place else adata.uns
    names = [escaped(name) for name in place] or [key]
    for name in names[:-1]:
        parts = parts.setdefault(name, {})
    parts[names[-1]] = to_plain(value)


# Reading --------------------------------------------------------------------------------------


def entry_of(adata: Any, key: str, path: Path | None = None) -> Any:
    """Return what uns keeps of the fit with a key; `path` is the file if `adata` is in one."""
    entry = adata.uns.get(key)
    if not isinstance(entry, Mapping) or "model" not in entry:
        others = [name for name, value in adata.uns.items() if state_of_fit(value) is not None]
        existing = f"there are {', '.join(map(repr, others))}" if others else "there is no other"
        joined = ""
        if loadings_place(key) in adata.obsm:
            joined = "; anndata.concat keeps uns of its objects only with uns_merge='same'"
        where, tool = "adata.uns", "nmfscale.tl.topics(adata, ...)"
        if path is not None:
            where, tool = f"{path}: uns", f"nmfscale.tl.write_h5ad(model, {str(path)!r})"
        raise ValueError(f"{where} has no fit {key!r}: {existing}{joined}. {tool} adds one.")
    return entry


def read_loadings(adata: Any, key: str) -> Array:
    """Return the loadings of all observations."""
    place = loadings_place(key)
    if place not in adata.obsm:
        keys = [name.removeprefix("X_") for name in adata.uns if loadings_place(name) in adata.obsm]
        there = f"; there are those of {', '.join(map(repr, keys))}" if keys else ""
        raise ValueError(
            f"adata.obsm has no {place!r}{there}: nmfscale.tl.topics(adata, ...) or "
            "nmfscale.tl.transform(adata, reference) adds loadings."
        )
    return np.asarray(adata.obsm[place])


def names_of_topics(adata: Any, key: str, n_topics: int) -> list[str]:
    """Return the names of the topics of a fit, by default "topic 0", "topic 1", ..."""
    entry = adata.uns.get(key)
    names = entry.get("topic_names") if isinstance(entry, Mapping) else None
    if names is None or len(names) != n_topics:
        return [f"topic {topic}" for topic in range(n_topics)]
    return [str(name) for name in names]


def read_model(adata: Any, key: str, every: bool = False) -> Any:
    """Return the estimator of a fit, with loadings of the observations that adata has.

    These are the observations of the fit; or all, if none of them was part of it, or with `every`.
    """
    entry = entry_of(adata, key)["model"]
    try:
        state = from_plain(entry, PARAMETERS)
        if (kind := model_class(state["class"])) is None:
            raise ValueError(
                f"adata.uns[{key!r}] holds a {state['class']}, a model that this nmfscale does not "
                "have: if another package defines it, install or import that first."
            )
    except KeyError as error:
        raise ValueError(
            f"adata.uns[{key!r}]['model'] lacks {error}: it is that of a different version, or "
            "objects with different fits were joined. Fit again, or keep the model in a file by "
            "model.save(path)."
        ) from None
    model = kind(**state["parameters"])
    for name, value in state["fitted"].items():
        setattr(model, name, value)
    names = names_of_topics(adata, key, len(model.components_))
    if names != topic_names_of(model, len(names)):
        model.topic_names_ = np.array(names, object)
    loadings, table = read_loadings(adata, key), adata.obsm.get(samples_place(key))
    fitted = np.zeros(len(loadings), bool) if table is None else np.asarray(table[FITTED], bool)
    kept = fitted if fitted.any() and not every else np.ones(len(loadings), bool)
    model.loadings_ = np.ascontiguousarray(loadings[kept])
    model.sample_names_ = np.asarray(names_of(adata))[kept]
    model.obs_ = table_of_samples(adata, np.flatnonzero(kept))() or None
    known = {"sample_totals_"}
    if "mod" in adata.uns[key]["params"]:  # every observation has its modalities
        known.add("panel_")
        if not np.asarray(table["sample_totals"])[kept & ~fitted].any():
            # samples without counts have size 0, and may have any batch
            known.update(name for name, axes in model._all_axes().items() if axes == "n")
    for name in _of_samples(model):
        if not fitted[kept].all() and name not in known:
            continue  # known for the observations of the fit only
        short = name.rstrip("_")
        if table is not None and short in table:
            setattr(model, name, np.asarray(table[short])[kept])
        elif f"{key}_{short}" in adata.obsm:
            setattr(model, name, np.asarray(adata.obsm[f"{key}_{short}"])[kept])
    if "panel_" in known and model.panel_ is not None:
        used, model.panel_ = np.unique(model.panel_, return_inverse=True)
        model.measured_ = model.measured_[used]
    return model


def read_fit(adata: Any, key: str) -> Any:
    """Return the model of a fit with loadings of all observations, or only their table.

    Objects that were joined without ``uns`` have loadings, but no model.
    """
    if key in adata.uns or loadings_place(key) not in adata.obsm:
        return read_model(adata, key, every=True)
    return read_table(adata, key)


def model_in(source: Any, key: str) -> Any:
    """Return the model of a fit in an AnnData object, or its loadings; other arguments unchanged.

    The model has loadings of all observations.
    """
    return read_fit(only_modality(source), key) if is_object(source) else source


def read_table(adata: Any, key: str) -> Any:
    """Return the loadings of all observations as a DataFrame with names of topics."""
    import pandas as pd

    loadings = read_loadings(adata, key)
    names = names_of_topics(adata, key, loadings.shape[1])
    return pd.DataFrame(loadings, index=adata.obs_names, columns=names)


def names_of_groups(adata: Any, key: str, tool: str) -> str:
    """Return the only column of groups that a tool was used with."""
    results = entry_of(adata, key).get(tool, {})
    if not results:
        raise ValueError(f"adata.uns[{key!r}] has no {tool!r}: nmfscale.tl.{tool} adds it.")
    if len(results) > 1:
        columns = such_as(map(unescaped, results))
        raise ValueError(f"groupby is needed: {tool} has results for {columns}.")
    return unescaped(next(iter(results)))


def read_result(adata: Any, key: str, *place: str) -> Any:
    """Return a result that `keep_result` has written."""
    parts: Any = entry_of(adata, key) if place else adata.uns
    where, tool = f"adata.uns[{key!r}]" if place else "adata.uns", [*place, key][0]
    for name in place or (key,):
        at = escaped(name) if place else name
        if not isinstance(parts, Mapping) or at not in parts:
            results = [part for part in parts if name != tool and isinstance(parts[part], Mapping)]
            there = f"; it has {such_as(map(unescaped, results))}" if results else ""
            raise ValueError(f"{where} has no {name!r}{there}: nmfscale.tl.{tool} adds it.")
        parts, where = parts[at], f"{where}[{at!r}]"
    from ..inference.results.files import result_classes

    return from_plain(parts, result_classes())
