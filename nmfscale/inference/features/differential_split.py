"""Counts split at random: topics are fitted to one part, and features tested in the other."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import shown
from ...counts.short_samples import ShortSamplesWarning
from ...models.arguments.starts import starts_at_fits
from ...readers.streams.file_counts import FileCounts
from ...readers.streams.thinning import PartOfCounts, Thinning
from ..design.fit_counts import counts_of_fit
from ..job import JobOptions
from ..replicates.seeds import child, seed_of
from ..replicates.selection_fits import AGAIN, with_options

Array = NDArray[Any]
# Largest number of parts of equal size into which counts are split.
_MOST_PARTS = 20


def checked_split(split: Any) -> Fraction:
    """Return the share of the counts for the fit, as a fraction."""
    try:
        share = Fraction(float(split)).limit_denominator(_MOST_PARTS)
    except (TypeError, ValueError, OverflowError):
        share = Fraction(0)
    if isinstance(split, bool) or not 0 < share < 1:
        raise ValueError(
            f"split={shown(split)}: a share of the counts for the fit, such as 0.5, is needed."
        )
    return share


def fitted_to_part(
    model: Any, X: Any, counts: CountMatrix, split: Any, job: JobOptions
) -> tuple[Any, CountMatrix]:
    """Return the model fitted to a random part of the counts, and the other part.

    The fit starts from the factors of the model, so that topics keep their order.
    """
    share = checked_split(split)
    if not starts_at_fits(model) or not hasattr(model, "loadings_"):
        raise ValueError(
            f"split={shown(split)} fits the topics again: a fitted model whose fit can start at "
            f"another one is needed, such as TopicModel, not a {type(model).__name__}."
        )
    counts, fit_samples = counts_of_fit(model, X, counts)
    if not counts.is_integer:
        raise ValueError("split: only counts that are whole numbers can be split.")
    thinning = Thinning.of(child(seed_of(job["random_state"]), 0), share.denominator)
    fit_part, other = (
        thinned_part(counts, thinning, parts)
        for parts in (range(share.numerator), range(share.numerator, share.denominator))
    )
    again = with_options(
        model, random_state=0, n_threads=job["n_threads"], **AGAIN, **model.parameters_of_refits()
    )
    start = model._arguments_of_start(fit_samples.rows, float(share))
    if getattr(model, "row_weights_", None) is not None:
        start["row_weights"] = fit_samples.weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortSamplesWarning)  # of a part of the counts
        again.fit(fit_part, **start, **fit_samples.fixed)
    if hasattr(model, "topic_names_"):
        again.topic_names_ = model.topic_names_
    # the samples are those of the other part, in the same order
    again.sample_totals_ = np.array(other.row_totals, np.float64)
    return again, other


def thinned_part(counts: CountMatrix, thinning: Thinning, parts: range) -> CountMatrix:
    """Return the sum of some parts, in memory unless the counts are in a file."""
    part = PartOfCounts(counts, thinning=thinning, parts=parts)
    return FileCounts(part) if counts.from_file else part.in_memory()
