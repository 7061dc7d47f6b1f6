"""write_store: converts any source of counts to a packed store."""

from __future__ import annotations

import os
from typing import Unpack

from ..counts.argument_types import CountsLike
from ..counts.integers import IntegerPolicy, check_integer
from ..counts.sizes import parse_bytes
from ..storage.store import StoredCounts
from ..storage.store_writer import check_target, pack
from ..terminal import progress_bar
from .open import open_counts
from .options import SourceOptions, check_source


def write_store(
    source: CountsLike,
    path: str | os.PathLike[str],
    *,
    memory_limit: int | float | str | None = None,
    n_threads: int = 1,
    overwrite: bool = False,
    integer: IntegerPolicy = "warn",
    verbose: int = 0,
    layer: str | None = None,
    raw: bool = False,
    **source_options: Unpack[SourceOptions],
) -> StoredCounts:
    """Write counts to a packed store, the fastest source for fits larger than memory.

    The file appears complete or not at all, and `source` is not changed.

    Parameters
    ----------
    source : str, path or object
        A file in a format of :func:`read_counts`, which is read a range of rows at a time, or any
        object that :func:`as_counts` accepts.
    path : str or path-like
        The file to write, usually with the suffix ``.nmf``; an existing store is replaced.
    memory_limit : int, float or str, default=None
        Bytes, or text such as "2GB".  A quarter of it, 1 GiB by default, is used to sort the
        entries of text files and compressed columns by rows.  In addition, a block of eight
        million counts takes about 350 MB.
    n_threads : int, default=1
        Number of threads that arrange the counts; the store does not depend on it.
    overwrite : bool, default=False
        Whether a file that is not a packed store may be replaced.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers.
    verbose : int, default=0
        1 shows a progress bar.
    layer, raw, **source_options
        What to read, as in :func:`read_counts`.

    Returns
    -------
    StoredCounts
        The store, opened for reading; pass it, or its path, to ``fit``.

    Raises
    ------
    TypeError
        If an option is not one of those of :func:`read_counts`.
    FileNotFoundError
        If `source`, or the folder of `path`, does not exist.
    FileExistsError
        If `path` exists and is not a packed store.
    OSError
        If a file is damaged, if the disk is full or cannot be written, or if `path` is a folder,
        a device, a pipe or a socket.
    ValueError
        If the values are not counts, if an option does not apply to the format, if `source` is
        already a packed store, or if `source` and `path` are the same file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import nmfscale
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "counts.nmf")
    ...     nmfscale.write_store(np.array([[0, 2, 1], [3, 0, 0]]), path)
    <StoredCounts 2 x 3, 3 nonzero, int64>
    """
    check_source(source_options, "write_store()")
    check_integer(integer)
    if memory_limit is not None:
        parse_bytes(memory_limit)
    target = check_target(path, overwrite)
    counts = open_counts(
        source, in_memory=False, memory_limit=memory_limit, integer=integer, layer=layer, raw=raw,
        **source_options,
    )  # fmt: skip
    if isinstance(counts, StoredCounts):
        raise ValueError(f"{counts.path} is already a packed store.")
    origin = getattr(counts, "source", {"object": type(source).__name__})
    if str(target) in [file.get("path") for file in origin.get("files", [origin])]:
        raise ValueError(f"{path} is the source of the counts: give the store another name.")
    with progress_bar(counts.nnz, "packing", "", verbose, unit_scale=True) as advance:
        pack(
            counts, target, n_threads=n_threads, source=origin, progress=advance,
            overwrite=overwrite,
        )  # fmt: skip
    return StoredCounts(path)
