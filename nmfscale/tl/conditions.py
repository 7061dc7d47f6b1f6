"""Counts of units, such as donors, topic by topic, and their differences between conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.counts import features_in, of_fit, selected
from ..annotated.keys import KEY
from ..annotated.modalities import chosen_counts
from ..annotated.places import annotated, writable
from ..annotated.scheme import entry_of, read_model
from ..counts.argument_types import AnnDataLike, Topic
from ..inference.features.conditions import condition_features as compare_groups
from ..inference.features.features_by_group import features_by_group as of_groups
from ..inference.features.pseudobulk import pseudobulk as sum_units
from .groups import check_groupby, columns_of, keep_with_names, some_of, table_of, topics_of


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
    labels = {"units": units, "groups": groupby}
    adata = annotated(whole := adata, mod)
    arguments, options = _of_fit(adata, whole, key, layer, raw, labels, options)
    return sum_units(**arguments, **options).to_anndata(topic, rounded=rounded)


def condition_features(
    adata: AnnDataLike,
    groupby: str,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    covariates: str | Sequence[str] | ArrayLike | None = None,
    layer: str | None = None,
    raw: bool | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Test which features differ between groups within topics: :func:`nmfscale.condition_features`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    groupby, units, strata
        As in :func:`permutation_test`.
    covariates : str, sequence of str, or table of shape (n_obs, n_covariates), optional
        Columns of ``adata.obs`` by which units differ, such as ``["age", "batch"]``.
    layer, raw
        As in :func:`differential_features`.
    key, mod, copy
        As in :func:`permutation_test`.
    **options
        Further arguments of :func:`nmfscale.condition_features`, such as ``reference="control"``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["condition_features"][groupby]`` is set,
        which :func:`nmfscale.get.result` reads.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.condition_features`.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(160, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> adata.obs["donor"] = np.repeat([f"donor {i}" for i in range(8)], 20)
    >>> adata.obs["condition"] = np.repeat(["control", "treated"], 80)
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.condition_features(adata, "condition", units="donor")
    >>> changes = nmfscale.get.result(adata, "condition_features")
    >>> changes.compared, changes.reference
    (('treated',), 'control')
    """
    check_groupby(groupby)
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    labels = {"groups": groupby, "units": units, "strata": strata}
    arguments, options = _of_fit(adata, whole, key, layer, raw, labels, options, covariates)
    result = compare_groups(**arguments, **options)
    keep_with_names(adata, key, result, "condition_features", labels)
    return returned


def features_by_group(
    adata: AnnDataLike,
    groupby: str,
    *,
    units: ArrayLike | None = None,
    layer: str | None = None,
    raw: bool | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Estimate features of topics in groups, such as periods: :func:`nmfscale.features_by_group`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    groupby, units
        As in :func:`permutation_test`.
    layer, raw
        As in :func:`differential_features`.
    key, mod, copy
        As in :func:`permutation_test`.
    **options
        Further arguments of :func:`nmfscale.features_by_group`, such as ``against="others"``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["features_by_group"][groupby]`` is set,
        which :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.features_by_group_plot`
        draws.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.features_by_group`.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(120, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> adata.obs["week"] = np.repeat([1, 2, 4], 40)
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.features_by_group(adata, "week")
    >>> nmfscale.get.result(adata, "features_by_group").groups
    (1, 2, 4)
    """
    check_groupby(groupby)
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    labels = {"groups": groupby, "units": units}
    arguments, options = _of_fit(adata, whole, key, layer, raw, labels, options)
    keep_with_names(adata, key, of_groups(**arguments, **options), "features_by_group", labels)
    return returned


def _of_fit(
    adata: Any, whole: Any, key: str, layer: str | None, raw: bool | None, labels: dict[str, Any],
    options: dict[str, Any], covariates: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return the model of a fit, the counts and labels of its observations, and all options.

    Without observations of the fit, all of them are taken.
    """
    chosen = of_fit(entry_of(adata, key)["params"], layer, raw)
    model, counts = read_model(adata, key), chosen_counts(adata, **chosen).counts
    obs = np.isin(np.asarray(counts.sample_names), model.sample_names_)
    var = features_in(model, counts)
    of_samples = columns_of(adata, labels, whole)
    if covariates is not None:
        of_samples["covariates"] = table_of(adata, covariates, whole)
    if not obs.all():
        of_samples = some_of(of_samples, obs)
    counts = selected(counts, None if obs.all() else obs, var if var.any() else None)
    names = {"topic_names": topics_of(adata, key)}
    return {"model": model, "X": counts, **of_samples}, names | options
