"""Batches of samples: what differs between them, and whether the topics of a fit do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike
from ...counts.names import names_of, shown
from ...engine.threads import single_blas_thread
from ...methods.factors import proportions
from ...methods.weights.measured import Measured
from ...models.arguments.measured_entries import measured_counts, measured_of_fit, rows_of_fit
from ...models.arguments.names import matched_counts
from ...models.pipelines import FittedModel, model_and_input, refuse_swapped
from ...readers.open import as_counts
from ..design.groups import Labels, checked_labels, table_of
from ..design.loadings import SampleTopics, topics_of_samples
from ..results.origin import Origin
from .effects_result import BatchEffects
from .mixing import Pairs
from .separation import Expected, concentrations, sums_of_batches

Array = NDArray[Any]


def batch_effects(
    model: FittedModel | ArrayLike,
    X: CountsLike | None = None,
    *,
    batch: ArrayLike | None = None,
    conditions: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    topic_names: ArrayLike | None = None,
    layer: str | None = None,
    raw: bool = False,
) -> BatchEffects:
    r"""Show how batches differ, and whether the topics of a fit still tell them apart.

    Batches are sets of samples that were measured together, such as those of a donor, a chemistry
    or a source of texts. Of a fit with batches, it shows the efficiencies that differ most, and
    what they cannot correct. Of a fit without batches, it shows whether topics or clusters belong
    to batches, so that a fit with ``batch=`` is needed.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, K)
        A model fitted with or without ``batch=``, or loadings, such as those that ``transform``
        returned, whose rows are divided by their sums.
    X : counts of shape (n_samples, n_features), default=None
        The counts of a fit with batches. If given, batches are also told apart by topics of the
        same fit without its efficiencies, ``auc_before``, which takes as long as ``transform``.
    batch : array-like of shape (n_samples,), default=None
        Label of the batch of each sample; by default that of the fit. Other labels than those of
        the fit, such as donors after a fit with chemistries, have no efficiencies.
    conditions : array-like of shape (n_samples,), default=None
        Label of the condition of each sample, such as treated or control: warn if batches and
        conditions are confounded.
    clusters : array-like of shape (n_samples,), default=None
        Label of a cluster of each sample, such as its cell type, within which batches are told
        apart; by default its leading topic.
    topic_names : sequence of str, default=None
        Names of the topics; by default those of a model, the columns of a DataFrame, or numbers.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    BatchEffects
        Tables of batches, topics, features and clusters by ``to_frame()``, `warnings`, and a plot
        by :func:`nmfscale.pl.batch_plot`.

    Raises
    ------
    ValueError
        If the fit has no batches and `batch` is not given, if labels are missing or there is a
        single batch, or if `X` are not the counts of the fit.

    Warns
    -----
    UserWarning
        If samples without counts are left out. What is wrong with the batches is not a Python
        warning: it is in `warnings` of the result, and in its text.

    Notes
    -----
    *Area under the ROC curve (AUC).* Within a cluster, a linear discriminant tells each batch from
    the others by the square roots of proportions. Its AUC for samples that it has not seen, by
    5-fold cross-validation, is 0.5 if batches are mixed, and 1 if they are apart. Each pair of a
    cluster and a batch needs 20 samples of the batch and 20 others; means are weighted by
    ``n n' / (n + n')``, with n and n' the numbers of both. Values somewhat below 0.5 are chance.

    The AUC does not say why batches differ: donors also differ in what their cells do. Without any
    effect it was 0.6 for sorted blood cells whose types were four times as frequent in one of two
    batches, and 0.7 to 0.9 in simulations where a topic was in one batch only, because proportions
    of that topic tell the batch. A fit without batches may have no cluster with samples of two
    batches, because topics are batches: pass known cell types as `clusters`.

    *Efficiencies.* The posterior of the efficiency of feature j in batch b is Gamma(a + T, a + M),
    where a is the shape of the prior, T the count, and M the count that the topics expect without
    effects. ``spread`` is the root mean square of log efficiencies, weighted by M: 0.4 is a factor
    of 1.5.

    *Warnings* are given if

    - a topic has at least 80% of its weight in one batch. Without efficiencies, it may be the
      batch. With them, frequencies of features that only this topic has cannot be separated from
      their efficiencies, of which only the prior is known. With the information
      :math:`I_{bj} = \sum_k f_{kj} A_{bk} (1 - A_{bk} / A_k)` from topics with :math:`A_{bk}` of
      their :math:`A_k` counts in the batch, the standard error of a log efficiency is
      :math:`(a + I_{bj})^{-1/2}`. Its root mean square over the counts of the topic, the
      ``uncertainty``, must be 0.15 or more. In simulations it was the relative error of the
      topic's frequencies: 0.13 and 0.13 if log efficiencies had the standard deviation 0.2, 0.25
      and 0.25 for 0.4, both with features that no other topic had;
    - the mean AUC is 0.7 or more; of a fit with batches, only if no topic has 80% of its weight in
      one batch;
    - conditions have no batch in common, not even by way of others, or Cramér's V of batches and
      conditions is 0.9 or more: the variance of a difference between conditions within batches is
      then more than five times that of one without batches;
    - the prior has more weight than the counts in the efficiencies of a batch, on average, while
      efficiencies vary by 10% or more.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(200, 60, 3, random_state=0)
    >>> donors = np.repeat(["a", "b"], 100)
    >>> model = nmfscale.TopicModel(3, random_state=0).fit(X)
    >>> effects = nmfscale.batch_effects(model, batch=donors)
    >>> effects.warnings
    ()
    >>> effects.to_frame("batches")[["batch", "n_samples"]].values.tolist()
    [['a', 100], ['b', 100]]
    """
    refuse_swapped(model, X, "the counts")
    model, X = model_and_input(model, X) if hasattr(model, "get_params") else (model, X)
    topics = topics_of_samples(model, "proportions", topic_names)
    labels, with_efficiencies = _batches_of(model, batch, topics)
    _check_batches(labels)
    with single_blas_thread():
        before = None
        if X is not None and with_efficiencies:
            before = _without_efficiencies(model, X, layer=layer, raw=raw)
        kept = np.flatnonzero(~topics.empty)
        others = {"conditions": conditions, "clusters": clusters}
        further = {
            name: checked_labels(values, len(topics), name, topics.sample_names).of(kept)
            for name, values in others.items() if values is not None
        }  # fmt: skip
        labels = labels.at(kept) if with_efficiencies else labels.of(kept)
        return _compared(
            topics.of(kept), kept, labels, None if before is None else before[kept],
            model if with_efficiencies else None,
            origin=Origin.of(topics.words, groups=batch), **further,
        )  # fmt: skip


# Arguments -------------------------------------------------------------------------------------


def _batches_of(model: Any, batch: Any, topics: SampleTopics) -> tuple[Labels, bool]:
    """Return the batches of the samples, and whether the fit has efficiencies of them."""
    of_fit = None
    names, codes = getattr(model, "batches_", None), getattr(model, "batch_", None)
    if names is not None and codes is not None and len(codes) == len(topics):
        of_fit = Labels(np.asarray(codes, np.int64), tuple(np.asarray(names).tolist()))
    if batch is None:
        if of_fit is None:
            raise ValueError(
                "the fit has no batches: pass batch=, the batch of each sample, such as "
                "adata.obs['donor']."
            )
        return of_fit, True
    labels = checked_labels(batch, len(topics), "batch", topics.sample_names)
    if of_fit is not None and labels.labels() == of_fit.labels():
        return of_fit, True
    return labels, False


def _check_batches(labels: Labels) -> None:
    if len(labels.names) < 2:
        raise ValueError(
            f"batch has only {shown(labels.names[0])}: two batches at least are needed."
        )
    if len(labels.names) == len(labels):
        raise ValueError(
            f"batch has a different label for each of {len(labels):,} samples: batches of several "
            "samples are needed. Was the right column given?"
        )


def _without_efficiencies(model: Any, X: Any, **part: Any) -> Array:
    """Return the proportions (n, K) of the samples of the fit if all efficiencies were 1."""
    limit = model.memory_limit
    counts = as_counts(X, integer="allow", in_memory=limit is None, memory_limit=limit, **part)
    counts = matched_counts(model, X, counts, remedy="pass the counts that it was fitted to.")[0]
    counts = measured_counts(model, counts)
    rows = rows_of_fit(model, counts)
    if rows is None:
        raise ValueError(
            "X is not what the model was fitted to: pass the same counts, or leave X out."
        )
    loadings = np.asarray(model.transform(counts, batch=[None] * len(rows)), np.float64)
    shares = np.empty(loadings.shape)
    shares[rows] = proportions(loadings * np.asarray(model.components_, np.float64).sum(axis=1))
    return shares


def _expected(model: Any, topics: SampleTopics, codes: Array, kept: Array) -> Expected:
    """Return what the fit expects of its samples at the places `kept`, those with counts."""
    measured = measured_of_fit(model)
    if measured is None:
        measured = Measured.everything((len(model.loadings_), model.components_.shape[1]))
    return Expected.of(
        _amounts(model, topics, kept), codes, np.asarray(model.components_, np.float64),
        np.asarray(model.batch_efficiencies_, np.float64), float(model.batch_shape_),
        measured.rows(kept),
    )  # fmt: skip


def _amounts(model: Any, topics: SampleTopics, kept: Array) -> Array:
    """Return the counts (n, K) of topics that a fit expects, if all efficiencies were 1."""
    weights = getattr(model, "row_weights_", None)
    if getattr(model, "has_size_factors_", False) and not model.loadings_are_proportions:
        assert topics.whole_totals is not None
        amounts = topics.rows * topics.whole_totals[:, None]
    else:  # exactly those with which efficiencies were computed
        factors = model.loadings_, model.components_.T
        if hasattr(model, "poisson_factors"):
            factors = model.poisson_factors()
        L, F = (np.asarray(factor, np.float64) for factor in factors)
        amounts = L[kept] * F.sum(axis=0)
    return amounts if weights is None else amounts * weights[kept, None]


# Comparisons -----------------------------------------------------------------------------------


def _compared(
    topics: SampleTopics, kept: Array, batches: Labels, before: Array | None, model: Any,
    origin: Origin, conditions: Labels | None = None, clusters: Labels | None = None,
) -> BatchEffects:  # fmt: skip
    """Return the result for the samples at `kept`; `model` is None without efficiencies."""
    B, codes, shares = len(batches.names), batches.codes, topics.rows
    cluster = shares.argmax(axis=1) if clusters is None else clusters.codes
    pairs = Pairs.of(cluster, codes, B)
    auc = pairs.areas(shares, cluster, codes)
    auc_before = None if before is None else pairs.areas(before, cluster, codes)
    sizes = np.bincount(codes, minlength=B)
    means = sums_of_batches(shares, codes, B) / np.maximum(sizes, 1)[:, None]
    of_fit: dict[str, Any] = {}
    if model is None:
        totals = np.ones(len(shares)) if topics.whole_totals is None else topics.whole_totals
        amounts = sums_of_batches(shares * totals[:, None], codes, B)
    else:
        expected = _expected(model, topics, codes, kept)
        amounts = expected.amounts
        of_fit = {
            "efficiencies": expected.efficiencies, "expected": expected.counts,
            "shape": expected.shape, "spread": expected.spread, "of_prior": expected.of_prior,
            "feature_names": names_of(model, 1),
        }  # fmt: skip
    homes, concentration = concentrations(means, amounts)
    if model is not None:
        of_fit["uncertainty"] = expected.uncertainty(homes)
    of_conditions: dict[str, Any] = {}
    if conditions is not None:
        of_conditions = {
            "conditions": conditions.names,
            "condition_sizes": table_of(codes, conditions.codes),
        }
    return BatchEffects(
        shares=means, n_samples=sizes, homes=homes, concentration=concentration,
        pair_clusters=pairs.clusters, pair_batches=pairs.batches,
        pair_samples=pairs.n_samples, pair_others=pairs.n_others, auc=auc, auc_before=auc_before,
        batches=batches.names, topic_names=topics.topic_names,
        clusters=None if clusters is None else clusters.names,
        origin=origin, **of_fit, **of_conditions,
    )  # fmt: skip
