"""Replicates of `bootstrap_fit`: fits to samples, weighted or repeated as they were drawn.

A replicate starts from the factors of the fit and ends by the same rule. This is faster than a
random start and stays at one optimum: variance between random starts is not sampling variance.

What a model can do decides how its replicates are made. Fits of a Poisson NMF (`poisson_factors`)
take weights of samples. Other models get a table in which each sample occurs as often as it was
drawn; the fit starts at the topics and loadings of the first one, or takes its `anchors`.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from ...cluster.pool import memory_of_task
from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...counts.short_samples import ShortSamplesWarning
from ...counts.warn import LeftSeedsWarning, ModalityDepthWarning
from ...engine.memory import have_room
from ...kernels.resample import draw_counts
from ...methods.anchors.search import DependentAnchor
from ...methods.factors import proportions
from ...methods.topics.matching import cosines_of, match_columns
from ...models.arguments.starts import starts_at_anchors, starts_at_fits
from ...readers.streams.file_counts import FileCounts
from ...readers.streams.thinning import PartOfCounts
from ..design.fit_counts import GivenToFit
from ..design.groups import Design
from .replicates import ReplicateTask
from .seeds import child_states
from .selection_fits import AGAIN, with_options
from .shared_fits import file_of, fit_together, fits_per_read, fits_per_read_on_worker

Array = NDArray[Any]


def check_refittable(estimator: Any) -> None:
    """Refuse estimators whose fits cannot start from the topics of another one."""
    if not (starts_at_fits(estimator) or starts_at_anchors(estimator)):
        raise ValueError(
            f"estimator is a {type(estimator).__name__}: a model whose fit can start at another "
            "one is needed, such as PoissonNMF, TopicModel, LDA, AnchorNMF or FrobeniusNMF. For "
            "other models, bootstrap_weights resamples their loadings."
        )


def shares_of(model: Any, loadings: Any = None) -> tuple[Array, Array]:
    """Return proportions of topics (n, K) and frequencies of features (m, K) of a fitted model.

    The proportions are those of `loadings`, by default of the fitted samples.
    """
    if hasattr(model, "poisson_factors"):
        shares: tuple[Array, Array] = model._multinomial()
        return shares
    loadings = model.loadings_ if loadings is None else loadings
    if model.loadings_are_proportions:
        return loadings, model.components_.T
    sums = model.components_.sum(axis=1, dtype=np.float64)
    return proportions(loadings * sums), (model.components_ / sums[:, None]).T


@dataclass(frozen=True)
class Drawing:
    """How units are drawn, and which estimates of each fit are kept.

    `unit` (n,) is the number of each sample's unit; units are numbered stratum by stratum, and
    `strata` is the first number of each. `groups` (n,) are numbers of groups, or None. `in_means`
    (n,) are weights of samples in means. `features` and `samples` are those to report.
    """

    unit: Array
    strata: Array
    groups: Array | None
    in_means: Array
    features: Array
    samples: Array

    @classmethod
    def of(cls, design: Design, groups: Array | None, in_means: Array, **chosen: Array) -> Self:
        """Return the drawing for units and strata of samples."""
        order = np.argsort(design.strata.codes, kind="stable")
        place = np.empty(design.n_units, np.int64)
        place[order] = np.arange(design.n_units)
        starts = np.concatenate([[0], np.cumsum(design.strata.sizes)])
        return cls(place[design.of_sample], starts, groups, in_means, **chosen)

    def times(self, states: Array) -> Array:
        """Return how often each sample is drawn in replicates with these seeds, (n_states, n)."""
        drawn = np.empty((len(states), self.strata[-1]))
        draw_counts(states, self.strata, drawn, n_threads=1)
        return drawn[:, self.unit]

    def numbers_of(self, shares: Array, frequencies: Array, times: Array) -> dict[str, Array]:
        """Return the estimates of one fit, given how often each sample was drawn.

        `shares` (n, K) are proportions of samples; samples without topics have none.
        """
        numbers = {"components": frequencies.T[:, self.features]}
        if self.groups is not None:
            R, weights = int(self.groups.max()) + 1, self.in_means * times * shares.any(axis=1)
            sums = np.stack([
                np.bincount(self.groups, weights * share, minlength=R) for share in shares.T
            ])  # fmt: skip
            size = np.bincount(self.groups, weights, minlength=R)
            # a group without drawn units has no mean
            numbers["group_means"] = np.where(
                size > 0, sums / np.where(size > 0, size, 1.0), np.nan
            )
        if self.samples.size:
            numbers["proportions"] = shares[self.samples]
        return numbers


def refit_task(
    fitted: Any, counts: CountMatrix, fit_samples: GivenToFit, drawing: Drawing
) -> RefitTask:
    """Return the replicates of a fitted model; its loadings are matched with the counts."""
    how = AGAIN | {"validation_fraction": None}  # a replicate ends by `tol`
    if hasattr(fitted, "poisson_factors"):
        start = fitted._arguments_of_start(fit_samples.rows)
        L, F = start["loadings"], start["components"].T
        estimator = with_options(fitted, random_state=0, **how)
        return WeightedRefits(
            estimator, counts, drawing, F, L, fit_samples.weights, fit_samples.fixed
        )
    F = np.ascontiguousarray(shares_of(fitted)[1], np.float64)
    if not starts_at_anchors(fitted):
        estimated = fitted.parameters_of_refits()
        estimator = with_options(fitted, random_state=0, **estimated, **how)
        start, of_samples = fitted._arguments_of_start(fit_samples.rows), fitted._start_of_samples()
        return StartedRefits(estimator, counts, drawing, F, start, of_samples, estimated)
    # all anchors are given, so that nothing else plays a part in their choice
    estimator = with_options(
        fitted, random_state=0, anchors=None, weighting="counts", projection=None, **how
    )
    return AnchorRefits(estimator, counts, drawing, F, fitted.anchors_)


@dataclass(frozen=True)
class RefitTask(ReplicateTask):
    """Fits to resampled samples; their topics are matched to those of the fit, `F` (m, K)."""

    estimator: Any
    counts: CountMatrix
    drawing: Drawing
    F: Array
    name = "bootstrap fits"
    patience = 600.0

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        counts, how = self.counts, self.drawing
        yield from (counts.row_totals, counts.column_totals, self.F, how.unit, how.strata)
        yield from (np.zeros(0) if how.groups is None else how.groups, how.in_means)
        yield from (how.features, how.samples, type(self.estimator).__name__)
        parameters: dict[str, Any] = self.estimator.get_params(deep=False)
        names = [name for name in parameters if name not in ("n_threads", "memory_limit")]
        yield repr({name: parameters[name] for name in names})

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if counts are in one."""
        return file_of(self.counts)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the estimates of each fit, and how its topics were matched."""
        times = self.drawing.times(child_states(seed, numbers))
        with warnings.catch_warnings():
            self._ignore_warnings()
            fits = self._fits(times, n_threads)
        return {name: np.stack([fit[name] for fit in fits]) for name in fits[0]}

    def _ignore_warnings(self) -> None:
        """Ignore warnings that repeat those of the fit."""
        warnings.simplefilter("ignore")

    @abstractmethod
    def _fits(self, times: Array, n_threads: int) -> list[dict[str, Array]]:
        """Return the results of some fits, given how often each sample was drawn."""

    def _result(
        self, model: Any, numbers: dict[str, Array], match: Array, cosine: Array
    ) -> dict[str, Array]:
        return {name: values.astype(np.float32) for name, values in numbers.items()} | {
            "match": match, "cosine": cosine, "n_iter": np.asarray(getattr(model, "n_iter_", 0)),
            "converged": np.asarray(getattr(model, "converged_", True)),
        }  # fmt: skip


@dataclass(frozen=True)
class WeightedRefits(RefitTask):
    """Fits of a Poisson NMF, which start from loadings L (n, K) and weight samples.

    `weights` (n,) are the weights of the samples in the fit; `fixed` holds the arguments of `fit`
    that fix topics, features or samples.
    """

    L: Array
    weights: Array
    fixed: dict[str, Array]

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        yield from super().about()
        yield from (self.L, self.weights, *self.fixed.keys(), *self.fixed.values())

    def smallest_batch(self, local: bool) -> int:
        """Return how many fits one pass over the file serves: here if `local`, or in a worker."""
        return (
            self._fits_per_read(1)
            if local
            else fits_per_read_on_worker(self.counts, self.estimator)
        )

    def _fits_per_read(self, n_threads: int) -> int:
        """Return that number on the machine that does the fits, as its memory allows."""
        return fits_per_read(
            self.counts, self.estimator, self.F.shape[1], self.F.dtype, n_threads, weighted=True
        )

    def _ignore_warnings(self) -> None:
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", ShortSamplesWarning)
        warnings.simplefilter("ignore", LeftSeedsWarning)
        warnings.simplefilter("ignore", ModalityDepthWarning)

    def _fits(self, times: Array, n_threads: int) -> list[dict[str, Array]]:
        """Fit some replicates; several of them share each read of the counts."""
        fitted = list[dict[str, Array]]()
        self.counts.layout(n_threads)  # arranged once for all fits
        size = self._fits_per_read(n_threads)
        for first in range(0, len(times), size):
            fits = [partial(self._fit, weights) for weights in times[first : first + size]]
            fitted += fit_together(self.counts, fits, n_threads)
        return fitted

    def _fit(
        self, times: Array, n_threads: int, counts: CountMatrix, **options: Any
    ) -> dict[str, Array]:
        model = with_options(self.estimator, n_threads=n_threads, **options)
        start = {"loadings": self.L, "components": self.F.T}
        model.fit(counts, **start, row_weights=self.weights * times, **self.fixed)
        shares, frequencies = shares_of(model)
        match, cosine = match_columns(self.F, model._held()[0])
        numbers = self.drawing.numbers_of(shares[:, match], frequencies[:, match], times)
        return self._result(model, numbers, match, cosine)


@dataclass(frozen=True)
class DrawnRefits(RefitTask):
    """Fits to tables of the samples that were drawn, one after the other."""

    @abstractmethod
    def _refit(self, estimator: Any, counts: CountMatrix, rows: Array) -> tuple[Any, Array]:
        """Return a fit to the drawn samples `rows`, and a mask (K,) of the topics that it has."""

    @abstractmethod
    def _match(self, F: Array, topics: Array) -> tuple[Array, Array]:
        """Return the topics that match those of the fit, and their cosines."""

    def _fits(self, times: Array, n_threads: int) -> list[dict[str, Array]]:
        return [self._fit(weights, n_threads) for weights in times]

    def _fit(self, times: Array, n_threads: int) -> dict[str, Array]:
        estimator = with_options(self.estimator, n_threads=n_threads)
        n, K, samples = len(times), self.F.shape[1], self.drawing.samples
        rows = np.repeat(np.arange(n), times.astype(np.int64))
        model, kept = self._refit(estimator, self._table(rows), rows)
        shares, frequencies = np.zeros((n, K)), np.full(self.F.shape, np.nan)
        match, cosine, reported = (
            np.arange(K),
            np.full(K, np.nan),
            np.full((samples.size, K), np.nan),
        )
        if kept.any():
            of_drawn, topics = shares_of(model)
            order, cosine[kept] = self._match(self.F[:, kept], topics)
            match[kept] = match[kept][order]
            shares[np.ix_(rows, kept)] = of_drawn[:, order]
            frequencies[:, kept] = topics[:, order]
            if samples.size:  # some were not drawn
                loadings = model.transform(self._reported)
                reported[:, kept] = shares_of(model, loadings)[0][:, order]
        numbers = self.drawing.numbers_of(shares, frequencies, times)
        if "group_means" in numbers:
            numbers["group_means"][~kept] = np.nan
        if samples.size:
            numbers["proportions"] = reported
        return self._result(model, numbers, match, cosine)

    @cached_property
    def _reported(self) -> CountMatrix:
        return self._table(self.drawing.samples)

    def _table(self, rows: Array) -> CountMatrix:
        """Return the counts of these samples, in memory if it has room for them."""
        part = PartOfCounts(self.counts, rows)
        part.about["sample_names"] = None  # a sample may occur twice
        limit = self.estimator.memory_limit or memory_of_task()
        if have_room(int(self.counts.row_nnz[rows].sum()), limit):
            return part.in_memory()
        return FileCounts(part)


@dataclass(frozen=True)
class StartedRefits(DrawnRefits):
    """Fits that start at the first one: `start` are arguments of `fit`, those of samples (n, ...).

    `estimated` are parameters that the first fit has estimated.
    """

    start: dict[str, Array]
    of_samples: tuple[str, ...]
    estimated: dict[str, Any]

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        yield from super().about()
        for values in (self.start, self.estimated):
            yield from (*values, *values.values())

    def _refit(self, estimator: Any, counts: CountMatrix, rows: Array) -> tuple[Any, Array]:
        start = {
            name: value[rows] if name in self.of_samples else value
            for name, value in self.start.items()
        }
        return estimator.fit(counts, **start), np.ones(self.F.shape[1], bool)

    def _match(self, F: Array, topics: Array) -> tuple[Array, Array]:
        return match_columns(F, topics)


@dataclass(frozen=True)
class AnchorRefits(DrawnRefits):
    """Fits of AnchorNMF with the anchors of the fit, (K,)."""

    anchors: Array

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        yield from super().about()
        yield self.anchors

    def _refit(self, estimator: Any, counts: CountMatrix, rows: Array) -> tuple[Any, Array]:
        """Leave out anchors without counts, and combinations of earlier ones."""
        kept = counts.column_nnz[self.anchors] > 0
        while kept.any():
            anchors = self.anchors[kept].tolist()
            model = estimator.set_params(anchors=anchors, n_components=len(anchors))
            try:
                return model.fit(counts), kept
            except DependentAnchor as error:
                kept &= self.anchors != error.feature
        return None, kept

    def _match(self, F: Array, topics: Array) -> tuple[Array, Array]:
        return np.arange(F.shape[1]), np.diag(cosines_of(F, topics))
