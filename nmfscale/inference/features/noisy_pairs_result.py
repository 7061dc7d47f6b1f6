"""The result of noisy_pairs: pairs of a feature and a topic, ranked, with error rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.tables import Columns, tidy_columns
from ..design.loadings import number_of_topic
from ..results.files import Result

Array = NDArray[Any]
_LEVEL = 0.05


@dataclass(frozen=True, repr=False)
class NoisyPairs(Result):
    """Pairs of K topics and m features, and the probability that a pair has no noise.

    Attributes
    ----------
    error_rates : ndarray of shape (K, m)
        Estimated share of pairs without noise among this pair and all pairs before it in the
        ranking: the mean of their `local_error_rates`. It rises along the ranking.
    local_error_rates : ndarray of shape (K, m)
        Posterior probability that the pair has no noise; 1 in topics that are not `reproduced`.
    factors : ndarray of shape (K, m)
        Posterior mean of u, by which the frequency of the feature in the topic differs from its
        mean frequency.
    counts, expected : ndarray of shape (K, m)
        ``topic_counts_`` and ``expected_counts_`` of the fit.
    agreement : ndarray of shape (n_chains, K)
        Correlation between the proportions of a topic in the fit and in each chain.
    noise_shares : ndarray of shape (n_chains,)
        Mean share of noisy pairs in each chain.
    reproduced : ndarray of bool of shape (K,)
        Whether the correlation is at least 0.9 in every chain.
    excess_variance : tuple of float
        Dispersion of the counts around the fits from which the chains start, and its standard
        error, means of the chains: close to 0 for Poisson counts.
    inflation : float
        Variance that the counts have for this dispersion, divided by that of Poisson counts: a mean
        over the entries, weighted by expected counts.
    feature_names : ndarray or None
        Names of the features.
    topic_names : tuple
        Names of the topics.
    interrupted : bool
        Whether Ctrl-C ended the job early.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same result again.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each pair, in the order of the
    ranking: ``topic``, ``feature``, ``factor``, ``counts``, ``expected``, ``local_error_rate`` and
    ``error_rate``. Given a topic, by name or number, they return its rows, with the error rates of
    the ranking of all pairs.
    """

    error_rates: Array
    local_error_rates: Array
    factors: Array
    counts: Array
    expected: Array
    agreement: Array
    noise_shares: Array
    reproduced: Array
    excess_variance: tuple[float, float]
    inflation: float
    feature_names: NDArray[Any] | None
    topic_names: tuple[Any, ...]
    interrupted: bool
    random_state: int | Sequence[int] | None

    def _table(self, what: Any) -> Columns:
        """Return the pairs of a topic, by default those of all topics."""
        K, m = self.error_rates.shape
        columns = tidy_columns(
            {"topic": name_array(self.topic_names)},
            {"feature": np.arange(m) if self.feature_names is None else self.feature_names},
            {
                "factor": self.factors, "counts": self.counts, "expected": self.expected,
                "local_error_rate": self.local_error_rates, "error_rate": self.error_rates,
            },
        )  # fmt: skip
        order = ranking(self.local_error_rates, self.factors)
        if what is not None:
            order = order[order // m == number_of_topic(what, self.topic_names, "topic")]
        return {name: column[order] for name, column in columns.items()}

    def __repr__(self) -> str:
        """Sizes, number of pairs with a low error rate, and topics that were not reproduced."""
        K, m = self.error_rates.shape
        n_found = int((self.error_rates <= _LEVEL).sum())
        lost = int(np.count_nonzero(~self.reproduced))
        return (
            f"<NoisyPairs: {m:,} features x {K} topics, {n_found:,} pairs with an error rate of at "
            f"most {_LEVEL:g}, {len(self.agreement)} chains"
            f"{f', {lost} topics not reproduced' if lost else ''}>"
        )


def ranking(local: Array, factors: Array) -> Array:
    """Return the places of pairs in arrays (K, m), by rising local error rate.

    If these are equal, pairs with factors far from 1 are first.
    """
    distance = np.maximum(factors, 1 / np.maximum(factors, np.finfo(float).tiny))
    return np.lexsort((-distance.ravel(), local.ravel()))
