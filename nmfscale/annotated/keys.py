"""Keys of fits in AnnData objects: the places that they name, and what they may not replace."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..counts.names import shown
from ..readers.objects import is_mudata
from ..storage.hdf5 import text_of
from ..storage.plain import JSON

KEY = "topics"
# A column of the table of observations.
FITTED = "fitted"


def loadings_place(key: str) -> str:
    """Return the place of the loadings in obsm."""
    return f"X_{key}"


def explained_place(key: str) -> str:
    """Return the column of obs and var with the share of the deviance that a fit removes."""
    return f"{key}_explained"


def leading_place(key: str) -> str:
    """Return the column of obs with the name of the leading topic of each observation."""
    return f"{key}_leading"


def samples_place(key: str) -> str:
    """Return the place in obsm of the table with a row for each observation."""
    return f"{key}_samples"


def places_of(key: str) -> list[tuple[str, str]]:
    """Return all places of a fit with a key: those that it has, and those of other models."""
    return [
        ("uns", key), ("obsm", loadings_place(key)), ("obsm", samples_place(key)), ("varm", key),
        *outdated(key),
    ]  # fmt: skip


def outdated(key: str) -> list[tuple[str, str]]:
    """Return places of an earlier fit with a key that a new fit does not necessarily overwrite."""
    places = [("obsm", place) for place in _places_of_rows(key)]
    return [
        *places, ("obs", leading_place(key)), ("obs", explained_place(key)),
        ("var", explained_place(key)),
    ]  # fmt: skip


def _places_of_rows(key: str, model: str | None = None) -> list[str]:
    """Return the places in obsm of attributes with rows, of one class or of all."""
    from ..models import MODELS, CountModel
    from ..models.registry import model_class

    kind = None if model is None else model_class(model)
    kinds = [*MODELS.values(), *CountModel.of_others.values()] if kind is None else [kind]
    names = {name for kind in kinds for name, axes in kind.array_axes.items() if axes == "nk"}
    return [f"{key}_{name.rstrip('_')}" for name in sorted(names)]


# Checks before anything is written ------------------------------------------------------------


def check_key(key: Any, argument: str = "key_added") -> str:
    """Return the key of new results; refuse text that no part of a file can have as its name."""
    if not isinstance(key, str) or key in ("", ".", "..") or "/" in key or not key.isprintable():
        raise ValueError(
            f"{argument}={shown(key)}: the key must be text without '/' and control characters, "
            "and neither '.' nor '..'."
        )
    return key


def checked_key(adata: Any, key: Any, argument: str = "key_added") -> str:
    """Return the key of a new fit; refuse one with which anything else would be lost."""
    check_key(key, argument)

    def part_of(name: str) -> Any:
        # var of a MuData object has copies of the columns of its modalities
        return {} if name == "var" and is_mudata(adata) else getattr(adata, name)

    check_replaced(part_of, key, "adata", argument)
    return key


def check_replaced(part_of: Callable[[str], Any], key: str, where: str, argument: str) -> None:
    """Refuse a key if a fit with it would replace or delete what is not part of such a fit.

    ``part_of("obsm")`` returns a part of an AnnData object, in memory or in a file.
    """
    entry = part_of("uns").get(key)
    for part, name in places_of(key):
        if name in part_of(part) and not _is_part_of_fit(part, name, part_of(part), key, entry):
            raise ValueError(
                f"{argument}={key!r}: {where}.{part}[{name!r}] is not part of a fit of nmfscale "
                f"with this key, and would be lost: choose another key, or rename or delete it."
            )


def check_explained(adata: Any, key: str) -> None:
    """Refuse to replace columns with the names of those of the deviance that a fit removes."""
    name = explained_place(key)
    tables = {"adata.obs": adata.obs, "adata.var": adata.var}
    if is_mudata(adata):
        of_each = {f"mdata[{label!r}].var": part.var for label, part in adata.mod.items()}
        tables = {"mdata.obs": adata.obs} | of_each
    for place, table in tables.items():
        if name in table and "topic_quality" not in adata.uns[key]:
            raise ValueError(
                f"key={key!r}: {place}[{name!r}] was not written by nmfscale, and would be "
                "lost: rename or delete it."
            )


def checked_result_key(adata: Any, key: Any, argument: str = "key_added") -> str:
    """Return the key of a result that belongs to no fit; refuse one that something else has."""
    check_key(key, argument)
    if key in adata.uns and "record" not in _json_of(adata.uns[key]):
        raise ValueError(
            f"{argument}={key!r}: adata.uns[{key!r}] is not a result of this function, and would "
            "be lost: choose another key, or rename or delete it."
        )
    return key


def state_of_fit(entry: Any) -> dict[str, Any] | None:
    """Return the JSON of the model of a complete fit, which is all that counts as one, or None.

    `entry` is what ``uns`` has, in memory or in a file.
    """
    parts = "params", "topic_names", "version", "model"
    if not isinstance(entry, Mapping) or not all(part in entry for part in parts):
        return None
    state = _json_of(entry["model"]).get("dict")
    is_whole = isinstance(state, dict) and {"class", "parameters", "fitted"} <= state.keys()
    return state if is_whole else None


def is_result(entry: Any) -> bool:
    """Whether a value in ``uns`` is a fit, or a result that belongs to no fit."""
    return state_of_fit(entry) is not None or "record" in _json_of(entry)


def _json_of(value: Any) -> dict[str, Any]:
    """Return the JSON object of a value that `to_plain` has made; that of others is empty."""
    if not isinstance(value, Mapping) or JSON not in value:
        return {}
    text = value[JSON]
    text = text[()] if hasattr(text, "shape") else text
    try:
        content = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _labels_in(column: Any) -> set[str]:
    """Return the labels in a column of obs, in memory or in a file."""
    if isinstance(column, Mapping) and "categories" in column:
        column = column["categories"]
    values = column.dropna().unique() if hasattr(column, "dropna") else column[()]
    return {text_of(value) for value in np.atleast_1d(values)}


def _is_part_of_fit(part: str, name: str, values: Any, key: str, entry: Any) -> bool:
    """Whether what a part has with a name belongs to the fit that ``uns`` has with a key."""
    state = state_of_fit(entry)
    if state is None or part == "uns":
        return state is not None
    if name == leading_place(key):
        return _labels_in(values[name]) <= {text_of(topic) for topic in entry["topic_names"]}
    if part in ("obs", "var"):
        return "topic_quality" in entry
    if name == samples_place(key):
        return FITTED in values[name]
    if name in (loadings_place(key), key):
        return tuple(getattr(values[name], "shape", ()))[1:] == (len(entry["topic_names"]),)
    return name in _places_of_rows(key, state["class"])
