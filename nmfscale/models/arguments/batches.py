"""Batches of samples that are given to `fit`, and the groups of a fit: pairs of panel and batch."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import is_missing, name_array, of_samples, same_kind, shown, such_as
from ...counts.warn import warn_caller
from ...methods.weights.measured import Measured, SampleEfficiencies, SampleGroups

Array = NDArray[Any]
# The shape of the prior at which efficiencies have a standard deviation of 1.
_LEAST_SHAPE = 1.0

# Why a model has no efficiencies of features in batches.
_WHY = {
    "LDA": "the probabilities of a sample's features sum to one, so that efficiencies would be in "
    "the denominator of every sample, where Dirichlet priors are no longer conjugate",
    "FrobeniusNMF": "with squared errors, products of factors and of counts would differ from "
    "batch to batch, and errors that are added to counts know no efficiencies",
    "SSNMF": "counts and labels have losses with weights of their own, and not a likelihood that "
    "would determine the prior of efficiencies",
    "NoisyTopicModel": "features have noise of their own in each topic, and efficiencies, which "
    "its updates could have, are not implemented beside it",
    "AnchorNMF": "anchors are found in co-occurrences of features, which would be products of "
    "efficiencies, others in each batch",
}


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
    labels, is_known = _checked(batch, n_samples)
    if not is_known.all():
        first = int(is_known.argmin())
        raise ValueError(
            f"batch[{first}] is missing ({shown(labels[first])}): every sample needs a label. "
            "Leave these samples out (mask_obs), or give them a label of their own."
        )
    present, codes = np.unique(labels, return_inverse=True)
    categories = getattr(getattr(batch, "cat", batch), "categories", None)
    if categories is None:
        return present, codes.astype(np.int64)
    order = [name for name in np.asarray(categories).astype(labels.dtype) if name in present]
    place = np.empty(len(present), np.int64)
    place[np.searchsorted(present, order)] = np.arange(len(order))
    return np.array(order, present.dtype), place[codes]


def _checked(batch: Any, n_samples: int) -> tuple[Array, Array]:
    """Return the labels (n,) of batches, and a mask (n,) of those that are not missing."""
    values = np.asarray(batch)
    if values.shape != (n_samples,):
        raise ValueError(
            f"batch has shape {values.shape}: one label for each of the {n_samples:,} samples is "
            "needed."
        )
    is_known = np.ones(n_samples, bool)
    if values.dtype.kind in "OfUSM":
        is_known = np.array([not (is_missing(v) or v == "nan") for v in values.tolist()], bool)
    return values.astype(str) if values.dtype == object else values, is_known


def refuse_batches(model: Any, batch: Any) -> None:
    """Refuse batches of samples for a model that was fitted without batches."""
    if batch is not None and getattr(model, "batches_", None) is None:
        if hasattr(model, "from_table_"):
            raise ValueError(
                f"batch was passed, and no fit has estimated how much efficiencies of features "
                f"vary, as this {type(model).__name__} comes from a table: give their prior to "
                "from_components, such as batch_shape=10 for differences of about 30 %, or leave "
                "out batch."
            )
        raise ValueError(
            f"batch was passed, and this {type(model).__name__} was fitted without batches: fit it "
            "with batch=, or leave out batch."
        )


def warn_of_batches(model: Any) -> None:
    """Warn that samples have no batch, in which features of a fit have efficiencies."""
    warn_caller(
        f"{type(model).__name__} was fitted with batch=, and nothing says from which batches the "
        "samples of X are: efficiencies of features are taken as 1. transform, score and "
        "perplexity take batch=: labels as in fit, those of new batches, or None for samples "
        "without one."
    )


def warn_of_small_shape(shape: float) -> None:
    """Warn of efficiencies that vary so much that batches can hardly have topics in common."""
    if shape < _LEAST_SHAPE:
        warn_caller(
            f"efficiencies of features in batches vary by more than their mean (batch_shape_ is "
            f"{shape:.2g}): batches hardly have topics in common, and proportions of topics cannot "
            "be compared between them. Fit each batch, and match topics (match_topics), or hold "
            "efficiencies nearer to 1, such as by batch_shape=10."
        )


def checked_batch(estimator: Any, counts: CountMatrix, batch: Any) -> Array:
    """Return the labels (n,) of batches for the fits of an estimator that takes them."""
    if "batch" not in signature(type(estimator).fit).parameters:
        raise TypeError(why_no_batches(type(estimator).__mro__))
    names, codes = codes_of(batch_labels(counts, batch), counts.shape[0])
    return names[codes]


def has_efficiencies(model: Any) -> bool:
    """Whether features have efficiencies other than 1 in the batches of a fit."""
    shape = getattr(model, "batch_shape_", None)
    return shape is not None and bool(np.isfinite(shape))


def values_in(model: Any, counts: CountMatrix, rows: Array | None) -> SampleGroups | None:
    """Return the efficiencies of samples, at `rows` (n,) of a fit, or what was measured in them.

    None if everything was measured, with efficiencies of 1. Without `rows`, those of samples that
    the fit did not have are unknown.
    """
    measured = Measured.of(counts)
    if rows is None or not has_efficiencies(model):
        return measured
    pairs = Pairs.of(model.batch_[rows], measured, len(model.batches_))
    return pairs.efficiencies(model.batch_efficiencies_)


def codes_beside(of_fit: Array, counts: CountMatrix, batch: Any) -> tuple[Array, int]:
    """Return the number (n,) of the batch of each new sample, and the number of new batches.

    Batches of the fit come first, then new ones in sorted order; samples without a label have -1.
    """
    labels, is_known = _checked(batch_labels(counts, batch), counts.shape[0])
    there, known = same_kind(name_array(labels[is_known]), name_array(of_fit))
    number = {label: b for b, label in enumerate(known.tolist())}
    new = sorted(set(there.tolist()) - number.keys())
    number |= {label: len(of_fit) + b for b, label in enumerate(new)}
    codes = np.full(counts.shape[0], -1, np.int64)
    codes[is_known] = [number[label] for label in there.tolist()]
    return codes, len(new)


def groups_of(measured: Measured | None, batches: Batches | None) -> dict[str, Any]:
    """Return the groups of samples in the constraints of a fit: pairs of a batch and a panel."""
    if batches is None or not batches.have_effects:
        if measured is None:
            return {}
        return {"groups": measured.groups, "measured": measured.features}
    pairs = Pairs.of(batches.codes, measured, len(batches.labels))
    found = {"groups": pairs.groups, "batches": pairs.batches, "batch_shape": batches.shape}
    return found if pairs.features is None else found | {"measured": pairs.features}


@dataclass(frozen=True)
class Pairs:
    """Groups (n,) of samples of one batch and one panel.

    `batches` (G,) are the batches of the groups, and `features` (G, m) a mask of what was measured
    in them, None if that is everything.
    """

    groups: Array
    batches: Array
    features: Array | None

    @classmethod
    def of(cls, codes: Array, measured: Measured | None, n_batches: int) -> Pairs:
        """Return the pairs for the number (n,) of the batch of each sample."""
        if measured is None:
            return cls(codes, np.arange(n_batches), None)
        pairs = np.column_stack([codes, measured.groups])
        pairs, groups = np.unique(pairs, axis=0, return_inverse=True)
        return cls(groups.reshape(-1), pairs[:, 0], measured.features[pairs[:, 1]])

    def efficiencies(self, of_batches: Array) -> SampleEfficiencies:
        """Return the efficiencies of samples, from those of batches (n_batches, m)."""
        values = of_batches[self.batches]
        if self.features is not None:
            values = values * self.features
        return SampleEfficiencies(self.groups, values)


def why_no_batches(classes: tuple[type, ...]) -> str:
    """Return the message for a model, given by its class and bases, whose fit takes no batches."""
    why = next((_WHY[one.__name__] for one in classes if one.__name__ in _WHY), "")
    return (
        f"{classes[0].__name__} takes no batch: only PoissonNMF, TopicModel and GammaPoisson "
        f"have efficiencies of features in batches{'; here ' * bool(why)}{why}. Use one of these, "
        "or fit each batch and match the topics."
    )
