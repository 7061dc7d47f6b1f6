"""Read from AnnData objects what the functions of ``nmfscale.tl`` have written."""

from __future__ import annotations

from typing import Any

from .annotated.keys import KEY
from .annotated.places import annotated, column
from .annotated.scheme import (
    OF_A_FIT,
    OF_GROUPS,
    names_of_groups,
    names_of_topics,
    read_model,
    read_result,
    read_table,
)
from .counts.foreign import imported_pandas

__all__ = ["components_df", "differential_df", "model", "result", "topics_df"]


def topics_df(adata: Any, key: str = KEY, *, mod: str | None = None) -> Any:
    """Return the loadings of observations as a table.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`nmfscale.tl.topics` or :func:`nmfscale.tl.transform`.
    key : str, default="topics"
        Key of the fit.
    mod : str, optional
        Modality of a MuData object.

    Returns
    -------
    pandas.DataFrame of shape (n_obs, n_topics)
        With names of observations and topics.

    Raises
    ------
    ValueError
        If there are no such loadings.

    Examples
    --------
    Columns of ``obs``, for the plots of scanpy and squidpy:

    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 2, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 2, random_state=0)
    >>> adata.obs = adata.obs.join(nmfscale.get.topics_df(adata))
    >>> adata.obs.columns.tolist()
    ['topics_leading', 'topic 0', 'topic 1']
    """
    return read_table(annotated(adata, mod), key)


def components_df(adata: Any, key: str = KEY, *, mod: str | None = None) -> Any:
    """Return the topics as a table.

    Parameters
    ----------
    adata, key, mod
        As in :func:`topics_df`.

    Returns
    -------
    pandas.DataFrame of shape (n_topics, n_features)
        With names of topics and features: those of the fit, which adata may have more or fewer of.

    Raises
    ------
    ValueError
        If there is no such fit.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 2, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 2, random_state=0)
    >>> nmfscale.get.components_df(adata).shape
    (2, 50)
    """
    pd = imported_pandas()

    adata = annotated(adata, mod)
    found = read_model(adata, key)
    names = names_of_topics(adata, key, len(found.components_))
    return pd.DataFrame(found.components_, index=names, columns=found.feature_names_in_)


def model(adata: Any, key: str = KEY, *, mod: str | None = None) -> Any:
    """Return the fitted estimator.

    Parameters
    ----------
    adata, key, mod
        As in :func:`topics_df`.

    Returns
    -------
    estimator
        A fitted model of nmfscale, equal to the bit to the one that was fitted. Its loadings are
        those of the observations in `adata` that were part of the fit, or of all observations if
        none was. Its features are those of the fit, whatever variables `adata` has.

    Raises
    ------
    ValueError
        If there is no such fit, or `adata` was joined from objects with different fits.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 2, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 2, random_state=0)
    >>> model = nmfscale.get.model(adata)
    >>> bool((model.loadings_ == adata.obsm["X_topics"]).all())
    True
    """
    return read_model(annotated(adata, mod), key)


def result(
    adata: Any, name: str, groupby: str | None = None, key: str = KEY, *, mod: str | None = None
) -> Any:
    """Return the result of a tool.

    Parameters
    ----------
    adata, key, mod
        As in :func:`topics_df`.
    name : str
        Name of the tool: "differential_features", "permutation_test", "group_effects",
        "bootstrap_weights" or "quality"; or the key of a result of :func:`nmfscale.tl.select_k`.
    groupby : str, optional
        Column of the groups, for tools that compare groups; by default the only one for which the
        tool was used.

    Returns
    -------
    object
        What the function of nmfscale returns, such as :class:`PermutationTest`.

    Raises
    ------
    ValueError
        If there is no such result.

    Examples
    --------
    See :func:`nmfscale.tl.permutation_test`.
    """
    adata = annotated(adata, mod)
    if groupby is None and name in OF_GROUPS:
        groupby = names_of_groups(adata, key, name)
    if groupby is not None:
        return read_result(adata, key, name, groupby)
    if name in OF_A_FIT:
        return read_result(adata, key, name)
    return read_result(adata, name)


def differential_df(
    adata: Any,
    topic: Any = None,
    *,
    key: str = KEY,
    qvalue_max: float | None = None,
    lfc_min: float | None = None,
    lfc_max: float | None = None,
    gene_symbols: str | None = None,
    mod: str | None = None,
) -> Any:
    """Return differential features as a table, leading features first.

    The table of ``sc.get.rank_genes_groups_df``, for programs that read it, is
    ``get.result(adata, "differential_features").rank_genes_groups_df(topic)``.

    Parameters
    ----------
    adata, key, mod
        As in :func:`topics_df`.
    topic : str or int, optional
        A topic, by name or number; by default all, one after the other.
    qvalue_max : float, optional
        Only features with at most this p-value, adjusted by Benjamini and Hochberg.
    lfc_min, lfc_max : float, optional
        Only features with at least, or at most, this log2-fold change.
    gene_symbols : str, optional
        Column of ``adata.var`` that is added to the table.

    Returns
    -------
    pandas.DataFrame
        Columns ``topic``, ``feature``, ``lfc``, ``std_error``, ``z``, ``pvalue``, ``qvalue`` and
        others, as :func:`nmfscale.differential_features` describes them, and `gene_symbols`.

    Raises
    ------
    ValueError
        If :func:`nmfscale.tl.differential_features` was not called, or there is no such topic.

    Examples
    --------
    See :func:`nmfscale.tl.differential_features`.
    """
    adata = annotated(adata, mod)
    frame = read_result(adata, key, "differential_features").to_frame(topic)
    if qvalue_max is not None:
        frame = frame[frame["qvalue"] <= qvalue_max]
    if lfc_min is not None:
        frame = frame[frame["lfc"] >= lfc_min]
    if lfc_max is not None:
        frame = frame[frame["lfc"] <= lfc_max]
    if gene_symbols is not None:
        symbols = column(adata, gene_symbols, "gene_symbols", "var").rename(gene_symbols)
        frame = frame.join(symbols, on="feature")
    return frame.reset_index(drop=True)
