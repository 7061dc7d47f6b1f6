"""What the HDF5 files of ours have in common: arrays with checksums, text of fixed length.

HDF5 keeps text of variable length where it has no checksum: damage there is read as other text,
or HDF5 never comes back from it.
"""

from __future__ import annotations

import errno
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.tasks import ClusterError
from .atomic import atomic_write
from .hdf5 import checked_dataset, need

Array = NDArray[Any]
# Text that is no UTF-8 comes back as it was.
_UTF_8 = "utf-8", "surrogateescape"


def crc32_of(array: Array) -> int:
    """Return the checksum of an array's bytes, in the order of C."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def put(group: Any, name: str, array: Any) -> Any:
    """Write an array, or a number, with its checksum; return the dataset."""
    array = np.asarray(array, order="C")
    dataset = group.create_dataset(name, data=array)
    dataset.attrs["crc32"] = crc32_of(array)
    return dataset


def put_names(group: Any, name: str, names: Array) -> Any:
    """Write names as UTF-8, as many bytes for each as the longest needs."""
    import h5py

    text = np.char.encode(names.astype(str), *_UTF_8)
    return put(group, name, text.astype(h5py.string_dtype("utf-8", text.dtype.itemsize)))


def put_text(group: Any, name: str, text: str) -> None:
    """Write text of any length as bytes."""
    put(group, name, np.frombuffer(text.encode(*_UTF_8), np.uint8))


def put_json(group: Any, name: str, value: Any) -> None:
    """Write what JSON can hold, as bytes."""
    put_text(group, name, json.dumps(value))


def located(group: Any, name: str) -> Any:
    """Return a dataset that is in the file itself, in one piece, as large as it says."""
    try:
        dataset = need(group, name)
        if getattr(dataset, "chunks", None):
            raise KeyError(f"{name} is not contiguous")
        if checked_dataset(dataset).dtype.hasobject:
            raise KeyError(f"{name} is of variable length")
        return dataset
    except ValueError as error:
        raise KeyError(f"{name} is not in the file itself: {error}") from error


def read_checked(group: Any, name: str) -> Any:
    """Read an array, or a number, that has the checksum it was written with."""
    dataset = located(group, name)
    values = dataset[...]
    if crc32_of(values) != dataset.attrs["crc32"]:
        raise KeyError(f"{name} is damaged: its checksum differs")
    return values[()]


def read_names(group: Any, name: str) -> Array:
    """Read names that were written with `put_names`."""
    return np.char.decode(read_checked(group, name), *_UTF_8)


def read_text(group: Any, name: str) -> str:
    """Read text that was written with `put_text`."""
    return bytes(read_checked(group, name)).decode(*_UTF_8)


def read_json(group: Any, name: str) -> Any:
    """Read what was written with `put_json`."""
    return json.loads(read_text(group, name))


def fixed_text(attributes: Any, name: str) -> str:
    """Read an attribute of text; text of variable length is left alone."""
    if attributes.get_id(name).dtype.kind != "S":
        raise KeyError(f"{name} is no text of fixed length, which this version writes")
    return str(attributes[name], "utf-8")


Arrays = dict[str, NDArray[Any]]


def save_arrays(target: Path, arrays: Arrays) -> None:
    """Write arrays to a file with checksums, which appears whole or not at all."""
    with atomic_write(target, durable=False) as part, zipfile.ZipFile(part, "w") as file:
        for name, array in arrays.items():
            # as numpy.savez does, without copies of the array
            array = np.asarray(array, order="C")
            about = np.lib.format.header_data_from_array_1_0(array)
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, about)
                member.write(array.data)


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
        raise ClusterError(
            f"{path} is damaged ({error}): fit again, or resume from a checkpoint."
        ) from error
