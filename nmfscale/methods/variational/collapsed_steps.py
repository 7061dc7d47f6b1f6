"""Steps of collapsed LDA: the work on one block of counts, see `collapsed`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_copy
from ...counts.cached import cached_property
from ...counts.sell import LANES, lanes_of
from ...engine import progress
from ...engine.protocol import Block, OverLanes, RowArrays, Step, Sums, Values
from ...kernels.functions import digamma
from ..factors import Array, sum_lanes
from ..slices import pieces, sliced_counts
from .posteriors import PIECE, change_of

# A divisor: the probability that a sum of counts is not 0.
_LEAST = 1e-12


@dataclass(frozen=True)
class Priors:
    """Numbers of the topics that rows and columns need: alpha (K,), eta, and 1 / (N_k + m eta).

    With known topics, eta is None and the scale is 1.
    """

    alpha: Array
    eta: float | None
    scale: Array

    def problem(self, design: Array, own: Array, held: Array | None, **how: Any) -> Any:
        """Return the row problem, with priors of the rows and of the held factor."""
        stride = design.shape[1]
        alpha, total = (_padded(parameter, stride, design.dtype) for parameter in (own, self.scale))
        return kernels.RowProblem(
            design, total, len(self.alpha), step=kernels.COLLAPSED, alpha=alpha,
            held_prior=None if held is None else _padded(held, stride, design.dtype), **how,
        )  # fmt: skip

    def of_features(self) -> Array | None:
        """Return eta for each topic, None for known topics."""
        return None if self.eta is None else np.full(len(self.alpha), self.eta)


def _padded(values: Array, stride: int, dtype: Any) -> Array:
    padded = np.zeros(stride, dtype)
    padded[: len(values)] = values
    return padded


@dataclass(frozen=True)
class ShareRows(Step):
    """Shares the counts of every sample among the topics: `source` to `target`.

    Attributes
    ----------
    design : ndarray (lanes, stride)
        Expected counts of topics in features, or probabilities of features, in lane order.
    priors : Priors
    n_steps, tolerance : int and float
        Maximum number of passes over each sample, and the mean change at which they end.
    source, target : str
        Names of expected counts before and after; 0 if there are none before. Without a target the
        step makes only a row array ``bound``: the log-probability of the counts of each sample, up
        to ``-N_i log(N_i - 1 + sum alpha)``.
    learns : bool
        Whether to make ``squares``, by which `SumChanges` estimates alpha: sums of the squares of
        shares.
    """

    design: Any
    priors: Priors
    n_steps: int = 1
    tolerance: float = 0.0
    source: str = "gamma"
    target: str | None = "next"
    learns: bool = False

    reads = "rows"
    divides = True
    shared = ("design",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Makes `target` and ``squares``, or only the bound."""
        if self.target is None:
            return RowArrays((self.source,), ("bound",))
        squares = ("squares",) if self.learns else ()
        return RowArrays((self.source,), (self.target, *squares), (self.target,))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Share out the counts of a block."""
        start, n_rows = block.get(self.source), block.n_rows
        K, n_lanes = len(self.priors.alpha), LANES * (len(block.counts.offset) - 1)
        if start is None:
            start = aligned_copy(np.zeros((n_lanes, self.design.shape[1])), self.design.dtype)
        made = {"loglik_start": np.zeros(n_lanes)}
        if "squares" in self.arrays.makes:
            made["squares"] = block.empty("squares", start)
        end = None if self.target is None else block.empty(self.target, start)
        problem = self.priors.problem(
            self.design, self.priors.alpha, self.priors.of_features(), inner_steps=self.n_steps,
            tolerance=self.tolerance,
        )  # fmt: skip
        for piece in pieces(block.counts, K, n_threads, whole=self.n_steps == 1):
            lanes = lanes_of(piece)
            kernels.update_rows(
                sliced_counts(block.counts.slices(piece), len(self.design)), problem, start[lanes],
                None if end is None else end[lanes], n_threads=n_threads,
                **{name: array[lanes] for name, array in made.items()},
            )  # fmt: skip
            if end is not None:
                progress.advance(max(0, min(lanes.stop, n_rows) - lanes.start))
        if end is None:
            block.put("bound", made["loglik_start"])
            return {}
        return {"bound": OverLanes(made["loglik_start"], sum_lanes)}


@dataclass(frozen=True)
class SumChanges(Step):
    """Sums how much ``gamma`` changes to ``next``, and the terms of samples in the next `alpha`.

    ``excess`` are the latter, if ``squares`` are known.
    """

    alpha: Array
    arrays = RowArrays(("gamma", "next", "squares"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        K, after, squares = len(self.alpha), block["next"], block.get("squares")
        of_block: Values = {"change": change_of(block["gamma"], after, block.n_rows, K)}
        if squares is not None:
            of_block["excess"] = excess = np.zeros(K)
            for first in range(0, block.n_rows, PIECE):
                rows = slice(first, min(first + PIECE, block.n_rows)), slice(K)
                counts, of_squares = (
                    after[rows].astype(np.float64),
                    squares[rows].astype(np.float64),
                )
                excess += mean_digamma(counts, of_squares, self.alpha, n_threads).sum(axis=0)
        return of_block


@dataclass(frozen=True)
class ShareColumns(Step):
    """Sums the shares of the topics in the counts of every feature, and their squares.

    `F` (lanes, stride) are the expected counts of topics in features, in lane order.
    """

    F: Any
    priors: Priors
    source: str = "gamma"

    reads = "columns"
    shared = ("F",)

    @cached_property
    def arrays(self) -> RowArrays:
        """Uses the expected counts `source`."""
        return RowArrays((self.source,))

    def empty_sums(self) -> Sums:
        """Return zeros for the shares, then for their squares."""
        return [np.zeros((len(self.F) // LANES, 2 * len(self.priors.alpha), LANES))]

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the contribution of a block."""
        N, eta = block[self.source], self.priors.of_features()
        assert eta is not None
        kernels.sums(
            sliced_counts(block.counts, len(N)), self.priors.problem(N, eta, self.priors.alpha),
            self.F, sums[0], wanted=kernels.SUM_DIAGONAL, first=0, last=len(sums[0]),
            n_threads=n_threads,
        )  # fmt: skip
        return {}

    def of_slices(self, slices: slice) -> ShareColumns:
        """Return the step for some slices of columns."""
        return replace(self, F=self.F[lanes_of(slices)])


def mean_digamma(counts: Array, squares: Array, prior: Any, n_threads: int) -> Array:
    """Return E[psi(N + a) - psi(a)] of sums N of independent counts that are 0 or 1.

    `counts` and `squares` are the sums of their probabilities and of the squares of these. The
    probability of N = 0 is that of a binomial number with the same sums. Given N > 0, psi is taken
    at the mean.
    """
    some = np.empty_like(counts)
    kernels.nonzero(counts, squares, some, n_threads=n_threads)
    np.maximum(some, _LEAST, out=some)
    digammas: Array = counts / some
    digammas += prior
    kernels.digamma(digammas, digammas, n_threads=n_threads)
    digammas -= digamma(prior)
    digammas *= some
    return digammas
