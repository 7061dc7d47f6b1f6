"""Folds of counts: what a model is fitted to, and what is held out to score it.

Without units, every count is split in parts by binomial thinning, and each part is held out once.
With units, the samples of some units are held out; half of each of their counts is seen, and the
other half is scored.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...engine.memory import have_room
from ...readers.streams.thinning import PartOfCounts, Thinning, thinned_in_memory
from ...storage.store import StoredCounts
from .seeds import child, generator
from .shared_fits import file_of

Array = NDArray[Any]
# Number of sums of samples from whose spread standard errors are estimated; more samples or units
# are combined.
MOST_SUMS = 2000
# The folds that this process used last: tasks of one job find their parts arranged.
_latest: list[Folds] = []


class Fold(NamedTuple):
    """Counts of one fold.

    A model is fitted to `train`. `held_out` is scored with loadings of its samples that are fitted
    to `seen`; if this is None, they are the samples of `train`. `sums` are the numbers of the sums
    to which scores of the samples are added.
    """

    train: CountMatrix
    seen: CountMatrix | None
    held_out: CountMatrix
    sums: Array
    sums_of_train: Array


@dataclass(frozen=True)
class Folds:
    """Folds of counts that follow from a seed.

    `unit` (n,) is the number of the unit of each sample, None without units. `stores` are packed
    stores of the parts if memory is too small for them.
    """

    counts: CountMatrix
    n_folds: int
    seed: SeedSequence
    unit: Array | None
    stores: tuple[StoredCounts, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the parts, which are as large as the counts and follow from them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def in_this_process(self) -> Folds:
        """Return the same folds, with the parts that this process has made already."""
        if not _latest or _latest[0].token != self.token:
            _latest[:] = [self]
        return _latest[0]

    @classmethod
    def of(
        cls, counts: CountMatrix, n_folds: int, seed: SeedSequence, unit: Array | None,
        folder: Path, memory_limit: Any, n_threads: int,
    ) -> Folds:  # fmt: skip
        """Return the folds; parts that memory cannot hold are written to stores in a folder."""
        folds = cls(counts, n_folds, seed, unit)
        n_entries = counts.nnz * (2 if n_folds == 2 else n_folds)
        if have_room(n_entries, memory_limit):
            return folds
        folder.mkdir(parents=True, exist_ok=True)
        return cls(
            counts, n_folds, seed, unit,
            tuple(
                part.in_store(folder / f"part-{i}.nmf", n_threads)
                for i, part in enumerate(folds._streams())
            ),
        )  # fmt: skip

    @property
    def _thinning(self) -> Thinning:
        return Thinning.of(child(self.seed, 0), self.n_folds if self.unit is None else 2)

    @cached_property
    def fold_of_unit(self) -> Array:
        """Number of the fold in which each unit is held out."""
        assert self.unit is not None
        rng = generator(self.seed, 1)
        fold: Array = rng.permutation(int(self.unit.max()) + 1) % self.n_folds
        return fold

    @cached_property
    def sum_of_sample(self) -> Array:
        """Number of the sum that each sample is added to."""
        of = np.arange(self.counts.shape[0]) if self.unit is None else self.unit
        return np.asarray(of % MOST_SUMS)

    @property
    def n_sums(self) -> int:
        """Number of sums."""
        return int(self.sum_of_sample.max()) + 1

    def _streams(self) -> list[PartOfCounts]:
        """Return the parts: those that are fitted, then those that are held out."""
        counts, thinning, n = self.counts, self._thinning, self.n_folds
        if self.unit is None:
            held = [PartOfCounts(counts, None, thinning, [f]) for f in range(n)]
            if n == 2:
                return held
            rest = [[p for p in range(n) if p != f] for f in range(n)]
            return [PartOfCounts(counts, None, thinning, part) for part in rest] + held
        fold = self.fold_of_unit[self.unit]
        rows = [np.flatnonzero(fold == f) for f in range(n)]
        train = [PartOfCounts(counts, np.flatnonzero(fold != f)) for f in range(n)]
        halves = [PartOfCounts(counts, part, thinning, [i]) for i in (0, 1) for part in rows]
        return train + halves

    @cached_property
    def _parts(self) -> Sequence[CountMatrix]:
        if self.stores:
            return self.stores
        if self.unit is None and self.n_folds == 2:
            return thinned_in_memory(self.counts, self._thinning)
        return [stream.in_memory() for stream in self._streams()]

    def fold(self, number: int) -> Fold:
        """Return the counts of a fold."""
        n, parts, sums = self.n_folds, self._parts, self.sum_of_sample
        if self.unit is None:
            held = parts[1 - number] if n == 2 else parts[n + number]
            return Fold(parts[number], None, held, sums, sums)
        inside = self.fold_of_unit[self.unit] == number
        return Fold(
            parts[number], parts[n + number], parts[2 * n + number], sums[inside], sums[~inside]
        )

    def rows(self, number: int) -> tuple[Array, Array]:
        """Return the samples that are fitted in a fold, and those that are scored."""
        if self.unit is None:
            rows = np.arange(self.counts.shape[0])
            return rows, rows
        inside = self.fold_of_unit[self.unit] == number
        return np.flatnonzero(~inside), np.flatnonzero(inside)

    def halves(self) -> tuple[CountMatrix, CountMatrix]:
        """Return the two parts of counts that are split in halves."""
        return self._parts[0], self._parts[1]

    def remove_stores(self) -> None:
        """Remove the packed stores of the parts."""
        for store in self.stores:
            Path(file_of(store)[0]).unlink(missing_ok=True)

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the path and identity of a file that workers must read, if there is one."""
        return file_of(self.stores[0] if self.stores else self.counts)
