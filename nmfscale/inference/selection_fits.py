"""Fits with one number of topics to the folds of counts, and their scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.base import clone

from ..counts.base import CountMatrix
from ..counts.names import shown
from ..methods.completion import log_shares
from ..methods.poisson.split_topic import loadings_after_split, split_topic
from ..methods.transform import project_rows
from ..models.base import CountModel
from ..models.poisson_nmf import PoissonNMF
from .folds import Fold, Folds
from .replicates import ReplicateTask
from .seeds import state_of_fit
from .shared_fits import objective_of

Array = NDArray[Any]
# Iterations with each number of topics that is skipped, and the most topics that are added.
SHORT, MOST_ADDED = 12, 4


def check_estimator(estimator: Any) -> None:
    """Refuse what is not an estimator of counts whose fits can be scored."""
    if not isinstance(estimator, CountModel) or hasattr(estimator, "predict"):
        raise ValueError(
            f"estimator is {shown(type(estimator).__name__)}: an unfitted model of counts is "
            "needed, such as TopicModel, LDA or GammaPoisson."
        )


def goes_on(estimator: Any) -> bool:
    """Whether a fit with more topics can start from the topics of a fit."""
    return isinstance(estimator, PoissonNMF) and estimator.solver != "joint-em"


def with_options(estimator: Any, **options: Any) -> Any:
    """Return a copy with those of the parameters that it has."""
    known = estimator.get_params(deep=False)
    return clone(estimator).set_params(
        **{name: value for name, value in options.items() if name in known}
    )


@dataclass(frozen=True)
class SelectionTask(ReplicateTask):
    """Fits with `n_components` topics: replicate r is of fold r modulo the number of folds.

    Fits have starts of their own, with child r + `first` of the seed. If `topics` are given, (m,
    K') of fewer topics for each fold, they start from these, some of which are split.
    """

    estimator: Any
    folds: Folds
    n_components: int
    topics: tuple[Array, ...] | None = None
    first: int = 0
    name = "fits"
    patience = 600.0

    def about(self) -> Iterable[Any]:
        """Return the inputs of the fits, from which a checkpoint is recognised."""
        folds, given = self.folds, self.estimator.get_params(deep=False)
        names = [name for name in given if name not in ("n_threads", "memory_limit", "verbose")]
        yield from (folds.counts.row_totals, folds.counts.column_totals, folds.n_folds)
        yield np.zeros(0) if folds.unit is None else folds.unit
        yield from (type(self.estimator).__name__, repr({name: given[name] for name in names}))
        yield from (str(folds.seed.entropy), str(folds.seed.spawn_key))
        yield from (self.n_components, self.first, *(self.topics or ()))

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if there is one."""
        return self.folds.file()

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return scores and topics of each fit."""
        folds = self.folds.in_this_process()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [self._fit(folds, number, seed, n_threads) for number in numbers]
        return {name: np.stack([each[name] for each in found]) for name in found[0]}

    def _fit(
        self, folds: Folds, number: int, seed: SeedSequence, n_threads: int
    ) -> dict[str, Array]:
        at = number % folds.n_folds
        fold = folds.fold(at)
        model = with_options(
            self.estimator, n_components=self.n_components, n_init=1, verbose=0, callback=None,
            random_state=state_of_fit(seed, number + self.first), n_threads=n_threads,
        )  # fmt: skip
        start: dict[str, Any] = {}
        if self.topics is not None:
            F = self._with_more(self.topics[at], fold.train, model)
            L = project_rows(fold.train, F, n_threads=n_threads)
            start = {"F": F, "L": loadings_after_split(L)}
        model.fit(fold.train, **start)
        return scores_of(model, fold, folds.n_sums, n_threads)

    def _with_more(self, topics: Array, train: CountMatrix, model: Any) -> Array:
        """Return topics (m, K), split one by one, with a few iterations in between."""
        while True:
            L = project_rows(train, topics, n_threads=model.n_threads)
            topics = split_topic(train, L, topics)
            if topics.shape[1] == self.n_components:
                return topics
            few = with_options(model, n_components=topics.shape[1], max_iter=SHORT, tol=0)
            topics = np.asarray(few.fit(train, F=topics).components_.T, np.float64)


def loadings_of(model: Any, counts: CountMatrix) -> Array:
    """Return the loadings of the counts of a fit, for scores."""
    if isinstance(model, PoissonNMF):
        return np.asarray(model.loadings_, np.float64)
    return np.asarray(model._seen_loadings(model._explained(counts)))


def scores_of(model: Any, fold: Fold, n_sums: int, n_threads: int) -> dict[str, Array]:
    """Return sums of log-probabilities of a fitted model, and its topics."""
    train, seen, held, sums, sums_of_train = fold
    F = np.asarray(model._seen_factors, np.float64)
    L = loadings_of(model, train)
    inside = log_shares(train, L, F, n_threads)
    if seen is not None:
        L = np.asarray(model._seen_loadings(model._explained(seen)), np.float64)
    outside = log_shares(held, L, F, n_threads, left_out=train.column_nnz == 0)
    if seen is not None:
        outside = np.where(seen.row_totals > 0, outside, 0)
    F = np.asarray(model.components_.T, np.float64)
    size = F.sum(axis=0)
    topics = np.divide(F, size, out=np.zeros_like(F), where=size > 0)
    return {
        "held_out": np.bincount(sums, outside, n_sums),
        "in_sample": np.bincount(sums_of_train, inside, n_sums),
        "topics": topics, "objective": objective_of(model),
        "n_iter": np.asarray(getattr(model, "n_iter_", 0)),
        "converged": np.asarray(getattr(model, "converged_", True)),
    }  # fmt: skip


def totals_of(fold: Fold, n_sums: int) -> tuple[Array, Array]:
    """Return the sums of held-out and of fitted counts; features that no fit knows are left out."""
    train, _, held, sums, sums_of_train = fold
    totals = np.array(held.row_totals, float)
    unknown = (train.column_nnz == 0) & (held.column_nnz > 0)
    if unknown.any():
        for rows in held.chunks():
            counts = rows.matrix(held.shape[1])
            totals[rows.first : rows.first + counts.shape[0]] -= counts @ unknown.astype(float)
    if fold.seen is not None:
        # samples without seen counts have no loadings of their own
        totals *= fold.seen.row_totals > 0
    return np.bincount(sums, totals, n_sums), np.bincount(sums_of_train, train.row_totals, n_sums)
