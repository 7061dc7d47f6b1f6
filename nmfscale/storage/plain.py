"""Values as JSON, with arrays apart: what model files and AnnData objects can hold.

What JSON cannot hold is an object with one key: ``{"tuple": [...]}``, ``{"dict": {...}}``,
``{"items": [[key, value], ...]}`` for a dict with other keys than text,
``{"dtype": "float32"}``, ``{"dataset": place}`` for an array, ``{"names": [place, type]}`` for an
array of text, ``{"table": [place, fields]}`` for a structured array,
``{"labelled": [values, rows]}`` for a Series and ``{"labelled": [values, rows, columns]}`` for a
DataFrame of numbers, and ``{"record": [class, {...}]}`` for a dataclass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Store = Callable[[str, Any, str], None]
_SCALARS = {"bool": bool, "int": int, "float": float, "str": str}
# The name of the JSON text in a dict of plain values.
JSON = "json"
# What the name of an entry of an HDF5 file or a zarr store cannot contain, and escapes themselves.
_RESERVED = re.compile(r"[/\x00-\x1f\x7f]|^\.|^_(?=_)|%(?=[0-9A-F]{2}|-)")
_ESCAPED = re.compile(r"%([0-9A-F]{2}|-)")


def escaped(name: str) -> str:
    """Return text as the name of one entry of a file: "T/NK" as "T%2FNK", empty text as "%-"."""
    return _RESERVED.sub(lambda match: f"%{ord(match[0]):02X}", name) if name else "%-"


def unescaped(name: str) -> str:
    """Return the text that `escaped` has converted."""
    return _ESCAPED.sub(lambda match: "" if match[1] == "-" else chr(int(match[1], 16)), name)


def kind_of(value: Any) -> str:
    """Return how a value is stored: "array", "text", a type of text, ...; "" if it is not."""
    if value is None:
        return "none"
    if type(value) in _SCALARS.values():  # by type: np.bool_ is also called bool
        return type(value).__name__
    if isinstance(value, np.ndarray):
        kinds = [field[0] for field in (value.dtype.fields or {"": (value.dtype,)}).values()]
        if all(field.kind in "biufS" for field in kinds):
            return "array"
        return {"O": "text", "U": value.dtype.str}.get(value.dtype.kind, "")
    return "scalar" if isinstance(value, np.bool_ | np.number) else ""


def is_text(kind: str) -> bool:
    """Whether `kind_of` means an array of text."""
    return kind == "text" or kind.startswith(("<U", ">U"))


class NotPlainError(TypeError):
    """A value is of a type that cannot be encoded."""

    def __init__(self, name: str, value: Any):
        super().__init__(f"{name} is a {type(value).__name__}")
        self.name = name


def encode(
    value: Any, name: str, store: Store, left_out: dict[str, str], *, records: bool = False,
    keep_labels: bool = False, classes: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Return the JSON form of a value; ``store(place, array, kind)`` is called for each array.

    Functions and generators become None and are added to `left_out` with their types. With
    `records`, dataclasses are encoded by their fields, and other unknown objects as their text;
    without, both raise a NotPlainError, except for dataclasses in `classes`, by name. With
    `keep_labels`, a Series or DataFrame of numbers stays one.
    """

    def inner(item: Any, part: Any) -> Any:
        place = f"{name}.{part}" if name else part
        return encode(
            item, place, store, left_out, records=records, keep_labels=keep_labels, classes=classes
        )

    if value is None or isinstance(value, bool | int | float | str):
        # Also converts np.float64, a subclass of float, to what json writes exactly.
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": np.dtype(value).str}
    if isinstance(value, list | tuple):
        items = [inner(item, i) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        # without dots, so that {"a.b": array} and {"a": {"b": array}} have different places
        return {"dict": {key: inner(value[key], escaped(key).replace(".", "%2E")) for key in value}}
    if isinstance(value, dict) and records:
        pairs = enumerate(value.items())
        return {"items": [[inner(key, f"key {i}"), inner(item, i)] for i, (key, item) in pairs]}
    if isinstance(value, np.ndarray) and (kind := kind_of(value)):
        store(name, value, kind)
        if records and value.dtype.names:
            kinds = value.dtype
            return {"table": [name, [[field, kinds[field].str] for field in kinds.names]]}
        return {"names": [name, kind]} if is_text(kind) else {"dataset": name}
    if is_dataclass(value) and (records or type(value).__name__ in (classes or {})):
        names = [member.name for member in fields(value) if member.init]
        return {"record": [type(value).__name__, {n: inner(getattr(value, n), n) for n in names}]}
    if callable(value) or isinstance(value, np.random.RandomState | np.random.Generator):
        left_out[name] = type(value).__name__
        return None
    if keep_labels and _is_labelled(value):
        parts = value.to_numpy(), *map(np.asarray, value.axes)
        return {"labelled": [inner(part, i) for i, part in enumerate(parts)]}
    if records and hasattr(value, "__array__") and kind_of(array := np.asarray(value)):
        return encode(array, name, store, left_out, records=True)  # of pandas
    if records:
        return str(value)
    raise NotPlainError(name, value)


def _is_labelled(value: Any) -> bool:
    """Whether a value is a Series or DataFrame of numbers with a label for each row and column."""
    return (
        hasattr(value, "iloc")
        and value.to_numpy().dtype.kind in "biuf"
        and all(axis.nlevels == 1 and kind_of(np.asarray(axis)) for axis in value.axes)
    )


def decode(
    value: Any, read: Callable[[str, str], Any], classes: Mapping[str, Any] | None = None
) -> Any:
    """Return a value from its JSON form: the inverse of `encode`.

    ``read(place, kind)`` returns an array; `kind` is "array", "table" or a type of text. `classes`
    are the dataclasses by name.
    """
    if isinstance(value, list):
        return [decode(item, read, classes) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items()))
    if tag == "dict":
        return {key: decode(item, read, classes) for key, item in content.items()}
    if tag == "items":
        return dict(decode(content, read, classes))
    if tag == "tuple":
        return tuple(decode(content, read, classes))
    if tag == "record":
        name, members = content
        if name not in (classes or {}):
            raise TypeError(f"it names a class {name!r}, which is no part of a result.")
        arguments = {key: decode(item, read, classes) for key, item in members.items()}
        return (classes or {})[name](**arguments)
    if tag == "dtype":
        return np.dtype(content)
    if tag == "table":
        place, fields = content
        return _structured(read(place, "table"), np.dtype([tuple(field) for field in fields]))
    if tag == "names":
        return read(*content)
    if tag == "labelled":
        import pandas as pd

        values, *labels = decode(content, read, classes)
        return (pd.Series if len(labels) == 1 else pd.DataFrame)(values, *labels)
    return read(content, "array")


def _structured(frame: Any, dtype: np.dtype[Any]) -> Array:
    """Return the columns of a DataFrame as a structured array."""
    records = np.empty(len(frame), dtype)
    for name in dtype.names or ():
        values = np.asarray(frame[name])
        records[name] = np.asarray(values, str) if dtype[name].kind == "S" else values
    return records


def to_plain(value: Any, *, keep_labels: bool = False) -> dict[str, Any]:
    """Return a value as a dict of arrays and DataFrames, and of JSON text for everything else.

    AnnData objects can hold, write and read such a dict. `keep_labels` is that of `encode`.
    """
    parts: dict[str, Any] = {}

    def store(place: str, array: Array, kind: str) -> None:
        if is_text(kind):
            parts[place] = np.array([str(entry) for entry in array.ravel().tolist()], object)
        elif array.dtype.names:
            import pandas as pd

            columns = {name: array[name] for name in array.dtype.names}
            parts[place] = pd.DataFrame(
                {
                    n: column.astype(str) if column.dtype.kind == "S" else column
                    for n, column in columns.items()
                }
            )
        else:
            parts[place] = array

    about = encode(value, "", store, {}, records=True, keep_labels=keep_labels)
    return {JSON: json.dumps(about), **parts}


def from_plain(parts: Mapping[str, Any], classes: Mapping[str, Any]) -> Any:
    """Return the value that `to_plain` has converted; raise a KeyError if a part is missing."""

    def read(place: str, kind: str) -> Any:
        value = parts[place]
        if kind == "table":
            return value
        if kind == "array":
            return np.asarray(value)
        return np.asarray(value, dtype=object if kind == "text" else kind)

    return decode(json.loads(str(parts[JSON])), read, classes)
