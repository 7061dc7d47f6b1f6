"""The result of a comparison of numbers of topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.tables import Columns
from ..replicates.excess_variance import varies_more
from ..results.files import Result

Array = NDArray[Any]
# Topics of two fits are the same topic if their similarity is at least this; with numbers whose
# topics all exceed the second one, others are not recommended.
FOUND, _SURE = 0.8, 0.9
# What the fits were fitted to whose topics are matched, for each kind of held-out counts.
_FITTED = {
    "counts": "the other half of the counts", "samples": "other samples", "units": "other units"
}  # fmt: skip


@dataclass(frozen=True)
class SelectK(Result):
    """Scores of held-out counts and stability of topics for each number of topics.

    Attributes
    ----------
    n_components : ndarray of shape (n_numbers,), int
        Numbers of topics.
    score : ndarray of shape (n_numbers,)
        Mean log-probability of a held-out count, over all folds.
    score_error : ndarray of shape (n_numbers,)
        Standard error of the difference from the best score, from the differences of samples or
        units.
    in_sample : ndarray of shape (n_numbers,)
        Mean log-probability of a count that was fitted, which always rises with the number.
    similarities : tuple of ndarray of shape (n_pairs, K)
        For each number of topics and each pair of folds, the similarities of the matched topics.
    excess_variance : tuple of float or None
        Dispersion of the counts around the fits with the most topics, and its standard error: close
        to 0 for Poisson counts. Known if counts were split in two halves at first.
    best : int or None
        Recommended number of topics; None if the score has no maximum and with no number all topics
        are found again.
    reason : str
        Reason of the recommendation.
    fold_scores, fold_scores_in_sample : ndarray of shape (n_numbers, n_folds)
        Scores of each fold.
    n_iter, converged : ndarray of shape (n_numbers, n_folds)
        ``n_iter_`` and ``converged_`` of the fits.
    held_out : {"counts", "samples", "units"}
        What was held out: parts of each count, or the samples of each fold, or of whole units.
    estimator : str
        Class of the estimator.
    interrupted : bool
        Whether Ctrl-C ended the job early.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each number of topics: columns
    ``n_components``, ``score``, ``score_error``, ``in_sample``, ``stability``,
    ``least_stability``, ``n_stable``, ``n_iter`` (mean of the folds), ``converged`` (in all folds)
    and ``best``.
    """

    n_components: Array
    score: Array
    score_error: Array
    in_sample: Array
    similarities: tuple[Array, ...]
    excess_variance: tuple[float, float] | None
    best: int | None
    reason: str
    fold_scores: Array
    fold_scores_in_sample: Array
    n_iter: Array
    converged: Array
    held_out: str
    estimator: str
    interrupted: bool
    random_state: int | Sequence[int] | None

    @classmethod
    def of(
        cls, n_components: Array, logs: Array, logs_in_sample: Array, totals: Array,
        totals_in_sample: Array, similarities: tuple[Array, ...],
        excess: tuple[float, float] | None, *, has_prior: bool, held_out: str, **about: Any,
    ) -> SelectK:  # fmt: skip
        """Return the result from sums over samples: (n_numbers, n_folds, n_sums), totals without K.

        The standard error treats the sums as independent.
        """
        total = totals.sum()
        score = logs.sum(axis=(1, 2)) / total
        best = int(score.argmax())
        differences = (logs - logs[best]).sum(axis=1)
        n = differences.shape[1]
        of_totals = np.outer(score - score[best], totals.sum(axis=0))
        spread = ((differences - of_totals) ** 2).sum(axis=1)
        error = np.sqrt(spread * n / max(n - 1, 1)) / total
        least = np.array([cosines.min() for cosines in similarities])
        chosen, reason = recommendation(
            n_components, score, error, least, excess, has_prior, held_out
        )
        return cls(
            n_components, score, error, logs_in_sample.sum(axis=(1, 2)) / totals_in_sample.sum(),
            similarities, excess, chosen, reason,
            fold_scores=logs.sum(axis=2) / np.maximum(totals.sum(axis=1), 1),
            fold_scores_in_sample=logs_in_sample.sum(axis=2) / totals_in_sample.sum(axis=1),
            held_out=held_out, **about,
        )  # fmt: skip

    @property
    def stability(self) -> Array:
        """Mean similarity of matched topics, for each number of topics."""
        return np.array([cosines.mean() for cosines in self.similarities])

    @property
    def least_stability(self) -> Array:
        """Similarity of the matched topics that agree least, for each number of topics."""
        return np.array([cosines.min() for cosines in self.similarities])

    @property
    def n_stable(self) -> Array:
        """Number of topics that are found again, with a mean similarity of at least 0.8."""
        return np.array([(cosines.mean(axis=0) >= FOUND).sum() for cosines in self.similarities])

    def _columns(self) -> Columns:
        return {
            "n_components": self.n_components, "score": self.score,
            "score_error": self.score_error, "in_sample": self.in_sample,
            "stability": self.stability, "least_stability": self.least_stability,
            "n_stable": self.n_stable, "n_iter": self.n_iter.mean(axis=1),
            "converged": self.converged.all(axis=1), "best": self.n_components == self.best,
        }  # fmt: skip

    def __repr__(self) -> str:
        """Return the table as text, and the recommendation."""
        rows = [("", "K", "held-out", "error", "in-sample", "stability", "smallest", "found")]
        for i, k in enumerate(self.n_components.tolist()):
            rows.append((
                "*" if k == self.best else "", str(k), f"{self.score[i]:.4f}",
                f"{self.score_error[i]:.4f}", f"{self.in_sample[i]:.4f}",
                f"{self.stability[i]:.2f}", f"{self.least_stability[i]:.2f}",
                f"{self.n_stable[i]} of {k}",
            ))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([*lines, self.advice])

    @property
    def advice(self) -> str:
        """The recommendation and its reason."""
        best = "No number of topics is recommended" if self.best is None else f"K = {self.best}"
        return f"{best}: {self.reason}"


def recommendation(
    numbers: Array, score: Array, error: Array, least: Array,
    excess: tuple[float, float] | None, has_prior: bool, held_out: str,
) -> tuple[int | None, str]:  # fmt: skip
    """Return the recommended number of topics or None, and the reason in a sentence.

    `least` are the smallest similarities of matched topics.
    """
    top, last = int(score.argmax()), len(numbers) - 1
    if last == 0:
        return int(numbers[0]), "it is the only number of topics that was compared."
    poisson = excess is not None and not varies_more(excess)
    first = min(int(np.flatnonzero(score >= score[top] - error)[0]), top)
    if top == last and poisson:
        return int(numbers[last]), (
            "its held-out score is the highest, and counts vary like Poisson counts: compare "
            "larger numbers, too."
        )
    if top == last or not (poisson or least[first] >= FOUND):
        return _by_stability(numbers, top, least, excess, held_out)
    also = f"; its least stable topic has similarity {least[first]:.2f}{_of_excess(excess)}."
    if top == 0:
        prior = "" if has_prior else ", perhaps because there is no prior (prior_factors=1.1)"
        return int(numbers[0]), f"the held-out score falls from the smallest number on{prior}{also}"
    if first == top:
        return int(numbers[top]), f"its held-out score is the highest{also}"
    return int(numbers[first]), (
        "it is the smallest number of topics with a held-out score within one standard error of "
        f"the highest, that of {numbers[top]}{also}"
    )


def _by_stability(
    numbers: Array, top: int, least: Array, excess: tuple[float, float] | None, held_out: str
) -> tuple[int | None, str]:
    """Return the recommendation where the score does not say how many topics there are."""
    varies, again = _of_excess(excess), _FITTED[held_out]
    if top == len(numbers) - 1:
        more = ": there are more topics, or counts vary more than Poisson counts"
        why = f"the held-out score has no maximum up to {numbers[-1]}{varies or more}"
    else:
        why = f"the held-out score is highest for {numbers[top]}, but not all topics are found "
        why += f"again in fits to {again}{varies}"
    remedy = ""
    if held_out == "counts":
        remedy = " Both halves of a count share its deviations: hold out samples."
    level = _SURE if (least >= _SURE).any() else FOUND
    stable = np.flatnonzero(least >= level)
    if not stable.size:
        return None, (
            f"{why}, and with no number are all topics found again in fits "
            f"to {again}. The table shows how many are.{remedy}"
        )
    at = int(stable[-1])
    text = f"{why}; {numbers[at]} is the largest number of topics of which all are found again in "
    text += f"fits to {again} (smallest similarity {least[at]:.2f})"
    if at == len(numbers) - 1:
        text += ": compare larger numbers, too"
    return int(numbers[at]), f"{text}.{remedy}"


def _of_excess(excess: tuple[float, float] | None) -> str:
    """Return a clause on counts that vary more than Poisson counts, or an empty text."""
    if excess is None or not varies_more(excess):
        return ""
    return f", and counts vary more than Poisson counts (dispersion {excess[0]:.2f})"
