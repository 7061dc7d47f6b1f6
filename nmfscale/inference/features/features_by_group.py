"""Frequencies of features within topics in groups of samples, such as periods or sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import CountsLike, check_option, positive_number
from ...counts.names import shown, such_as
from ...counts.warn import warn_caller
from ...engine.workers import resolve_client
from ...models.arguments.names import feature_names_of
from ...models.pipelines import FittedModel, model_and_input, refuse_swapped
from ..design.confounding import confounded
from ..design.groups import (
    Design,
    Labels,
    checked_design,
    checked_labels,
    warn_of_samples_as_units,
)
from ..design.times import in_order
from ..intervals import RobustInterval, check_interval
from ..job import RunOptions, run_options
from ..replicates.shared_fits import counts_of_job
from ..results.origin import Origin
from .features_by_group_result import FeaturesByGroup
from .features_by_group_run import fit_groups
from .pseudobulk import topics_of_counts

Array = NDArray[Any]
Against: TypeAlias = Literal["auto", "first", "others"]
# Fewer units of a group than these are warned of.
_FEW = 5


@run_options
def features_by_group(
    model: FittedModel,
    X: CountsLike,
    groups: ArrayLike | None = None,
    *,
    units: ArrayLike | None = None,
    against: Against = "auto",
    shape: float | Literal["auto"] = 10.0,
    level: float = 0.95,
    topic_names: ArrayLike | None = None,
    memory_limit: int | float | str | None = None,
    n_threads: int | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> FeaturesByGroup:
    """Estimate the features of topics in groups, such as words over time or by source.

    For each topic and group, such as a year or a newspaper, the frequencies of all features are
    estimated from the samples of the group, with the loadings of the fit: how much of a topic a
    sample has is known, and what the topic consists of may differ. So a topic that becomes more
    frequent does not make its words more frequent within it. Frequencies of groups are shrunk to
    those of the fit, as far as the counts say little.

    Parameters
    ----------
    model, X
        As in :func:`pseudobulk`.
    groups : array-like of shape (n_samples,)
        Label of the group of each sample: a period, or a source. The order of periods is that of
        numbers or dates, or of the categories of an ordered pandas Categorical.
    units : array-like of shape (n_samples,), optional
        Label of the sampling unit of each sample, such as its author or donor; by default samples
        are units. Units may have samples in several groups.
    against : {"auto", "first", "others"}, default="auto"
        What the groups are compared with: the first group, or all other groups together, weighted
        by their counts of the topic. "auto" is "first" if groups have an order, else "others".
    shape : float or "auto", default=10.0
        Shape a of the Gamma prior of the ratios of the frequencies of a group to those of the fit:
        they have mean 1 and standard deviation ``1 / sqrt(a)``, so that the prior is worth a counts
        of each feature. "auto" estimates one for each topic: that is larger, and shrinks the few
        features that do change too much, if most features of a topic do not.
    level : float, default=0.95
        Nominal coverage of the intervals.
    topic_names : sequence of str, optional
        Names of topics; by default those of the model, or numbers.
    memory_limit, n_threads, layer, raw, client, verbose
        As in :func:`pseudobulk`.

    Returns
    -------
    FeaturesByGroup
        Frequencies and changes with intervals; tables by ``to_frame()``, plots by
        :func:`nmfscale.pl.features_by_group_plot`.

    Raises
    ------
    ValueError
        If an argument is not valid, there are fewer than two groups, or a group has fewer than two
        units.
    MemoryLimitError, ClusterError
        As in :func:`pseudobulk`.

    Warns
    -----
    UserWarning
        If a group has fewer than five units, very many samples serve as units, or groups cannot be
        told from the batches of a fit with ``batch=``.

    See Also
    --------
    condition_features : Tests of the same question for few features that differ.
    group_effects : How the proportions of topics differ between groups.

    Notes
    -----
    Counts of a group g are ``x_ij ~ Poisson(e_ij sum_k l_ik f_jk r_gjk)``. The amounts l of topics,
    the frequencies f and the efficiencies e of batches are those of the fit, and
    ``r_gjk ~ Gamma(a_k, a_k)``. The ratios r of all topics, for one feature and group, are
    estimated together, because a count of a sample with several topics may come from each of them.
    The estimate is the mode of ``log r``: for samples with one topic,
    ``(a + counts) / (a + expected counts)``. So a feature that is expected once and occurs three
    times has a ratio of 1.2 with ``a = 10``. At the end frequencies of a topic and group are scaled
    to a sum of 1.

    A word that occurs once in a text is likely to occur again in it. So the counts of a feature
    count for less, by the dispersion phi: the variance of its scores between units in relation to
    that of Poisson counts, at least 1. The shape "auto" has the largest marginal likelihood of the
    counts that estimates are worth: negative binomial ones, with mean ratios of 1. Features that a
    topic of the fit lacks are lacking in all groups.

    Intervals are those of Student's t on the scale of logarithms. The variance is
    ``V (S + phi^2 a) V``, where V is the inverse curvature, and S the sum over units of the squares
    of their scores: what a bootstrap of units has after one Newton step, with many replicates. The
    second part is the slope of the prior, so that intervals cover frequencies that are drawn from
    the prior; features that hardly occur have wide intervals. Where units have samples in several
    groups, changes are those within units. Errors of the loadings and of the frequencies of the fit
    are not included.

    The words of a topic over time are those of [1]_, in which periods are chained; those by source
    are the content covariates of the structural topic model [2]_, where changes are sparse.

    References
    ----------
    .. [1] Blei, Lafferty (2006). Dynamic topic models. International Conference on Machine
       Learning.
    .. [2] Roberts, Stewart, Airoldi (2016). A model of text for experimentation in the social
       sciences. Journal of the American Statistical Association.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> rng = np.random.default_rng(0)
    >>> years = np.repeat([2001, 2002, 2003], 60)
    >>> frequencies = np.full((2, 30), 3.0)
    >>> frequencies[0, :15], frequencies[1, 15:] = 9, 9
    >>> shares = rng.dirichlet([0.3, 0.3], 180)
    >>> means = shares @ frequencies
    >>> means[:, 3] *= 1 + shares[:, 0] * (years - 2001)  # a word of a topic that rises
    >>> X = rng.poisson(means)
    >>> model = nmfscale.TopicModel(2, random_state=0).fit(X)
    >>> found = nmfscale.features_by_group(model, X, years)
    >>> topic = int(model.components_[:, 3].argmax())
    >>> leading = found.to_frame(topic).query("group == 2003").nlargest(1, "lfc_lower")
    >>> leading[["feature", "lfc"]].round(1)
        feature  lfc
    63        3  1.2
    """
    check_interval(level, "t", RobustInterval)
    check_option("against", against, Against)
    of_prior = _checked_shape(shape)
    refuse_swapped(model, X, "the counts")
    if groups is None:
        raise ValueError("groups is needed: a label for each sample, such as its year or source.")
    client = resolve_client(job["client"])
    model, X = model_and_input(model, X)
    check_is_fitted(model, "components_")
    counts = counts_of_job(X, memory_limit, client, layer=layer, raw=raw)
    counts, topics, among, batches = topics_of_counts(model, X, counts, topic_names, client)
    labels = checked_labels(groups, counts.shape[0], "groups", topics.sample_names, "X")
    design = checked_design(labels, units, sample_names=topics.sample_names, subject="X")
    _check_groups(design, labels)
    warn_of_samples_as_units(design)
    if among is not None and batches is not None:
        _warn_of_batches(np.array(batches, object)[among.groups], labels)
    first = against == "first" or (against == "auto" and in_order(labels))
    result = fit_groups(
        counts, topics.rows, np.asarray(model.components_, np.float64), labels, design, among,
        shape=of_prior, rest=not first, level=float(level), memory_limit=memory_limit,
        n_threads=n_threads, client=client, verbose=job["verbose"],
    )  # fmt: skip
    return replace(
        result, topic_names=topics.topic_names, feature_names=feature_names_of(model, counts),
        origin=Origin.of(topics.words, units=units, groups=groups),
    )  # fmt: skip


def _checked_shape(shape: Any) -> float | None:
    """Return the shape of the prior, None if it is estimated."""
    if isinstance(shape, str) and shape == "auto":
        return None
    return positive_number("shape", shape, "a positive number or 'auto'")


def _check_groups(design: Design, labels: Labels) -> None:
    """Refuse groups that cannot be compared, and warn of few units."""
    names = labels.names
    if len(names) < 2:
        raise ValueError(f"groups has only {shown(names[0])}: two groups at least are needed.")
    assert design.groups is not None
    n_units = np.bincount(design.groups.codes, minlength=len(names))
    what = "samples" if design.unit_names is None else "units"
    if (n_units < 2).all():
        raise ValueError(
            f"each of the {len(names):,} groups has a single one of the {what}: how much "
            f"frequencies vary between {what} of a group cannot be estimated. Was the right column "
            f"given? Pass groups of several {what}."
        )
    few = np.flatnonzero(n_units < 2)
    if few.size:
        raise ValueError(
            f"groups with fewer than two {what}: {such_as([names[g] for g in few])}. Merge them "
            "with others, such as neighbouring periods, or leave their samples out."
        )
    small = np.flatnonzero(n_units < _FEW)
    if small.size:
        warn_caller(
            f"groups with fewer than {_FEW} {what}: {such_as([names[g] for g in small])}. Their "
            f"intervals depend on {what} being alike."
        )


def _warn_of_batches(of_samples: Array, labels: Labels) -> None:
    """Warn of groups that cannot be told from the batches of a fit."""
    batches, codes = np.unique(of_samples.astype(str), return_inverse=True)
    table = np.zeros((len(batches), len(labels.names)), np.int64)
    np.add.at(table, (codes, labels.codes), 1)
    text = confounded(table, labels.names)
    if text is not None:
        warn_caller(f"the model was fitted with batch=, and {text}")
