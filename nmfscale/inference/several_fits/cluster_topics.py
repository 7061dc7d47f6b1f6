"""Topics that many fits have in common: clusters of topics, at most one of each fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.names import is_missing, matched, name_array, names_of, plain, shown
from ...kernels import dense
from ...methods.factors import proportions
from ...methods.topics.linkage import average_linkage
from ...models.comparison import METRICS, Metric, topics_of
from ...models.pipelines import FittedModel, model_of
from .cluster_topics_result import TopicClusters
from .panels import Panels, check_overlap, consensus_of, panels_of, similarities_of

Array = NDArray[Any]
Fit: TypeAlias = FittedModel | ArrayLike
ComparedFeatures: TypeAlias = Literal["pairwise", "common"]


def cluster_topics(
    models: Mapping[str, Fit | Mapping[Any, Fit]] | Sequence[Fit],
    *,
    samples: ArrayLike | Mapping[str, Any] | None = None,
    groups: ArrayLike | Mapping[str, Any] | None = None,
    features: ComparedFeatures = "pairwise",
    min_common: int = 20,
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
    models : dict of str to fit or to dict of fits, or sequence of fits
        Fits of several data sets or donors, or of one data set with several numbers of topics. A
        fit is a model, or its ``components_``: array-like or DataFrame of shape (K, n_features). A
        dict of fits, such as :func:`fit_each` returns for several numbers of topics, has fits of
        one sample. Features are matched by name if all fits have names.
    samples : array-like of shape (n_models,), Series or dict, default=None
        Sample of each entry of `models`, if several are of the same, such as fits of one donor in
        two conditions: the samples that have a topic are counted, not only fits. A Series or dict
        is matched by name. By default each entry is of another sample.
    groups : array-like of shape (n_models,), Series or dict, default=None
        Group of each entry of `models`, such as the condition of a donor: the samples of each group
        that have a topic are counted. A Series or dict is matched by name.
    features : {"pairwise", "common"}, default="pairwise"
        Which features are compared where fits have different ones. "pairwise": those that the two
        fits have in common; the consensus has all features that a fit of a cluster has. "common":
        only those of all fits.
    min_common : int, default=20
        Least number of features that two fits must have in common, if fits have different ones and
        `features` is "pairwise".
    metric : {"lift", "cosine", "bhattacharyya"}, default="lift"
        As in :func:`match_topics`, with the mean of the topics of all fits that have the compared
        features.
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
        If there are fewer than two fits, if two of them have fewer than `min_common` features in
        common, if an argument is not valid, or as in :func:`match_topics`.

    Warns
    -----
    UserWarning
        With ``features="common"``, if some features are not in all fits.

    See Also
    --------
    fit_each : Fits of many sources, with one or several numbers of topics.
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

    Frequencies of a topic add up to one over the features that its fit has. The consensus of topics
    with different features is the topic with the largest likelihood of all of them, as if each had
    the same number of counts: with frequencies f_tj in topic t, and the sum q(A_t) of q over the
    features of t, it has ``q_j = sum_t f_tj / sum_t 1 / q(A_t)``, with sums over the topics that
    have feature j. If all have the same features, this is their mean.

    A fit with more topics than its sample has programs splits one of them. If parts of several
    samples are alike, they are a cluster whose similarity to the next cluster is about as large as
    that within.

    The numbers of samples of each group describe where a topic is found. They are no test of a
    difference between groups: a topic may be missed in samples with few counts. To test one, hold
    the consensus topics fixed in a fit to all samples, and compare their proportions by
    :func:`group_effects` with the donors as ``units``.

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
    entries, places, fits = _checked_fits(models)
    names = tuple(_name_of(entries[i], key) for i, key in places)
    if len(set(names)) < len(names):
        raise ValueError("models: the names of two fits are the same text.")
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(map(repr, METRICS))}.")
    if not isinstance(min_similarity, Real) or not 0 < min_similarity <= 1:
        raise ValueError(
            f"min_similarity is {shown(min_similarity)}: a number above 0 and at most 1 is needed."
        )
    _check_features(features, min_common)
    labels = [
        None if given is None else _checked_labels(given, entries, argument)
        for argument, given in (("samples", samples), ("groups", groups))
    ]
    of_samples, of_groups = (
        None if each is None else tuple(each[i] for i, _ in places) for each in labels
    )
    called = [f"models[{entries[i]!r}]{'' if key is None else f'[{key!r}]'}" for i, key in places]
    topics, topic_names = zip(
        *(topics_of(fit, name) for name, fit in zip(called, fits, strict=True)), strict=True
    )
    panels = panels_of(
        topics, [names_of(fit, 1) for fit in fits], called, pairwise=features == "pairwise"
    )
    n_common = check_overlap(panels, called, int(min_common))
    similarities = similarities_of(panels, metric)
    fit_of = np.repeat(np.arange(len(fits)), [len(values) for values in panels.topics])
    clusters = average_linkage(similarities, fit_of, float(min_similarity))
    return _result(
        similarities, clusters, fit_of, panels,
        {
            "fit_names": names, "topic_names": tuple(sum(topic_names, ())),
            "samples": of_samples or tuple(entries[i] for i, _ in places), "groups": of_groups,
            "n_common": n_common, "min_similarity": float(min_similarity),
        },
    )  # fmt: skip


def _checked_fits(models: Any) -> tuple[tuple[str, ...], list[tuple[int, Any]], list[Any]]:
    """Return names of the entries, the entry of each fit and its key there, and the fits."""
    if isinstance(models, Mapping):
        entries, values = tuple(map(str, models)), [*models.values()]
    elif isinstance(models, list | tuple) or getattr(models, "ndim", 0) == 3:
        entries, values = tuple(map(str, range(len(models)))), [*models]
    else:
        raise ValueError(
            f"models is {type(models).__name__}: a dict of fits by name is needed, such as "
            '{"donor 1": model, "donor 2": other}, or a list of fits.'
        )
    places: list[tuple[int, Any]] = []
    fits = []
    for i, (entry, value) in enumerate(zip(entries, values, strict=True)):
        of_entry = value if isinstance(value, Mapping) else {None: value}
        if not of_entry:
            raise ValueError(f"models[{entry!r}] is an empty dict: a fit is needed.")
        for key, fit in of_entry.items():
            places.append((i, key))
            fits.append(model_of(fit))
    if len(fits) < 2:
        raise ValueError(f"models has {len(fits)} fits: at least two are needed.")
    return entries, places, fits


def _name_of(entry: str, key: Any) -> str:
    """Return the name of a fit: that of its entry, and what distinguishes it from others there."""
    if key is None:
        return entry
    return f"{entry}, {key} topics" if isinstance(key, Integral) else f"{entry}, {key}"


def _check_features(features: Any, min_common: Any) -> None:
    if features not in get_args(ComparedFeatures):
        raise ValueError(f"features={shown(features)} is not one of 'pairwise', 'common'.")
    if not isinstance(min_common, Integral) or isinstance(min_common, bool) or min_common < 1:
        raise ValueError(f"min_common is {shown(min_common)}: a positive integer is needed.")


def _checked_labels(given: Any, entries: tuple[str, ...], argument: str) -> tuple[Any, ...]:
    """Return the label of each entry of the models."""
    by_entry = matched(given, name_array(entries), argument, of="entries", subject="models")
    labels = tuple(map(plain, np.atleast_1d(np.asarray(by_entry, object)).tolist()))
    if len(labels) != len(entries) or any(map(is_missing, labels)):
        raise ValueError(
            f"{argument} has {len(labels)} entries, or missing ones, for {len(entries)} entries of "
            "models: a label of each is needed."
        )
    return labels


def _result(
    similarities: Array, clusters: Array, fit_of: Array, panels: Panels, about: dict[str, Any]
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
    topics, having = np.concatenate(panels.topics), panels.measured[fit_of]
    consensus = [consensus_of(topics[clusters == c], having[clusters == c]) for c in order]
    nearest = place[between.argmax(axis=1)][order] if n_clusters > 1 else np.full(1, -1)
    to_nearest = between.max(axis=1)[order] if n_clusters > 1 else np.full(1, np.nan)
    return TopicClusters(
        labels=place[clusters], consensus=proportions(np.stack(consensus)),
        measured=np.stack([having[clusters == c].any(axis=0) for c in order]),
        similarities=similarities, fits=fit_of, n_fits=sizes[order].astype(np.int64),
        n_samples=n_samples[order], within=within[order], nearest=nearest, to_nearest=to_nearest,
        feature_names=panels.feature_names, **about,
    )  # fmt: skip
