"""Statistics of labellings of units: randomly drawn labellings, or all of them.

First of all, rows are rounded to whole multiples of about 2^-50 of each column's total (2^-31 if
there are many units). Sums over groups are then exact in any order, and labellings with the same
groups have the same statistic up to its last digits. The test stays exact: it is a test of the
rounded rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.aligned import aligned_empty
from ...counts.cached import cached_property
from ...counts.free_memory import free_memory
from ...counts.names import shown
from ...counts.sizes import MemoryLimitError, readable
from ...counts.warn import warn_caller
from ...kernels.functions import exp, log_gamma
from ...kernels.permute import PANEL_COLUMNS, permuted_sums
from ..design.groups import Labels
from ..design.labellings import n_labellings
from ..replicates.replicates import ReplicateTask
from ..replicates.seeds import child, child_states
from .statistics import Statistic

Array = NDArray[Any]
# Number of sums that are in memory at a time.
_SUMS = 1 << 18
# Labellings of all sets that are drawn at a time, and about how many units these may have.
_TOGETHER, _UNITS = 512, 1 << 26
# Number of labellings of pairs that take long: about 7 microseconds each.
_MANY = 1e8
# With at most this many units, labellings tie by design or chance: their sums are equal up to
# rounding.
_FEW_UNITS = 4096


@dataclass(frozen=True)
class Labelled:
    """Units whose labels are permuted within strata, and the groups that each test compares.

    `rows` (n_units, n_components) are whole multiples of `scale`, the unit of each column, and are
    sorted by stratum. `labels` are the numbers of their groups, `sizes` (n_strata, n_groups) the
    units of each group in each stratum, `tests` the groups of each test. The kernel adds up 32-bit
    numbers: the `low` lowest bits of rows, if any, are separate columns.
    """

    rows: NDArray[np.int64]
    scale: Array
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tests: tuple[tuple[int, ...], ...]
    low: int

    @classmethod
    def of(
        cls, statistic: Statistic, amounts: Array, labels: Array, strata: Array,
        tests: Iterable[tuple[int, ...]], weights: Array | None = None,
    ) -> Labelled:  # fmt: skip
        """Build the set from amounts of topics in units; labels are consecutive numbers from 0."""
        order = np.argsort(strata, kind="stable")
        rows = statistic.rows_of(amounts, strata, weights)[order]
        labels, strata = labels[order], strata[order]
        low = 31 - len(rows).bit_length() if len(rows) <= _FEW_UNITS else 0
        whole, scale = _whole_numbers(rows, min(52, 30 + low) if low else 31)
        _, strata = np.unique(strata, return_inverse=True)
        sizes = np.zeros((strata.max() + 1, labels.max() + 1), np.int64)
        np.add.at(sizes, (strata, labels), 1)
        return cls(whole, scale, labels, sizes, tuple(tests), low)

    def values(self, statistic: Statistic, sums: Array) -> Array:
        """Return the statistic of each test (n, n_tests) of sums (n, n_groups, n_components)."""
        summary, n_units = statistic.summary(sums * self.scale), self.sizes.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            of_tests = [statistic.of(summary, n_units, list(test)) for test in self.tests]
        values = np.stack(of_tests, axis=1)
        extreme = -np.inf if statistic.alternative == "less" else np.inf
        return np.where(np.isnan(values), extreme, values)

    def observed(self, statistic: Statistic) -> Array:
        """Return the statistic of each test for the observed labels."""
        return self.values(statistic, self._sums(self.labels[None]))[0]

    def table(self) -> Array:
        """Return sums over groups (n_groups, n_components) for the observed labels."""
        table: Array = self._sums(self.labels[None])[0] * self.scale
        return table

    def all_values(self, statistic: Statistic) -> Array:
        """Return the statistics of all labellings, each once."""
        n = n_labellings(self.sizes)
        step = max(1, _SUMS // max(self.sizes.shape[1] * self.scale.size, self.labels.size))
        out = np.empty((n, len(self.tests)))
        for first in range(0, n, step):
            numbers = np.arange(first, min(first + step, n))
            sums = self._sums(labellings(self.sizes, numbers))
            out[numbers] = self.values(statistic, sums)
        return out

    def _sums(self, labels: Array) -> Array:
        # products with 0 and 1 of whole numbers whose sums are below 2^53: exact in float64
        rows = self.rows.astype(np.float64)
        parts = [(labels == g).astype(np.float64) @ rows for g in range(self.sizes.shape[1])]
        return np.stack(parts, axis=1)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def columns(self) -> NDArray[np.int32]:
        """Columns of 32-bit integers that the kernel sums."""
        parts = [self.rows]
        if self.low:
            parts = [self.rows >> self.low, self.rows & ((1 << self.low) - 1)]
        return np.hstack(parts).astype(np.int32)

    def of_sums(self, sums: Array) -> Array:
        """Return sums of rows (n, n_groups, n_components) from sums of `columns`."""
        n_topics = self.scale.size
        high = sums[:, :, :n_topics].astype(np.float64)
        if self.low:
            high = np.ldexp(high, self.low) + sums[:, :, n_topics : 2 * n_topics]
        return high


Part = tuple[Statistic, Labelled]


@dataclass(frozen=True)
class Permuted:
    """Parts with the same units in each group and stratum, which see the same random labellings."""

    parts: tuple[Part, ...]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the parts: it would not be aligned elsewhere."""
        return {"parts": self.parts}

    @cached_property
    def _panels(self) -> NDArray[np.int32]:
        """Columns of all parts side by side in panels, as the kernel takes them."""
        columns = np.hstack([labelled.columns for _, labelled in self.parts])
        n, n_columns = columns.shape
        panels = aligned_empty((-(-n_columns // PANEL_COLUMNS), n, PANEL_COLUMNS), np.int32)
        panels[:] = 0
        for k, panel in enumerate(panels):
            part = columns[:, k * PANEL_COLUMNS : (k + 1) * PANEL_COLUMNS]
            panel[:, : part.shape[1]] = part
        return panels

    def random_values(self, seed: SeedSequence, numbers: range, n_threads: int) -> Array:
        """Return the statistics of labellings; labelling r is drawn with child r of the seed.

        The tests of one part follow those of another.
        """
        sizes = self.parts[0][1].sizes
        # the sums of the largest group follow by subtraction of the other groups from the total
        order = np.argsort(sizes.sum(axis=0), kind="stable")
        sizes, place = np.ascontiguousarray(sizes[:, order]), np.argsort(order)
        n_groups, width = len(order), len(self._panels) * PANEL_COLUMNS
        out = np.empty((len(numbers), sum(len(labelled.tests) for _, labelled in self.parts)))
        for part in _parts(numbers, max(8, _SUMS // (n_groups * width))):
            sums = aligned_empty((len(part), n_groups, width), np.int32)
            permuted_sums(self._panels, sizes, child_states(seed, part), sums, n_threads)
            at = slice(part.start - numbers.start, part.stop - numbers.start)
            column = test = 0
            for statistic, labelled in self.parts:
                last, last_test = column + labelled.columns.shape[1], test + len(labelled.tests)
                tables = labelled.of_sums(sums[:, place, column:last])
                out[at, test:last_test] = labelled.values(statistic, tables)
                column, test = last, last_test
        return out


class Permutations(ReplicateTask):
    """Random labellings of several sets of units, drawn independently, and their statistics."""

    name = "permutations"
    patience = 1.0

    def __init__(self, sets: Sequence[Sequence[Part]]):
        self.sets = [Permuted(tuple(parts)) for parts in sets]

    def smallest_batch(self, local: bool) -> int:
        """Return the number of labellings that make the work of a set far longer than its calls."""
        n_units = sum(len(permuted.parts[0][1].rows) for permuted in self.sets)
        return max(1, min(_TOGETHER, _UNITS // n_units))

    def about(self) -> Iterator[Any]:
        """Yield rows, labels, strata and statistics, and the statistics of the observed labels."""
        for permuted in self.sets:
            yield len(permuted.parts)
            for statistic, labelled in permuted.parts:
                yield from (statistic.name, statistic.code)
                yield from (labelled.rows, labelled.scale, labelled.sizes, repr(labelled.tests))
                yield labelled.observed(statistic)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the statistics of all tests, set by set."""
        statistics = [
            permuted.random_values(child(seed, i), numbers, n_threads)
            for i, permuted in enumerate(self.sets)
        ]
        return {"statistic": np.concatenate(statistics, axis=1)}


def check_pairs(labels: Labels, n_columns: int, n: int, scope: str) -> None:
    """Refuse tests of all pairs of groups that memory cannot hold; warn if they take long.

    Each pair has at most `n` labellings; rows of units have `n_columns`.
    """
    sizes = labels.sizes
    one, other = (sizes[groups] for groups in np.triu_indices(sizes.size, 1))
    # strata, which are not counted here, make labellings fewer
    logs = log_gamma(one + other + 1.0) - log_gamma(one + 1.0) - log_gamma(other + 1.0)
    of_pairs = np.full(one.size, n) if scope == "all" else np.minimum(n, exp(np.minimum(logs, 99)))
    n_values = float(of_pairs.sum())
    # null distributions of means and of spread are in memory twice
    n_bytes = 4 * 8 * n_values
    if scope == "pair":  # rows of both: as whole numbers, in columns, and in panels of the kernel
        n_bytes += 2 * 3 * 8 * n_columns * float((one + other).sum())
    tests = f"tests of all {one.size:,} pairs of {sizes.size:,} groups"
    remedy = (
        f"Compare one group with the rest, by labels such as labels == {shown(labels.names[0])}; "
        "test each topic, with intervals for the differences of all pairs, by group_effects; join "
        f"groups; or pass a smaller n_permutations than {n:,}."
    )
    if n_bytes > (limit := free_memory()):
        raise MemoryLimitError(
            f"{tests} need {readable(n_bytes)} of memory and may use {readable(limit)}. {remedy}"
        )
    if n_values > _MANY:
        warn_caller(
            f"{tests} by {n_values:,.0f} labellings in all take a quarter of an hour or longer. "
            f"{remedy} Ctrl-C ends the test with the labellings that are done."
        )


def labellings(sizes: Array, numbers: Array) -> Array:
    """Return the labellings (n_numbers, n_units) with these numbers, counted from 0.

    Labels of units are chosen one after the other. Of the m remaining labellings, m n_g / n give
    the next unit label g, where g occurs n_g times among the n remaining labels.
    """
    out, done = np.empty((numbers.size, int(sizes.sum())), np.int64), 0
    for stratum in sizes:
        m = np.full(numbers.size, n_labellings(stratum))
        numbers, rest = np.divmod(numbers, m)
        left = np.repeat(stratum[None], numbers.size, axis=0)
        for n in range(int(stratum.sum()), 0, -1):
            share = m[:, None] * left // n
            ends = np.cumsum(share, axis=1)
            label = np.argmax(rest[:, None] < ends, axis=1)
            here = np.arange(numbers.size), label
            rest, m = rest - (ends[here] - share[here]), share[here]
            left[here] -= 1
            out[:, done] = label
            done += 1
    return out


def _whole_numbers(rows: Array, bits: int) -> tuple[NDArray[np.int64], Array]:
    """Round columns to integers whose sums are below 2^bits; return them and the value of 1.

    Positive entries stay positive, because the positions of zeros decide whether a table has a
    balance.
    """
    totals = np.abs(rows).sum(axis=0)
    scale = np.where(totals > 0, totals, 1.0) / (2.0**bits - 1 - rows.shape[0])
    whole = np.rint(rows / scale)
    whole[(whole == 0) & (rows > 0)] = 1
    return whole.astype(np.int64), scale


def _parts(numbers: range, size: int) -> Iterator[range]:
    for first in range(numbers.start, numbers.stop, size):
        yield range(first, min(first + size, numbers.stop))
