"""Counts in files: which format it is, and reading it into memory."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from . import h5ad, tenx
from .counts import Counts, Whole, annotated_counts, as_counts, checked_counts
from .hdf5 import open_hdf5


def read_counts(
    path_or_object: Any,
    *,
    layer: str | None = None,
    raw: bool = False,
    groups: str | None = None,
    genome: str | None = None,
    feature_type: str | None = None,
    transpose: bool | None = None,
    integer: Whole = "warn",
) -> Counts:
    """Read counts, samples x features, from a file or an object in memory.

    ===================  ====================================================================
    ``.npz``             ``scipy.sparse.save_npz``
    ``.mtx``, ``.gz``    Matrix Market; with the names of the 10x ``.tsv`` files beside it
    folder               one with a ``matrix.mtx`` (or ``.mtx.gz``) as 10x writes it
    ``.h5ad``            AnnData, also as written by versions 0.5 to 0.7
    ``.h5``              10x Cell Ranger 2 and 3
    ===================  ====================================================================

    Parameters
    ----------
    path_or_object : str, path or object
        A file of the formats above, or anything that :func:`as_counts` takes.
    layer : str, optional
        AnnData: the layer to read in place of ``X``.
    raw : bool, default=False
        AnnData: read ``raw.X`` in place of ``X``.
    groups : str, optional
        AnnData: the column of ``obs`` that holds a label for each sample.
    genome : str, optional
        10x: the genome to read; needed if a Cell Ranger 2 file holds several.
    feature_type : str, optional
        10x: the type of features to keep, or ``"all"``. By default gene expression alone where
        several types are mixed.
    transpose : bool, optional
        ``.mtx`` and ``.npz``: whether the file holds features x samples. By default this is
        believed of a ``.mtx`` file with ``barcodes.tsv`` and ``features.tsv`` beside it only.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers.

    Returns
    -------
    Counts
        The counts in the type of the file, and the names found. Gene symbols that stand for
        several genes are followed by the gene's identifier.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    OSError
        If an HDF5 file is damaged, cut off, or compressed with a filter that is not installed.
    ValueError
        If the format is not known or the file is of another format than its name says, if a
        choice does not fit the format, or if the numbers are not counts.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import scipy.sparse as sp
    >>> from nmfscale.data.stored import read_counts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.npz")
    ...     sp.save_npz(path, sp.csr_array([[0, 2], [1, 0]]))
    ...     read_counts(path)
    <Counts 2 x 2, 2 nonzero, int64>
    """
    choices = {
        "layer": layer,
        "raw": raw,
        "groups": groups,
        "genome": genome,
        "feature_type": feature_type,
        "transpose": transpose,
    }
    given = {name: value for name, value in choices.items() if value not in (None, False)}
    if transpose is False:
        given["transpose"] = False
    if not isinstance(path_or_object, (str, os.PathLike)):
        return _object_counts(path_or_object, given, integer)
    path = Path(path_or_object)
    if not path.exists():
        raise FileNotFoundError(f"No such file or folder: {path}")
    reader, accepted = _reader(path)
    _check_choices(given, accepted, str(path))
    return checked_counts(**({"whom": str(path)} | reader(path, **given)), integer=integer)


def _object_counts(given_object: Any, given: dict[str, Any], integer: Whole) -> Counts:
    whom = type(given_object).__name__
    if hasattr(given_object, "obs_names"):
        _check_choices(given, _ANNOTATED, whom)
        return annotated_counts(given_object, **given, integer=integer, whom=whom)
    _check_choices(given, (), whom)
    return as_counts(given_object, integer=integer, whom=whom)


def _check_choices(given: dict[str, Any], accepted: tuple[str, ...], whom: str) -> None:
    for name, value in given.items():
        if name not in accepted:
            fitting = ", ".join(accepted) or "none"
            raise ValueError(f"{name}={value!r} does not apply to {whom}; choices: {fitting}.")


# ---------------------------------------------------------------------------
# Formats

_ANNOTATED = ("layer", "raw", "groups")
_MTX = ("transpose", "feature_type")
_Reader = Callable[..., dict[str, Any]]


def _reader(path: Path) -> tuple[_Reader, tuple[str, ...]]:
    """Return the reader of a path, by its name and for HDF5 by what is in it."""
    name = path.name.lower()
    if path.is_dir():
        return _read_folder, (*_MTX, "genome")
    if name.endswith(".npz"):
        return _read_npz, ("transpose",)
    if name.endswith((".mtx", ".mtx.gz")):
        return _read_mtx, _MTX
    if name.endswith((".h5ad", ".h5", ".hdf5")):
        return _hdf5_reader(path)
    raise ValueError(
        f"{path} has no known suffix; expected .npz, .mtx, .mtx.gz, .h5ad, .h5 or a 10x folder."
    )


def _hdf5_reader(path: Path) -> tuple[_Reader, tuple[str, ...]]:
    with open_hdf5(path) as file:
        if "obs" in file and "var" in file:
            return h5ad.read_h5ad, _ANNOTATED
        if "matrix/features" in file or tenx.genome_groups(file):
            return tenx.read_tenx_h5, ("genome", "feature_type")
        parts = ", ".join(file) or "nothing"
    raise ValueError(
        f"{path} is neither an AnnData file (X, obs, var) nor a 10x file (matrix, or one group "
        f"per genome); it holds: {parts}."
    )


def _read_npz(path: Path, *, transpose: bool = False) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            matrix = sp.load_npz(file)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} holds no sparse matrix as scipy.sparse.save_npz writes it ({error})."
        ) from error
    return {"matrix": matrix.T if transpose else matrix}


def _read_folder(path: Path, *, genome: str | None = None, **choice: Any) -> dict[str, Any]:
    return _read_mtx(tenx.find_mtx(path if genome is None else path / genome), **choice)


def _read_mtx(
    path: Path, *, transpose: bool | None = None, feature_type: str | None = None
) -> dict[str, Any]:
    from scipy.io import mmread

    try:
        matrix = mmread(path)
    except (ValueError, OverflowError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is not a readable Matrix Market file ({error}).") from error
    if sp.issparse(matrix) and matrix.dtype == np.int64 and matrix.nnz:
        # The reader's int64 is its own choice; half the memory holds nearly every count.
        if max(-matrix.data.min(), matrix.data.max()) <= np.iinfo(np.int32).max:
            matrix = matrix.astype(np.int32)
    found = tenx.names_beside(path)
    if found is None:
        if feature_type is not None:
            raise ValueError(
                f"{path}: feature_type={feature_type!r} needs a features.tsv beside it."
            )
        return {"matrix": matrix.T if transpose else matrix}
    barcodes, features = found
    by_cells = (len(barcodes), len(features.ids))
    if transpose is None:
        transpose = matrix.shape == by_cells[::-1]
    matrix = matrix.T if transpose else matrix
    if matrix.shape != by_cells:
        raise ValueError(
            f"{path} has shape {matrix.shape}{' (transposed)' if transpose else ''}, but the files "
            f"beside it name {by_cells[0]} barcodes and {by_cells[1]} features."
        )
    return {"sample_names": barcodes} | tenx.select_features(
        path, matrix.tocsr(), features, feature_type=feature_type
    )
