"""Penalties on loadings: ``weight sum_ik l_ik^q``, with the norm of every factor held at one.

Geiger and Park, equation 36.  With any scales of the factors, the same problem has the penalty
``weight sum_k ||f_k||_p^q sum_i l_ik^q`` (equation 37, Theorem F.1).  With p = q = 1, it divides
the loadings by a constant (Lemma 6.1) and makes none of them zero.  With q < 1, small loadings have
the steepest penalty.  With p = 2, a factor spread over many features has a larger sum at the same
norm, so that fewer loadings of it are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.protocol import Block, RowArrays, Step, Sums, Values
from ..kernels.functions import power
from .factors import MINVAL, Array, Factor


@dataclass(frozen=True)
class Penalty:
    """``sum_k weight_k sum_i l_ik^exponent``, where factors have an l1 or l2 norm of one.

    Attributes
    ----------
    weight : float or ndarray of shape (K,)
    exponent : float
        q, above 0 and at most 1.
    norm : {"l1", "l2"}
    """

    weight: Any
    exponent: float = 1.0
    norm: str = "l1"

    @property
    def only_rescales(self) -> bool:
        """Whether the optimum is that without a penalty, up to the scale of the loadings."""
        return self.exponent == 1 and self.norm == "l1"

    def scaled(self, scales: Any) -> Penalty:
        """Return the same penalty on loadings times `scales`, positive, a number or (K,)."""
        return replace(self, weight=self.weight * power(1 / np.asarray(scales), self.exponent))

    def slopes(self, L: Array, n_components: int) -> Array:
        """Return the derivative of the penalty at loadings (lanes, stride); 0 in the padding.

        The penalty is concave: the tangent is an upper bound, which an update may minimise instead.
        Loadings below the floor have the slope at the floor, as it would be infinite at 0.
        """
        out = np.zeros_like(L)
        inner = np.maximum(L[:, :n_components], MINVAL, dtype=np.float64)
        q = self.exponent
        out[:, :n_components] = self.weight * (q if q == 1 else q * power(inner, q - 1))
        return out


@dataclass(frozen=True)
class PenaltySlopes(Step):
    """Makes the ``rate`` of rows from the slopes of a penalty at L, and ``pseudo`` of zeros.

    An update of rows with this prior takes the penalty into account.
    """

    penalty: Penalty
    n_components: int

    @property
    def arrays(self) -> RowArrays:
        """Names of the row arrays that the step uses."""
        return RowArrays(("L",), ("pseudo", "rate"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Find the slopes of the rows of a block."""
        L = block["L"]
        for name, values in (
            ("pseudo", np.zeros_like(L)),
            ("rate", self.penalty.slopes(L, self.n_components)),
        ):
            block.empty(name, L)[:] = values
        return {}


@dataclass(frozen=True)
class PowerSums(Step):
    """Sums ``l_ik^exponent`` over the samples, weighted if they have weights."""

    exponent: float
    n_components: int
    source: str = "L"

    @property
    def arrays(self) -> RowArrays:
        """Names of the row arrays that the step uses."""
        return RowArrays((self.source, "weights"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Add the rows of a block."""
        L = block[self.source]
        if self.exponent != 1:
            L = power(np.maximum(L, MINVAL, dtype=np.float64), self.exponent)
        rows = Factor(L, block.n_rows, self.n_components)
        return {"sums": rows.column_sums(block.get("weights"))}
