"""Files of named arrays between the processes of a fit: whole or not there, under checksums."""

from __future__ import annotations

import errno
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jobs import ClusterError
from .whole_file import whole_file

Arrays = dict[str, NDArray[Any]]


def save_arrays(target: Path, arrays: Arrays) -> None:
    """Write arrays to a file with checksums, which appears whole or not at all."""
    with whole_file(target, durable=False) as part, zipfile.ZipFile(part, "w") as file:
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
