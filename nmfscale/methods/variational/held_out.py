"""Collapsed variational LDA that ends when it predicts held-out samples best.

CVB0 has no objective that rises in every iteration. Held-out samples are no part of the fit: every
few iterations, their proportions are inferred from one half of their counts, and the other half is
scored (document completion).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...counts.base import CountMatrix
from ..factors import Array
from ..projection.completion import log_shares
from .collapsed import CollapsedLDA, collapsed_inference
from .mean_field import FRESH_STEPS, FRESH_TOLERANCE

# Iterations between two scores.
EVERY = 5


@dataclass(frozen=True)
class HeldOut:
    """Halves of the counts of held-out samples.

    Attributes
    ----------
    seen, scored : CountMatrix of shape (n_held_out, m)
    """

    seen: CountMatrix
    scored: CountMatrix

    def score(self, topics: Array, alpha: Array, n_threads: int) -> float:
        """Return the mean log-probability of a scored count.

        The columns of `topics` (m, K) sum to one.
        """
        gamma = collapsed_inference(
            self.seen, topics, alpha, n_steps=FRESH_STEPS, tolerance=FRESH_TOLERANCE,
            n_threads=n_threads,
        ).loadings.gather()  # fmt: skip
        logs = log_shares(self.scored, gamma, topics, n_threads)
        return math.fsum(logs) / self.scored.total


class ValidatedCollapsedLDA(CollapsedLDA):
    """CVB0 that returns the point with the best held-out score.

    The fit ends once `patience` iterations have found no better one.

    Parameters
    ----------
    *args, **options
        As of `CollapsedLDA`.
    held_out : HeldOut
    patience : int
    """

    record = ("held_out", *CollapsedLDA.record)
    numbers = (*CollapsedLDA.numbers, "score", "best", "best_iteration")

    def __init__(self, *args: Any, held_out: HeldOut, patience: int, **options: Any):
        super().__init__(*args, **options)
        self._held_out, self.patience = held_out, patience
        self.score = self.best = -math.inf
        self.best_iteration = 0

    def start(self) -> None:
        """Move to the start."""
        super().start()
        self.copy("gamma", "best")

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Compute the next point and the record of the current point, with its held-out score."""
        numbers = super().observe(iteration)
        if iteration % EVERY == 0:
            self.score = self._score()
            if self.score > self.best:
                self.best, self.best_iteration = self.score, iteration
                self.copy("gamma", "best")
        if numbers is None:
            return None
        if iteration - self.best_iteration >= self.patience:
            # ends the fit, whose last record is that of the best point
            numbers = numbers | dict.fromkeys(self.residuals, 0.0)
        return {"held_out": self.score, **numbers}

    def _score(self) -> float:
        shared = self.points["gamma"]
        topics = self.plain_columns(shared["topics"]) + shared["eta"]
        topics /= topics.sum(axis=0)
        return self._held_out.score(topics, shared["alpha"], self.executor.n_threads)

    def finish(self, settled: bool) -> dict[str, Any]:
        """Move to the point with the best held-out score; return its record."""
        score = self._score()
        if score <= self.best:
            score = self.best
            self.copy("best", "gamma")
        self.executor.drop("best")
        return {"held_out": score, **super().finish(settled)}

    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""
        return *super().saved_points(), "best"
