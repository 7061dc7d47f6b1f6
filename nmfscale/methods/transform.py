"""Rows of counts with the factors held: their loadings and how well they fit, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import kernels
from ..counts.base import CountMatrix
from ..counts.sell import LANES
from ..storage.atomic import atomic_write
from .conversion import balancing_scales
from .factors import LEAST, MINVAL, aligned_copy, lane_order
from .local_rows import per_lane
from .steps import sliced_counts

Array = NDArray[Any]
_ROUNDS = 500
TOL = 1e-8
# A row rests where its residual is small and no EM step would raise a loading by more than this
# share: residuals are products with the loadings, and say nothing of one that is next to zero.
_LIFTS = 1e-3


class Projector:
    """Moves rows of a block, in lane order, while the factors are held.

    Each row is a convex problem of its own: it takes EM and Newton steps until its KKT residual is
    at most `tol` times its total, and then stands still, whatever its neighbours do.

    Parameters
    ----------
    design, total : ndarray (lanes, stride) and (stride,)
        F in lane order, and its column sums in float64.
    n_components, n_steps : int
        `n_steps` at most.
    tol : float
    n_threads : int
        The loadings do not depend on it.
    """

    def __init__(
        self, design: Array, total: Array, n_components: int, n_steps: int, tol: float,
        n_threads: int,
    ):  # fmt: skip
        self.n_steps, self._n_threads = n_steps, n_threads
        self._tol = max(tol, 50 * float(np.finfo(design.dtype).eps))
        self._dead = total == 0  # components without factors, and what fills up a row
        options: dict[str, Any] = {"floor": MINVAL, "em_steps": 1}
        if self._dead[:n_components].any():
            options["moves"] = (~self._dead).astype(design.dtype)
        held = design, total.astype(design.dtype), n_components
        self._em = kernels.RowProblem(*held, **options)
        self._newton = kernels.RowProblem(
            *held, newton_steps=1, qp_sweeps=50, qp_tolerance=1e-12, **options
        )

    def move(self, sliced: Any, values: Array, totals: Array, prior: dict[str, Array]) -> None:
        """Move rows from where `values` has them to where they belong, in place."""
        after, scale = aligned_copy(values), totals
        if prior:
            scale = scale + prior["pseudo"].sum(axis=1, dtype=np.float64)
        # An empty row has no scale to judge a residual by: without a prior it is zero and stays.
        moving, kkt = scale > 0, np.zeros(len(values))
        unproven, lifted = moving, np.zeros(len(values), bool)
        for _ in range(self.n_steps):
            if not moving.any():
                self._visit(self._em, sliced, values, after, unproven, prior)
                lifted = unproven & (after > (1 + _LIFTS) * values).any(axis=1)
                moving = unproven = lifted
                if not moving.any():
                    break
            self._visit(self._newton, sliced, values, after, moving, prior, kkt_start=kkt)
            moving = moving & (lifted | (kkt > self._tol * scale))
            lifted = np.zeros(len(values), bool)
            values[moving] = after[moving]
        values[values <= MINVAL] = 0
        values[scale == 0] = 0
        values[:, self._dead] = 0
        if prior:
            pseudo, rate = (prior[name][:, self._dead] for name in ("pseudo", "rate"))
            best = np.zeros_like(pseudo)
            np.divide(pseudo, rate, out=best, where=rate > 0)
            values[:, self._dead] = best

    def _visit(
        self, problem: Any, sliced: Any, values: Array, after: Array, rows: Array,
        prior: dict[str, Array], **report: Array,
    ) -> None:  # fmt: skip
        slices = np.flatnonzero(rows.reshape(-1, LANES).any(axis=1))
        kernels.visit(
            sliced, problem, values, after, slices=slices, n_threads=self._n_threads,
            **prior, **report,
        )  # fmt: skip


def design_of(F: Array, order: Array, dtype: Any) -> tuple[Array, Array]:
    """Return factors (m, K) in lane order, and their column sums, as a `Projector` takes them.

    A component without factors has sum 0, and no loadings: there is nothing that it could explain.
    """
    K, stride = F.shape[1], kernels.row_stride(F.shape[1])
    total = np.zeros(stride)
    total[:K] = np.asarray(np.maximum(F, MINVAL), np.float64).sum(axis=0)
    total[:K][~F.any(axis=0)] = 0
    return lane_order(F, order, stride, dtype, least=MINVAL), total


class Projection:
    """Loadings of the rows of counts with the factors F held: see `Projector`.

    Beside the counts, only the loadings of one block are in memory.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    F : ndarray (m, K)
    L : ndarray (n, K), optional
        Where the rows start; by default each has the same expected counts of every component.
    n_steps : int, default=500
        At most.
    tol : float, default=1e-8
    dtype : float32 or float64, default=float64
    n_threads : int, default=1
        The loadings do not depend on it.
    prior : tuple of ndarray (n, K), optional
        Pseudo-counts and rates of a Gamma prior.
    """

    def __init__(
        self, counts: CountMatrix, F: Array, *, L: Array | None = None, n_steps: int = _ROUNDS,
        tol: float = TOL, dtype: DTypeLike = np.float64, n_threads: int = 1,
        prior: tuple[Array, Array] | None = None,
    ):  # fmt: skip
        self._scales = balancing_scales(counts.total, counts.shape, L, F)
        F, L = F / self._scales.astype(F.dtype), None if L is None else L * self._scales
        if prior is not None:
            prior = prior[0], prior[1] / self._scales
        self._counts, self._F, self._L, self._prior = counts, F, L, prior
        self._n_threads, self._dtype = n_threads, np.dtype(dtype)
        self._layout = counts.layout(n_threads)
        K = F.shape[1]
        design, total = design_of(F, self._layout.column_order, self._dtype)
        self._stride, self._total = len(total), total[:K]
        self._projector = Projector(design, total, K, n_steps, tol, n_threads)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Rows of one block after the other, and their loadings."""
        for block, slices in self._layout.visit("rows"):
            sliced = sliced_counts(slices, self._counts.shape[1])
            loadings = self._loadings(block, sliced)
            yield slice(block.start, block.stop), loadings / self._scales.astype(loadings.dtype)

    def log_shares(self) -> Array:
        """Return ``sum_j x_ij log p_ij`` with ``p_ij = mu_ij / sum_j mu_ij``, (n,) float64."""
        log_mu = _LogMu(self._counts, self._F, self._n_threads)
        u, out = self._F.sum(axis=0, dtype=np.float64), np.empty(self._counts.shape[0])
        for block, slices in self._layout.visit("rows"):
            sliced = sliced_counts(slices, self._counts.shape[1])
            L = self._loadings(block, sliced).astype(np.float64, copy=False)
            rows = slice(block.start, block.stop)
            # summed row by row: the rounding of a product of matrices depends on their size
            sizes = np.maximum((L * u).sum(axis=1), LEAST)
            out[rows] = log_mu.of(block, sliced, L)
            out[rows] -= self._counts.row_totals[rows] * np.log(sizes)
        return out

    def _loadings(self, block: Any, sliced: Any) -> Array:
        order = self._layout.row_order[block.first : block.last]
        values = self._start(block, order)
        totals, prior = per_lane(self._counts.row_totals, order), {}
        if self._prior is not None:
            prior = {
                name: lane_order(p, order, self._stride, self._dtype, 0)
                for name, p in zip(("pseudo", "rate"), self._prior, strict=True)
            }
        self._projector.move(sliced, values, totals, prior)
        del prior
        return _plain(block, order, values[:, : len(self._total)])

    def _start(self, block: Any, order: Array) -> Array:
        """Where the rows of a block start, in lane order."""
        plain = self._L
        if plain is None:
            rows = slice(block.start, block.stop)
            totals = self._counts.row_totals[rows, None]
            share = np.zeros(len(self._total))  # a component that is nothing has none
            np.divide(1, len(share) * self._total, out=share, where=self._total > 0)
            plain, order = totals * share, _local(block, order)
        return lane_order(plain, order, self._stride, self._dtype, least=MINVAL)


def project_rows(counts: CountMatrix, F: Array, **options: Any) -> Array:
    """Return loadings (n, K) of every row of the counts; `options` are those of `Projection`."""
    projection = Projection(counts, F, **options)
    out = np.empty((counts.shape[0], F.shape[1]), options.get("dtype", np.float64))
    for rows, loadings in projection.blocks():
        out[rows] = loadings
    return out


def write_array(
    target: Path, shape: tuple[int, ...], dtype: np.dtype[Any], pieces: Iterable[Array]
) -> None:
    """Write an array to a file in NumPy's format, some rows at a time; whole or not at all."""
    described = np.lib.format.dtype_to_descr(dtype)
    with atomic_write(target) as part, part.open("xb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": described, "fortran_order": False, "shape": shape}
        )
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype).data)


def log_mu_rows(counts: CountMatrix, L: Array, F: Array, *, n_threads: int = 1) -> Array:
    """Sum of x log mu over the nonzeros of each row, mu = L F^T, (n,) float64."""
    log_mu, out = _LogMu(counts, F, n_threads), np.empty(counts.shape[0])
    for block, slices in counts.layout(n_threads).visit("rows"):
        rows = slice(block.start, block.stop)
        out[rows] = log_mu.of(block, sliced_counts(slices, counts.shape[1]), L[rows])
    return out


class _LogMu:
    """Sums of x log mu over the nonzeros of rows, with the factors held."""

    def __init__(self, counts: CountMatrix, F: Array, n_threads: int):
        layout = counts.layout(n_threads)
        self._order, self._n_threads = layout.row_order, n_threads
        self._stride = kernels.row_stride(F.shape[1])
        F = np.asarray(F, np.float64)
        design = lane_order(F, layout.column_order, self._stride, np.float64)
        self._problem = kernels.RowProblem(design, np.zeros(self._stride), F.shape[1])

    def of(self, block: Any, sliced: Any, L: Array) -> Array:
        """Return them for the rows of a block, whose loadings are L."""
        order = self._order[block.first : block.last]
        found = np.zeros(len(order))
        values = lane_order(
            np.asarray(L, np.float64), _local(block, order), self._stride, np.float64
        )
        kernels.visit(
            sliced, self._problem, values, None, loglik_end=found, n_threads=self._n_threads
        )
        return _plain(block, order, found)


def _local(block: Any, order: Array) -> Array:
    """Return the order of a block's lanes, counted from its own first row."""
    return np.where(order < 0, -1, order - block.start)


def _plain(block: Any, order: Array, values: Array) -> Array:
    """Return what is in lane order in the order of the rows."""
    out = np.empty((block.stop - block.start, *values.shape[1:]), values.dtype)
    out[order[order >= 0] - block.start] = values[order >= 0]
    return out
