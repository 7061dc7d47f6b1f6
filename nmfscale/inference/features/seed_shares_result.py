"""The result of seed_shares: what topics explain of the counts of their seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.seed_shares import LEAST_SHARE, ExplainedSeeds
from ...models.tables import Columns, Tables
from ..results.files import Result

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class SeedShares(Result):
    """Shares of K topics in the expected counts of S seeds.

    Attributes
    ----------
    shares : ndarray of shape (S, K), float64
        Share of each topic in the expected counts of each seed; rows sum to one.
    topic_numbers : ndarray of shape (S,), int
        Number of the topic of each seed. A feature that is a seed of two topics has two rows.
    features : ndarray of shape (S,), object
        Names of the seeds. Seeds that the counts lack are not among them.
    totals : ndarray of shape (S,), float64, or None
        Occurrences of the seeds in the fit; None after `partial_fit`.
    topic_names : tuple of str
        Names of the topics.
    seed_weight : float
        Weight of the seeds in the fit: pseudo-counts divided by occurrences.

    Notes
    -----
    The tables of :meth:`columns` and :meth:`to_frame`:

    - "seeds", with a row for each seed: ``topic``, ``feature``, ``total``, ``share`` of its topic,
      and ``largest``, the name of the topic with the largest share, ``largest_share``;
    - "topics", with a row for each topic with seeds: ``topic``, ``n_seeds``, ``share``, the mean
      share over its seeds, ``largest`` and ``largest_share`` of these means, and ``left``, whether
      `share` is below one half.
    """

    shares: Array
    topic_numbers: Array
    features: Array
    totals: Array | None
    topic_names: tuple[str, ...]
    seed_weight: float

    def _tables(self) -> Tables:
        return {"seeds": self._of_seeds, "topics": self._of_topics}

    def _of_seeds(self) -> Columns:
        totals = np.full(len(self.topic_numbers), np.nan) if self.totals is None else self.totals
        head = {"feature": name_array(self.features.tolist()), "total": totals}
        return self._named(self.topic_numbers, head, self.shares)

    def _of_topics(self) -> Columns:
        topics, means = ExplainedSeeds(self.topic_numbers, self.topic_numbers, self.shares).means()
        counts = np.array([(self.topic_numbers == topic).sum() for topic in topics], np.intp)
        columns = self._named(topics, {"n_seeds": counts}, means)
        return columns | {"left": columns["share"] < LEAST_SHARE}

    def _named(self, topics: Array, head: Columns, shares: Array) -> Columns:
        names = name_array(self.topic_names)
        largest = shares.argmax(axis=1) if len(shares) else topics
        rows = np.arange(len(topics))
        return {
            "topic": names[topics], **head, "share": shares[rows, topics],
            "largest": names[largest], "largest_share": shares[rows, largest],
        }  # fmt: skip

    def __repr__(self) -> str:
        """Numbers of seeds, and the range of the mean shares of their topics."""
        topics = self.columns("topics")
        text = (
            f"<SeedShares: {len(self.topic_numbers)} seeds of {len(topics['topic'])} of "
            f"{len(self.topic_names)} topics, seed_weight {self.seed_weight:g}"
        )
        if not len(self.topic_numbers):
            return f"{text}>"
        share = topics["share"]
        return f"{text}, mean shares {share.min():.2f} to {share.max():.2f}>"
