"""Counts split at random: topics are fitted to one part, and features tested in the other."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import name_array, names_of, same_kind, shown, such_as
from ...counts.short_samples import ShortSamplesWarning
from ...counts.warn import warn_caller
from ...engine.checkpoint import recorded_seed
from ...methods.topics.differential import FeatureDesign, excess_variances
from ...methods.topics.matching import lift_correlations_of
from ...models.arguments.measured_entries import efficiencies_in
from ...models.arguments.starts import starts_at_fits
from ...readers.streams.columns import select_columns
from ...readers.streams.file_counts import FileCounts
from ...readers.streams.thinning import PartOfCounts, Thinning
from ..design.fit_counts import counts_of_fit
from ..design.loadings import topics_of_samples
from ..job import JobOptions
from ..replicates.seeds import child, seed_of
from ..replicates.selection_fits import AGAIN, with_options

Array = NDArray[Any]
# Largest number of parts of equal size into which counts are split, and the share by default.
_MOST_PARTS, _HALF = 20, Fraction(1, 2)
# Counts that the median sample needs, and samples for each topic, to be split by default.
_LEAST_COUNTS, _LEAST_SAMPLES = 20, 5
# Similarity of a topic in the fit to a part of the counts below which it is another one.
_SAME_TOPIC = 0.5


@dataclass(frozen=True)
class Tested:
    """Topics, and the counts in which features are tested.

    `share` is the share of the counts to which the topics were fitted, `seed` that of the split;
    both are None without a split. `no_pvalues` says why there can be no p-values, if so.
    """

    model: Any
    counts: CountMatrix
    share: Fraction | None = None
    seed: SeedSequence | None = None
    no_pvalues: str | None = None


def counts_to_test(model: Any, X: Any, counts: CountMatrix, split: Any, job: JobOptions) -> Tested:
    """Return the topics and counts to test, split as `split` says; `job` has the seed.

    By default ("auto"), counts to which the model was fitted are split, if they can be.
    """
    fitted = hasattr(model, "components_") and hasattr(model, "loadings_")
    if split is None or (split == "auto" and not fitted):
        return Tested(model, counts)
    if split != "auto":
        return fitted_to_part(model, X, counts, checked_split(split), job)
    why = _other_features(model, counts) or _why_not_split(model, counts)
    if why is not None:
        return Tested(model, counts, no_pvalues=_FITTED + why)
    return fitted_to_part(model, X, counts, _HALF, job)


_FITTED = "topics that were fitted to the same counts make p too small, and "
_TOLD = " (split=None tests in these counts, and is right if topics were fitted to others)"


def _other_features(model: Any, counts: CountMatrix) -> str | None:
    """Return why counts cannot be split that do not have all features of the fit by name."""
    names, reference = counts.feature_names, names_of(model, 1)
    if names is None or reference is None:
        same = counts.shape[1] == model.components_.shape[1]
        return None if same else f"features without names cannot be matched with the fit{_TOLD}"
    names, reference = same_kind(name_array(names), name_array(reference))
    lacking = reference[~np.isin(reference, names)].tolist()
    if not lacking:
        return None
    if len(lacking) == len(reference):
        return f"no feature of X has the name of one of the fit{_TOLD}"
    return f"X cannot be split without the other features of the fit, such as {such_as(lacking)}"


def _why_not_split(model: Any, counts: CountMatrix) -> str | None:
    """Return why counts are not split by default; None if they are."""
    n, K = counts.shape[0] - counts.n_empty_rows, model.components_.shape[0]
    if not starts_at_fits(model):
        return f"a {type(model).__name__} cannot be fitted again to half of them from its topics"
    if not counts.is_integer:
        return "only counts that are whole numbers can be split"
    if counts.median_total < _LEAST_COUNTS or n < _LEAST_SAMPLES * K:
        return (
            f"{n:,} samples with {counts.median_total:,.12g} counts in the median are too few to "
            "split (split=0.5 does)"
        )
    return None


def checked_split(split: Any) -> Fraction:
    """Return the share of the counts for the fit, as a fraction."""
    try:
        share = Fraction(float(split)).limit_denominator(_MOST_PARTS)
    except (TypeError, ValueError, OverflowError):
        share = Fraction(0)
    if isinstance(split, bool) or not 0 < share < 1:
        raise ValueError(
            f"split={shown(split)}: a share of the counts for the fit, such as 0.5, is needed, "
            "'auto' or None."
        )
    return share


def fitted_to_part(
    model: Any, X: Any, counts: CountMatrix, share: Fraction, job: JobOptions
) -> Tested:
    """Return the model fitted to a random part of the counts, and the other part.

    The fit starts from the factors of the model, so that topics keep their order. Counts may have
    more features than the fit.
    """
    if not starts_at_fits(model) or not hasattr(model, "loadings_"):
        raise ValueError(
            f"split={float(share):g} fits the topics again: a fitted model whose fit can start at "
            f"another one is needed, such as TopicModel, not a {type(model).__name__}."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of features that the fit left out, which are tested too
        of_fit, fit_samples = counts_of_fit(model, X, counts)
    if not counts.is_integer:
        raise ValueError("split: only counts that are whole numbers can be split.")
    columns = np.arange(counts.shape[1])
    if of_fit.shape == counts.shape:
        counts = of_fit
    else:
        columns = np.asarray(of_fit.columns_taken)
    excess = np.zeros(counts.shape[1])
    excess[columns] = _excess_of(model, of_fit, fit_samples.rows)
    seed = _seed(job)
    thinning = Thinning.of(child(seed, 0), share.denominator, excess)
    fit_part, other = (
        thinned_part(counts, thinning, parts)
        for parts in (range(share.numerator), range(share.numerator, share.denominator))
    )
    if len(columns) < counts.shape[1]:
        fit_part = select_columns(fit_part, columns)
    again = with_options(
        model, random_state=0, n_threads=job["n_threads"], **AGAIN,
        **model.parameters_of_refits(),
    )  # fmt: skip
    start = model._arguments_of_start(fit_samples.rows, float(share))
    if getattr(model, "row_weights_", None) is not None:
        start["row_weights"] = fit_samples.weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortSamplesWarning)  # of a part of the counts
        again.fit(fit_part, **start, **fit_samples.fixed)
    if hasattr(model, "topic_names_"):
        again.topic_names_ = model.topic_names_
    _warn_of_other_topics(model, again, share)
    # the samples are those of the other part, in the same order
    again.sample_totals_ = np.array(other.row_totals, np.float64)
    return Tested(again, other, share, seed)


def _seed(job: JobOptions) -> SeedSequence:
    """Return the seed of the split: that of the checkpoint if a resumed job has no other."""
    if job["random_state"] is None and job["resume"] and job["checkpoint"] is not None:
        entropy: Any = recorded_seed(job["checkpoint"])
        return SeedSequence(entropy)
    return seed_of(job["random_state"])


def _excess_of(model: Any, counts: CountMatrix, rows: Array) -> Array:
    """Return the excess variances (m,) of the features of a fit, as the fit explains the counts."""
    shares = topics_of_samples(model, "proportions", warn=False).rows[rows]
    frequencies = np.asarray(model.components_.T, np.float64)
    frequencies = frequencies / frequencies.sum(axis=0)
    totals, among = np.asarray(counts.row_totals, np.float64), efficiencies_in(model, counts)
    if among is not None:
        totals = among.whole_totals(totals, shares, frequencies)
    design = FeatureDesign.of(shares, totals, counts.shape[1], among)
    return excess_variances(counts, design, frequencies)


def _warn_of_other_topics(model: Any, again: Any, share: Fraction) -> None:
    """Warn of topics that are others in the fit to a part of the counts."""
    similar = np.diag(lift_correlations_of(model.components_.T, again.components_.T))
    names = getattr(model, "topic_names_", range(len(similar)))
    others = [name for name, value in zip(names, similar, strict=True) if value < _SAME_TOPIC]
    if others:
        warn_caller(
            f"topics {', '.join(map(str, others))} of the fit to {float(share):.0%} of the counts "
            "are not those of the model, which fewer counts do not determine: features are tested "
            "for the topics of that fit."
        )


def thinned_part(counts: CountMatrix, thinning: Thinning, parts: range) -> CountMatrix:
    """Return the sum of some parts, in memory unless the counts are in a file."""
    part = PartOfCounts(counts, thinning=thinning, parts=parts)
    return FileCounts(part) if counts.from_file else part.in_memory()
