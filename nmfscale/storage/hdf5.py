"""Open HDF5 files, and find and check their datasets; errors name the file.

Nothing outside a file is ever read: external links, external storage and virtual datasets are
refused. So is a dataset that claims far more bytes than the file stores for it.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..counts.warn import warn_caller
from .atomic import TRANSIENT, retry

# Seconds to wait for a program that has the file open for writing.
LOCK_SECONDS = 30.0

# Errors of file systems that do not support locks; 524 is ENOTSUPP of Linux.
NO_LOCKS = errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, 524
# Errors that concern the system, not the contents of a file.
_NOT_THE_FILE = (
    errno.EAGAIN, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR,
    errno.ETIMEDOUT, *NO_LOCKS, *TRANSIENT,
)  # fmt: skip

# A dataset may claim this many bytes without any storage (unwritten parts are read as zeros).
_FREE_CLAIM = 2**24
# Bytes that one stored byte may decompress to: deflate reaches 1032, other filters more.
_RATIOS = {"none": 1, "gzip": 1100, "lzf": 1100}
_OTHER_RATIO = 2**17
_MOST_LINKS = 16
# A global heap begins with this signature and its size; each object with its number and size.
_HEAP, _HEAP_HEADER, _HEAP_WINDOW = b"GCOL\x01", 16, 2**16
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that an HDF5 file of this package declares; None for other files."""

    def attempt() -> str | None:
        if not has_signature(Path(path)):
            return None
        with guarded_hdf5(Path(path)) as file:
            # we write text of fixed length; with text of variable length, damage may hang HDF5
            if "format" not in file.attrs or file.attrs.get_id("format").dtype.kind != "S":
                return None
            return bytes(file.attrs["format"]).decode()

    try:
        return cast(str | None, retry(Path(path), attempt))
    except (OSError, RuntimeError, ValueError) as error:
        if is_transient(error):
            raise
        return None


def is_transient(error: Exception) -> bool:
    """Whether an error does not concern the file's contents: the file is locked, or I/O fails."""
    return isinstance(error, OSError) and error.errno in _NOT_THE_FILE


def has_signature(path: Path) -> bool:
    """Whether a file starts with the signature of HDF5."""
    if not path.is_file():
        return False
    with path.open("rb") as beginning:
        return beginning.read(len(SIGNATURE)) == SIGNATURE


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """Open a file for reading; it stays open after the block, unless the block fails."""
    with hdf5_errors(path):
        file = open_file(path)
        try:
            yield file
        except BaseException:
            file.close()
            raise


@contextmanager
def guarded_hdf5(path: Path) -> Iterator[Any]:
    """Open an untrusted file to read text in it: damage raises an error and cannot hang HDF5.

    HDF5 reads the file through Python; `opened_hdf5` is faster for large arrays.
    """
    import h5py

    with opened_hdf5(path) as file, file, _HeapGuard(path, file) as guard:
        with h5py.File(path, "r", driver="fileobj", fileobj=guard) as guarded:
            yield guarded


class _HeapGuard(io.FileIO):
    """A file that checks each global heap, which holds text of variable length, when it is read.

    HDF5 steps through the objects of a heap by their sizes. It would loop forever at free space of
    size 0, or at a size whose overflow makes the step 0.
    """

    def __init__(self, path: Path, file: Any) -> None:
        super().__init__(path)
        self._length_bytes = file.id.get_create_plist().get_sizes()[1]
        self._sound: set[int] = set()

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that HDF5 requests; raise an error if they contain a damaged heap."""
        at = self.tell()
        n_read = super().readinto(buffer) or 0
        # a heap may begin in the last bytes of an earlier read
        overlap = min(at, len(_HEAP) - 1)
        content = self._bytes(at - overlap, overlap) + bytes(memoryview(buffer)[:n_read])
        for heap in re.finditer(_HEAP, content):
            self._check_heap(at - overlap + heap.start())
        self.seek(at + n_read)
        return n_read

    def _bytes(self, at: int, size: int) -> bytes:
        self.seek(at)
        return self.read(size) or b""

    def _check_heap(self, at: int) -> None:
        """Raise an error unless the objects of a heap follow one another to its end."""
        if at in self._sound:
            return
        window, start = self._bytes(at, _HEAP_WINDOW), at
        end = at + int.from_bytes(window[8 : 8 + self._length_bytes], "little")
        place = at + _HEAP_HEADER
        while place + _HEAP_HEADER <= end:
            if place + _HEAP_HEADER > start + len(window):
                window, start = self._bytes(place, _HEAP_WINDOW), place
                if len(window) < _HEAP_HEADER:
                    break  # the file ends: HDF5 raises the error
            header = window[place - start : place - start + _HEAP_HEADER]
            size = int.from_bytes(header[8 : 8 + self._length_bytes], "little")
            # object 0 is free space, whose size includes its header
            step = _HEAP_HEADER + -(-size // 8) * 8 if any(header[:2]) else size
            if not 0 < step <= end - place:
                raise OSError(f"the heap of text at byte {at} has an object of {size} bytes")
            place += step
        self._sound.add(at)


def read_file(path: Path, read: Callable[[Any], Any]) -> Any:
    """Return `read(file)`; retry for a while if a writer locks the file or I/O fails."""

    def attempt() -> Any:
        with open_file(path) as file:
            return read(file)

    return retry(path, attempt)


def open_file(path: Path) -> Any:
    """Open a file read-only; retry for a while if a writer locks it."""
    import h5py

    with suppress(ImportError):
        # Importing it registers further compression filters (blosc, zstd, ...).
        import hdf5plugin  # type: ignore[import-not-found]  # noqa: F401
    with path.open("rb"):
        # raises Python's own error if the file does not exist or may not be read
        pass

    def attempt() -> Any:
        try:
            return _open_locked_or_not(path)
        except OSError as error:
            if is_transient(error) or h5py.is_hdf5(path):
                raise
            if journal_of(path).exists():
                raise ValueError(
                    f"{path} is half written: a program was killed while it changed the file, and "
                    f"left {journal_of(path)}. {how_to_restore(path)} restores the file."
                ) from error
            what = "is not an HDF5 file: it was cut off, or is of another kind"
            raise ValueError(f"{path} {what}.") from error

    what = "is locked, probably by a program that writes to it"
    return retry(path, attempt, (errno.EAGAIN,), LOCK_SECONDS, what)


def journal_of(path: Path) -> Path:
    """Return the path of the journal of a file, beside the file itself if `path` is a link."""
    real = Path(os.path.realpath(path))
    return real.with_name(f".journal-{real.name}.npz")


def how_to_restore(path: Path) -> str:
    """Return the two ways to restore a file from its journal."""
    return f"'nmfscale restore {shlex.quote(str(path))}' or nmfscale.tl.restore_h5ad({str(path)!r})"


def warn_of_journal(path: Path) -> None:
    """Warn if a program that changed a file, which can be read, has left a journal beside it."""
    if journal_of(path).exists():
        warn_caller(
            f"{journal_of(path)} was left by a program that was killed while it added a fit to "
            f"{path}. The file can be read; {how_to_restore(path)} removes the journal."
        )


def _open_locked_or_not(path: Path) -> Any:
    """Open a file with HDF5's lock, or without it if the file system has no locks."""
    import h5py

    try:
        return h5py.File(path, "r")
    except OSError as error:
        held = error.errno in (errno.EAGAIN, errno.EACCES, errno.EINTR)
        refused = error.errno in NO_LOCKS or "unable to lock file" in str(error)
        # "locking flag": this process has already opened the file without a lock
        if not ((refused and not held) or "locking flag" in str(error)):
            raise
        return h5py.File(path, "r", locking=False)


@contextmanager
def hdf5_errors(path: Path) -> Iterator[None]:
    """Convert errors inside the block to errors that name the file and the remedy."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path} lacks a part that its format has: {error.args[0]}.") from error
    except BlockingIOError:
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and is_transient(error):
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
        if "filter" in str(error) or "plugin" in str(error):
            remedy = "its compression needs a plugin: pip install hdf5plugin"
        else:
            remedy = "it is damaged or was cut off"
        raise OSError(f"{path} cannot be read; {remedy} ({error}).") from error


# Finding things -------------------------------------------------------------------------------


def find(group: Any, path: str, n_links: int = 0) -> Any:
    """Return the group or dataset at a path below `group`, or None; never leave the file."""
    import h5py

    node = group
    for name in filter(None, path.split("/")):
        link = node.get(name, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            what = f"{node.name.rstrip('/')}/{name} is a link to another file ({link.filename})"
            remedy = "such links are not followed; copy the data into one file"
            raise ValueError(f"{group.file.filename}: {what}; {remedy}.")
        if isinstance(link, h5py.SoftLink):
            if n_links == _MOST_LINKS:
                raise ValueError(f"{group.file.filename}: the links at {path!r} form a cycle.")
            origin = group.file if link.path.startswith("/") else node
            node = find(origin, link.path, n_links + 1)
        else:
            node = node[name]
    return node


def need(group: Any, path: str) -> Any:
    """Return the group or dataset at a path below `group`; a KeyError if there is none."""
    node = find(group, path)
    if node is None:
        raise KeyError(f"no {path!r} in {group.name}")
    return node


def is_group(node: Any) -> bool:
    """Whether a node is a group."""
    return hasattr(node, "keys")


def values_of(dataset: Any) -> Any:
    """Check a dataset, and read all of its values."""
    return checked_dataset(dataset)[()]


def shape_of(sizes: Any, group: Any) -> tuple[int, int]:
    """Return the two sizes of a shape, from an attribute or a dataset, as Python integers."""
    shape = np.asarray(sizes)
    # some programs write the sizes as floats
    is_whole = shape.dtype.kind in "iu" or (
        shape.dtype.kind == "f" and bool((np.abs(shape) < 2**53).all() and (shape % 1 == 0).all())
    )
    if shape.shape != (2,) or not is_whole or shape.min() < 0:
        raise ValueError(f"{group.file.filename}: {group.name} has the shape {sizes}, not 2-d.")
    return int(shape[0]), int(shape[1])


def strings(values: Iterable[Any]) -> NDArray[np.object_]:
    """Convert names to text: stored as bytes of fixed length, strings or numbers."""
    return np.array([text_of(value) for value in values], dtype=object)


def text_of(value: Any) -> str:
    """Convert one name to text."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the text {value[:80]!r} is not UTF-8, so names might become equal: write it as UTF-8"
        ) from error


# Datasets that can be trusted -----------------------------------------------------------------


def checked_dataset(dataset: Any) -> Any:
    """Return the dataset after checking that its values are in this file, at about full size."""
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise KeyError(f"{dataset.name} is not a dataset")
    where = f"{dataset.file.filename}: {dataset.name}"
    if dataset.shape is None:
        raise ValueError(f"{where} is empty.")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{where} stores its values in other files, which are not read.")
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(at) for at in range(settings.get_nfilters())]
    for code, _, _, name in filters:
        if not h5py.h5z.filter_avail(code):
            raise OSError(f"{where} needs the filter {name.decode() or code}, number {code}")
    item = dataset.id.get_type().get_size()
    # An empty dataset is never read, whatever its chunks are.
    claimed = max(dataset.size, math.prod(dataset.chunks or (0,))) * item if dataset.size else 0
    codes = {code for code, *_ in filters} - {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
    kind = "none" if not codes else (dataset.compression or "other") if len(codes) == 1 else "other"
    stored = dataset.id.get_storage_size()
    if claimed > _FREE_CLAIM + stored * _RATIOS.get(kind, _OTHER_RATIO):
        raise ValueError(
            f"{where} claims {dataset.shape} values, {claimed:,} bytes, but only {stored:,} bytes "
            "are stored; the file is damaged or was cut off."
        )
    return dataset


class Reader:
    """Reads an object of a file, and reopens the file after errors of the disk or network."""

    def __init__(self, node: Any, path: Path) -> None:
        self._path, self._name, self._file = path, node.name, node.file

    def read(self, attach: Callable[[Any], None], from_datasets: Callable[[], Any]) -> Any:
        """Return `from_datasets()`, with retries after errors that may pass.

        `attach` is called with the node each time the file is reopened. It is not stored: a
        reference cycle would keep the file open, and locked, until garbage collection.
        """
        return retry(self._path, lambda: self._attempt(attach, from_datasets))

    def _attempt(self, attach: Callable[[Any], None], from_datasets: Callable[[], Any]) -> Any:
        if not self._file:
            with opened_hdf5(self._path) as file:
                self._file = file
                attach(need(file, self._name))
        try:
            with hdf5_errors(self._path):
                return from_datasets()
        except OSError:
            # after a failed read, HDF5 would return zeros instead of reading again
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sequential(dataset: Any, cache_bytes: int) -> Any:
    """Reopen a dataset for sequential reads, with a cache for the chunk that two slices share."""
    import h5py

    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    # 1.0: evict chunks that were read completely first; the number of slots should be prime.
    access.set_chunk_cache(12421, max(2**20, cache_bytes), 1.0)
    return h5py.Dataset(h5py.h5d.open(dataset.file.id, dataset.name.encode(), access))
