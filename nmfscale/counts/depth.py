"""Depth of modalities: how the counts of one vary between samples relative to the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.functions import log
from .base import CountMatrix
from .warn import ModalityDepthWarning, warn_caller

Array = NDArray[Any]
# Standard deviation of the log ratio, beyond noise, above which topics may follow depth. In
# simulations it was below 0.38 for types of cells with three times as many proteins, and above
# 0.57 where depth had a standard deviation of 0.6, which misled topics.
MOST_SPREAD = 0.5


class Depth(NamedTuple):
    """The modality that varies most, the spread of its ratio to the others, and the ratio (n,).

    The ratio is NaN in samples without counts of the modality, or of the others.
    """

    label: str
    spread: float
    ratio: Array


def totals_of_modalities(counts: CountMatrix) -> dict[str, Array]:
    """Return the counts of each modality in each sample (n,), by one pass over counts."""
    modalities = np.asarray(counts.modalities, object)
    labels = list(dict.fromkeys(modalities.tolist()))
    of_label = np.array([modalities == label for label in labels], np.float64).T
    totals = np.zeros((counts.shape[0], len(labels)))
    for piece in counts.chunks():
        matrix = piece.matrix(counts.shape[1])
        totals[piece.first : piece.first + matrix.shape[0]] = matrix @ of_label
    return dict(zip(labels, totals.T, strict=True))


def most_varying(totals: Mapping[str, Array]) -> Depth | None:
    """Return the modality whose ratio to the others varies most; None if there is a single one.

    Of two modalities, it is the second.
    """
    labels = list(totals)
    if len(labels) < 2:
        return None
    candidates = labels[1:] if len(labels) == 2 else labels
    whole = np.sum(list(totals.values()), axis=0)
    return max(
        (_depth(label, totals[label], whole - totals[label]) for label in candidates),
        key=lambda depth: depth.spread,
    )


def _depth(label: str, own: Array, others: Array) -> Depth:
    """Return the ratio of totals, and its standard deviation beyond that of Poisson counts."""
    there = (own > 0) & (others > 0)
    ratio = np.divide(own, others, out=np.full(len(own), np.nan), where=there)
    n = int(there.sum())
    if n < 2:
        return Depth(label, 0.0, ratio)
    logs = log(np.ascontiguousarray(ratio[there], np.float64))
    centred = logs - math.fsum(logs) / n
    # variance of the logarithm of a Poisson count, by the delta method
    noise = math.fsum(1 / own[there] + 1 / others[there]) / n
    variance = math.fsum(centred * centred) / (n - 1) - noise
    return Depth(label, math.sqrt(max(variance, 0.0)), ratio)


def depth_note(totals: Mapping[str, Array]) -> str | None:
    """Return a note on a modality whose depth varies much between samples; None without one."""
    depth = most_varying(totals)
    if depth is None or depth.spread <= MOST_SPREAD:
        return None
    return (
        f"counts of {depth.label} relative to the others vary between samples: standard deviation "
        f"of the log ratio {depth.spread:.2f} beyond noise"
    )


def warn_of_depth(counts: CountMatrix) -> None:
    """Warn of counts in memory with a modality whose depth varies much between samples."""
    if counts.modalities is None or counts.from_file:
        return
    if (note := depth_note(totals_of_modalities(counts))) is not None:
        warn_caller(
            f"{note}. If that is technical, and not a difference between kinds of samples, topics "
            "follow it: fit with batch=nmfscale.modality_depth(X), which makes batches of samples "
            "with a similar ratio.",
            ModalityDepthWarning,
        )
