"""Fits to the folds of one split of the counts, and their scores, by number of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.sizes import MemoryLimitError
from ...methods.topics.matching import corrected_lift_similarities
from ...methods.weights.measured import Measured
from ..job import JobOptions, part_of_job
from ..replicates.excess_variance import excess_variance
from ..replicates.replicates import run_replicates
from ..replicates.selection_fits import SelectionTask, totals_of

Array = NDArray[Any]
# Results of fits that are kept for each fold.
_SCORES = "held_out", "in_sample", "n_iter", "converged"


@dataclass(frozen=True)
class SplitScores:
    """Sums of log-probabilities over samples, and similarities of topics, for numbers of topics.

    `held_out` and `in_sample` have shape (n_numbers, n_folds, n_sums), `totals` and
    `totals_in_sample` are the sums of the counts, (n_folds, n_sums). `similarities` has an array
    (n_pairs, K) for each number, those of the matched topics of each pair of folds. `n_iter` and
    `converged` are those of the fits, (n_numbers, n_folds).
    """

    held_out: Array
    in_sample: Array
    n_iter: Array
    converged: Array
    totals: Array
    totals_in_sample: Array
    similarities: tuple[Array, ...]


def _similarities(fits: dict[str, Array], a: int, b: int, features: Array) -> Array:
    """Return the similarities of the matched topics of the fits to two folds, by some features."""
    topics, counts = fits["topics"], fits["topic_counts"]
    return corrected_lift_similarities(
        topics[a][features], topics[b][features], counts[a], counts[b]
    )


def _measured_features(counts: CountMatrix) -> Array:
    """Return a mask (m,) of the features that were measured in some sample."""
    measured = Measured.of(counts)
    if measured is None:
        return np.ones(counts.shape[1], bool)
    features: Array = measured.features[np.unique(measured.groups)].any(axis=0)
    return features


class SplitFits:
    """Fits to the folds of one split, with several numbers of topics."""

    def __init__(self, task: SelectionTask, job: JobOptions):
        self.task, self.job = task, job
        self.interrupted = False
        # of each number of topics that is done, the results of the best fit to each fold
        self.done: dict[int, dict[str, Array]] = {}

    def run(self, numbers: Sequence[int], name: str, advance: Callable[[int], Any]) -> None:
        """Fit with these numbers of topics, until all is done or Ctrl-C is pressed."""
        if not numbers or self.interrupted:
            return
        task = replace(self.task, numbers=tuple(numbers))
        try:
            fits = run_replicates(
                task, len(numbers) * task.n_fits, advance=advance,
                batch_size=task.smallest_batch(local=self.job["client"] is None),
                **part_of_job(self.job, name),
            )  # fmt: skip
        except KeyboardInterrupt:
            self.interrupted = True
            return
        self.interrupted = fits.interrupted
        done = fits.done.reshape(len(numbers), task.n_fits)
        for i, number in enumerate(numbers):
            if done[i].all():
                rows = slice(i * task.n_fits, (i + 1) * task.n_fits)
                best = self._best({name: values[rows] for name, values in fits.rows.items()})
                padded = ("topics", "topic_counts")
                self.done[number] = best | {name: best[name][..., :number] for name in padded}

    def _best(self, fits: dict[str, Array]) -> dict[str, Array]:
        """Return the results of the fit with the highest objective to each fold."""
        n = self.task.folds.n_folds
        start = fits["objective"].reshape(-1, n).argmax(axis=0)
        return {name: values[start * n + np.arange(n)] for name, values in fits.items()}

    def excess_variance(self) -> tuple[float, float] | None:
        """Return the dispersion around the fits with the most topics, and its standard error."""
        folds = self.task.folds
        if folds.unit is not None or folds.n_folds != 2 or self.interrupted:
            return None
        try:
            return excess_variance(
                folds.halves(), self.done[max(self.done)]["topics"], folds.sum_of_sample,
                self.job["n_threads"],
            )  # fmt: skip
        except KeyboardInterrupt:
            self.interrupted = True  # no further fits
        except MemoryLimitError:
            pass
        return None

    def scores(self, numbers: Sequence[int]) -> SplitScores:
        """Return the scores with some numbers of topics, which are done."""
        folds = self.task.folds
        done = [self.done[k] for k in numbers]
        totals = [totals_of(folds.fold(f), folds.n_sums) for f in range(folds.n_folds)]
        features = [_measured_features(folds.fold(f).train) for f in range(folds.n_folds)]
        pairs = [(a, b, features[a] & features[b]) for a, b in combinations(range(len(totals)), 2)]
        logs = {name: np.stack([fits[name] for fits in done]) for name in _SCORES}
        return SplitScores(
            totals=np.stack([held_out for held_out, _ in totals]),
            totals_in_sample=np.stack([in_sample for _, in_sample in totals]),
            similarities=tuple(
                np.stack([_similarities(fits, a, b, both) for a, b, both in pairs]) for fits in done
            ),
            **logs,
        )

    def end(self) -> None:
        """Remove the parts of the counts that were written to files."""
        self.task.folds.remove_stores()
