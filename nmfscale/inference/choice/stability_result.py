"""The result of fits from many starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.base import CountModel
from ...models.tables import Columns, Tables
from ..results.files import Result
from .consensus import Consensus

Array = NDArray[Any]
# Starts whose objective is this close to the best end in the same optimum.
_SAME = 1.0


@dataclass(frozen=True)
class Stability(Result):
    """Fits from many starts, their topics, and the consensus of the topics.

    Attributes
    ----------
    objective : ndarray of shape (n_starts,)
        Objective at the end of each fit: the log-likelihood, with priors the log posterior.
    n_iter, converged : ndarray of shape (n_starts,)
        ``n_iter_`` and ``converged_`` of each fit.
    seeds : ndarray of shape (n_starts,), int
        Seeds of the fits: the estimator with ``random_state=found.seeds[found.best]`` and the same
        start ends in the best optimum.
    topics : ndarray of shape (n_starts, K, n_features), float32
        Frequencies of the features in the topics of each fit.
    best : int
        Number of the fit with the highest objective.
    matches : ndarray of shape (n_starts, K), int
        Topic of each fit that matches each topic of the best fit.
    similarities : ndarray of shape (n_starts, K)
        Similarities of these matches, by lift: see :func:`nmfscale.match_topics`.
    consensus : Consensus or None
        Consensus topics; None if too few topics have neighbours.
    model : PoissonNMF or TopicModel, or None
        Model with the consensus topics, whose loadings are fitted to the counts.
    feature_names : ndarray or None
        Names of the features.
    interrupted : bool
        Whether Ctrl-C ended the job early.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.
    fit_objective : float or None
        Objective of the fit that was passed; None if the estimator was not fitted.
    fit_similarities : ndarray of shape (n_starts, K), or None
        Similarities of the topics of that fit to their matches in each start.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - "starts" (default), a row for each fit: ``start``, ``objective``, ``gap``, ``n_iter``,
      ``converged``, ``seed``, ``similarity`` (mean of the topics) and ``least_similarity``.
    - "topics", a row for each topic of the best fit: ``topic``, ``similarity`` (mean of the other
      fits) and ``least_similarity``.
    - "fit", a row for each topic of the fit that was passed: ``topic``, ``similarity`` (mean of the
      starts) and ``least_similarity``.
    """

    objective: Array
    n_iter: Array
    converged: Array
    seeds: Array
    topics: Array
    best: int
    matches: Array
    similarities: Array
    consensus: Consensus | None
    model: CountModel | None
    feature_names: NDArray[Any] | None
    interrupted: bool
    random_state: int | Sequence[int] | None
    fit_objective: float | None = None
    fit_similarities: Array | None = None

    @property
    def gaps(self) -> Array:
        """How far the objective of each fit is below the best, (n_starts,)."""
        return np.asarray(self.objective[self.best] - self.objective)

    @property
    def n_best(self) -> int:
        """Number of fits that end within 1 of the best."""
        return int((self.gaps <= _SAME).sum())

    @property
    def fit_gap(self) -> float | None:
        """How far the fit that was passed is below the best start; negative if it is above."""
        if self.fit_objective is None:
            return None
        return float(self.objective[self.best] - self.fit_objective)

    @property
    def fit_summary(self) -> str:
        """How far the fit that was passed ends from the starts, in words; empty without a fit."""
        if self.fit_gap is None or self.fit_objective is None:
            return ""
        n_higher = int((self.objective > self.fit_objective + _SAME).sum())
        side = "above" if self.fit_gap < 0 else "below"
        return (
            f"ends {abs(self.fit_gap):,.1f} {side} the best of {len(self.objective)} other starts; "
            f"{n_higher} of them end higher by more than {_SAME:g}"
        )

    def _tables(self) -> Tables:
        further = {} if self.fit_similarities is None else {"fit": self._of_fit}
        return {"starts": self._of_starts, "topics": self._of_topics} | further

    def _of_starts(self) -> Columns:
        return {
            "start": np.arange(len(self.objective)), "objective": self.objective,
            "gap": self.gaps, "n_iter": self.n_iter, "converged": self.converged,
            "seed": self.seeds, "similarity": self.similarities.mean(axis=1),
            "least_similarity": self.similarities.min(axis=1),
        }  # fmt: skip

    def _of_topics(self) -> Columns:
        others = np.delete(self.similarities, self.best, axis=0)
        others = others if len(others) else self.similarities
        return {
            "topic": np.arange(self.topics.shape[1]), "similarity": others.mean(axis=0),
            "least_similarity": others.min(axis=0),
        }  # fmt: skip

    def _of_fit(self) -> Columns:
        assert self.fit_similarities is not None
        return {
            "topic": np.arange(self.topics.shape[1]),
            "similarity": self.fit_similarities.mean(axis=0),
            "least_similarity": self.fit_similarities.min(axis=0),
        }

    def __repr__(self) -> str:
        """Sizes, spread of the optima, and similarity of the topics."""
        n, K = self.topics.shape[:2]
        text = (
            f"<Stability: {n} starts, {K} topics, {self.n_best} starts within {_SAME:g} of the "
            f"best, largest gap {self.gaps.max():,.1f}, smallest similarity "
            f"{self.similarities.min():.2f}"
        )
        if self.fit_summary:
            text += f", the fit {self.fit_summary}"
        if self.consensus is None:
            return f"{text}, no consensus>"
        return (
            f"{text}, {self.consensus.n_left_out} of {n * K} topics left out of the consensus, "
            f"silhouette {self.consensus.silhouette:.2f}>"
        )
