"""nearest_samples and search_samples: samples like others, and samples about some words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike, check_option
from ...counts.names import name_array, names_of, shown, such_as
from ...counts.warn import warn_caller
from ...methods.factors import proportions
from ...methods.topics.nearest import ProportionMetric, mean_log_lifts, nearest_rows
from ...models.pipelines import FittedModel, model_and_input, refuse_swapped
from ..design.fit_counts import counts_and_topics
from ..design.loadings import SampleTopics, shares_of_topics, topics_of_samples
from ..replicates.replicates import check_positive
from .find_samples import checked_texts
from .ranked_samples_result import RankedSamples

Array = NDArray[Any]
# Share of each sample that has the overall frequencies of words, so that no score is infinite.
_SMOOTHING = 0.01


def nearest_samples(
    model: FittedModel | ArrayLike,
    X: CountsLike | None = None,
    *,
    samples: ArrayLike | int | str | None = None,
    n_neighbors: int = 10,
    metric: ProportionMetric = "hellinger",
    texts: ArrayLike | None = None,
    layer: str | None = None,
    raw: bool = False,
) -> RankedSamples:
    """Find the samples of a fit whose topics are most similar to those of other samples.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, K)
        A model or a pipeline that ends with one, whose samples are searched; or loadings, such as
        those that ``transform`` returns for many samples.
    X : counts of shape (n_queries, n_features), default=None
        New samples, for which similar ones are sought, as in :meth:`nmfscale.PoissonNMF.fit`; for a
        pipeline its input, such as texts. Pass either `X` or `samples`.
    samples : int, str, or sequence of these, default=None
        Numbers or names of samples of the fit, for which other ones are sought.
    n_neighbors : int, default=10
        Number of similar samples of each.
    metric : {"hellinger", "jensen-shannon"}, default="hellinger"
        Distance of proportions p and q. "hellinger": ``sqrt(1 - sum_k sqrt(p_k q_k))``, between 0
        and 1. "jensen-shannon": the square root of the divergence, in nats, as in SciPy.
    texts : array-like of shape (n_samples,), default=None
        Texts of the samples of the fit, as in :func:`find_samples`.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    RankedSamples
        Prints the similar samples and the beginnings of their texts; ``to_frame()`` returns a
        table.

    Raises
    ------
    ValueError
        If neither or both of `X` and `samples` are given, a sample does not exist or has no counts,
        or the model has no samples, as after ``partial_fit``.

    Warns
    -----
    UserWarning
        If some new samples have no counts: nothing is similar to them.

    Notes
    -----
    Distances are computed in blocks: memory does not grow with the numbers of samples and of
    queries together. Of samples at the same distance, the first ones are returned; many short texts
    have exactly the same proportions.

    Examples
    --------
    >>> from nmfscale import nearest_samples
    >>> proportions = [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]
    >>> nearest_samples(proportions, samples=0, n_neighbors=2)
    sample 0
       0.100  sample 2
       0.325  sample 3
    """
    check_positive("n_neighbors", n_neighbors)
    check_option("metric", metric, ProportionMetric)
    if (X is None) == (samples is None):
        raise ValueError("pass either samples of the fit, as samples=, or new ones as X.")
    fitted, counts = model_and_input(model, X)
    searched = _searched(fitted)
    of_samples = checked_texts(texts, searched.sample_names, len(searched))
    own, names = None, None
    if samples is not None:
        own = _numbers_of(samples, searched.sample_names, len(searched))
        queries = searched.rows[own]
        names = _labels(own, searched.sample_names)
        if not queries.any(axis=1).all():
            empty = names[int(np.flatnonzero(~queries.any(axis=1))[0])]
            raise ValueError(
                f"samples: {shown(empty)} has no counts, and nothing is similar to it."
            )
    elif not hasattr(fitted, "components_"):
        raise ValueError("X is given, and model is no fitted model: pass samples= for loadings.")
    else:
        topics = counts_and_topics(fitted, counts, layer=layer, raw=raw)[1]
        kept = np.flatnonzero(topics.rows.any(axis=1) & (np.asarray(topics.totals) > 0))
        if len(kept) < len(topics):
            left = len(topics) - len(kept)
            warn_caller(f"{left:,} of {len(topics):,} samples have no counts, and no neighbours.")
        queries, names = topics.rows[kept], _labels(kept, topics.sample_names)
    numbers, distances = nearest_rows(searched.rows, queries, int(n_neighbors), metric, own)
    return RankedSamples(
        tuple(names), tuple(numbers), tuple(distances), "distance", searched.sample_names,
        of_samples,
    )  # fmt: skip


def search_samples(
    model: FittedModel,
    words: str | Sequence[str],
    *,
    n_top: int = 10,
    texts: ArrayLike | None = None,
) -> RankedSamples:
    r"""Find the samples of a fit whose topics are about some words, even if these do not occur.

    Parameters
    ----------
    model : fitted model
        A model, or a pipeline that ends with one, with names of features.
    words : str or sequence of str
        Features, such as words; a text is split at spaces. A word that is repeated counts more.
    n_top : int, default=10
        Number of samples.
    texts : array-like of shape (n_samples,), default=None
        Texts of the samples, as in :func:`find_samples`.

    Returns
    -------
    RankedSamples
        Prints the samples and the beginnings of their texts; ``to_frame()`` returns a table.

    Raises
    ------
    ValueError
        If the model has no names of features or no samples, or none of the words is a feature of
        the fit.

    Warns
    -----
    UserWarning
        If some of the words are no features of the fit, or have no counts: they are left out.

    Notes
    -----
    Samples are ranked by the likelihood of the query [1]_, with the topic model as the model of a
    document: the score of sample i is the mean over the words j of the query of

    .. math::

        \log_2 \left(0.99 \, \frac{\sum_k l_{ik} f_{jk}}{p_j} + 0.01\right),

    with proportions l, frequencies f of words in topics and overall frequencies p. So it is 0 on
    average for words that a sample has as often as others, and 1 if they are twice as likely. The
    second term keeps scores of samples without the topics of a word finite. Of samples with the
    same score to three decimals, those with more counts come first.

    References
    ----------
    .. [1] Wei, Croft (2006). LDA-based document models for ad-hoc retrieval. ACM SIGIR Conference
       on Research and Development in Information Retrieval 29.

    Examples
    --------
    >>> import nmfscale
    >>> texts = ["cat dog cat", "dog cat", "gene cell gene", "cell gene cell gene"]
    >>> model = nmfscale.TopicModel(2, random_state=0).fit(nmfscale.text_counts(texts))
    >>> nmfscale.search_samples(model, "cell", n_top=1, texts=texts)
    cell
       0.772  sample 3: cell gene cell gene
    """
    check_positive("n_top", n_top)
    refuse_swapped(model, words, "the words")
    fitted, _ = model_and_input(model, None)
    if not hasattr(fitted, "components_"):
        raise ValueError(f"model is {shown(fitted)}: a fitted model of counts is needed.")
    searched = _searched(fitted)
    of_samples = checked_texts(texts, searched.sample_names, len(searched))
    totals = np.ones(len(searched)) if searched.totals is None else searched.totals
    shares = shares_of_topics(searched.rows * totals[:, None])
    frequencies = proportions(np.asarray(fitted.components_, np.float64))
    features = _features_of(fitted, words, (shares[:, None] * frequencies).sum(axis=0))
    overall = (shares[:, None] * frequencies[:, features]).sum(axis=0)
    scores = mean_log_lifts(searched.rows, frequencies[:, features] / overall, _SMOOTHING)
    there = np.flatnonzero(searched.rows.any(axis=1))
    order = np.lexsort((-totals[there], -scores[there].round(3)))[: int(n_top)]
    best = there[order]
    query = words if isinstance(words, str) else " ".join(map(str, words))
    return RankedSamples(
        (query,), (best,), (scores[best],), "score", searched.sample_names, of_samples
    )


def _searched(model: Any) -> SampleTopics:
    """Return proportions of topics in the samples of a fit, or in loadings."""
    if not hasattr(model, "components_"):
        return topics_of_samples(model, warn=False)
    if getattr(model, "loadings_", None) is None:
        raise ValueError(
            f"this {type(model).__name__} has no samples, as after partial_fit: pass loadings, as "
            "transform returns them."
        )
    sums = np.asarray(model.components_, np.float64).sum(axis=1)
    rows = proportions(np.asarray(model.loadings_, np.float64) * sums)
    totals = getattr(model, "sample_totals_", None)
    if totals is not None:
        rows = np.where(totals[:, None] > 0, rows, 0.0)
    names = tuple(range(rows.shape[1]))
    return SampleTopics(rows, names, "proportions", totals, names_of(model), model)


def _numbers_of(samples: Any, names: Any, n_samples: int) -> Array:
    """Return the numbers of samples, given by number or name."""
    if isinstance(samples, str) or not hasattr(samples, "__iter__"):
        samples = [samples]
    place = {} if names is None else {name: i for i, name in enumerate(name_array(names))}
    numbers = []
    for sample in name_array(samples):
        if sample in place:
            numbers.append(place[sample])
        elif isinstance(sample, int) and not isinstance(sample, bool) and 0 <= sample < n_samples:
            numbers.append(sample)
        else:
            have = "" if names is None else f" and names, such as {such_as(names)}"
            raise ValueError(
                f"samples: there is no sample {shown(sample)}; samples have numbers from 0 to "
                f"{n_samples - 1:,}{have}."
            )
    if not numbers:
        raise ValueError("samples is empty: numbers or names of samples are needed.")
    return np.array(numbers, np.int64)


def _labels(numbers: Array, names: Any) -> list[Any]:
    """Return the names of samples, or their numbers."""
    labels: list[Any] = (numbers if names is None else name_array(names)[numbers]).tolist()
    return labels


def _features_of(model: Any, words: Any, overall: Array) -> Array:
    """Return the numbers of the features with these names; warn of others."""
    names = names_of(model, 1)
    if names is None:
        raise ValueError(
            f"this {type(model).__name__} has no names of features: fit it to counts with names."
        )
    if isinstance(words, str):
        words = words.split()
    wanted = [str(word) for word in words]
    place = {str(name): j for j, name in enumerate(names) if overall[j] > 0}
    missing = [word for word in wanted if word not in place]
    features = np.array([place[word] for word in wanted if word in place], np.int64)
    if not len(features):
        which = f"such as {such_as(missing)}, " if missing else ""
        raise ValueError(f"none of the words, {which}is a feature of the fit with counts.")
    if missing:
        warn_caller(f"no features of the fit, and left out of the search: {such_as(missing)}.")
    return features
