"""Factors in lane order: memory, sums and constraints."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import kernels
from ..counts.aligned import aligned_copy, aligned_empty
from ..counts.cached import cached_property
from ..counts.sell import LANES
from ..kernels import functions

Array = NDArray[Any]
MINVAL = 1e-10
# Lower bound of expected counts and sizes, so that logarithms are finite; equals MU_MIN of the
# kernels.
LEAST = 1e-30
# Lanes that are converted at a time, so that temporaries are small compared with a factor.
_PIECE = 1 << 9
# Difference in binary orders of magnitude between the scales of two factors that needs no scaling.
_MOST_APART = 10


@dataclass(frozen=True)
class Constraints:
    """Fixed parameters, row weights (n,) and priors of a fit.

    `topics` (K,) is a mask of topics whose factors are fixed, `features` (m,) and `samples` (n,)
    are masks of fixed rows of F and of L; `factors` (m, K) is F as given, if something is fixed. A
    Gamma prior (Corollary 2) consists of alpha - 1 pseudo-counts and rate beta, arrays (m, K) and
    (n, K). For `groups` (n,) and `measured` (n_groups, m) see `measured.Measured`; `batches`
    (n_groups,) are the batches of the groups, and `batch_shape` the shape of the prior of their
    efficiencies, None if it is estimated: see `poisson.efficiencies`. `entries` (n, m) and
    `entry_constants` are the weights of entries, and the constants of their likelihood: see
    `poisson_weights.PoissonWeights`.
    """

    topics: Array | None = None
    features: Array | None = None
    samples: Array | None = None
    factors: Array | None = None
    weights: Array | None = None
    prior_factors: tuple[Array, Array] | None = None
    prior_loadings: tuple[Array, Array] | None = None
    groups: Array | None = None
    measured: Array | None = None
    batches: Array | None = None
    batch_shape: float | None = None
    entries: sp.csr_array | None = None
    entry_constants: tuple[Array, Array] | None = None

    def scaled(self, scales: Array) -> Constraints:
        """Return the constraints for loadings times `scales` (K,) and factors divided by them."""
        priors: dict[str, Any] = {}
        for name, factor in (("prior_factors", scales), ("prior_loadings", 1 / scales)):
            prior = getattr(self, name)
            priors[name] = None if prior is None else (prior[0], prior[1] * factor)
        return replace(self, **priors)

    @cached_property
    def free(self) -> bool:
        """Whether columns may be scaled freely: nothing is fixed and there are no priors."""
        others = {
            "weights", "groups", "measured", "batches", "batch_shape", "entries", "entry_constants"
        }  # fmt: skip
        names = set(self.__dataclass_fields__) - others
        return all(getattr(self, name) is None for name in names)

    @property
    def movable(self) -> bool:
        """Whether nothing is fixed: columns of L and F may be scaled as the priors allow."""
        return self.topics is None and self.features is None and self.samples is None

    @property
    def all_observed(self) -> bool:
        """Whether all entries are part of the likelihood, with weight and efficiency 1."""
        return self.groups is None and self.entries is None

    def parts(self) -> list[Array | None]:
        """Return all arrays from which a fit follows, in the order of the fields."""
        others = "batch_shape", "entries", "entry_constants"
        fields = [getattr(self, n) for n in self.__dataclass_fields__ if n not in others]
        arrays = [a for value in fields for a in (value if isinstance(value, tuple) else (value,))]
        if self.entries is None:
            return arrays
        values = [] if self.entry_constants is None else [self.entries.data]
        return [*arrays, self.entries.indptr, self.entries.indices, *values]

    def log_scales(self, scales: Array) -> float:
        """Return the change of the log prior when the parameters are scaled back."""
        total, logs = 0.0, functions.log(scales)
        if self.prior_factors is not None:
            total += math.fsum(self.prior_factors[0].sum(axis=0) * logs)
        if self.prior_loadings is not None:
            pseudo = self.prior_loadings[0]
            weighted = pseudo if self.weights is None else pseudo * self.weights[:, None]
            total -= math.fsum(weighted.sum(axis=0) * logs)
        return total


@dataclass
class Factor:
    """A factor in lane order, `values` (lanes, stride), of which the first `n_rows` lanes are rows.

    `fixed` is a mask of fixed rows; `pseudo` and `rate` are the parameters of a Gamma prior.
    """

    values: Array
    n_rows: int
    n_components: int
    fixed: Array | None = None
    pseudo: Array | None = None
    rate: Array | None = None

    def largest(self, per_lane: Array) -> float:
        """Return the maximum over rows that are not fixed, given one number for each lane."""
        of_rows = per_lane[: self.n_rows]
        if self.fixed is not None:
            of_rows = of_rows[~self.fixed[: self.n_rows]]
        return float(of_rows.max(initial=0.0))

    def prior(self) -> dict[str, Array]:
        """Return pseudo-counts and rates in the form of the kernels, None without a prior."""
        if self.pseudo is None or self.rate is None:
            return {}
        return {"pseudo": self.pseudo, "rate": self.rate}

    def log_prior(self, weights: Array | None = None) -> float:
        """Sum pseudo log b - rate b, the Gamma log prior without its constant, weighted by row."""
        if self.pseudo is None or self.rate is None:
            return 0.0
        b = self.values.astype(np.float64)
        terms = functions.xlogy(self.pseudo, np.maximum(b, 1e-300)) - self.rate * b
        if weights is not None:
            terms *= weights[:, None]
        return math.fsum(terms[: self.n_rows].sum(axis=0))

    def column_sums(self, weights: Array | None = None, exponent: float = 1.0) -> Array:
        """Return sums over rows of a power in float64, added row by row, (stride,).

        For powers other than squares, parameters below the floor are raised to it.
        """
        out = np.zeros(self.values.shape[1])
        for first in range(0, self.n_rows, _PIECE):
            here = slice(first, min(first + _PIECE, self.n_rows))
            values = self.values[here].astype(np.float64)
            if exponent == 2:
                values *= values
            elif exponent != 1:
                values = functions.power(np.maximum(values, MINVAL), exponent)
            if weights is not None:
                values *= weights[here, None]
            kernels.sum_slices(values, out)
        return out

    def as_type(self, dtype: Any) -> Factor:
        """Return a copy with a different dtype."""
        prior: dict[str, Any] = {n: aligned_copy(a, dtype) for n, a in self.prior().items()}
        return replace(self, values=aligned_copy(self.values, dtype), **prior)


def at_floor(values: Array) -> Array:
    """Return a mask of parameters at the floor: zeros of the fit."""
    # the floor in float32 is slightly higher, and the fit may have run in float32
    return values <= MINVAL * (1 + 1e-6)


def to_lanes(
    plain: Array, order: Array, stride: int, dtype: Any, empty: float = MINVAL,
    least: float | None = None, folder: str | None = None,
) -> Array:  # fmt: skip
    """Return rows of `plain` (n, K) in lane order, 0 up to `stride`, `empty` in other lanes.

    Values below `least` are raised to it.
    """
    out = aligned_empty((len(order), stride), dtype, folder)
    n_components = plain.shape[1]
    for first in range(0, len(order), _PIECE):
        here = slice(first, first + _PIECE)
        rows = plain[order[here]].astype(dtype, copy=False)
        out[here, :n_components] = rows if least is None else np.maximum(rows, least)
        out[here, n_components:] = 0
    out[order < 0, :n_components] = empty
    return out


def in_lane_order(n_rows: int, n_lanes: int) -> Array:
    """Return the order for `to_lanes` of rows that are in lane order already."""
    return np.append(np.arange(n_rows), np.full(n_lanes - n_rows, -1))


def rows_of_sums(sums: Array, n_rows: int) -> Array:
    """Return sums of the kernels (slices, K, 16) as rows (n_rows, K), in lane order."""
    K = sums.shape[1]
    return np.ascontiguousarray(sums.transpose(0, 2, 1).reshape(-1, K)[:n_rows])


def from_lanes(
    values: Array, order: Array, n_rows: int, n_components: int, folder: str | None = None
) -> Array:
    """Return an array in lane order as (n_rows, n_components), in the user's order of rows."""
    out = aligned_empty((n_rows, n_components), values.dtype, folder)
    for first in range(0, len(values), _PIECE):
        lanes, rows = order[first : first + _PIECE], values[first : first + _PIECE]
        out[lanes[lanes >= 0]] = rows[lanes >= 0, :n_components]
    return out


def per_lane(per_row: Array, order: Array) -> Array:
    """Return one number for each row in lane order, with 0 in lanes without a row."""
    out = np.zeros(len(order), per_row.dtype if per_row.dtype == bool else np.float64)
    out[order >= 0] = per_row[order[order >= 0]]
    return out


def sum_lanes(values: Array) -> float:
    """Sum one number for each lane: over slices in each lane, then exactly over the 16 lanes."""
    return math.fsum(over_slices(values.reshape(-1, LANES)))


def over_slices(values: Array) -> Array:
    """Sum results of the kernels (n_slices, ...) slice after slice."""
    out = np.zeros(values.shape[1:])
    kernels.sum_slices(values.reshape(len(values), out.size), out.reshape(-1))
    return out


def weighted_sum(values: Array, weights: Array | None) -> float:
    """Return the weighted sum of one number for each lane; lanes without a row must hold 0."""
    return sum_lanes(values if weights is None else values * weights)


def proportions(amounts: Array) -> Array:
    """Divide rows by their sums; rows of zeros stay zero."""
    sums = amounts.sum(axis=1, keepdims=True)
    out: Array = amounts / np.where(sums > 0, sums, 1.0)
    return out


def rescale(L: Array, F: Array) -> tuple[Array, Array]:
    r"""Scale the columns of L and F to equal means, which leaves :math:`L F^T` unchanged.

    The result is float32 if both are float32, otherwise float64. A column that is zero in L or in F
    stays unchanged in both.
    """
    dtype = np.result_type(L, F)
    of_L = L.mean(axis=0, dtype=np.float64)
    of_F = F.mean(axis=0, dtype=np.float64)
    ratio = np.ones_like(of_L)
    alive = (of_L > 0.0) & (of_F > 0.0)
    ratio[alive] = np.sqrt(of_F[alive]) / np.sqrt(of_L[alive])
    return (L * ratio).astype(dtype), (F / ratio).astype(dtype)


def balancing_scales(
    total: float, shape: tuple[int, int], L: Array | None, F: Array | None
) -> Array:
    """Return powers of two d (K,): column means of L d and F / d agree up to `_MOST_APART`.

    Parameters below an absolute floor count as zeros, so factors at a different scale must be
    rescaled to the scale of the counts. Powers of two change no digit, and d is 1 if the means are
    close. None stands for a factor that gives each component an equal part of the total count.
    """
    n, m = shape
    factor = F if L is None else L
    assert factor is not None
    K, sums = factor.shape[1], [None if A is None else A.sum(axis=0, dtype=float) for A in (L, F)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sums_L, sums_F = (
            total / (K * other) if own is None else own for own, other in (sums, sums[::-1])
        )
        ratio = (sums_F / m) / (sums_L / n)
    # the integer nearest to log2(ratio) / 2; that of 0 is 0
    exponents = np.frexp(np.where(np.isfinite(ratio), ratio, 0.0))[1] // 2
    exponents[np.abs(exponents) < _MOST_APART] = 0
    return np.ldexp(1.0, exponents)
