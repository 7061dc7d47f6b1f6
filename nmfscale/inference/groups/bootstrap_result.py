"""The result of a bootstrap of balanced weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import WeightKind, check_option
from ...counts.foreign import imported_pandas
from ...models.tables import Columns, Tables, tidy_columns
from ..design.equal_weights import counted_once
from ..intervals import spread
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]


@dataclass(frozen=True)
class BootstrapWeights(Result):
    """Balanced weights of T topics in R groups, with intervals.

    Attributes
    ----------
    weights : ndarray of shape (T, R)
        Balanced table of the data: see :func:`nmfscale.balance`.
    replicates : ndarray of shape (n_replicates, T, R)
        Balanced table of every replicate that has one; NaN for topics that the replicate lacks.
    topics, groups : tuple
        Names.
    n_units : ndarray of shape (R,)
        Units of each group.
    level, interval : float and str
        As they were given.
    n_failures : int
        Number of replicates without a balance, which are left out.
    n_limits : int
        Number of replicates with a balance in the limit only; these are included.
    random_state : int
        Entropy of the seed: passed as `random_state` it gives the same replicates again.
    n_dropped : int
        Number of replicates that lack topics; these count for their other topics.
    missing : ndarray of shape (T,)
        Share of the replicates that lack each topic.
    units : str
        What was resampled: "units" or "samples".
    equal_weights : str
        What has weight one: "units" or "samples".
    scale : str
        What was summed: "proportions" or "amounts".
    lower, upper : ndarray of shape (T, R)
        Ends of the intervals.
    origin : Origin
        What it was made from: names of the columns of labels, `groups`, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`, with a row for each topic and group:

    - "weights" (default), in the order of topics and groups: ``topic``, ``group``, ``weight``,
      ``lower``, ``upper`` and ``std_error``.
    - "TwR", topics within groups: sorted by group, with the ``rank`` of each topic there, 1 being
      the heaviest.
    - "RwT", groups within topics, likewise.
    """

    weights: Array
    replicates: Array
    topics: tuple[Any, ...]
    groups: tuple[Any, ...]
    n_units: Array
    level: float
    interval: str
    n_failures: int = 0
    n_limits: int = 0
    random_state: int | Sequence[int] | None = None
    units: str = "samples"
    equal_weights: str = "units"
    scale: str = "proportions"
    lower: Array = field(default_factory=lambda: np.zeros((0, 0)))
    upper: Array = field(default_factory=lambda: np.zeros((0, 0)))
    origin: Origin = Origin()

    def with_intervals(self, ends: tuple[Array, Array]) -> BootstrapWeights:
        """Return a copy with these intervals."""
        return replace(self, lower=ends[0], upper=ends[1])

    @property
    def n_replicates(self) -> int:
        """Number of replicates that intervals are based on."""
        return len(self.replicates)

    @property
    def missing(self) -> Array:
        """Share of the replicates that lack each topic, (T,)."""
        return np.isnan(self.replicates).any(axis=2).mean(axis=0)

    @property
    def n_dropped(self) -> int:
        """Number of replicates that lack topics."""
        return int(np.isnan(self.replicates).any(axis=(1, 2)).sum())

    @property
    def neutral(self) -> float:
        """Weight of all topics in all groups where there is no difference: 1/sqrt(T)."""
        return float(1 / np.sqrt(len(self.topics)))

    @property
    def std_error(self) -> Array:
        """Standard deviation of the replicates, (T, R)."""
        return spread(self.replicates)

    def _tables(self) -> Tables:
        ranked = {kind: partial(self._ranked, kind) for kind in get_args(WeightKind)}
        return {"weights": self._in_order, **ranked}

    def _in_order(self) -> Columns:
        return tidy_columns(
            {"topic": self.topics}, {"group": self.groups},
            {
                "weight": self.weights, "lower": self.lower, "upper": self.upper,
                "std_error": self.std_error,
            },
        )  # fmt: skip

    def _ranked(self, kind: str) -> Columns:
        """Return topics within groups ("TwR") or groups within topics, by rank."""
        t, r = (places.ravel() for places in np.indices(self.weights.shape))
        outer, inner, axis = (r, t, 0) if kind == "TwR" else (t, r, 1)
        ranks = _ranks(self.weights, axis).ravel()
        order = np.lexsort((inner, ranks, outer))
        columns = self._in_order() | {"rank": ranks}
        return {name: column[order] for name, column in columns.items()}

    def ranking(self, kind: WeightKind = "TwR", n: int | None = None) -> Any:
        """Return the names of topics ranked within each group, or of groups within each topic.

        Parameters
        ----------
        kind : {"TwR", "RwT"}, default="TwR"
            Topics within groups, or groups within topics.
        n : int, default=None
            Keep the n heaviest and the n lightest; by default all.

        Returns
        -------
        pandas.DataFrame
            A column for each group (topic), a row for each rank, from 1.
        """
        pd = imported_pandas()

        topics_within = _checked_kind(kind) == "TwR"
        weights = self.weights if topics_within else self.weights.T
        names, columns = (self.topics, self.groups) if topics_within else (self.groups, self.topics)
        order = np.argsort(-weights, axis=0, kind="stable")
        ranks = np.arange(len(names))
        if n is not None:
            ranks = ranks[(ranks < n) | (ranks >= len(names) - n)]
        by_rank = [[names[i] for i in order[rank]] for rank in ranks]
        return pd.DataFrame(by_rank, index=pd.Index(ranks + 1, name="rank"), columns=list(columns))

    def __repr__(self) -> str:
        """Sizes and kind of intervals."""
        T, R = self.weights.shape
        failed = f", {self.n_failures} failed" if self.n_failures else ""
        failed += f", {self.n_dropped} lack topics" if self.n_dropped else ""
        return (
            f"<BootstrapWeights: {T} topics x {R} groups, {self.n_replicates} replicates{failed}, "
            f"{self.interval} intervals of {self.level:.0%}, drawn by {self.units}"
            f"{counted_once(self.equal_weights, self.units)}>"
        )


def _checked_kind(kind: WeightKind) -> WeightKind:
    check_option("kind", kind, WeightKind)
    return kind


def _ranks(weights: Array, axis: int) -> Array:
    """Return ranks, 1 for the largest weight; ties keep their order."""
    order = np.argsort(-weights, axis=axis, kind="stable")
    return np.argsort(order, axis=axis, kind="stable") + 1
