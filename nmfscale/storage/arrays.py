"""Arrays and text with checksums, as the HDF5 files of this package store them.

Each dataset has an attribute ``checksum``: the CRC-32 of ``repr((path, type, shape))`` in ASCII,
such as ``('/values/times', '<i8', (67,))``, followed by the values in C order.  So a dataset that
was moved, reshaped or converted to another type does not match its checksum.  Files of earlier
formats have an attribute ``crc32`` instead, the CRC-32 of the values alone.

Names are a group: ``text`` holds all names in UTF-8, one after the other, and ``ends`` the position
in it where each name ends.  If not all names are text, ``json`` replaces ``text``: each name is a
JSON value, where bytes are ``{"bytes": "..."}`` in Latin-1, tuples ``{"tuple": [...]}`` and dates
``{"date": "..."}`` in ISO 8601; other objects are stored as their text.
Earlier formats store names as a dataset of text with the fixed length of the longest name.  HDF5
stores text of variable length without a checksum: damage there would change the text unnoticed, or
hang HDF5.
"""

from __future__ import annotations

import errno
import io
import json
import zipfile
import zlib
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.names import plain
from .atomic import atomic_write
from .hdf5 import checked_dataset, find, is_group, need

Array = NDArray[Any]
Arrays = dict[str, Array]
# Text with invalid UTF-8 is read exactly as it was written.
_UTF_8 = "utf-8", "surrogateescape"
_BYTE, _PLACE = ("uint8",), ("int64",)


class DamagedFileError(ValueError):
    """A file of this package is not as it was written: parts are missing or differ."""

    __module__ = "nmfscale.errors"


def damaged(group: Any, why: str) -> DamagedFileError:
    """Return the error for damage in the file of a group."""
    return DamagedFileError(f"{group.file.filename} is damaged: {why}")


# Writing --------------------------------------------------------------------------------------


def crc_of_header(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the checksum of a dataset's path, type and shape: the start of its full checksum."""
    kind = dtype.descr if dtype.names else dtype.str
    return zlib.crc32(
        repr((path, kind, tuple(map(int, shape)))).encode("ascii", "backslashreplace")
    )


def _crc(array: Array, start: int) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)


def put(group: Any, name: str, array: Any) -> Any:
    """Write an array, or a number, with its checksum; return the dataset."""
    array = np.asarray(array, order="C")
    dataset = group.create_dataset(name, data=array)
    start = crc_of_header(dataset.name, dataset.dtype, dataset.shape)
    dataset.attrs["checksum"] = _crc(array, start)
    return dataset


def put_names(group: Any, name: str, names: Array) -> None:
    """Write an array of names, of any shape, type and length."""
    values = names.ravel().tolist()
    all_text = all(isinstance(value, str) for value in values)
    text = [
        (str(value) if all_text else json.dumps(_encoded(value))).encode(*_UTF_8)
        for value in values
    ]
    put(group, f"{name}/{'text' if all_text else 'json'}", np.frombuffer(b"".join(text), np.uint8))
    ends = np.cumsum([len(value) for value in text], dtype=np.int64)
    put(group, f"{name}/ends", ends.reshape(names.shape))


def _encoded(name: Any) -> Any:
    """Encode a name as a JSON value."""
    name = plain(name)
    if name is None or isinstance(name, str | int | float):
        return name
    if isinstance(name, bytes):
        return {"bytes": name.decode("latin-1")}
    if isinstance(name, tuple):
        return {"tuple": [_encoded(part) for part in name]}
    if isinstance(name, datetime):
        return {"date": name.isoformat()}
    return str(name)


def _decoded(value: Any) -> Any:
    """Decode a name that `_encoded` has encoded."""
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    if kind == "tuple":
        return tuple(map(_decoded, content))
    return content.encode("latin-1") if kind == "bytes" else datetime.fromisoformat(content)


def put_text(group: Any, name: str, text: str) -> None:
    """Write text of any length as bytes."""
    put(group, name, np.frombuffer(text.encode(*_UTF_8), np.uint8))


def put_json(group: Any, name: str, value: Any) -> None:
    """Write a JSON value as bytes."""
    put_text(group, name, json.dumps(value))


# Reading --------------------------------------------------------------------------------------


def located(
    group: Any, name: str, shape: tuple[int | None, ...] | None = None,
    types: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Return a dataset after checking that it lies in the file, is contiguous, and has this form.

    None in `shape` accepts an axis of any size. `types` are names of dtypes, or kinds such as "S".
    """
    try:
        dataset = need(group, name)
        if getattr(dataset, "chunks", None):
            raise damaged(group, f"{name} is not contiguous")
        checked_dataset(dataset)
    except DamagedFileError:
        raise
    except (AttributeError, KeyError, TypeError) as error:
        raise damaged(group, f"{name}: {error.args[0]}") from error
    except ValueError as error:
        raise damaged(group, f"{name} is not in the file itself: {error}") from error
    dtype = dataset.dtype
    if dtype.hasobject:
        raise damaged(group, f"{name} is of variable length")
    if types and not {dtype.kind, dtype.name if dtype.isnative else ""}.intersection(types):
        raise damaged(group, f"{name} is of type {dtype}, not {' or '.join(types)}")
    if shape is not None and (
        len(shape) != len(dataset.shape)
        or any(n not in (None, size) for n, size in zip(shape, dataset.shape, strict=True))
    ):
        expected = str(shape).replace("None", "any")
        raise damaged(group, f"{name} has shape {dataset.shape}, not {expected}")
    return dataset


def checksum_of(dataset: Any) -> tuple[int, int]:
    """Return a dataset's stored checksum, and the checksum from which that of its values starts."""
    if "checksum" in dataset.attrs:
        start = crc_of_header(dataset.name, dataset.dtype, dataset.shape)
        return int(read_attribute(dataset, "checksum")), start
    return int(read_attribute(dataset, "crc32")), 0


def read_checked(
    group: Any, name: str, shape: tuple[int | None, ...] | None = None,
    types: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Read an array or a number, and verify its checksum; parameters are as in `located`."""
    dataset = located(group, name, shape, types)
    expected, start = checksum_of(dataset)
    values = dataset[...]
    if _crc(values, start) != expected:
        raise damaged(group, f"the checksum of {name} differs")
    return values[()]


def read_names(group: Any, name: str, shape: tuple[int | None, ...] | None = None) -> Array:
    """Read names that `put_names` has written, as an array of objects."""
    if not is_group(find(group, name)):
        names = read_checked(group, name, shape, ("S",))
        return np.asarray(np.char.decode(names, *_UTF_8)).astype(object)
    ends = read_checked(group, f"{name}/ends", shape, _PLACE)
    all_text = find(group, f"{name}/json") is None
    text = bytes(read_checked(group, f"{name}/{'text' if all_text else 'json'}", (None,), _BYTE))
    cuts = np.append(0, ends)
    if np.any(np.diff(cuts) < 0) or cuts[-1] != len(text):
        raise damaged(group, f"{name}/ends does not divide its text into names")
    values = [text[a:b].decode(*_UTF_8) for a, b in pairwise(cuts.tolist())]
    if not all_text:
        try:
            values = [_decoded(json.loads(value)) for value in values]
        except (AttributeError, RecursionError, StopIteration, TypeError, ValueError) as error:
            raise damaged(group, f"{name}/json has a value that is not a name: {error}") from error
    names = np.fromiter(values, object, len(values))
    return names.reshape(np.shape(ends))


def read_text(group: Any, name: str) -> str:
    """Read text that `put_text` has written."""
    return bytes(read_checked(group, name, (None,), _BYTE)).decode(*_UTF_8)


def read_json(group: Any, name: str) -> dict[str, Any]:
    """Read a JSON object that `put_json` has written."""
    try:
        content = json.loads(read_text(group, name))
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(group, f"{name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise damaged(group, f"{name} is not a JSON object")
    return content


def read_attribute(node: Any, name: str, kinds: str = "iu", shape: tuple[int, ...] = ()) -> Any:
    """Read an attribute, by default an integer; text of variable length is never read."""
    if name not in node.attrs:
        raise damaged(node, f"{node.name} has no attribute {name}")
    attribute = node.attrs.get_id(name)
    if kinds == "S" and attribute.dtype.kind != "S":
        raise damaged(node, f"{name} is not text of fixed length, as this version writes it")
    if attribute.dtype.kind not in kinds or attribute.shape != shape:
        raise damaged(node, f"the attribute {name} of {node.name} has another type or shape")
    value = node.attrs[name]
    return value.decode(*_UTF_8) if kinds == "S" else value


def save_arrays(target: Path, arrays: Arrays) -> None:
    """Write arrays with checksums to a file that appears complete or not at all."""
    with atomic_write(target, durable=False) as part, part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_arrays(path: str) -> Arrays:
    """Read arrays from a file whose every byte is covered by a checksum."""
    try:
        with zipfile.ZipFile(path) as file:
            if any(member.comment for member in file.infolist()):
                raise ValueError("its list of arrays has comments")
            contents = {
                member.filename: io.BytesIO(file.read(member)) for member in file.infolist()
            }
        return {
            name.removesuffix(".npy"): np.lib.format.read_array(content, allow_pickle=False)
            for name, content in contents.items()
        }
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a negative offset
            raise
        raise DamagedFileError(f"{path} is damaged: {error}") from error
