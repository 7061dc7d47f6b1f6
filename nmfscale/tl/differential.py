"""differential_features: features that make the topics of a fit in an AnnData object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.counts import of_fit, selected
from ..annotated.keys import KEY
from ..annotated.modalities import chosen_counts
from ..annotated.places import column, writable
from ..annotated.scheme import entry_of, keep_result, read_model
from ..counts.argument_types import AnnDataLike, MaskLike
from ..inference.features.differential import differential_features as find_features
from .groups import some_of, topics_of


def differential_features(
    adata: AnnDataLike,
    *,
    units: ArrayLike | None = None,
    key: str = KEY,
    layer: str | None = None,
    raw: bool | None = None,
    mask_var: MaskLike | None = None,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Find the features that make each topic: :func:`nmfscale.differential_features`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`. If counts are split,
        only observations of the fit are used.
    units : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with the sampling unit of each observation, such as its donor:
        errors are those between units.
    key : str, default="topics"
        Key of the fit.
    layer : str, optional
        Layer with the counts; by default that of the fit.
    raw : bool, optional
        Whether the counts are ``adata.raw.X``; by default as for the fit.
    mask_var : array-like or str, optional
        Variables to test, as in :func:`topics`; by default all, also those that were not fitted.
    mod, copy
        As in :func:`topics`.
    **options
        Further arguments of :func:`nmfscale.differential_features`, such as
        ``reference="mean"``, ``split=0.5`` or ``random_state=0``, the seed of the split.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["differential_features"]`` is set, which
        :func:`nmfscale.get.differential_df` and ``nmfscale.get.result`` read, and plots such as
        :func:`nmfscale.pl.volcano_plot`.

    Raises
    ------
    ValueError
        If there is no such fit, or as :func:`nmfscale.differential_features`.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.differential_features(adata, random_state=0)
    >>> nmfscale.get.differential_df(adata, topic=0).columns.tolist()[:7]
    ['topic', 'feature', 'lfc', 'std_error', 'lower', 'upper', 'z']
    """
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    chosen = of_fit(entry_of(adata, key)["params"], layer, raw)
    counts = chosen_counts(adata, **chosen, mask_var=mask_var).counts
    options = {"topic_names": topics_of(adata, key)} | options
    options["units"] = column(adata, units, "units", whole=whole)
    # a split fits the topics again, to the observations of the fit
    model = read_model(adata, key, every=options.get("split", "auto") is None)
    obs = np.isin(np.asarray(counts.sample_names), model.sample_names_)
    if not obs.all():
        counts = selected(counts, obs, None)
        options["units"] = None if units is None else some_of(options["units"], obs)
    result = find_features(model, counts, **options)
    if isinstance(units, str):
        result = replace(result, origin=replace(result.origin, units=units))
    keep_result(adata, key, result, "differential_features")
    return returned
