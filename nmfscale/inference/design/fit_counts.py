"""Checks that counts are those of a fit, after matching them with the fit by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import name_array, same_kind, shown
from ...methods.factors import proportions
from ...models.arguments.names import default_missing, matched_counts
from ...readers.open import as_counts

Array = NDArray[Any]
# Relative tolerance of sums of fractional counts, whose rounding depends on how a file is read.
_ROUNDING = 1e-9
_FIXED = "fixed_topics", "fixed_features", "fixed_samples"


@dataclass(frozen=True)
class GivenToFit:
    """The arguments of a fit, in the order of the counts that are given now.

    `rows` (n,) are the positions of the samples in the fit, `sample_names` (n,) their names or
    None, `weights` (n,) their weights. `fixed` holds the masks of fixed topics, features and
    samples, and `measured`, as arguments of `fit`.
    """

    rows: Array
    sample_names: Any
    weights: Array
    fixed: dict[str, Array]


def counts_of_fit(model: Any, X: Any, counts: CountMatrix) -> tuple[CountMatrix, GivenToFit]:
    """Return the counts with the features in the order of the fit, and the arguments of the fit.

    Features and samples are matched by name if both the fit and `X` have names. Samples stay in the
    order of `X`. Counts whose totals differ from those of the fit are refused.
    """
    if getattr(model, "has_missing_entries_", False):
        raise ValueError(
            "the model was fitted with data_weights=, and tests that pass its counts again do not "
            "know the weights of entries: describe missing features of batches of samples by "
            "measured= and batch= instead, or leave out the samples or features with missing "
            "entries."
        )
    remedy = "pass the counts that it was fitted to."
    counts = matched_counts(model, X, counts, remedy=remedy)[0]
    shape = len(model.loadings_), model.components_.shape[1]
    if shape != counts.shape:
        raise ValueError(
            f"the model was fitted to counts of shape {shape}, and X has shape {counts.shape}: "
            "pass the counts that it was fitted to."
        )
    of_model = getattr(model, "sample_names_", None)
    rows = _rows_of(counts.sample_names, of_model, len(counts.row_nnz))
    of_fit = getattr(model, "sample_totals_", None)
    if of_fit is not None:  # files of earlier versions have none
        _check_totals(counts.row_totals, of_fit[rows], "sample")
        _check_totals(counts.column_totals, model.feature_totals_, "feature")
    weights, batch = getattr(model, "row_weights_", None), getattr(model, "batch_", None)
    fixed = {name: getattr(model, f"{name}_", None) for name in _FIXED}
    if fixed["fixed_samples"] is not None:
        fixed["fixed_samples"] = fixed["fixed_samples"][rows]
    # samples without names must be in the order of the fit
    names = of_model if counts.sample_names is None else counts.sample_names
    if batch is not None:
        fixed |= {"measured": model.measured_, "batch": batch[rows]}
    return counts, GivenToFit(
        rows, names, np.ones(len(rows)) if weights is None else weights[rows],
        {name: mask for name, mask in fixed.items() if mask is not None},
    )  # fmt: skip


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
        rows = _rows_of(counts.sample_names, getattr(model, "sample_names_", None), counts.shape[0])
        _check_totals(counts.row_totals, totals[rows], "sample")
        _check_totals(counts.column_totals, model.feature_totals_, "feature")
    except ValueError:
        return None
    return rows


def loadings_of_counts(
    model: Any, counts: CountMatrix, rows: Array | None, client: Any = None
) -> Array:
    """Return loadings (n, K) in float64: those of the fit at `rows`, or those of new samples."""
    if rows is not None:
        return np.asarray(model.loadings_[rows], np.float64)
    return np.asarray(model.transform(counts, client=client), np.float64)


def counts_and_proportions(model: Any, X: Any, **part: Any) -> tuple[CountMatrix, Array]:
    """Return counts with the features of the fit, and the topic proportions (n, K) of samples.

    `part` is layer and raw.
    """
    limit = model.memory_limit
    counts = as_counts(X, integer="allow", in_memory=limit is None, memory_limit=limit, **part)
    counts = matched_counts(model, X, counts, default_missing(model, counts))[0]
    L = loadings_of_counts(model, counts, rows_of_fit(model, counts))
    return counts, proportions(L * model.components_.sum(axis=1, dtype=np.float64))


def _rows_of(names: Any, of_fit: Any, n_samples: int) -> Array:
    """Return the position of each sample in the fit."""
    if names is not None and of_fit is not None:
        names, of_fit = (
            labels.tolist() for labels in same_kind(name_array(names), name_array(of_fit))
        )
    if names is None or of_fit is None or names == of_fit:
        return np.arange(n_samples)
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


def _check_totals(totals: Array, of_fit: Array, what: str) -> None:
    """Refuse counts whose sums differ from those of the fit."""
    differ = np.flatnonzero(np.abs(totals - of_fit) > _ROUNDING * np.maximum(totals, of_fit))
    if differ.size:
        first = int(differ[0])
        raise ValueError(
            f"X is not what the model was fitted to: totals of {differ.size:,} {what}s differ, the "
            f"first that of {what} {first}, {totals[first]:g} in place of {of_fit[first]:g}. Pass "
            "the same counts, in the same order where they have no names."
        )
