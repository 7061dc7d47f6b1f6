"""Writing packed stores; their format is described in `nmfscale.data.store`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .block_file import ORDERS, PARTS
from .counts import Whole, check_whole, mind_fraction
from .formats import CHOICES, given_choices
from .layout import ValueCounts
from .sizes import parse_bytes
from .sound_hdf5 import put, put_json, put_names
from .store import FORMAT, FORMAT_VERSION, StoredCounts, is_store
from .stored import object_counts
from .streamed import stream_counts
from .table import CountTable
from .whole_file import check_replaceable, package_version
from .whole_hdf5 import whole_hdf5


def write_store(
    source: Any,
    path: str | os.PathLike[str],
    *,
    memory_limit: int | float | str | None = None,
    n_threads: int = 1,
    overwrite: bool = False,
    integer: Whole = "warn",
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
    check_whole(integer)
    if memory_limit is not None:
        parse_bytes(memory_limit)
    target = _check_target(path, overwrite)
    counts = _opened(source, memory_limit, integer, choices)
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


def _opened(source: Any, memory_limit: Any, integer: Whole, choices: dict[str, Any]) -> CountTable:
    """Return what is to be packed, in memory only if it is there already."""
    given = given_choices(**choices)
    if getattr(source, "isbacked", False) and not source.is_view:
        source = source.filename
    if isinstance(source, StoredCounts):
        source = source.path
    if isinstance(source, (str, os.PathLike)):
        counts = stream_counts(source, memory_limit=memory_limit, **given)
        mind_fraction(counts.first_fraction, integer, str(source))
        return counts
    return object_counts(source, given, integer, in_memory=False)


def _check_target(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Return the file that a path means; refuse one that must not be written."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {target.parent} does not exist.")
    check_replaceable(target)
    if target.exists() and not overwrite and not is_store(target):
        raise FileExistsError(f"{path} is there and is no packed store; it is left as it is.")
    return target


def pack(
    counts: CountTable,
    path: str | os.PathLike[str],
    *,
    n_threads: int = 1,
    source: dict[str, Any] | None = None,
    progress: Callable[[int], Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write counts to a packed store, block by block.

    The file appears whole or not at all: it is written beside `path` under another name and moved
    into place, so that a failure leaves an existing file as it was.

    Parameters
    ----------
    counts : CountTable
        In memory, or read from a file as it goes.
    path : str or path-like
        Where to write; an existing store is replaced.
    n_threads : int, default=1
        Threads that place the counts; the store does not depend on it.
    source : dict, default=None
        What is packed, for the record.
    progress : callable, default=None
        Called with the number of nonzero counts written since the last call.
    overwrite : bool, default=False
        Whether a file that is no packed store may be replaced.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    FileExistsError
        If `path` is there and is not a packed store.
    OSError
        If the disk is full or cannot be written, or `path` is no place for a file.
    """
    target = _check_target(path, overwrite)
    with whole_hdf5(target) as (file, check_disk):
        _write(file, counts, n_threads, source or {}, progress, check_disk)
        file.flush()
        file.attrs["complete"] = 1


def _write(
    file: Any, counts: CountTable, n_threads: int, source: dict[str, Any], progress: Any,
    check_disk: Callable[[], None],
) -> None:  # fmt: skip
    layout = counts.layout(n_threads)
    found = ValueCounts(layout)
    for i, (block, *both) in enumerate(layout.visit_both()):
        group = file.create_group(f"blocks/{i:06d}")
        group.attrs["start"], group.attrs["stop"] = block.start, block.stop
        for order, slices in zip(ORDERS, both, strict=True):
            for part in PARTS:
                put(group, f"{order}_{part}", getattr(slices, part))
        found.add(both[0])
        check_disk()
        if progress is not None:
            progress(int(counts.row_nnz[block.start : block.stop].sum()))
    for which in ORDERS:
        side = which[:-1]
        put(file, f"{which}/nnz", getattr(counts, f"{side}_nnz"))
        put(file, f"{which}/totals", getattr(counts, f"{side}_totals"))
    values = found.result()
    if values is not None:
        put(file, "values/value", values[0])
        put(file, "values/times", values[1])
    for name, array in zip(("value", "times"), layout.large, strict=True):
        put(file, f"large/{name}", array)
    for name in ("sample", "feature", "group"):
        labels = getattr(counts, "groups" if name == "group" else f"{name}_names")
        if labels is not None:
            put_names(file, f"names/{name}", labels)
    put_json(file, "about", {
        "notes": counts.notes, "source": source, "first_fraction": counts.first_fraction,
    })  # fmt: skip
    file.attrs.update({
        "format": np.bytes_(FORMAT), "format_version": FORMAT_VERSION,
        "nmfscale_version": np.bytes_(package_version()), "shape": counts.shape, "nnz": counts.nnz,
        "dtype": np.bytes_(str(counts.dtype)), "slice_dtype": np.bytes_(str(layout.count_dtype)),
        "largest": counts.largest,
    })  # fmt: skip
