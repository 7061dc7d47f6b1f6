"""Batches of observations: what differs between them, and whether topics do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from ..annotated.counts import of_fit, with_features_of
from ..annotated.keys import KEY
from ..annotated.modalities import chosen_counts
from ..annotated.places import writable
from ..annotated.scheme import entry_of, keep_result, read_model
from ..counts.argument_types import AnnDataLike
from ..inference.batches.effects import batch_effects as effects
from ..models.arguments.measured_entries import rows_of_fit
from .groups import columns_of, topics_of


def batch_effects(
    adata: AnnDataLike,
    batch: ArrayLike | None = None,
    *,
    conditions: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    layer: str | None = None,
    raw: bool | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
) -> Any:
    """Show how batches differ, and whether topics tell them apart: :func:`nmfscale.batch_effects`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    batch : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with the batch of each observation, such as its donor; by default
        the batches of the fit.
    conditions, clusters : str or array-like of shape (n_obs,), optional
        Columns of ``adata.obs`` with the condition and with the cluster of each observation, such
        as its cell type.
    layer, raw
        As in :func:`topic_quality`. The counts are used if the fit has batches and `adata` has its
        observations.
    key, mod, copy
        As in :func:`topic_quality`.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["batch_effects"]`` is set, which
        :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.batch_plot` draws.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.batch_effects`.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(120, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> adata.obs["run"] = np.repeat(["one", "two"], 60)
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.batch_effects(adata, "run")
    >>> nmfscale.get.result(adata, "batch_effects").warnings
    ()
    """
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    model = read_model(adata, key, every=True)
    choices = {"batch": batch, "conditions": conditions, "clusters": clusters}
    labels = columns_of(adata, choices, whole)
    counts = None
    if getattr(model, "batches_", None) is not None:
        chosen = of_fit(entry_of(adata, key)["params"], layer, raw)
        counts = _counts_of_fit(model, chosen_counts(adata, **chosen, integer="allow").counts)
    result = effects(model, counts, **labels, topic_names=topics_of(adata, key))
    if isinstance(batch, str):
        result = replace(result, origin=replace(result.origin, groups=batch))
    keep_result(adata, key, result, "batch_effects")
    return returned


def _counts_of_fit(model: Any, counts: Any) -> Any:
    """Return the counts of a fit; None if these are not the counts of its observations."""
    counts = with_features_of(model, counts)
    return None if rows_of_fit(model, counts) is None else counts
