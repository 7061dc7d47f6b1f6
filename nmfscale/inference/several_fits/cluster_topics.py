"""Topics that many fits have in common: clusters of topics, at most one of each fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.names import is_missing, names_of, plain, shown
from ...kernels import dense
from ...methods.factors import proportions
from ...methods.topics.linkage import average_linkage
from ...methods.topics.matching import affinities_of, cosines_of, lift_correlations_among
from ...models.comparison import METRICS, Metric, topics_of, with_common_features
from ...models.pipelines import FittedModel, model_of
from .cluster_topics_result import TopicClusters

Array = NDArray[Any]


def cluster_topics(
    models: Mapping[str, FittedModel | ArrayLike] | Sequence[FittedModel | ArrayLike],
    *,
    samples: ArrayLike | None = None,
    metric: Metric = "lift",
    min_similarity: float = 0.5,
) -> TopicClusters:
    """Find the topics that many fits have in common: programs of many samples (meta-programs).

    The topics of all fits are clustered by their similarity, with at most one topic of a fit in
    each cluster. A cluster of many fits is a topic that does not depend on one data set, donor,
    start or number of topics; its consensus is the mean of its topics. Topics that no other fit has
    are clusters of their own.

    Parameters
    ----------
    models : dict of str to fit, or sequence of fits
        Fits of several data sets or donors, such as :func:`fit_each` returns, or of one data set
        with several numbers of topics. A fit is a model, or its ``components_``: array-like or
        DataFrame of shape (K, n_features). Features are matched by name if all fits have names.
    samples : array-like of shape (n_fits,), default=None
        Sample of each fit, if several are of the same, such as fits with several numbers of topics:
        then the number of samples that have a topic is counted, not only that of fits. By default
        each fit is of another sample.
    metric : {"lift", "cosine", "bhattacharyya"}, default="lift"
        As in :func:`match_topics`, with the mean of the topics of all fits.
    min_similarity : float, default=0.5
        Clusters are joined as long as the mean similarity of their topics is at least this large,
        above 0 and at most 1.

    Returns
    -------
    TopicClusters
        Clusters, in how many fits and samples each is found, similarities and consensus.

    Raises
    ------
    NotFittedError
        If a model is not fitted.
    ValueError
        If there are fewer than two fits, if an argument is not valid, or as in
        :func:`match_topics`.

    Warns
    -----
    UserWarning
        If some features are not in all fits: only common ones are compared.

    See Also
    --------
    match_topics : The topics of two fits, matched one to one.
    stability : Fits from many starts of one model to the same counts.

    Notes
    -----
    The clusters are those of average linkage: starting with one for each topic, the two clusters
    with the largest mean similarity of their topics are joined, except if both have a topic of the
    same fit, until it is below `min_similarity`. Nothing is random. Clusters are in the order of
    the number of samples that have them, then of their similarity.

    cNMF [1]_ clusters topics by k-means with a given number of clusters, after topics that are far
    from their neighbours are left out; GeneNMF [2]_ cuts the tree of a hierarchical clustering of
    cosines. Here the number of clusters follows from `min_similarity`, and nothing is left out:
    ``to_frame()`` has the number of samples, by which clusters can be selected.

    Topics are compared by their deviations from the mean of all fits. If the fits have few topics
    in common, the mean is not theirs: look at the similarity to the next cluster.

    References
    ----------
    .. [1] Kotliar, Veres, Nagy, Tabrizi, Hodis, Melton, Sabeti (2019). Identifying gene expression
       programs of cell-type identity and cellular activity with single-cell RNA-Seq. eLife 8.
    .. [2] Yerly, Andreatta, Carmona et al. (2024). Wounding triggers invasive progression in human
       basal cell carcinoma. bioRxiv.

    Examples
    --------
    >>> from nmfscale import cluster_topics
    >>> fits = {
    ...     "one": [[5, 1, 0, 0], [0, 1, 5, 0]],
    ...     "two": [[0, 2, 9, 0], [9, 2, 0, 0]],
    ...     "three": [[8, 1, 1, 0], [0, 0, 1, 9]],
    ... }
    >>> found = cluster_topics(fits)
    >>> found.n_fits.tolist()
    [3, 2, 1]
    >>> found.to_frame("topics").cluster.tolist()
    [0, 1, 1, 0, 0, 2]
    """
    names, fits = _checked_fits(models)
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(map(repr, METRICS))}.")
    if not isinstance(min_similarity, Real) or not 0 < min_similarity <= 1:
        raise ValueError(
            f"min_similarity is {shown(min_similarity)}: a number above 0 and at most 1 is needed."
        )
    of_fits = _checked_samples(samples, names)
    topics, topic_names = zip(
        *(topics_of(fit, f"models[{name!r}]") for name, fit in zip(names, fits, strict=True)),
        strict=True,
    )
    kept, feature_names = with_common_features(
        topics, [names_of(fit, 1) for fit in fits], [f"models[{name!r}]" for name in names]
    )
    similarities = _similarities(kept, metric)
    fit_of = np.repeat(np.arange(len(fits)), [len(values) for values in kept])
    clusters = average_linkage(similarities, fit_of, float(min_similarity))
    return _result(
        similarities, clusters, fit_of, np.concatenate(kept),
        {
            "fit_names": names, "topic_names": tuple(sum(topic_names, ())), "samples": of_fits,
            "feature_names": feature_names, "min_similarity": float(min_similarity),
        },
    )  # fmt: skip


def _checked_fits(models: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Return names of the fits, by default their numbers, and the fits."""
    if isinstance(models, Mapping):
        names, fits = tuple(map(str, models)), [*models.values()]
    elif isinstance(models, list | tuple) or getattr(models, "ndim", 0) == 3:
        names, fits = tuple(map(str, range(len(models)))), [*models]
    else:
        raise ValueError(
            f"models is {type(models).__name__}: a dict of fits by name is needed, such as "
            '{"donor 1": model, "donor 2": other}, or a list of fits.'
        )
    if len(fits) < 2:
        raise ValueError(f"models has {len(fits)} fits: at least two are needed.")
    if len(set(names)) < len(names):
        raise ValueError("models: the names of two fits are the same text.")
    return names, [model_of(fit) for fit in fits]


def _checked_samples(samples: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the sample of each fit, by default the fit itself."""
    if samples is None:
        return names
    labels = [*map(plain, np.asarray(samples, object).tolist())]
    if len(labels) != len(names) or any(map(is_missing, labels)):
        raise ValueError(
            f"samples has {len(labels)} entries, or missing ones, for {len(names)} fits: the "
            "sample of each fit is needed."
        )
    return tuple(labels)


def _similarities(topics: Sequence[Array], metric: Metric) -> Array:
    """Return similarities (T, T) among the topics of all fits, symmetric to the bit."""
    if metric == "lift":
        similarities = lift_correlations_among([values.T for values in topics])
    else:
        together = np.concatenate(topics).T
        compare = {"cosine": cosines_of, "bhattacharyya": affinities_of}[metric]
        similarities = compare(together, together)
    lower = np.tril(similarities.clip(0, 1), -1)
    np.fill_diagonal(symmetric := lower + lower.T, 1.0)
    return symmetric


def _result(
    similarities: Array, clusters: Array, fit_of: Array, topics: Array, about: dict[str, Any]
) -> TopicClusters:
    """Return the clusters in the order of their numbers of samples, with what describes them."""
    n_clusters = int(clusters.max()) + 1
    members = np.eye(n_clusters)[clusters]
    sizes = members.sum(axis=0)
    sums = dense.cross(members, dense.product(similarities, members))
    n_pairs = sizes * (sizes - 1)
    within = np.divide(
        np.diag(sums) - sizes, n_pairs, out=np.full(n_clusters, np.nan), where=n_pairs > 0
    )
    between = sums / np.outer(sizes, sizes)
    np.fill_diagonal(between, -1.0)
    samples = np.unique([str(sample) for sample in about["samples"]], return_inverse=True)[1]
    n_samples = np.array(
        [len(np.unique(samples[fit_of[clusters == c]])) for c in range(n_clusters)]
    )
    order = np.lexsort((np.arange(n_clusters), -np.nan_to_num(within), -sizes, -n_samples))
    place = np.argsort(order)
    consensus = np.stack([topics[clusters == c].mean(axis=0) for c in order])
    nearest = place[between.argmax(axis=1)][order] if n_clusters > 1 else np.full(1, -1)
    to_nearest = between.max(axis=1)[order] if n_clusters > 1 else np.full(1, np.nan)
    return TopicClusters(
        labels=place[clusters], consensus=proportions(consensus), similarities=similarities,
        fits=fit_of, n_fits=sizes[order].astype(np.int64), n_samples=n_samples[order],
        within=within[order], nearest=nearest, to_nearest=to_nearest, **about,
    )  # fmt: skip
