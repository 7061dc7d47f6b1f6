"""Frequencies of features within topics in groups of samples, with the loadings held.

In the samples of group g counts are ``x_ij ~ Poisson(e_ij sum_k l_ik f_jk r_gjk)`` with known
amounts l, frequencies f of all samples, efficiencies e, and ratios r with a Gamma prior of mean 1
and shape a. For each feature and group, the ratios of all topics are the mode of

    sum_i x_ij log(sum_k l_ik f_jk r_k) - sum_k s_k f_jk r_k + sum_k a (log r_k - r_k),

where s are sums of ``e_ij l_ik``. It is concave, and self-concordant up to a scale, so that damped
Newton steps reach it from anywhere. For samples with one topic the mode is
``(a + sum x) / (a + s f)``, the posterior mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.panels import panel_slices
from ...counts.sell import LANES, SellBlock, lanes_of
from ...counts.split_columns import split_columns
from ...engine.protocol import ColumnStep, Needs, Panel
from ...kernels import decompositions
from .group_errors import Errors, GroupSums
from .split_sums import matrices, part_sums

Array = NDArray[Any]
# Entries that are sorted by group at a time, and bytes for each of them; copies of the results.
_ENTRIES, _ENTRY_BYTES, _RESULTS = 1 << 19, 64, 3
# Squared Newton decrement at which a step is the last; decrement from which steps are damped; most
# steps.
_FOUND, _DAMPED, _MOST_STEPS = 1e-12, 0.25, 200


@dataclass(frozen=True)
class FitGroups(ColumnStep):
    """Fits the frequencies of the features of a panel in all groups of samples.

    Row arrays: ``design`` (lanes, stride), the amounts; ``groups``, ``units`` and ``batches``
    (lanes,), the numbers of the group, unit, and vector of efficiencies of each sample.
    F (lanes, stride) has the frequencies of all samples, `efficiencies` (lanes, B) those of the
    features, `sums` what amounts add up to. Shapes of the prior are ``shapes * dispersions``, of
    topics (K,) and features (lanes,).

    Results are ``ratios`` and ``variances`` (lanes, G, K), those of logarithms of the ratios,
    posterior ones of Poisson counts. With `errors`, variances are those between units, ``changes``
    (lanes, G, K) those of log ratios to the first group or, with `rest`, to all others, ``counts``
    (lanes, G, K) the counts that are split to topics, and ``scores`` (lanes, 2) the sums of squared
    scores of units, and what they are for Poisson counts.
    """

    F: Array
    efficiencies: Array
    sums: GroupSums
    shapes: Array
    dispersions: Array
    errors: bool = False
    rest: bool = False

    shared = ("F", "efficiencies")
    uses = ("design", "groups", "units", "batches")

    def run(self, panel: Panel, n_threads: int) -> dict[str, Array]:
        """Fit the features of a panel, some slices at a time."""
        beside = _numbers_of_feature(self.sums, len(self.shapes)) * LANES * 8 // _ENTRY_BYTES
        steps = np.diff(panel.counts.offset) + beside // LANES
        pieces = [
            self._fitted(panel, part, n_threads) for part in panel_slices(steps, _ENTRIES)
        ]  # fmt: skip
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _fitted(self, panel: Panel, part: slice, n_threads: int) -> dict[str, Array]:
        """Return the results of some slices of a panel."""
        here, arrays, K = lanes_of(part), panel.arrays, len(self.shapes)
        counts, G = panel.counts.slices(part), self.sums.n_groups
        e, phi = self.efficiencies[panel.lanes][here], self.dispersions[panel.lanes][here]
        parts, order = split_columns(counts, arrays["groups"], G, n_threads)
        feature = order // G
        shapes = phi[:, None] * self.shapes
        problem = _Problem(
            parts, arrays["design"], self.F[panel.lanes][here][feature],
            self.sums.expected(e).reshape(-1, K)[order], shapes[feature], n_threads,
        )  # fmt: skip

        def by_feature(values: Array) -> Array:
            out = np.empty_like(values)
            out[order] = values
            return out.reshape(-1, G, *values.shape[1:])

        modes = problem.modes()
        ratios, products = by_feature(modes), by_feature(problem.products(modes))
        covariances = _inverse(products, shapes)
        if not self.errors:
            variances = np.diagonal(covariances, axis1=2, axis2=3).copy()
            return {"ratios": ratios, "variances": variances}
        f = np.zeros((*ratios.shape[:2], problem.F.shape[1]))
        f[:, :, :K] = by_feature(problem.F[:, :K]) * ratios
        errors = Errors(self.sums, f, covariances, e, shapes, phi, n_threads)
        if self.sums.units is None:
            squares, moves = errors.squares_of_samples(parts, order, arrays), None
        else:
            squares, moves = errors.squares_of_units(counts, arrays)
        return {
            "ratios": ratios, "counts": products.sum(axis=3),
            **errors.variances(squares, moves, self.rest), "scores": _scores(squares, products),
        }  # fmt: skip


def _inverse(products: Array, shapes: Array) -> Array:
    """Return the inverse (p, G, K, K) of the curvature of log ratios, with shapes (p, K)."""
    _, G, K, _ = products.shape
    curvature = products.reshape(-1, K, K).copy()
    curvature[:, range(K), range(K)] += np.repeat(shapes, G, axis=0)
    return decompositions.inverse(curvature)[0].reshape(products.shape)


def _scores(squares: Array, products: Array) -> Array:
    """Return sums (p, 2) of squared scores, and what is expected of Poisson counts."""
    diagonals = (np.diagonal(values, axis1=2, axis2=3) for values in (squares, products))
    return np.stack([values.sum(axis=(1, 2)) for values in diagonals], axis=1)


@dataclass(frozen=True)
class _Problem:
    """Regressions of parts of columns: a part has the counts of a feature in a group of samples.

    F (lanes, stride) are frequencies, `expected` (lanes, K) sums of amounts, `shapes` (lanes, K).
    """

    parts: SellBlock
    L: Array
    F: Array
    expected: Array
    shapes: Array
    n_threads: int

    def products(self, ratios: Array) -> Array:
        """Return sums (lanes, K, K) of ``x_i p_ik p_il``, where p are the shares of topics in x.

        Their sums over l are the counts that are split to topic k.
        """
        K, F = ratios.shape[1], self.F.copy()
        F[:, :K] *= ratios
        packed = part_sums(
            self.parts, self.L, F, K, wanted=kernels.SUM_FULL, n_threads=self.n_threads
        )
        out = matrices(packed, K)
        out *= F[:, :K, None]
        out *= F[:, None, :K]
        return out

    def modes(self) -> Array:
        """Return the ratios (lanes, K). A part that has reached its mode is left as it is."""
        K, a = self.expected.shape[1], self.shapes
        expected = self.expected * self.F[:, :K]
        z = self.products(np.ones_like(a)).sum(axis=2)
        ratios = (a + z) / (a + expected)  # an EM step, which is exact without counts
        scale = np.sqrt(np.minimum(a.min(axis=1), 1.0))
        busy = np.flatnonzero(z.any(axis=1))
        for _ in range(_MOST_STEPS):
            if not busy.size:
                break
            r, curvature = ratios[busy], self.products(ratios)[busy]
            score = curvature.sum(axis=2) - expected[busy] * r + a[busy] * (1 - r)
            curvature[:, range(K), range(K)] += a[busy]
            step = decompositions.solve(curvature, score[:, :, None])[:, :, 0]
            squared = np.maximum((score * step).sum(axis=1), 0.0)
            decrement = np.sqrt(squared) / scale[busy]
            damping = np.where(decrement > _DAMPED, 1 / (1 + decrement), 1.0)
            ratios[busy] = r * (1 + damping[:, None] * step)
            busy = busy[squared > _FOUND]
        return ratios


def _numbers_of_feature(sums: GroupSums, n_components: int) -> int:
    """Return how many numbers of 8 bytes are computed for one feature at a time."""
    K, n_units = n_components, 0 if sums.units is None else sums.units.shape[1]
    return 6 * sums.n_groups * (K * K + K) + 5 * n_units * K


def group_needs(counts: CountMatrix, sums: GroupSums, n_components: int) -> Needs:
    """Return the memory of the frequencies in groups."""
    stride, lanes = kernels.row_stride(n_components), -(-counts.shape[1] // LANES) * LANES
    results = lanes * (4 * sums.n_groups * n_components + stride) * 8
    pieces = LANES * (_ENTRY_BYTES + 8 * _numbers_of_feature(sums, n_components))
    held, row = pieces + _ENTRIES * _ENTRY_BYTES, (stride + 3) * 8
    return Needs(
        row=3 * row, shared=_RESULTS * results + held, sums=0, task_row=0,
        task_shared=results + held, whole_row=2 * row,
    )  # fmt: skip
