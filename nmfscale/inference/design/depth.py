"""Whether the counts of samples, few in one group and more in another, look like other topics.

Proportions that are fitted to few counts are biased: what noise adds to an absent topic is never
negative. Whether a test notices depends on how well the topics are told apart and on how far the
groups are known, so both are measured. Samples of the group with most counts are drawn again from
the fitted topics, as often as each group has counts, and their loadings are fitted. Differences
between their means are artefacts, to be compared with the standard errors of the differences
between groups.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import chdtri, chndtr

from ...counts.names import plain, shown
from ...counts.warn import warn_caller
from ...methods.factors import proportions
from ...readers.open import as_counts
from .groups import Design, Labels
from .loadings import SampleTopics, amounts_of_new_samples, sums_of_topics
from .units import Units, within_strata

Array = NDArray[Any]
# Ratio of mean counts from which groups differ in depth.
_UNLIKE = 2.0
# Units from which the variance of a group is its own, not that of all groups.
_FEW = 3
# Share of the null sets that a test at the 5% level may reject.
_LEVEL, _LOST = 0.05, 0.1
# Share of noise in the variance of proportions from which tests lost their level in simulations:
# topics adapt to deep samples, not to shallow ones.
_MOST_NOISE = 0.45
_TINY = np.finfo(np.float64).tiny
# Most samples and counts that are drawn.
_MOST_SAMPLES, _MOST_COUNTS = 20_000, 4_000_000


@dataclass(frozen=True)
class Compared:
    """What is compared: the group, unit and block (n,) of each sample.

    Groups of units are compared within blocks, each of which is one unit or several. Samples that
    are left out have group -1. `jointly`: by one test of all topics, not one for each.
    """

    group: Array
    unit: Array
    block: Array
    names: tuple[Any, ...]
    jointly: bool = False

    @classmethod
    def of_units(cls, design: Units, groups: Labels, *, jointly: bool = False) -> Compared:
        """Compare groups of units."""
        unit = design.unit_of_sample
        group = np.where(unit < 0, -1, groups.codes[unit])
        return cls(group, unit, design.blocks[unit], groups.names, jointly)

    @classmethod
    def of_samples(cls, labels: Labels, kept: Array, design: Design) -> Compared:
        """Compare the labels of the samples that are `kept` (n,), within units or strata."""
        group = np.full(kept.size, -1)
        group[kept] = labels.codes
        unit, block = design.of_sample, design.strata.codes[design.of_sample]
        pairs = np.unique(np.stack([unit[kept], labels.codes]), axis=1)
        several = np.bincount(pairs[0], minlength=design.n_units) > 1
        return cls(group, unit, unit if several.any() else block, labels.names)

    def variances(self, rows: Array) -> tuple[Array, Array]:
        """Return the variance (R, T) of the mean of each group within blocks, NaN if unknown.

        Also return the factor (R,) by which the variance of samples around their unit is in it.
        """
        used = self.group >= 0
        keys = np.stack([self.group, self.block, self.unit])[:, used]
        (group, block, _), cell, n_samples = np.unique(
            keys, axis=1, return_inverse=True, return_counts=True
        )
        means = np.zeros((group.size, rows.shape[1]))
        np.add.at(means, cell.reshape(-1), rows[used])
        means /= n_samples[:, None]
        block = np.unique(block, return_inverse=True)[1].reshape(-1)
        n, R = len(means), len(self.names)
        freedom = n - int(block.max()) - R
        sizes = np.bincount(group, minlength=R)
        if freedom < 1:
            return np.full((R, rows.shape[1]), np.nan), np.zeros(R)
        residuals = within_strata(within_strata(means, block), group)
        of_units = np.zeros((R, rows.shape[1]))
        np.add.at(of_units, group, residuals**2 * (n / freedom))
        few = (sizes < _FEW)[:, None]
        of_units = np.where(few, of_units.sum(axis=0) / n, of_units / sizes[:, None])
        return of_units / sizes[:, None], np.bincount(group, 1 / n_samples, R) / sizes**2


def warn_of_depth(topics: SampleTopics, compared: Compared) -> None:
    """Warn if groups differ in depth, so that tests of their proportions lose their level."""
    if topics.totals is None or not hasattr(topics.model, "completion_loadings"):
        return
    compared = replace(compared, group=np.where(topics.empty, -1, compared.group))
    used = compared.group >= 0
    sizes = np.bincount(compared.group[used], minlength=len(compared.names))
    depths = np.bincount(compared.group[used], topics.totals[used]) / sizes
    if not depths.max() > _UNLIKE * depths.min():
        return
    drawn = _drawn_at_depths(topics, compared, depths)
    variances, of_samples = compared.variances(proportions(topics.rows))
    deepest = int(depths.argmax())
    shallow = np.flatnonzero(_UNLIKE * depths < depths[deepest])
    levels, topic_of = _levels(drawn, variances, shallow, deepest, compared.jointly)
    noise = drawn.noise * of_samples / np.maximum(variances.sum(axis=1), _TINY)
    at, noisiest = int(levels.argmax()), int(shallow[noise[shallow].argmax()])
    if levels[at] > _LOST:
        g, topic = int(shallow[at]), int(topic_of[at])
        change = drawn.means[g, topic] - drawn.means[deepest, topic]
        _warn(
            compared.names, depths, g, deepest,
            "samples of the latter, drawn again from the fit with as few counts as the former, "
            f"have {change:+.2g} of topic {shown(topics.topic_names[topic])}, so that a test at 5% "
            f"rejects in about {levels[at]:.0%} of the studies without a difference.",
        )  # fmt: skip
    elif noise[noisiest] > _MOST_NOISE:
        _warn(
            compared.names, depths, noisiest, deepest,
            f"{noise[noisiest]:.0%} of the variance of proportions in the former is noise of the "
            "counts, while topics adapt to the latter.",
        )  # fmt: skip


def _warn(names: tuple[Any, ...], depths: Array, g: int, h: int, why: str) -> None:
    one, other = (f"group {shown(names[of])} have {depths[of]:.3g}" for of in (g, h))
    warn_caller(
        f"samples of {one} counts on average, those of {other}: proportions fitted to few counts "
        "are biased, more so with fewer counts, which looks like a difference between groups: "
        f"{why} Thin the counts by nmfscale.thin, or nmfscale store, with "
        f"total={max(1, int(depths[g]))}, so that deep samples have as many as shallow ones, and "
        "fit to these."
    )


def halves_of(groups: Labels) -> Labels:
    """Return the lower and the upper half of groups in their order, cut near the median."""
    cut = min(int(np.median(groups.codes)), len(groups.names) - 2)
    name = plain(groups.names[cut])
    return Labels((groups.codes > cut).astype(np.int64), (f"<= {name}", f"> {name}"))


@dataclass(frozen=True)
class _Drawn:
    """Mean proportions (R, T) of the same samples, drawn at the depth of each group.

    `errors` (R, T) are standard errors of the means. `noise` (R,) is the variance of a sample that
    comes from its counts, added up over topics.
    """

    means: Array
    errors: Array
    noise: Array


def _levels(
    drawn: _Drawn, variances: Array, shallow: Array, deepest: int, jointly: bool
) -> tuple[Array, Array]:
    """Return levels of 5% tests of `shallow` groups and the deepest one, if depth alone differs.

    Also return the topic of each that changes most. The statistic is a noncentral chi-square over
    its degrees of freedom; those of the sum over topics are Satterthwaite's.
    """
    change = drawn.means[shallow] - drawn.means[deepest]
    variance = variances[shallow] + variances[deepest]
    certain = np.abs(change) > 3 * np.hypot(drawn.errors[shallow], drawn.errors[deepest])
    variance = np.where(variance > 0, variance, np.inf)  # what does not vary, or NaN
    squares = np.where(certain, change**2, 0.0)
    topic = (squares / variance).argmax(axis=1)
    shift, freedom = (squares / variance).max(axis=1), np.ones(shallow.size)
    if jointly:
        variance = np.where(np.isfinite(variance), variance, 0.0)
        total = np.maximum(variance.sum(axis=1), _TINY)
        freedom = np.maximum(1.0, total**2 / np.maximum((variance**2).sum(axis=1), _TINY))
        shift = freedom * squares.sum(axis=1) / total * (variance.sum(axis=1) > 0)
    return 1 - chndtr(chdtri(freedom, _LEVEL), freedom, shift), topic


def _drawn_at_depths(topics: SampleTopics, compared: Compared, depths: Array) -> _Drawn:
    """Draw samples of the deepest group again, with the totals of each group.

    Groups whose depths differ by less than a factor of two share a simulation.
    """
    rng, totals = np.random.default_rng(0), topics.totals
    assert totals is not None
    deepest = np.flatnonzero(compared.group == depths.argmax())
    step = np.floor(np.log2(depths / depths.min())).astype(np.int64)
    steps = np.unique(step)
    mean_depths = np.array([depths[step == s].mean() for s in steps])
    n = int(min(_MOST_SAMPLES / steps.size, _MOST_COUNTS / mean_depths.sum(), 20 * len(deepest)))
    source = np.repeat(rng.choice(deepest, max(n // 2, 1)), 2)
    means, noise = np.empty((len(depths), topics.rows.shape[1])), np.empty(len(depths))
    errors = np.empty_like(means)
    for s in steps.tolist():
        having = (compared.group >= 0) & (step[compared.group] == s) & (totals > 0)
        of_depth = np.repeat(totals[rng.choice(np.flatnonzero(having), len(source) // 2)], 2)
        whole = np.maximum(1, np.rint(of_depth)).astype(np.int64)
        again = _drawn_again(topics, source, whole, rng)
        variance = ((again[::2] - again[1::2]) ** 2).mean(axis=0) / 2
        means[step == s] = again.mean(axis=0)
        errors[step == s] = np.sqrt(variance / len(again))
        noise[step == s] = variance.sum()
    return _Drawn(means, errors, noise)


def _drawn_again(topics: SampleTopics, source: Array, totals: Array, rng: Any) -> Array:
    """Return proportions (n, T) fitted to counts that are drawn from the fit of samples."""
    model = copy.copy(topics.model)
    model.verbose = 0
    F = np.asarray(model.components_, np.float64)
    expected = np.asarray(model.loadings_, np.float64)[source] * F.sum(axis=1)
    of_topic = rng.multinomial(totals, expected / expected.sum(axis=1, keepdims=True))
    rows, columns = [], []
    for k, frequencies in enumerate(F):
        ends = np.cumsum(frequencies)
        rows.append(np.repeat(np.arange(len(source)), of_topic[:, k]))
        columns.append(np.searchsorted(ends, ends[-1] * rng.random(rows[-1].size), "right"))
    places = np.concatenate(rows), np.minimum(np.concatenate(columns), F.shape[1] - 1)
    counts = sp.coo_array((np.ones(totals.sum()), places), (len(source), F.shape[1])).tocsr()
    amounts = amounts_of_new_samples(model, model.completion_loadings(as_counts(counts)), totals)
    if topics.members is not None:
        amounts = sums_of_topics(amounts, topics.members)
    return proportions(amounts)
