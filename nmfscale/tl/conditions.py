"""pseudobulk: counts of units, such as donors, topic by topic, as a new AnnData object."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.counts import counts_of, of_fit, selected
from ..annotated.keys import KEY
from ..annotated.places import annotated, column
from ..annotated.scheme import entry_of, read_model
from ..counts.argument_types import AnnDataLike, Topic
from ..inference.features.pseudobulk import pseudobulk as sum_units
from .groups import topics_of


def pseudobulk(
    adata: AnnDataLike,
    *,
    units: ArrayLike | None = None,
    groupby: ArrayLike | None = None,
    topic: Topic | None = None,
    rounded: bool = False,
    layer: str | None = None,
    raw: bool | None = None,
    key: str = KEY,
    mod: str | None = None,
    **options: Any,
) -> Any:
    """Sum the counts of each unit, topic by topic: :func:`nmfscale.pseudobulk`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    units : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with the unit of each observation, such as its donor; by default
        observations are units.
    groupby : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with groups, such as conditions: units are split by group.
    topic, rounded
        As in :meth:`nmfscale.results.Pseudobulk.to_anndata`.
    layer, raw, key, mod
        As in :func:`differential_features`.
    **options
        Further arguments of :func:`nmfscale.pseudobulk`.

    Returns
    -------
    AnnData
        A new object with a row for each unit and topic, for programs such as pydeseq2; see
        :meth:`nmfscale.results.Pseudobulk.to_anndata`. `adata` is not changed.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.pseudobulk`.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(120, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> adata.obs["donor"] = np.repeat([f"donor {i}" for i in range(6)], 20)
    >>> adata.obs["condition"] = np.repeat(["control", "treated"], 60)
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> bulk = nmfscale.tl.pseudobulk(adata, units="donor", topic="topic 0", rounded=True)
    >>> bulk.shape, bulk.obs.columns.tolist()
    ((6, 50), ['unit', 'topic', 'n_samples', 'proportions', 'donor', 'condition'])
    """
    whole, adata = adata, annotated(adata, mod)
    chosen = of_fit(entry_of(adata, key)["params"], layer, raw)
    model, counts = read_model(adata, key), counts_of(adata, **chosen)
    obs = np.isin(np.asarray(counts.sample_names), model.sample_names_)
    var = np.isin(np.asarray(counts.feature_names), model.feature_names_in_)
    labels = {
        name: np.asarray(column(adata, choice, name, whole=whole), object)[obs]
        for name, choice in (("units", units), ("groupby", groupby)) if choice is not None
    }  # fmt: skip
    counts = selected(counts, None if obs.all() else obs, var if var.any() else None)
    options = {"topic_names": topics_of(adata, key)} | options
    result = sum_units(
        model, counts, units=labels.get("units"), groups=labels.get("groupby"), **options
    )
    return result.to_anndata(topic, rounded=rounded)
