"""Fits with one number of topics to the folds of counts, and their scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.base import clone

from ...counts.base import CountMatrix
from ...counts.names import shown
from ...methods.factors import proportions
from ...methods.projection.completion import log_shares
from ...methods.weights.feature_weights import with_feature_weights
from ...methods.weights.measured import Measured
from ...models.arguments.batches import values_in
from ...models.base import CountModel
from .folds import Fold, Folds
from .replicates import ReplicateTask
from .seeds import state_of_fit
from .shared_fits import fit_together, fits_per_read, fits_per_read_on_worker, objective_of

Array = NDArray[Any]


def check_estimator(estimator: Any) -> None:
    """Refuse what is not an estimator of counts whose fits can be scored."""
    if not isinstance(estimator, CountModel) or hasattr(estimator, "predict"):
        raise ValueError(
            f"estimator is {shown(type(estimator).__name__)}: an unfitted model of counts is "
            "needed, such as TopicModel, LDA or GammaPoisson."
        )
    if not is_scored(estimator):
        raise ValueError(
            f"estimator is {shown(type(estimator).__name__)}, which has no likelihood by which to "
            "score held-out counts: give TopicModel, LDA or GammaPoisson."
        )


def is_scored(estimator: Any) -> bool:
    """Whether the fits of a model have a likelihood of held-out counts, and need no labels."""
    return hasattr(estimator, "perplexity") and not hasattr(estimator, "predict")


# Options of a fit that starts at another one, and is one of many.
AGAIN: dict[str, Any] = {"n_init": 1, "n_moves": 0, "verbose": 0, "callback": None}


def with_options(estimator: Any, **options: Any) -> Any:
    """Return a copy with those of the parameters that it has."""
    parameters = estimator.get_params(deep=False)
    return clone(estimator).set_params(
        **{name: value for name, value in options.items() if name in parameters}
    )


@dataclass(frozen=True)
class SelectionTask(ReplicateTask):
    """Fits with some numbers of topics, each to all folds, `n_init` times.

    Replicate r is of number r // (n_init n_folds), and of fold r modulo n_folds. The fits of a
    number of topics have seeds of their own; those of different numbers have the same. `batch` (n,)
    are the batches of samples, None without.
    """

    estimator: Any
    folds: Folds
    numbers: tuple[int, ...]
    n_init: int = 1
    batch: Array | None = None
    name = "fits"
    patience = 600.0

    @property
    def n_fits(self) -> int:
        """Number of fits with each number of topics."""
        return self.n_init * self.folds.n_folds

    def about(self) -> Iterable[Any]:
        """Return the inputs of the fits, from which a checkpoint is recognised."""
        folds, parameters = self.folds, self.estimator.get_params(deep=False)
        names = [
            name for name in parameters if name not in ("n_threads", "memory_limit", "verbose")
        ]
        yield from (folds.counts.row_totals, folds.counts.column_totals, folds.n_folds)
        yield np.zeros(0) if folds.unit is None else folds.unit
        yield from (type(self.estimator).__name__, repr({name: parameters[name] for name in names}))
        yield from (str(folds.seed.entropy), str(folds.seed.spawn_key))
        yield from (self.n_init, *self.numbers)
        if self.batch is not None:
            yield np.unique(self.batch, return_inverse=True)[1]

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if there is one."""
        return self.folds.file()

    def smallest_batch(self, local: bool) -> int:
        """Return the number of fits, of all folds, that share the reads of parts in stores."""
        folds = self.folds
        if not folds.stores:
            return 1
        train = folds.stores[0]
        on_worker = fits_per_read_on_worker(train, self.estimator)
        of_fold = self._fits_per_read(train, 1) if local else on_worker
        return of_fold * folds.n_folds if of_fold > 1 else 1

    def _fits_per_read(self, train: CountMatrix, n_threads: int) -> int:
        dtype, most = self.estimator.fit_dtype(), max(self.numbers)
        return fits_per_read(train, self.estimator, most, dtype, n_threads)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return scores and topics of each fit; those of a fold share each read of its counts."""
        folds = self.folds.in_this_process()
        scores: dict[int, dict[str, Array]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for at in range(folds.n_folds):
                mine = [r for r in numbers if r % folds.n_folds == at]
                if not mine:
                    continue
                fold = folds.fold(at)
                size = self._fits_per_read(fold.train, n_threads)
                for first in range(0, len(mine), size):
                    some = mine[first : first + size]
                    fits = [partial(self._fit, folds, r, seed) for r in some]
                    results = fit_together(fold.train, fits, n_threads)
                    scores |= zip(some, results, strict=True)
        return {name: np.stack([scores[r][name] for r in numbers]) for name in scores[numbers[0]]}

    def _fit(
        self, folds: Folds, number: int, seed: SeedSequence, n_threads: int, counts: CountMatrix,
        **options: Any,
    ) -> dict[str, Array]:  # fmt: skip
        """Fit to the counts of a fold; topics are padded with zeros to the largest number."""
        at, place = divmod(number, self.n_fits)
        fold = folds.fold(place % folds.n_folds)._replace(train=counts)
        model = with_options(
            self.estimator, n_components=self.numbers[at], n_init=1, verbose=0, callback=None,
            random_state=state_of_fit(seed, place), n_threads=n_threads, **options,
        )  # fmt: skip
        batches = None
        if self.batch is None:
            model.fit(counts)
        else:
            batches = [self.batch[rows] for rows in folds.rows(place % folds.n_folds)]
            model.fit(counts, batch=batches[0])
        scores = scores_of(model, fold, folds.n_sums, n_threads, batches)
        missing = (0, max(self.numbers) - self.numbers[at])
        scores["topics"] = np.pad(scores["topics"], ((0, 0), missing))
        scores["topic_counts"] = np.pad(scores["topic_counts"], missing)
        return scores


def loadings_of(model: Any, counts: CountMatrix) -> Array:
    """Return the loadings of the counts of a fit, for scores."""
    if hasattr(model, "poisson_factors"):  # the best ones for these topics
        return np.asarray(model.loadings_, np.float64)
    return np.asarray(model.completion_loadings(model._explained(counts)))


def scores_of(
    model: Any, fold: Fold, n_sums: int, n_threads: int, batches: list[Array] | None = None
) -> dict[str, Array]:
    """Return sums of log-probabilities of a fitted model, its topics, and their counts.

    `batches` are those of the samples of the fit and of held-out samples, if there are any.
    """
    train, seen, held, sums, sums_of_train = fold
    F = np.asarray(model.completion_factors, np.float64)
    L = loadings_of(model, train)
    values = values_in(model, train, np.arange(train.shape[0]))
    values, train = with_feature_weights(values, train)
    inside = log_shares(train, L, F, n_threads, values)
    shares = proportions(L * (F.sum(axis=0) if values is None else values.sums(F)))
    topic_counts = (shares * train.row_totals[:, None]).sum(axis=0)
    of_held: Any = values
    if batches is None:
        of_held = with_feature_weights(Measured.of(held), held)[0]
    if seen is not None:
        options = {} if batches is None else {"batch": batches[1]}
        of_seen, seen = model._knowing(model._explained(seen), options)
        L = np.asarray(of_seen.completion_loadings(seen), np.float64)
        of_held = of_held if batches is None else of_seen._measured
    unknown = train.column_nnz == 0
    held = with_feature_weights(None, held)[1]
    outside = log_shares(held, L, F, n_threads, of_held, left_out=unknown)
    if seen is not None:
        outside = np.where(seen.row_totals > 0, outside, 0)
    F = np.asarray(model.components_.T, np.float64)
    size = F.sum(axis=0)
    topics = np.divide(F, size, out=np.zeros_like(F), where=size > 0)
    return {
        "held_out": np.bincount(sums, outside, n_sums),
        "in_sample": np.bincount(sums_of_train, inside, n_sums),
        "topics": topics, "topic_counts": topic_counts, "objective": objective_of(model),
        "n_iter": np.asarray(getattr(model, "n_iter_", 0)),
        "converged": np.asarray(getattr(model, "converged_", True)),
    }  # fmt: skip


def totals_of(fold: Fold, n_sums: int) -> tuple[Array, Array]:
    """Return the sums of held-out and of fitted counts; features that no fit knows are left out."""
    train, _, held, sums, sums_of_train = fold
    train, held = (with_feature_weights(None, counts)[1] for counts in (train, held))
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
