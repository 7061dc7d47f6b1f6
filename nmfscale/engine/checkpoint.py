"""Checkpoints of a fit: its complete state, so that a resumed fit gives the same result.

A checkpoint is one HDF5 file ``checkpoint-00000012.h5`` in a folder: attributes ``format``,
``format_version``, ``about`` (JSON: data and options of the fit), ``arrays`` (JSON: names of
arrays) and, written last, ``complete``; one dataset for each array and one of bytes, ``numbers``
(JSON), all with a ``crc32``. It is written under a temporary name, flushed to disk and moved into
place; the last two checkpoints are kept. Only one fit at a time can use a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import kernels
from ..counts.base import CountMatrix
from ..counts.row_ranges import row_chunks
from ..counts.sell import LANES
from ..counts.validation import CHUNK
from ..counts.warn import warn_caller
from ..storage.arrays import put, put_json, read_checked, read_json
from ..storage.atomic import UNFINISHED, atomic_hdf5, user_path
from ..storage.hdf5 import read_file
from ..storage.locks import FileInUseError, FileLock

Array = NDArray[Any]
# The version changes with the saved state and with the steps that continue from it.
FORMAT, VERSION = "nmfscale-checkpoint", 14
_FILES, _RESTARTS = "checkpoint-????????.h5", "restart-*"
_KEPT = 2
_MOST_FAILURES = 3
# Exists as long as a fit uses the folder.
_LOCK = ".in-use"
# Error text for digests that do not match.
_OTHERS = {
    "counts": "the counts differ",
    "constraints": "fixed parameters, measured features, batches, weights or priors differ",
    "start": "the start differs",
    "inputs": "the inputs differ",
}


class CheckpointError(ValueError):
    """A folder has no usable checkpoint, or its checkpoints are of a different fit."""

    __module__ = "nmfscale.errors"


class Checkpoint:
    """Where and how often (in seconds) a fit saves its state; 0 saves every iteration.

    `about` describes the data and options of the fit, which must be equal in a resumed fit. With
    `resume` the fit continues from the newest checkpoint in the folder, if there is one; without
    it, a folder with checkpoints is a CheckpointError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        about: dict[str, Any],
        *,
        every: float = 60.0,
        resume: bool = False,
    ):
        self.folder, self.about, self.every, self.resume = user_path(folder), about, every, resume
        self._saved_at, self._failures = time.monotonic(), 0
        self.saved: int | None = None
        _make(self.folder)
        for part in self.folder.glob(f"{UNFINISHED}*-checkpoint-*"):  # left by a killed process
            part.unlink(missing_ok=True)
        if self._files() and not resume:
            raise CheckpointError(
                f"{folder} holds checkpoints of a fit already: resume it, or give another folder."
            )

    def due(self) -> bool:
        """Whether the next checkpoint is due."""
        return time.monotonic() - self._saved_at >= self.every

    def save(self, iteration: int, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Write a checkpoint; a full disk is a warning first, and an error if it stays full."""
        target = self.folder / f"checkpoint-{iteration:08d}.h5"
        try:
            with atomic_hdf5(target) as (file, _):
                file.attrs["format"], file.attrs["format_version"] = np.bytes_(FORMAT), VERSION
                file.attrs["about"] = np.bytes_(json.dumps(self.about))
                file.attrs["arrays"] = np.bytes_(json.dumps(sorted(arrays)))
                # a dataset, as an attribute holds only 64 kB and a history may be longer
                put_json(file, "numbers", numbers)
                for name, array in arrays.items():
                    put(file, name, array)
                file.flush()
                file.attrs["complete"] = 1
        except OSError as error:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                raise
            warn_caller(f"no checkpoint could be written to {target}: {error}")
            return
        self.saved, self._failures, self._saved_at = iteration, 0, time.monotonic()
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Return numbers and arrays of the newest undamaged checkpoint, None if there is none.

        Raise CheckpointError if the checkpoints are of a different fit, or all of them are damaged.
        """
        reasons = []
        for path in reversed(self._files()) if self.resume else ():
            try:
                numbers, arrays = read_file(path, partial(self._read, path=path))
                return numbers, arrays
            except CheckpointError:
                raise
            except (OSError, KeyError, RuntimeError, ValueError) as error:
                reasons.append(f"{path.name}: {error}")
        if reasons:
            raise CheckpointError(
                f"{self.folder}: no checkpoint can be read ({'; '.join(reasons)}). Remove them to "
                "begin from the start."
            )
        return None

    def _read(self, file: Any, path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
        if file.attrs.get("format") != np.bytes_(FORMAT) or file.attrs.get("complete") != 1:
            raise KeyError("not a complete checkpoint")
        version = file.attrs.get("format_version")
        if not np.array_equal(version, VERSION):
            raise ValueError(
                f"saved by another version of nmfscale: its format is {version}, not {VERSION}"
            )
        about = json.loads(file.attrs["about"])
        for name in sorted(set(about) | set(self.about)):
            was, now = about.get(name), self.about.get(name)
            if was != now:
                what = _OTHERS.get(name, f"{name} was {was!r} and is {now!r} now")
                if isinstance(was, dict) or isinstance(now, dict):  # digests, which tell nothing
                    what = f"{name} differs"
                raise CheckpointError(
                    f"{path} is of a different fit: {what}. Resume with the original inputs, or "
                    "give another folder."
                )
        names = json.loads(file.attrs["arrays"])
        return read_json(file, "numbers"), {name: read_checked(file, name) for name in names}

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(_FILES))


def checkpoints_for(
    folder: str | os.PathLike[str] | None, n_starts: int, counts: CountMatrix,
    parts: dict[str, Iterable[Any]], *, every: float, resume: bool, n_moves: int = 0,
    continued: bool = False, **options: Any,
) -> list[Checkpoint | None]:  # fmt: skip
    """Return the checkpoint folder of each start of a fit: `folder`, or a subfolder for each.

    Moves are further starts, after the `n_starts` others. Last comes the fit of the best one to its
    end, if there are moves, or if several starts are `continued`.

    A resumed fit must have the same `parts` (arrays, of which checkpoints hold a digest) and the
    same `options`. Raise ValueError if there is no folder to resume from, or its checkpoints do not
    match the request.
    """
    for name, arrays in parts.items():
        if not isinstance(arrays, Iterable):
            raise TypeError(
                f"parts[{name!r}] is {arrays!r}: a tuple of arrays is needed, of which each may be "
                f"None, such as ({arrays!r},)."
            )
    n_fits = n_starts + n_moves
    n_folders = n_fits + (n_moves > 0 or (continued and n_starts > 1))
    if folder is None:
        if resume:
            raise ValueError("resume=True needs checkpoint=, the folder to resume from.")
        return [None] * n_folders
    if not isinstance(every, Real) or not every >= 0:
        raise ValueError(f"checkpoint_every={every!r}: seconds, at least 0, are needed.")
    top = _path(folder)
    several, single = list(top.glob(f"{_RESTARTS}/{_FILES}")), list(top.glob(_FILES))
    if single if n_folders > 1 else several:
        before = "n_init=1" if single else "n_init > 1"
        now = f"n_init is {n_starts}"
        if n_moves or not single:
            before += " and n_moves=0" if single else " or n_moves > 0"
            now += f" and n_moves is {n_moves}"
        raise CheckpointError(
            f"{top} holds checkpoints of a fit with {before}, and {now} now: fit as before, or "
            "give another folder."
        )
    names = [*map(str, range(n_fits)), *["end"] * (n_folders - n_fits)]
    folders = [top / f"restart-{name}" for name in names] if n_folders > 1 else [top]
    about = (
        _describe(counts) | {name: digest_of(*arrays) for name, arrays in parts.items()} | options
    )
    return [Checkpoint(path, about, every=every, resume=resume) for path in folders]


def checkpoints_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoints of all starts in a folder, oldest first."""
    top = _path(folder)
    return sorted([*top.glob(_FILES), *top.glob(f"{_RESTARTS}/{_FILES}")])


def recorded_level(folder: Path | None) -> str | None:
    """Return the instruction set of the newest checkpoint in a folder, None if there is none."""
    level = None if folder is None else _recorded(folder, "instruction set")
    if level is None:
        return None
    return "baseline" if level.startswith("baseline") else "avx2"


def recorded_seed(folder: str | os.PathLike[str]) -> int | None:
    """Return the seed of the fit whose checkpoints are in a folder; None if it had none.

    For replicates it is the entropy of the seed, which their checkpoints hold.
    """
    seed: int | None = _recorded(folder, "random_state")
    return seed


def _recorded(folder: str | os.PathLike[str], name: str) -> Any:
    def read(file: Any) -> Any:
        about = json.loads(file.attrs["about"])
        if name == "random_state" and name not in about:
            return read_json(file, "numbers")["entropy"]
        return about[name]

    for path in checkpoints_in(folder)[::-1]:
        with suppress(OSError, KeyError, RuntimeError, ValueError):
            return read_file(path, read)
    return None


@contextmanager
def folder_in_use(checkpoint: str | os.PathLike[str], left: str) -> Iterator[Path]:
    """Lock a folder of checkpoints for one fit; `left` names files of earlier fits to delete."""
    folder = _make(_path(checkpoint).resolve())
    try:
        with FileLock(folder / _LOCK) as alone:
            for path in folder.glob(left) if alone else ():
                shutil.rmtree(path, ignore_errors=True)
            yield folder
    except FileInUseError as error:
        raise CheckpointError(
            f"checkpoint={str(checkpoint)!r} is in use by {error.strerror}; wait for the end "
            "of that "
            "fit, or give another folder."
        ) from None


def _path(folder: Any) -> Path:
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise ValueError(f"checkpoint={folder!r}: the path of a folder is needed.")
    return user_path(folder)


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"checkpoint={str(folder)!r}: no such folder ({error}).") from None
    return folder


def _describe(counts: CountMatrix) -> dict[str, Any]:
    """Describe the data and options of a fit, independent of storage and number of threads."""
    # all instruction sets but the baseline give the same bits; its logarithm depends on the machine
    baseline = kernels.level() == "baseline"
    return {
        "counts": digest_of(counts.shape, _marks(counts)),
        "instruction set": (
            f"baseline of {platform.machine()}" if baseline else "avx2, avx512 or neon"
        ),
    }


def _marks(counts: CountMatrix) -> NDArray[np.uint64]:
    """Return a hash of every row: counts times pseudo-random numbers of their columns, modulo 2^64.

    Sums of integers do not depend on the order, and so not on how the counts are stored.
    """
    multipliers, out = _scattered(counts.shape[1]), np.zeros(counts.shape[0] + 1, np.uint64)
    if not counts.from_file:
        for first, indptr, indices, data in counts.chunks():
            filled = np.flatnonzero(np.diff(indptr))
            if filled.size:
                terms = _as_integers(data, counts.is_integer) * multipliers[indices]
                out[first + filled] = np.add.reduceat(terms, indptr[filled])
        return out[:-1]
    layout = counts.layout()
    multipliers = multipliers[layout.column_order]
    for block, slices in layout.visit("rows"):
        rows = layout.row_order[block.first : block.last].reshape(-1, LANES)
        for first, last in row_chunks(slices.offset, CHUNK // LANES):
            low, high = slices.offset[first], slices.offset[last]
            here = slice(low * LANES, high * LANES)
            terms = (
                _as_integers(slices.count[here], counts.is_integer)
                * multipliers[slices.index[here]]
            )
            filled = np.flatnonzero(np.diff(slices.offset[first : last + 1]))
            if filled.size:
                steps = slices.offset[first:last][filled] - low
                sums = np.add.reduceat(terms.reshape(-1, LANES), steps, axis=0)
                out[rows[first:last][filled]] = sums
    return out[:-1]


def _scattered(size: int) -> NDArray[np.uint64]:
    """Return pseudo-random numbers of the first integers, by splitmix64."""
    z = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _as_integers(data: Array, whole: bool) -> NDArray[np.uint64]:
    """Return counts as integers; if they are fractional, return the bits of their float64."""
    # a split count is the sum of its pieces, and padding is 0
    return data.astype(np.uint64) if whole else data.astype(np.float64).view(np.uint64)


def described(value: Any) -> Any:
    """Return what a checkpoint holds of a parameter: JSON, which is equal for equal values."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "get_params"):
        parameters = value.get_params(deep=False)
        return {name: described(part) for name, part in parameters.items()}
    if isinstance(value, list | tuple):
        return {"values": [described(part) for part in value]}
    if callable(value):
        return {"function": f"{value.__module__}.{getattr(value, '__qualname__', '')}"}
    if sp.issparse(value):
        entries = value.tocoo()
        return {"digest": digest_of(entries.shape, entries.row, entries.col, entries.data)}
    return {"digest": digest_of(value)}


def digest_of(*values: Any) -> str:
    """Return a digest of arrays, numbers, text and None."""
    digest = hashlib.sha256()
    for value in values:
        array = np.asarray("" if value is None else value)
        array = array.astype(str) if array.dtype == object else array  # whose bytes are pointers
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
