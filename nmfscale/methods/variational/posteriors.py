"""Posteriors of samples with fixed topics: a step of a fit, and inference of new samples."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.cached import cached_property
from ...counts.sell import LANES, lanes_of
from ...engine import progress
from ...engine.protocol import Block, Needs, RowArrays, Step, Sums, Values
from ..factors import Array, aligned_copy, sum_lanes
from ..rows_pass import RowsPass
from ..slices import pieces, sliced_counts

# Rows whose terms are computed at a time, so that temporaries are small compared with row arrays.
PIECE = 1 << 12
# Memory of inference: row arrays of a block, and copies of the topics (measured: 4.1 and 5 to 6).
_COPIES_BLOCK, _COPIES_HELD = 5, 6


@dataclass(frozen=True)
class InferRows(Step):
    """Updates the posterior of every sample with fixed topics.

    `SumTerms` then finds the bound before the update from ``log_mu``, the sum over the counts of
    each sample.

    Attributes
    ----------
    design : ndarray (lanes, stride)
        exp(E log) of the topics in lane order, up to a factor for each feature.
    alpha : ndarray (K,)
        Shapes of the prior.
    n_steps, tolerance : int and float
        Maximum number of updates of each sample, and the mean change of gamma at which they end.
    source, target : str
        Names of gamma before and after; if there is none before, it is 1. Without a target the step
        makes only a row array ``bound``: the terms of each sample in the bound, without the
        logarithms of the factors of features.
    """

    design: Any
    alpha: Array
    n_steps: int = 1
    tolerance: float = 0.0
    source: str = "gamma"
    target: str | None = "next"

    reads = "rows"
    divides = True
    shared = ("design",)
    kind: ClassVar[int]

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `target`, `theta` and `log_mu`, or only the bound."""
        if self.target is None:
            return RowArrays((self.source,), ("bound",))
        return RowArrays((self.source,), (self.target, "theta", "log_mu"), (self.target,))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Move the rows of a block."""
        gamma, after = block.get(self.source), None
        if gamma is None:
            gamma = self._ones(LANES * (len(block.counts.offset) - 1))
        made = {"loglik_start": np.zeros(len(gamma)), **self.rates_of_lanes(block, gamma)}
        if self.target is not None:
            after, made["theta"] = block.empty(self.target, gamma), block.empty("theta", gamma)
        K, n_rows = len(self.alpha), block.n_rows
        for piece in pieces(block.counts, K, n_threads, whole=self.n_steps == 1):
            lanes = lanes_of(piece)
            n_here = max(0, min(lanes.stop, n_rows) - lanes.start)
            self.move(
                sliced_counts(block.counts.slices(piece), len(self.design)), gamma[lanes],
                None if after is None else after[lanes], n_here, n_threads,
                {name: array[lanes] for name, array in made.items()},
            )  # fmt: skip
            if after is not None:
                progress.advance(n_here)
        log_mu = made["loglik_start"]
        if after is None:
            log_mu[:n_rows] += self.terms(block, gamma, None, n_threads)[0]
        block.put("bound" if after is None else "log_mu", log_mu)
        return {}

    def rates_of_lanes(self, block: Block, gamma: Array) -> dict[str, Array]:
        """Return ``rate`` in the shape of `gamma` if rates differ between samples."""
        return {}

    def _ones(self, n_lanes: int) -> Array:
        gamma = aligned_copy(np.ones((n_lanes, self.design.shape[1])), self.design.dtype)
        gamma[:, len(self.alpha) :] = 0
        return gamma

    def move(
        self, sliced: Any, gamma: Array, after: Array | None, n_rows: int, n_threads: int,
        made: dict[str, Array],
    ) -> None:  # fmt: skip
        """Update the rows of `gamma` into `after`; `made` are arrays of the kernels."""
        kernels.update_rows(sliced, self.problem(gamma), gamma, after, n_threads=n_threads, **made)

    def problem(self, gamma: Array, total: Array | None = None) -> Any:
        """Return the row problem; `total` holds rates."""
        alpha, K = np.zeros(gamma.shape[1], gamma.dtype), len(self.alpha)
        alpha[:K] = self.alpha
        return kernels.RowProblem(
            self.design, total, K, step=self.kind, alpha=alpha, inner_steps=self.n_steps,
            tolerance=self.tolerance,
        )  # fmt: skip

    @abstractmethod
    def terms(
        self, block: Block, gamma: Array, after: Array | None, n_threads: int
    ) -> tuple[Array, Values]:
        """Return terms of rows in the ELBO beyond the counts, and ``change``.

        Without `after`, return only the former.
        """


@dataclass(frozen=True)
class SumTerms(Step):
    """Sums the terms of samples in the bound before an update, and what the update changed.

    `infer` is the step of the update, without its design.
    """

    infer: InferRows

    @classmethod
    def after(cls, infer: InferRows) -> SumTerms:
        """Return the step that follows an update."""
        return cls(replace(infer, design=None))

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses posteriors before and after the update."""
        arrays = self.infer.arrays
        return RowArrays((*arrays.uses, *arrays.saves, "log_mu"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        assert self.infer.target is not None
        gamma, after = block[self.infer.source], block[self.infer.target]
        bounds, terms = self.infer.terms(block, gamma, after, n_threads)
        return terms | {"bound": sum_lanes(block["log_mu"]) + math.fsum(bounds)}


def change_of(before: Array, after: Array, n_rows: int, n_components: int) -> Array:
    """Return the absolute changes (K,) of row arrays, summed over rows."""
    change = np.zeros(n_components)
    for first in range(0, n_rows, PIECE):
        here = slice(first, min(first + PIECE, n_rows)), slice(n_components)
        moved = after[here].astype(np.float64)
        moved -= before[here]
        change += np.abs(moved, out=moved).sum(axis=0)
    return change


class Inference(NamedTuple):
    """Posteriors of rows of counts with fixed topics, in float64, started from gamma = 1.

    Attributes
    ----------
    loadings : RowsPass
        Finds gamma (n, K), or the loadings that a model derives from it.
    bounds : RowsPass
        Finds the terms of each row in the ELBO, without `shift` and `constant`.
    shift, constant : float
        Terms that complete the sum of the bounds to the ELBO of the rows.
    of_topics : float
        Terms of the topics in the ELBO.
    """

    loadings: RowsPass
    bounds: RowsPass
    shift: float
    constant: float
    of_topics: float

    def elbo(self, client: Any = None, **options: Any) -> float:
        """Return the terms of rows in the ELBO; for parameters see `RowsPass.in_lanes`."""
        elbo = math.fsum(
            sum_lanes(of_block) for _, of_block in self.bounds.in_lanes(client, **options)
        )
        return elbo + self.shift + self.constant


def inference(
    counts: CountMatrix, step: InferRows, worth: InferRows, shift: Array, of_topics: float,
    n_threads: int, constant: float = 0.0,
) -> Inference:  # fmt: skip
    """Return the passes of inference: `step` makes ``next``, `worth` the ELBO terms of rows.

    `shift` (m,) holds the logarithms of the divisors of features in `step.design`, in lane order;
    `constant` is added to the ELBO of the rows.
    """
    order, K = counts.layout(n_threads).column_order, len(step.alpha)
    shifts = float((counts.column_totals[order[: counts.shape[1]]] * shift).sum())
    needs = inference_needs(counts, K)
    gamma = RowsPass(counts, (step,), "next", K, needs=needs, n_threads=n_threads)
    bounds = replace(gamma, steps=(step, worth), output="bound", width=1)
    return Inference(gamma, bounds, shifts, constant, of_topics)


def inference_needs(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory that posteriors of new rows need; `row` is for each row of a block."""
    m, stride = counts.shape[1], kernels.row_stride(n_components)
    return Needs(
        row=stride * 8 * _COPIES_BLOCK + 8 * 8,
        shared=m * stride * 8 * _COPIES_HELD + PIECE * n_components * 8 * 6,
        sums=0,
    )


def topics_in_lanes(counts: CountMatrix, topics: Array, n_threads: int) -> tuple[Array, int]:
    """Return topics (m, K) in the lane order of the counts, and the number of lanes."""
    order = counts.layout(n_threads).column_order
    return np.ascontiguousarray(topics[order[: counts.shape[1]]], np.float64), len(order)
