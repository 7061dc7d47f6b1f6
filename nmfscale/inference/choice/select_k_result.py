"""The result of a comparison of numbers of topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.tables import Columns
from ..replicates.excess_variance import varies_more
from ..results.files import Result
from .split_fits import SplitScores

Array = NDArray[Any]
# Topics of two fits are the same topic if their similarity, without noise, is at least this.
FOUND = 0.9
# Share of the splits in which all topics of a number must be found again, as a fraction.
_SHARE = 2, 3
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
        Mean log-probability of a held-out count, over all folds of all splits.
    score_error : ndarray of shape (n_numbers,)
        Standard error of the difference from the best score, from the differences of samples or
        units.
    in_sample : ndarray of shape (n_numbers,)
        Mean log-probability of a count that was fitted, which always rises with the number.
    similarities : tuple of ndarray of shape (n_splits, n_pairs, K)
        For each number of topics, each split and each pair of its folds, the similarities of the
        matched topics by lift, corrected for the noise of their counts: see
        :func:`nmfscale.select_k`.
    chosen : ndarray of shape (n_splits,), int
        The number of topics that each split alone would recommend, 0 if none.
    excess_variance : tuple of float or None
        Dispersion of the counts around the fits with the most topics, and its standard error: close
        to 0 for Poisson counts. Known if counts were split in two halves at first.
    best : int or None
        Recommended number of topics; None if with no number all topics are found again.
    reason : str
        Reason of the recommendation.
    fold_scores, fold_scores_in_sample : ndarray of shape (n_numbers, n_splits, n_folds)
        Scores of each fold.
    n_iter, converged : ndarray of shape (n_numbers, n_splits, n_folds)
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
    ``least_stability``, ``least_stability_low`` and ``least_stability_high`` (of the splits),
    ``n_stable``, ``n_all_found``, ``n_chosen``, ``n_iter`` (mean of the folds), ``converged`` (in
    all folds) and ``best``.
    """

    n_components: Array
    score: Array
    score_error: Array
    in_sample: Array
    similarities: tuple[Array, ...]
    chosen: Array
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
        cls, n_components: Array, splits: Sequence[SplitScores],
        excess: tuple[float, float] | None, *, has_prior: bool, held_out: str, **about: Any,
    ) -> SelectK:  # fmt: skip
        """Return the result of the splits, and the number that each of them would recommend."""
        rule = partial(
            recommendation, n_components, excess=excess, has_prior=has_prior, held_out=held_out
        )
        numbers = [rule(*_scores_of([split]), _least_of([split]))[0] for split in splits]
        score, error = _scores_of(splits)
        best, reason = rule(score, error, _least_of(splits))
        inside = np.stack([split.in_sample.sum(axis=2) for split in splits], axis=1)
        of_inside = np.stack([split.totals_in_sample.sum(axis=1) for split in splits])
        logs = np.stack([split.held_out.sum(axis=2) for split in splits], axis=1)
        of_logs = np.stack([split.totals.sum(axis=1) for split in splits])
        return cls(
            n_components, score, error, inside.sum(axis=(1, 2)) / of_inside.sum(),
            tuple(map(np.stack, zip(*(split.similarities for split in splits), strict=True))),
            np.array([number or 0 for number in numbers]), excess, best, reason,
            fold_scores=logs / np.maximum(of_logs, 1), fold_scores_in_sample=inside / of_inside,
            n_iter=np.stack([split.n_iter for split in splits], axis=1),
            converged=np.stack([split.converged for split in splits], axis=1),
            held_out=held_out, **about,
        )  # fmt: skip

    @property
    def threshold(self) -> float:
        """Similarity from which a topic is found again."""
        return FOUND

    @property
    def n_splits(self) -> int:
        """Number of splits."""
        return len(self.chosen)

    @property
    def stability(self) -> Array:
        """Mean similarity of matched topics, for each number of topics."""
        return np.array([cosines.mean() for cosines in self.similarities])

    @property
    def least_of_splits(self) -> Array:
        """Smallest similarity of matched topics in each split, (n_numbers, n_splits)."""
        return np.array([cosines.min(axis=(1, 2)) for cosines in self.similarities])

    @property
    def least_stability(self) -> Array:
        """Median over the splits of `least_of_splits`, for each number of topics."""
        return np.median(self.least_of_splits, axis=1)

    @property
    def n_stable(self) -> Array:
        """Number of topics that are found again in a split, a mean over the splits.

        They have a mean similarity of at least 0.9.
        """
        return np.array([
            (cosines.mean(axis=1) >= FOUND).sum(axis=1).mean() for cosines in self.similarities
        ])  # fmt: skip

    @property
    def n_all_found(self) -> Array:
        """Number of splits in which all topics are found again, for each number of topics."""
        return (self.least_of_splits >= FOUND).sum(axis=1)

    @property
    def n_chosen(self) -> Array:
        """Number of splits that alone would recommend each number of topics."""
        return (self.chosen == self.n_components[:, None]).sum(axis=1)

    def _columns(self) -> Columns:
        least = self.least_of_splits
        return {
            "n_components": self.n_components, "score": self.score,
            "score_error": self.score_error, "in_sample": self.in_sample,
            "stability": self.stability, "least_stability": self.least_stability,
            "least_stability_low": least.min(axis=1), "least_stability_high": least.max(axis=1),
            "n_stable": self.n_stable,
            "n_all_found": self.n_all_found, "n_chosen": self.n_chosen,
            "n_iter": self.n_iter.mean(axis=(1, 2)), "converged": self.converged.all(axis=(1, 2)),
            "best": self.n_components == self.best,
        }  # fmt: skip

    def __repr__(self) -> str:
        """Return the table as text, and the recommendation."""
        titles = "K", "held-out", "error", "in-sample", "stability", "smallest", "found"
        rows = [("", *titles, "all found", "chosen")]
        least = self.least_of_splits
        for i, k in enumerate(self.n_components.tolist()):
            spread = f" ({least[i].min():.2f}-{least[i].max():.2f})" if self.n_splits > 1 else ""
            rows.append((
                "*" if k == self.best else "", str(k), f"{self.score[i]:.4f}",
                f"{self.score_error[i]:.4f}", f"{self.in_sample[i]:.4f}",
                f"{self.stability[i]:.2f}", f"{self.least_stability[i]:.2f}{spread}",
                f"{self.n_stable[i]:.3g} of {k}", str(self.n_all_found[i]), str(self.n_chosen[i]),
            ))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([*lines, self.advice])

    @property
    def advice(self) -> str:
        """The recommendation, its reason, and the numbers that single splits would recommend."""
        best = "No number of topics is recommended" if self.best is None else f"K = {self.best}"
        if self.n_splits == 1:
            return f"{best}: {self.reason}"
        numbers, times = np.unique(self.chosen, return_counts=True)
        chosen = [
            f"{number or 'none'} ({n} of {self.n_splits})"
            for number, n in sorted(zip(numbers, times, strict=True), key=lambda pair: -pair[1])
        ]
        return f"{best}: {self.reason} Single splits recommend {', '.join(chosen)}."


def _scores_of(splits: Sequence[SplitScores]) -> tuple[Array, Array]:
    """Return scores of the numbers of topics, and standard errors of their difference to the best.

    Sums of samples, over the folds of all splits, are taken as independent.
    """
    logs = np.sum([split.held_out.sum(axis=1) for split in splits], axis=0)
    totals = np.sum([split.totals.sum(axis=0) for split in splits], axis=0)
    total, n = totals.sum(), len(totals)
    score = logs.sum(axis=1) / total
    best = int(score.argmax())
    rest = logs - logs[best] - np.outer(score - score[best], totals)
    return score, np.sqrt((rest**2).sum(axis=1) * n / max(n - 1, 1)) / total


def _least_of(splits: Sequence[SplitScores]) -> Array:
    """Return the smallest similarity of matched topics in each split, (n_numbers, n_splits)."""
    return np.array([[cosines.min() for cosines in split.similarities] for split in splits]).T


def recommendation(
    numbers: Array, score: Array, error: Array, least: Array, *,
    excess: tuple[float, float] | None, has_prior: bool, held_out: str,
) -> tuple[int | None, str]:  # fmt: skip
    """Return the recommended number of topics or None, and the reason in a sentence.

    `least` (n_numbers, n_splits) are the smallest similarities of matched topics. The score decides
    if it has a maximum and the topics of its number are found again, and otherwise stability.
    """
    top, last = int(score.argmax()), len(numbers) - 1
    poisson = excess is not None and not varies_more(excess)
    rises = top == last and last > 0
    first = top if rises else min(int(np.flatnonzero(score >= score[top] - error)[0]), top)
    if not _found_again(least)[first] or (rises and not poisson):
        return _by_stability(numbers, top, least, excess, held_out)
    also = f"; its least stable topic has {_similarity(least[first])}{_of_excess(excess)}."
    if last == 0:
        return int(numbers[0]), f"it is the only number of topics that was compared{also}"
    if rises:
        return int(numbers[top]), (
            f"its held-out score is the highest, and counts vary like Poisson counts{also[:-1]}: "
            "compare larger numbers, too."
        )
    if top == 0:
        prior = "" if has_prior else ", perhaps because there is no prior (prior_factors=1.1)"
        return int(numbers[0]), f"the held-out score falls from the smallest number on{prior}{also}"
    if first == top:
        return int(numbers[top]), f"its held-out score is the highest{also}"
    return int(numbers[first]), (
        "it is the smallest number of topics with a held-out score within one standard error of "
        f"the highest, that of {numbers[top]}{also}"
    )


def _found_again(least: Array) -> Array:
    """Return whether all topics are found again in two thirds of the splits, (n_numbers,)."""
    share, of = _SHARE
    found_again: Array = of * (least >= FOUND).sum(axis=1) >= share * least.shape[1]
    return found_again


def _similarity(least: Array) -> str:
    """Return the median over the splits, and in how many of them all topics are found again."""
    times = f", and is found again in {(least >= FOUND).sum()} of {least.size} splits"
    return f"similarity {np.median(least):.2f}{times if least.size > 1 else ''}"


def _by_stability(
    numbers: Array, top: int, least: Array, excess: tuple[float, float] | None, held_out: str
) -> tuple[int | None, str]:
    """Return the recommendation where the score does not say how many topics there are."""
    varies, again = _of_excess(excess), _FITTED[held_out]
    if top == len(numbers) - 1 and top:
        more = ": there are more topics, or counts vary more than Poisson counts"
        why = f"the held-out score has no maximum up to {numbers[-1]}{varies or more}"
    else:
        why = f"the held-out score is highest for {numbers[top]}, but not all topics are found "
        why += f"again in fits to {again}{varies}"
    remedy = ""
    if held_out == "counts" and varies_more(excess):
        remedy = " Both halves of a count share its deviations: hold out samples."
    stable = np.flatnonzero(_found_again(least[: top + 1]))
    if not stable.size:
        return None, (
            f"{why}, and with no number are all topics found again in fits "
            f"to {again}. The table shows how many are.{remedy}"
        )
    at = int(stable[-1])
    text = f"{why}; {numbers[at]} is the largest number of topics of which all are found again in "
    text += f"fits to {again} (the least stable has {_similarity(least[at])})"
    if at == len(numbers) - 1:
        text += ": compare larger numbers, too"
    return int(numbers[at]), f"{text}.{remedy}"


def _of_excess(excess: tuple[float, float] | None) -> str:
    """Return a clause on counts that vary more than Poisson counts, or an empty text."""
    if excess is None or not varies_more(excess):
        return ""
    return f", and counts vary more than Poisson counts (dispersion {excess[0]:.2f})"
