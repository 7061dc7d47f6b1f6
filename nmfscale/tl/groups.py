"""Tests and intervals for groups of observations of an AnnData object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.keys import KEY
from ..annotated.places import column, masks_of, writable
from ..annotated.scheme import entry_of, keep_result, read_model
from ..counts.argument_types import AnnDataLike, MaskLike
from ..inference.design.loadings import topics_of_samples
from ..inference.groups.bootstrap import bootstrap_weights as bootstrap
from ..inference.groups.correspondence import correspondence_analysis as correspondence
from ..inference.regression.effects import group_effects as effects
from ..inference.regression.permutation import permutation_test as test_groups


def permutation_test(
    adata: AnnDataLike,
    groupby: str,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    covariates: str | Sequence[str] | ArrayLike | None = None,
    mask_obs: MaskLike | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Test whether groups differ in their topics: :func:`nmfscale.permutation_test`.

    If observations come from donors, patients or batches, pass these as `units`: cells of a donor
    resemble each other, and a test that permutes cells finds differences that do not exist.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    groupby : str
        Column of ``adata.obs`` with the groups; of a MuData object, column of obs of the modality
        or of the whole object. So are other columns of ``obs``.
    units : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with the sampling unit of each observation, such as its donor.
        Groups of a donor with observations in several are compared within the donor.
    strata : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with strata, within which units are permuted.
    covariates : str, sequence of str, or table of shape (n_obs, n_covariates), optional
        Columns of ``adata.obs`` beside which groups are compared, such as ``["age", "batch"]``,
        with one value for each unit.
    mask_obs : array-like or str, optional
        Observations to compare, as in :func:`topics`; by default all.
    key : str, default="topics"
        Key of the fit.
    mod, copy
        As in :func:`topics`.
    **options
        Further arguments of :func:`nmfscale.permutation_test`, such as ``statistic="hellinger"``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["permutation_test"][groupby]`` is set,
        which :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.null_plot` draws.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.permutation_test`.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(120, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> adata.obs["donor"] = np.repeat([f"donor {i}" for i in range(12)], 10)
    >>> adata.obs["condition"] = np.repeat(["control", "treated"], 60)
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.permutation_test(adata, "condition", units="donor")
    >>> nmfscale.get.result(adata, "permutation_test", "condition").overall.n_units
    (6, 6)
    """
    if covariates is not None:
        options["covariates"] = covariates
    return _of_groups(
        test_groups, "permutation_test", adata, groupby, units, strata, mask_obs, key, mod, copy,
        options,
    )  # fmt: skip


def group_effects(
    adata: AnnDataLike,
    groupby: str,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    mask_obs: MaskLike | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Estimate means of topics in groups, and test which differ: :func:`nmfscale.group_effects`.

    Parameters
    ----------
    adata, groupby, units, strata, mask_obs, key, mod, copy
        As in :func:`permutation_test`.
    **options
        Further arguments of :func:`nmfscale.group_effects`.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["group_effects"][groupby]`` is set, which
        :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.forest_plot` draws.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.group_effects`.

    Examples
    --------
    See :func:`permutation_test`.
    """
    return _of_groups(
        effects, "group_effects", adata, groupby, units, strata, mask_obs, key, mod, copy, options
    )


def bootstrap_weights(
    adata: AnnDataLike,
    groupby: str,
    *,
    units: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    mask_obs: MaskLike | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Estimate balanced weights of topics in groups: :func:`nmfscale.bootstrap_weights`.

    Parameters
    ----------
    adata, groupby, units, strata, mask_obs, key, mod, copy
        As in :func:`permutation_test`.
    **options
        Further arguments of :func:`nmfscale.bootstrap_weights`.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["bootstrap_weights"][groupby]`` is set,
        which :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.forest_plot` draws.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as :func:`nmfscale.bootstrap_weights`.

    Examples
    --------
    See :func:`permutation_test`.
    """
    return _of_groups(
        bootstrap, "bootstrap_weights", adata, groupby, units, strata, mask_obs, key, mod, copy,
        options,
    )  # fmt: skip


def correspondence_analysis(
    adata: AnnDataLike,
    groupby: str,
    *,
    units: ArrayLike | None = None,
    mask_obs: MaskLike | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Place topics and groups in one space: :func:`nmfscale.experimental.correspondence_analysis`.

    Like all of :mod:`nmfscale.experimental`, this function may change in any release.

    Parameters
    ----------
    adata, groupby, units, mask_obs, key, mod, copy
        As in :func:`permutation_test`.
    **options
        Further arguments of :func:`nmfscale.experimental.correspondence_analysis`.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["correspondence_analysis"][groupby]`` is
        set, which :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.biplot` draws.

    Raises
    ------
    ValueError
        If there is no such fit or column, or as in
        :func:`nmfscale.experimental.correspondence_analysis`.

    Examples
    --------
    See :func:`permutation_test`.
    """
    return _of_groups(
        correspondence, "correspondence_analysis", adata, groupby, units, None, mask_obs, key, mod,
        copy, options,
    )  # fmt: skip


# The name here of an argument of the functions of arrays.
_ARGUMENTS = {"groups": "groupby"}


def topics_of(adata: Any, key: str) -> list[str]:
    """Return the names of the topics of a fit, which its results have."""
    return list(map(str, entry_of(adata, key)["topic_names"]))


def _of_groups(
    function: Callable[..., Any], name: str, adata: Any, groupby: str, units: Any, strata: Any,
    mask_obs: Any, key: str, mod: str | None, copy: bool, options: dict[str, Any],
) -> Any:  # fmt: skip
    """Call a function of groups with columns of obs, and keep its result."""
    check_groupby(groupby)
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    if "topic_names" in signature(function).parameters:
        options = {"topic_names": topics_of(adata, key)} | options
    choices = {"groups": groupby, "units": units, "strata": strata}
    labels = columns_of(adata, choices, whole)
    if "covariates" in options:
        options = options | {"covariates": table_of(adata, options["covariates"], whole)}
    model, obs = read_model(adata, key, every=True), masks_of(adata, mask_obs, whole=whole)[0]
    if obs is not None:
        model = topics_of_samples(model, options.get("scale", "proportions"), warn=False).of(obs)
        labels = {argument: some_of(values, obs) for argument, values in labels.items()}
        if "covariates" in options:
            options["covariates"] = some_of(options["covariates"], obs)
    result = function(model, **labels, **options)
    keep_with_names(adata, key, result, name, choices)
    return returned


def check_groupby(groupby: Any) -> None:
    """Refuse groups that are not the name of a column, under which the result is kept."""
    if not isinstance(groupby, str):
        raise TypeError(f"groupby is a {type(groupby).__name__}: a column of adata.obs is needed.")


def columns_of(adata: Any, choices: dict[str, Any], whole: Any) -> dict[str, Any]:
    """Return the labels of observations, by argument, for names of columns or labels."""
    return {
        argument: column(adata, choice, _ARGUMENTS.get(argument, argument), whole=whole)
        for argument, choice in choices.items() if choice is not None
    }  # fmt: skip


def keep_with_names(adata: Any, key: str, result: Any, name: str, choices: dict[str, Any]) -> None:
    """Keep a result of groups, which says from which columns it was made."""
    names = {argument: choice for argument, choice in choices.items() if isinstance(choice, str)}
    result = replace(result, origin=replace(result.origin, **names))
    keep_result(adata, key, result, name, choices["groups"])


def table_of(adata: Any, covariates: Any, whole: Any) -> Any:
    """Return covariates that are given by names of columns of obs, as columns by name."""
    names = [covariates] if isinstance(covariates, str) else covariates
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return covariates
    return {name: column(adata, name, "covariates", whole=whole) for name in names}


def some_of(values: Any, obs: Any) -> Any:
    """Return the labels or covariates of some observations."""
    if isinstance(values, dict):
        return {name: some_of(column_of_obs, obs) for name, column_of_obs in values.items()}
    if hasattr(values, "iloc"):  # categories keep their order
        return values.iloc[np.arange(len(values))[obs]]
    return np.asarray(values, object)[obs]
