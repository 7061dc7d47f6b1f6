"""Steps of no model: each does something that few or none do. Workers import them from here."""

from dataclasses import dataclass, field

import numpy as np

from nmfscale.counts.sell import LANES
from nmfscale.engine.protocol import ColumnStep, RowArrays, Step


@dataclass(frozen=True)
class Odd(Step):
    """A step whose row arrays are given, and that adds up numbers of its blocks if `n_sums`."""

    uses: tuple = ()
    makes: tuple = ()
    saves: tuple = ()
    aliases: tuple = ()
    reads: str | None = None
    n_sums: int = 0

    @property
    def arrays(self):
        return RowArrays(self.uses, self.makes, self.saves, self.aliases)

    def empty_sums(self):
        return [np.zeros(3) for _ in range(self.n_sums)]

    def run(self, block, sums, n_threads):
        for array in sums:
            array += (block.number + 1) / np.arange(3, 6)
        return {}


def _lanes(block, factor=1.0):
    """Numbers of the lanes of a block, which depend on where it is."""
    return factor * (block.number + 1) / (1 + np.arange(-(-block.n_rows // LANES) * LANES))


@dataclass(frozen=True)
class MakesAndSums(Odd):
    """Makes a row array of the counts, adds them up, and returns numbers of all kinds."""

    makes: tuple = ("made",)
    reads: str | None = "rows"
    n_sums: int = 1
    scale: np.ndarray = field(default_factory=lambda: np.array([0.1, 0.7]))
    shared = ("scale",)

    def run(self, block, sums, n_threads):
        counts = np.add.reduceat(block.counts.count.astype(float), block.counts.offset[:-1] * LANES)
        made = block.empty("made", _lanes(block))
        made[:] = np.repeat(counts, LANES)[: len(made)] / 3 * self.scale[1]
        sums[0] += counts.sum() / np.arange(3, 6)
        return {
            "total": np.float32(counts.sum() / 7), "rows": np.int64(block.n_rows), "one": True,
            "each": counts[:2] / 9, "max_each": counts[:2] / 9, "max_rows": block.n_rows,
        }  # fmt: skip


@dataclass(frozen=True)
class MakesTwo(Odd):
    """Makes two arrays that are alike, of which one name stands for the other's afterwards."""

    uses: tuple = ("made",)
    makes: tuple = ("twice", "again")
    aliases: tuple = (("again", "twice"),)

    def run(self, block, sums, n_threads):
        for name in self.makes:
            block.empty(name, block[self.uses[0]])[:] = 2 * block[self.uses[0]]
        return {}


@dataclass(frozen=True)
class SaysSame(Odd):
    """Makes an array that stands for one that it uses, whatever it writes."""

    uses: tuple = ("given",)
    makes: tuple = ("other",)
    aliases: tuple = (("other", "given"),)

    def run(self, block, sums, n_threads):
        block.empty("other", block["given"])[:] = -1
        return {"sum": float(block["other"].sum())}


@dataclass(frozen=True)
class PutsAny(Odd):
    """Makes an array of another shape in every block."""

    makes: tuple = ("any",)

    def run(self, block, sums, n_threads):
        block.put("any", np.full((2, block.number + 1), 0.1))
        return {}


@dataclass(frozen=True)
class Grows(Odd):
    """Makes an array of itself, without counts."""

    uses: tuple = ("given", "made")
    makes: tuple = ("given",)

    def run(self, block, sums, n_threads):
        more = block.get("made")
        before = block["given"]
        block.empty("given", before, np.float32)[:] = 3 * before + (0 if more is None else more)
        return {}


@dataclass(frozen=True)
class Looks(Odd):
    """Looks at an array, and says what it found."""

    uses: tuple = ("given",)
    name: str = "given"

    def run(self, block, sums, n_threads):
        return {"sum": block[self.name][: block.n_rows].sum()}


@dataclass(frozen=True)
class SharesWords(Looks):
    """It has a shared field that is no array."""

    words: tuple = ("one", "two")
    shared = ("words",)


@dataclass(frozen=True)
class Puts(Odd):
    """Makes an array of a name and a number of entries, or a value that is no number."""

    makes: tuple = ("made",)
    name: str = "made"
    n_entries: int | None = None
    value: object = 0

    def run(self, block, sums, n_threads):
        like = np.zeros(self.n_entries) if self.n_entries else _lanes(block)
        block.empty(self.name, like)[:] = 1
        return {"value": self.value}


@dataclass(frozen=True)
class OfColumns(ColumnStep):
    """Adds up the counts of each column times a row array, and times its own shared array."""

    factors: np.ndarray
    uses: tuple = ("given", "nothing")
    n_less: int = 0
    shared = ("factors",)

    def run(self, panel, n_threads):
        counts, found = panel.counts, np.zeros(panel.lanes.stop - panel.lanes.start)
        lane = np.repeat(np.arange(len(counts.offset) - 1), np.diff(counts.offset)) * LANES
        lane = (lane[:, None] + np.arange(LANES)).ravel()
        np.add.at(found, lane, counts.count * panel.arrays["given"][counts.index])
        found *= self.factors[panel.lanes]
        return {"found": found[self.n_less :], "names": np.repeat(len(panel.arrays), len(found))}
