"""Exchange of topics between two fits of the same counts: a move that leaves a local optimum.

Where two fits end in different optima, each may be better in a part of the topics. A better fit may
then have some topics of the one and the rest of the other. Topics of both fits are matched; groups
of matched topics that differ are candidates. A group is a topic, a pair of topics between which the
fits move most of the loadings, or all topics that are connected by such pairs.

Candidates are ranked on a sample of rows. With the factors held, the loadings of each row are a
convex problem, whose optimum gives the log-likelihood of the candidate before its factors adapt.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...counts.base import CountMatrix
from ...counts.memory import Counts
from ...kernels import dense
from ..factors import MINVAL, Array
from ..projection.transform import projection
from ..topics.matching import lift_pairs
from .moves import drawn_rows

# Nonzero counts of the sample of rows, and at least this many rows; steps of its loadings.
_NONZEROS, _FEWEST_ROWS, _STEPS = 60_000, 20, 4
# Topics differ if their frequencies have at least this total variation distance.
_DIFFERENT = 0.01

Factors = tuple[Array, Array]


class Exchange(NamedTuple):
    """Topics `here` (a tuple of columns) become topics `there` of fit number `source`."""

    source: int
    here: tuple[int, ...]
    there: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Name of the move."""
        return "exchange"


def groups_of(ours: Factors, theirs: Factors) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return groups of topics of a fit L (n, K), F (m, K), and the matched topics of another one.

    The group of all topics that differ is left out, because the result would be the other fit.
    """
    F, other = (group[1].astype(np.float64) for group in (ours, theirs))
    _, there, _ = lift_pairs(F, other)
    sums = [np.maximum(A.sum(axis=0), MINVAL) for A in (F, other)]
    f, g = F / sums[0], other[:, there] / sums[1][there]
    differ = np.flatnonzero(0.5 * np.abs(f - g).sum(axis=0) > _DIFFERENT)
    if not differ.size:
        return []
    amounts = ours[0] * sums[0], theirs[0][:, there] * sums[1][there]
    shares = [A / np.maximum(A.sum(axis=1, keepdims=True), MINVAL) for A in amounts]
    # counts of a sample that are in topic k of one fit and in topic l of the other one
    flow = dense.cross(shares[0], amounts[1])
    flow = flow + flow.T
    np.fill_diagonal(flow, 0)
    partner = {int(k): int(differ[np.argmax(flow[k, differ])]) for k in differ}
    groups = {(k,) for k in partner} | {tuple(sorted({k, partner[k]})) for k in partner}
    connected: list[set[int]] = []
    for pair in partner.items():
        touched = [group for group in connected if group & set(pair)]
        connected = [group for group in connected if not group & set(pair)]
        connected.append(set(pair).union(*touched))
    groups |= {tuple(sorted(group)) for group in connected}
    whole = tuple(differ.tolist())
    return [(group, tuple(int(there[k]) for k in group)) for group in sorted(groups - {whole})]


def ranked_exchanges(
    counts: CountMatrix, best: Factors, others: dict[int, Factors], rng: np.random.RandomState,
    weights: Array | None = None,
) -> list[Exchange]:  # fmt: skip
    """Return the exchanges of topics between a fit and others, the most promising first.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    best : (L, F)
        Factors (n, K) and (m, K) of the fit that gets topics.
    others : dict of int to (L, F)
        Fits that give topics, by their number.
    rng : RandomState
        Draws rows.
    weights : ndarray of shape (n,), default=None
        Weights of the samples.

    Returns
    -------
    list of Exchange
    """
    candidates = [
        Exchange(source, *group) for source, other in others.items()
        for group in groups_of(best, other)
    ]  # fmt: skip
    if not candidates:
        return []
    rows = drawn_rows(counts, rng, _NONZEROS, _FEWEST_ROWS)
    X = counts.take_rows(rows)
    sample = Counts(X.indptr, X.indices, X.data, X.shape, has_sorted_indices=True)
    of_rows = None if weights is None else weights[rows]
    best = best[0][rows], best[1]
    others = {source: (L[rows], F) for source, (L, F) in others.items()}
    ranked = []
    for place, candidate in enumerate(candidates):
        L, F = exchanged(*best, *others[candidate.source], candidate)
        scores = projection(sample, F, L=L, n_steps=_STEPS, scored=True).gather()
        scores = scores if of_rows is None else of_rows * scores
        ranked.append((-float(scores.sum()), place))
    return [candidates[place] for _, place in sorted(ranked)]


def exchanged(L: Array, F: Array, L2: Array, F2: Array, move: Exchange) -> Factors:
    """Return L (n, K) and F (m, K) with topics of the fit L2, F2, loadings included."""
    L, F = L.copy(), F.copy()
    here, there = list(move.here), list(move.there)
    L[:, here], F[:, here] = L2[:, there], F2[:, there]
    return np.maximum(L, MINVAL), np.maximum(F, MINVAL)
