from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

class Targets:
    def __init__(
        self, Y: Array, S: Array, B: Array, weights: Array, *, divides: bool, n_threads: int
    ) -> None: ...  # fmt: skip
    def sums(self) -> tuple[Array, float]: ...
    def products(self) -> Array: ...
