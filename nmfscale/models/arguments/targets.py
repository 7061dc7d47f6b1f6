"""Checks of labels and targets that are given to `fit`."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import type_of_target

from ...counts.base import CountMatrix
from ...counts.names import is_missing, of_samples
from ...counts.warn import warn_caller
from ...methods.ssnmf.labels import Supervision
from .validation import checked_array

Array = NDArray[Any]


def supervision_of(y: Any, weights: Any, counts: CountMatrix) -> tuple[Supervision, Array | None]:
    """Return the labels or targets of samples, and the classes, None for numeric targets."""
    n_samples = counts.shape[0]
    y, weights = of_samples(y, counts, "y"), of_samples(weights, counts, "label_weights")
    if y is None:
        if weights is not None:
            raise ValueError("label_weights are given, but no labels y.")
        return Supervision(np.zeros(n_samples), np.zeros(n_samples), 1), np.empty(0)
    array = _array_of(y)
    if array.shape[:1] != (n_samples,) or array.ndim > 2:
        raise ValueError(
            f"y has shape {array.shape}, and X has {n_samples:,} samples: give a label, or a row "
            "of targets, for each sample."
        )
    if array.ndim == 2 and array.shape[1] == 1 and not _is_continuous(array):
        warn_caller(
            "A column-vector y was passed when a 1d array was expected: its entries are used as "
            "the labels of the samples. Please change the shape of y to (n_samples,).",
            DataConversionWarning,
        )
        array = array[:, 0]
    if array.ndim == 2:
        return _targets(array, weights), None
    unknown = unlabelled(array)
    classes, codes = _classes_of(array, ~unknown)
    label_weights = np.ones(n_samples)
    if weights is not None:
        label_weights = np.array(
            checked_array(weights, (n_samples,), "label_weights", positive=False)
        )
    label_weights[unknown] = 0
    if len(classes) and not label_weights.any():
        raise ValueError(
            f"label_weights are 0 for all {int((~unknown).sum()):,} labels of y: give a positive "
            "weight to one label at least, or y=None for a fit without labels."
        )
    return Supervision(codes, label_weights, max(len(classes), 1)), classes


def _array_of(y: Any) -> Array:
    """Return y as an array; a list of mixed types becomes an array of objects."""
    array = np.asarray(y)
    if not hasattr(y, "dtype") and array.dtype.kind == "U":
        objects = np.asarray(y, dtype=object)
        if not all(isinstance(label, str) for label in objects.ravel()):
            return objects
    if array.dtype.kind not in "biufUSO":
        raise ValueError(f"y is of type {array.dtype}: give labels, or numbers.")
    return array


def unlabelled(labels: Array) -> NDArray[np.bool_]:
    """Return which labels mean "unlabelled": -1, NaN, None; -1 and 1 together are two classes."""
    if labels.dtype.kind in "US":
        return np.zeros(len(labels), bool)
    if labels.dtype.kind == "O":
        missing = np.array([*map(is_missing, labels)], bool)
    else:
        missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)
    minus = np.array([not isinstance(v, str) and v == -1 for v in labels[~missing]], bool)
    if minus.any() and {v for v in labels[~missing][~minus] if not isinstance(v, str)} != {1}:
        missing[np.flatnonzero(~missing)[minus]] = True
    return missing


def _classes_of(labels: Array, labelled: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the sorted classes, and the class number of each sample, 0 if it is unknown."""
    codes, some = np.zeros(len(labels)), labels[labelled]
    if not len(some):
        return some, codes
    if some.dtype.kind in "f" and type_of_target(some).startswith("continuous"):
        raise ValueError(
            "Unknown label type: continuous. y[:, None] fits numbers (regression); labels of "
            "classes are text or whole numbers."
        )
    try:
        classes, inverse = np.unique(some, return_inverse=True)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in some})
        raise ValueError(
            f"labels y of types {', '.join(kinds)} have no order: give labels of one type."
        ) from None
    codes[labelled] = inverse
    return classes, codes


def _is_continuous(array: Array) -> bool:
    if array.dtype.kind != "f":
        return False
    finite = array[np.isfinite(array)]
    return bool((finite != np.floor(finite)).any())


def _targets(array: Array, weights: Any) -> Supervision:
    """Return targets (n, T), with NaN for unknown ones."""
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"y is {reprlib.repr(array)}, of shape {array.shape}: targets of several columns are "
            "numbers; labels have one entry for each sample."
        )
    targets = array.astype(np.float64)
    unknown = np.isnan(targets)
    bad = ~unknown & ~((targets >= 0) & np.isfinite(targets))
    if bad.any():
        i, j = map(int, np.argwhere(bad)[0])
        raise ValueError(f"y[{i}, {j}] is {targets[i, j]}: targets are non-negative and finite.")
    target_weights = np.ones(targets.shape)
    if weights is not None:
        shape = targets.shape if np.ndim(weights) == 2 else targets.shape[:1]
        label_weights = checked_array(weights, shape, "label_weights", positive=False)
        target_weights *= label_weights if label_weights.ndim == 2 else label_weights[:, None]
    target_weights[unknown] = 0
    if (nothing := np.flatnonzero(~target_weights.any(axis=0))).size:
        raise ValueError(
            f"y[:, {nothing[0]}] has no target that is known and of positive weight: leave this "
            "column out of y, or give it a target or a weight."
        )
    if (target_weights == target_weights[:, :1]).all():  # one weight for all targets of a sample
        target_weights = target_weights[:, 0].copy()
    return Supervision(np.where(unknown, 0.0, targets), target_weights, targets.shape[1])


def hold_out(
    supervision: Supervision, share: float | None, rng: Any, is_class: bool
) -> Supervision:
    """Hold out the labels of a share of the samples of each class."""
    if share is None:
        return supervision
    weights = (
        supervision.weights if supervision.weights.ndim == 1 else supervision.weights.sum(axis=1)
    )
    labelled: Array = weights > 0
    groups = supervision.targets if is_class else np.zeros(len(labelled))
    held = np.zeros(len(labelled), bool)
    for group in range(supervision.n_targets if is_class else 1):
        rows = np.flatnonzero(labelled & (groups == group))
        held[rng.permutation(rows)[: min(round(share * len(rows)), len(rows) - 1)]] = True
    if not held.any():
        raise ValueError(
            f"validation_fraction={share}: of {int(labelled.sum())} samples with labels none would "
            "be held out. Give a larger fraction, or None."
        )
    weights = supervision.weights.copy()
    weights[held] = 0
    return supervision._replace(weights=weights, held_out=held)
