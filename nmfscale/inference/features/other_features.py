"""Efficiencies in the batches of a fit of features that the fit did not have."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...methods.weights.measured import SampleGroups
from ...models.arguments.batches import has_efficiencies
from ...models.arguments.measured_entries import (
    efficiencies_in,
    places_of_features,
    rows_by_name,
)
from ...models.poisson_nmf import PoissonNMF
from ...readers.streams.columns import select_columns

Array = NDArray[Any]


def efficiencies_of_all(
    model: Any, counts: CountMatrix, amounts: Array, *, n_threads: int | None, client: Any
) -> SampleGroups | None:
    """Return the efficiencies of samples, also of features that the fit did not have.

    These are estimated together with frequencies of the features, by a fit with held loadings: the
    expected counts (n, K) of topics in the samples, if all efficiencies were 1.
    """
    if not has_efficiencies(model):
        return efficiencies_in(model, counts)
    places = places_of_features(model, counts)
    others = np.flatnonzero(~np.isin(places, np.arange(model.components_.shape[1])))
    if not others.size:
        return efficiencies_in(model, counts)
    rows = rows_by_name(model, counts)
    of_others = select_columns(counts, others)
    n, K = amounts.shape
    mean = np.asarray(of_others.column_totals, np.float64) / max(float(amounts.sum()), 1.0)
    regression = PoissonNMF(
        K, batch_shape=float(model.batch_shape_), n_threads=n_threads, random_state=0,
        memory_limit=model.memory_limit,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of features and samples that the user did not choose
        regression.fit(
            of_others, batch=model.batch_[rows], loadings=amounts,
            components=np.broadcast_to(mean, (K, len(others))), fixed_samples=np.ones(n, bool),
            client=client,
        )  # fmt: skip
    efficiencies = np.ones((len(model.batches_), len(others)))
    efficiencies[regression.batches_] = regression.batch_efficiencies_
    return efficiencies_in(model, counts, efficiencies)
