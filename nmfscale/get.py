"""What is in a fit: its model, its leading features, and what ``nmfscale.tl`` has written.

:func:`top_features` takes any model, :func:`model` a pipeline or an AnnData object, and the other
functions an AnnData object.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike
from sklearn.utils._param_validation import validate_parameter_constraints

from .annotated.keys import KEY
from .annotated.places import annotated, column_of_features, symbols_of
from .annotated.scheme import (
    OF_A_FIT,
    OF_GROUPS,
    model_in,
    names_of_groups,
    names_of_topics,
    read_model,
    read_result,
    read_table,
)
from .counts.argument_types import AnnDataLike, PipelineLike, ResultLike, Topic
from .counts.foreign import imported_pandas
from .methods.topics.score_names import DEFAULT_SCORE, Score
from .models.leading_features import OF_LEADING_FEATURES, leading_names
from .models.pipelines import FittedModel, is_pipeline, model_of

__all__ = ["components_df", "differential_df", "model", "result", "top_features", "topics_df"]


def topics_df(adata: AnnDataLike, key: str = KEY, *, mod: str | None = None) -> Any:
    """Return the loadings of observations as a table.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`nmfscale.tl.topics` or :func:`nmfscale.tl.transform`.
    key : str, default="topics"
        Key of the fit.
    mod : str, optional
        Modality of a MuData object; by default the object itself, if it holds a fit of several.

    Returns
    -------
    pandas.DataFrame of shape (n_obs, n_components)
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


def components_df(
    adata: AnnDataLike, key: str = KEY, *, mod: str | None = None, modality: str | None = None
) -> Any:
    """Return the topics as a table.

    Parameters
    ----------
    adata, key, mod
        As in :func:`topics_df`.
    modality : str, optional
        Modality whose features are returned, if several were fitted together.

    Returns
    -------
    pandas.DataFrame of shape (n_components, n_features)
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
    fitted = read_model(adata, key)
    fitted = fitted if modality is None else fitted.of_modality(modality)
    names = names_of_topics(adata, key, len(fitted.components_))
    return pd.DataFrame(fitted.components_, index=names, columns=fitted.feature_names_in_)


def model(fit: AnnDataLike | PipelineLike, key: str = KEY, *, mod: str | None = None) -> Any:
    """Return the fitted model in an AnnData object, or at the end of a pipeline.

    Functions and plots that take a fitted model also take the pipeline; counts that they take are
    then what the pipeline takes, such as texts. This function is for all other uses: methods and
    attributes of the model, and model files.

    Parameters
    ----------
    fit : AnnData, MuData or sklearn.pipeline.Pipeline
        Object with a fit by :func:`nmfscale.tl.topics` or :func:`nmfscale.tl.transform`, or a
        fitted pipeline whose last step is a model of counts, such as
        ``make_pipeline(CountVectorizer(), TopicModel())``.
    key, mod
        As in :func:`topics_df`. A pipeline has only one fit.

    Returns
    -------
    estimator
        From an object, a model equal to the bit to the one that was fitted. Its loadings are those
        of the observations in the object that were part of the fit, or of all observations if none
        was. Its features are those of the fit, whatever variables the object has. From a pipeline,
        a copy of the last step that shares its arrays. If the model has no names of features, they
        are what the earlier steps return from ``get_feature_names_out``; without that method, the
        model stays without names.

    Raises
    ------
    NotFittedError
        If the pipeline is not fitted.
    ValueError
        If there is no such fit; if the object was joined from objects with different fits; if the
        last step of the pipeline is not a model of counts.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> import nmfscale
    >>> texts = ["the cat", "the cat sat", "a gene", "a gene of a cell"]
    >>> topics = nmfscale.TopicModel(2, random_state=0)
    >>> pipeline = make_pipeline(CountVectorizer(), topics).fit(texts)
    >>> nmfscale.get.model(pipeline).feature_names_in_.tolist()
    ['cat', 'cell', 'gene', 'of', 'sat', 'the']

    >>> import anndata
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 2, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 2, random_state=0)
    >>> model = nmfscale.get.model(adata)
    >>> bool((model.loadings_ == adata.obsm["X_topics"]).all())
    True
    """
    if is_pipeline(fit) and mod is not None:
        raise ValueError(f"mod={mod!r} is for MuData objects, and this is a pipeline.")
    return model_of(fit) if is_pipeline(fit) else read_model(annotated(fit, mod), key)


def top_features(
    components: AnnDataLike | FittedModel | ArrayLike,
    feature_names: ArrayLike | None = None,
    *,
    n_top: int = 10,
    score: Score | ResultLike | ArrayLike = DEFAULT_SCORE,
    weight: float | None = None,
    feature_totals: ArrayLike | None = None,
    min_count: float = 0,
    gene_symbols: str | None = None,
    key: str = KEY,
) -> list[list[str]]:
    """Return the names of the leading features of each topic.

    Parameters
    ----------
    components : AnnData, fitted model, or array-like of shape (n_components, n_features)
        An AnnData object with a fit, a model, a pipeline that ends with one, or non-negative
        components; every row is divided by its sum.
    feature_names : array-like of str, default=None
        Names of the features; by default those of the model, the columns of a DataFrame, or
        "feature 0", "feature 1", ...
    n_top : int, default=10
        Number of features for each topic.
    score : {"relevance", "probability", "divergence", "frex", "lift"}, DifferentialFeatures, or \
            array-like of shape (n_components, n_features), default="relevance"
        What ranks features, given their frequency f in the topic and p overall.
        "relevance": ``weight log f + (1 - weight) log(f / p)`` [2]_.  "probability": f.
        "divergence": the Poisson divergence ``f log(f / g) - f + g`` from the largest frequency g
        in another topic.  "frex": the harmonic mean of the ranks of f and of f divided by its sum
        over the topics [1]_.  "lift": f / p; use it with `min_count`, because the lift of rare
        features is large by chance.  A result of
        :func:`nmfscale.differential_features` for the same model ranks by its z, and an array by
        its values.
    weight : float, default=None
        Weight, between 0 and 1, of exclusivity in "frex" (0.5 by default) or of log f in
        "relevance" (0.6 by default).
    feature_totals : array-like of shape (n_features,), default=None
        Total count of each feature, which overall frequencies p are calculated from, as in [2]_. By
        default, p is the mean of f over the topics.
    min_count : float, default=0
        Features with smaller totals, by default those of the model, are left out.
    gene_symbols : str, default=None
        For an AnnData object, the column of ``var`` with the names of the features.
    key : str, default="topics"
        For an AnnData object, the key of the fit.

    Returns
    -------
    list of list of str
        One list for each topic, best first; shorter than `n_top` if a topic has fewer features.

    Raises
    ------
    ValueError
        If the components are not a finite non-negative matrix, the names do not match them, or
        another argument is of the wrong kind; if there is a `min_count` without totals.

    References
    ----------
    .. [1] Bischof, Airoldi (2012). Summarizing topical content with word frequency and
       exclusivity. International Conference on Machine Learning 29.
    .. [2] Sievert, Shirley (2014). LDAvis: a method for visualizing and interpreting topics.
       Workshop on Interactive Language Learning, Visualization, and Interfaces.

    Examples
    --------
    >>> from nmfscale.get import top_features
    >>> components = [[5, 4, 1, 0], [5, 0, 1, 4]]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2)
    [['gene', 'the'], ['word', 'the']]
    >>> top_features(components, ["the", "gene", "of", "word"], n_top=2, score="probability")
    [['the', 'gene'], ['the', 'word']]
    """
    arguments = {name: value for name, value in locals().items() if name in OF_LEADING_FEATURES}
    validate_parameter_constraints(OF_LEADING_FEATURES, arguments, "top_features")
    if gene_symbols is not None:
        feature_names = symbols_of(components, gene_symbols)
    return leading_names(
        model_in(components, key), feature_names, n_top, score=score, weight=weight,
        feature_totals=feature_totals, min_count=min_count,
    )  # fmt: skip


def result(
    adata: AnnDataLike,
    name: str,
    groupby: str | None = None,
    key: str = KEY,
    *,
    mod: str | None = None,
) -> Any:
    """Return the result of a tool.

    Parameters
    ----------
    adata, key, mod
        As in :func:`topics_df`.
    name : str
        Name of the tool: "differential_features", "enrichment", "condition_features",
        "features_by_group", "permutation_test", "group_effects", "bootstrap_weights",
        "topic_hierarchy", "topic_quality", "score_modalities" or "batch_effects"; "seed_shares",
        which a fit with seeds has; or the key of a result of :func:`nmfscale.tl.select_k` or of the
        tree of several fits.
    groupby : str, optional
        Column of the groups, for tools that compare groups; by default the only one for which the
        tool was used.

    Returns
    -------
    object
        What the function of nmfscale returns, such as :class:`nmfscale.results.PermutationTest`.

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
    adata: AnnDataLike,
    topic: Topic | None = None,
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
        Only features with at most this p-value, adjusted by Benjamini and Hochberg. An error if the
        result has no p-values.
    lfc_min, lfc_max : float, optional
        Only features with at least, or at most, this log2-fold change.
    gene_symbols : str, optional
        Column of ``adata.var`` that is added to the table.

    Returns
    -------
    pandas.DataFrame
        Columns ``topic``, ``feature``, ``lfc``, ``std_error``, ``lower``, ``upper``, ``z``,
        ``pvalue``, ``qvalue`` and others, as :class:`nmfscale.results.DifferentialFeatures`
        describes them, and `gene_symbols`.

    Raises
    ------
    ValueError
        If :func:`nmfscale.tl.differential_features` was not called, there is no such topic, or
        `qvalue_max` is given and there are no p-values.

    Examples
    --------
    See :func:`nmfscale.tl.differential_features`.
    """
    adata = annotated(adata, mod)
    result = read_result(adata, key, "differential_features")
    frame = result.to_frame(topic)
    if qvalue_max is not None:
        if result.no_pvalues is not None:
            raise ValueError(
                f"qvalue_max={qvalue_max:g}: there are no p-values, because {result.no_pvalues}. "
                "Leave qvalue_max out; z ranks the features."
            )
        frame = frame[frame["qvalue"] <= qvalue_max]
    if lfc_min is not None:
        frame = frame[frame["lfc"] >= lfc_min]
    if lfc_max is not None:
        frame = frame[frame["lfc"] <= lfc_max]
    if gene_symbols is not None:
        symbols = column_of_features(adata, gene_symbols, "gene_symbols").rename(gene_symbols)
        frame = frame.join(symbols, on="feature")
    return frame.reset_index(drop=True)
