"""Parts of counts: some of the rows, or a random share of every count (binomial thinning).

Thinning splits a count x in parts of equal expectation: ``z_1 ~ Binomial(x, 1 / p)``, and so on
with what is left.  Parts of Poisson counts are independent; for counts that vary more, the shares
of the parts vary, too.  Rows are drawn in groups of `_GROUP`,
each with its own random numbers, so that a part does not depend on where the counts are or on the
range of rows that is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.memory import Counts, checked_counts
from ...counts.validation import CompressedRows, compressed_rows
from ...storage.store import StoredCounts
from ...storage.store_writer import pack
from .file_counts import FileCounts
from .stream import RowStream, subject_of

Array = NDArray[Any]
_GROUP = 64
# Excess variance, relative to the squared mean, below which counts are taken as Poisson counts.
_LEAST_EXCESS = 1e-6
# Number of entries that are thinned at a time.
_ENTRIES = 1 << 21
# Bytes for each entry while rows are read.
_ENTRY_BYTES = 16


@dataclass(frozen=True)
class Thinning:
    """A split of every count in `n_parts`; `key` is a seed of 128 bits.

    `excess` (m,) is the variance of a feature beyond that of Poisson counts, relative to the
    squared mean; None is that of Poisson counts, 0. Shares of a count are then drawn from a
    Dirichlet distribution, which makes parts of negative binomial counts of this dispersion
    independent (Neufeld et al. 2023, Negative binomial count splitting).
    """

    key: int
    n_parts: int
    excess: Array | None = None

    @classmethod
    def of(cls, seed: SeedSequence, n_parts: int, excess: Array | None = None) -> Thinning:
        """Return the split that follows from a seed."""
        low, high = seed.generate_state(2, np.uint64).tolist()
        return cls(low | high << 64, n_parts, excess)

    def draw(self, matrix: sp.csr_array, first: int) -> list[Array]:
        """Return the counts of each part at the entries of sorted rows.

        `first` is the number of the first row, a multiple of the size of a group.
        """
        parts = [np.empty(matrix.nnz, np.int64) for _ in range(self.n_parts)]
        for here, rng, _ in groups_of_rows(self.key, matrix, first):
            left = matrix.data[here].astype(np.int64)
            for part in range(self.n_parts - 1):
                share = self._share(rng, matrix.indices[here], self.n_parts - part)
                drawn = rng.binomial(left, share)
                parts[part][here] = drawn
                left -= drawn
            parts[-1][here] = left
        return parts

    def _share(self, rng: np.random.Generator, features: Array, n_left: int) -> Any:
        """Return the share of what is left that one of `n_left` parts has, for each entry."""
        if self.excess is None:
            return 1 / n_left
        shares, excess = np.full(len(features), 1 / n_left), self.excess[features]
        varies = excess > _LEAST_EXCESS
        size = 1 / (self.n_parts * excess[varies])
        shares[varies] = rng.beta(size, size * (n_left - 1))
        return shares


class Draws(Protocol):
    """A random choice of counts: `Thinning`, or one that keeps a part of each sample."""

    def draw(self, matrix: sp.csr_array, first: int) -> list[Array]:
        """Return the counts of each part at the entries of sorted rows, as `Thinning.draw`."""


def groups_of_rows(
    key: int, matrix: sp.csr_array, first: int
) -> Iterator[tuple[slice, np.random.Generator, Array]]:
    """Yield the entries of each group of rows, its random numbers, and where its rows begin.

    `first` is the number of the first row, a multiple of the size of a group.
    """
    for start in range(0, matrix.shape[0], _GROUP):
        ends = matrix.indptr[start : start + _GROUP + 1]
        counter = np.array([0, 0, 0, (first + start) // _GROUP], np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key, counter=counter))
        yield slice(int(ends[0]), int(ends[-1])), rng, ends


class PartOfCounts(RowStream):
    """Some rows of counts, thinned or not.

    `kept` are the numbers of the rows, which do not fall, by default all. `parts` are the numbers
    of the parts of a thinning that are added up.
    """

    def __init__(
        self, counts: CountMatrix, kept: Array | None = None, thinning: Draws | None = None,
        parts: Sequence[int] = (),
    ):  # fmt: skip
        self._counts, self._thinning, self._parts = counts, thinning, tuple(parts)
        self._kept = np.arange(counts.shape[0]) if kept is None else kept
        self.subject = subject_of(counts)
        self.shape = len(self._kept), counts.shape[1]
        self.about = counts._described(rows=kept)

    def nan_entries(self) -> Any:
        """Return a mask (n, m) of NaN, if those of the counts are known."""
        entries = self._counts.nan_entries
        return None if entries is None else entries[self._kept]

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        kept, first = self._kept[start:stop], 0
        matrix = sp.csr_array((0, self.shape[1]), dtype=self._counts.dtype)
        if kept.size:
            first = int(kept[0]) // _GROUP * _GROUP
            # whole groups, because the numbers that are drawn depend on all of their counts
            last = min((int(kept[-1]) // _GROUP + 1) * _GROUP, self._counts.shape[0])
            pieces = self._counts.chunks(first, last)
            parts = [piece.matrix(self.shape[1]) for piece in pieces]
            matrix = sp.csr_array(sp.vstack(parts, "csr"))
            matrix.sort_indices()
        if self._thinning is not None:
            drawn = self._thinning.draw(matrix, first)
            data = sum((drawn[part] for part in self._parts), np.zeros(matrix.nnz, np.int64))
            matrix = _with_data(matrix, data.astype(self._counts.dtype))
        of_all = np.array_equal(kept - first, np.arange(matrix.shape[0]))
        selected = matrix if of_all else matrix[kept - first]
        return compressed_rows(selected, self.entry_names(), first=start, sort=True)

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in pieces of at most `max_bytes` before thinning, or one row."""
        stop = self.shape[0] if stop is None else stop
        ends = np.cumsum(self._counts.row_nnz[self._kept[start:stop]])
        n_entries, begin = max(1, max_bytes // _ENTRY_BYTES), 0
        while begin < stop - start:
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + n_entries, "right")))
            yield self.rows(start + begin, start + end)
            begin = end

    def in_store(self, path: Path, n_threads: int) -> StoredCounts:
        """Write the part to a packed store, block by block, and open it."""
        pack(FileCounts(self), path, n_threads=n_threads, overwrite=True)
        return StoredCounts(path)


def _with_data(matrix: sp.csr_array, data: Array) -> sp.csr_array:
    """Return a matrix with other values at its entries, without those that are 0."""
    replaced = sp.csr_array((data, matrix.indices.copy(), matrix.indptr.copy()), matrix.shape)
    replaced.eliminate_zeros()
    replaced.has_sorted_indices = True
    return replaced


def thinned_in_memory(counts: CountMatrix, thinning: Thinning) -> list[Counts]:
    """Return all parts of counts, which are read and drawn once, as counts in memory."""
    names, n = PartOfCounts(counts).about, counts.shape[0]
    ends = np.cumsum(counts.row_nnz)
    parts: list[list[sp.csr_array]] = [[] for _ in range(thinning.n_parts)]
    start = 0
    while start < n:
        before = ends[start - 1] if start else 0
        n_rows = int(np.searchsorted(ends, before + _ENTRIES, "right")) - start
        stop = min(n, start + max(1, n_rows // _GROUP) * _GROUP)
        pieces = [rows.matrix(counts.shape[1]) for rows in counts.chunks(start, stop)]
        matrix = sp.csr_array(sp.vstack(pieces, "csr"))
        matrix.sort_indices()
        for part, data in zip(parts, thinning.draw(matrix, start), strict=True):
            part.append(_with_data(matrix, data.astype(counts.dtype)))
        start = stop
    return [checked_counts(sp.csr_array(sp.vstack(matrices, "csr")), **names) for matrices in parts]
