"""topics: fit a model to an AnnData object, or to modalities of a MuData object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from ..annotated.counts import selected
from ..annotated.keys import KEY, checked_key
from ..annotated.modalities import (
    check_topics_of_each,
    chosen_counts,
    mask_of_observations,
    remove_from_each,
    topics_of_each,
    with_measured,
)
from ..annotated.places import column, given_modalities, writable
from ..annotated.scheme import check_readable, keep, parts_of_fit, topics_at
from ..counts.argument_types import AnnDataLike
from ..counts.base import CountMatrix
from ..counts.names import names_of, shown
from ..models import CountModel
from ..models.arguments.entry_weights import observed_counts
from ..models.arguments.parameters import right_name
from ..models.registry import model_named
from ..readers.objects import is_mudata
from ..readers.streams.modalities import ModalityWeighting

Array = NDArray[Any]
# Arguments of `fit` with a value for each sample, which may be names of columns of obs.
_OF_SAMPLES = {
    "y", "panel", "batch", "row_weights", "size_factors", "fixed_samples", "label_weights",
}  # fmt: skip
_ENTRIES = "data_weights"
_CHOICE = ("layer", "raw")


def topics(
    adata: AnnDataLike,
    n_components: int = 10,
    *,
    model: str | type[CountModel] | CountModel = "topic",
    layer: str | Mapping[str, str] | None = None,
    raw: bool | Mapping[str, bool] = False,
    mask_var: ArrayLike | str | Mapping[str, Any] | None = None,
    mask_obs: ArrayLike | str | None = None,
    key_added: str | None = None,
    mod: str | Sequence[str] | None = None,
    modality_weights: ModalityWeighting | Mapping[str, float] | Sequence[float] | None = None,
    copy: bool = False,
    **fit: Any,
) -> Any:
    """Fit a topic model, or another model of counts, to an AnnData object.

    Parameters
    ----------
    adata : AnnData or MuData
        Annotated counts, observations x variables, in memory, opened with ``backed``, or with a
        dask array. Counts in files and dask arrays are read block by block.
    n_components : int, default=10
        Number of topics.
    model : str, class or estimator, default="topic"
        One of "topic", "poisson", "lda", "gamma-poisson", "noisy", "anchor", "frobenius" and
        "ssnmf", or the name of a model of another package with an entry point "nmfscale.models"; or
        a class or an estimator, whose parameters are used.
    layer : str, optional
        Layer with the counts; by default they are ``adata.X``.
    raw : bool, default=False
        Whether the counts are ``adata.raw.X``.
    mask_var : array-like or str, optional
        Variables to fit: a mask, names or positions, or the name of a boolean column of
        ``adata.var``, such as "highly_variable". By default all variables are fitted, also if there
        is such a column: topics need no selection of genes, and genes that are left out have no
        place in them.
    mask_obs : array-like or str, optional
        Observations to fit, given in the same way. The loadings of the
        others are estimated with the fitted topics. By default all observations are fitted.
    key_added : str, optional
        Key of the results; "topics" by default.
    mod : str or list of str, optional
        Modality of a MuData object, which then holds the results. Or several modalities, which are
        fitted together as by :func:`nmfscale.join_modalities`; the MuData object then holds the
        results, as described below. `layer`, `raw` and `mask_var` may then be dicts by modality,
        such as ``mask_var={"rna": "highly_variable"}``.
    modality_weights : {"information", "counts"}, dict or sequence, optional
        Weights of several modalities in the fit, by default "information", as in
        :func:`nmfscale.join_modalities`.
    copy : bool, default=False
        Whether to return a copy with the results, and leave `adata` as it is.
    **fit
        Parameters of the estimator, such as ``random_state=0`` or ``prior_factors=1.1``, and
        arguments of its ``fit``, such as ``checkpoint="folder"``. Arguments with a value for each
        observation, such as `y` of the model "ssnmf", may be names of columns of ``adata.obs``, or
        of obs of the MuData object. `data_weights`, an array for all observations and variables,
        may be the name of a layer.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. These fields are set (with ``key_added="k8"``, "topics" is
        replaced by "k8"):

        ``adata.obsm["X_topics"]`` : ndarray of shape (n_obs, n_components)
            Loadings; proportions for models of topics.
        ``adata.obs["topics_leading"]`` : categorical
            Name of the topic with the largest share of each observation; missing without counts.
        ``adata.varm["topics"]`` : ndarray of shape (n_vars, n_components)
            Topics; 0 for variables that were not fitted.
        ``adata.obsm["topics_samples"]`` : DataFrame
            What the fit knows of each observation: whether it was fitted, its total count, ...
        ``adata.uns["topics"]`` : dict
            ``params``, ``topic_names``, ``seed``, ``version``, ``converged``, and ``model``, which
            :func:`nmfscale.get.model` reads. With `seeds` also ``seed_shares``, the result of
            :func:`nmfscale.seed_shares`, which :func:`nmfscale.get.result` reads. Results of an
            earlier fit with this key are removed.

        A fit of several modalities sets these fields of the MuData object, and ``varm["topics"]``
        of each modality, such as ``mdata["rna"].varm["topics"]``. ``params`` has `mod`, and
        observations that have none of the modalities have the loadings of empty samples. Other
        functions of ``nmfscale.tl``, ``get`` and ``pl`` take the MuData object without `mod`.

    Raises
    ------
    TypeError
        If `adata` is not an AnnData or MuData object, or the model has no such parameter.
    ValueError
        If the counts look log-normalised (``integer="allow"`` fits them nevertheless), a column
        does not exist, or an argument is not valid.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> adata.obsm["X_topics"].shape, adata.varm["topics"].shape
    ((100, 3), (50, 3))
    >>> nmfscale.get.topics_df(adata).columns.tolist()
    ['topic 0', 'topic 1', 'topic 2']

    Genes and proteins together:

    >>> import mudata, warnings
    >>> adt = anndata.AnnData(X.toarray()[:, ::2])
    >>> adt.var_names = [f"CD{number}" for number in range(25)]
    >>> with warnings.catch_warnings(action="ignore"):
    ...     mdata = mudata.MuData({"rna": anndata.AnnData(X.toarray()), "adt": adt})
    >>> nmfscale.tl.topics(mdata, 3, mod=["rna", "adt"], random_state=0)
    >>> mdata.obsm["X_topics"].shape, mdata["adt"].varm["topics"].shape
    ((100, 3), (25, 3))
    """
    estimator, arguments = _estimator(model, n_components, fit)
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    key = checked_key(adata, KEY if key_added is None else key_added)
    _check_modalities(adata, mod, modality_weights, key)
    obs = mask_of_observations(adata, mod, mask_obs, whole)
    for name in _OF_SAMPLES & arguments.keys():
        arguments[name] = column(adata, arguments[name], name, whole=whole)
    weights, integer = arguments.get(_ENTRIES), cast(Any, estimator.integer)
    counts, weights, var = chosen_counts(
        adata, mod=mod, layer=layer, raw=raw, mask_var=mask_var, integer=integer,
        memory_limit=estimator.memory_limit, data_weights=weights,
        modality_weights=modality_weights,
    )  # fmt: skip
    if weights is not None:
        arguments[_ENTRIES] = weights
    loadings = _fit(estimator, counts, obs, arguments)
    params = {
        "layer": _said(layer), "raw": raw, "model": type(estimator).__name__,
        "n_components": n_components, "mask_var": _said(mask_var), "mask_obs": _said(mask_obs),
    } | ({"mod": np.array(mod, object)} if is_mudata(adata) else {})  # fmt: skip
    observed = observed_counts(counts, weights, None)[0]
    keep_fit(
        adata, key, estimator, loadings, np.ones(adata.n_obs, bool) if obs is None else obs,
        observed, params, None if raw or is_mudata(adata) else places_of_features(adata, var),
    )  # fmt: skip
    return returned


def _check_modalities(holder: Any, mod: Any, modality_weights: Any, key: str) -> None:
    """Refuse, before the fit, what a fit of one or of several modalities cannot have."""
    given_modalities(holder, mod)
    if is_mudata(holder):
        varm = {label: holder.mod[label].varm for label in mod}
        check_topics_of_each(varm, holder.uns.get(key), key, "key_added")
    elif modality_weights is not None:
        raise ValueError(
            f"modality_weights={shown(modality_weights)} are for several modalities of a MuData "
            "object: give their names by mod=[...]."
        )


def as_estimator(model: Any, **parameters: Any) -> CountModel:
    """Return an estimator: itself, or one of the class or of the name.

    An estimator that is made has these parameters, if its class has all of them.
    """
    if isinstance(model, str):
        model = model_named(model)
    if isinstance(model, type) and issubclass(model, CountModel):
        model = (
            model(**parameters)
            if parameters.keys() <= signature(model).parameters.keys()
            else model()
        )
    if not isinstance(model, CountModel):
        raise TypeError(
            f"model is a {type(model).__name__}: a name such as 'topic', or an estimator of "
            "nmfscale, is needed."
        )
    return model


def _estimator(
    model: Any, n_components: int, arguments: dict[str, Any]
) -> tuple[CountModel, dict[str, Any]]:
    """Return an estimator with the given parameters, and the arguments of its `fit`."""
    model = as_estimator(model)
    check_readable(model)
    parameters = model.get_params(deep=False)
    of_fit = signature(model.fit).parameters.keys() - {"X", *_CHOICE}
    for name in arguments.keys() - parameters.keys() - of_fit:
        meant = right_name(name, [*parameters, *of_fit])
        advice = f": use {meant}=" if meant else ""
        raise TypeError(f"{type(model).__name__} and its fit have no parameter {name!r}{advice}.")
    chosen = {name: value for name, value in arguments.items() if name in parameters}
    estimator = clone(model).set_params(n_components=n_components, **chosen)
    return estimator, {name: value for name, value in arguments.items() if name not in parameters}


def _fit(
    estimator: Any, counts: CountMatrix, obs: Array | None, arguments: dict[str, Any]
) -> Array:
    """Fit to the observations in a mask; return the loadings of all observations."""
    if obs is None:
        loadings: Array = estimator.fit(counts, **arguments).loadings_
        return loadings
    n = len(obs)
    of_part = {name: _of_part(name, value, obs, n) for name, value in arguments.items()}
    estimator.fit(selected(counts, obs, None), **of_part)
    accepted = signature(estimator.transform).parameters.keys() & {
        *_OF_SAMPLES,
        "measured",
        _ENTRIES,
    }
    of_rest = {
        name: _of_part(name, arguments[name], ~obs, n) for name in accepted & arguments.keys()
    }  # fmt: skip
    rest = estimator.transform(selected(counts, ~obs, None), **of_rest)
    loadings = np.empty((n, rest.shape[1]), rest.dtype)
    loadings[obs], loadings[~obs] = estimator.loadings_, rest
    return loadings


def _of_part(name: str, value: Any, obs: Array, n_obs: int) -> Any:
    """Return the entries of the observations in a mask of an argument that has one for each."""
    if name not in (*_OF_SAMPLES, _ENTRIES) or np.shape(value)[:1] != (n_obs,):
        return value
    if sp.issparse(value):
        return sp.csr_array(value)[obs]
    return value[obs] if hasattr(value, "iloc") else np.asarray(value)[obs]


def _said(mask: Any) -> Any:
    """Return how a mask was given: the name of a column, "array", or None; or those by modality."""
    if isinstance(mask, Mapping):
        return {label: _said(of_one) for label, of_one in mask.items() if of_one is not None}
    return mask if mask is None or isinstance(mask, str) else "array"


def keep_fit(
    adata: Any, key: str, model: Any, loadings: Array, fitted: Array, counts: CountMatrix,
    params: dict[str, Any], columns: Array | None,
) -> None:  # fmt: skip
    """Write a fit to an AnnData object, or one of several modalities to a MuData object.

    `columns` (n_vars,) has the feature of each variable, or -1; None matches them by name.
    """
    if columns is None and not is_mudata(adata):
        columns = places_by_name(adata.var_names, names_of(model, 1))
    totals = np.asarray(counts.row_totals, np.float64)
    panel = None
    if is_mudata(adata):
        model, panel = with_measured(model, counts, fitted)
    parts = parts_of_fit(model, loadings, fitted, totals, adata.obs_names, params)
    if panel is not None and model.panel_ is not None:
        parts["obsm"]["{}_samples"]["panel"] = panel
    if is_mudata(adata):
        remove_from_each(adata, key)
    keep(adata, key, parts)
    if is_mudata(adata):
        names = {label: adata.mod[label].var_names for label in params["mod"]}
        for label, of_modality in topics_of_each(model, names).items():
            adata.mod[label].varm[key] = of_modality
    else:
        adata.varm[key] = topics_at(model, cast(Array, columns))


def places_of_features(adata: Any, var: Array | None) -> Array:
    """Return the feature of each variable (n_vars,), -1 for those outside of a mask."""
    if var is None:
        return np.arange(adata.n_vars)
    return np.where(var, np.cumsum(var) - 1, -1)


def places_by_name(names: Any, features: Any) -> Array:
    """Return the feature with the name of each variable (n_vars,), -1 where there is none."""
    place = {name: at for at, name in reversed(list(enumerate(features)))}
    return np.array([place.get(name, -1) for name in names], np.intp)
