"""Mean-field inference with momentum, for any model whose updates never lower a bound.

A point is the row array ``gamma``, shapes of the posterior of every sample, and shared arrays that
are held in this process; all are positive.  One iteration, counts read once:

1. A plain step to ``next``, which cannot lower the evidence lower bound (ELBO).  What the point is
   worth from which it went is a by-product.
2. Judge that point.  If its ELBO is the highest so far, keep it as ``best``.  If it fell, the next
   step has no momentum; if it is still lower then, go back to the best.
3. Momentum on logarithms: ``gamma <- next (next / before)^b``, shared arrays likewise, with
   ``before`` the plain point before, ``b = min((k - 1) / (k + 2), MOST_MOMENTUM)``, and k the
   iterations since one fell.

The history has the best ELBO so far, and the fit ends at the best point: it never falls.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import kernels
from ..counts.base import CountMatrix
from ..engine.protocol import Block, Executor, Model, RowArrays, Step, Sums, Values
from .factors import Array, aligned_copy

MOST_MOMENTUM = 0.99
# An ELBO that is lower by no more than this share of it has not fallen: that is rounding.
NOISE = {"float32": 1e-8, "float64": 1e-14}
_SAVED = "gamma", "before", "best"
# What is held in this process of a point, by name.
Shared = dict[str, Array]


@dataclass(frozen=True)
class ExtrapolateLog(Step):
    """Goes on from ``next``, away from ``before``, on logarithms."""

    momentum: float

    @property
    def arrays(self) -> RowArrays:
        """Names of the row arrays."""
        return RowArrays(("next", "before"), ("gamma",))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Extrapolate the rows of a block."""
        now = block["next"]
        out = block.empty("gamma", now)
        kernels.extrapolate_log(now, block["before"], out, self.momentum, n_threads=n_threads)
        return {}


class MeanField(Model):
    """Points and row arrays ``gamma``, ``next``, ``before`` and ``best``: see the top of this file.

    A step may make another row array, ``theta``.

    Parameters
    ----------
    counts : CountMatrix of shape (n, m)
    blocks : Executor
    n_components : int
    dtype : float32 or float64
        Of the row arrays.
    momentum : bool
    """

    result_name = "posterior"
    ends_with_update = True

    def __init__(
        self, counts: CountMatrix, blocks: Executor, n_components: int, dtype: Any, momentum: bool
    ):
        self.counts, self.blocks, self.n_components = counts, blocks, n_components
        self.dtype, self.momentum = np.dtype(dtype), momentum
        self.stride = kernels.row_stride(n_components)
        self.points: dict[str, Shared] = {}
        self.best: dict[str, Any] = {}
        self.count, self.beta, self.fallen = 0, 0.0, False
        self._seen: dict[str, Any] = {}

    @abstractmethod
    def look(self) -> dict[str, Any]:
        """Make the plain point ``next``; return the record of the point where the fit stands.

        The record has ``elbo`` and what vanishes at an optimum.
        """

    @abstractmethod
    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared arrays of a point."""

    def momentum_of(self, count: int) -> float:
        """Return the momentum after so many iterations since one fell."""
        return min((count - 1) / (count + 2), MOST_MOMENTUM)

    def copy(self, source: str, target: str) -> None:
        """Let two names stand for one point."""
        self.blocks.copy(source, target)
        self.points[target] = self.points[source]

    def _looked(self) -> dict[str, Any]:
        return self.look() | {"momentum": self.beta, "bytes_read": self.blocks.bytes_read}

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Make a plain step, and see on the way what the present point is worth."""
        self._seen = self._looked()
        if not iteration:
            return None
        reached = self._seen["elbo"]
        return self._seen | {"elbo": max(reached, self.best["elbo"]), "reached": reached}

    def update(self, iteration: int, ending: bool) -> None:
        """Judge the point, and go to the next; or back to the best."""
        reached, best = self._seen["elbo"], self.best.get("elbo", -math.inf)
        fell = bool(self.best) and reached < best - NOISE[self.dtype.name] * abs(best)
        if reached >= best:
            self.best = self._seen
            self.copy("gamma", "best")
        self.count, self.beta = 1 if fell else self.count + 1, 0.0
        if fell and self.fallen and not ending:
            self.count, self.fallen = 0, False
            self.copy("best", "gamma")
            return
        self.fallen = fell
        if self.momentum and not ending:
            self.beta = self.momentum_of(self.count)
        if self.beta:
            self._extrapolate()
        else:
            self.copy("next", "gamma")
        self.copy("next", "before")

    def _extrapolate(self) -> None:
        self.blocks.apply(ExtrapolateLog(self.beta))
        found: Shared = {}
        for name, now in self.points["next"].items():
            before, found[name] = self.points["before"][name], np.empty_like(now)
            kernels.extrapolate_log(
                now, before, found[name], self.beta, n_threads=self.blocks.n_threads
            )
        self.points["gamma"] = self.feasible(found)

    def feasible(self, shared: Shared) -> Shared:
        """Return shared arrays that were extrapolated as a point may have them."""
        return shared

    def finish(self, settled: bool) -> dict[str, Any]:
        """Stand at the last plain point, or at the best if that is higher."""
        self.blocks.drop("before")
        seen = self._looked()
        if seen["elbo"] < self.best["elbo"]:
            self.copy("best", "gamma")
            seen = self.best | {"bytes_read": seen["bytes_read"]}
        self.blocks.drop("next", "theta", "best")
        return seen

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays that every snapshot has."""
        rows = len(self.blocks.layout.row_order)
        found: dict[str, tuple[int, ...]] = dict.fromkeys(_SAVED, (rows, self.stride))
        for point in _SAVED:
            found |= {f"{point}_{name}": shape for name, shape in self.shared_shapes().items()}
        return found

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what `restore` takes."""
        arrays = {}
        for point in _SAVED:
            arrays[point] = self.blocks.get(point)
            arrays |= {f"{point}_{name}": array for name, array in self.points[point].items()}
        return {name: getattr(self, name) for name in ("best", "count", "beta", "fallen")}, arrays

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Stand where the state was taken."""
        for name, value in numbers.items():
            setattr(self, name, value)
        for point in _SAVED:
            self.blocks.put(point, aligned_copy(arrays[point]))
            self.points[point] = {name: arrays[f"{point}_{name}"] for name in self.shared_shapes()}
