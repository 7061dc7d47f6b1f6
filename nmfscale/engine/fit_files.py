"""The files of a fit on a cluster that this process writes: row arrays, and arrays for all workers.

A file is deleted when nothing refers to its arrays any more.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cluster.pool import WorkerPool
from ..storage.arrays import Arrays, save_arrays
from .lineage import Ref, Saved
from .protocol import Array

# Number of shared arrays that are kept because they may be requested again.
_RECENT_SHARED = 4


class FitFiles:
    """Files in a folder, under new names; workers of the pool may have copies of their arrays."""

    def __init__(self, folder: Path, pool: WorkerPool):
        self._folder, self._pool = folder, weakref.ref(pool)
        self._recent: deque[Ref] = deque(maxlen=_RECENT_SHARED)
        self._n_names = 0

    def new_name(self, what: str) -> str:
        """Return a name that no other file or run of a step has."""
        self._n_names += 1
        return f"{what}-{self._n_names}"

    def write(self, name: str, arrays: Arrays) -> Ref:
        """Write arrays to a file that the caller deletes."""
        save_arrays(self._folder / name, arrays)
        return Ref(name, str(self._folder / name))

    def saved(self, refs: Sequence[Ref]) -> Saved:
        """Return a row array in these files, which are deleted with it."""
        saved = Saved(tuple(refs))
        for ref in refs:
            weakref.finalize(saved, _drop, ref, self._pool)
        return saved

    def share(self, what: str, array: Array) -> Ref:
        """Write an array for all workers; its file is deleted with the returned object."""
        name = self.new_name(what)
        ref = self.write(f"{name}.npz", {"array": array})
        weakref.finalize(ref, _drop, replace(ref), self._pool)
        return ref

    def publish(self, array: Array) -> Ref:
        """Write an array of a step for all workers, unless it was published recently."""
        digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()
        name = f"shared-{array.dtype}-{'x'.join(map(str, array.shape))}-{digest}"
        for recent in self._recent:
            if recent.name.startswith(name):
                return recent
        ref = self.share(name, array)
        self._recent.append(ref)
        return ref


def _drop(ref: Ref, pool: weakref.ref[WorkerPool]) -> None:
    """Delete a file, and copies of its arrays on workers."""
    remove(ref.path)
    alive = pool()
    if alive is not None:
        alive.forget([ref.path])


def remove(path: str) -> None:
    """Delete a file, unless something else has."""
    try:
        os.unlink(path)
    except OSError:
        pass
