"""Samples with few counts, and the model that fits them; samples without any."""

from __future__ import annotations

import numpy as np

from .base import CountMatrix
from .names import such_as
from .warn import warn_caller

# Below this median, models with a prior of topics and proportions that are integrated out predict
# new samples better, and their topics are more coherent: docs/models/lda.md has the numbers. With
# fewer samples than the second number, no model finds topics in such samples.
FEW_COUNTS, LEAST_SAMPLES = 50, 500


class ShortSamplesWarning(UserWarning):
    """The median sample has so few counts that another model fits them better."""

    __module__ = "nmfscale.errors"


def are_short(counts: CountMatrix) -> bool:
    """Whether samples have so few counts that LDA with collapsed inference fits them better."""
    many = counts.shape[0] - counts.n_empty_rows >= LEAST_SAMPLES
    return bool(many and counts.is_integer and counts.median_total < FEW_COUNTS)


def advice(counts: CountMatrix) -> str:
    """Return what to do about samples that are short."""
    return (
        f"the median sample of X has {counts.median_total:,.12g} counts. For samples of fewer than "
        f"about {FEW_COUNTS}, LDA(inference='collapsed') finds more coherent topics, and predicts "
        "new samples better."
    )


def warn_of_short_samples(counts: CountMatrix) -> None:
    """Warn if samples are short."""
    if are_short(counts):
        warn_caller(advice(counts), ShortSamplesWarning)


def warn_of_empty_samples(counts: CountMatrix, result: str) -> None:
    """Warn that samples without counts have a `result` that says nothing about them."""
    empty = np.flatnonzero(counts.row_nnz == 0)
    if not empty.size:
        return
    names = empty if counts.sample_names is None else counts.sample_names[empty]
    of = f"{empty.size:,} of {counts.shape[0]:,} samples of X"
    warn_caller(
        f"{of} have no counts in features of the topics, such as {such_as(names.tolist())}: their "
        f"{result} are those of an empty sample, and say nothing about them."
    )
