"""What the HDF5 files of ours have in common: checked arrays, and text under checksums.

Each dataset has an attribute ``checksum``: the CRC-32 of ``repr((path, type, shape))`` in ASCII,
such as ``('/values/times', '<i8', (67,))``, followed by the values in the order of C.  So what was
moved, reshaped or given another type is told from what was written.  Files of earlier formats have
``crc32`` instead, which is of the values alone.

Names are a group: ``text``, all names as one run of UTF-8, and ``ends``, where each ends in it.
Names that are not all text have ``json`` in place of ``text``: each name is a JSON value, where
bytes are ``{"bytes": "..."}`` in Latin-1, tuples ``{"tuple": [...]}`` and dates ``{"date": "..."}``
in ISO 8601; what else there may be is its text.
Earlier formats have a dataset, with as many bytes for each name as the longest needs.  HDF5 keeps
text of variable length where it has no checksum: damage there is read as other text, or HDF5 never
comes back from it.
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
# Text that is no UTF-8 comes back as it was.
_UTF_8 = "utf-8", "surrogateescape"
_BYTE, _PLACE = ("uint8",), ("int64",)


class DamagedFileError(ValueError):
    """A file of ours is not as it was written: parts are missing, or are others."""


def damaged(group: Any, why: str) -> DamagedFileError:
    """Return what to raise when something is wrong in the file of a group."""
    return DamagedFileError(f"{group.file.filename} is damaged: {why}")


# Writing --------------------------------------------------------------------------------------


def crc_of_header(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the checksum of a dataset's path, type and shape, with which that of values begins."""
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
    """Write names of any shape and type, as long as each of them is."""
    values = names.ravel().tolist()
    of_text = all(isinstance(each, str) for each in values)
    text = [
        (str(each) if of_text else json.dumps(_encoded(each))).encode(*_UTF_8) for each in values
    ]
    put(group, f"{name}/{'text' if of_text else 'json'}", np.frombuffer(b"".join(text), np.uint8))
    ends = np.cumsum([len(each) for each in text], dtype=np.int64)
    put(group, f"{name}/ends", ends.reshape(names.shape))


def _encoded(name: Any) -> Any:
    """Return a form of a name that JSON can hold."""
    name = plain(name)
    if name is None or isinstance(name, str | int | float):
        return name
    if isinstance(name, bytes):
        return {"bytes": name.decode("latin-1")}
    if isinstance(name, tuple):
        return {"tuple": [_encoded(each) for each in name]}
    if isinstance(name, datetime):
        return {"date": name.isoformat()}
    return str(name)


def _decoded(value: Any) -> Any:
    """Undo `_encoded`."""
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
    """Write what JSON can hold, as bytes."""
    put_text(group, name, json.dumps(value))


# Reading --------------------------------------------------------------------------------------


def located(
    group: Any, name: str, shape: tuple[int | None, ...] | None = None,
    types: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Return a dataset that is in the file itself, in one piece, and of this shape and type.

    An axis of any size is None in `shape`; `types` are types, or their kinds as in "S".
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
    """Return the checksum that a dataset was written with, and that of what precedes its values."""
    if "checksum" in dataset.attrs:
        start = crc_of_header(dataset.name, dataset.dtype, dataset.shape)
        return int(read_attribute(dataset, "checksum")), start
    return int(read_attribute(dataset, "crc32")), 0


def read_checked(
    group: Any, name: str, shape: tuple[int | None, ...] | None = None,
    types: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Read an array, or a number, that is as it was written; see `located`."""
    dataset = located(group, name, shape, types)
    expected, start = checksum_of(dataset)
    values = dataset[...]
    if _crc(values, start) != expected:
        raise damaged(group, f"the checksum of {name} differs")
    return values[()]


def read_names(group: Any, name: str, shape: tuple[int | None, ...] | None = None) -> Array:
    """Read names that were written with `put_names`, as an array of objects."""
    if not is_group(find(group, name)):
        names = read_checked(group, name, shape, ("S",))
        return np.asarray(np.char.decode(names, *_UTF_8)).astype(object)
    ends = read_checked(group, f"{name}/ends", shape, _PLACE)
    of_text = find(group, f"{name}/json") is None
    text = bytes(read_checked(group, f"{name}/{'text' if of_text else 'json'}", (None,), _BYTE))
    places = np.append(0, ends)
    if np.any(np.diff(places) < 0) or places[-1] != len(text):
        raise damaged(group, f"{name}/ends are no places in its text")
    found = [text[a:b].decode(*_UTF_8) for a, b in pairwise(places.tolist())]
    if not of_text:
        try:
            found = [_decoded(json.loads(each)) for each in found]
        except (AttributeError, RecursionError, StopIteration, TypeError, ValueError) as error:
            raise damaged(group, f"{name}/json holds what is no name: {error}") from error
    names = np.fromiter(found, object, len(found))
    return names.reshape(np.shape(ends))


def read_text(group: Any, name: str) -> str:
    """Read text that was written with `put_text`."""
    return bytes(read_checked(group, name, (None,), _BYTE)).decode(*_UTF_8)


def read_json(group: Any, name: str) -> dict[str, Any]:
    """Read an object that was written with `put_json`."""
    try:
        found = json.loads(read_text(group, name))
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(group, f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise damaged(group, f"{name} is no JSON object")
    return found


def read_attribute(node: Any, name: str, kinds: str = "iu", shape: tuple[int, ...] = ()) -> Any:
    """Read an attribute, by default a whole number; text of variable length is left alone."""
    if name not in node.attrs:
        raise damaged(node, f"{node.name} has no attribute {name}")
    found = node.attrs.get_id(name)
    if kinds == "S" and found.dtype.kind != "S":
        raise damaged(node, f"{name} is no text of fixed length, which this version writes")
    if found.dtype.kind not in kinds or found.shape != shape:
        raise damaged(node, f"the attribute {name} of {node.name} is of another type or shape")
    value = node.attrs[name]
    return value.decode(*_UTF_8) if kinds == "S" else value


def save_arrays(target: Path, arrays: Arrays) -> None:
    """Write arrays to a file with checksums, which appears whole or not at all."""
    with atomic_write(target, durable=False) as part, part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_arrays(path: str) -> Arrays:
    """Read arrays from a file, every byte of which is under a checksum."""
    try:
        with zipfile.ZipFile(path) as file:
            if any(each.comment for each in file.infolist()):
                raise ValueError("its list of arrays has comments")
            found = {each.filename: io.BytesIO(file.read(each)) for each in file.infolist()}
        return {
            name.removesuffix(".npy"): np.lib.format.read_array(content, allow_pickle=False)
            for name, content in found.items()
        }
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a place before the file
            raise
        raise DamagedFileError(f"{path} is damaged: {error}") from error
