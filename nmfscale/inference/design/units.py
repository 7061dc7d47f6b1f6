"""Sampling units with their topics, groups and strata, and warnings if groups are unlike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...counts.warn import warn_caller
from ...methods.factors import proportions
from ...models.pipelines import refuse_swapped
from .groups import (
    Labels,
    blocks_of,
    checked_design,
    checked_labels,
    groups_of_samples,
    table_of,
    warn_of_samples_as_units,
)
from .loadings import topics_of_samples

Array = NDArray[Any]
# Ratio of the mean numbers of samples, or of counts, of units of two groups from which square roots
# are warned of.
_UNLIKE_ROOTS = 1.5
# With fewer units that have a topic, its spread in a group is poorly known; and the share of a
# unit's total from which it has a topic.
FEW_UNITS, PRESENT = 10, 1e-3


@dataclass(frozen=True)
class Units:
    """Topics of units (n, T), with groups, strata, numbers of samples and mean counts.

    Empty samples do not count. `subjects` (n,) are numbers of the units that the caller passed, if
    some of these have samples in several groups, so that a unit is what one of them has in one
    group; else None. `depths` is None if total counts are unknown. `unit_of_sample` is the number
    of each sample's unit, -1 if it has none.
    """

    rows: Array
    groups: Labels
    strata: NDArray[np.int64]
    n_samples: Array
    depths: Array | None
    topic_names: tuple[Any, ...]
    unit_of_sample: NDArray[np.int64]
    subjects: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, model: Any, groups: Any, units: Any, strata: Any, scale: str = "proportions",
        *, amounts: bool = False,
    ) -> Units:  # fmt: skip
        """Build the units of samples, without empty samples.

        The proportions of a unit are the mean over its samples, its amounts the sum. `amounts`:
        groups may be many different numbers, such as doses.
        """
        refuse_swapped(model, groups, "the groups")
        topics = topics_of_samples(model, scale, warn=False)
        names = topics.sample_names
        check = checked_labels if amounts else groups_of_samples
        labels = check(groups, len(topics), sample_names=names)
        design = checked_design(labels, units, strata, sample_names=names)
        assert design.groups is not None
        warn_of_samples_as_units(design)
        rows, labels = design.sum_over_units(topics.rows), design.groups
        n_samples = design.sum_over_units((~topics.empty).astype(np.float64))
        kept = n_samples > 0
        left = labels.of(kept)
        topics.warn_of_empty(_with_them(kept, labels, left, units is not None))
        labels = left
        if len(labels.names) == kept.sum() > 2:
            raise ValueError(
                f"groups has a different label for each of {len(labels.names):,} units: groups of "
                "several units are needed. Was the right column given?"
            )
        if len(labels.names) < 2:
            raise ValueError(
                f"groups has only {', '.join(map(repr, labels.names)) or 'no labels'} among units "
                "that have topics: two groups at least are needed."
            )
        rows, n_samples, depths = rows[kept], n_samples[kept], None
        if topics.totals is not None:
            depths = design.sum_over_units(topics.totals)[kept] / n_samples
        if scale == "proportions":
            rows = proportions(rows)
        subjects = None if design.subjects is None else design.subjects.codes[kept]
        return cls(
            rows, labels, design.strata.codes[kept], n_samples, depths, topics.topic_names,
            _places(kept)[design.of_sample], subjects,
        )  # fmt: skip

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The block (n,) of each unit, within which labels are permuted: see `blocks_of`."""
        return blocks_of(self.strata, self.subjects)

    @property
    def weights(self) -> Array | None:
        """Weights (n,) of units in comparisons within blocks, None if all count alike."""
        if self.subjects is None:
            return None
        return weights_of_subjects(proportions(self.rows), self.blocks, self.subjects)

    @property
    def relative_weights(self) -> Array:
        """The same, 1 if all count alike."""
        weights = self.weights
        return np.ones(len(self.rows)) if weights is None else weights

    @property
    def n_crossed(self) -> int:
        """Number of the caller's units that have samples in several groups."""
        return 0 if self.subjects is None else int((np.bincount(self.subjects) > 1).sum())

    def at(self, kept: Array) -> Units:
        """Return some of the units, by a mask (n,)."""
        subjects, depths = (
            None if array is None else array[kept] for array in (self.subjects, self.depths)
        )
        of_sample = np.append(_places(kept), -1)[self.unit_of_sample]  # -1 stays
        return replace(
            self, rows=self.rows[kept], groups=self.groups.of(kept), strata=self.strata[kept],
            unit_of_sample=of_sample, n_samples=self.n_samples[kept], depths=depths,
            subjects=subjects,
        )  # fmt: skip

    def compared(self) -> Units:
        """Return the units that a test can compare, with a warning of those that are left out.

        Where some subjects have samples in several groups, others that are all in one group have no
        counterpart.
        """
        if self.subjects is None:
            return self
        blocks = self.blocks
        alone = (table_of(blocks, self.groups.codes) > 0).sum(axis=1)[blocks] == 1
        if not alone.any() or alone.all():
            return self
        names = [shown(name) for name in self.groups.of(alone).names]
        warn_caller(
            f"{int(alone.sum()):,} units have samples in group {', '.join(names)} only, beside "
            f"{self.n_crossed:,} in several groups, which are compared within each: the test "
            "leaves the former out, as no unit of another group can be set against them."
        )
        return self.at(~alone)

    def warn_of_roots(self, statistic: str) -> None:
        """Warn if a statistic of roots may respond to the samples or counts of units."""
        for what, values in ("samples", self.n_samples), ("counts a sample", self.depths):
            unlike = None if values is None else _unlike(values, self.groups, _UNLIKE_ROOTS)
            if unlike is not None:
                warn_caller(
                    f"units of {unlike[0]} {what} on average, those of {unlike[1]}: "
                    f"statistic={statistic!r} takes square roots, whose mean depends on that, so "
                    "that p may be far too small. statistic='welch' does not."
                )


def _unlike(values: Array, groups: Labels, factor: float) -> tuple[str, str, float] | None:
    """Return the groups with the smallest and largest mean, if these are far apart."""
    means = np.bincount(groups.codes, weights=values) / groups.sizes
    least, most = int(means.argmin()), int(means.argmax())
    if means[most] <= factor * means[least]:
        return None
    one, other = (f"group {groups.names[g]!r} have {means[g]:.3g}" for g in (least, most))
    return one, other, float(means[least])


def within_strata(rows: Array, strata: Array, weights: Array | None = None) -> Array:
    """Subtract the (weighted) mean of its stratum from each row; no permutation changes it."""
    _, stratum = np.unique(strata, return_inverse=True)
    stratum = stratum.reshape(-1)
    weighed = rows if weights is None else rows * weights[:, None]
    sums = np.zeros((int(stratum.max()) + 1, rows.shape[1]))
    np.add.at(sums, stratum, weighed)
    centred: Array = rows - (sums / np.bincount(stratum, weights)[:, None])[stratum]
    return centred


def weights_of_subjects(rows: Array, blocks: Array, subjects: Array) -> Array | None:
    """Return weights (n,) of units in comparisons within blocks, None if all count alike.

    Subjects with a single unit are compared with others, from which they differ more than a subject
    differs from itself: their units weigh by the ratio of the variance within subjects to that
    between them (generalised least squares; recovery of inter-block information). Labels have no
    part in it.
    """
    several = np.bincount(subjects)[subjects] > 1
    if several.all() or not several.any():
        return None
    squares = (within_strata(rows, blocks) ** 2).sum(axis=1)
    within, between = (
        squares[part].sum() / max(1, part.sum() - np.unique(blocks[part]).size)
        for part in (several, ~several)
    )
    ratio = min(1.0, float(within / between)) if between > 0 else 1.0
    return np.where(several, 1.0, ratio)


def _places(kept: Array) -> NDArray[np.int64]:
    """Return the place of each unit among those that are kept, -1 if it is not."""
    return np.where(kept, np.cumsum(kept) - 1, -1)


def _with_them(kept: Array, labels: Labels, left: Labels, are_units: bool) -> str:
    """Return text that names the units and groups that are left out with empty samples."""
    gone = [str(name) for name in labels.names if name not in left.names]
    lost = [f"{int((~kept).sum()):,} units"] if are_units and not kept.all() else []
    lost += [f"groups {', '.join(gone)}"] if gone else []
    return f"; with them {', '.join(lost)}" if lost else ""


def warn_of_rare_topics(rows: Array, groups: Labels, names: tuple[Any, ...], units: str) -> None:
    """Warn of topics that fewer than `FEW_UNITS` units of a group, and less than half, have.

    `rows` (n, T) are topics of units, `units` is what these are called. The name of a group of all
    units is None.
    """
    has = np.zeros((len(groups.names), rows.shape[1]), np.int64)
    np.add.at(has, groups.codes, rows > PRESENT * rows.sum(axis=1, keepdims=True))
    rare = np.argwhere((has < FEW_UNITS) & (2 * has < groups.sizes[:, None]))
    if not len(rare):
        return
    order = np.argsort(has[tuple(rare.T)], kind="stable")
    texts = [
        f"topic {shown(names[t])} in {has[r, t]:,} of {groups.sizes[r]:,} {units}"
        + ("" if groups.names[r] is None else f" of group {shown(groups.names[r])}")
        for r, t in rare[order[:3]].tolist()
    ]
    more = f"; and {len(rare) - 3:,} more" if len(rare) > 3 else ""
    warn_caller(
        f"few {units} have some topics: {'; '.join(texts)}{more}. With fewer than {FEW_UNITS} the "
        "spread of a topic is poorly known: its mean and differences may be far from the truth, "
        "intervals are too narrow, and tests of this topic alone reject too often."
    )
