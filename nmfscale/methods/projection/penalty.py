"""Penalties that make one factor sparse, with the norms of the other factor held at one.

Geiger and Park, equation 36: ``weight sum_ik l_ik^q`` on the loadings, with ``||f_k||_p = 1``. With
any scales of the factors, the same problem has the penalty ``weight sum_k ||f_k||_p^q sum_i
l_ik^q`` (equation 37, Theorem F.1). With p = q = 1, it divides the loadings by a constant (Lemma
6.1) and makes none of them zero. With q < 1, small loadings have the steepest penalty. With p = 2,
a factor spread over many features has a larger sum at the same norm, so that fewer loadings of it
are needed. A penalty on the components is the same of the transposed counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...counts.aligned import aligned_zeros
from ...engine.protocol import Block, RowArrays, Step, Sums, Values
from ...kernels.functions import power
from ..factors import MINVAL, Array


@dataclass(frozen=True)
class Slope:
    """Derivative ``coefficient_k v_ik^exponent`` of a penalty at the parameters v of a factor.

    `coefficient` is a number or (K,). Parameters below the floor have the derivative at the floor,
    as it may be infinite at 0.
    """

    coefficient: Any
    exponent: float

    def at(self, values: Array, n_components: int) -> Array:
        """Return the derivative at parameters (lanes, stride); 0 in the padding."""
        out = aligned_zeros(values.shape, values.dtype)
        inner = np.maximum(values[:, :n_components], MINVAL, dtype=np.float64)
        if self.exponent not in (0, 1):
            inner = power(inner, self.exponent)
        out[:, :n_components] = self.coefficient * (inner if self.exponent else 1)
        return out


@dataclass(frozen=True)
class Penalty:
    """``sum_k weight_k sum_i v_ik^exponent`` of one factor, where columns of the other have norm 1.

    Attributes
    ----------
    weight : float or ndarray of shape (K,)
    exponent : float
        q, above 0 and at most 1.
    norm : {"l1", "l2"}
        Norm of the columns of the other factor.
    on : {"loadings", "components"}
        The factor with parameters v.
    """

    weight: Any
    exponent: float = 1.0
    norm: str = "l1"
    on: str = "loadings"

    @property
    def p(self) -> int:
        """The norm as a number."""
        return 1 if self.norm == "l1" else 2

    @property
    def only_rescales(self) -> bool:
        """Whether the optimum is that without a penalty, up to the scales of the factors."""
        return self.exponent == 1 and self.norm == "l1"

    def scaled(self, scales: Any) -> Penalty:
        """Return the same penalty on parameters times `scales`, positive, a number or (K,)."""
        return replace(self, weight=self.weight * power(1 / np.asarray(scales), self.exponent))

    @property
    def slope(self) -> Slope:
        """Derivative with respect to v.

        The penalty is concave: its tangent is an upper bound, which an update may minimise instead.
        """
        return Slope(self.weight * self.exponent, self.exponent - 1)

    def slope_of_other(self, powers: Array, size: float) -> Slope:
        """Return the derivative of equation 37 with respect to the other factor, of norms `size`.

        `powers` (K,) are the sums of ``v_ik^exponent``.
        """
        return Slope(self.exponent * self.weight * powers / size**self.p, self.p - 1)


@dataclass(frozen=True)
class PenaltySlopes(Step):
    """Makes the ``rate`` of rows from the derivative of a penalty at L, and ``pseudo`` of zeros.

    An update of rows with this prior takes the penalty into account.
    """

    slope: Slope
    n_components: int
    arrays = RowArrays(("L",), ("pseudo", "rate"))

    def run(self, block: Block, sums: Sums, n_threads: int) -> Values:
        """Find the derivatives of the rows of a block."""
        L = block["L"]
        for name, values in (
            ("pseudo", np.zeros_like(L)),
            ("rate", self.slope.at(L, self.n_components)),
        ):
            block.empty(name, L)[:] = values
        return {}
