"""A factor in the order of the layout: its memory, its sums, what is held of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from .. import kernels
from ..counts.aligned import aligned_empty
from ..counts.sell import LANES

Array = NDArray[Any]
MINVAL = 1e-10
# An expected count or size below this counts as this, so that its logarithm is finite; the kernels'
# MU_MIN.
LEAST = 1e-30
# Lanes that are converted at a time, so that temporaries stay small beside a factor.
_PIECE = 1 << 9


@dataclass(frozen=True)
class Held:
    """What a fit may not move, and what is known beforehand.

    Attributes
    ----------
    topics : ndarray of bool (K,), optional
        Topics whose factors stay as they were given.
    features, samples : ndarray of bool (m,) and (n,), optional
        Rows of F and of L that stay as they were given.
    weights : ndarray (n,), optional
        Weight of each sample in the likelihood.
    prior_factors, prior_loadings : tuple (pseudo, rate), optional
        Gamma priors (Corollary 2): alpha - 1 pseudo-counts and rate beta, arrays (m, K) and (n, K).
    """

    topics: Array | None = None
    features: Array | None = None
    samples: Array | None = None
    weights: Array | None = None
    prior_factors: tuple[Array, Array] | None = None
    prior_loadings: tuple[Array, Array] | None = None

    def scaled(self, scales: Array) -> Held:
        """Return the same for loadings times `scales` (K,) and factors divided by them."""
        priors: dict[str, Any] = {}
        for name, factor in (("prior_factors", scales), ("prior_loadings", 1 / scales)):
            prior = getattr(self, name)
            priors[name] = None if prior is None else (prior[0], prior[1] * factor)
        return replace(self, **priors)

    def log_scales(self, scales: Array) -> float:
        """Return what the log prior changes by when the parameters are scaled back."""
        total, logs = 0.0, np.log(scales)
        if self.prior_factors is not None:
            total += math.fsum(self.prior_factors[0].sum(axis=0) * logs)
        if self.prior_loadings is not None:
            pseudo = self.prior_loadings[0]
            weighted = pseudo if self.weights is None else pseudo * self.weights[:, None]
            total -= math.fsum(weighted.sum(axis=0) * logs)
        return total


@dataclass
class Factor:
    """One factor in lane order: `values` (lanes, stride), 64-byte aligned, padded at the floor."""

    order: Array
    n_rows: int
    n_components: int
    values: Array
    held: Array | None = None
    pseudo: Array | None = None
    rate: Array | None = None
    folder: str | None = None

    def largest(self, per_lane: Array) -> float:
        """Return the largest of one number a lane, over rows that are not held."""
        of_rows = per_lane[: self.n_rows]
        if self.held is not None:
            of_rows = of_rows[~self.held[: self.n_rows]]
        return float(of_rows.max(initial=0.0))

    def prior(self) -> dict[str, Array]:
        """Pseudo-counts and rates as the kernels take them, where there are any."""
        if self.pseudo is None or self.rate is None:
            return {}
        return {"pseudo": self.pseudo, "rate": self.rate}

    def part(self, here: slice, n_rows: int) -> Factor:
        """Return some lanes, with `n_rows` rows, as a factor in the same memory."""
        prior = {name: array[here] for name, array in self.prior().items()}
        held = None if self.held is None else self.held[here]
        return Factor(
            self.order[here], n_rows, self.n_components, self.values[here], held,
            folder=self.folder, **prior,
        )  # fmt: skip

    def log_prior(self, weights: Array | None = None) -> float:
        """Sum of pseudo log b - rate b, the Gamma prior less its constant, each row weighted."""
        if self.pseudo is None or self.rate is None:
            return 0.0
        b = self.values.astype(np.float64)
        terms = xlogy(self.pseudo, np.maximum(b, 1e-300)) - self.rate * b
        if weights is not None:
            terms *= weights[:, None]
        return math.fsum(terms[self.order >= 0].sum(axis=0))

    def plain(self) -> Array:
        """Return the factor in the order of the user's rows, (n_rows, K)."""
        values = self.values
        out = aligned_empty((self.n_rows, self.n_components), values.dtype, self.folder)
        for first in range(0, len(values), _PIECE):
            order, rows = self.order[first : first + _PIECE], values[first : first + _PIECE]
            out[order[order >= 0]] = rows[order >= 0, : self.n_components]
        return out

    def column_sums(self, weights: Array | None = None) -> Array:
        """Return sums over rows in float64, row after row, (stride,)."""
        out = np.zeros(self.values.shape[1])
        for first in range(0, len(self.values), _PIECE):
            here = slice(first, first + _PIECE)
            values = self.values[here].astype(np.float64)
            values[self.order[here] < 0] = 0
            if weights is not None:
                values *= weights[here, None]
            kernels.sum_slices(values, out)
        return out

    def room(self, dtype: Any = None) -> Array:
        """Return a copy of the values in memory of its own, or on disk where they are there."""
        return aligned_copy(self.values, dtype, self.folder)

    def as_type(self, dtype: Any) -> Factor:
        """Return a copy in another type."""
        prior = {name: aligned_copy(array, dtype) for name, array in self.prior().items()}
        return Factor(
            self.order, self.n_rows, self.n_components, self.room(dtype), self.held,
            folder=self.folder, **prior,
        )  # fmt: skip


@dataclass
class Report:
    """What one half-step saw of the point where it started, and how far it went."""

    log_mu: float = math.nan
    kkt: float = math.nan
    change: float = 0.0
    zeros: float = 0.0


def at_floor(values: Array) -> Array:
    """Say which parameters are at the floor: zeros of the fit."""
    # the floor as float32 has it is a little above, and float32 may have carried the fit
    return values <= MINVAL * (1 + 1e-6)


def aligned_copy(values: Array, dtype: Any = None, folder: str | None = None) -> Array:
    """Return a copy of an array in lane order, in another type if wanted."""
    out = aligned_empty(values.shape, dtype or values.dtype, folder)
    out[:] = values
    return out


def lane_order(
    plain: Array, order: Array, stride: int, dtype: Any, empty: float = MINVAL,
    least: float | None = None, folder: str | None = None,
) -> Array:  # fmt: skip
    """Return rows of `plain` (n, K) in lane order, zeros up to `stride`, `empty` in the padding.

    What is smaller than `least` is raised to it.
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


def in_order(values: Array) -> float:
    """Sum of one number per lane: lane by lane over slices, then exactly over the 16 lanes."""
    return math.fsum(over_slices(values.reshape(-1, LANES)))


def over_slices(values: Array) -> Array:
    """Sum what kernels found in every slice, (n_slices, ...), slice after slice."""
    out = np.zeros(values.shape[1:])
    kernels.sum_slices(values.reshape(len(values), out.size), out.reshape(-1))
    return out
