"""Fits from many random starts: how far they end apart, and the topics that they agree on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from numbers import Real
from typing import Any, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ...counts.argument_types import CountsLike, PipelineLike
from ...counts.base import CountMatrix
from ...counts.names import shown
from ...counts.short_samples import ShortSamplesWarning
from ...counts.warn import LeftSeedsWarning, ModalityDepthWarning
from ...engine.workers import resolve_client
from ...methods.factors import proportions
from ...methods.topics.matching import lift_pairs
from ...models.arguments.batches import checked_batch
from ...models.arguments.starts import fit_takes, has_random_starts
from ...models.base import CountModel
from ...models.pipelines import estimator_and_input
from ..design.fit_counts import counts_of_fit
from ..job import JobOptions, job_options
from ..replicates.replicates import ReplicateTask, check_positive, run_replicates
from ..replicates.seeds import state_of_fit
from ..replicates.selection_fits import with_options
from ..replicates.shared_fits import (
    counts_of_job,
    file_of,
    fit_together,
    fits_per_read,
    fits_per_read_on_worker,
    objective_of,
)
from .consensus import Consensus, consensus_of
from .stability_result import Stability

Array = NDArray[Any]


@job_options
def stability(
    estimator: CountModel | PipelineLike,
    X: CountsLike,
    n_starts: int = 20,
    *,
    batch: ArrayLike | str | None = None,
    density_threshold: float = 0.5,
    n_neighbors: int | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[JobOptions],
) -> Stability:
    """Fit from many starts: how far the optima are apart, and which topics they have in common.

    The likelihood has many local optima. The topics of all fits are matched with those of the best
    fit, and combined to consensus topics as by cNMF [1]_: topics far from all others are left out,
    the rest are clustered by k-means, and a consensus topic is the median of its cluster.

    Parameters
    ----------
    estimator : model of counts with random starts (`n_init`) and without labels
        Its parameters except `n_init` and `random_state` are used; it is not fitted. As starts must
        differ, the default of `init` means ``init="random"``. It may be the last step of a
        pipeline. If it is a fit of `X`, the result says how far it ends from the starts, and which
        of its topics they find.
    X : counts of shape (n_samples, n_features)
        As in :meth:`nmfscale.PoissonNMF.fit`. If memory is too small for the counts, a packed store
        (or any file, if the estimator has a `memory_limit`) is read in chunks: up to 16 fits share
        each read.
    n_starts : int, default=20
        Number of fits.
    batch : array-like of shape (n_samples,) or str, default=None
        As in :func:`select_k`; by default, that of the fit.
    density_threshold : float, default=0.5
        A topic is left out of the consensus if its mean distance from its nearest neighbours is
        larger. Distances are between unit vectors: 0 to 2; 2 leaves nothing out.
    n_neighbors : int, default=None
        Number of these neighbours; None means 30 % of the number of fits, at least one.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_fit`. Workers share the fits, and finished fits are saved; `seeds` of
        the result has the seed of each.

    Returns
    -------
    Stability
        Objectives and topics of the fits, their matches, and the consensus.

    Raises
    ------
    ValueError
        If the counts or an argument are not valid; if `estimator` is a fit of other counts, or one
        with weights, fixed topics or missing entries, which the starts do not have; or if a cluster
        is to read a file that is not a packed store.
    CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Warns
    -----
    UserWarning
        If fewer topics than `n_components` are left after the filter: there is no consensus.

    Notes
    -----
    cNMF clusters components of scaled counts. Here topics f are compared as by
    :func:`match_topics`, as vectors ``(f - p) / sqrt(p)`` of unit length, where p is the mean of
    all topics: features that all topics share do not count. The loadings of the consensus (its
    `model`) are fitted with these topics held fixed, if `fit` of the estimator takes
    `fixed_topics`, as that of PoissonNMF and TopicModel; other models have a consensus of topics
    only.

    Ctrl-C ends the job after the current fits; the result is that of the finished ones.

    References
    ----------
    .. [1] Kotliar, Veres, Nagy, Tabrizi, Hodis, Melton, Sabeti (2019). Identifying gene expression
       programs of cell-type identity and cellular activity with single-cell RNA-Seq. eLife 8.

    Examples
    --------
    >>> from nmfscale import TopicModel, stability
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(100, 40, 3, random_state=0)
    >>> found = stability(TopicModel(3), X, n_starts=5, random_state=0)
    >>> bool(found.gaps.max() < 1), found.consensus.topics.shape
    (True, (3, 40))
    >>> found.model.loadings_.shape
    (100, 3)
    >>> fitted = TopicModel(3, random_state=0).fit(X)
    >>> bool(abs(stability(fitted, X, n_starts=5, random_state=0).fit_gap) < 1)
    True
    """
    estimator, X = estimator_and_input(estimator, X)
    _check_estimator(estimator)
    check_positive("n_starts", n_starts)
    if not isinstance(density_threshold, Real) or not 0 < float(density_threshold) <= 2:
        raise ValueError(
            f"density_threshold is {shown(density_threshold)}; a distance above 0 and at most 2 is "
            "needed."
        )
    if n_neighbors is not None:
        check_positive("n_neighbors", n_neighbors)
    job["client"] = resolve_client(job["client"])
    counts = counts_of_job(
        X, estimator.memory_limit, job["client"], integer=estimator.integer, layer=layer, raw=raw
    )
    compared = estimator if getattr(estimator, "loadings_", None) is not None else None
    if compared is not None:
        counts, batch_of_fit = _of_fit(compared, X, counts)
        batch = batch_of_fit if batch is None else batch
    estimator = with_options(
        estimator, n_init=1, verbose=0, callback=None, random_state=None, **_init_of(estimator)
    )
    labels = None if batch is None else checked_batch(estimator, counts, batch)
    task = StartsTask(estimator, counts, labels)
    replicates = run_replicates(task, n_starts, **job)
    topics, objective = replicates["topics"], replicates["objective"]
    best = int(objective.argmax())
    matches, similarities = _matched(topics, topics[best])
    fit_objective, fit_similarities, model = None, None, None
    if compared is not None:
        fit_objective = float(objective_of(compared))
        fit_similarities = _matched(topics, proportions(compared.components_))[1]
    neighbors = max(1, round(0.3 * len(topics))) if n_neighbors is None else int(n_neighbors)
    consensus = consensus_of(topics, float(density_threshold), neighbors)
    if consensus is not None and fit_takes(task.estimator, "fixed_topics"):
        model = _with_loadings(task, consensus, job["n_threads"])
    return Stability(
        objective, replicates["n_iter"], replicates["converged"], replicates["seed"], topics, best,
        matches, similarities, consensus, model, counts.feature_names, replicates.interrupted,
        replicates.seed.entropy, fit_objective, fit_similarities,
    )  # fmt: skip


def _of_fit(model: Any, X: Any, counts: CountMatrix) -> tuple[CountMatrix, Array | None]:
    """Return the counts of a fit, with its order of features, and its batches.

    A fit with arguments that the starts do not have is refused.
    """
    counts, arguments = counts_of_fit(model, X, counts)
    further = [name for name in arguments.fixed if name != "batch"]
    if counts.measured is not None and "measured" in further:
        # counts that say what was measured, as joined ones, say it to the starts too
        of_fit = arguments.fixed["measured"], arguments.fixed["panel"]
        if all(map(np.array_equal, counts.measured, of_fit)):
            further = [name for name in further if name not in ("measured", "panel")]
    if not (arguments.weights == 1).all():
        further.append("weights")
    if further:
        raise ValueError(
            f"estimator was fitted with {', '.join(further)}, and the starts are not: pass a model "
            "that is not fitted, sklearn.base.clone(estimator)."
        )
    return counts, arguments.fixed.get("batch")


def _check_estimator(estimator: Any) -> None:
    """Refuse estimators whose fits have no random starts, or need labels."""
    if not has_random_starts(estimator):
        raise ValueError(
            f"estimator is {shown(type(estimator).__name__)}: an unfitted model of counts with "
            "random starts (n_init) and without labels is needed, such as TopicModel or LDA."
        )


@dataclass(frozen=True)
class StartsTask(ReplicateTask):
    """Fits from random starts: that of replicate r has child r of the seed."""

    estimator: Any
    counts: CountMatrix
    batch: Array | None
    name = "starts"
    patience = 600.0

    def about(self) -> Iterable[Any]:
        """Return the inputs of the fits, from which a checkpoint is recognised."""
        parameters = self.estimator.get_params(deep=False)
        names = [name for name in parameters if name not in ("n_threads", "memory_limit")]
        yield from (self.counts.row_totals, self.counts.column_totals)
        yield from (type(self.estimator).__name__, repr({name: parameters[name] for name in names}))
        if self.batch is not None:
            yield np.unique(self.batch, return_inverse=True)[1]

    @property
    def of_fit(self) -> dict[str, Any]:
        """Further arguments of the fits."""
        return {} if self.batch is None else {"batch": self.batch}

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if counts are in one."""
        return file_of(self.counts)

    def smallest_batch(self, local: bool) -> int:
        """Return the number of fits that share each read of counts in a file."""
        on_worker = fits_per_read_on_worker(self.counts, self.estimator)
        return self._fits_per_read(1) if local else on_worker

    def _fits_per_read(self, n_threads: int) -> int:
        estimator = self.estimator
        return fits_per_read(
            self.counts, estimator, estimator.n_components, estimator.fit_dtype(), n_threads
        )

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the topics and the objective of each fit."""
        fits_done = list[dict[str, Array]]()
        self.counts.layout(n_threads)  # arranged once for all fits
        size = self._fits_per_read(n_threads)
        seeds = [state_of_fit(seed, r) for r in numbers]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", ShortSamplesWarning)
            warnings.simplefilter("ignore", LeftSeedsWarning)
            warnings.simplefilter("ignore", ModalityDepthWarning)
            for first in range(0, len(seeds), size):
                fits = [
                    partial(self._fit, seed_or_fit) for seed_or_fit in seeds[first : first + size]
                ]
                fits_done += fit_together(self.counts, fits, n_threads)
        return {
            name: np.stack([seed_or_fit[name] for seed_or_fit in fits_done])
            for name in fits_done[0]
        }

    def _fit(
        self, seed: int, n_threads: int, counts: CountMatrix, **options: Any
    ) -> dict[str, Array]:
        model = clone(self.estimator).set_params(n_threads=n_threads, random_state=seed, **options)
        model.fit(counts, **self.of_fit)
        return {
            "topics": proportions(model.components_).astype(np.float32),
            "n_iter": np.asarray(model.n_iter_), "objective": objective_of(model),
            "converged": np.asarray(model.converged_), "seed": np.asarray(seed),
        }  # fmt: skip


def _init_of(estimator: Any) -> dict[str, Any]:
    """Return the `init` of starts that differ, if the default of a model is not replaced."""
    parameters = signature(type(estimator)).parameters
    is_default = "init" in parameters and estimator.init is parameters["init"].default
    return {"init": "random"} if is_default else {}


def _matched(topics: Array, of_fit: Array) -> tuple[Array, Array]:
    """Return which topic of each start matches each topic (K, m) of a fit, and similarities."""
    n, K = topics.shape[:2]
    matches, similarities = np.zeros((n, K), np.int64), np.ones((n, K))
    for i in range(n):
        _, matches[i], similarities[i] = lift_pairs(of_fit.T, topics[i].T)
    return matches, similarities


def _with_loadings(task: StartsTask, consensus: Consensus, n_threads: int | None) -> Any:
    """Return a model with the topics of the consensus, and loadings fitted to the counts."""
    fixed = np.ones(task.estimator.n_components, bool)
    model = with_options(task.estimator, random_state=0, init="random")
    if getattr(model, "solver", None) == "joint-em":  # which holds no topics
        model.set_params(solver="auto")
    if n_threads is not None:
        model.set_params(n_threads=n_threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", ShortSamplesWarning)
        topics = {"components": consensus.topics, "fixed_topics": fixed}
        return model.fit(task.counts, **topics, **task.of_fit)
