"""The search of moves that leave the local optimum of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..engine import progress
from ..engine.threads import single_blas_thread
from ..methods.starts.exchange import Exchange, exchanged, ranked_exchanges
from ..methods.starts.moves import (
    Move,
    moved,
    ranked_moves,
)
from .fitted import OTHER_ENDS, Fitted

Array = NDArray[Any]
# A move is kept if the objective rises by more than this, in nats: less may be rounding, or the
# same optimum with a few more iterations.
LEAST_GAIN = 0.5
# Moves are tried in this order, again and again; those for which there is no candidate are skipped.
ORDER = "exchange", "topics", "topics", "reweight"
# A record of `moves_`.
COLUMNS = [
    ("kind", "S12"), ("merged_first", np.int64), ("merged_second", np.int64),
    ("deleted", np.int64), ("split", np.int64), ("source", np.int64),
    ("iterations", np.int64), ("gain", np.float64), ("kept", np.bool_),
]  # fmt: skip


@dataclass(frozen=True)
class Reweighting:
    """A move that continues a fit with random weights of the samples for a few iterations."""

    weights: Array
    kind = "reweight"


def described(move: Move | Exchange | Reweighting, n_starts: int) -> tuple[str, dict[str, Any]]:
    """Return the text of a move for the progress bar, and its fields in `moves_` that apply."""
    if isinstance(move, Exchange):
        start = move.source < n_starts
        place = f"start {move.source + 1}" if start else f"move {move.source - n_starts + 1}"
        topics = ", ".join(map(str, move.here))
        return f"exchange {topics} with {place}", {"source": move.source}
    if isinstance(move, Reweighting):
        return "reweight samples", {}
    columns = {}
    if len(move.removed) == 2:
        columns["merged_first"], columns["merged_second"] = move.removed
        words = "merge {} and {}".format(*move.removed)
    else:
        columns["deleted"] = move.removed[0]
        words = f"delete {move.removed[0]}"
    if move.split is None:
        return f"{words}, add one", columns
    return f"{words}, split {move.split}", columns | {"split": move.split}


class Search:
    """The best fit so far, the fits that it can exchange topics with, and the next moves.

    `ends` are fits by number, the best one first. Starts have the first numbers, then moves.
    """

    def __init__(
        self, counts: CountMatrix, ends: Mapping[int, Fitted], weights: Array | None, rng: Any,
        verbose: int,
    ):  # fmt: skip
        self._counts, self._weights, self._rng = counts, weights, rng
        self._verbose, self._n_tried = verbose, 0
        (self.number, self.best), *others = ends.items()
        self._others = dict(others)
        self._ranked: dict[str, list[Any]] = {}

    def next(self) -> Move | Exchange | Reweighting | None:
        """Return the next move, or None if there is none."""
        if min(self._counts.shape[0], self.best.arrays["F"].shape[1]) < 2:
            return None
        for _ in ORDER:
            kind = ORDER[self._n_tried % len(ORDER)]
            self._n_tried += 1
            if kind == "reweight":
                halves = 2.0 * self._rng.randint(2, size=self._counts.shape[0])
                return Reweighting(halves if self._weights is None else halves * self._weights)
            if kind not in self._ranked:
                self._ranked[kind] = self._rank(kind)
            if self._ranked[kind]:
                move: Move | Exchange = self._ranked[kind].pop(0)
                return move
        return None

    def _rank(self, kind: str) -> list[Any]:
        L, F = factors_of(self.best)
        with progress.shown(self._verbose, "moves"), single_blas_thread():
            progress.stage("ranking")
            if kind == "topics":
                return ranked_moves(self._counts, L, F, self._rng, self._weights)
            others = {i: factors_of(fitted) for i, fitted in self._others.items()}
            return ranked_exchanges(self._counts, (L, F), others, self._rng, self._weights)

    def start_of(self, move: Move | Exchange) -> Callable[[], tuple[Array, Array]]:
        """Return a function that returns the factors after a move."""
        if isinstance(move, Move):
            return partial(moved, *factors_of(self.best), move)
        other = factors_of(self._others[move.source])
        return partial(exchanged, *factors_of(self.best), *other, move)

    def judge(self, fitted: Fitted, number: int, *, gives: bool) -> bool:
        """Return whether a fit is the new best one.

        If it is, or if it was not abandoned and it `gives` topics, there are new exchanges.
        """
        kept = fitted.objective > self.best.objective + LEAST_GAIN
        if kept:
            self._ranked.clear()
            self._give(self.best, self.number)
            self.best, self.number = fitted, number
        elif gives and fitted.reason != "behind":
            self._ranked.pop("exchange", None)
            self._give(fitted, number)
        return kept

    def _give(self, fitted: Fitted, number: int) -> None:
        """Let a fit give topics, in place of the one that has been there longest."""
        self._others[number] = fitted
        for old in list(self._others)[:-OTHER_ENDS]:
            del self._others[old]


def factors_of(fitted: Fitted) -> tuple[Array, Array]:
    """Return L (n, K) and F (m, K) of a fit."""
    return fitted.arrays["L"], fitted.arrays["F"]
