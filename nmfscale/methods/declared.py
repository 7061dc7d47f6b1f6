"""Methods that declare the arrays of their state, from which snapshots and results follow."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from .. import kernels
from ..counts.base import CountMatrix
from ..engine.protocol import Method
from .factors import MINVAL, Array, aligned_copy, aligned_empty, from_lanes, to_lanes

Shapes = dict[str, tuple[int, ...]]
Shared = dict[str, Array]


class DeclaredMethod(Method):
    """A method whose state is numbers, row arrays and arrays of this process, all declared.

    Row arrays hold a row of K numbers for each sample, and are padded to (lanes, stride). There is
    no constructor: `__init__` of a method sets the first three attributes, and `executor`.

    Attributes
    ----------
    counts : CountMatrix of shape (n, m)
    n_components : int
        K.
    dtype : float32 or float64
        Of the row arrays.
    numbers : tuple of str
        Names of the attributes that a snapshot holds in addition to arrays; JSON must be able to
        store them.
    """

    numbers: ClassVar[tuple[str, ...]] = ()
    counts: CountMatrix
    n_components: int
    dtype: np.dtype[Any]

    @abstractmethod
    def row_arrays(self) -> dict[str, str]:
        """Return the name in a snapshot of each row array of the state, and its own name."""

    @abstractmethod
    def shared_shapes(self) -> Shapes:
        """Return the names and shapes of the arrays of this process, attributes by default."""

    def shared_arrays(self) -> Shared:
        """Return the arrays of this process by their names in a snapshot."""
        return {name: getattr(self, name) for name in self.shared_shapes()}

    def set_shared(self, arrays: Shared) -> None:
        """Set the arrays of this process, given by their names in a snapshot."""
        for name in self.shared_shapes():
            setattr(self, name, aligned_copy(arrays[name]))

    def put_known(self) -> None:
        """Put arrays of samples that do not change (weights, masks, labels) into the executor."""

    @property
    def stride(self) -> int:
        """Length of a row in memory: K, rounded up."""
        return kernels.row_stride(self.n_components)

    @property
    def feature_order(self) -> Array:
        """Features in lane order, (m,)."""
        order: Array = self.executor.layout.column_order[: self.counts.shape[1]]
        return order

    def put_rows(
        self, name: str, plain: Array, *, empty: float = MINVAL, least: float | None = None
    ) -> None:
        """Make a row array from rows (n, K) in the order of the counts: see `to_lanes`."""
        order, folder = self.executor.layout.row_order, self.executor.folder
        self.executor.put(
            name, to_lanes(plain, order, self.stride, self.dtype, empty, least, folder)
        )

    def plain_rows(self, name: str) -> Array:
        """Return a row array as rows (n, K) in the order of the counts."""
        return from_lanes(
            self.executor.get(name), self.executor.layout.row_order, self.counts.shape[0],
            self.n_components, self.executor.folder,
        )  # fmt: skip

    def plain_columns(self, values: Array) -> Array:
        """Return an array of features in lane order, (m, K) or (m,), in the order of the counts."""
        m = self.counts.shape[1]
        used = values[:m, : self.n_components] if values.ndim == 2 else values[:m]
        plain = np.empty_like(used, order="C")
        plain[self.feature_order] = used
        return plain

    def lanes_of_columns(
        self, plain: Array, empty: float = MINVAL, least: float | None = None
    ) -> Array:
        """Return rows (m, K) of features in lane order, padded to (lanes, stride)."""
        n_lanes, (m, K) = len(self.executor.layout.column_order), plain.shape
        out = aligned_empty((n_lanes, self.stride), self.dtype)
        out[:m, :K], out[m:, :K], out[:, K:] = plain, empty, 0
        if least is not None:
            np.maximum(out[:m, :K], least, out=out[:m, :K])
        return out

    def shapes(self) -> Shapes:
        """Return the shapes of the arrays of every snapshot."""
        lanes = len(self.executor.layout.row_order), self.stride
        return dict.fromkeys(self.row_arrays(), lanes) | self.shared_shapes()

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return numbers and arrays from which `restore` rebuilds the state."""
        rows = {name: self.executor.get(own) for name, own in self.row_arrays().items()}
        return {name: getattr(self, name) for name in self.numbers}, rows | self.shared_arrays()

    def restore(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore the state saved by `snapshot`."""
        for name in self.numbers:
            setattr(self, name, numbers[name])
        for name, own in self.row_arrays().items():
            self.executor.put(own, aligned_copy(arrays[name]))
        self.set_shared(arrays)
        self.put_known()


class PointMethod(DeclaredMethod):
    """A method whose points each have a row array, and shared arrays of this process.

    Attributes
    ----------
    points : dict of str to dict of str to ndarray
        Shared arrays of each point; its row array has the name of the point.
    """

    points: dict[str, Shared]

    @abstractmethod
    def saved_points(self) -> tuple[str, ...]:
        """Return the names of the points that a snapshot has."""

    @abstractmethod
    def point_shapes(self) -> Shapes:
        """Return the shapes of the shared arrays of a point."""

    def copy(self, source: str, target: str) -> None:
        """Make two names refer to one point."""
        self.executor.copy(source, target)
        self.points[target] = self.points[source]

    def row_arrays(self) -> dict[str, str]:
        """Return the row array of each point."""
        return {point: point for point in self.saved_points()}

    def shared_shapes(self) -> Shapes:
        """Return the shapes of the shared arrays of all points."""
        shapes = self.point_shapes().items()
        return {f"{point}_{name}": shape for point in self.saved_points() for name, shape in shapes}

    def shared_arrays(self) -> Shared:
        """Return the shared arrays of all points."""
        return {
            f"{point}_{name}": array
            for point in self.saved_points()
            for name, array in self.points[point].items()
        }

    def set_shared(self, arrays: Shared) -> None:
        """Set the shared arrays of all points."""
        for point in self.saved_points():
            self.points[point] = {name: arrays[f"{point}_{name}"] for name in self.point_shapes()}
