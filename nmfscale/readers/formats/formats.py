"""Recognises the format of a file and opens it: names are read at once, counts later."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from ...counts.memory import MemoryRows
from ...counts.sizes import MemoryLimitError, check_table_size
from ...counts.structure import check_shape
from ...counts.validation import EntryNames, rows_of_sparse
from ...storage.atomic import retry
from ...storage.hdf5 import find, guarded_hdf5, is_transient, warn_of_journal
from ..sources.sources import MemoryLimits, NamedFileError, OpenedTable, named_errors
from ..texts.texts_instead import texts_instead
from . import h5ad, tenx
from .loom import open_loom
from .names_beside import find_names
from .text import is_docword, rows_of_text, shape_of_text, vocabulary_beside
from .text_tables import is_text_table, open_text_table
from .zarr_store import is_zarr, open_zarr

ANNOTATED = ("layer", "raw", "groups")
_MTX = ("transpose", "feature_type")
# The arrays that scipy.sparse.save_npz writes.
_NPZ_PARTS = {
    "format",
    "shape",
    "data",
    "indices",
    "indptr",
    "row",
    "col",
    "offsets",
    "coords",
    "_is_array",
}
# An option of every source, which fits set: NaN, and empty fields of text, are missing entries.
NAN = "nan"
_Opener = Callable[..., OpenedTable]


def given_choices(**choices: Any) -> dict[str, Any]:
    """Return the options that are set: not None and, except `transpose`, not False."""
    return {
        name: value
        for name, value in choices.items()
        if value is not None and (value is not False or name == "transpose")
    }


def check_choices(options: dict[str, Any], accepted: tuple[str, ...], subject: str) -> None:
    """Refuse an option that does not apply to the format."""
    for name, value in options.items():
        if name not in (*accepted, NAN):
            fitting = ", ".join(accepted) or "none"
            raise ValueError(f"{name}={value!r} does not apply to {subject}; choices: {fitting}.")


def open_table(path: Path, limits: MemoryLimits, options: dict[str, Any]) -> OpenedTable:
    """Open the table in a file of any format."""
    if not path.exists():
        raise FileNotFoundError(f"No such file or folder: {path}")

    def attempt() -> OpenedTable:
        opener, accepted = _opener(path)
        check_choices(options, accepted, str(path))
        if opener is not open_text_table:  # other formats store NaN as such
            chosen = {name: value for name, value in options.items() if name != NAN}
            return opener(path, limits, **chosen)
        return opener(path, limits, **options)

    try:
        with named_errors(path):
            table = cast(OpenedTable, retry(path, attempt))
    except ValueError as error:
        texts = texts_instead(path)
        if texts is None:
            raise
        raise NamedFileError(texts) from error
    warn_of_journal(path)
    return table


def _opener(path: Path) -> tuple[_Opener, tuple[str, ...]]:
    """Return the function that opens a path, and its options; by name, for HDF5 by contents."""
    name = path.name.lower()
    if is_zarr(path):
        return open_zarr, (*ANNOTATED, "modality")
    if path.is_dir():
        return _open_folder, (*_MTX, "genome")
    if name.endswith(".npz"):
        return _open_npz, ("transpose",)
    if name.endswith((".mtx", ".mtx.gz")):
        return _open_mtx, _MTX
    if is_docword(path):
        return _open_docword, ()
    if is_text_table(path):
        return open_text_table, ("samples_in",)
    if name.endswith((".h5ad", ".h5mu", ".loom", ".h5", ".hdf5")):
        return _hdf5_opener(path)
    if name.endswith(".nmf"):
        why = "is not a packed store: it is empty, cut off or of another kind. "
        why += "Write it again with nmfscale store."
    elif name.endswith((".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".zip")):
        why = (
            "is an archive: unpack it, for example with tar -xf, and pass the .h5 or .h5ad file "
            "in it, or the folder with matrix.mtx."
        )
    elif name.endswith((".h5ad.gz", ".h5.gz", ".hdf5.gz", ".npz.gz", ".nmf.gz")):
        why = "is compressed as a whole: unpack it first, for example with gunzip."
    else:
        why = (
            "has no known suffix; expected .npz, .mtx, .mtx.gz, docword.*.txt, docword.*.txt.gz, "
            ".h5ad, .h5mu, .h5, .loom, .zarr, .csv, .tsv, .txt or a folder with a .mtx file."
            f"{_remedy_of(name)}"
        )
    raise ValueError(f"{path} {why}")


def _remedy_of(name: str) -> str:
    """Say how to read a file of another format, by the end of its name."""
    reader = next((how for suffixes, how in _REMEDIES.items() if name.endswith(suffixes)), None)
    if reader is None:
        return ""
    return f" Read it with {reader}, and pass the result to fit, or to write_store for the shell."


_REMEDIES = {
    (".npy",): "numpy.load(path)",
    (".parquet",): "pandas.read_parquet(path)",
    (".xlsx",): "pandas.read_excel(path, index_col=0)",
}


def _hdf5_opener(path: Path) -> tuple[_Opener, tuple[str, ...]]:
    with guarded_hdf5(path) as file:
        if find(file, "row_attrs") is not None and find(file, "matrix") is not None:
            return open_loom, ("layer", "groups")
        if find(file, "mod") is not None:
            return h5ad.open_h5mu, (*ANNOTATED, "modality")
        if find(file, "obs") is not None and find(file, "var") is not None:
            return h5ad.open_h5ad, ANNOTATED
        if find(file, "matrix/features") is not None or tenx.genome_groups(file):
            return tenx.open_tenx_h5, ("genome", "feature_type")
        if "components" in file and "about" in file:
            raise ValueError(f"{path} is a model file, not counts; nmfscale.load reads it.")
        parts = ", ".join(file) or "nothing"
    raise ValueError(
        f"{path} is neither an AnnData file (X, obs, var) nor a 10x file (matrix, or one group "
        f"per genome); it holds: {parts}."
    )


def _open_npz(path: Path, limits: MemoryLimits, *, transpose: bool = False) -> OpenedTable:
    try:
        with path.open("rb") as file:
            shape, n_bytes = _npz_size(file)
            # twice: the arrays as stored, and as compressed rows
            check_table_size(shape, str(path), limits.table, 2 * n_bytes)
            file.seek(0)
            matrix = sp.load_npz(file)
    except MemoryLimitError:
        raise
    except Exception as error:  # zipfile, the codecs and NumPy raise many kinds of errors
        if is_transient(error):
            raise
        raise ValueError(
            f"{path} holds no sparse matrix as scipy.sparse.save_npz writes it "
            f"({str(error) or type(error).__name__})."
        ) from error
    rows = rows_of_sparse(matrix.T if transpose else matrix, EntryNames(str(path)))
    return OpenedTable(path, MemoryRows(*rows), str(path))


def _npz_size(file: Any) -> tuple[tuple[int, ...], int]:
    """Return the matrix's shape and bytes; an array must not claim more bytes than are stored."""
    sizes, n_bytes = None, 0
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename.removesuffix(".npy") not in _NPZ_PARTS:
                continue  # SciPy does not read this array
            with archive.open(info) as member:
                major, _ = np.lib.format.read_magic(member)
                read = getattr(np.lib.format, f"read_array_header_{major}_0")
                shape, _, dtype = read(member)
                claimed = math.prod(shape) * dtype.itemsize
                if claimed > info.file_size:
                    raise ValueError(f"{info.filename} claims the shape {shape}")
                n_bytes += claimed
                if info.filename == "shape.npy" and shape == (2,):
                    sizes = np.frombuffer(member.read(claimed), dtype).tolist()
    if sizes is None or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError(f"its shape is {sizes}, not two sizes")
    return tuple(sizes), n_bytes


def _open_docword(path: Path, limits: MemoryLimits) -> OpenedTable:
    rows = rows_of_text(path, limits)
    words = vocabulary_beside(path, rows.shape[1])
    return OpenedTable(path, rows, str(path), feature_names=words, of_text=True)


def _open_folder(
    path: Path, limits: MemoryLimits, *, genome: str | None = None, **choice: Any
) -> OpenedTable:
    return _open_mtx(tenx.find_mtx(path, genome), limits, in_folder=True, **choice)


def _open_mtx(
    path: Path, limits: MemoryLimits, *, transpose: bool | None = None,
    feature_type: str | None = None, in_folder: bool = False,
) -> OpenedTable:  # fmt: skip
    shape = shape_of_text(path)
    check_shape(shape)
    beside = find_names(path, shape, transpose, in_folder)
    if beside.features is None and feature_type is not None:
        what = f"feature_type={feature_type!r}"
        raise ValueError(f"{path}: {what} needs a features.tsv beside it.")
    rows = rows_of_text(path, limits, beside.transposed)
    selection: dict[str, Any] = {"notes": []}
    if beside.features is not None:
        selection = tenx.select_features(path, beside.features, feature_type)
    selection["notes"] = [*selection["notes"], *beside.notes]
    return OpenedTable(path, rows, str(path), sample_names=beside.samples, **selection)
