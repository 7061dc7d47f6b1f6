"""Fits from moves that leave the local optimum of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..engine import progress
from ..engine.protocol import Needs
from ..engine.threads import single_blas_thread
from ..methods.starts.exchange import Exchange, exchanged, ranked_exchanges
from ..methods.starts.moves import (
    BYTES_A_COUNT,
    BYTES_A_TOPIC,
    MOST_NONZEROS,
    Move,
    moved,
    ranked_moves,
)
from .fitted import OTHER_ENDS, Fitted

Array = NDArray[Any]
# A move is kept if the objective rises by more than this, in nats: less may be rounding, or the
# same optimum with a few more iterations.
LEAST_GAIN = 0.5
# The fit from a move ends when about this is left to gain, in nats; only the best fit is continued.
NEARLY = 3.0
# Moves are tried in this order, again and again; those for which there is no candidate are skipped.
ORDER = "exchange", "topics", "topics", "reweight"
# Iterations with random weights of the samples, of which half are left out.
REWEIGHTED_ITERATIONS = 8
# A record of `moves_`.
COLUMNS = [
    ("kind", "S12"), ("merged_first", np.int64), ("merged_second", np.int64),
    ("deleted", np.int64), ("split", np.int64), ("source", np.int64),
    ("iterations", np.int64), ("gain", np.float64), ("kept", np.bool_),
]  # fmt: skip


@dataclass(frozen=True)
class _Reweighting:
    """A move that continues a fit with random weights of the samples for a few iterations."""

    weights: Array
    kind = "reweight"


def _described(move: Move | Exchange | _Reweighting, n_starts: int) -> tuple[str, dict[str, Any]]:
    """Return the text of a move for the progress bar, and its fields in `moves_` that apply."""
    if isinstance(move, Exchange):
        start = move.source < n_starts
        place = f"start {move.source + 1}" if start else f"move {move.source - n_starts + 1}"
        topics = ", ".join(map(str, move.here))
        return f"exchange {topics} with {place}", {"source": move.source}
    if isinstance(move, _Reweighting):
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


class _Search:
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

    def next(self) -> Move | Exchange | _Reweighting | None:
        """Return the next move, or None if there is none."""
        if min(self._counts.shape[0], self.best.arrays["F"].shape[1]) < 2:
            return None
        for _ in ORDER:
            kind = ORDER[self._n_tried % len(ORDER)]
            self._n_tried += 1
            if kind == "reweight":
                halves = 2.0 * self._rng.randint(2, size=self._counts.shape[0])
                return _Reweighting(halves if self._weights is None else halves * self._weights)
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

    def judge(self, found: Fitted, number: int, *, gives: bool) -> bool:
        """Return whether a fit is the new best one.

        If it is, or if it was not abandoned and it `gives` topics, there are new exchanges.
        """
        kept = found.objective > self.best.objective + LEAST_GAIN
        if kept:
            self._ranked.clear()
            self._give(self.best, self.number)
            self.best, self.number = found, number
        elif gives and found.reason != "behind":
            self._ranked.pop("exchange", None)
            self._give(found, number)
        return kept

    def _give(self, fitted: Fitted, number: int) -> None:
        """Let a fit give topics, in place of the one that has been there longest."""
        self._others[number] = fitted
        for old in list(self._others)[:-OTHER_ENDS]:
            del self._others[old]


def factors_of(fitted: Fitted) -> tuple[Array, Array]:
    """Return L (n, K) and F (m, K) of a fit."""
    return fitted.arrays["L"], fitted.arrays["F"]


def try_moves(
    counts: CountMatrix, ends: Mapping[int, Fitted], run: Callable[..., Fitted],
    checkpoints: Sequence[Any], rng: Any, *, n_starts: int, weights: Array | None, verbose: int,
) -> Fitted:  # fmt: skip
    """Try moves from the best of the fits `ends`; return the best fit, with a record of each move.

    There is a checkpoint for each move, and one for the last fit. Moves are ranked for the best
    fit, and again when a move was kept. The fit from a move is abandoned when it will hardly exceed
    the best one, and otherwise ends when little is left to gain; the best fit is continued at last.
    Its history is that of the start, of the moves that led to it, and of its end.
    """
    # further draws from `rng` must not depend on the number of moves
    rng = np.random.RandomState(rng.randint(np.iinfo(np.int32).max))
    records: list[tuple[Any, ...]] = []
    search = _Search(counts, ends, weights, rng, verbose)
    found = search.best
    for i, saved in enumerate(checkpoints[:-1]):
        move = search.next()
        if move is None:
            break
        words, columns = _described(move, n_starts)
        title = f"move {i + 1} of {len(checkpoints) - 1} ({words})"
        gives = isinstance(move, _Reweighting)
        if isinstance(move, _Reweighting):
            found = run(
                None, partial(factors_of, search.best), weights=move.weights, callback=None,
                max_iter=REWEIGHTED_ITERATIONS, title=f"{title}: iterations with weights",
            )  # fmt: skip
            if found.is_last:
                break
            start: Callable[[], tuple[Array, Array]] = partial(factors_of, found)
        else:
            start = search.start_of(move)
        found = run(saved, start, exceeds=search.best.objective, enough=NEARLY, title=title)
        gain = found.objective - search.best.objective
        kept = search.judge(found.after(search.best), n_starts + i, gives=gives)
        known = {"kind": move.kind, "iterations": len(found.history), "gain": gain, "kept": kept}
        records.append(tuple((columns | known).get(name, -1) for name, _ in COLUMNS))
        if found.is_last:
            break
    best = replace(search.best, interrupted=found.interrupted)
    if best.reason == "nearly" and found.is_last:
        best = replace(best, reason="interrupted" if found.interrupted else found.reason)
    elif best.reason == "nearly":
        last = run(checkpoints[-1], partial(factors_of, best), title="best move, to its end")
        last = last.after(best)
        if last.objective < best.objective:  # by rounding
            last = replace(last, arrays=best.arrays, history=best.history)
        best = last
    return replace(best, moves=np.array(records, COLUMNS))


def needs_of_moves(needs: Needs, counts: CountMatrix, n_components: int, dtype: Any) -> Needs:
    """Return the memory of a fit with moves: also that of other fits and of the ranking."""
    n, m = counts.shape
    copies = (2 + OTHER_ENDS) * n_components * np.dtype(dtype).itemsize
    nonzeros = min(counts.nnz, MOST_NONZEROS)
    ranking = nonzeros * (BYTES_A_COUNT + BYTES_A_TOPIC * n_components)
    return needs._replace(
        row=needs.row + copies,
        shared=needs.shared + m * copies,
        start=max(needs.start, ranking),
    )
