"""Separable NMF: each topic has an anchor, a feature that no other topic has.

Counts X (n, m), weighted or not, are columns x_j. Anchors are chosen one after the other: each is
the column farthest from the span of earlier anchors (successive projection; QR with column pivots).
A pivoted Cholesky factorisation of X'X finds them and needs one column for each anchor. With C its
rows and p the next anchor,

    c_j = (x_j'x_p - sum_k C_kj C_kp) / r,  r^2 = |x_p|^2 - sum_k C_kp^2,

c is the next row, c_j^2 is subtracted from the squared distance of every other column, and r is the
diagonal of R. Every other column is then a non-negative combination of the anchors' columns A, by
least squares of the plain counts, ``min |x_j - A y_j|, y_j >= 0``: with one matrix A'A for all of
them.

With the anchors' own y_j unit vectors, topic k is row k of Y divided by its norm 1 / lambda_k, and
the loadings are A / lambda: ``lambda_k = 1 / sqrt(1 + sum_j y_kj^2)``, the sum over all other
features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_empty
from ...counts.base import CountMatrix
from ...engine.protocol import Executor, Method, Needs, Step
from ...kernels import decompositions, dense
from ..factors import Array
from ..rows_pass import RowsPass
from ..weights.weighting import Weights
from .pivots import GramOfCounts, GramOfProjection, Pivots
from .steps import GramColumns, Project, Squares, TakeColumns, sampled_transform

# Largest accepted violation of the KKT conditions, relative to the right-hand side.
_MOST_KKT = 1e-9
# Rows that are converted at a time; numbers that kernels keep for each feature; copies of loadings
# in memory.
_PIECE, _PER_FEATURE, _COPIES_ROWS = 1 << 9, 24, 2


class DependentAnchor(ValueError):
    """A given anchor, `feature`, is a combination of those before it, or has no counts."""

    def __init__(self, feature: int):
        super().__init__(
            f"anchors: feature {feature} is a combination of those before it, or has no counts: "
            "leave it out."
        )
        self.feature = feature


class AnchorSearch(Method):
    """Chooses one anchor in each iteration, and computes the topics at the end.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    executor : Executor
    n_components : int
        Maximum number of anchors: there are no more than the rank of the counts.
    given : sequence of int
        Features that are the first anchors in any case.
    weights : Weights
    n_directions : int or None
        Dimensions of a Gaussian projection in which anchors are chosen; None means no projection.
    sketch_size : int or None
        Rows of a randomized Hadamard transform in which combinations are computed; None means none.
    rng : RandomState
    dtype : float32 or float64
        Type of topics and loadings.
    """

    record = ("spanned", "residual", "bytes_read")
    residuals = ("residual",)
    residual_name, result_name = "largest distance from the anchors", "anchors"

    def __init__(
        self, counts: CountMatrix, executor: Executor, n_components: int, anchors: Sequence[int],
        weights: Weights, n_directions: int | None, sketch_size: int | None, rng: Any, dtype: Any,
    ):  # fmt: skip
        self.counts, self.executor, self.n_components = counts, executor, n_components
        self._given, self._weights, self._n_directions = list(anchors), weights, n_directions
        self._sketch_size, self._rng, self._dtype, self._seed = sketch_size, rng, dtype, 0
        self._checked: set[int] = set()

    def start(self) -> None:
        """Compute the norms of all features, and add the given anchors."""
        if self._n_directions is not None or self._sketch_size is not None:
            self._seed = int(self._rng.randint(1 << 31))
        squares = self._look()
        if not squares.any():
            raise ValueError("the weighted counts are all 0: there are no anchors.")
        n_threads = self.executor.n_threads
        self.pivots = Pivots(squares, self.n_components, n_threads)
        columns = self._gram.columns(self._given) if self._given else ()
        for p, column in zip(self._given, columns, strict=True):
            if self.pivots.left[p] == 0:
                raise DependentAnchor(p)
            self.pivots.add(p, column)

    def _look(self) -> Array:
        """Return the squared norms of all features, weighted or projected."""
        weights, features = self._weights, self._weights.features
        self._exact = GramOfCounts(self.counts, self.executor, weights)
        order, unit = self._exact.order, None
        if weights.unit:
            unit = np.ones(len(order)) if features is None else features[order] ** 2
        if self._n_directions is None:
            self._gram: Any = self._exact
            return self._exact.squares(unit)
        ((_, sums),) = self.executor.run(Project(order, self._n_directions, self._seed, unit))
        self._gram = GramOfProjection(self._exact.weigh(sums[0].T).T)
        return self._gram.squares()

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Return how much of the counts the anchors span; stop when their rank is exhausted."""
        return self._record(iteration) if iteration else None

    def _record(self, iteration: int) -> dict[str, Any]:
        k = min(iteration, len(self.pivots.chosen))
        distances = self.pivots.trace[k - 1]
        seen = {name: distances[name] for name in ("spanned", "residual")}
        return seen | {"bytes_read": self.executor.bytes_read, "blind": distances["residual"] > 0}

    def update(self, iteration: int, ending: bool) -> None:
        """Choose the next anchor."""
        if iteration > len(self.pivots.chosen) and (p := self._next()) is not None:
            self.pivots.add(p, self._gram.columns([p])[0])
            self._checked.clear()

    def _next(self) -> int | None:
        """Return the farthest feature, after a check that its distance is not a rounding error."""
        pivots = self.pivots
        while (p := pivots.farthest()) is not None:
            if p in self._checked or not pivots.is_doubtful(p):
                break
            self._checked.add(p)
            products = pivots.rows[: len(pivots.chosen), p]
            a = decompositions.solve(pivots.triangle(), products[:, None])[:, 0]
            for _ in range(2):
                _, products = self._gram.distance([*pivots.chosen, p], a)
                a = a + pivots.combination(products)
            pivots.left[p], _ = self._gram.distance([*pivots.chosen, p], a)
            pivots.settle()
        return p

    def finish(self, settled: bool) -> dict[str, Any]:
        """Compute all features as combinations of the anchors, in one more pass."""
        chosen, trace, squares = self.pivots.chosen, self.pivots.trace, self.pivots.squares
        end = self._record(len(chosen))
        self._end = {
            "anchors": np.array(chosen, np.int64),
            "diagonal": np.array([step["diagonal"] for step in trace]),
        }
        del self.pivots, self._gram  # as large as the arrays that follow
        order, lanes = self._exact.order, self._exact.lanes[chosen]
        take = TakeColumns(len(order), lanes, str(type_of_counts(self.counts)))
        if not self._weights.are_one:
            self.executor.drop("scales")
        plain = self._weights.are_one and self._n_directions is None
        steps = [take, GramColumns(order, lanes, weighted=False)]
        steps += [] if plain else [Squares(order)]
        steps += [] if self._sketch_size is None else [self._sketch()]
        outcomes = self.executor.run(*steps)
        products, n_threads = outcomes[1].sums[0], self.executor.n_threads
        total = math.fsum(squares if plain else outcomes[2].sums[0][0])
        if self._sketch_size is None:
            topics, gains = combinations(products, chosen, n_threads)
            gain = math.fsum(gains)
        else:
            Y = outcomes[-1].sums[0]
            of_sketch = dense.product(Y[chosen], np.ascontiguousarray(Y.T), n_threads=n_threads)
            topics, _ = combinations(of_sketch, chosen, n_threads)
            gain = _explained(products, chosen, topics, n_threads)
        # one by one: the squares of all would be as large as the topics
        weights = 1 / np.sqrt([(topic * topic).sum() for topic in topics])
        topics *= weights[:, None]
        error = math.sqrt(max(0.0, total - gain))
        self._end |= {"components": topics, "diffuseness": weights, "error": np.array(error)}
        return end | {"bytes_read": self.executor.bytes_read}

    def _sketch(self) -> Step:
        """Return the step that computes a sketch of the samples, (m, sketch_size)."""
        assert self._sketch_size is not None
        layout = self.executor.layout
        return sampled_transform(
            self._exact.order, layout.blocks, len(layout.row_order), self._sketch_size, self._seed
        )

    def result(self) -> dict[str, Array]:
        """Return topics (K, m), loadings (n, K), anchors (K,) and further arrays of the anchors."""
        values, order = self.executor.get("anchors"), self.executor.layout.row_order
        shape = self.counts.shape[0], values.shape[1]
        loadings = aligned_empty(shape, self._dtype, self.executor.folder)
        for first in range(0, len(values), _PIECE):
            here = slice(first, first + _PIECE)
            lanes = order[here]
            scaled = values[here][lanes >= 0] / self._end["diffuseness"]
            loadings[lanes[lanes >= 0]] = scaled
        components = self._end["components"].astype(self._dtype, copy=False)
        return self._end | {"components": components, "loadings": loadings}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the state for `restore`."""
        pivots = self.pivots
        numbers = {"chosen": pivots.chosen, "trace": pivots.trace, "seed": self._seed}
        arrays = {"rows": pivots.rows, "squares": pivots.squares, "left": pivots.left}
        return numbers, arrays

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays of a snapshot."""
        m = self.counts.shape[1]
        return {"rows": (self.n_components, m), "squares": (m,), "left": (m,)}

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the state saved by `snapshot`."""
        self._seed = int(numbers["seed"])
        if self._weights.unit or self._n_directions is not None:
            self._look()  # scales of the samples, projections
        else:
            self._exact = self._gram = GramOfCounts(self.counts, self.executor, self._weights)
        self.pivots = Pivots(arrays["squares"], 0, self.executor.n_threads)
        self.pivots.rows, self.pivots.left = arrays["rows"], arrays["left"]
        self.pivots.chosen = list(map(int, numbers["chosen"]))
        self.pivots.trace = list(numbers["trace"])


def type_of_counts(counts: CountMatrix) -> np.dtype[Any]:
    """Return the smallest type that holds every count."""
    return np.min_scalar_type(int(counts.largest)) if counts.is_integer else counts.dtype


def combinations(products: Array, anchors: Sequence[int], n_threads: int) -> tuple[Array, Array]:
    """Return columns as non-negative combinations of the anchors, and what these explain.

    `products` (K, m) are inner products of the anchors with all columns; the array is overwritten.
    The combinations explain ``2 x_j'A y_j - |A y_j|^2``, (m,), of the squares. Combinations of
    anchors are unit vectors.
    """
    gram = products[:, anchors]
    gram = (gram + gram.T) / 2
    # products of a sketch may be negative
    largest, m = np.maximum(products.max(axis=0), -products.min(axis=0)), products.shape[1]
    gain, kkt = np.empty(m), np.empty(m)
    kernels.nnls(gram, products, gain, kkt, n_threads=n_threads)
    worst = int(np.argmax(kkt - _MOST_KKT * largest))
    if kkt[worst] > _MOST_KKT * largest[worst]:
        raise FloatingPointError(
            f"the combination of anchors for feature {worst} violates the conditions of an optimum "
            f"by {kkt[worst]:.1e}: choose fewer anchors, whose counts are less alike."
        )
    products[:, anchors], gain[anchors] = np.eye(len(anchors)), np.diag(gram)
    return products, gain


def _explained(products: Array, anchors: Sequence[int], topics: Array, n_threads: int) -> float:
    """Return the sum of squares that combinations `topics` (K, m) of the anchors explain.

    `products` (K, m) are the inner products of the anchors with all columns.
    """
    gram = products[:, anchors]
    of_topics = dense.cross(np.ascontiguousarray(topics.T), n_threads=n_threads)
    of_columns = math.fsum((products * topics).sum(axis=1))
    return 2 * of_columns - math.fsum((gram * of_topics).sum(axis=1))


def anchor_loadings(
    counts: CountMatrix, anchors: Array, weights: Array, n_threads: int
) -> RowsPass:
    """Return the pass that finds the counts of the anchors over `weights`, (n, K)."""
    K, m = len(anchors), counts.shape[1]
    lanes = np.empty(m, np.int64)
    lanes[counts.layout(n_threads).column_order[:m]] = np.arange(m)
    return RowsPass(
        counts, (TakeColumns(m, lanes[anchors], str(type_of_counts(counts))),), "anchors", K,
        needs=loadings_needs(counts, K), n_threads=n_threads,
        finish=(lambda rows, loadings: loadings / weights,),
    )  # fmt: skip


def anchor_needs(
    counts: CountMatrix, n_components: int, dtype: Any, n_given: int, n_directions: int | None,
    sketch_size: int | None = None,
) -> Needs:  # fmt: skip
    """Return the memory of a fit: a factor of the size of the topics, then the topics."""
    m, K, itemsize = counts.shape[1], n_components, np.dtype(dtype).itemsize
    own, topics = type_of_counts(counts).itemsize, m * n_components * 8
    directions = m * (n_directions or 0) * 8
    # with a sketch also its topics, the transposed topics, and products of both
    of_sketch = m * sketch_size * 8 * 2 + topics * 2 if sketch_size else 0
    sums = max(topics + of_sketch, directions)
    return Needs(
        row=K * (own + itemsize) + 16,
        shared=m * _PER_FEATURE * 8 + n_given * m * 8 + (topics // 2 if itemsize == 4 else 0),
        sums=sums,
        start=directions * 2,
        task_row=K * own * 2 + 16,
        task_shared=m * _PER_FEATURE * 8 + sums,
        saved_row=K * own + 8,
    )


def loadings_needs(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory for loadings of new rows; `row` is the part for each row of a block."""
    m = counts.shape[1]
    return Needs(
        row=n_components * (type_of_counts(counts).itemsize * 2 + 8) + 8, shared=m * 16, sums=0
    )
