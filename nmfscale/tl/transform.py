"""transform: loadings of the observations of an AnnData object, with the topics of another fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.counts import of_fit, with_features_of
from ..annotated.keys import KEY, checked_key
from ..annotated.modalities import check_topics_of_each, chosen_counts, of_each
from ..annotated.places import annotated, writable
from ..annotated.scheme import entry_of, read_model
from ..counts.argument_types import AnnDataLike, PathLike
from ..counts.integers import IntegerPolicy
from ..counts.names import such_as
from ..models import CountModel
from ..models.from_components import is_table, model_of_table
from ..models.persistence import is_model_file, load_model
from ..models.pipelines import FittedModel
from ..readers.objects import is_mudata
from ..readers.streams.matching import Missing
from ..storage.atomic import user_path
from ..storage.hdf5 import open_file, warn_of_journal
from .topics import keep_fit


def transform(
    adata: AnnDataLike,
    reference: AnnDataLike | FittedModel | ArrayLike | PathLike,
    *,
    key: str = KEY,
    key_added: str | None = None,
    layer: str | Mapping[str, str] | None = None,
    raw: bool | Mapping[str, bool] | None = None,
    missing: Missing = "error",
    integer: IntegerPolicy = "warn",
    mod: str | Sequence[str] | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Estimate loadings of observations with the topics of a reference, as ``sc.tl.ingest`` does.

    Parameters
    ----------
    adata : AnnData or MuData
        Annotated counts, as in :func:`topics`. Variables are matched by name with those of the fit.
    reference : AnnData, MuData, fitted model, DataFrame or path
        Object with a fit by :func:`topics`; a fitted model; a table of programs; or the path of a
        model file, of an .h5ad file with a fit, or of a table of text (.csv, .tsv, .txt). A table
        makes a :class:`nmfscale.TopicModel`, as by :meth:`nmfscale.TopicModel.from_components`,
        whose features are the axis with names of variables of `adata`.
    key : str, default="topics"
        Key of the fit in `reference`, if it is an AnnData object.
    key_added : str, optional
        Key of the results; by default that of the reference.
    layer : str, optional
        Layer with the counts; by default that of the fit in an AnnData reference.
    raw : bool, optional
        Whether the counts are ``adata.raw.X``; by default as for the fit in an AnnData reference.
    missing : {"error", "restrict", "zero"}, default="error"
        How to treat variables of the fit that `adata` lacks, as in
        :meth:`nmfscale.PoissonNMF.transform`.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers, as in :class:`nmfscale.PoissonNMF`.
    mod : str or list of str, optional
        Modality of `adata`, and of a MuData reference. For a fit of several modalities, those of
        `adata` to use: by default all of the fit that it has. ``missing="restrict"`` lets it have
        some of them.
    copy
        As in :func:`topics`.
    **options
        Further arguments of the model's ``transform``; `data_weights` may be the name of a layer.

    Returns
    -------
    AnnData, MuData or None
        As in :func:`topics`. No observation is marked as fitted.

    Raises
    ------
    ValueError
        As in :func:`topics`; also if the reference has no fit, or variables are missing.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> old, new = anndata.AnnData(X[:60].toarray()), anndata.AnnData(X[60:].toarray())
    >>> nmfscale.tl.topics(old, 3, random_state=0)
    >>> nmfscale.tl.transform(new, old)
    >>> new.obsm["X_topics"].shape
    (40, 3)
    """
    model, params = _model_of(reference, key, mod, adata)
    mod = _modalities_of(adata, model, mod)
    target, returned = writable(adata, mod, copy)
    place = checked_key(target, key if key_added is None else key_added)
    if is_mudata(target):
        varm = {label: target.mod[label].varm for label in mod}
        check_topics_of_each(varm, target.uns.get(place), place, "key_added")
        params = params | {"mod": mod}
    else:
        params = {name: value for name, value in params.items() if name != "mod"}
    chosen = of_fit(params, layer, raw)
    if layer is None and raw is None:
        chosen["layer"] = _layer_in(target, chosen["layer"])
    weights, limit = options.get("data_weights"), model.memory_limit
    counts, weights, _ = chosen_counts(
        target, **chosen, integer=integer, memory_limit=limit, data_weights=weights
    )
    if weights is not None:
        options["data_weights"] = weights
    loadings = np.asarray(model.transform(counts, missing=missing, **options))
    chosen = {name: chosen[name] for name in ("layer", "raw")}
    kept = params | chosen | {"transformed": True}
    if is_mudata(target):
        kept["mod"] = np.array(mod, object)
    none = np.zeros(target.n_obs, bool)
    keep_fit(target, place, model, loadings, none, with_features_of(model, counts), kept, None)
    return returned


def _modalities_of(adata: Any, model: Any, mod: Any) -> Any:
    """Return the modalities of a target: as given, or those of a fit of several modalities."""
    modalities = getattr(model, "modalities_", None)
    if mod is not None or modalities is None or not is_mudata(adata):
        return mod
    of_fit = list(dict.fromkeys(modalities.tolist()))
    if not (there := [label for label in of_fit if label in adata.mod]):
        raise ValueError(
            f"the MuData object has none of the modalities of the fit, {such_as(of_fit)}, but "
            f"{such_as(adata.mod)}: give its modalities the names of the fit."
        )
    return there


def _layer_in(target: Any, layer: Any) -> Any:
    """Return the layer of a fit, None where the target lacks it."""
    if not is_mudata(target):
        return layer if layer in target.layers else None
    layers = of_each(layer, list(target.mod), "layer")
    return {label: name for label, name in layers.items() if name in target.mod[label].layers}


def _model_of(reference: Any, key: str, mod: Any, target: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model of a reference, and the parameters that an AnnData object keeps of it."""
    if isinstance(reference, CountModel):
        return reference, {}
    if is_table(reference):
        return model_of_table(reference, annotated(target, mod).var_names), {}
    if isinstance(reference, str | os.PathLike):
        path = user_path(reference)
        if is_model_file(path):
            return load_model(path), {}
        reference = _opened(path)
    adata = annotated(reference, mod if is_mudata(reference) else None)
    return read_model(adata, key), dict(entry_of(adata, key).get("params", {}))


def _opened(path: Path) -> Any:
    """Open an .h5ad file without reading its counts."""
    if path.suffix != ".h5ad":
        with open(path, "rb"):  # missing file: Python's own message
            pass
        raise ValueError(f"{path} is neither a model file nor an .h5ad file, nor a table of text.")
    import anndata

    with open_file(path):  # names a file that is half written
        warn_of_journal(path)
    return anndata.read_h5ad(path, backed="r")
