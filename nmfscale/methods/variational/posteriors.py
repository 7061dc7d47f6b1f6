"""Posteriors of samples with topics held: a step of a fit, and inference of new samples."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.sell import LANES
from ...engine import progress
from ...engine.local import LocalExecutor
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ..factors import Array, aligned_copy, sum_lanes
from ..slices import pieces, sliced_counts
from ..transform import plain_rows


@dataclass(frozen=True)
class InferRows(Step):
    """Moves the posterior of every sample, topics held; says what it was worth where it began.

    Attributes
    ----------
    design : ndarray (lanes, stride)
        exp(E log) of the topics in lane order, those of a feature up to a factor of its own.
    alpha : ndarray (K,)
        Shapes of the prior.
    n_steps, tolerance : int and float
        Rounds on each sample at most, until gamma changes by less on average.
    source, target : str
        Names of gamma before and after. Without a target all that is made is a row array ``bound``:
        what each sample adds to the bound, but for the logarithms of these factors.
    """

    design: Any
    alpha: Array
    n_steps: int = 1
    tolerance: float = 0.0
    source: str = "gamma"
    target: str | None = "next"

    reads = "rows"
    shared = ("design",)
    kind: ClassVar[int]

    @property
    def arrays(self) -> RowArrays:
        """Names of the row arrays."""
        if self.target is None:
            return RowArrays((self.source,), ("bound",))
        return RowArrays((self.source,), (self.target, "theta"), (self.target,))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        gamma, after = block[self.source], None
        made: dict[str, Array] = {"loglik_start": np.zeros(len(gamma))}
        if self.target is not None:
            after, made["theta"] = block.empty(self.target, gamma), block.empty("theta", gamma)
        K, n_rows = len(self.alpha), block.n_rows
        for piece in pieces(block.counts, K, n_threads, whole=self.n_steps == 1):
            lanes = slice(piece.start * LANES, piece.stop * LANES)
            n_here = max(0, min(lanes.stop, n_rows) - lanes.start)
            self.move(
                sliced_counts(block.counts.slices(piece), len(self.design)), gamma[lanes],
                None if after is None else after[lanes], n_here, n_threads,
                {name: array[lanes] for name, array in made.items()},
            )  # fmt: skip
            progress.advance(n_here)
        bounds, found = self.terms(gamma, after, block.n_rows, n_threads)
        seen = made["loglik_start"]
        if after is None:
            seen[: block.n_rows] += bounds
            block.put("bound", seen)
            return {}
        return found | {"bound": sum_lanes(seen) + math.fsum(bounds)}

    def move(
        self, sliced: Any, gamma: Array, after: Array | None, n_rows: int, n_threads: int,
        made: dict[str, Array],
    ) -> None:  # fmt: skip
        """Move the rows from `gamma` into `after`."""
        kernels.update_rows(sliced, self.problem(gamma), gamma, after, n_threads=n_threads, **made)

    def problem(self, gamma: Array, total: Array | None = None) -> Any:
        """Return the row problem; `total` are rates."""
        alpha, K = np.zeros(gamma.shape[1], gamma.dtype), len(self.alpha)
        alpha[:K] = self.alpha
        return kernels.RowProblem(
            self.design, total, K, step=self.kind, alpha=alpha, inner_steps=self.n_steps,
            tolerance=self.tolerance,
        )  # fmt: skip

    @abstractmethod
    def terms(
        self, gamma: Array, after: Array | None, n_rows: int, n_threads: int
    ) -> tuple[Array, Values]:
        """Return what rows add to the ELBO besides their counts, and ``change``, how far they went.

        Where there is no `after` only the former.
        """


class Inference:
    """Posteriors of the rows of counts with topics held, a block at a time, in float64.

    Samples start from gamma = 1.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    step, worth : InferRows
        What moves gamma, and what it is worth then, made of ``next``.
    shift : ndarray (m,)
        Logarithms of what the features of `step.design` are divided by, in lane order.
    bound : float
        What the topics add to the ELBO.
    """

    def __init__(
        self, counts: CountMatrix, step: InferRows, worth: InferRows, shift: Array, bound: float,
        n_threads: int,
    ):  # fmt: skip
        layout, self._K = counts.layout(n_threads), len(step.alpha)
        self._blocks, order = LocalExecutor(layout, n_threads), layout.column_order
        self._step, self._worth, self.bound = step, worth, bound
        self._shift = float((counts.column_totals[order[: counts.shape[1]]] * shift).sum())

        def ones(place: Any) -> Array:
            gamma = aligned_copy(np.ones((place.last - place.first, step.design.shape[1])))
            gamma[:, self._K :] = 0
            return gamma

        self._blocks.put_by("gamma", ones)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Rows of one block after the other, and their gamma."""
        for place, made in self._blocks.stream(self._step):
            gamma = plain_rows(self._blocks.layout, place, made["next"], self._K)
            yield slice(place.start, place.stop), gamma

    def elbo(self) -> float:
        """Return what the rows add to the ELBO: all but `bound`."""
        found = [made["bound"] for _, made in self._blocks.stream(self._step, self._worth)]
        return math.fsum(sum_lanes(each) for each in found) + self._shift


def topics_in_lanes(counts: CountMatrix, topics: Array, n_threads: int) -> tuple[Array, int]:
    """Return topics (m, K) in the order of the lanes of counts, and the number of lanes."""
    order = counts.layout(n_threads).column_order
    return np.ascontiguousarray(topics[order[: counts.shape[1]]], np.float64), len(order)
