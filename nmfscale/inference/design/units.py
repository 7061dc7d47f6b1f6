"""Sampling units with their topics, groups and strata, and warnings if groups are unlike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.warn import warn_caller
from ...methods.factors import proportions
from ...models.pipelines import refuse_swapped
from .groups import Labels, checked_design, checked_labels, warn_of_samples_as_units
from .loadings import topics_of_samples

Array = NDArray[Any]
# Ratio of the mean numbers of samples, or of counts, of units of two groups from which to warn: for
# square roots, and for proportions that were fitted to few counts.
_UNLIKE_ROOTS, _UNLIKE_DEPTHS = 1.5, 2.0
# With fewer counts in a sample for each topic, proportions have a bias that tests detect.
FEW_COUNTS = 50


@dataclass(frozen=True)
class Units:
    """Topics of units (n, T), with groups, strata, numbers of samples and mean counts.

    Empty samples do not count. `depths` is None if total counts are unknown.
    """

    rows: Array
    groups: Labels
    strata: NDArray[np.int64]
    n_samples: Array
    depths: Array | None

    @classmethod
    def of(
        cls, model: Any, groups: Any, units: Any, strata: Any, scale: str = "proportions"
    ) -> Units:
        """Build the units of samples, without empty samples.

        The proportions of a unit are the mean over its samples, its amounts the sum.
        """
        refuse_swapped(model, groups, "the groups")
        topics = topics_of_samples(model, scale, warn=False)
        names = topics.sample_names
        labels = checked_labels(groups, len(topics), "groups", names)
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
        return cls(rows, labels, design.strata.codes[kept], n_samples, depths)

    def warn_of_roots(self, statistic: str) -> None:
        """Warn if a statistic of roots may respond to the samples or counts of units."""
        for what, values in ("samples", self.n_samples), ("counts a sample", self.depths):
            unlike = None if values is None else self._unlike(values, _UNLIKE_ROOTS)
            if unlike is not None:
                warn_caller(
                    f"units of {unlike[0]} {what} on average, those of {unlike[1]}: "
                    f"statistic={statistic!r} takes square roots, whose mean depends on that, so "
                    "that p may be far too small. statistic='welch' does not."
                )

    def warn_of_depth(self) -> None:
        """Warn if samples of one group have few counts and those of another group have more."""
        if self.depths is None:
            return
        unlike = self._unlike(self.depths, _UNLIKE_DEPTHS)
        if unlike is not None and unlike[2] < FEW_COUNTS * self.rows.shape[1]:
            warn_caller(
                f"samples of {unlike[0]} counts on average, those of {unlike[1]}: proportions "
                "fitted to few counts are biased, more so with fewer counts, which may look like a "
                "difference between groups. Thin the counts by nmfscale.thin, or nmfscale store, "
                f"with total={max(1, int(unlike[2]))}, so that deep samples have as many as "
                "shallow ones, and fit to these."
            )

    def _unlike(self, values: Array, factor: float) -> tuple[str, str, float] | None:
        """Return the groups with the smallest and largest mean, if these are far apart."""
        means = np.bincount(self.groups.codes, weights=values) / self.groups.sizes
        least, most = int(means.argmin()), int(means.argmax())
        if means[most] <= factor * means[least]:
            return None
        one, other = (f"group {self.groups.names[g]!r} have {means[g]:.3g}" for g in (least, most))
        return one, other, float(means[least])


def _with_them(kept: Array, labels: Labels, left: Labels, are_units: bool) -> str:
    """Return text that names the units and groups that are left out with empty samples."""
    gone = [str(name) for name in labels.names if name not in left.names]
    lost = [f"{int((~kept).sum()):,} units"] if are_units and not kept.all() else []
    lost += [f"groups {', '.join(gone)}"] if gone else []
    return f"; with them {', '.join(lost)}" if lost else ""


def units_with_topics(
    model: Any, groups: Any, units: Any, strata: Any, scale: str = "proportions"
) -> tuple[Array, Labels, NDArray[np.int64]]:
    """Return the topics of each unit, their groups and strata, without empty ones."""
    design = Units.of(model, groups, units, strata, scale)
    design.warn_of_depth()
    return design.rows, design.groups, design.strata
