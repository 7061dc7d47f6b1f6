"""Enrichment: sets of features that are among those that make a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import false_discovery_control
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import PathLike, ResultLike
from ...counts.names import as_text, is_missing, name_array, names_of, shown, such_as
from ...methods.topics.feature_scores import best_features
from ...methods.topics.score_names import Score
from ...models.base import CountModel
from ...models.leading_features import leading_features, scores_of_features
from ...models.pipelines import FittedModel, model_and_input, refuse_swapped
from ...models.topics.symbols import symbols_by_name
from ...models.topics.topics import topic_names_of
from ...readers.gene_sets import read_gmt
from ..replicates.replicates import check_positive
from .enrichment_result import Enrichment
from .set_tests import hypergeometric_tail, rank_tests

Array = NDArray[Any]
GeneSets: TypeAlias = Mapping[str, Iterable[str]] | PathLike
EnrichmentTest: TypeAlias = Literal["hypergeometric", "rank"]


def enrichment(
    model: FittedModel | None,
    gene_sets: GeneSets,
    *,
    test: EnrichmentTest = "hypergeometric",
    n_top: int = 100,
    score: Score | ResultLike | ArrayLike = "divergence",
    min_size: int = 5,
    max_size: int | None = None,
    gene_symbols: ArrayLike | Mapping[str, str] | None = None,
) -> Enrichment:
    """Test which gene sets, or other sets of features, are enriched in each topic.

    Or in each ranking of features, such as by their changes between conditions.

    Parameters
    ----------
    model : fitted model or None
        Any model with names of features, or a pipeline that ends with one. None if `score` is a
        DataFrame, which then has the topics and features.
    gene_sets : dict of str to list of str, str or path-like
        Names of the features of each set, or a GMT file: see :func:`read_gmt`.
    test : {"hypergeometric", "rank"}, default="hypergeometric"
        "hypergeometric": are more of the `n_top` leading features of a topic in the set than if
        they were drawn at random (over-representation, Fisher's exact test)?  "rank": have the
        features of the set higher scores than the others (Mann-Whitney test), without a limit that
        separates leading features?
    n_top : int, default=100
        Number of leading features of each topic. Those in the set are listed for both tests.
    score : {"relevance", "probability", "divergence", "frex", "lift"}, DifferentialFeatures, or \
            array-like of shape (n_components, n_features), default="divergence"
        What ranks features, as in :func:`nmfscale.get.top_features`. By default it is what
        distinguishes a topic from all others: features that are frequent in every topic, such as
        genes of ribosomes, lead none. If `model` is None: a DataFrame of scores with a row for each
        topic, or anything that ranks features, and a column for each feature.
    min_size, max_size : int, default=5, None
        Sets with fewer or more features of the model are not tested.
    gene_symbols : array-like of shape (n_features,), Series or dict, default=None
        Names of the features in the sets, if they are not those of the model, such as symbols in
        place of Ensembl identifiers; those of a Series or dict are matched by name.

    Returns
    -------
    Enrichment
        p- and q-values, sizes and leading features of each set in each topic, or row of `score`.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError
        If the model has no names of features, if no set has `min_size` features of the model, or if
        another argument is not valid.
    FileNotFoundError
        If there is no such GMT file.

    See Also
    --------
    differential_features : Features that make each topic; its result is a `score`.
    condition_features : Changes of features between conditions, with donors as units.

    Notes
    -----
    The universe are the features of the model, or of the DataFrame: features that were left out
    before the fit cannot be in a topic. q-values are those of Benjamini and Hochberg over the sets
    of a topic. The p-values are those of ``gseapy.enrich`` with the features of the model as
    background, and of ``scipy.stats.mannwhitneyu(..., alternative="greater",
    method="asymptotic")``.

    Both tests are competitive: they compare features of a set with other features, whatever the
    number of samples or donors. A small q-value does not say that other donors, or the other
    condition, would show the same. They take features as independent draws. Genes of a set vary
    together from cell to cell, and so they join the same topic together: then p-values are too
    small [1]_. Take them as an order of the sets, not as error rates.

    For a difference between conditions, test donors: proportions of topics by
    :func:`group_effects`, single genes by :func:`condition_features`, and whole sets by methods
    that permute or rotate donors, such as ROAST [2]_, on the counts of :func:`pseudobulk`.

    p-values say nothing if a set was made from the same counts,
    such as the markers of clusters of the same cells, because the topic follows the counts, too.

    References
    ----------
    .. [1] Wu, Smyth (2012). Camera: a competitive gene set test accounting for inter-gene
       correlation. Nucleic Acids Research 40.
    .. [2] Wu, Lim, Vaillant, Asselin-Labat, Visvader, Smyth (2010). ROAST: rotation gene set tests
       for complex microarray experiments. Bioinformatics 26.

    Examples
    --------
    >>> import nmfscale
    >>> counts = nmfscale.datasets.docstrings()
    >>> model = nmfscale.TopicModel(6, random_state=1).fit(counts)
    >>> words = {"files": ["file", "path", "directory", "open", "read", "write"]}
    >>> found = nmfscale.enrichment(model, words)
    >>> best = found.to_frame().iloc[0]
    >>> best["gene_set"]
    'files'
    """
    refuse_swapped(model, gene_sets, "the gene sets")
    if test not in get_args(EnrichmentTest):
        raise ValueError(f"test={shown(test)} is not one of 'hypergeometric', 'rank'.")
    check_positive("n_top", n_top)
    check_positive("min_size", min_size)
    if max_size is not None and (not isinstance(max_size, Integral) or max_size < min_size):
        raise ValueError(
            f"max_size is {shown(max_size)}: an integer of at least min_size={min_size} is needed."
        )
    source, names, scores, leading = (
        _ranking_of_table(score, int(n_top))
        if model is None
        else _ranking_of_model(model, score, int(n_top))
    )
    features = _labels_of_features(source, gene_symbols)
    tested, untested = _tested_sets(gene_sets, features, min_size, max_size)
    overlap = np.array([[len(np.intersect1d(top, members)) for members in tested.values()]
                        for top in leading])  # fmt: skip
    sizes = np.array([len(members) for members in tested.values()])
    auc, pvalue = rank_tests(scores, [*tested.values()])
    if test == "hypergeometric":
        drawn = np.array([[len(top)] for top in leading])
        pvalue = hypergeometric_tail(overlap, drawn, sizes, len(features))
    return Enrichment(
        pvalue, false_discovery_control(pvalue, axis=1), auc, overlap, sizes,
        tuple(tested.values()), tuple(leading), tuple(tested),
        names, features, test, int(n_top), untested,
    )  # fmt: skip


def _ranking_of_model(
    model: Any, score: Any, n_top: int
) -> tuple[Any, tuple[Any, ...], Array, list[Array]]:
    """Return the model, names of topics, scores (K, m) and the leading features of each topic."""
    model, _ = model_and_input(model, None)
    if not isinstance(model, CountModel):
        raise ValueError(
            f"model is a {type(model).__name__}: a fitted model of counts is needed, such as "
            "TopicModel, or None with a DataFrame as score."
        )
    check_is_fitted(model, "components_")
    _, _, leading = leading_features(model, None, n_top, score)
    return (
        model,
        tuple(topic_names_of(model, len(leading))),
        scores_of_features(model, score),
        leading,
    )


def _ranking_of_table(score: Any, n_top: int) -> tuple[Any, tuple[Any, ...], Array, list[Array]]:
    """Return the same of a DataFrame of scores, with the names of its rows."""
    if not hasattr(score, "columns"):
        raise ValueError(
            f"score is {shown(score)}, and model is None: a DataFrame is needed, with a row for "
            "each ranking and a column for each feature."
        )
    try:
        scores = np.asarray(score, np.float64)
    except (TypeError, ValueError):
        raise ValueError("score has entries that are not numbers: numbers are needed.") from None
    if not scores.size or not np.isfinite(scores).all():
        raise ValueError(
            f"score of shape {scores.shape} has missing or infinite entries, or none: leave out "
            "these features, as score.dropna(axis=1) does."
        )
    everywhere = np.ones(scores.shape[1])
    leading = [best_features(row, everywhere, n_top) for row in scores]
    return score, tuple(map(str, score.index)), scores, leading


def _labels_of_features(model: Any, gene_symbols: Any) -> Array:
    """Return the names of the features in the sets."""
    names = names_of(model, 1)
    if names is None:
        raise ValueError(
            "model has no names of features, by which the sets are matched: fit a DataFrame, an "
            "AnnData object or a file with names, or pass feature_names to as_counts; a score with "
            "model=None needs names of columns."
        )
    labels = as_text(names)
    if gene_symbols is None:
        return labels
    symbols = symbols_by_name(gene_symbols, model)
    given = [symbols.get(name) for name in labels]
    return name_array([
        name if symbol is None or is_missing(symbol) or not str(symbol) else str(symbol)
        for name, symbol in zip(labels, given, strict=True)
    ])  # fmt: skip


def _tested_sets(
    gene_sets: Any, features: Array, min_size: int, max_size: int | None
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the features of each set that is tested, and the names of the other sets."""
    if not isinstance(gene_sets, Mapping):
        gene_sets = read_gmt(gene_sets)
    if not gene_sets:
        raise ValueError("gene_sets is empty: at least one set is needed.")
    places: dict[str, list[int]] = {}
    for j, name in enumerate(features.tolist()):
        places.setdefault(name, []).append(j)
    tested, untested, largest = {}, [], 0
    for name, genes in gene_sets.items():
        if isinstance(genes, str) or not isinstance(genes, Iterable):
            raise ValueError(
                f"gene_sets[{name!r}] is {shown(genes)}: a list of names of features is needed."
            )
        members = sorted({j for gene in genes for j in places.get(str(gene), ())})
        largest = max(largest, len(members))
        if len(members) < min_size or (max_size is not None and len(members) > max_size):
            untested.append(str(name))
        else:
            tested[str(name)] = np.array(members)
    if not tested:
        first = next(iter(next(iter(gene_sets.values()))), None)
        raise ValueError(
            f"none of the {len(gene_sets)} gene sets has min_size={min_size} features of the model "
            f"or more, and at most max_size; the largest number is {largest}. The model has names "
            f"such as {such_as(features)}, and the sets such as {shown(first)}: pass gene_symbols "
            "if the kinds of names differ, or score.T if features are in the rows of a score."
        )
    return tested, tuple(untested)
