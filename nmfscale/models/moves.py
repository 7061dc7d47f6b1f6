"""Fits from moves that leave the local optimum of a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..engine import progress
from ..engine.protocol import Needs
from ..engine.threads import single_blas_thread
from ..methods.poisson.moves import (
    BYTES_A_COUNT,
    BYTES_A_TOPIC,
    MOST_NONZEROS,
    Move,
    moved,
    ranked_moves,
)
from .base import BY_THE_USER, Fitted

# A move is kept if the objective rises by more than this, in nats: less may be rounding, or the
# same optimum with a few more iterations.
LEAST_GAIN = 0.5
# A record of `moves_`.
COLUMNS = [
    ("merged_first", np.int64), ("merged_second", np.int64), ("split", np.int64),
    ("iterations", np.int64), ("gain", np.float64), ("kept", np.bool_),
]  # fmt: skip


def try_moves(
    counts: CountMatrix, best: Fitted, run: Callable[..., Fitted], checkpoints: Sequence[Any],
    rng: Any, *, weights: NDArray[Any] | None, verbose: int,
) -> Fitted:  # fmt: skip
    """Try a move for each of `checkpoints`; return the best fit, with a record of each move.

    Moves are ranked for the best fit, and again when a move was kept. Its iterations are those of
    the fit from the changed factors, which is abandoned when it will hardly exceed the best fit.
    """
    records: list[tuple[Any, ...]] = []
    ranked: list[Move] | None = None
    # further draws from `rng` must not depend on the number of moves
    rng = np.random.RandomState(rng.randint(np.iinfo(np.int32).max)) if checkpoints else rng
    for i, saved in enumerate(checkpoints):
        L, F = best.arrays["L"], best.arrays["F"]
        if ranked is None:
            with progress.shown(verbose, "moves"), single_blas_thread():
                progress.stage("ranking")
                ranked = ranked_moves(counts, L, F, rng, weights)
        if not ranked:
            break
        move = ranked.pop(0)
        (a, b), k = move.merged, move.split
        title = f"move {i + 1} of {len(checkpoints)} (merge {a} and {b}, split {k})"
        found = run(saved, partial(moved, L, F, move), exceeds=best.objective, title=title)
        gain = found.objective - best.objective
        records.append((a, b, k, len(found.history), gain, gain > LEAST_GAIN))
        if gain > LEAST_GAIN:
            best, ranked = found, None
        if found.reason in BY_THE_USER:
            break
    return replace(best, moves=np.array(records, COLUMNS))


def needs_of_moves(needs: Needs, counts: CountMatrix, n_components: int, dtype: Any) -> Needs:
    """Return the memory of a fit with moves: also that of the best fit and of the ranking."""
    n, m = counts.shape
    copies = 2 * n_components * np.dtype(dtype).itemsize
    nonzeros = min(counts.nnz, MOST_NONZEROS)
    ranking = nonzeros * (BYTES_A_COUNT + BYTES_A_TOPIC * n_components)
    return needs._replace(
        row=needs.row + copies,
        shared=needs.shared + m * copies,
        start=max(needs.start, ranking),
    )
