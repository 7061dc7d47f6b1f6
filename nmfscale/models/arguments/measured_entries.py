"""What was measured in the samples of counts: what counts carry, or what the fit was told.

Every function that takes counts after a fit asks here, and then either leaves unmeasured entries
out or refuses them.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import name_array, names_of, same_kind, shown
from ...counts.warn import warn_caller
from ...methods.weights.measured import Measured, SampleGroups
from .batches import Pairs, has_efficiencies

Array = NDArray[Any]
# Relative tolerance of sums of fractional counts, whose rounding depends on how a file is read.
_ROUNDING = 1e-9


def measured_counts(model: Any, counts: CountMatrix) -> CountMatrix:
    """Return the counts with `measured`, that of the fit if they are its counts and have none.

    Weights of features are those of the fit.
    The features of the counts are in the order of the fit. Counts of a fit with weights of entries
    are refused: the model does not keep these weights.
    """
    refuse_missing_entries(model, counts)
    of_fit, weights = getattr(model, "measured_", None), getattr(model, "feature_weights_", None)
    if counts.shape[1] != model.components_.shape[1] or counts.feature_weights is weights:
        weights = counts.feature_weights
    silent = counts.measured is None and of_fit is not None
    rows = rows_of_fit(model, counts) if silent else None
    if rows is None and weights is counts.feature_weights:
        return counts
    described = copy.copy(counts)
    described._layout, described.feature_weights = counts._layout, weights
    if rows is not None:
        described.measured = of_fit, model.panel_[rows]
    return described


def measured_of_fit(model: Any) -> Measured | None:
    """Return what was measured in the samples of a fit, None if that is everything."""
    features = getattr(model, "measured_", None)
    return None if features is None else Measured(model.panel_, features)


def efficiencies_of_fit(model: Any) -> SampleGroups | None:
    """Return the efficiencies of the samples of a fit, or what was measured in them.

    None if everything was measured, with efficiencies of 1.
    """
    measured = measured_of_fit(model)
    if not has_efficiencies(model):
        return measured
    pairs = Pairs.of(model.batch_, measured, len(model.batches_))
    return pairs.efficiencies(model.batch_efficiencies_)


def efficiencies_in(
    model: Any, counts: CountMatrix, of_others: Array | float = 1.0
) -> SampleGroups | None:
    """Return the same for counts of the samples of a fit, with any features.

    `of_others` (n_batches, .) are efficiencies of features that the fit did not have. `model` may
    be an array.
    """
    measured = measured_in(model, counts)
    if not has_efficiencies(model):
        return measured
    of_fit, places = model.batch_efficiencies_, places_of_features(model, counts)
    there = np.isin(places, np.arange(of_fit.shape[1]))
    of_batches = np.empty((len(of_fit), len(places)))
    of_batches[:, there], of_batches[:, ~there] = of_fit[:, places[there]], of_others
    rows = rows_by_name(model, counts)
    return Pairs.of(model.batch_[rows], measured, len(of_fit)).efficiencies(of_batches)


def places_of_features(model: Any, counts: CountMatrix) -> Array:
    """Return the position (m,) in the fit of each feature of counts, -1 for others.

    Features without names are in the order of the fit.
    """
    names, reference = counts.feature_names, names_of(model, 1)
    if names is None or reference is None:
        return np.arange(counts.shape[1])
    names, reference = same_kind(names, reference)
    place = {name: j for j, name in enumerate(reference.tolist())}
    return np.array([place.get(name, -1) for name in names.tolist()], np.intp)


def measured_in(model: Any, counts: CountMatrix) -> Measured | None:
    """Return what was measured in counts of the samples of a fit, with any of its features.

    It is what the counts carry, or else what the fit was told; None if that is everything. `model`
    may be an array.
    """
    of_fit = measured_of_fit(model)
    if counts.measured is not None or of_fit is None:
        return Measured.of(counts)
    rows = rows_by_name(model, counts)
    places = places_of_features(model, counts)
    if not np.isin(places, np.arange(of_fit.features.shape[1])).all():
        raise ValueError(
            "X has features that the fit did not have, and says nothing of which samples measured "
            "them, while the fit was told of its own features (measured=): pass counts with what "
            "was measured, such as those of concat(join='outer')."
        )
    return Measured(of_fit.groups[rows], of_fit.features[:, places])


def n_measured(measured: Measured | None, counts: CountMatrix) -> Array:
    """Return the number of samples (m,) in which each feature was measured, at least 1."""
    n, m = counts.shape
    if measured is None:
        return np.full(m, n)
    return np.maximum(measured.totals(np.ones((n, 1)))[:, 0], 1)


def refuse_unmeasured(counts: CountMatrix, subject: str, remedy: str) -> None:
    """Refuse counts with unmeasured entries, which the subject would take as 0."""
    measured = Measured.of(counts)
    if measured is not None:
        n_lacking = int(np.count_nonzero(~measured.features.all(axis=0)))
        raise ValueError(
            f"X has {measured.n_missing:,} entries that were not measured, in {n_lacking:,} of its "
            f"{counts.shape[1]:,} features: {subject} would take them as counts of 0. {remedy} To "
            "count them as 0 nevertheless, set counts.measured = None."
        )


def refuse_missing_entries(model: Any, counts: CountMatrix) -> None:
    """Refuse the samples of a fit with data_weights=, whose missing entries are unknown."""
    if getattr(model, "has_missing_entries_", False) and has_samples_of_fit(model, counts):
        raise ValueError(
            "the model was fitted with data_weights=, which it does not keep, and nothing says "
            "which entries of X are missing: pass data_weights= as to fit, if this function takes "
            "it; or describe missing features of panels of samples by measured= and panel= of "
            "fit; or leave out the samples or features with missing entries."
        )


def check_missing_entries(model: Any, counts: CountMatrix) -> None:
    """Refuse samples of a fit with data_weights= if their weights are not given; warn of others."""
    refuse_missing_entries(model, counts)
    if getattr(model, "has_missing_entries_", False):
        warn_caller(
            f"{type(model).__name__} was fitted with data_weights=, and nothing says what is "
            "missing in X: all entries are taken as observed, with weight 1. Pass data_weights= as "
            "to fit, or an array of ones if that is so."
        )


def has_samples_of_fit(model: Any, counts: CountMatrix) -> bool:
    """Whether counts have the shape of the fit, and its names of samples if both have names."""
    loadings = getattr(model, "loadings_", None)
    if loadings is None or len(loadings) != counts.shape[0]:
        return False
    try:
        rows_by_name(model, counts)
    except ValueError:
        return False
    return True


def rows_of_fit(model: Any, counts: CountMatrix) -> Array | None:
    """Return the position of each sample in the fit, or None if these are not its counts.

    The features of the counts are in the order of the fit.
    """
    totals = getattr(model, "sample_totals_", None)
    if getattr(model, "has_missing_entries_", False):
        return None
    if totals is None or counts.shape != (len(model.loadings_), model.components_.shape[1]):
        return None
    try:
        rows = rows_by_name(model, counts)
        check_totals_of_fit(counts.row_totals, totals[rows], "sample")
        check_totals_of_fit(counts.column_totals, model.feature_totals_, "feature")
    except ValueError:
        return None
    return rows


def rows_by_name(model: Any, counts: CountMatrix) -> Array:
    """Return the position of each sample in the fit, matched by name if both have names."""
    names, of_fit = counts.sample_names, getattr(model, "sample_names_", None)
    if names is not None and of_fit is not None:
        names, of_fit = (
            labels.tolist() for labels in same_kind(name_array(names), name_array(of_fit))
        )
    if names is None or of_fit is None or names == of_fit:
        return np.arange(counts.shape[0])
    place = {name: i for i, name in enumerate(of_fit)}
    unknown = [name for name in names if name not in place]
    if unknown:
        raise ValueError(
            f"X has {len(unknown):,} samples that the model was not fitted to, such as "
            f"{shown(unknown[0])}: pass the counts that it was fitted to."
        )
    if len(place) < len(names) or len(set(names)) < len(names):
        raise ValueError(
            "several samples have one name and cannot be matched with those of the fit: make names "
            "unique, or pass the samples in the order of the fit."
        )
    return np.array([place[name] for name in names])


def check_totals_of_fit(totals: Array, of_fit: Array, what: str) -> None:
    """Refuse counts whose sums differ from those of the fit."""
    differ = np.flatnonzero(np.abs(totals - of_fit) > _ROUNDING * np.maximum(totals, of_fit))
    if differ.size:
        first = int(differ[0])
        raise ValueError(
            f"X is not what the model was fitted to: totals of {differ.size:,} {what}s differ, the "
            f"first that of {what} {first}, {totals[first]:g} in place of {of_fit[first]:g}. Pass "
            "the same counts, in the same order where they have no names."
        )
