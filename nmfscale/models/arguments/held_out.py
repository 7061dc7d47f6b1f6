"""Samples that a fit holds out, to see when it predicts them best."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine.memory import have_room
from ...methods.variational.held_out import HeldOut
from ...readers.streams.thinning import PartOfCounts, Thinning

Array = NDArray[Any]


@dataclass(frozen=True)
class HeldOutSamples:
    """A random share of the samples of a fit.

    Attributes
    ----------
    counts : CountMatrix of shape (n, m)
    rows, others : ndarray of int
        Numbers of the samples that are held out, and of those that are fitted.
    thinning : Thinning
        Split of the counts of held-out samples in halves.
    """

    counts: CountMatrix
    rows: Array
    others: Array
    thinning: Thinning

    @classmethod
    def drawn(cls, counts: CountMatrix, fraction: float, random_state: Any) -> HeldOutSamples:
        """Draw samples, which do not depend on where the counts are.

        `random_state` is a seed, or None for a fixed one: a fit that is resumed draws them again.
        """
        if not counts.is_integer:
            raise ValueError(
                f"validation_fraction={fraction} needs whole counts, which can be split in halves; "
                f"X has others: {counts.first_fraction}. Give whole counts, or "
                "validation_fraction=None."
            )
        n = counts.shape[0]
        n_held = min(round(fraction * n), n - 1)
        seed = SeedSequence(random_state if isinstance(random_state, int) else 0)
        drawn = np.random.default_rng(seed).permutation(n)
        rows = np.sort(drawn[:n_held])
        return cls(counts, rows, np.sort(drawn[n_held:]), Thinning.of(seed.spawn(1)[0], 2))

    def halves(self) -> HeldOut:
        """Return the halves of the counts of the held-out samples."""
        halves = [
            PartOfCounts(self.counts, self.rows, self.thinning, [part]).in_memory()
            for part in (0, 1)
            if len(self.rows)
        ]
        if not halves or not halves[1].total:
            raise ValueError(
                f"validation_fraction: {len(self.rows)} of {self.counts.shape[0]} samples would be "
                "held out, without counts to score. Give a larger fraction, or None."
            )
        return HeldOut(*halves)

    def whole(self) -> CountMatrix:
        """Return the counts of the held-out samples."""
        return PartOfCounts(self.counts, self.rows).in_memory()

    @contextmanager
    def fitted(self, memory_limit: Any, n_threads: int) -> Iterator[CountMatrix]:
        """Make the counts of the other samples: in memory, or in a temporary file without room."""
        part = PartOfCounts(self.counts, self.others)
        if have_room(self.counts.nnz, memory_limit):
            yield part.in_memory()
            return
        with tempfile.TemporaryDirectory(prefix="nmfscale-") as folder:
            yield part.in_store(Path(folder, "fitted.nmf"), n_threads)

    def joined(self, of_others: Array, of_rows: Array) -> Array:
        """Return values of all samples, given those of the others and of the held-out samples."""
        whole = np.empty((self.counts.shape[0], *of_others.shape[1:]), of_others.dtype)
        whole[self.others], whole[self.rows] = of_others, of_rows
        return whole


def check_validation(share: float | None, collapsed: bool) -> None:
    """Refuse a share of samples to hold out in mean-field inference."""
    if share is not None and not collapsed:
        raise ValueError(
            f"validation_fraction={share} is for inference='collapsed': in mean field, the ELBO "
            "never falls and decides when a fit ends. Set it to None."
        )
