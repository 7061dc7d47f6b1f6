"""Sums over dense targets of a semi-supervised NMF, in float64; see `dense.pyi`."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

class Targets:
    """Targets Y (n, T) ~ S B^T for S (n, K) and B (T, K), with weights of rows (n,).

    R is Y or, if `divides`, the ratios Y / (S B^T), of numbers of at least 1e-30. Matrices whose
    shapes do not fit, or that are empty, raise a ValueError.
    """

    def __init__(
        self, Y: Array, S: Array, B: Array, weights: Array, *, divides: bool, n_threads: int
    ) -> None: ...  # fmt: skip
    def sums(self) -> tuple[Array, float]:
        """Return ``R^T W S`` (T, K), and the sum of w y^2 or, if `divides`, of w y (log r - 1)."""

    def products(self) -> Array:
        """Return ``R B`` (n, K)."""
