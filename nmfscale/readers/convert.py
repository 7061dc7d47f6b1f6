"""Packs any source of counts into a packed store."""

from __future__ import annotations

import os
from typing import Any

from ..counts.base import IntegerPolicy, check_integer
from ..counts.sizes import parse_bytes
from ..storage.store import StoredCounts
from ..storage.store_writer import _check_target, pack
from .formats import CHOICES
from .open import open_counts


def write_store(
    source: Any,
    path: str | os.PathLike[str],
    *,
    memory_limit: int | float | str | None = None,
    n_threads: int = 1,
    overwrite: bool = False,
    integer: IntegerPolicy = "warn",
    verbose: int = 0,
    **choices: Any,
) -> StoredCounts:
    """Write counts to a packed store, from which fits larger than memory are fastest.

    The file appears whole or not at all, and `source` is only read.

    Parameters
    ----------
    source : str, path or object
        A file of the formats of :func:`read_counts`, read a range of rows at a time, or anything
        that :func:`as_counts` takes.
    path : str or path-like
        Where to write, by custom with the suffix ``.nmf``; an existing store is replaced.
    memory_limit : int, float or str, default=None
        Bytes, or text such as "2GB".  A quarter of them, 1 GiB by default, is used to bring text
        and compressed columns into the order of rows.  A block of eight million counts and its
        slices, about 350 MB, come on top.
    n_threads : int, default=1
        Threads that place the counts; the store does not depend on it.
    overwrite : bool, default=False
        Whether a file that is no packed store may be replaced.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers.
    verbose : int, default=0
        1 shows a progress bar.
    **choices
        `layer`, `raw`, `groups`, `genome`, `feature_type`, `transpose`: see :func:`read_counts`.

    Returns
    -------
    StoredCounts
        The store, open for reading; a fit takes it, or its path.

    Raises
    ------
    TypeError
        If a choice is none that :func:`read_counts` knows.
    FileNotFoundError
        If there is no such file, or no folder to write to.
    FileExistsError
        If `path` is there and is not a packed store.
    OSError
        If a file is damaged, if the disk is full or cannot be written, or if `path` is a folder,
        a device, a pipe or a socket.
    ValueError
        If the numbers are not counts, a choice does not fit the format, or `source` is a packed
        store already, or what would be replaced.

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
    for name in choices:
        if name not in CHOICES:
            raise TypeError(
                f"write_store() got an unexpected keyword argument {name!r}; of a source it "
                f"takes {', '.join(CHOICES)}."
            )
    check_integer(integer)
    if memory_limit is not None:
        parse_bytes(memory_limit)
    target = _check_target(path, overwrite)
    counts = open_counts(
        source, in_memory=False, memory_limit=memory_limit, integer=integer, **choices
    )
    if isinstance(counts, StoredCounts):
        raise ValueError(f"{counts.path} is a packed store already.")
    origin = getattr(counts, "source", {"object": type(source).__name__})
    if origin.get("path") == str(target):
        raise ValueError(f"{path} is the file to be packed: give the store another name.")
    from tqdm.auto import tqdm

    with tqdm(
        total=counts.nnz, unit="", unit_scale=True, desc="packing", disable=verbose < 1
    ) as bar:
        pack(
            counts, target, n_threads=n_threads, source=origin, progress=bar.update,
            overwrite=overwrite,
        )  # fmt: skip
    return StoredCounts(path)
