"""Bootstrap of whole fits: estimates of models fitted to resampled samples, with intervals."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from ...counts.argument_types import CountsLike, PipelineLike, check_option
from ...counts.base import CountMatrix
from ...counts.names import shown
from ...counts.warn import warn_caller
from ...engine.workers import resolve_client
from ...models.arguments.names import feature_names_of
from ...models.base import CountModel
from ...models.from_components import why_no_loadings
from ...models.pipelines import estimator_and_input
from ...models.topics.topic_labels import topic_words
from ..design.equal_weights import EqualWeights, check_groups, sample_weights
from ..design.fit_counts import counts_of_fit
from ..design.groups import (
    check_resampled,
    checked_design,
    checked_labels,
    warn_of_samples_as_units,
)
from ..intervals import check_interval
from ..job import JobOptions, job_options
from ..results.origin import Origin
from .refit_result import BootstrapFit, Estimates, numbers_or_names
from .refits import Drawing, check_refittable, refit_task, shares_of
from .replicates import run_replicates
from .shared_fits import counts_of_job

Array = NDArray[Any]


@job_options
def bootstrap_fit(
    estimator: CountModel | PipelineLike,
    X: CountsLike,
    *,
    units: ArrayLike | None = None,
    equal_weights: EqualWeights = "units",
    strata: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    features: ArrayLike | None = None,
    samples: ArrayLike | None = None,
    n_replicates: int = 200,
    level: float = 0.95,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[JobOptions],
) -> BootstrapFit:
    """Bootstrap whole fits: the uncertainty of topics, mean proportions and proportions.

    Resample the units that the study sampled. If samples come in units, such as cells of a patient
    or posts of a blog, pass these as `units`: samples of a unit resemble each other, and intervals
    that resample single samples are far too narrow.

    Each replicate weights the samples by how often they were drawn (LDA and AnchorNMF: repeats
    them), starts from the factors of the fit, and ends by the rule of `estimator`. Its topics are
    matched to those of the fit as by :func:`match_topics` (AnchorNMF: by their anchors); the result
    has the cosines between matched topics.

    Parameters
    ----------
    estimator : model whose fit can start at another one, or with anchors
        Of this package, PoissonNMF, TopicModel, LDA, AnchorNMF and FrobeniusNMF; others if their
        `fit` takes their start: `loadings` and `components`, and what else `start_arguments` names.
        Fitted to `X`, or unfitted; an unfitted one is copied and fitted first. Replicates use the
        `row_weights` and the fixed topics, features and samples of its fit. LDA may have either
        inference; its estimates are posterior means. AnchorNMF keeps the anchors of the fit, and
        intervals are those given these anchors, as in [2]_.
    X : counts of shape (n_samples, n_features)
        The counts of the fit, as in :meth:`nmfscale.PoissonNMF.fit`. Features and samples are
        matched with those of the fit by name, where both have names. If memory is too small for the
        counts, a packed store (or any file, if the estimator has a `memory_limit`) is read in
        chunks: up to 16 replicates, as many as memory has room for, share each read.
    units : array-like of shape (n_samples,), default=None
        Unit of each sample: all samples of a unit are drawn together. By default samples are units.
    equal_weights : {"units", "samples"}, default="units"
        Whether each unit counts once in the mean of a group, by the mean of its samples there, or
        each sample counts once. Samples have their `row_weights`; samples without counts have
        weight 0.
    strata : array-like of shape (n_samples,), default=None
        Strata of the study, such as groups whose sizes were chosen: from each stratum as many units
        are drawn as it has.
    groups : array-like of shape (n_samples,), default=None
        Groups whose mean proportions to report. Groups, units and strata are matched with the
        samples of `X` by name if both have names. Replicates without any unit of a group are left
        out of its intervals.
    features : array-like of int or str, default=None
        Features whose frequencies to report, by number or name; by default all.
    samples : array-like of int or str, default=None
        Samples whose proportions to report, by number in `X` or name; by default none.
    n_replicates : int, default=200
        Number of replicates. Memory is 4 bytes for each replicate and reported number.
    level : float, default=0.95
        Nominal coverage of the intervals, of percentiles.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_weights`. Each worker of a cluster needs all counts: counts in memory
        are sent to it, a packed store is read by it under the same path.

    Returns
    -------
    BootstrapFit
        Frequencies of features in topics, mean proportions and proportions, with intervals.

    Raises
    ------
    ValueError
        If the counts or labels are not valid, or the estimator is of another class or was fitted to
        different counts; or if a cluster is to read a file that is not a packed store.
    CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Warns
    -----
    UserWarning
        If topics of some replicates had to be reordered, replicates have not converged, or
        replicates have no unit of a group; or if an anchor of AnchorNMF occurs in no sample of some
        replicates, or its counts there are a combination of those of earlier anchors.

    Notes
    -----
    Replicates of LDA and AnchorNMF make a table of the drawn samples, one replicate at a time. If
    it would take more than half of the free memory (or `memory_limit`), it is read from `X` in
    every iteration.

    Coverage of percentile intervals is below their nominal level. In 300 simulated sets of 60 + 60
    samples with 200 counts (``benchmarks/calibration.py``, 60 replicates), 95% intervals covered
    the true mean proportions of groups in 91% and the true frequencies in 89%.

    References
    ----------
    .. [1] Davison, Hinkley (1997). Bootstrap methods and their application. Cambridge.
    .. [2] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.
       Section 4.1.

    Examples
    --------
    >>> from nmfscale import TopicModel, bootstrap_fit
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, *_ = simulate_topic_counts(100, 30, 3, random_state=0)
    >>> model = TopicModel(n_components=3, random_state=0).fit(X)
    >>> found = bootstrap_fit(model, X, n_replicates=20, random_state=0)
    >>> found.components.lower.shape, found.n_reordered
    ((3, 30), 0)
    """
    check_interval(level, "percentile")
    check_option("equal_weights", equal_weights, EqualWeights)
    estimator, X = estimator_and_input(estimator, X)
    check_refittable(estimator)
    job["client"] = resolve_client(job["client"])
    counts = counts_of_job(X, estimator.memory_limit, job["client"], layer=layer, raw=raw)
    fitted = _fitted(estimator, counts, job["n_threads"])
    counts, fit_samples = counts_of_fit(fitted, X, counts)
    feature_names = feature_names_of(fitted, counts)
    n, m = counts.shape
    design = checked_design(
        checked_labels(np.zeros(n, int), n, "X"), units, strata, nested=False,
        sample_names=fit_samples.sample_names, subject="X",
    )  # fmt: skip
    check_resampled(design)
    labels = None
    if groups is not None:
        labels = checked_labels(groups, n, "groups", fit_samples.sample_names, "X")
    warn_of_samples_as_units(design, labels)
    chosen = [
        _checked_indices(wanted, size, name, names)
        for wanted, size, name, names in (
            (features, m, "features", feature_names),
            (samples, n, "samples", counts.sample_names),
        )
    ]
    proportions, frequencies = shares_of(fitted)
    proportions = proportions[fit_samples.rows]
    some = (counts.row_totals > 0) & proportions.any(axis=1)
    in_means = sample_weights(equal_weights, design, labels, fit_samples.weights * some)
    if labels is not None:
        check_groups(labels, in_means)
    drawing = Drawing.of(
        design, None if labels is None else labels.codes, in_means, features=chosen[0],
        samples=chosen[1],
    )  # fmt: skip
    task = refit_task(fitted, counts, fit_samples, drawing)
    replicates = run_replicates(task, n_replicates, **job)
    _warn(replicates["match"], ~replicates["converged"] & (replicates["n_iter"] >= fitted.max_iter))
    of_fit = drawing.numbers_of(proportions, frequencies, np.ones(n))
    estimates = {name: Estimates.of(of_fit[name], replicates[name], level) for name in of_fit}
    if labels is not None:
        _warn_of_missing(replicates["group_means"], labels.names)
    result = BootstrapFit(
        estimates["components"], estimates.get("group_means"), estimates.get("proportions"),
        cosines=replicates["cosine"], matches=replicates["match"], n_iter=replicates["n_iter"],
        converged=replicates["converged"], features=chosen[0], samples=chosen[1],
        feature_names=feature_names, groups=None if labels is None else labels.names,
        level=level, random_state=replicates.seed.entropy, topic_names=numbers_or_names(fitted),
        units="samples" if units is None else "units", equal_weights=equal_weights,
        origin=Origin.of(topic_words(fitted), groups=groups, units=units, strata=strata),
    )  # fmt: skip
    _warn_of_lost(result)
    return result


def _fitted(estimator: Any, counts: CountMatrix, n_threads: int | None) -> Any:
    """Return the estimator, and fit it first if it is not fitted."""
    if hasattr(estimator, "loadings_"):
        return estimator
    if hasattr(estimator, "components_"):
        raise ValueError(
            f"this {type(estimator).__name__} has no loadings_, as {why_no_loadings(estimator)}: "
            "call fit."
        )
    fresh = clone(estimator)
    if n_threads is not None:
        fresh.set_params(n_threads=n_threads)
    return fresh.fit(counts)


def _checked_indices(indices: Any, size: int, name: str, names: Any) -> Array:
    """Return positions of features or samples that are given by position or name."""
    if indices is None:
        return np.arange(size if name == "features" else 0)
    requested = np.atleast_1d(np.asarray(indices))
    if (
        requested.ndim == 1
        and requested.dtype.kind in "iu"
        and np.isin(requested, np.arange(size)).all()
    ):
        return requested.astype(np.int64)
    if requested.ndim == 1 and requested.dtype.kind in "OUT" and names is not None:
        place = {str(value): i for i, value in reversed(list(enumerate(names)))}
        unknown = [str(value) for value in requested if str(value) not in place]
        if unknown:
            raise ValueError(f"{name}: none is named {shown(unknown[0])}.")
        return np.array([place[str(value)] for value in requested])
    remedy = "" if names is None else ", or names"
    raise ValueError(f"{name} must be whole numbers from 0 to {size - 1}{remedy}.")


def _warn_of_missing(means: Array, names: tuple[Any, ...]) -> None:
    missing = np.isnan(means).all(axis=1).sum(axis=0)
    if missing.any():
        r = int(missing.argmax())
        warn_caller(
            f"some replicates drew no units of {np.count_nonzero(missing)} groups: for "
            f"{shown(names[r])}, {missing[r]} of {len(means)} replicates are left out of its "
            "intervals. To draw as many units of each group as it has, pass groups as strata, too."
        )


def _warn_of_lost(result: BootstrapFit) -> None:
    missing = result.missing
    if missing.any():
        k = int(missing.argmax())
        warn_caller(
            f"some replicates drew no sample from which {np.count_nonzero(missing)} of "
            f"{len(missing)} anchors can be told: the topics of these anchors, such as "
            f"{shown(result.topic_names[k])}, which {missing[k]:.1%} of the replicates lack, have "
            "intervals from the other replicates only."
        )


def _warn(matches: Array, ran_out: Array) -> None:
    moved = int((matches != np.arange(matches.shape[1])).any(axis=1).sum())
    if moved:
        warn_caller(
            f"topics of {moved} of {len(matches)} replicates were reordered to match "
            "those of the fit: see `cosines` for how well they do."
        )
    if ran_out.any():
        warn_caller(
            f"{int(ran_out.sum())} of {len(ran_out)} replicates ran out of iterations: increase "
            "max_iter of the estimator."
        )
