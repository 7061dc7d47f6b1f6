"""Opening HDF5 files and reading their strings and sparse arrays; errors name the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .structure import index_type


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open a file for reading; what goes wrong inside the block is said of this file."""
    import h5py

    with suppress(ImportError):
        # Importing it registers further compression filters (blosc, zstd, ...).
        import hdf5plugin  # type: ignore[import-not-found]  # noqa: F401
    with path.open("rb"):
        pass
    if not h5py.is_hdf5(path):
        raise ValueError(f"{path} is not an HDF5 file; expected an AnnData or 10x file.")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except KeyError as error:
        raise ValueError(f"{path} lacks a part that its format has: {error.args[0]}.") from error
    except (OSError, RuntimeError) as error:
        if "filter" in str(error) or "plugin" in str(error):
            remedy = "compressed in a way that h5py alone cannot read: pip install hdf5plugin"
        else:
            remedy = "it is damaged or was cut off"
        raise OSError(f"{path} cannot be read; {remedy} ({error}).") from error


def strings(values: Iterable[Any]) -> NDArray[np.object_]:
    """Decode names, stored as bytes of fixed length, as strings or as numbers."""
    decoded = [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for value in values
    ]
    return np.array(decoded, dtype=object)


def compressed_matrix(group: Any, kind: type, shape: tuple[int, int]) -> Any:
    """Read `data`, `indices` and `indptr` into a CSR or CSC array of scipy."""
    data = group["data"][()]
    narrow = index_type(max(*shape, data.size))
    indices, indptr = (group[name].astype(narrow)[()] for name in ("indices", "indptr"))
    try:
        return kind((data, indices, indptr), shape=shape)
    except ValueError as error:
        where = f"{group.file.filename}: {group.name}"
        raise ValueError(f"{where} is no valid {kind.__name__}: {error}.") from error


def csr_of(group: Any, shape: Any) -> sp.csr_array:
    """Read compressed rows."""
    return compressed_matrix(group, sp.csr_array, (int(shape[0]), int(shape[1])))
