"""Checks of the arguments of `fit` other than the counts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import (
    is_missing,
    matched,
    name_array,
    of_features,
    of_samples,
    of_topics,
    plain,
    shown,
    such_as,
)
from ...methods.factors import Constraints
from ...methods.poisson.priors import gamma_prior, real_numbers
from ...methods.variational.mean_field import points_of
from ...methods.weights.measured import Measured
from ...storage.atomic import user_path

Array = NDArray[Any]

# The default shape of a Gamma prior, as in scHPF and hpfrec.
SHAPE = 0.3
# Limits of parameters of priors and of posteriors to start from: within them no logarithm or sum of
# a fit overflows, and counts do not vanish in rounding.
LEAST_PRIOR, MOST_PRIOR = 1e-20, 1e10
MOST_START = 1e15


def checked_vector(values: Any, size: int, name: str, *, positive: bool = False) -> Array | None:
    """Check one number for each sample; return them in float64, or None."""
    if values is None:
        return None
    vector = real_numbers(values, name)
    if vector.shape != (size,):
        raise ValueError(
            f"{name} has shape {vector.shape}; one number a sample, ({size},), is needed."
        )
    _check_numbers(vector, name, positive)
    if not vector.any():
        raise ValueError(f"{name}: all are 0; at least one sample must count.")
    return vector


def sizes_of(size_factors: Any, counts: CountMatrix) -> Array | None:
    """Check positive sizes of samples; return them, or None."""
    sizes = of_samples(size_factors, counts, "size_factors")
    return checked_vector(sizes, counts.shape[0], "size_factors", positive=True)


def checked_array(
    values: Any, shape: tuple[int, ...], name: str, *, positive: bool = True
) -> Array:
    """Return numbers in float64 of this shape; a single number is broadcast to a vector.

    The vector is a read-only broadcast view.
    """
    array = real_numbers(values, name)
    if array.ndim == 0 and len(shape) == 1:
        _check_numbers(array[None], name, positive)
        return np.broadcast_to(array, shape)
    if array.shape != shape:
        one = "a number, or " if len(shape) == 1 else ""
        raise ValueError(f"{name} has shape {array.shape}; {one}an array {shape} is needed.")
    _check_numbers(array, name, positive)
    return array


def _check_numbers(array: Array, name: str, positive: bool) -> None:
    bad = ~np.isfinite(array) | (array <= 0 if positive else array < 0)
    if bad.any():
        where = tuple(map(int, np.argwhere(bad)[0]))
        kind = "positive" if positive else "non-negative"
        raise ValueError(
            f"{name}[{', '.join(map(str, where))}] is {array[where]}; {kind} finite numbers are "
            "needed."
        )


def checked_size(values: Any, name: str, least: float, most: float) -> None:
    """Refuse positive numbers that are too small or too large for a fit; 0 is accepted."""
    array = np.asarray(values, np.float64)
    bad = (array > most) | ((array < least) & (array > 0))
    if bad.any():
        where = tuple(map(int, np.argwhere(bad)[0])) if array.ndim else ()
        entry = f"[{', '.join(map(str, where))}]" if where else ""
        raise ValueError(
            f"{name}{entry} is {float(array[where]):g}: numbers from {least:g} to {most:g} are "
            "needed."
        )


def checked_prior(values: Any, shape: tuple[int, ...], name: str) -> Array:
    """Check that parameters of a prior are positive; return them in float64."""
    array = checked_array(values, shape, name)
    # a broadcast number is checked once, without memory for the whole array
    checked_size(array[:1] if np.ndim(values) == 0 else array, name, LEAST_PRIOR, MOST_PRIOR)
    return array


def checked_start(
    values: Any, shape: tuple[int, ...], name: str, *, positive: bool = True
) -> Array:
    """Check parameters of a start; return them, with positive ones not below any prior."""
    array = checked_array(values, shape, name, positive=positive)
    checked_size(array, name, 0.0, MOST_START)
    return np.maximum(array, LEAST_PRIOR) if positive else array


def checked_mask(values: Any, size: int, name: str) -> Array | None:
    """Check the size of a mask; return it, or None."""
    if values is None:
        return None
    mask = np.asarray(values)
    if mask.dtype != bool or mask.shape != (size,):
        raise ValueError(
            f"{name} is {mask.dtype} of shape {mask.shape}; an array of {size} booleans is needed."
        )
    return mask


def checked_anchors(anchors: Any, names: Any, n_features: int, n_components: int) -> list[int]:
    """Return the numbers of features, which are given by number or name."""
    numbers: list[int] = []
    number_of: dict[Any, int] = {}
    for anchor in () if anchors is None else name_array(anchors).tolist():
        if isinstance(anchor, str | bytes | tuple):
            if names is None:
                raise ValueError(f"anchors: {shown(anchor)} is a name, and the features have none.")
            if not number_of:
                numbered = list(enumerate(name_array(names).tolist()))[::-1]
                number_of = {text(name): i for i, name in numbered for text in (str, plain)}
            if anchor not in number_of:
                raise ValueError(f"anchors: no feature is named {shown(anchor)}.")
            numbers.append(number_of[anchor])
        elif (
            isinstance(anchor, Integral)
            and not isinstance(anchor, bool)
            and 0 <= int(anchor) < n_features
        ):
            numbers.append(int(anchor))
        else:
            raise ValueError(
                f"anchors: {shown(anchor)} is neither a name nor a number from 0 to "
                f"{n_features - 1}."
            )
    if len(set(numbers)) < len(numbers):
        repeated = next(anchor for anchor in numbers if numbers.count(anchor) > 1)
        raise ValueError(f"anchors: feature {repeated} comes more than once.")
    if len(numbers) > n_components:
        raise ValueError(
            f"anchors: there are {len(numbers)}, and n_components={n_components}: each has a topic "
            "of its own."
        )
    return numbers


def gamma_priors(
    n_components: int, shape: Any, rate: Any, drawn: bool
) -> tuple[Array, Array | None]:
    """Return shapes (K,) of Gamma priors of loadings, and their rates if these are given."""
    if shape is None:
        shape = SHAPE if drawn else 1 / n_components
    shape = checked_prior(shape, (n_components,), "shape_loadings")
    if rate is None:
        return shape, None
    if drawn:
        raise ValueError(
            f"rate_loadings is {shown(rate)}, and with hierarchical=True rates are drawn: give "
            "mean_rates, or leave rate_loadings out."
        )
    return shape, checked_prior(rate, (n_components,), "rate_loadings")


def dirichlet_priors(
    n_components: int, doc_topic_prior: Any, topic_word_prior: Any, estimate: str
) -> tuple[Array, Any]:
    """Return alpha and eta of Dirichlet priors, by default 1 / K; an array eta as it is."""
    equal = 1 / n_components
    prior = equal if doc_topic_prior is None else doc_topic_prior
    alpha = checked_prior(prior, (n_components,), "doc_topic_prior")
    if topic_word_prior is not None and np.ndim(topic_word_prior) == 0:
        checked_size(topic_word_prior, "topic_word_prior", LEAST_PRIOR, MOST_PRIOR)
    if estimate == "symmetric" and np.ptp(alpha):
        raise ValueError(
            f"doc_topic_prior is {shown(prior)}, and estimate_prior='symmetric' estimates one "
            "number for all topics: give one, or use estimate_prior='vector'."
        )
    if np.ndim(topic_word_prior):
        return alpha, topic_word_prior
    return alpha, equal if topic_word_prior is None else float(topic_word_prior)


def check_topic_prior(eta: Any, collapsed: bool, seeds: Any) -> None:
    """Refuse topics without a prior where a prior is needed."""
    if eta is None or np.ndim(eta) or eta != 0:
        return
    if collapsed:
        raise ValueError(
            "topic_word_prior=0 is for inference='mean-field': collapsed inference needs a prior "
            "of topics. Give a positive number, or None, which estimates it."
        )
    if seeds is not None:
        raise ValueError(
            "topic_word_prior=0 means topics without a prior, which seeds are: give a positive "
            "number, or None."
        )


def prior_of_topics(eta: Any, counts: CountMatrix, n_components: int) -> Any:
    """Return the prior eta of topics: a number, or an array (m, K) in the order of the counts."""
    if np.ndim(eta) == 0:
        return eta
    name, m = "topic_word_prior", counts.shape[1]
    array = np.asarray(of_features(eta, counts, name, axis=np.ndim(eta) - 1))
    if array.shape not in ((m,), (n_components, m)):
        raise ValueError(
            f"topic_word_prior has shape {array.shape}: one number, ({m},) for the features or "
            f"({n_components}, {m}) for topics and features is needed."
        )
    array = checked_prior(array, array.shape, name)
    return np.ascontiguousarray(np.broadcast_to(array, (n_components, m)).T)


def npy_target(out: str | os.PathLike[str]) -> Path:
    """Check before any work that an array can be written to a path; return the path."""
    target = Path(os.path.realpath(user_path(out)))
    if target.suffix.lower() != ".npy" or target.is_dir():
        raise ValueError(f"out={str(out)!r}: the name of a file that ends in .npy is needed.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: the folder {target.parent} does not exist.")
    return target


def checked_posteriors(
    counts: CountMatrix, n_components: int, positive: bool, loadings: Any, components: Any
) -> tuple[Array | None, Array | None]:
    """Return parameters of topics (m, K) and of samples (n, K) to start from, as far as given.

    Components (K, m) that need not be `positive` are points, whose rows sum to one.
    """
    (n, m), K = counts.shape, n_components
    if components is not None:
        components = of_features(components, counts, "components", axis=1)
        components = checked_start(components, (K, m), "components", positive=positive).T
        components = components if positive else points_of(components)
    if loadings is not None:
        loadings = checked_start(of_samples(loadings, counts, "loadings"), (n, K), "loadings")
    return components, loadings


def constraints_of(
    counts: CountMatrix, n_components: int, solver: str, L: Array | None, F: Array | None,
    *, sizes: Array | None, row_weights: Any, topics: Any, features: Any, samples: Any,
    prior_factors: Any, prior_loadings: Any,
) -> Constraints:  # fmt: skip
    """Check fixed parameters, weights and priors of a fit from (L, F); return them."""
    n, m = counts.shape
    features = of_features(features, counts, "fixed_features")
    samples = of_samples(samples, counts, "fixed_samples")
    masks = {
        "fixed_topics": (checked_mask(topics, n_components, "fixed_topics"), F, "components"),
        "fixed_features": (checked_mask(features, m, "fixed_features"), F, "components"),
        "fixed_samples": (checked_mask(samples, n, "fixed_samples"), L, "loadings"),
    }
    for name, (mask, values, factor) in masks.items():
        if mask is not None and values is None:
            raise ValueError(f"{name} holds rows or columns of {factor}: pass {factor}= to fit.")
    if solver == "joint-em":
        priors = {"prior_factors": prior_factors, "prior_loadings": prior_loadings}
        masked = {name: mask for name, (mask, _, _) in masks.items()}
        asked = [name for name, value in (masked | priors).items() if value is not None]
        if asked:
            raise ValueError(
                f"{asked[0]} cannot be combined with solver='joint-em', which normalises F at "
                "every step; use 'em' or 'auto'."
            )
    unit = 1.0 if sizes is None else sizes[:, None]
    return Constraints(
        topics=masks["fixed_topics"][0],
        features=masks["fixed_features"][0],
        samples=masks["fixed_samples"][0],
        weights=checked_vector(of_samples(row_weights, counts, "row_weights"), n, "row_weights"),
        prior_factors=gamma_prior(
            prior_factors, (m, n_components), "prior_factors", names=counts.feature_names
        ),
        prior_loadings=gamma_prior(
            prior_loadings,
            (n, n_components),
            "prior_loadings",
            unit=unit,
            names=counts.sample_names,
        ),  # fmt: skip
    )


def check_topics_of_priors(topics: Any, prior_factors: Any, prior_loadings: Any) -> None:
    """Refuse priors whose topics are in a different order from those of the start.

    Priors are parameters of an estimator without names: other fits use them by position.
    """
    for name, prior in (("prior_factors", prior_factors), ("prior_loadings", prior_loadings)):
        for values in prior if isinstance(prior, tuple) else (prior,):
            if of_topics(values, topics) is not values:
                raise ValueError(
                    f"{name} has the topics of loadings and components in another order, "
                    f"{such_as(topics)}, ...: priors of an estimator are taken by position. Give "
                    "the topics of all in one order."
                )


def measured_features(counts: CountMatrix, measured: Any, panel: Any) -> Measured | None:
    """Check which features were measured in which samples; None if all were measured in all."""
    n, m = counts.shape
    if measured is None:
        if panel is not None:
            raise ValueError(
                "panel only says which features were measured in which samples, and needs "
                "measured, a row of features for each panel. It corrects no batch effects: the "
                "efficiencies of features in batches are those of batch=."
            )
        return None
    labels = np.zeros(n, int) if panel is None else _labels(of_samples(panel, counts, "panel"), n)
    names, groups = np.unique(labels, return_inverse=True)
    if isinstance(measured, Mapping):
        if panel is None:
            raise ValueError("measured is a dict by panel: give panel=, the panel of each sample.")
        measured = {
            name: np.asarray(of_features(row, counts, f"measured[{shown(name)}]"))
            for name, row in measured.items()
        }
    else:
        axis = min(getattr(measured, "ndim", 2), 2) - 1  # a Series is of one panel
        measured = of_features(measured, counts, "measured", axis=axis)
    of_panels = isinstance(measured, dict) or hasattr(measured, "columns")
    if panel is not None and of_panels:
        wanted = name_array(names)
        measured = matched(measured, wanted, "measured", of="panels", subject="panel")
    mask = np.atleast_2d(np.asarray(measured))
    if mask.dtype != bool or mask.shape != (len(names), m):
        raise ValueError(
            f"measured is {mask.dtype} of shape {mask.shape}: booleans of shape "
            f"{(len(names), m)} are needed, one row for each of the {len(names):,} panels."
        )
    nothing = np.flatnonzero(~mask.any(axis=1))
    if nothing.size:
        raise ValueError(f"measured: no feature was measured in panel {names[nothing[0]]!s}.")
    return None if mask.all() else Measured(groups, mask)


def _labels(panel: Any, n_samples: int) -> Array:
    """Return one label for each sample, as text if types are mixed."""
    labels = np.asarray(panel)
    if labels.shape != (n_samples,):
        raise ValueError(
            f"panel has shape {labels.shape}: one label for each of the {n_samples:,} samples is "
            "needed."
        )
    if labels.dtype.kind in "Of":
        missing = [*map(is_missing, labels.tolist())]
        if any(missing):
            raise ValueError(
                f"panel[{missing.index(True)}] is missing; every sample needs a label."
            )
    return labels.astype(str) if labels.dtype == object else labels
