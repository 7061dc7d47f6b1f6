"""topic_quality and select_k: measures of the topics of a fit, and numbers of topics compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..annotated.counts import of_fit, selected, with_features_of
from ..annotated.keys import KEY, check_explained, checked_result_key, explained_place
from ..annotated.modalities import chosen_counts, keep_of_features, mask_of_observations
from ..annotated.places import column, given_modalities, writable
from ..annotated.scheme import entry_of, keep_result, read_model
from ..counts.argument_types import AnnDataLike, MaskLike, PipelineLike
from ..inference.choice.hierarchy import topic_hierarchy as joined
from ..inference.choice.select_k import select_k as compare_numbers
from ..inference.choice.topic_quality import topic_quality as measure_quality
from ..models.base import CountModel
from ..readers.streams.modalities import ModalityWeighting
from .topics import as_estimator


def topic_quality(
    adata: AnnDataLike,
    *,
    key: str = KEY,
    layer: str | None = None,
    raw: bool | None = None,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Measure the quality of topics: :func:`nmfscale.topic_quality`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    key : str, default="topics"
        Key of the fit.
    layer : str, optional
        Layer with the counts; by default that of the fit.
    raw : bool, optional
        Whether the counts are ``adata.raw.X``; by default as for the fit.
    mod, copy
        As in :func:`topics`.
    **options
        Further arguments of :func:`nmfscale.topic_quality`, such as ``n_top=20``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["topic_quality"]`` is set, which
        :func:`nmfscale.get.result` reads; and ``adata.obs["topics_explained"]``, the share of the
        deviance of each observation that the fit removes, which plots can show, and
        ``adata.var["topics_explained"]``, with 0 for variables that were not fitted.

    Raises
    ------
    ValueError
        If there is no such fit, or as :func:`nmfscale.topic_quality`.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.topic_quality(adata)
    >>> nmfscale.get.result(adata, "topic_quality").to_frame().columns.tolist()[:3]
    ['topic', 'share', 'npmi']
    """
    adata, returned = writable(adata, mod, copy)
    chosen = of_fit(entry_of(adata, key)["params"], layer, raw)
    check_explained(adata, key)
    model = read_model(adata, key, every=True)
    counts = with_features_of(model, chosen_counts(adata, **chosen, integer="allow").counts)
    result = measure_quality(model, counts, **options)
    keep_result(adata, key, result, "topic_quality")
    place = explained_place(key)
    adata.obs[place] = result.to_frame("samples")["explained"].to_numpy()
    of_features = result.to_frame("features").set_index("feature")["explained"]
    keep_of_features(adata, place, of_features[~of_features.index.duplicated()], chosen.get("mod"))
    return returned


def topic_hierarchy(
    adata: AnnDataLike,
    *,
    key: str | Sequence[str] = KEY,
    key_added: str = "topic_levels",
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Join similar topics to a tree: :func:`nmfscale.topic_hierarchy`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with fits by :func:`topics`.
    key : str or sequence of str, default="topics"
        Key of the fit; or keys of several fits with rising numbers of topics, for a tree of them.
    key_added : str, default="topic_levels"
        Key of the result of several fits.
    mod, copy
        As in :func:`topics`.
    **options
        Further arguments of :func:`nmfscale.topic_hierarchy`: ``metric="cosine"``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["topic_hierarchy"]`` is set, which
        ``nmfscale.get.result(adata, "topic_hierarchy")`` reads; of several fits,
        ``adata.uns["topic_levels"]``. :func:`nmfscale.pl.hierarchy_plot` draws both.

    Raises
    ------
    ValueError
        If there is no such fit, or as :func:`nmfscale.topic_hierarchy`.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 4, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 2, key_added="two", random_state=0)
    >>> nmfscale.tl.topics(adata, 4, key_added="four", random_state=0)
    >>> nmfscale.tl.topic_hierarchy(adata, key=["two", "four"])
    >>> nmfscale.get.result(adata, "topic_levels").fit_names
    ('two', 'four')
    """
    adata, returned = writable(adata, mod, copy)
    if isinstance(key, str):
        keep_result(adata, key, joined(read_model(adata, key), **options), "topic_hierarchy")
        return returned
    checked_result_key(adata, key_added)
    keep_result(adata, key_added, joined({k: read_model(adata, k) for k in key}, **options))
    return returned


def select_k(
    adata: AnnDataLike,
    n_components: Iterable[int] = range(2, 21),
    *,
    model: str | type[CountModel] | CountModel | PipelineLike = "topic",
    layer: str | Mapping[str, str] | None = None,
    raw: bool | Mapping[str, bool] = False,
    mask_var: MaskLike | Mapping[str, Any] | None = None,
    mask_obs: MaskLike | None = None,
    units: ArrayLike | None = None,
    key_added: str = "select_k",
    mod: str | Sequence[str] | None = None,
    modality_weights: ModalityWeighting | Mapping[str, float] | Sequence[float] | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Compare numbers of topics by held-out counts and stability: :func:`nmfscale.select_k`.

    Parameters
    ----------
    adata, layer, raw, mask_var, mask_obs, mod, modality_weights, copy
        As in :func:`topics`.
    n_components : iterable of int, default=range(2, 21)
        Numbers of topics to compare.
    model : str, class or estimator, default="topic"
        The `estimator` of :func:`nmfscale.select_k`, or its name or class, as in :func:`topics`. Of
        a name or class it has ``prior_factors=1.1`` and ``tol=1e-3``, if the model has such a
        prior.
    units : str or array-like of shape (n_obs,), optional
        Column of ``adata.obs`` with the unit of each observation, such as its donor, to hold out
        whole units.
    key_added : str, default="select_k"
        Key of the result.
    **options
        Further arguments of :func:`nmfscale.select_k`, such as ``random_state=0``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["select_k"]`` is set, which
        :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.select_k_plot` draws.

    Raises
    ------
    ValueError
        Those of :func:`topics` and :func:`nmfscale.select_k`.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(200, 100, 4, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.select_k(adata, range(2, 7), random_state=0)
    >>> nmfscale.get.result(adata, "select_k").best
    4
    """
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    given_modalities(adata, mod)
    checked_result_key(adata, key_added)
    obs = mask_of_observations(adata, mod, mask_obs, whole)
    unit_labels = column(adata, units, "units", whole=whole)
    if obs is not None and unit_labels is not None:
        unit_labels = np.asarray(unit_labels, object)[obs]
    counts = chosen_counts(
        adata, mod=mod, layer=layer, raw=raw, mask_var=mask_var, modality_weights=modality_weights
    ).counts
    counts = selected(counts, obs, None)
    estimator: Any = model
    if isinstance(model, str | type):
        estimator = as_estimator(model, prior_factors=1.1, tol=1e-3)
    result = compare_numbers(estimator, counts, n_components, units=unit_labels, **options)
    keep_result(adata, key_added, result)
    return returned
