"""Batches of samples that are given to `fit`, and the groups of a fit: pairs of panel and batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import is_missing, of_samples, shown, such_as
from ...methods.weights.measured import Measured

Array = NDArray[Any]


@dataclass(frozen=True)
class Batches:
    """Labels (B,) of the batches, and the batch (n,) of each sample, a number.

    `shape` is that of the prior of efficiencies, None if it is estimated.
    """

    labels: Array
    codes: Array
    shape: float | None

    @property
    def have_effects(self) -> bool:
        """Whether efficiencies may differ from 1."""
        return self.shape is None or bool(np.isfinite(self.shape))

    @property
    def about(self) -> dict[str, str]:
        """What a checkpoint holds of the prior."""
        return {"batch_shape": str(self.shape)}


def batches_of(counts: CountMatrix, batch: Any, shape: Any) -> Batches | None:
    """Return the batches of the samples of counts; None without labels."""
    if batch is None:
        return None
    labels, codes = codes_of(batch_labels(counts, batch), counts.shape[0])
    return Batches(labels, codes, None if isinstance(shape, str) else float(shape))


def batch_labels(counts: CountMatrix, batch: Any) -> Any:
    """Return the labels (n,) of batches, which may be the name of a column of obs."""
    if not isinstance(batch, str):
        return of_samples(batch, counts, "batch")
    table = counts.obs or {}
    if batch not in table:
        there = f"the columns of obs are {such_as(table)}" if table else "X has no columns of obs"
        raise ValueError(
            f"batch={batch!r} is not a column of obs: {there}. Give the name of a column, or an "
            f"array with the batch of each of the {counts.shape[0]:,} samples."
        )
    return table[batch]


def codes_of(batch: Any, n_samples: int) -> tuple[Array, Array]:
    """Return the different labels, in the order of categories or sorted, and their numbers (n,)."""
    categories = getattr(getattr(batch, "cat", batch), "categories", None)
    values = np.asarray(batch)
    if values.shape != (n_samples,):
        raise ValueError(
            f"batch has shape {values.shape}: one label for each of the {n_samples:,} samples is "
            "needed."
        )
    missing = [False]
    if values.dtype.kind in "OfUSM":
        missing = [is_missing(value) or value == "nan" for value in values.tolist()]
    if any(missing):
        raise ValueError(
            f"batch[{missing.index(True)}] is missing ({shown(values[missing.index(True)])}): "
            "every sample needs a label. Leave these samples out (mask_obs), or give them a label "
            "of their own."
        )
    labels = values.astype(str) if values.dtype == object else values
    present, codes = np.unique(labels, return_inverse=True)
    if categories is None:
        return present, codes.astype(np.int64)
    order = [name for name in np.asarray(categories).astype(labels.dtype) if name in present]
    place = np.empty(len(present), np.int64)
    place[np.searchsorted(present, order)] = np.arange(len(order))
    return np.array(order, present.dtype), place[codes]


def groups_of(measured: Measured | None, batches: Batches | None) -> dict[str, Any]:
    """Return the groups of samples in the constraints of a fit: pairs of a batch and a panel."""
    if batches is None or not batches.have_effects:
        if measured is None:
            return {}
        return {"groups": measured.groups, "measured": measured.features}
    if measured is None:
        numbers = np.arange(len(batches.labels))
        return {"groups": batches.codes, "batches": numbers, "batch_shape": batches.shape}
    pairs = np.column_stack([batches.codes, measured.groups])
    groups, codes = np.unique(pairs, axis=0, return_inverse=True)
    return {
        "groups": codes.reshape(-1), "measured": measured.features[groups[:, 1]],
        "batches": groups[:, 0], "batch_shape": batches.shape,
    }  # fmt: skip
