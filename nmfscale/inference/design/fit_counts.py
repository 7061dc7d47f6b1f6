"""Checks that counts are those of a fit, after matching them with the fit by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...methods.factors import proportions
from ...methods.weights.measured import Measured
from ...models.arguments.batches import values_in
from ...models.arguments.measured_entries import (
    check_totals_of_fit,
    measured_counts,
    refuse_missing_entries,
    rows_by_name,
    rows_of_fit,
)
from ...models.arguments.names import default_missing, matched_counts
from ...readers.open import as_counts
from .loadings import SampleTopics

Array = NDArray[Any]
_FIXED = "fixed_topics", "fixed_features", "fixed_samples"


@dataclass(frozen=True)
class GivenToFit:
    """The arguments of a fit, in the order of the counts that are given now.

    `rows` (n,) are the positions of the samples in the fit, `sample_names` (n,) their names or
    None, `weights` (n,) their weights. `fixed` holds the masks of fixed topics, features and
    samples, `measured` and `batch`, as arguments of `fit`.
    """

    rows: Array
    sample_names: Any
    weights: Array
    fixed: dict[str, Array]


def counts_of_fit(model: Any, X: Any, counts: CountMatrix) -> tuple[CountMatrix, GivenToFit]:
    """Return the counts with the features in the order of the fit, and the arguments of the fit.

    Features and samples are matched by name if both the fit and `X` have names. Samples stay in the
    order of `X`. Counts whose totals, or whose measured entries, differ from those of the fit are
    refused. The counts carry what was measured, as the fit was told.
    """
    remedy = "pass the counts that it was fitted to."
    counts = matched_counts(model, X, counts, remedy=remedy)[0]
    refuse_missing_entries(model, counts)
    shape = len(model.loadings_), model.components_.shape[1]
    if shape != counts.shape:
        raise ValueError(
            f"the model was fitted to counts of shape {shape}, and X has shape {counts.shape}: "
            "pass the counts that it was fitted to."
        )
    rows = rows_by_name(model, counts)
    of_fit = getattr(model, "sample_totals_", None)
    if of_fit is not None:  # files of earlier versions have none
        check_totals_of_fit(counts.row_totals, of_fit[rows], "sample")
        check_totals_of_fit(counts.column_totals, model.feature_totals_, "feature")
    weights, panel = getattr(model, "row_weights_", None), getattr(model, "panel_", None)
    fixed = {name: getattr(model, f"{name}_", None) for name in _FIXED}
    if fixed["fixed_samples"] is not None:
        fixed["fixed_samples"] = fixed["fixed_samples"][rows]
    # samples without names must be in the order of the fit
    names = counts.sample_names
    if names is None:
        names = getattr(model, "sample_names_", None)
    if panel is not None:
        fixed |= {"measured": model.measured_, "panel": panel[rows]}
    if getattr(model, "batches_", None) is not None:
        fixed["batch"] = model.batches_[model.batch_[rows]]
    counts = measured_counts(model, counts)
    _check_measured(counts, fixed)
    return counts, GivenToFit(
        rows, names, np.ones(len(rows)) if weights is None else weights[rows],
        {name: mask for name, mask in fixed.items() if mask is not None},
    )  # fmt: skip


def loadings_of_counts(
    model: Any, counts: CountMatrix, rows: Array | None, client: Any = None
) -> Array:
    """Return loadings (n, K) in float64: those of the fit at `rows`, or those of new samples."""
    if rows is not None:
        return np.asarray(model.loadings_[rows], np.float64)
    return np.asarray(model.transform(counts, client=client), np.float64)


def counts_and_topics(model: Any, X: Any, **part: Any) -> tuple[CountMatrix, SampleTopics]:
    """Return counts with the features of the fit, and the topic proportions of their samples.

    `part` is layer and raw.
    """
    limit = model.memory_limit
    counts = as_counts(X, integer="allow", in_memory=limit is None, memory_limit=limit, **part)
    counts = matched_counts(model, X, counts, default_missing(model, counts))[0]
    counts = measured_counts(model, counts)
    rows = rows_of_fit(model, counts)
    L = loadings_of_counts(model, counts, rows)
    F = np.asarray(model.components_.T, np.float64)
    shares, totals = proportions(L * F.sum(axis=0)), np.asarray(counts.row_totals)
    values = values_in(model, counts, rows)
    whole = totals if values is None else values.whole_totals(totals, shares, F)
    names = tuple(getattr(model, "topic_names_", range(shares.shape[1])))
    return counts, SampleTopics(
        shares, names, "proportions", totals, counts.sample_names, model, whole
    )


def _check_measured(counts: CountMatrix, of_fit: dict[str, Any]) -> None:
    """Refuse counts that carry other measured entries than the fit was told."""
    measured = Measured.of(counts)
    told = Measured(of_fit["panel"], of_fit["measured"]) if "measured" in of_fit else None
    if measured is not None and not measured.same_entries(told):
        raise ValueError(
            f"X has {measured.n_missing:,} entries that were not measured, as an outer join says, "
            "and the model was not fitted with these entries left out: fit it to these counts, or "
            "set counts.measured = None if they were counted as 0."
        )
